"""Pieces of batches: their sums are those of whole batches, and a call that takes them holds two training steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from live_bytes import LiveBytes
from torch import Tensor, nn
from torch.nn import functional as F
from zoo import integers, normal, seeded

import wellcond as wc
from wellcond.problem import problem, within_memory
from wellcond.problem.pieces import adds_up, in_pieces


class Attending(nn.Module):
    """A transformer of one block on words."""

    def __init__(self, width: int = 8, words: int = 11) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.norm, self.mixed = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.block = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, 8))
        self.head = nn.Linear(width, words)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        q, k, v = self.mixed(self.norm(x)).chunk(3, -1)
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True)
        result: Tensor = self.head(x + self.block(x))
        return result


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def transformer(*sizes: int, padded: int = 0) -> wc.Problem:
    """Batches of these sizes, of which this many examples have padding in the last half of their places."""
    batches = []
    for size in sizes:
        targets = integers(11, size, 6, seed=size)
        targets[:padded, 3:] = -100
        batches.append((integers(11, size, 6, seed=size + 1), targets))
    return wc.Problem(seeded(Attending), cross_entropy, batches)


def perceptron(norm: Callable[[], nn.Module] = nn.Identity, loss: Any = None, examples: int = 24) -> wc.Problem:
    model = seeded(lambda: nn.Sequential(nn.Linear(4, 6), norm(), nn.Tanh(), nn.Linear(6, 3)))
    return wc.Problem(model, loss or nn.CrossEntropyLoss(), (normal(examples, 4), integers(3, examples)))


@pytest.mark.parametrize("of", [transformer(6), transformer(6, 4, 5), transformer(7, 6, padded=3), perceptron()])
@pytest.mark.parametrize("operator", [wc.Hessian, wc.GGN])
def test_pieces_add_up_to_the_whole(of: wc.Problem, operator: type[wc.Hessian]) -> None:
    """Batches count by their terms, so that pieces of unequal sizes, or with padding, do too."""
    v = normal(of.size)
    expected, product = (operator(each) @ v for each in (of, in_pieces(of, 2)))
    assert float((product - expected).norm()) <= 1e-12 * float(expected.norm())
    gradients = []
    for each in (of, in_pieces(of, 2)):
        with each.measuring():
            gradients.append(torch.cat([g.flatten() for g in each.loss_and_gradients()[1].values()]))
    assert float((gradients[0] - gradients[1]).norm()) <= 1e-12 * float(gradients[0].norm())


def contrastive(outputs: Tensor, _: Tensor) -> Tensor:
    return F.cross_entropy(outputs @ outputs.T, torch.arange(len(outputs)))


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (perceptron(), True),
        (perceptron(lambda: nn.LayerNorm(6)), True),
        (perceptron(lambda: nn.BatchNorm1d(6)), False),
        (perceptron(lambda: nn.BatchNorm1d(6, track_running_stats=False)), False),
        (perceptron(loss=contrastive), False),
        (transformer(6, padded=2), True),
    ],
)
def test_whether_examples_depend_on_each_other_is_seen(of: wc.Problem, expected: bool) -> None:
    with of.measuring():
        _, batch = next(of.data())
    assert adds_up(of, batch, 4) is expected


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU has a memory that is limited, and measured by counting."""

    def peak_of(_: torch.device, work: Callable[[], Any]) -> tuple[float, float]:
        with LiveBytes() as held:
            work()
        return 1e-3, float(held.peak)

    monkeypatch.setattr(problem, "LIMITED", ("cpu",))
    monkeypatch.setattr(within_memory, "peak_of", peak_of)
    monkeypatch.setattr(within_memory, "free_of", lambda _: 0.0)


def bytes_of_step(of: wc.Problem, optimizer: torch.optim.Optimizer) -> int:
    """Weights, states of the optimizer and the peak of a step: the second one, since the first makes the states."""
    own = sum(p.numel() * p.element_size() for p in of.params.values())
    before = {name: p.detach().clone() for name, p in of.params.items()}
    x, y = of.batches[0]
    with LiveBytes() as held:
        for _ in range(2):
            optimizer.zero_grad()
            of.loss(of.model(x), y).backward()
            optimizer.step()
    optimizer.zero_grad()
    optimizer.state.clear()
    with torch.no_grad():
        for name, p in of.params.items():
            p.copy_(before[name])
    return own + held.peak


def adam(of: wc.Problem) -> torch.optim.Optimizer:
    return torch.optim.AdamW(of.params.values(), 1e-3)


@pytest.mark.parametrize("sizes", [(32,), (32, 32)])
@pytest.mark.parametrize("make", [adam, lambda of: None])
@pytest.mark.usefixtures("limited")
def test_max_lr_holds_two_training_steps_by_pieces(sizes: tuple[int, ...], make: Any) -> None:
    of = transformer(*sizes)
    step = bytes_of_step(of, adam(of))
    own = sum(p.numel() * p.element_size() for p in of.params.values())
    with LiveBytes() as held:
        limit = wc.max_lr(of, make(of), confidence=None, max_matvecs=10)
    assert any("in pieces of at most" in note for note in limit.notes)
    assert own + held.peak <= 2 * step, (own + held.peak) / step


@pytest.mark.usefixtures("limited")
def test_max_lr_by_pieces_is_that_of_the_whole() -> None:
    of = transformer(32, 32)
    limit = wc.max_lr(of, tol=1e-6)
    exact = float(torch.linalg.eigvalsh(wc.Hessian(of).dense())[-1])
    assert any("in pieces of at most" in note for note in limit.notes)
    assert limit.lambda_max == pytest.approx(exact, rel=1e-6)
    assert limit.lambda_error >= abs(limit.lambda_max - exact)


def convolutional() -> wc.Problem:
    model = seeded(
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 3))
    )
    return wc.Problem(model, nn.CrossEntropyLoss(), (normal(64, 3, 8, 8), integers(3, 64)))


@pytest.mark.usefixtures("limited")
@pytest.mark.parametrize(
    ("of", "why"),
    [
        (convolutional(), "a BatchNorm takes the statistics of all its examples"),
        (perceptron(loss=contrastive, examples=128), "its examples depend on each other"),
    ],
)
def test_a_batch_whose_examples_depend_on_each_other_waits_on_the_host_and_gives_the_same(
    of: wc.Problem, why: str
) -> None:
    limit = wc.max_lr(of, max_matvecs=40, tol=1e-6, each_batch=True)
    (note,) = [note for note in limit.notes if "waits in the host's memory" in note]
    assert note.endswith(why)
    exact = float(torch.linalg.eigvalsh(wc.Hessian(of).dense())[-1])
    assert limit.lambda_max == pytest.approx(exact, rel=1e-6)
    assert limit.batches[0].lambda_max == pytest.approx(exact, rel=1e-6)


@pytest.mark.usefixtures("limited")
def test_what_fits_into_what_is_free_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(within_memory, "free_of", lambda _: 2.0**30)
    messages: list[str] = []
    limit = wc.max_lr(transformer(32, 32), max_matvecs=3, progress=lambda what, _: messages.append(what))
    assert not [note for note in limit.notes if "pieces" in note or "waits" in note]
    assert messages[0].endswith("at most 0.5 GiB more on the GPU, half of what is free")


def test_what_waits_on_the_host_changes_no_number_but_by_rounding() -> None:
    of = convolutional()
    waiting = within_memory._waiting(of)
    v = normal(of.size)
    for operator in (wc.Hessian, wc.GGN):
        expected, product = (operator(each) @ v for each in (of, waiting))
        error = float((product - expected).norm())
        assert error <= 1e-14 * float(expected.norm())  # copies lie in memory in another way


@pytest.mark.usefixtures("limited")
def test_what_is_planned_is_said_before_the_work() -> None:
    messages: list[str] = []
    wc.max_lr(transformer(32, 32), max_matvecs=3, progress=lambda what, _: messages.append(what))
    assert messages[0].startswith("at most 18 training steps, about ")  # 3 products of 3 u with each of two batches
    assert "on the GPU, 2 times a training step, by pieces of" in messages[0]


def test_conditioning_by_pieces_is_that_of_the_whole() -> None:
    of = transformer(8, 6)
    whole, parts = (wc.conditioning(each) for each in (of, in_pieces(of, 2)))
    assert whole.layers.keys() == parts.layers.keys()
    for name, layer in whole.layers.items():
        for one, other in ((layer.x, parts[name].x), (layer.g, parts[name].g)):
            assert one is not None
            assert other is not None
            assert torch.allclose(one.values, other.values, rtol=1e-10, atol=1e-12 * one.lambda_max)


@pytest.mark.usefixtures("limited")
def test_conditioning_holds_two_training_steps_by_pieces() -> None:
    of = transformer(64, 64)
    step = bytes_of_step(of, adam(of))
    own = sum(p.numel() * p.element_size() for p in of.params.values())
    with LiveBytes() as held:
        table = wc.conditioning(of)
    assert own + held.peak <= 2 * step, (own + held.peak) / step
    assert table.cost.forwards > 2  # of two batches: in pieces, after some examples were tried


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        (None, (2, 0)),
        (torch.optim.SGD([nn.Parameter(torch.ones(1))], 0.1), (0, 0)),
        (torch.optim.SGD([nn.Parameter(torch.ones(1))], 0.1, momentum=0.9), (1, 0)),
        (torch.optim.AdamW([nn.Parameter(torch.ones(1))]), (2, 0)),
    ],
)
def test_states_of_optimizers(optimizer: torch.optim.Optimizer | None, expected: tuple[int, int]) -> None:
    assert within_memory.states_of(optimizer) == expected
    if optimizer is not None:
        (p,) = optimizer.param_groups[0]["params"]
        p.grad = torch.ones(1)
        optimizer.step()
        assert within_memory.states_of(optimizer)[1] == expected[0]
