"""Targets that were not measured, with a mask at hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import wellcond as wc
from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.probes.behavior import behavior
from wellcond.diagnosis.rules.padding_in_loss import unmeasured_targets

G = torch.Generator().manual_seed(0)
X = torch.randn(64, 6, generator=G)
KNOWN = (torch.rand(64, 4, generator=G) < 0.4).float()
FULL = 3 + X[:, :4].tanh()


@pytest.mark.parametrize(
    ("is_masked", "values", "is_found"),
    [(False, FULL * KNOWN, True), (True, FULL * KNOWN, False), (False, FULL, False)],
    ids=["counted", "masked", "no zeros"],
)
def test_zeros_that_a_mask_hides(is_masked: bool, values: Tensor, is_found: bool) -> None:
    def loss(outputs: Tensor, targets: tuple[Tensor, Tensor]) -> Tensor:
        errors = (outputs - targets[0]).square()
        return (errors * targets[1]).sum() / targets[1].sum() if is_masked else errors.mean()

    problem = wc.Problem(nn.Linear(6, 4), loss, [(X, (values, KNOWN))])
    reported = list(unmeasured_targets(Evidence(problem, None, behavior=behavior(problem))))
    assert [each.severity for each in reported] == (["warning"] if is_found else [])
