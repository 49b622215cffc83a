"""Runs in half precision: a loss scale that collapses, steps that are rounded away, and runs that are sound."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from loops import Clock
from torch import Tensor, nn
from torch.nn import functional as F

import wellcond as wc
from wellcond.recording.logbook import FindingWarning

# curvature is not measured in bfloat16, and a warning says so
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:curvature")]


def in_float(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs.float(), targets)


def recorded(
    steps: int,
    *,
    weights: torch.dtype = torch.float32,
    lr: float = 1e-2,
    loss: Callable[[Tensor, Tensor, int], Tensor] = lambda f, y, _: in_float(f, y),
) -> wc.Recorder:
    """A perceptron, in float16 and with a GradScaler if its weights are in float32."""
    torch.manual_seed(0)
    clock, task = Clock(), torch.randn(8, 4)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4)).to(weights)
    optimizer = torch.optim.AdamW(model.parameters(), lr)
    is_mixed = weights == torch.float32
    scaler = torch.amp.GradScaler("cpu", enabled=is_mixed)
    with (
        warnings.catch_warnings(action="ignore", category=FindingWarning),
        wc.Recorder(model, optimizer, in_float, scaler=scaler, budget=1.0, clock=clock) as rec,
    ):
        for step in range(1, steps + 1):
            x = torch.randn(32, 8)
            x, y = x.to(weights), (x @ task).argmax(1)
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16, enabled=is_mixed):
                value = loss(model(x), y, step)
            scaler.scale(value).backward()
            scaler.step(optimizer)
            scaler.update()
            clock.now += 1.0
            rec.step(value, (x, y))
    return rec


def test_a_gradient_that_overflows_at_every_scale_is_found_from_its_step_on() -> None:
    """From step 100 on the gradient of the outputs is beyond float16, although the loss is finite."""

    def loss(outputs: Tensor, targets: Tensor, step: int) -> Tensor:
        value = in_float(outputs, targets)
        return value if step < 100 else value + 1e7 * (outputs.float() - outputs.float().detach()).sum()

    rec = recorded(180, loss=loss)
    finding = rec.findings[0]
    assert (finding.rule, finding.severity) == ("lost-updates", "severe")
    assert finding.step == pytest.approx(100, abs=2)


def test_steps_that_bfloat16_rounds_away_are_found() -> None:
    rec = recorded(120, weights=torch.bfloat16, lr=1e-5)
    finding = rec.findings[0]
    assert finding.rule == "lost-updates"
    assert finding.evidence["share of weights that stay"] > 0.9


def test_sound_runs_in_half_precision_have_no_such_finding() -> None:
    for rec in (recorded(160), recorded(160, weights=torch.bfloat16)):
        assert [finding.rule for finding in rec.findings if finding.severity == "severe"] == []
        assert "lost-updates" not in [finding.rule for finding in rec.findings]
