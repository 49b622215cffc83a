from __future__ import annotations

import sys

import pytest
import torch

from wellcond.data import digits
from wellcond.errors import WellcondError


def test_digits_are_scikit_learns() -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    pixels, targets = datasets.load_digits(return_X_y=True)
    data = digits()
    assert data.images.shape == (1797, 1, 8, 8)
    assert torch.equal(data.images.flatten(1).double(), torch.from_numpy(pixels))
    assert data.labels.tolist() == targets.tolist()


def test_black_is_zero_and_full_ink_is_one() -> None:
    pytest.importorskip("sklearn")
    x, _ = digits().tensors(standardize=False)
    assert (x.min().item(), x.max().item()) == (0.0, 1.0)


def test_train_and_test_part_the_set() -> None:
    pytest.importorskip("sklearn")
    train, test, both = digits(train=True), digits(train=False), digits()
    assert (len(train), len(test)) == (1437, 360)
    assert torch.equal(torch.cat([train.images, test.images]), both.images)
    assert torch.equal(torch.cat([train.labels, test.labels]), both.labels)


def test_without_scikit_learn_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(WellcondError, match=r'pip install "wellcond\[demo\]"'):
        digits()
