"""Distances of pairs that a batch holds and of others that are drawn: which of them a step makes smaller."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import wellcond as wc
from wellcond.diagnosis.probes.distances import Distances, distances
from wellcond.diagnosis.probes.subject import Subject

FACTS = torch.randint(0, 30, (48, 2), generator=torch.Generator().manual_seed(0))
Loss = Callable[[Tensor, Tensor], Tensor]


class Places(nn.Module):
    def __init__(self, of: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.of = nn.Embedding(30, 4).double(), of

    def forward(self, pairs: Tensor) -> Tensor:
        return self.of(self.table(pairs[:, 0]) - self.table(pairs[:, 1]))


def measured(of: Callable[[Tensor], Tensor], loss: Loss, draws: bool = True) -> Distances | None:
    others = FACTS.roll(1, 1).roll(1, 0)

    def step(model: nn.Module, batch: Tensor) -> Tensor:
        drawn = torch.stack([batch[:, 0], torch.randint(0, 30, (len(batch),))], 1) if draws else others
        return loss(model(batch), model(drawn))

    problem = wc.Problem.from_step(Places(of), step, [FACTS])
    with problem.measuring():
        return distances(Subject.of(problem))


NORMS: list[Callable[[Tensor], Tensor]] = [
    lambda d: d.norm(dim=1),
    lambda d: d.square().sum(1),
    lambda d: d.abs().sum(1),
    lambda d: (d * d).sum(1),
    lambda d: d.pow(2).sum(1).add(1e-9).sqrt(),
]


@pytest.mark.parametrize("of", NORMS)
def test_a_margin_for_distances_by_its_definition(of: Callable[[Tensor], Tensor]) -> None:
    right = measured(of, lambda near, far: F.relu(90 + near - far).mean())
    wrong = measured(of, lambda near, far: F.relu(90 + far - near).mean())
    assert right is not None
    assert wrong is not None
    assert (right.held, right.drawn) == pytest.approx((1.0, -1.0))
    assert (wrong.held, wrong.drawn) == pytest.approx((-1.0, 1.0))
    assert (right.move_apart, wrong.move_apart) == (False, True)


def test_scores_and_pairs_that_are_fixed_are_not_judged() -> None:
    def wrong(near: Tensor, far: Tensor) -> Tensor:
        return F.relu(90 + far - near).mean()

    assert measured(lambda d: d.sum(1), wrong) is None
    assert measured(lambda d: d.sum(1).exp(), wrong) is None
    assert measured(NORMS[0], wrong, draws=False) is None


def test_products_of_positive_vectors_are_similarities() -> None:
    class Scores(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.table = nn.Embedding(30, 4).double()

        def forward(self, pairs: Tensor) -> Tensor:
            return (self.table(pairs[:, 0]).relu() * self.table(pairs[:, 1]).relu()).sum(1)

    def step(model: nn.Module, batch: Tensor) -> Tensor:
        drawn = torch.stack([batch[:, 0], torch.randint(0, 30, (len(batch),))], 1)
        return F.relu(9 + model(drawn) - model(batch)).mean()

    problem = wc.Problem.from_step(Scores(), step, [FACTS])
    with problem.measuring():
        assert distances(Subject.of(problem)) is None
