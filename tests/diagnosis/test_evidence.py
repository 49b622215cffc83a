"""Every number that rules judge is a row, of a healthy network too, and findings show the rows of what they judge."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from made_findings import DEAD, NOTE, VANISHING
from torch import Tensor, nn
from zoo import integers, normal

import wellcond as wc
from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.inspection.inspect import inspect
from wellcond.diagnosis.judge import completed
from wellcond.diagnosis.trial import trial
from wellcond.results import quantities as q

X, Y = torch.randn(64, 4, generator=torch.Generator().manual_seed(0)).double(), torch.arange(64) % 2


def no_lines(name: str, lr: float | None) -> str:
    return ""


def network() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)).double()


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    model = network()
    with torch.no_grad():
        model[0].bias.fill_(-100.0)  # all off
    problem = wc.Problem(model, nn.CrossEntropyLoss(), [(X[:32], Y[:32]), (X[32:], Y[32:])])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Evidence(problem, optimizer, inspect(problem, optimizer), trial=trial(problem, optimizer))


@pytest.fixture(scope="module")
def healthy() -> wc.Diagnosis:
    problem = wc.Problem(network(), nn.CrossEntropyLoss(), (X, Y))
    return wc.diagnose(problem, torch.optim.SGD(problem.model.parameters(), lr=0.1))


# rows


def test_a_healthy_network_has_all_numbers_that_rules_judge(healthy: wc.Diagnosis) -> None:
    network = {
        q.LOSS, q.INSPECTED_LOSS, q.CONSTANT_LOSS, q.PERFECT_LOSS, q.OUTPUT_VARIATION, q.OUTPUT_ACCURACY, q.MIXING,
        q.BATCH_SIZE, q.TRIAL_LOSS, q.TRIAL_CONSTANT_LOSS, q.TRIAL_LR, q.TRIAL_FINAL_LOSS, q.TRIAL_FALL, q.HANDFUL_LOSS,
        q.HANDFUL_FINAL_LOSS, q.LINEAR_RELATION, q.MAX_LR, q.HESSIAN.lambda_max,
    }  # fmt: skip
    by_place = {
        "0": {q.SIGNAL_RMS, q.SENSITIVITY, q.VARIATION, q.DEAD_SHARE, q.FULL_SHARE, q.WEIGHT_NORM, q.GRADIENT_NORM},
        "2": {q.SIGNAL_RMS, q.SATURATED_SHARE},
        "2.weight": {q.PARAMETER_RMS, q.PARAMETER_GAIN, q.PARAMETER_GRADIENT_RMS, q.DISTINCT_UNITS, q.PARAMETER_LR},
        "2.bias": {q.PARAMETER_RMS, q.PARAMETER_GRADIENT_RMS},
        "inputs": {q.DATA_RMS, q.DATA_STD, q.LARGEST_FEATURE_RMS, q.MEDIAN_FEATURE_RMS, q.CONSTANT_FEATURES},
        "targets": {q.DATA_LOW, q.DATA_HIGH},
        "outputs": {q.DATA_RMS},
    }
    measured: dict[str, set[str]] = {}
    for row in healthy.rows():
        measured.setdefault(row.layer, set()).add(row.quantity)
    assert network <= measured[""]
    for place, quantities in by_place.items():
        assert quantities <= measured[place], place


def test_rows_are_those_of_the_evidence_and_can_be_saved(healthy: wc.Diagnosis, tmp_path: Path) -> None:
    own = healthy.evidence.rows()
    assert healthy.rows()[-len(own) :] == own
    assert len({(row.layer, row.quantity) for row in healthy.rows()}) == len(healthy.rows())
    path = healthy.evidence.save(tmp_path / "evidence.csv")
    with path.open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    assert [(line["layer"], line["quantity"], float(line["value"])) for line in table] == [
        (row.layer, row.quantity, row.value) for row in own
    ]


def test_attention_has_rows(healthy: wc.Diagnosis) -> None:
    class Attending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.out = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.attention(x, x, x)[0].mean(1))

    problem = wc.Problem(Attending().double(), nn.CrossEntropyLoss(), (normal(8, 5, 4), integers(2, 8)))
    rows = Evidence(problem, inspection=inspect(problem)).rows()
    sizes = {row.quantity: row.value for row in rows if row.layer == "attention"}
    assert 0 < sizes[q.ATTENTION_ENTROPY] <= 1
    assert 0.2 <= sizes[q.ATTENTION_LARGEST] <= 1  # of five tokens
    assert q.ATTENTION_SATURATED_SHARE in sizes


def test_a_second_relu_after_the_same_layer_has_rows_of_its_own() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(torch.relu(self.fc(x)) - 1e9)

    problem = wc.Problem(Twice().double(), nn.MSELoss(), (normal(8, 4), normal(8, 3)))
    dead = {
        r.layer: r.value for r in Evidence(problem, inspection=inspect(problem)).rows() if r.quantity == q.DEAD_SHARE
    }
    assert dead["fc"] < 1.0
    assert dead["fc[1]"] == 1.0


# dead units


def test_the_inspection_and_neurons_agree_on_the_same_examples(evidence: Evidence) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Conv1d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(18, 2))
    model.insert(2, nn.Unflatten(1, (1, 8)))
    with torch.no_grad():
        model[0].bias[:3] -= 100.0
        model[3].bias[0] -= 100.0
        model[3].bias[1] += 100.0
    problem = wc.Problem(model.double(), nn.CrossEntropyLoss(), (X, Y))
    table = wc.neurons(problem)
    relus = [signal for signal in inspect(problem).signals if signal.is_nonlinearity]
    assert {signal.name for signal in relus} == set(table)
    for signal in relus:
        assert torch.equal(signal.dead, table[signal.name].is_dying)
        assert torch.equal(signal.full, table[signal.name].is_full)
        assert bool(signal.dead.any())


def test_dead_units_are_those_of_all_data_where_that_is_known(evidence: Evidence) -> None:
    assert evidence.inspection is not None
    relu = next(signal for signal in evidence.inspection.signals if signal.is_nonlinearity)
    assert bool(evidence.dead_units(relu).all())
    alive = wc.neurons(wc.Problem(network(), nn.CrossEntropyLoss(), (X, Y)))
    assert torch.equal(replace(evidence, neurons=alive).dead_units(relu), alive["0"].is_dying)
    assert not bool(alive["0"].is_dying.all())


# rows of findings


def test_dead_units_are_drawn_for_every_layer_with_relus(evidence: Evidence) -> None:
    (finding,) = completed([DEAD], evidence, no_lines)
    assert [(row.layer, row.quantity, row.value) for row in finding.rows] == [("0", q.DEAD_SHARE, 1.0)]


def test_the_sizes_of_signals_are_those_of_the_outputs(evidence: Evidence) -> None:
    (finding,) = completed([replace(NOTE, rule="activation-drift")], evidence, no_lines)
    hidden, sizes = X, {}
    for name, layer in evidence.problem.model.named_children():
        hidden = layer(hidden)
        if isinstance(layer, nn.Linear):
            sizes[name] = float(hidden.detach().square().mean().sqrt())
    assert {row.layer: row.value for row in finding.rows} == pytest.approx(sizes, rel=1e-6)


def test_a_rate_is_drawn_as_losses_and_consequences_are_drawn_too(evidence: Evidence) -> None:
    (finding,) = completed([replace(NOTE, rule="learning-rate-too-low", consequences=(DEAD,))], evidence, no_lines)
    assert evidence.trial is not None
    assert evidence.trial.own is not None
    assert [row.value for row in finding.rows] == list(evidence.trial.own.run.losses)
    assert finding.consequences[0].rows


def test_rows_that_a_rule_gives_stay_and_other_rules_have_none(evidence: Evidence) -> None:
    with_rows, without = completed([VANISHING, replace(NOTE, rule="unscaled-input")], evidence, no_lines)
    assert with_rows.rows == VANISHING.rows
    assert without.rows == ()
