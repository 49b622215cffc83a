"""Kinds of faults that examinations brought up, each next to a sound set-up that is easily mistaken for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from rule_cases import perceptron, table
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer
from torch.utils.data import DataLoader, TensorDataset

import wellcond as wc
from wellcond.diagnosis import swamped
from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.inspection.inspect import inspect
from wellcond.diagnosis.judge import judged
from wellcond.diagnosis.probes.behavior import behavior
from wellcond.diagnosis.rules.batchnorm_mode_gap import separate_passes, slow_statistics
from wellcond.diagnosis.rules.constant_target import constant_target
from wellcond.diagnosis.rules.gradient_underflow import gradient_underflow
from wellcond.diagnosis.rules.labels_unrelated import labels_unrelated, learned_by_heart
from wellcond.diagnosis.rules.learning_rate_too_high import rises_at_its_own_rate
from wellcond.diagnosis.rules.learning_rate_too_low import hardly_falls
from wellcond.diagnosis.rules.loss_not_decreasing import does_not_decrease
from wellcond.diagnosis.rules.lost_updates import lost_updates
from wellcond.diagnosis.rules.order_lost import order_lost
from wellcond.diagnosis.rules.weight_decay_dominates import decay_dominates, penalty_dominates
from wellcond.diagnosis.trial import trial
from wellcond.diagnosis.trial_result import Trial
from wellcond.problem.apart import taken_apart

SLOW = pytest.mark.slow
CE = nn.CrossEntropyLoss()


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def cut(*tensors: Tensor, size: int = 32) -> list[Any]:
    """Batches of a few examples."""
    return list(zip(*(each.split(size) for each in tensors), strict=True))


def findings(problem: wc.Problem, optimizer: Optimizer | None = None) -> dict[str, Finding]:
    """By rule, from a look, the probes and a trial; consequences too."""
    apart = taken_apart(problem)
    tried = None if optimizer is None else trial(apart, optimizer)
    roots = judged(Evidence(apart, optimizer, inspect(apart, optimizer), behavior(apart), trial=tried))
    return {each.rule: each for root in reversed(roots) for each in (*root.consequences, root)}


# BatchNorm


@pytest.mark.parametrize(("momentum", "batches", "severity"), [(1e-3, 33, "severe"), (1e-3, 34, "warning")])
def test_statistics_that_take_thirty_epochs_of_a_loader(momentum: float, batches: int, severity: str) -> None:
    """1/momentum = 1000 steps are 30.3 epochs of 33 batches and 29.4 of 34."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=momentum), nn.Linear(4, 2))
    data = TensorDataset(torch.zeros(2 * batches, 4), torch.zeros(2 * batches, dtype=torch.long))
    (finding,) = slow_statistics(Evidence(wc.Problem(model, CE, DataLoader(data, batch_size=2))))
    assert finding.severity == severity
    (of_list,) = slow_statistics(Evidence(wc.Problem(model, CE, list(DataLoader(data, batch_size=2)))))
    assert of_list.severity == "warning"  # a list may be a part of an epoch


class Discriminator(nn.Module):
    """Tells real examples from generated ones, whose means differ and nothing else."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 16), norm, nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(torch.tanh(self.norm(self.first(x))))
        return out


def apart(model: nn.Module, batch: Any) -> Tensor:
    real, generated = model(batch[0]), model(batch[1])
    return F.binary_cross_entropy_with_logits(real, torch.ones_like(real)) + F.binary_cross_entropy_with_logits(
        generated, torch.zeros_like(generated)
    )


def together(model: nn.Module, batch: Any) -> Tensor:
    return F.binary_cross_entropy_with_logits(
        model(torch.cat([*batch])), torch.ones(2 * len(batch[0]), 1).index_fill(0, torch.arange(32, 64), 0.0)
    )


@SLOW
@pytest.mark.parametrize(
    ("norm", "step", "is_wrong"),
    [(nn.BatchNorm1d, apart, True), (nn.LayerNorm, apart, False), (nn.BatchNorm1d, together, False)],
)
def test_real_and_generated_examples_in_separate_passes(
    norm: Callable[[int], nn.Module], step: Callable[..., Tensor], is_wrong: bool
) -> None:
    torch.manual_seed(0)
    model = Discriminator(norm(16))
    problem = taken_apart(wc.Problem.from_step(model, step, cut(drawn(256, 8), drawn(256, 8, seed=1) + 2)))
    tried = trial(problem, Adam(model.parameters(), 1e-3))
    every = [*separate_passes(Evidence(problem, trial=tried))]
    severities = [(each.severity, each.layer, each.evidence["calls"]) for each in every]
    assert severities == ([("severe", "norm", 2)] if is_wrong else [])
    assert tried.own is not None
    learns = replace(tried, own=replace(tried.own, after=tuple(0.9 * each for each in tried.before)))
    assert not [*separate_passes(Evidence(problem, trial=learns))]


# sequences


class Summed(nn.Module):
    """Embeddings that are summed, with or without positions."""

    def __init__(self, with_positions: bool, steps: int = 6) -> None:
        super().__init__()
        self.embedding, self.last = nn.Embedding(8, 16), nn.Linear(16, 3)
        self.positions = nn.Parameter(torch.randn(steps, 16)) if with_positions else None

    def forward(self, ids: Tensor) -> Tensor:
        h = self.embedding(ids)
        out: Tensor = self.last((h if self.positions is None else torch.tanh(h * self.positions)).mean(1))
        return out


@SLOW
@pytest.mark.parametrize("with_positions", [False, True])
def test_an_order_that_halves_the_error_is_severe(with_positions: bool) -> None:
    torch.manual_seed(0)
    ids = torch.randint(8, (256, 6), generator=torch.Generator().manual_seed(0))
    model = Summed(with_positions)
    problem = wc.Problem(model, CE, cut(ids, ids[:, 0] % 3))
    tried = trial(problem, Adam(model.parameters(), 1e-2))
    every = [*order_lost(Evidence(problem, behavior=behavior(problem), trial=tried))]
    assert len(every) == (not with_positions)
    for finding in every:
        assert tried.trains is not False  # what is tried does not make it severe
        assert finding.severity == "severe"
        assert float(finding.evidence["error with order / without"]) < 0.5


class Next(nn.Module):
    """Two layers that see three steps each, up to their own or one later."""

    def __init__(self, is_causal: bool) -> None:
        super().__init__()
        self.embedding, self.conv, self.last = nn.Embedding(8, 16), nn.Conv1d(16, 16, 3), nn.Linear(16, 8)
        self.pads = (2, 0) if is_causal else (1, 1)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.conv(F.pad(self.embedding(ids).mT, self.pads)).mT
        out: Tensor = self.last(F.relu(h))
        return out


@pytest.mark.parametrize("is_causal", [False, True])
def test_targets_one_step_longer_than_the_inputs(is_causal: bool) -> None:
    ids = torch.randint(8, (64, 9), generator=torch.Generator().manual_seed(0))

    def step(model: nn.Module, batch: Tensor) -> Tensor:
        return F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

    torch.manual_seed(0)
    every = findings(wc.Problem.from_step(Next(is_causal), step, [*ids.split(16)]))
    assert ("future-seen" in every) is not is_causal
    assert is_causal or every["future-seen"].severity == "severe"


class Tagger(nn.Module):
    def __init__(self, steps_first: bool) -> None:
        super().__init__()
        self.embedding, self.rnn, self.last = nn.Embedding(9, 16), nn.GRU(16, 16), nn.Linear(16, 3)
        self.steps_first = steps_first

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.last(self.rnn(self.embedding(ids.T))[0])
        return out if self.steps_first else out.transpose(0, 1)


@pytest.mark.parametrize(
    ("steps_first", "turn", "is_wrong"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_outputs_and_labels_that_are_flattened_in_two_orders(steps_first: bool, turn: bool, is_wrong: bool) -> None:
    ids = torch.randint(9, (64, 7), generator=torch.Generator().manual_seed(0))

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs.flatten(0, 1), (targets.T if turn else targets).flatten())

    torch.manual_seed(0)
    every = findings(wc.Problem(Tagger(steps_first), loss, cut(ids, ids % 3, size=16)))
    assert ("output-loss-mismatch" in every) is is_wrong
    if is_wrong:
        assert every["output-loss-mismatch"].severity == "severe"
        assert "flattens both as they lie" in every["output-loss-mismatch"].summary


@pytest.mark.parametrize("ignored", [-100, 0])
def test_a_padding_value_that_is_a_word_and_a_label(ignored: int) -> None:
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(9, (64, 8), generator=draw)
    labels = (ids + 1) % 3  # word 0 has label 1, words 2, 5 and 8 have label 0
    is_padding = torch.arange(8) >= torch.randint(3, 8, (64, 1), generator=draw)
    ids, labels = ids.masked_fill(is_padding, 0), labels.masked_fill(is_padding, 0)
    torch.manual_seed(0)
    loss = nn.CrossEntropyLoss(ignore_index=ignored)
    every = findings(
        wc.Problem(Tagger(False), lambda f, y: loss(f.flatten(0, 1), y.flatten()), cut(ids, labels, size=16))
    )
    assert ("padding-in-loss" in every) is (ignored != 0)


class Turned(nn.Module):
    """A recurrence that wants the steps in front, and gets them by a view or by a transposition."""

    def __init__(self, by_view: bool) -> None:
        super().__init__()
        self.rnn, self.last, self.by_view = nn.GRU(4, 16), nn.Linear(16, 3), by_view

    def forward(self, x: Tensor) -> Tensor:
        turned = x.reshape(x.shape[1], x.shape[0], -1) if self.by_view else x.transpose(0, 1)
        out: Tensor = self.last(self.rnn(turned)[0][-1])
        return out


@pytest.mark.parametrize("by_view", [True, False])
def test_a_view_that_turns_examples_into_steps(by_view: bool) -> None:
    x = drawn(64, 6, 4)
    torch.manual_seed(0)
    every = findings(wc.Problem(Turned(by_view), CE, cut(x, (x[:, -1, :3]).argmax(1), size=16)))
    assert ("mixed-examples" in every) is by_view
    assert "output-loss-mismatch" not in every
    if by_view:
        assert every["mixed-examples"].severity == "severe"
        assert "a view reads [16, 6, 4] as [6, 16, 4]" in every["mixed-examples"].remedy


# outputs and targets


@pytest.mark.parametrize("is_flat", [True, False])
def test_broadcasts_of_two_batches_in_a_step(is_flat: bool) -> None:
    x, y = table()

    def step(model: nn.Module, batch: Any) -> Tensor:
        outputs = model(torch.cat([batch[0], batch[0].flip(1)]))
        targets = torch.cat([batch[1], batch[1]]).float()
        return (outputs - (targets if is_flat else targets[:, None])).square().mean()

    every = findings(wc.Problem.from_step(perceptron(outputs=1), step, cut(x, y)))
    assert ("output-loss-mismatch" in every) is is_flat
    assert not is_flat or every["output-loss-mismatch"].severity == "severe"


class Exponential(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.exp()


@pytest.mark.parametrize(
    ("tail", "takes_logarithms", "is_wrong"),
    [
        ([Exponential()], True, True),
        ([nn.Softplus()], True, True),
        ([Exponential()], False, False),
        ([], True, False),
    ],
)
def test_rates_before_a_loss_of_their_logarithms(tail: list[nn.Module], takes_logarithms: bool, is_wrong: bool) -> None:
    x, _ = table()
    counts = torch.poisson((0.5 * x[:, :1]).exp(), generator=torch.Generator().manual_seed(0))
    loss = nn.PoissonNLLLoss(log_input=takes_logarithms)
    every = findings(wc.Problem(perceptron(*tail, outputs=1), loss, cut(x, counts)))
    assert ("output-loss-mismatch" in every) is is_wrong
    if is_wrong:
        assert every["output-loss-mismatch"].severity == "severe"
        assert "log_input=False" in every["output-loss-mismatch"].remedy


@pytest.mark.parametrize(("scale", "saturated"), [(1e-2, 0.0), (1e4, 1.0)])
def test_thousands_of_classes_with_equal_logits_are_not_saturated(scale: float, saturated: float) -> None:
    model = nn.Linear(10, 5000).double()
    with torch.no_grad():
        model.weight.copy_(scale * drawn(5000, 10))
    problem = wc.Problem(model, CE, (drawn(32, 10, seed=1).double(), torch.arange(32)))
    output = inspect(problem, None).output
    assert output is not None
    assert output.saturated == saturated


@SLOW
@pytest.mark.parametrize(("frozen", "severity"), [(False, "warning"), (True, "note")])
def test_ones_that_every_constant_output_fits(frozen: bool, severity: str) -> None:
    """A part that is not trained may be a judge of what the rest generates."""
    x, _ = table()
    model = perceptron(outputs=1)
    model[4].requires_grad_(not frozen)
    problem = wc.Problem(model, lambda f, y: (f - y).square().mean(), cut(x, torch.ones(len(x), 1)))
    optimizer = Adam((p for p in model.parameters() if p.requires_grad), 1e-2)
    tried = trial(problem, optimizer)
    assert tried.own is not None
    assert tried.own.loss < 0.05 * tried.loss
    (finding,) = constant_target(Evidence(problem, optimizer, inspect(problem, optimizer), trial=tried))
    assert finding.severity == severity


# steps and runs


@SLOW
def test_updates_that_a_network_which_has_learned_loses() -> None:
    x, y = table()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = Adam(model.parameters(), 1e-2)
    for _ in range(20):
        optimizer.zero_grad()
        CE(model(x), y).backward()
        optimizer.step()
    model.bfloat16()
    problem = wc.Problem(model, lambda f, t: F.cross_entropy(f.float(), t), cut(x.bfloat16(), y))
    severities = {}
    for lr in (1e-6, 1e-3):
        tried = trial(problem, Adam(model.parameters(), lr))
        assert tried.has_learned
        severities[lr] = [each.severity for each in lost_updates(Evidence(problem, trial=tried))]
        if lr == 1e-6:
            assert tried.few is not None
            fitted = replace(tried, few=replace(tried.few, after=0.6 * tried.few.before))
            assert not [*lost_updates(Evidence(problem, trial=fitted))]  # there is nothing more to be learned
    assert severities == {1e-6: ["severe"], 1e-3: []}


@SLOW
def test_classes_without_structure_that_are_learned_by_heart_are_a_warning() -> None:
    x, chance = drawn(256, 8), torch.randint(4, (256,), generator=torch.Generator().manual_seed(3))
    for y, severities in ((chance, ["warning"]), (x[:, :4].argmax(1), [])):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 4))
        problem = wc.Problem(model, CE, cut(x, y))
        tried = trial(problem, Adam(model.parameters(), 1e-2))
        assert tried.own is not None
        assert tried.outcome(tried.own) == "learns"
        assert [each.severity for each in labels_unrelated(Evidence(problem, trial=tried))] == severities


def contrast(model: nn.Module, batch: Any) -> Tensor:
    first, second = (F.normalize(model(each), dim=1) for each in batch)
    return F.cross_entropy(first @ second.T / 0.5, torch.arange(len(first)))


@SLOW
@pytest.mark.parametrize("shuffled", [True, False])
def test_two_views_from_two_shuffles_are_learned_by_heart(shuffled: bool) -> None:
    first, second = (drawn(256, 16) + 0.1 * drawn(256, 16, seed=seed) for seed in (1, 2))
    order = torch.randperm(256, generator=torch.Generator().manual_seed(5)) if shuffled else torch.arange(256)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 32))
    problem = taken_apart(wc.Problem.from_step(model, contrast, cut(first, second[order])))
    tried = trial(problem, Adam(model.parameters(), 1e-2))
    every = [*learned_by_heart(Evidence(problem, inspection=inspect(problem), trial=tried))]
    assert [each.severity for each in every] == (["warning"] if shuffled else [])


class Factors(nn.Module):
    """A vector for every user and item."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(64, 8), nn.Embedding(64, 8)
        for each in (self.users, self.items):
            nn.init.normal_(each.weight, std=0.3)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        return (self.users(user) * self.items(item)).sum(1)


@SLOW
def test_a_table_of_users_and_items_is_learned_by_heart_on_purpose() -> None:
    draw = torch.Generator().manual_seed(1)
    users, items = torch.randint(64, (2, 256), generator=draw)
    torch.manual_seed(0)
    model = Factors()
    batches = [((u, i), r) for u, i, r in cut(users, items, torch.randn(256, generator=draw))]
    problem = wc.Problem(model, nn.MSELoss(), batches)
    evidence = Evidence(problem, inspection=inspect(problem), trial=trial(problem, Adam(model.parameters(), 3e-2)))
    assert not [*learned_by_heart(evidence)]
    assert evidence.inspection is not None
    without_names = replace(evidence, inspection=replace(evidence.inspection, inputs=()))
    assert [*learned_by_heart(without_names)]  # the same run, of inputs that are no names


@SLOW
def test_a_strong_decay_is_tried_before_other_rates() -> None:
    x, y = table()
    model = perceptron(depth=4, width=32)
    problem = wc.Problem(model, CE, cut(x, y))
    optimizer = Adam(model.parameters(), 1e-2, weight_decay=0.1)
    tried = trial(problem, optimizer, most=70)
    assert "no weight decay" in tried.variants
    assert "lower rates" in tried.left_out
    (finding,) = decay_dominates(Evidence(problem, optimizer, inspect(problem, optimizer), trial=tried))
    assert finding.severity == "severe"


def penalized(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1]) + 0.2 * sum(p.square().sum() for p in model.parameters())


def decay_from_one(model: nn.Module, batch: Tensor) -> Tensor:
    """u' = −2u at points that are drawn, and u(0) = 1 with a weight of 10."""
    time = batch.clone().requires_grad_()
    u = model(time)
    (slope,) = torch.autograd.grad(u.sum(), time, create_graph=True)
    return (slope + 2 * u).square().mean() + 10 * (model(torch.zeros(1, 1)) - 1).square().mean()


@SLOW
def test_a_penalty_that_outweighs_the_data() -> None:
    model = perceptron()
    problem = taken_apart(wc.Problem.from_step(model, penalized, cut(*table())))
    tried = trial(problem, Adam(model.parameters(), 1e-2))
    assert tried.swamped is not None
    assert tried.swamped.others_before > tried.swamped.before
    by_hand = 0.2 * sum(float(p.detach().square().sum()) for p in model.parameters())
    assert tried.swamped.others_before == pytest.approx(by_hand, rel=1e-5)
    assert [each.severity for each in penalty_dominates(Evidence(problem, trial=tried))] == ["severe"]


@SLOW
def test_an_error_at_a_fixed_edge_is_no_penalty(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
    points = torch.rand(128, 1, generator=torch.Generator().manual_seed(0))
    problem = taken_apart(wc.Problem.from_step(model, decay_from_one, [*points.split(16)]))
    asked: list[bool] = []
    is_penalty = swamped._is_penalty
    monkeypatch.setattr(swamped, "_is_penalty", lambda *args: asked.append(is_penalty(*args)) or asked[-1])
    tried = trial(problem, Adam(model.parameters(), 1e-2))
    assert asked == [False]
    assert not [*penalty_dominates(Evidence(problem, trial=tried))]


@pytest.mark.parametrize(("dtype", "is_lost"), [(torch.float16, True), (torch.bfloat16, False)])
def test_a_step_that_enters_autocast_keeps_it(dtype: torch.dtype, is_lost: bool) -> None:
    def step(model: nn.Module, batch: Any) -> Tensor:
        with torch.autocast("cpu", dtype):
            return 1e-6 * F.cross_entropy(model(batch[0]), batch[1])

    problem = wc.Problem.from_step(perceptron(), step, cut(*table()))
    apart = taken_apart(problem)
    assert apart is not problem
    assert apart.precision.autocast == dtype
    with apart.as_trained():
        every = [*gradient_underflow(Evidence(apart, inspection=inspect(apart)))]
    assert [each.severity for each in every] == (["severe"] if is_lost else [])


class Blind(nn.Module):
    """Sees one feature, which tells nothing of the classes."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x[:, :1])
        return out


@SLOW
def test_nothing_is_learned_at_three_rates() -> None:
    x = drawn(512, 8)
    torch.manual_seed(0)
    model = Blind()
    problem = wc.Problem(model, CE, cut(x, x[:, 1:5].argmax(1)))
    tried = trial(problem, SGD(model.parameters(), 0.1))
    assert tried.own is not None
    assert len(tried.attempts) >= 3

    def severity(changed: Trial) -> str:
        (finding,) = does_not_decrease(Evidence(problem, trial=changed))
        assert "at no rate from" in finding.summary
        return finding.severity

    assert tried.few is not None
    assert tried.few.constant is not None
    assert severity(tried) == "warning"  # Adam fits a handful: the network may only start slowly
    unfit = replace(tried.few, after=tried.few.constant, later=tried.few.constant)
    assert severity(replace(tried, few=unfit)) == "severe"
    learns = replace(tried.own, after=tuple(0.9 * tried.constant for _ in tried.own.after))  # type: ignore[operator]
    assert not [*does_not_decrease(Evidence(problem, trial=replace(tried, own=learns)))]


@SLOW
def test_a_rate_that_ends_above_a_constant_where_a_tenth_does_not() -> None:
    x = drawn(256, 16)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    problem = wc.Problem(model, nn.MSELoss(), cut(x, x[:, :1] * x[:, 1:2] + 10))
    optimizer = Adam(model.parameters(), 0.3)
    tried = trial(problem, optimizer)
    assert tried.own is not None
    assert tried.constant is not None
    assert 1.2 * tried.constant < tried.own.loss < tried.loss
    (finding,) = rises_at_its_own_rate(Evidence(problem, optimizer, trial=tried))
    assert finding.severity == "severe"
    assert "above a constant's; at 0.03" in finding.summary
    lower = replace(tried, own=replace(tried.own, after=tuple(1.1 * tried.constant for _ in tried.own.after)))
    assert not [*rises_at_its_own_rate(Evidence(problem, optimizer, trial=lower))]


class Pooled(nn.Module):
    """Attention of one query to a set."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.attention = nn.Linear(1, 64), nn.MultiheadAttention(64, 4, batch_first=True)
        self.norm, self.query = nn.LayerNorm(64), nn.Parameter(torch.randn(1, 1, 64))
        self.last = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.Linear(64, 1))

    def forward(self, x: Tensor) -> Tensor:
        h, query = self.into(x), self.query.expand(len(x), -1, -1)
        out: Tensor = self.last(self.norm(query + self.attention(query, h, h, need_weights=False)[0]))
        return out[:, 0, 0]


@SLOW
def test_a_handful_may_stay_at_the_loss_of_a_constant_for_a_while() -> None:
    x = torch.rand(256, 8, 1, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    model = Pooled()
    problem = wc.Problem(model, nn.L1Loss(), cut(x, x.amax((1, 2))))
    tried = trial(problem, Adam(model.parameters(), 5e-4))
    few, own, constant = tried.few, tried.own, tried.constant
    assert few is not None
    assert own is not None
    assert constant is not None
    assert few.constant is not None
    assert not [each for each in does_not_decrease(Evidence(problem, trial=tried)) if each.severity == "severe"]
    at_constant = replace(tried, own=replace(own, after=tuple(constant for _ in own.after)))
    for share, severities in ((0.9, []), (1.0, ["severe"])):  # of a handful, after 160 steps
        handful = replace(few, before=1.9 * few.constant, after=few.constant, later=share * few.constant)
        evidence = Evidence(problem, trial=replace(at_constant, few=handful))
        every = [each.severity for each in does_not_decrease(evidence)]
        assert [each for each in every if each == "severe"] == severities


class Words(nn.Module):
    """word2vec with negative samples: vectors of contexts start at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.contexts = nn.Embedding(400, 50), nn.Embedding(400, 50)
        nn.init.uniform_(self.words.weight, -0.01, 0.01)
        nn.init.zeros_(self.contexts.weight)

    def forward(self, word: Tensor, context: Tensor, others: Tensor) -> Tensor:
        u = self.words(word)
        of_others = (self.contexts(others) @ u[:, :, None])[..., 0]
        return -(F.logsigmoid((u * self.contexts(context)).sum(1)) + F.logsigmoid(-of_others).sum(1)).mean()


@SLOW
@pytest.mark.parametrize(("lr", "severities"), [(1e-4, ["severe"]), (12.8, [])])
def test_a_rate_far_below_its_limit_is_too_low(lr: float, severities: list[str]) -> None:
    draw = torch.Generator().manual_seed(0)
    words = torch.randint(400, (4096,), generator=draw)
    contexts = words // 20 * 20 + torch.randint(20, (4096,), generator=draw)
    torch.manual_seed(0)
    model = Words()
    problem = wc.Problem(model, None, cut(words, contexts, torch.randint(400, (4096, 5), generator=draw), size=512))
    optimizer = SGD(model.parameters(), lr)
    limit = wc.max_lr(problem, optimizer)
    assert limit.value > 100
    evidence = Evidence(problem, optimizer, trial=trial(problem, optimizer), max_lr=limit)
    assert [each.severity for each in hardly_falls(evidence)] == severities
