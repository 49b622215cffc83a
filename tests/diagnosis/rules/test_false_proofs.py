"""Pairs of a fault and a sound program that looks like it to the same rule."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import wellcond as wc
from wellcond.diagnosis.handful import Handful
from wellcond.diagnosis.probes.answers import _share
from wellcond.diagnosis.probes.behavior import behavior
from wellcond.diagnosis.rules.loss_not_decreasing import _cannot_fit_few
from wellcond.diagnosis.trial_result import Trial
from wellcond.problem.batches import as_batches
from wellcond.results.run import Run


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def severities(diagnosis: Any, rule: str) -> list[str]:
    return [each.severity for each in diagnosis.findings if each.rule == rule]


class Pair(nn.Module):
    """A part that makes something of the data, and one that takes it."""

    def __init__(self, inside: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, inside))
        self.last = nn.Sequential(nn.Linear(inside, 32), nn.ReLU(), nn.Linear(32, outputs))


def deceive(model: Pair, batch: Tensor) -> Tensor:
    return F.softplus(-model.last(model.first(batch))).mean()


def deceive_with_noise(model: Pair, batch: Tensor) -> Tensor:
    return F.softplus(-model.last(model.first(torch.randn_like(batch)))).mean()


def reconstruct(model: Pair, batch: Tensor) -> Tensor:
    return F.mse_loss(model.last(model.first(batch)), batch)


@pytest.mark.parametrize(
    ("step", "outputs", "severity"),
    [(reconstruct, 4, "severe"), (deceive, 1, "note"), (deceive_with_noise, 1, "note")],
    ids=["decoder that is forgotten", "discriminator", "discriminator of drawn noise"],
)
def test_what_the_optimizer_of_one_part_leaves_out(step: Any, outputs: int, severity: str) -> None:
    model = Pair(2, outputs)
    problem = wc.Problem.from_step(model, step, [torch.randn(64, 4) for _ in range(4)] * 3)
    diagnosis = wc.diagnose(problem, torch.optim.Adam(model.first.parameters(), lr=1e-3), select=["no-gradient"])
    assert severities(diagnosis, "no-gradient") == [severity]


def test_the_judged_part_is_the_one_whose_results_decide_alone() -> None:
    batches = [(torch.randn(64, 4),)]
    judged = wc.Problem.from_step(Pair(2, 1), lambda m, b: deceive(m, b[0]), batches)
    compared = wc.Problem.from_step(Pair(2, 4), lambda m, b: reconstruct(m, b[0]), batches)
    assert behavior(judged).judged_part == "first"
    assert behavior(compared).judged_part is None


def test_the_pieces_of_a_split_are_batches() -> None:
    pieces = torch.randn(100, 3).split(8)
    assert as_batches(pieces) is pieces
    assert len(as_batches((torch.randn(8, 3), torch.randn(8, 3)))) == 1
    assert len(as_batches(tuple(torch.randn(8, size) for size in range(1, 11)))) == 1


def handful(before: float) -> Handful:
    return Handful(8, 1e-3, before, before, None, Run.__new__(Run))


@pytest.mark.parametrize(("before", "is_stuck"), [(1.0, True), (0.0, False), (5e-15, False)])
def test_a_handful_without_a_loss_has_nothing_to_fit(before: float, is_stuck: bool) -> None:
    trial = Trial((1.0, 1.0), few=handful(before))
    assert _cannot_fit_few(trial) is is_stuck


def test_examples_that_are_right_are_no_hidden_places() -> None:
    values = torch.randn(64, 6)
    right = torch.arange(64)[:, None].expand(64, 6) % 2 == 0
    hidden = torch.rand(64, 6) < 0.5
    nothing_left = torch.zeros(64, 6)
    assert _share(hidden.double(), nothing_left, values) == 1.0
    assert _share(right.double(), nothing_left, values) is None


class ReZero(nn.Module):
    def __init__(self, gate: float) -> None:
        super().__init__()
        self.lin, self.gate = nn.Linear(6, 6), nn.Parameter(torch.full((1,), gate))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gate * torch.relu(self.lin(x))


def test_a_gate_of_zero_is_no_lack_of_a_nonlinearity() -> None:
    x = torch.randn(256, 6)
    data = DataLoader(TensorDataset(x, (x[:, :1] * x[:, 1:2])), batch_size=32)

    def warned(*layers: nn.Module) -> list[str]:
        model = nn.Sequential(nn.Linear(6, 6), *layers, nn.Linear(6, 1))
        diagnosis = wc.diagnose(wc.Problem(model, nn.MSELoss(), data), torch.optim.Adam(model.parameters(), 1e-3))
        return [each for each in severities(diagnosis, "no-nonlinearity") if each != "note"]

    assert warned(nn.Linear(6, 64), nn.Linear(64, 6))
    assert not warned(ReZero(0.0), ReZero(0.0))


def test_the_bias_of_a_rare_class_is_no_bad_start_and_that_of_a_hidden_layer_is() -> None:
    x = torch.randn(512, 6)
    y = (x[:, :1] + x[:, 1:2] > 2.4).float()
    data = DataLoader(TensorDataset(x, y), batch_size=64)

    def warned_at(place: int) -> list[str]:
        model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1), nn.Sigmoid())
        nn.init.constant_(model[place].bias, math.log(0.05 / 0.95) if place else -6.0)
        nn.init.normal_(model[2].weight, std=0.02)
        diagnosis = wc.diagnose(wc.Problem(model, nn.BCELoss(), data), select=["bad-initialisation"])
        return [each.severity for each in diagnosis.findings if each.severity != "note"]

    assert warned_at(2) == []
    assert warned_at(0) != []


def step_of_q(scale: float) -> Any:
    def step(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        states, actions, rewards = batch
        return F.mse_loss(model(states).gather(1, actions)[:, 0], scale * rewards)

    return step


@pytest.mark.parametrize(("scale", "severity"), [(3000.0, ["severe"]), (1.0, [])])
def test_rewards_in_points_are_targets_without_a_scale(scale: float, severity: list[str]) -> None:
    states, actions = torch.randn(256, 4), torch.randint(2, (256, 1))
    rewards = states[:, 0] + actions[:, 0]
    batches = [tuple(t[i : i + 32] for t in (states, actions, rewards)) for i in range(0, 256, 32)]
    model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
    diagnosis = wc.diagnose(
        wc.Problem.from_step(model, step_of_q(scale), batches), torch.optim.Adam(model.parameters(), 1e-3)
    )
    assert severities(diagnosis, "unscaled-target") == severity


class Words(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.table, self.rnn, self.out = nn.Embedding(12, 16), nn.GRU(16, 24, batch_first=True), nn.Linear(24, 12)
        self.dim = dim

    def forward(self, words: Tensor) -> Tensor:
        return F.log_softmax(self.out(self.rnn(self.table(words))[0]), self.dim)


def flat_nll(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.nll_loss(outputs.reshape(-1, 12), targets.reshape(-1))


@pytest.mark.parametrize(("dim", "rules"), [(1, ["wrong-softmax-dimension"]), (2, [])])
def test_a_softmax_over_time_is_not_called_a_look_ahead(dim: int, rules: list[str]) -> None:
    first = torch.randint(12, (128, 1))
    words = (first + torch.arange(13)) % 12
    problem = wc.Problem(Words(dim), flat_nll, DataLoader(TensorDataset(words[:, :-1], words[:, 1:]), batch_size=32))
    diagnosis = wc.diagnose(problem, select=["wrong-softmax-dimension", "future-seen"])
    assert [each.rule for each in diagnosis.findings] == rules


def test_the_layer_that_takes_unscaled_inputs_is_named() -> None:
    x = 1000 * torch.randn(128, 6)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    diagnosis = wc.diagnose(wc.Problem(model, nn.MSELoss(), [(x, x[:, :1] / 1000)]), select=["unscaled-input"])
    assert [(each.severity, each.layer) for each in diagnosis.findings] == [("severe", "0")]


@pytest.mark.parametrize("is_judged", [True, False])
def test_what_a_judge_gets_beside_the_outputs_is_not_what_they_are_asked_for(is_judged: bool) -> None:
    """The condition of a generator goes to the discriminator too; a decoder that is asked for it has to copy it."""
    judge = nn.Linear(8, 1)
    generator = nn.Linear(4, 4)
    conditions = [torch.randn(32, 4) for _ in range(4)]

    def step(model: nn.Module, batch: Tensor) -> Tensor:
        outputs = model(batch)
        if is_judged:
            return nn.functional.softplus(-judge(torch.cat([batch, outputs], 1))).mean()
        return (outputs[:, :-1] - batch[:, 1:]).square().mean()

    optimizer = torch.optim.Adam(generator.parameters(), 1e-3)
    diagnosis = wc.diagnose(wc.Problem.from_step(generator, step, conditions), optimizer)
    assert severities(diagnosis, "future-seen") == ([] if is_judged else ["severe"])


class Attending(nn.Module):
    """Self-attention, which sees the whole sequence or what came before."""

    def __init__(self, is_causal: bool) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(20, 16), nn.Parameter(torch.randn(10, 16))
        self.mixed, self.head, self.is_causal = nn.Linear(16, 48), nn.Linear(16, 20), is_causal

    def forward(self, tokens: Tensor) -> Tensor:
        q, k, v = self.mixed(self.words(tokens) + self.places).chunk(3, -1)
        h = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal)
        result: Tensor = self.head(h).mT
        return result


@pytest.mark.parametrize(("is_causal", "severity"), [(False, ["warning"]), (True, ["severe"])])
def test_who_sees_everything_may_be_asked_for_the_token_before(is_causal: bool, severity: list[str]) -> None:
    tokens = torch.randint(20, (256, 11))
    data = TensorDataset(tokens[:, 1:], tokens[:, :-1])
    model = Attending(is_causal)
    problem = wc.Problem(model, nn.CrossEntropyLoss(), DataLoader(data, batch_size=32, shuffle=True))
    diagnosis = wc.diagnose(problem, torch.optim.Adam(model.parameters(), 1e-3))
    assert severities(diagnosis, "label-shift") == severity


@pytest.mark.parametrize(("noise", "scale", "severity"), [(0.05, 1.0, ["note"]), (0.05, 3.0, ["severe"])])
def test_noise_around_the_values_of_a_tanh_is_hardly_out_of_reach(
    noise: float, scale: float, severity: list[str]
) -> None:
    x = torch.randn(512, 8)
    y = scale * (torch.tanh(x @ torch.randn(8)) + noise * torch.randn(512))
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1), nn.Tanh(), nn.Flatten(0))
    problem = wc.Problem(model, nn.MSELoss(), DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True))
    diagnosis = wc.diagnose(problem, torch.optim.Adam(model.parameters(), 1e-2))
    mismatches = [each for each in diagnosis.findings if each.rule == "output-loss-mismatch"]
    assert [each.severity for each in mismatches] == severity
    outside = (y - y.clamp(-1, 1)).square().mean() / y.var()
    assert mismatches[0].evidence["share of variance outside"] == pytest.approx(float(outside), rel=0.6)  # of one batch


@pytest.mark.parametrize("seed", [175, 182])
def test_the_range_of_a_tanh_is_seen_to_both_sides(seed: int) -> None:
    """With one choice of signs all outputs of these two networks are positive."""
    torch.manual_seed(seed)
    x = torch.zeros(64, 60).scatter_(1, torch.randint(60, (64, 6)), 1.0)
    model = nn.Sequential(nn.Linear(60, 32), nn.ReLU(), nn.Linear(32, 1), nn.Tanh(), nn.Flatten(0))
    shown = behavior(wc.Problem(model, nn.MSELoss(), (x, torch.tanh(0.5 * x @ torch.randn(60)))))
    assert shown.reach is None or (shown.reach.low < -0.8 and shown.reach.high > 0.8)


@pytest.mark.parametrize(("leaves_out", "expected"), [(True, []), (False, ["severe"])])
def test_missing_targets_may_be_nan_if_the_loss_leaves_them_out(leaves_out: bool, expected: list[str]) -> None:
    x = torch.randn(128, 6)
    y = torch.where(torch.rand(128, 6) < 0.3, torch.nan, x.roll(1, 1))

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        known = ~targets.isnan()
        return F.mse_loss(outputs[known], targets[known]) if leaves_out else (outputs - targets).square().mean()

    model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 6))
    diagnosis = wc.diagnose(wc.Problem(model, loss, (x, y)), torch.optim.Adam(model.parameters(), lr=1e-2))
    assert severities(diagnosis, "non-finite") == expected
