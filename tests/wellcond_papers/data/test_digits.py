from __future__ import annotations

import torch

import wellcond as wc
from wellcond_papers.data import digits


def test_digits_come_in_two_parts() -> None:
    data, train, test = digits(), digits(train=True), digits(train=False)
    assert data.images.shape == (1797, 1, 8, 8)
    assert (len(train), len(test)) == (1437, 360)
    assert torch.equal(torch.cat([train.images, test.images]), data.images)
    assert torch.equal(torch.cat([train.labels, test.labels]), data.labels)
    x, _ = data.tensors(standardize=False)
    assert (x.min().item(), x.max().item()) == (0.0, 1.0)


def test_the_standardized_inputs_are_those_of_wellcond() -> None:
    inputs, labels = wc.digits()
    x, y = digits().tensors(flatten=True)
    assert torch.equal(x, inputs)
    assert torch.equal(y, labels)
