"""Rules about sequences: attention written by hand, memory through time, and dimensions that a view has mixed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Adam

import wellcond as wc
from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.inspection.inspect import inspect
from wellcond.diagnosis.judge import judged
from wellcond.diagnosis.probes.behavior import behavior
from wellcond.diagnosis.trial import trial

WIDTH = 64


def findings(model: nn.Module, x: Tensor, y: Tensor, lr: float = 1e-3) -> dict[str, Finding]:
    """By rule, from a look and a trial; consequences too."""
    batches = list(zip(x.split(32), y.split(32), strict=True))
    problem, optimizer = wc.Problem(model, nn.CrossEntropyLoss(), batches), Adam(model.parameters(), lr)
    roots = judged(
        Evidence(problem, optimizer, inspect(problem, optimizer), behavior(problem), trial=trial(problem, optimizer))
    )
    return {each.rule: each for root in reversed(roots) for each in (*root.consequences, root)}


def loss_after(model: nn.Module, x: Tensor, y: Tensor, lr: float = 1e-3, epochs: int = 10) -> float:
    optimizer = Adam(model.parameters(), lr)
    for _ in range(epochs):
        for some, labels in zip(x.split(32), y.split(32), strict=True):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(some), labels)
            loss.backward()
            optimizer.step()
    return float(loss.detach())


class Attention(nn.Module):
    """One head over tokens, as people write it."""

    def __init__(self, how: str, scale: float, d: int) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(d, d) for _ in range(3))
        for layer in (self.q, self.k):
            nn.init.xavier_uniform_(layer.weight)  # queries and keys of variance 1
        self.how, self.scale = how, scale

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.q(x), self.k(x), self.v(x)
        if self.how == "kernel":
            return F.scaled_dot_product_attention(q, k, v, scale=self.scale)
        if self.how == "matmul":
            return F.softmax(torch.matmul(q, k.transpose(1, 2)) * self.scale, dim=-1) @ v
        scores = torch.einsum("bqd,bkd->bqk", q, k) * self.scale
        weights = scores.softmax(-1) if self.how == "einsum" else scores.log_softmax(-1).exp()
        return torch.einsum("bqk,bkd->bqd", weights, v)


class Counting(nn.Module):
    """Says which token is most frequent."""

    def __init__(self, how: str, scale: float, d: int = WIDTH) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.norm = nn.Embedding(20, d), nn.LayerNorm(d)
        self.attention, self.head = Attention(how, scale, d), nn.Linear(d, 20)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(self.embedding(tokens))
        mean: Tensor = self.head(x + self.attention(x)).mean(1)
        return mean


def tokens() -> tuple[Tensor, Tensor]:
    x = torch.randint(0, 20, (256, 16), generator=torch.Generator().manual_seed(0))
    return x, (F.one_hot(x, 20).sum(1) + 0.01 * torch.arange(20)).argmax(1)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["matmul", "einsum", "log", "kernel"])
def test_attention_without_its_scale_is_named_by_its_module(how: str) -> None:
    finding = findings(Counting(how, 1.0), *tokens())["attention-saturation"]
    assert finding.layer == "attention"
    assert finding.severity != "note"  # it learns all the same, at a cost
    assert float(finding.evidence["std of logits"]) == pytest.approx(WIDTH**0.5, rel=0.25)  # √d of variance 1
    assert "attention-saturation" not in findings(Counting(how, WIDTH**-0.5), *tokens())


@pytest.mark.slow
def test_attention_without_its_scale_trains_worse() -> None:
    worse, better = (loss_after(Counting("matmul", scale, 128), *tokens()) for scale in (1.0, 128**-0.5))
    assert worse > 1.2 * better


class Recurrent(nn.Module):
    """Reads a sequence by a layer, a cell in a loop, or two linear layers in one; answers after its last step."""

    def __init__(self, kind: str, *, every_step: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kind, self.every_step = kind, every_step
        if kind == "by hand":
            self.read, self.turn = nn.Linear(4, 32), nn.Linear(32, 32)
        else:
            options = {} if kind.endswith("Cell") else {"batch_first": True}
            self.memory = getattr(nn, kind)(4, 32, **options)
        self.head = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        if self.kind in ("RNN", "LSTM", "GRU"):
            states = self.memory(x)[0]
        else:
            h = x.new_zeros(len(x), 32)
            steps = []
            for now in x.unbind(1):
                h = self.memory(now, h) if self.kind == "RNNCell" else torch.tanh(self.read(now) + self.turn(h))
                steps.append(h)
            states = torch.stack(steps, 1)
        out: Tensor = self.head(states).transpose(1, 2) if self.every_step else self.head(states[:, -1])
        return out


def sequences(steps: int, where: slice) -> tuple[Tensor, Tensor]:
    """Noise, and a class that shows in some of the steps."""
    draw = torch.Generator().manual_seed(0)
    x, y = 0.5 * torch.randn(256, steps, 4, generator=draw), torch.randint(0, 4, (256,), generator=draw)
    x[:, where] += 2 * F.one_hot(y, 4)[:, None]
    return x, y


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["RNN", "RNNCell", "by hand"])
def test_what_the_first_of_eighty_steps_tell_is_forgotten(kind: str) -> None:
    finding = findings(Recurrent(kind), *sequences(80, slice(0, 1)))["vanishing-gradient"]
    assert finding.severity == "severe"
    assert finding.layer == ("turn" if kind == "by hand" else "memory")
    assert 0.5 < float(finding.evidence["steps to half"]) < 3
    assert float(finding.evidence["steps"]) == 80


@pytest.mark.slow
def test_what_the_first_of_eighty_steps_tell_is_not_learned() -> None:
    late, early = (loss_after(Recurrent("RNN"), *sequences(80, at)) for at in (slice(-1, None), slice(0, 1)))
    assert late < 1.0 < 1.2 < early  # log 4 is 1.39


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "steps", "where"),
    [("RNN", 80, slice(-1, None)), ("RNN", 80, slice(None)), ("LSTM", 80, slice(None)), ("GRU", 12, slice(0, 1)),
     ("RNNCell", 80, slice(-1, None)), ("by hand", 28, slice(None))],
)  # fmt: skip
def test_a_short_memory_that_is_enough_is_no_fault(kind: str, steps: int, where: slice) -> None:
    assert "vanishing-gradient" not in findings(Recurrent(kind), *sequences(steps, where))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["RNN", "LSTM"])
def test_a_tagger_hears_every_step(kind: str) -> None:
    x, _ = sequences(80, slice(0, 0))
    assert "vanishing-gradient" not in findings(Recurrent(kind, every_step=True), x, x.argmax(2))


class Tagger(nn.Module):
    """A class for every step, (N, T, C), which cross-entropy wants as (N, C, T)."""

    def __init__(self, turned: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.turned = turned
        self.body = nn.Sequential(nn.Linear(6, 32), nn.ReLU())
        self.head = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        if self.turned == "examples":
            h = h.transpose(0, 1).reshape(h.shape)
        out: Any = self.head(h)
        if self.turned == "view":
            return out.view(len(x), 4, -1)  # type: ignore[no-any-return]
        if self.turned == "two views":
            return out.flatten(1).view(len(x), 4, -1)  # type: ignore[no-any-return]
        return out.transpose(1, 2)  # type: ignore[no-any-return]


@pytest.mark.slow
@pytest.mark.parametrize("turned", ["view", "two views", "examples"])
def test_a_view_is_no_transposition(turned: str) -> None:
    x = torch.randn(256, 15, 6, generator=torch.Generator().manual_seed(0))
    y = x[..., :4].argmax(-1)
    finding = findings(Tagger(turned), x, y, lr=3e-3)["output-loss-mismatch"]
    assert finding.severity == "severe"
    assert "permute" in finding.remedy
    assert finding.layer == ("" if turned == "examples" else "head")
    assert "output-loss-mismatch" not in findings(Tagger("not"), x, y, lr=3e-3)
    assert loss_after(Tagger(turned), x, y, 3e-3) > 2 * loss_after(Tagger("not"), x, y, 3e-3)
