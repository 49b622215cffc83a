"""BNP against the matrix form (1/q²) P Pᵀ ∇, layer kind by layer kind, over several steps."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from bnp_reference import (
    LR,
    ReferenceBNP,
    assert_close,
    assert_follows_the_matrix_form,
    assert_same,
    batches_of,
    dense,
    loss,
    preconditioned,
    train,
)
from layer_zoo import CONVOLUTIONS, Sandwich
from torch import Tensor, nn, optim
from torch.nn.functional import tanh
from zoo import CLASSES, Written, integers, normal, seeded

import wellcond as wc


def tokens() -> nn.Module:
    """(N, T, d) → class scores, with a dense layer on every token."""
    layers = {"first": nn.Linear(4, 5), "second": nn.Linear(5, 3, bias=False), "head": nn.Linear(3, CLASSES)}
    return Written(lambda net, x: net.head(tanh(net.second(tanh(net.first(x)))).mean(1)), **layers)


def called_twice() -> nn.Module:
    layers = {"fc": nn.Linear(6, 6), "head": nn.Linear(6, CLASSES)}
    return Written(lambda net, x: net.head(tanh(net.fc(tanh(net.fc(x))))), **layers)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "dense": (dense, (6,)),
    "dense_wide": (lambda: nn.Sequential(nn.Linear(70, 5), nn.ReLU(), nn.Linear(5, CLASSES)), (70,)),
    "tokens": (tokens, (3, 4)),
    "called_twice": (called_twice, (6,)),
    "groupnorm": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(36, CLASSES)),
        (2, 5, 5),
    ),
    "layernorm": (lambda: nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, CLASSES)), (4,)),
} | {
    name: (lambda make=make, shape=shape: Sandwich(make(), shape), shape)
    for name, (make, shape) in CONVOLUTIONS.items()
}


@pytest.mark.slow
@pytest.mark.parametrize("means", ["channel", "kernel"])
@pytest.mark.parametrize("size", [1, 2, 60])
@pytest.mark.parametrize("network", NETWORKS)
def test_every_kind_of_layer_follows_the_matrix_form(network: str, size: int, means: str) -> None:
    build, shape = NETWORKS[network]
    assert_follows_the_matrix_form(seeded(build), batches_of(shape, size), means=means)


def test_the_settings_are_the_ones_asked_for() -> None:
    assert_follows_the_matrix_form(seeded(dense), batches_of(), rho=0.7, eps1=0.3, eps2=0.2)


class Sign(optim.Optimizer):
    """A user's own optimizer: sign descent."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p -= group["lr"] * p.grad.sign()


@pytest.mark.parametrize(
    "make",
    [partial(optim.SGD, weight_decay=0.5), optim.Adam, optim.AdamW, optim.Adagrad, optim.RMSprop, Sign],
    ids=["SGD with weight decay", "Adam", "AdamW", "Adagrad", "RMSprop", "a user's own"],
)
def test_any_optimizer_gets_the_preconditioned_gradient(make: Any) -> None:
    """The same as giving it (1/q²) P Pᵀ ∇ computed outside, so that weight decay is not preconditioned."""
    model = seeded(dense)
    twin = copy.deepcopy(model)
    optimizer, theirs = make(model.parameters(), lr=0.01), make(twin.parameters(), lr=0.01)
    wc.BNP(model, optimizer)
    reference = ReferenceBNP(twin, lr=0.0)
    for x, y in batches_of(size=6):
        optimizer.zero_grad()
        loss(model, x, y).backward()
        optimizer.step()
        reference.model.load_state_dict(twin.state_dict())
        reference.step(loss, x, y)
        for p, known in zip(twin.parameters(), reference.model.parameters(), strict=True):
            p.grad = known.grad
        theirs.step()
    assert_same(model, twin)


def test_the_network_itself_is_not_changed() -> None:
    model, x = seeded(dense), normal(5, 6)
    before, keys = model(x), list(model.state_dict())
    preconditioned(model)
    assert torch.equal(model(x), before)
    assert list(model.state_dict()) == keys


# frozen, unused and tied parameters


def test_a_frozen_weight_leaves_its_bias_scaled_by_q() -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(40, 5), nn.ReLU(), nn.Linear(5, CLASSES)))
    model[0].weight.requires_grad_(False)
    (x, y), *_ = batches_of((40,), 8)
    twin = copy.deepcopy(model)
    loss(twin, x, y).backward()
    bnp = train(model, [(x, y)])
    q2 = 40 / 8
    assert_close(model[0].bias, twin[0].bias - LR * twin[0].bias.grad / q2)
    assert torch.equal(model[0].weight, twin[0].weight)
    assert bnp.layers["0"].q2 == q2


def test_a_frozen_bias_is_as_if_there_were_none() -> None:
    model = seeded(dense)
    model[2].bias.requires_grad_(False)
    assert_follows_the_matrix_form(model, batches_of())


def test_a_layer_that_is_unfrozen_is_taken_up() -> None:
    model = seeded(dense)
    model[0].requires_grad_(False)
    optimizer, bnp = preconditioned(model)
    (x, y), (x2, y2), *_ = batches_of()
    loss(model, x, y).backward()
    optimizer.step()
    assert torch.equal(bnp.layers["0"].mean, torch.zeros(6).double())
    model[0].requires_grad_(True)
    reference = ReferenceBNP(model, LR)
    optimizer.zero_grad()
    loss(model, x2, y2).backward()
    optimizer.step()
    reference.step(loss, x2, y2)
    assert_close(model[0].weight, reference.model[0].weight)


def branches() -> nn.Module:
    """A layer that some batches do not use."""

    def forward(net: Any, x: Tensor) -> Tensor:
        h = tanh(net.always(x))
        return net.head(tanh(net.sometimes(h)) if net.use else h)

    layers = {"always": nn.Linear(6, 5), "sometimes": nn.Linear(5, 5), "head": nn.Linear(5, CLASSES)}
    return Written(forward, **layers, use=True)


@pytest.mark.filterwarnings("ignore:'sometimes' has a gradient")
@pytest.mark.parametrize("to_none", [True, False])
def test_a_layer_unused_in_a_step_keeps_its_weights_and_statistics(to_none: bool) -> None:
    model = seeded(branches)
    reference = ReferenceBNP(model, LR)
    optimizer, bnp = preconditioned(model)
    for step, (x, y) in enumerate(batches_of()):
        model.use = reference.model.use = step % 2 == 0
        optimizer.zero_grad(set_to_none=to_none)
        loss(model, x, y).backward()
        before = bnp.layers["sometimes"].mean.clone()
        optimizer.step()
        assert torch.equal(bnp.layers["sometimes"].mean, before) == (not model.use)
        reference.step(loss, x, y)
    assert_same(model, reference.model)


def tied() -> nn.Module:
    """Two layers share a weight and have biases of their own."""
    layers = {"a": nn.Linear(6, 6), "b": nn.Linear(6, 6), "head": nn.Linear(6, CLASSES)}
    layers["b"].weight = layers["a"].weight
    return Written(lambda net, x: net.head(tanh(net.b(tanh(net.a(x))))), **layers)


def test_tied_weights_are_preconditioned_once_with_the_rows_of_both() -> None:
    """[b₁; b₂; W] ← (1/q²) P Pᵀ [·], where both biases carry μ."""
    model = seeded(tied)
    twin = copy.deepcopy(model)
    (x, _), *_ = batches_of()
    y = integers(CLASSES, 5)
    bnp = train(model, [(x, y)], rho=0.0)
    assert list(bnp.layers) == ["a", "head"]

    rows = torch.cat([x, tanh(twin.a(x))]).detach()
    loss(twin, x, y).backward()
    mean, variance = rows.mean(0), rows.var(0, correction=0)
    damped = variance + 1e-2 * variance.max() + 1e-4
    U, D = torch.eye(8).double(), torch.diag(torch.cat([torch.ones(2).double(), damped.rsqrt()]))
    U[0, 2:] = U[1, 2:] = -mean
    P = U @ D
    new = P @ P.T @ torch.cat([twin.a.bias.grad[None], twin.b.bias.grad[None], twin.a.weight.grad.T])
    assert_close(model.a.bias, twin.a.bias - LR * new[0])
    assert_close(model.b.bias, twin.b.bias - LR * new[1])
    assert_close(model.a.weight, twin.a.weight - LR * new[2:].T)
