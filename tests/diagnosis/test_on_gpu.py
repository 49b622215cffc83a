"""What is planned for a GPU: the seconds and the memory of a diagnosis next to those of a training step."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

import wellcond as wc
from wellcond.diagnosis.on_gpu import (
    FEWEST_COUPLED,
    MOST_SLOWER,
    PRODUCT_COPIES,
    WORKSPACES,
    OnGpu,
    on_gpu,
    plan,
    with_fewer_examples,
)
from wellcond.problem.within_memory import OVER_STEP

GIB = 2.0**30


def planned(**changes: float) -> OnGpu:
    usual = {"seconds": 0.1, "ratio": 1.0, "size": 64, "vector": 1.0, "held": 2.0, "activations": 50.0, "graph": 200.0}
    return plan(**(usual | {"is_coupled": False} | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ratio", "slower"), [(0.3, 1), (1.3, 1), (1.5, 2), (2.7, 2), (3.0, 4), (8.0, 8), (100.0, MOST_SLOWER)]
)
def test_what_is_slower_is_rounded_to_a_power_of_two(ratio: float, slower: float) -> None:
    """So that two diagnoses plan the same, although no two timings are."""
    assert planned(ratio=ratio).slower == slower


def test_a_pass_that_takes_longer_has_as_few_examples_as_take_the_same_time() -> None:
    assert planned(ratio=8.0, held=1e9).examples == 8
    assert planned(ratio=1.0, held=1e9).examples == 64


def test_memory_is_twice_that_of_a_step_by_hand() -> None:
    """3 more vectors than are held, 50 for activations: a step has 55, and the diagnosis 110 and what libraries keep.

    It plans with 104.5. 2 are held; 8 vectors leave 94.5, of which half is for 47.25 / (4 · 50 / 64) = 15.1 examples;
    these take 46.9, and leave 47 products.
    """
    result = planned()
    assert (result.step_bytes, result.most_bytes) == (55.0, 110.0 + WORKSPACES)
    assert (result.examples, result.products) == (15, 47)


def test_layers_have_the_memory_that_a_gradient_leaves_by_hand() -> None:
    """Of 104.5 vectors 2 are held and 2 are the gradient's: 100.5 / (4 · 50 / 64) = 32.2 examples."""
    assert planned().layer_examples == 32
    assert planned(graph=50.0).layer_examples == 64
    assert planned(graph=5e4, is_coupled=True).layer_examples == FEWEST_COUPLED


def test_examples_that_depend_on_each_other_are_not_too_few() -> None:
    assert planned(ratio=16.0, held=1e9).examples == 4
    assert planned(ratio=16.0, held=1e9, is_coupled=True).examples == FEWEST_COUPLED
    assert planned(ratio=16.0, held=1e9, is_coupled=True, size=8).examples == 8


def test_no_plan_holds_more_than_it_says_but_for_one_example() -> None:
    draw = random.Random(0)
    for _ in range(300):
        size = draw.choice([1, 3, 16, 512])
        vector, held, activations = (10.0 ** draw.uniform(5, 11) for _ in range(3))
        whole = draw.choice([4.0, 8.0, 30.0]) * activations
        result = planned(
            ratio=10 ** draw.uniform(-1, 2), size=size, vector=vector, held=held, activations=activations, graph=whole
        )
        assert 1 <= result.examples <= size
        graph = whole * result.examples / size
        peak = held + (PRODUCT_COPIES + result.products) * vector + graph
        assert result.products == 0 or result.examples == 1 or peak <= (result.most_bytes - WORKSPACES) * (1 + 1e-12)
        assert result.most_bytes == OVER_STEP * (held + 3 * vector + activations) + WORKSPACES


def test_it_says_what_is_planned() -> None:
    text = str(OnGpu(0.1, 4.0, 3 * GIB, 32, 16, 20))
    assert text.startswith("at most 6 GiB on the GPU, 2 times a training step; layers of 32 and curvature of 16")
    assert text.endswith("in float32, which takes 4 times as long")


def linear(batches: list[tuple[torch.Tensor, torch.Tensor]]) -> wc.Problem:
    return wc.Problem(nn.Linear(3, 2), nn.MSELoss(), batches, dropout=5)


def test_on_a_cpu_nothing_is_planned_or_timed() -> None:
    of = linear([(torch.ones(4, 3), torch.ones(4, 2))])
    assert on_gpu(of) is None
    assert of.cost.u == 0


def test_the_first_examples_of_each_batch_are_measured() -> None:
    batches = [(torch.randn(n, 3), torch.randn(n, 2)) for n in (8, 8, 3)]
    of = linear(batches)
    fewer = with_fewer_examples(of, 4)
    assert fewer.model is of.model
    assert (fewer.loss, fewer.batchnorm, fewer.dropout) == (of.loss, of.batchnorm, of.dropout)
    assert [len(x) for x, _ in fewer.batches] == [4, 4, 3]
    assert all(torch.equal(x, y[: len(x)]) for (x, _), (y, _) in zip(fewer.batches, batches, strict=True))
    with fewer.measuring():
        loss = float(fewer.mean_loss())
    with torch.no_grad():
        terms = [(of.model(x[:4]) - y[:4]).square() for x, y in batches]
    assert loss == pytest.approx(float(torch.cat(terms).mean()), rel=1e-5)


def test_batches_that_are_small_enough_or_cannot_be_cut_are_measured_as_they_are() -> None:
    of = linear([(torch.ones(4, 3), torch.ones(4, 2))])
    assert with_fewer_examples(of, 4) is of
    assert of.cost.u == 0

    class Whole(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.reshape(8, 3))

    whole = wc.Problem(Whole(3, 2), nn.MSELoss(), (torch.ones(8, 3), torch.ones(8, 2)))
    assert with_fewer_examples(whole, 4) is whole
