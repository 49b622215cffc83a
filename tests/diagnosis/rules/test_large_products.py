"""Products of embeddings from N(0, 1): too large with many factors, and sound with few, small or divided ones."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import wellcond as wc
from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.inspection.inspect import inspect
from wellcond.diagnosis.rules.bad_initialisation.products import large_products
from wellcond.diagnosis.trial_result import Attempt, Trial
from wellcond.results.run import Run


class Factors(nn.Module):
    """A row for every user and item."""

    def __init__(self, width: int, std: float, divisor: float) -> None:
        super().__init__()
        self.users, self.items, self.divisor = nn.Embedding(40, width), nn.Embedding(40, width), divisor
        for table in (self.users, self.items):
            nn.init.normal_(table.weight, std=std)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        product: Tensor = (self.users(user) * self.items(item)).sum(1) / self.divisor
        return product


def rated(width: int, std: float, divisor: float, scale: float) -> Evidence:
    draw = torch.Generator().manual_seed(1)
    users, items = torch.randint(40, (2, 256), generator=draw)
    ratings = scale * torch.randn(256, generator=draw)
    torch.manual_seed(0)
    batches = [((users[i : i + 64], items[i : i + 64]), ratings[i : i + 64]) for i in range(0, 256, 64)]
    problem = wc.Problem(Factors(width, std, divisor), nn.L1Loss(), batches)
    return Evidence(problem, inspection=inspect(problem))


@pytest.mark.parametrize(
    ("width", "std", "divisor", "scale", "is_large"),
    [
        (128, 1.0, 1.0, 1.0, True),
        (64, 1.0, 1.0, 1.0, True),
        (8, 1.0, 1.0, 1.0, False),
        (128, 0.1, 1.0, 1.0, False),
        (128, 1.0, math.sqrt(128), 1.0, False),
        (128, 1.0, 1.0, 10.0, False),
    ],
    ids=["128 factors", "64 factors", "few factors", "small factors", "divided by √d", "large targets"],
)
def test_products_of_embeddings(width: int, std: float, divisor: float, scale: float, is_large: bool) -> None:
    findings = [*large_products(rated(width, std, divisor, scale))]
    assert [(each.layer in ("users", "items"), each.severity) for each in findings] == [(True, "warning")] * is_large


@pytest.mark.parametrize(("after", "severity"), [(8.0, "severe"), (0.5, "warning")])
def test_products_are_severe_where_the_trial_stays_far_above_a_constant(after: float, severity: str) -> None:
    evidence = rated(128, 1.0, 1.0, 1.0)
    own = Attempt(1.0, 0.1, Run(losses=[after] * 64), (after,) * 4, (after,) * 4)
    evidence = Evidence(evidence.problem, inspection=evidence.inspection, trial=Trial((9.0,) * 4, 0.8, own))
    assert [each.severity for each in large_products(evidence)] == [severity]
