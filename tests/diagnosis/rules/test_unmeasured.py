"""Targets that were not measured, with a mask at hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import wellcond as wc
from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.probes.behavior import behavior
from wellcond.diagnosis.rules.padding_in_loss import marked_targets, unmeasured_targets

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


PLACES = torch.rand(64, 4, generator=G)
SEEN = torch.rand(64, 4, generator=G) < 0.7


@pytest.mark.parametrize(
    ("targets", "leaves_out", "expected"),
    [
        (PLACES.where(SEEN, torch.tensor(-1.0)), False, ["warning"]),
        (PLACES.where(SEEN, torch.tensor(999.0)), False, ["warning"]),
        (PLACES.where(SEEN, torch.tensor(-1.0)), True, []),
        (PLACES.where(SEEN, torch.tensor(0.0)), False, []),  # much is zero for a good reason
        (PLACES.clamp_min(0.3), False, []),  # the others begin at that number
        (PLACES.where(SEEN | (PLACES < 0.9), torch.tensor(-1.0)), False, []),  # only a few
        (torch.where(SEEN, (5 * PLACES).ceil(), torch.tensor(-1.0)), False, []),  # classes
    ],
    ids=["counted", "beyond all", "left out", "zeros", "cut off", "few", "classes"],
)
def test_numbers_that_mark_what_is_missing(targets: Tensor, leaves_out: bool, expected: list[str]) -> None:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        errors = (outputs - targets).square()
        is_there = (targets >= 0) & (targets <= 1)
        return errors[is_there].mean() if leaves_out else errors.mean()

    problem = wc.Problem(nn.Linear(6, 4), loss, [(X, targets)])
    findings = list(marked_targets(Evidence(problem, None, behavior=behavior(problem))))
    assert [each.severity for each in findings] == expected
    if expected:
        assert findings[0].evidence["share of the targets"] == pytest.approx(1 - float(SEEN.double().mean()))
