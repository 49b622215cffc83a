"""The two networks of santurkar2018 in training, and what is measured on the way."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from wellcond.measurements.layers.unit_statistics import Histogram
from wellcond.results.quantities import MEAN_CHANGE, TRAINING_LOSS, VARIANCE_CHANGE
from wellcond_papers.experiments.experiment import Job
from wellcond_papers.experiments.table import Record
from wellcond_papers.models import deep_linear
from wellcond_papers.models.layers import NormName
from wellcond_papers.papers.santurkar2018 import training
from wellcond_papers.papers.santurkar2018.fig7 import measure as measure_moments
from wellcond_papers.papers.santurkar2018.networks import activations_of, image_network
from wellcond_papers.papers.santurkar2018.probes import GRADIENT_CHANGE, QUANTILES, predictiveness, quantiles
from wellcond_papers.papers.santurkar2018.settings import arms_of, at_scale
from wellcond_papers.papers.santurkar2018.training import trained


def smoke(network: str, norm: str, **changes: Any) -> Job:
    [(name, arm)] = arms_of([network], [norm]).items()
    return Job({**at_scale("smoke", {name: arm})["arms"][name], **arm, "arm": name, "seed": 0, **changes})


def record(job: Job, rows: Any) -> Record:
    return Record(job.settings, list(rows))


@pytest.mark.parametrize("norm", ["none", "batch"])
def test_few_examples_of_equal_moments_have_equal_loss_and_gradient(norm: NormName) -> None:
    x, a = training.gaussian_problem(50, 4, seed=0)
    few = training.same_moments(x)
    assert few.shape == (5, 4)
    model = deep_linear(4, 3, norm=norm, seed=0).double()
    losses = [training.squared_error(model(each), each @ a.T) for each in (x, few)]
    torch.testing.assert_close(*losses, rtol=1e-10, atol=0)
    first, second = (torch.autograd.grad(loss, list(model.parameters())) for loss in losses)
    torch.testing.assert_close(first, second, rtol=1e-8, atol=1e-10)


def test_an_average_absolute_deviation_is_no_moment() -> None:
    x, _ = training.gaussian_problem(50, 4, seed=0)
    few = training.same_moments(x)
    assert not torch.allclose(x.abs().mean(0), few.abs().mean(0), rtol=1e-2), "so ℓ1 networks see all examples"


@pytest.mark.parametrize("norm", ["standard", "BatchNorm", "ℓ1"])
def test_the_deep_linear_network_trains_and_is_looked_at(norm: str) -> None:
    job = smoke("DLN", norm)
    losses = record(job, trained(job)).series(TRAINING_LOSS)
    assert list(losses) == [0, 10, 20]
    assert losses[20] < losses[0]


def test_the_gradient_of_a_quadratic_changes_in_proportion_to_the_distance() -> None:
    job = smoke("DLN", "standard", layers=1, span=[1.0, 4.0], lengths=4)
    errors = record(job, trained(job, predictiveness(job))).by_layer(GRADIENT_CHANGE, 0)
    assert list(errors) == ["1", "2", "3", "4"]
    assert [error / errors["1"] for error in errors.values()] == pytest.approx([1, 2, 3, 4], rel=1e-9)


@pytest.mark.slow
def test_without_learning_the_moments_change_by_noise_alone() -> None:
    still = {norm: smoke("VGG", norm, lr=0.0) for norm in ("standard", "BatchNorm", "noisy BatchNorm")}
    records = {norm: record(job, measure_moments(job)) for norm, job in still.items()}
    for quantity in (MEAN_CHANGE, VARIANCE_CHANGE):
        changes = {norm: list(of.series(quantity, "conv1").values()) for norm, of in records.items()}
        assert changes["standard"] == changes["BatchNorm"] == [0.0, 0.0]
        assert min(changes["noisy BatchNorm"]) > 0.01


@pytest.mark.parametrize(("norm", "first"), [("standard", "conv1"), ("BatchNorm", "bn1"), ("ℓ∞", "norm1")])
def test_what_leaves_a_layer_is_what_its_norm_gives(norm: str, first: str) -> None:
    names = activations_of(image_network(smoke("VGG", norm)))
    assert names["conv1"] == first
    assert list(names) == [f"conv{k}" for k in range(1, 9)]


def test_quantiles_of_an_even_histogram_are_even() -> None:
    even = Histogram(torch.full((10,), 7), torch.linspace(-1, 1, 11), 0, 0)
    levels = list(QUANTILES.values())
    assert quantiles(even, levels) == pytest.approx([2 * level - 1 for level in levels], abs=1e-6)
