"""The convolutional networks of huang2020: what is blocked, and what the last layer of a deep one receives."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from wellcond.results import Row
from wellcond.results.quantities import DIVERGED_AT, INPUT, TEST_ACCURACY
from wellcond_papers.experiments.experiment import Job
from wellcond_papers.experiments.table import Record
from wellcond_papers.papers.huang2020 import fig12, fig15
from wellcond_papers.papers.huang2020.networks import SMOKE, build, first_images, percent_wrong, trained


def job_of(**settings: object) -> Job:
    return Job(SMOKE | {"arm": "", "seed": 0} | settings)


def test_a_zero_blocks_three_convolutions() -> None:
    job = job_of(network="VGG", depth=16, size=32, images=32, tested=8, trained="0110")
    model = build(job)
    fig12.block(model, "0110")
    before = [layer.weight.clone() for layer in model if isinstance(layer, nn.Conv2d)]
    trained(job, model)
    after = [layer.weight for layer in model if isinstance(layer, nn.Conv2d)]
    moved = [not torch.equal(a, b) for a, b in zip(before, after, strict=True)]
    assert moved == [False] * 3 + [True] * 6 + [False] * 4


def test_lambda_max_of_the_last_layer_is_that_of_its_features() -> None:
    job = job_of(network="PreResNet", depth=8, final_norm=False, measured=16)
    model = build(job).double()
    x, _ = first_images(job, 16)
    features = model[:-1](x.double()).detach()
    moment = features.T @ features / len(features)
    values = [row.value for row in fig15.measure(job) if row.step == 0 and row.quantity == INPUT.lambda_max]
    # the features of the measurement are float32
    assert values == [pytest.approx(float(torch.linalg.eigvalsh(moment)[-1]), rel=1e-5)]


def test_looking_at_a_network_does_not_change_its_training() -> None:
    job = job_of(network="ResNet", depth=8, measured=16, epochs=1)
    looked = {row for row in fig15.measure(job) if row.quantity == TEST_ACCURACY and row.step in (0, 2, 4)}
    assert looked == {row for row in trained(job, build(job)) if row.quantity == TEST_ACCURACY}


def test_a_diverged_network_guesses() -> None:
    rows = [Row(0, "", TEST_ACCURACY, 0.8, ""), Row(None, "", DIVERGED_AT, 3.0, "steps")]
    assert percent_wrong(Record({"arm": "x"}, rows)) == 90
    assert percent_wrong(Record({"arm": "x", "classes": 1000}, rows)) == pytest.approx(99.9)
    assert percent_wrong(Record({"arm": "x"}, rows[:1])) == pytest.approx(20)
