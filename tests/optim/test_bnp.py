"""BNP against the matrix form (1/q²) P Pᵀ ∇, layer kind by layer kind, over several steps."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from bnp_reference import ReferenceBNP
from layer_zoo import CONVOLUTIONS, Sandwich
from torch import Tensor, nn
from zoo import CLASSES, integers, normal, seeded

import wellcond as wc

LR = 0.1


class Tokens(nn.Module):
    """(N, T, d) → class scores, with a dense layer on every token."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 5), nn.Linear(5, 3, bias=False), nn.Linear(3, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.second(torch.tanh(self.first(x)))).mean(1))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "dense": (
        lambda: nn.Sequential(nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, CLASSES)),
        (7,),
    ),
    "dense_wide": (lambda: nn.Sequential(nn.Linear(70, 5), nn.ReLU(), nn.Linear(5, CLASSES)), (70,)),
    "tokens": (Tokens, (3, 4)),
    "groupnorm": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(36, CLASSES)),
        (2, 5, 5),
    ),
    "layernorm": (lambda: nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, CLASSES)), (4,)),
} | {
    name: (lambda make=make, shape=shape: Sandwich(make(), shape), shape)
    for name, (make, shape) in CONVOLUTIONS.items()
}


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def spread(*shape: int, seed: int) -> Tensor:
    """Inputs whose features have means and variances of their own, as real ones do."""
    centre, scale = normal(*shape[1:], seed=100), 0.2 + normal(*shape[1:], seed=101).abs()
    return centre + scale * normal(*shape, seed=seed)


def assert_same(model: nn.Module, reference: nn.Module, tolerance: float = 1e-12) -> None:
    for (name, ours), theirs in zip(model.named_parameters(), reference.parameters(), strict=True):
        error = (ours - theirs).abs().max() / theirs.abs().max().clamp(min=1e-300)
        assert error <= tolerance, f"{name}: {error:.2e}"


def train(model: nn.Module, batches: list[tuple[Tensor, Tensor]], **options: Any) -> wc.BNP:
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    bnp = wc.BNP(model, optimizer, **options)
    for x, y in batches:
        optimizer.zero_grad()
        loss(model, x, y).backward()
        optimizer.step()
    return bnp


def batches_of(shape: tuple[int, ...], size: int, steps: int = 4) -> list[tuple[Tensor, Tensor]]:
    return [(spread(size, *shape, seed=s), integers(CLASSES, size, seed=s)) for s in range(steps)]


@pytest.mark.parametrize("means", ["channel", "kernel"])
@pytest.mark.parametrize("size", [1, 2, 60])
@pytest.mark.parametrize("network", NETWORKS)
def test_every_kind_of_layer_follows_the_matrix_form(network: str, size: int, means: str) -> None:
    build, shape = NETWORKS[network]
    model = seeded(build)
    reference = ReferenceBNP(model, LR, exact=means == "kernel")
    batches = batches_of(shape, size)
    bnp = train(model, batches, means=means)
    for x, y in batches:
        reference.step(loss, x, y)
    assert_same(model, reference.model)
    for name, layer in bnp.layers.items():
        mean = torch.cat([mean for mean, _ in reference.statistics[name]])
        torch.testing.assert_close(layer.mean, mean, rtol=1e-12, atol=1e-14)
        variance = torch.cat([variance for _, variance in reference.statistics[name]])
        torch.testing.assert_close(layer.variance, variance, rtol=1e-12, atol=1e-14)


def test_the_settings_are_the_ones_asked_for() -> None:
    settings = {"rho": 0.7, "eps1": 0.3, "eps2": 0.2}
    build, shape = NETWORKS["dense"]
    model = seeded(build)
    reference = ReferenceBNP(model, LR, **settings)
    batches = batches_of(shape, 5)
    train(model, batches, **settings)
    for x, y in batches:
        reference.step(loss, x, y)
    assert_same(model, reference.model)


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad, torch.optim.RMSprop])
def test_any_optimizer_gets_the_preconditioned_gradient(make: Any) -> None:
    """The same as handing it (1/q²) P Pᵀ ∇ computed outside."""
    build, shape = NETWORKS["dense"]
    model = seeded(build)
    twin = copy.deepcopy(model)
    optimizer, theirs = make(model.parameters(), lr=0.01), make(twin.parameters(), lr=0.01)
    wc.BNP(model, optimizer)
    reference = ReferenceBNP(twin, lr=0.0)
    for x, y in batches_of(shape, 6):
        optimizer.zero_grad()
        loss(model, x, y).backward()
        optimizer.step()
        reference.model.load_state_dict(twin.state_dict())
        reference.step(loss, x, y)
        for p, known in zip(twin.parameters(), reference.model.parameters(), strict=True):
            p.grad = known.grad
        theirs.step()
    assert_same(model, twin)


def test_weight_decay_is_not_preconditioned() -> None:
    build, shape = NETWORKS["dense"]
    model = seeded(build)
    before = copy.deepcopy(model)
    reference = ReferenceBNP(model, LR)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, weight_decay=0.5)
    wc.BNP(model, optimizer)
    (x, y), *_ = batches_of(shape, 6)
    loss(model, x, y).backward()
    optimizer.step()
    reference.step(loss, x, y)
    for p, known, start in zip(model.parameters(), reference.model.parameters(), before.parameters(), strict=True):
        torch.testing.assert_close(p, known - LR * 0.5 * start, rtol=1e-12, atol=1e-14)


def test_the_network_itself_is_not_changed() -> None:
    build, shape = NETWORKS["dense"]
    model = seeded(build)
    x = spread(5, *shape, seed=0)
    before, keys = model(x), list(model.state_dict())
    wc.BNP(model, torch.optim.SGD(model.parameters(), lr=LR))
    assert torch.equal(model(x), before)
    assert list(model.state_dict()) == keys
