"""The embedded digits are those of scikit-learn."""

from __future__ import annotations

import pytest
import torch

import wellcond as wc
from wellcond.problem.digits import digit_images


@pytest.mark.slow
def test_the_digits_are_those_of_scikit_learn() -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    pixels, targets = datasets.load_digits(return_X_y=True)
    images, labels = digit_images()
    assert torch.equal(images.double(), torch.from_numpy(pixels))
    assert labels.tolist() == targets.tolist()


def test_inputs_are_standardized_over_all_pixels() -> None:
    inputs, labels = wc.digits()
    assert inputs.dtype == torch.float32
    assert inputs.double().mean().item() == pytest.approx(0, abs=1e-6)
    assert inputs.double().std(correction=0).item() == pytest.approx(1, abs=1e-6)
    assert labels.unique().tolist() == list(range(10))
