"""Steps that one answer for all examples solves, or that no rate gets beyond it, and sound ones next to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import wellcond as wc

G = torch.Generator().manual_seed(0)
REAL, FAKE = 0.3 * torch.randn(512, 2, generator=G) + 2, torch.randn(512, 2, generator=G)
MIDDLE, CONTEXT = torch.randint(40, (1024,), generator=G), torch.randint(40, (1024, 4), generator=G)
WALKS = torch.randn(2, 512, 10, 3, generator=G)
VALUES = (WALKS[..., 0] * torch.linspace(-1, 1, 10)).sum(2)
Step = Callable[[nn.Module, Any], Tensor]


def discriminator() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))


def judged(is_filled: bool) -> Step:
    """The real and the generated; the label of the former may be filled in place."""

    def step(model: nn.Module, batch: Any) -> Tensor:
        ones = torch.ones(len(batch[0]), 1)
        zeros = ones.zero_() if is_filled else torch.zeros_like(ones)
        ask = F.binary_cross_entropy_with_logits
        return ask(model(batch[0]), ones) + ask(model(batch[1]), zeros)

    return step


class Scored(nn.Module):
    """The score of a word with others."""

    def __init__(self) -> None:
        super().__init__()
        self.word, self.context = nn.Embedding(40, 16), nn.Embedding(40, 16)

    def forward(self, word: Tensor, others: Tensor) -> Tensor:
        return torch.einsum("nd,nkd->nk", self.word(word), self.context(others))


def neighbors(sign: float) -> Step:
    """Negative sampling: drawn words are to be far."""

    def step(model: nn.Module, batch: Any) -> Tensor:
        word, others = batch
        near = F.logsigmoid(model(word, ((word + 1) % 40)[:, None])).mean()
        return -(near + F.logsigmoid(sign * model(word, others)).mean())

    return step


class Valued(nn.Module):
    """The value of a walk, whose order it sees or not."""

    def __init__(self, sees_order: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 16))
        self.out, self.sees_order = nn.Linear(160, 1), sees_order

    def forward(self, x: Tensor) -> Tensor:
        steps = self.body(x)
        seen = steps if self.sees_order else steps.mean(1, keepdim=True).expand_as(steps)
        return self.out(seen.flatten(1))[:, 0]


def preferred(model: nn.Module, batch: Any) -> Tensor:
    one, other, is_better = batch
    return F.binary_cross_entropy_with_logits(model(one) - model(other), is_better)


def verdict(model: Callable[[], nn.Module], step: Step, data: tuple[Tensor, ...], lr: float) -> list[tuple[str, str]]:
    torch.manual_seed(0)
    network = model()
    batches = [tuple(t[i : i + 64] for t in data) for i in range(0, len(data[0]), 64)]
    problem = wc.Problem.from_step(network, step, batches)
    findings = wc.diagnose(problem, torch.optim.Adam(network.parameters(), lr=lr)).findings
    return [(each.rule, each.severity) for each in findings if each.severity != "note"]


@pytest.mark.slow
def test_labels_of_reals_filled_in_place() -> None:
    assert verdict(discriminator, judged(True), (REAL, FAKE), 3e-3) == [("constant-target", "warning")]
    assert verdict(discriminator, judged(False), (REAL, FAKE), 3e-3) == []


@pytest.mark.slow
def test_drawn_words_are_drawn_near() -> None:
    assert verdict(Scored, neighbors(1.0), (MIDDLE, CONTEXT), 5e-2) == [("output-loss-mismatch", "warning")]
    assert verdict(Scored, neighbors(-1.0), (MIDDLE, CONTEXT), 5e-2) == []


@pytest.mark.slow
def test_what_tells_walks_apart_is_averaged_away() -> None:
    walks = (WALKS[0], WALKS[1], (VALUES[0] > VALUES[1]).float())
    assert ("loss-not-decreasing", "warning") in verdict(lambda: Valued(False), preferred, walks, 1e-3)
    assert verdict(lambda: Valued(True), preferred, walks, 1e-3) == []


@pytest.mark.slow
def test_what_a_critic_asks_of_a_generator_is_not_judged() -> None:
    torch.manual_seed(1)
    critic = discriminator()

    def step(model: nn.Module, batch: Any) -> Tensor:
        scores = critic(model(batch[0]))
        return F.binary_cross_entropy_with_logits(scores, torch.ones_like(scores))

    def generator() -> nn.Module:
        return nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 2))

    assert [each for each in verdict(generator, step, (FAKE,), 5e-2) if each[0] == "constant-target"] == []


@pytest.mark.slow
@pytest.mark.parametrize(("value", "expected"), [(0.0, ["constant-target"]), (1.0, [])])
def test_labels_of_a_whole_epoch_that_are_all_zero(value: float, expected: list[str]) -> None:
    torch.manual_seed(0)
    labels = torch.zeros(512, 1)
    labels[::3] = value
    model = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))
    problem = wc.Problem(model, nn.BCEWithLogitsLoss(), DataLoader(TensorDataset(REAL, labels), 16, shuffle=True))
    findings = wc.diagnose(problem, torch.optim.Adam(model.parameters(), lr=1e-4)).findings
    assert [each.rule for each in findings if each.rule == "constant-target" and each.severity != "note"] == expected
