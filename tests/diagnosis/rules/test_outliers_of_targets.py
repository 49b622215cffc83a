"""What outliers in the targets, or a moving target, hide from probes of the data; and two runs that both learn."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import wellcond as wc
from wellcond.diagnosis.after_runs import HeldOut
from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.inspection.inspect import inspect
from wellcond.diagnosis.labels import Relation, ranks, relation
from wellcond.diagnosis.rules.labels_unrelated import CHANCE, labels_unrelated, learned_by_heart
from wellcond.diagnosis.rules.weight_decay_dominates import decay_dominates
from wellcond.diagnosis.trial_result import Attempt, Trial
from wellcond.results.run import Run

N = 512


def surface(outliers: float, *, shuffled: bool = False) -> wc.Problem:
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(N, 6, generator=draw)
    y = torch.sin(x[:, 0]) + x[:, 1] * x[:, 2] / 2
    y = torch.where(torch.rand(N, generator=draw) < outliers, torch.full_like(y, 50.0), y)
    y = y[torch.randperm(N, generator=draw)] if shuffled else y
    return problem_of(x, y[:, None])


def problem_of(x: Tensor, y: Tensor) -> wc.Problem:
    model = nn.Linear(x.shape[1], y.shape[1])
    return wc.Problem(model, nn.HuberLoss(), [(x[i : i + 64], y[i : i + 64]) for i in range(0, len(x), 64)])


@pytest.mark.parametrize(("outliers", "shuffled"), [(0.05, False), (0.0, False), (0.05, True), (0.0, True)], ids=str)
def test_outliers_do_not_hide_a_relation(outliers: float, shuffled: bool) -> None:
    known = relation(surface(outliers, shuffled=shuffled))
    assert known is not None
    assert (known.best < CHANCE.severe) == shuffled


def test_equal_numbers_have_the_same_rank() -> None:
    assert ranks(torch.tensor([[50.0], [-1.0], [3.0], [50.0]])).flatten().tolist() == [1.0, 0.0, 0.5, 1.0]


def attempt(loss: float) -> Attempt:
    return Attempt(1.0, 0.1, Run(losses=[loss] * 64), (loss,) * 8, (loss,) * 8)


UNRELATED = Relation(N, 0.0, 0.0, 0.0, 0.0, 3.0, 6, True, N, None)


@pytest.mark.parametrize(
    ("after", "held", "severities"),
    [
        (0.99, None, ["severe"]),
        (0.5, HeldOut(0.4, 1.2, 1.0, (1.0, 1.2)), ["severe"]),
        (0.5, HeldOut(0.4, 1.0, 1.0, (1.0, 1.12)), ["warning"]),
        (0.5, None, []),
        (0.5, HeldOut(0.4, 0.6, 1.0, (1.0, 1.2)), []),
    ],
    ids=["nothing learned", "learned by heart", "of some use for others", "learned", "of use for others"],
)
def test_a_network_that_learns_is_accused_only_if_other_labels_do_as_well(
    after: float, held: HeldOut | None, severities: list[str]
) -> None:
    tried = Trial((1.0,) * 8, 1.0, attempt(after), relation=UNRELATED, held_out=held)
    assert [each.severity for each in labels_unrelated(Evidence(surface(0.0), trial=tried))] == severities


@pytest.mark.parametrize(
    ("held", "is_reported"),
    [
        (HeldOut(0.4, 1.0, 1.0, (1.0, 1.0)), True),
        (HeldOut(0.4, 0.82, 1.0, (1.0, 0.82)), False),
        (HeldOut(0.7, 1.7, 2.0, (2.0, 1.83)), False),
        (HeldOut(1.0, 1.2, 1.4, (1.25, 1.1)), False),
    ],
    ids=["no pairs", "of use", "a target network that has begun to move", "reversed gradients"],
)
def test_pairs_learned_by_heart(held: HeldOut, is_reported: bool) -> None:
    problem = surface(0.0)
    evidence = Evidence(problem, inspection=inspect(problem), trial=Trial((1.0,) * 8, held_out=held))
    assert [each.severity for each in learned_by_heart(evidence)] == ["warning"] * is_reported


@pytest.mark.parametrize(
    ("with_decay", "without", "severities"),
    [(2.3, 0.5, ["severe"]), (1.0, 0.7, ["warning"]), (0.028, 0.022, []), (0.02, 0.002, [])],
)
def test_two_runs_that_have_learned_are_not_compared(with_decay: float, without: float, severities: list[str]) -> None:
    problem = surface(0.0)
    tried = Trial((2.4,) * 8, 2.3, attempt(with_decay), variants={"no weight decay": attempt(without)})
    optimizer = torch.optim.AdamW(problem.model.parameters(), lr=0.02, weight_decay=2.0)
    evidence = replace(Evidence(problem, trial=tried), optimizer=optimizer)
    assert [each.severity for each in decay_dominates(evidence)] == severities
