"""Contrastive losses whose similarity of two examples depends on a third, and others that are meant as they are."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from zoo import normal, seeded

import wellcond as wc
from wellcond import Problem
from wellcond.diagnosis.probes.behavior import behavior
from wellcond.diagnosis.probes.similarities import mixed_similarities
from wellcond.diagnosis.probes.subject import Subject

N = 12
X = normal(N, 6)
Step = Callable[[nn.Module, Tensor], Tensor]


def encoder() -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 8)))


def simclr(model: nn.Module, x: Tensor, normalized: Callable[[Tensor], Tensor]) -> Tensor:
    """Two noisy views of each example, as in Chen et al. 2020."""
    z = normalized(torch.cat([model(x + 0.1 * torch.randn_like(x)), model(x + 0.1 * torch.randn_like(x))]))
    similar = (z @ z.T / 0.2).masked_fill(torch.eye(len(z), dtype=torch.bool), -1e9)
    return F.cross_entropy(similar, torch.arange(len(z)).roll(len(x)))


def clip(model: nn.Module, x: Tensor, dim: int) -> Tensor:
    """Two networks' vectors of each example; their logarithm of a softmax is written out."""
    first, second = model(x), x.roll(1, 1) @ torch.ones(6, 8, dtype=x.dtype)
    logits = first / first.norm(dim=dim, keepdim=True) @ (second / second.norm(dim=1, keepdim=True)).T
    return -(logits.log_softmax(1).diagonal() + logits.log_softmax(0).diagonal()).mean()


def without_diagonal(model: nn.Module, x: Tensor, dim: int) -> Tensor:
    """Positive first, then negatives; the similarity with itself is left out."""
    z = F.normalize(torch.cat([model(x), model(x + 0.1)]), dim=dim)
    similar = torch.einsum("id,jd->ij", z, z)
    same = torch.eye(len(z), dtype=torch.bool)
    positive = same.roll(len(x), 0)
    rows = [torch.cat([s[p], s[~p & ~e]]) for s, p, e in zip(similar, positive, same, strict=True)]
    return F.cross_entropy(torch.stack(rows) / 0.1, torch.zeros(len(z), dtype=torch.long))


def info_nce(model: nn.Module, x: Tensor, scale: Callable[[Tensor], Tensor]) -> Tensor:
    z = model(x)
    logits = (z * scale(z)) @ model(x + 0.1).T
    return (torch.logsumexp(logits, 1) - logits.diag()).mean()


def standardized(z: Tensor) -> Tensor:
    return F.normalize((z - z.mean(0)) / z.std(0))


UNSOUND: dict[str, Step] = {
    "normalize": functools.partial(simclr, normalized=lambda z: F.normalize(z, dim=0)),
    "norm": functools.partial(clip, dim=0),
    "without_diagonal": functools.partial(without_diagonal, dim=0),
    "sum_of_squares": functools.partial(info_nce, scale=lambda z: z.square().sum(0).rsqrt()),
    "largest": functools.partial(simclr, normalized=lambda z: z / z.abs().amax(0)),
    "whole_tensor": functools.partial(simclr, normalized=lambda z: z / z.norm()),
}
SOUND: dict[str, Step] = {
    "normalize": functools.partial(simclr, normalized=F.normalize),
    "plain": functools.partial(simclr, normalized=lambda z: z),
    "standardized": functools.partial(simclr, normalized=standardized),
    "centered": functools.partial(simclr, normalized=lambda z: F.normalize(z - z.mean(0))),
    "norm": functools.partial(clip, dim=1),
    "without_diagonal": functools.partial(without_diagonal, dim=1),
    "info_nce": functools.partial(info_nce, scale=lambda z: z.square().sum(1, keepdim=True).rsqrt()),
}


def mixed(step: Step, model: nn.Module | None = None) -> float | None:
    shown = behavior(Problem.from_step(model or encoder(), step, [X]))
    assert shown.failures == ()
    return shown.mixed_similarities


@pytest.mark.parametrize("step", UNSOUND.values(), ids=UNSOUND)
def test_similarities_that_depend_on_a_third_example_are_seen(step: Step) -> None:
    change = mixed(step)
    assert change is not None
    assert change > 0.01


@pytest.mark.parametrize("step", SOUND.values(), ids=SOUND)
def test_those_of_two_vectors_and_statistics_over_the_batch_are_sound(step: Step) -> None:
    assert mixed(step) == pytest.approx(0.0, abs=1e-5)


def test_large_batches_show_it_as_well() -> None:
    change = behavior(Problem.from_step(encoder(), UNSOUND["normalize"], [normal(256, 6)])).mixed_similarities
    assert change is not None
    assert change > 0.01


def test_other_losses_and_batchnorms_are_not_compared() -> None:
    def classes(model: nn.Module, x: Tensor) -> Tensor:
        return F.cross_entropy(model(x), torch.arange(N) % 8)

    def barlow_twins(model: nn.Module, x: Tensor) -> Tensor:
        """Features are compared over the batch: here the examples are the dimension to normalize over."""
        a, b = (F.normalize(model(x + 0.1 * torch.randn_like(x)), dim=0) for _ in range(2))
        return (a.T @ b - torch.eye(8, dtype=x.dtype)).square().sum()

    assert mixed(classes) is None
    assert mixed(barlow_twins) is None
    without_running = nn.BatchNorm1d(8, track_running_stats=False)
    assert mixed(UNSOUND["normalize"], nn.Sequential(nn.Linear(6, 8), without_running).double()) is None


def test_next_to_a_batchnorm_its_running_statistics_are_taken() -> None:
    def model() -> nn.Module:
        return seeded(lambda: nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8)))

    by_examples = mixed(UNSOUND["normalize"], model())
    assert by_examples is not None
    assert by_examples > 1e-2
    sound = mixed(functools.partial(simclr, normalized=F.normalize), model())
    assert sound is not None
    assert sound < 1e-9
    problem = Problem.from_step(model(), UNSOUND["normalize"], [X])
    with problem.measuring():
        subject = Subject.of(problem)
        before = problem.cost
        mixed_similarities(subject)
    assert (problem.cost - before).forwards == 3  # of a problem with running statistics, which count here


@pytest.mark.slow
def test_the_loss_of_a_problem_is_looked_at_too_and_a_finding_says_what_to_write() -> None:
    model = encoder()

    def loss(outputs: Tensor, _targets: Any, dim: int = 0) -> Tensor:
        z = F.normalize(outputs, dim=dim)
        return F.cross_entropy(z @ z.roll(1, 0).T, torch.arange(N))

    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    by_rule = {f.rule: f for f in wc.diagnose(Problem(model, loss, (X, X)), adam).findings}
    assert by_rule["mixed-examples"].severity != "note"
    assert "F.normalize(z, dim=-1)" in by_rule["mixed-examples"].remedy
    sound = wc.diagnose(Problem(model, functools.partial(loss, dim=1), (X, X)), adam)
    assert "mixed-examples" not in {f.rule for f in sound.findings}
