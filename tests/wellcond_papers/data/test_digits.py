from __future__ import annotations

import sys

import pytest
import torch

from wellcond.errors import WellcondError
from wellcond_papers.data import digits


def test_digits_are_scikit_learns_in_two_parts() -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    pixels, targets = datasets.load_digits(return_X_y=True)
    data, train, test = digits(), digits(train=True), digits(train=False)
    assert data.images.shape == (1797, 1, 8, 8)
    assert torch.equal(data.images.flatten(1).double(), torch.from_numpy(pixels))
    assert data.labels.tolist() == targets.tolist()
    assert (len(train), len(test)) == (1437, 360)
    assert torch.equal(torch.cat([train.images, test.images]), data.images)
    assert torch.equal(torch.cat([train.labels, test.labels]), data.labels)
    x, _ = data.tensors(standardize=False)
    assert (x.min().item(), x.max().item()) == (0.0, 1.0)


def test_without_scikit_learn_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(WellcondError, match=r'pip install "wellcond\[demo\]"'):
        digits()
