"""Kinds of faults that examinations brought up, each next to a sound set-up that is easily mistaken for it."""

from __future__ import annotations

from collections.abc import Callable

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from rule_cases import perceptron, table
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer
from torch.utils.data import DataLoader, TensorDataset

import wellcond as wc
from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.inspection.inspect import inspect
from wellcond.diagnosis.judge import judged
from wellcond.diagnosis.probes.behavior import behavior
from wellcond.diagnosis.rules.batchnorm_mode_gap import separate_passes, slow_statistics
from wellcond.diagnosis.rules.constant_target import constant_target
from wellcond.diagnosis.rules.order_lost import order_lost
from wellcond.diagnosis.trial import trial
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
