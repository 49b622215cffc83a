"""Predictions for real images, whose products are far from those of independent inputs, against measured λ_max."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import pytest
from measured import sample
from torch import Tensor

from wellcond.learning_rate.meanfield import Architecture, predict
from wellcond.learning_rate.meanfield.gram import Gram
from wellcond.learning_rate.meanfield.moments import Moments
from wellcond.learning_rate.meanfield.prediction import contributions
from wellcond.learning_rate.meanfield.stages import Variant
from wellcond_papers.data import cifar10, mnist

DATA = os.environ.get("WELLCOND_DATA")
pytestmark = pytest.mark.skipif(
    DATA is None or not (Path(DATA) / "MNIST").exists(), reason="WELLCOND_DATA names no folder with MNIST and CIFAR-10"
)
EXAMPLES, DRAWS = 100, 6


@functools.cache
def images(name: str, scale: str) -> Tensor:
    dataset = {"mnist": mnist, "cifar10": cifar10}[name](DATA, train=False)
    x = dataset.images[:EXAMPLES].flatten(1).double() / 255
    return (x - x.mean()) / x.std() if scale == "standardized" else x


@pytest.mark.parametrize(
    ("data", "scale", "norm", "variant"),
    [
        ("mnist", "standardized", "vanilla", "batch"),
        ("mnist", "standardized", "ln", "batch"),
        ("mnist", "standardized", "bn", "detached"),
        ("mnist", "standardized", "bn", "batch"),
        ("mnist", "in [0, 1]", "bn", "detached"),
        ("cifar10", "standardized", "bn", "detached"),
        ("cifar10", "standardized", "bn", "batch"),
        ("cifar10", "in [0, 1]", "vanilla", "batch"),
        ("cifar10", "in [0, 1]", "bn", "detached"),
    ],
)
@pytest.mark.slow
def test_lambda_max_of_real_images_is_predicted(data: str, scale: str, norm: str, variant: Variant) -> None:
    """The mean over six draws agrees within 12 %; single draws differ by 20 %."""
    x = images(data, scale)
    net = Architecture.parse(f"fc {x.shape[1]}-300-300-300-1 {norm}")
    measured = sum(sample(net, variant, x, seed).lambda_max for seed in range(DRAWS)) / DRAWS
    assert predict(net, variant=variant, inputs=x).lambda_max == pytest.approx(measured, rel=0.12)


def test_two_numbers_of_the_inputs_are_not_enough_for_cifar10() -> None:
    """λ_max of a network with BatchNorm lies in the first layer there, where they have nothing."""
    x, net = images("cifar10", "standardized"), Architecture.parse("fc 3072-300-300-300-1")
    start = Moments(*(k.view(1, 1) for k in Gram.of(x).same_and_pair()))
    assert float(contributions(net.stages(), start, "batch")[0]) < 0.6 * sample(net, "batch", x).lambda_max
