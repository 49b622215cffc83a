"""The rows that findings are drawn from."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from made_findings import DEAD, NOTE, VANISHING
from torch import nn

import wellcond as wc
from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.illustrate import OF_LAYERS, OF_RUNS, illustrated
from wellcond.diagnosis.inspection.inspect import inspect
from wellcond.diagnosis.judge import RULES
from wellcond.diagnosis.trial import trial
from wellcond.results import quantities as q


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).double()
    with torch.no_grad():
        model[0].bias.fill_(-100.0)  # all off
    x = torch.randn(64, 4).double()
    problem = wc.Problem(model, nn.CrossEntropyLoss(), [(x[:32], torch.arange(32) % 2), (x[32:], torch.arange(32) % 2)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Evidence(problem, optimizer, inspect(problem, optimizer), trial=trial(problem, optimizer))


def test_rules_that_are_illustrated_exist() -> None:
    assert {*OF_LAYERS, *OF_RUNS} <= RULES.keys()


def test_dead_units_are_drawn_for_every_layer_with_relus(evidence: Evidence) -> None:
    (found,) = illustrated([DEAD], evidence)
    shares = {row.value for row in found.rows}
    assert {row.quantity for row in found.rows} == {q.DEAD_SHARE}
    assert len(found.rows) == 2
    assert max(shares) == 1.0


def test_the_sizes_of_signals_are_those_of_the_outputs(evidence: Evidence) -> None:
    (found,) = illustrated([replace(NOTE, rule="activation-drift")], evidence)
    model, hidden, sizes = evidence.problem.model, torch.cat([x for x, _ in evidence.problem.batches]), {}
    for name, layer in model.named_children():
        hidden = layer(hidden)
        if isinstance(layer, nn.Linear):
            sizes[name] = float(hidden.detach().square().mean().sqrt())
    assert {row.layer: row.value for row in found.rows} == pytest.approx(sizes, rel=1e-6)


def test_a_rate_is_drawn_as_the_losses_of_the_run_and_consequences_are_drawn_too(evidence: Evidence) -> None:
    outer = replace(NOTE, rule="learning-rate-too-low", consequences=(DEAD,))
    (found,) = illustrated([outer], evidence)
    assert evidence.trial is not None
    assert evidence.trial.own is not None
    assert [row.value for row in found.rows] == list(evidence.trial.own.run.losses)
    assert found.consequences[0].rows


def test_rows_of_a_rule_are_kept_and_other_rules_have_none(evidence: Evidence) -> None:
    kept, without = illustrated([VANISHING, replace(NOTE, rule="my-own-rule")], evidence)
    assert kept == VANISHING
    assert without.rows == ()
