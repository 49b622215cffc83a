"""Definition 2.1 of santurkar2018 done by hand, on deep copies of models and with torch's own optimizer steps."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from references import in_state
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim import LBFGS, SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop
from zoo import ARCHITECTURES, CLASSES, Case, seeded

import wellcond as wc
from wellcond.measurements.layers.covariate_shift import CovariateShift, GradientShift

Build = Callable[[Any], Optimizer]
Gradients = dict[str, Tensor]

OPTIMIZERS: dict[str, Build] = {
    "sgd": lambda params: SGD(params, lr=0.1),
    "momentum": lambda params: SGD(params, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-2),
    "adam": lambda params: Adam(params, lr=0.05),
    "adam_amsgrad_foreach": lambda params: Adam(params, lr=0.05, amsgrad=True, weight_decay=0.1, foreach=True),
    "adamw_fused": lambda params: AdamW(params, lr=0.05, fused=True),
    "adam_lr_tensor": lambda params: Adam(params, lr=torch.tensor(0.05, dtype=torch.float64)),
    "rmsprop_maximize": lambda params: RMSprop(params, lr=0.01, momentum=0.5, maximize=True),
    "adagrad": lambda params: Adagrad(params, lr=0.1),
    "groups": lambda params: SGD(
        [{"params": [p], "lr": 0.02 * (i + 1), "momentum": 0.9 * (i % 2)} for i, p in enumerate(params)]
    ),
    "lbfgs": lambda params: LBFGS(params, lr=0.1, max_iter=3),
    "lbfgs_wolfe": lambda params: LBFGS(params, max_iter=2, line_search_fn="strong_wolfe"),
    "lars": lambda params: wc.LARS(params, lr=0.1, momentum=0.9),
    "lsalr": lambda params: wc.LSALR(params, lr=0.02, momentum=0.9),
}

ORDERS: dict[str, list[str]] = {
    "mlp_tanh": ["0", "2"],
    "mlp_relu": ["0", "2", "4"],
    "cnn_batch": ["0", "1", "4", "7"],
    "cnn_running": ["0", "1", "4", "7"],
    "resnet_batch": ["0.conv1", "0.bn1", "0.shortcut", "0.conv2", "0.bn2", "2"],
    "transformer": [
        "embed",
        *(f"blocks.{i}.{part}" for i in range(2) for part in ("norm1", "qkv", "proj", "norm2", "fc")),
        "head",
    ],
    "encoder_layer": ["0.self_attn", "0.norm1", "0.linear1", "0.linear2", "0.norm2", "2"],
    "multihead_attention": ["attention", "head"],
    "lstm": ["cell", "head"],
}
"""The layers in the order in which Python evaluates the forward pass of each, read off its source."""


def case_of(architecture: str) -> Case:
    """The case of the zoo, but with ReLUs that survive a few steps."""
    case = ARCHITECTURES[architecture]()
    if architecture.startswith("cnn"):
        with torch.no_grad():
            case.model[4].bias.add_(2.0)
    return case


def data_of(case: Case, batches: list[Any] | None = None) -> tuple[Any, ...]:
    return case.loss, batches or [case.batch], case.batchnorm


def mean_loss(model: nn.Module, loss: Any, batches: list[Any], batchnorm: str) -> Tensor:
    """Over all terms, here the elements of the targets."""
    state = in_state(model, batchnorm)
    # the copy in the measured state computes with the model's own tensors
    for name, p in model.named_parameters(remove_duplicate=False):
        *path, last = name.split(".")
        state.get_submodule(".".join(path))._parameters[last] = p
    terms = [targets.numel() for _, targets in batches]
    with sdpa_kernel(SDPBackend.MATH):
        parts = [loss(state(*(x if isinstance(x, tuple) else (x,))), y) for x, y in batches]
    return sum(n * part for n, part in zip(terms, parts, strict=True)) / sum(terms)


def gradients(model: nn.Module, *data: Any) -> Gradients:
    params = {name: p for name, p in model.named_parameters() if p.requires_grad}
    result = torch.autograd.grad(mean_loss(model, *data), list(params.values()), allow_unused=True)
    return dict(zip(params, result, strict=True))


def take_step(model: nn.Module, optimizer: Optimizer, *data: Any) -> None:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = mean_loss(model, *data)
        loss.backward()
        return loss

    closure()
    optimizer.step(closure)


def trained(case: Case, build: Build, steps: int = 2) -> Optimizer:
    """An optimizer in the middle of a run: its state is filled."""
    optimizer = build(list(case.model.parameters()))
    for _ in range(steps):
        take_step(case.model, optimizer, *data_of(case))
    return optimizer


def after_step(model: nn.Module, optimizer: Optimizer, *data: Any) -> nn.Module:
    """A deep copy of the model that has taken the step, with a copy of the optimizer over its parameters."""
    model = copy.deepcopy(model)
    groups = copy.deepcopy(optimizer.state_dict()["param_groups"])
    params = list(model.parameters())
    options = [{**group, "params": [params[i] for i in group["params"]]} for group in groups]
    fresh = type(optimizer)(options, lr=groups[0]["lr"])
    fresh.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    take_step(model, fresh, *data)
    return model


def by_hand(
    model: nn.Module, updated: nn.Module, order: list[str], data: tuple[Any, ...]
) -> Iterator[tuple[str, Gradients, Gradients]]:
    """(layer, G, G') with parameters by name, each from a fresh copy of the model."""
    before = gradients(copy.deepcopy(model), *data)
    new = dict(updated.named_parameters())
    for i, layer in enumerate(order):
        mixed = copy.deepcopy(model)
        with torch.no_grad():
            for name, p in mixed.named_parameters():
                if any(name.startswith(f"{earlier}.") for earlier in order[:i]):
                    p.copy_(new[name])
        after = gradients(mixed, *data)
        own = [name for name in before if name.startswith(f"{layer}.")]
        yield layer, {name: before[name] for name in own}, {name: after[name] for name in own}


def assert_shift(result: GradientShift, g: list[Tensor], g_new: list[Tensor], tolerance: float = 1e-10) -> None:
    old, new = (torch.cat([part.flatten() for part in parts]) for parts in (g, g_new))
    scale = float(old.norm())
    assert result.difference == pytest.approx(float((old - new).norm()), abs=tolerance * scale)
    assert result.gradient_norm == pytest.approx(scale, rel=tolerance)
    assert result.updated_norm == pytest.approx(float(new.norm()), rel=tolerance)
    assert result.cosine == pytest.approx(float(old @ new / (old.norm() * new.norm())), abs=tolerance)


def assert_by_hand(
    result: CovariateShift, model: nn.Module, updated: nn.Module, order: list[str], data: tuple[Any, ...]
) -> None:
    assert list(result) == order
    largest = 0.0
    for layer, g, g_new in by_hand(model, updated, order, data):
        assert_shift(result[layer], list(g.values()), list(g_new.values()))
        for name in g:
            if float(g[name].norm()) > 1e-12:  # a key's bias in attention has no gradient but rounding
                assert_shift(result[name], [g[name]], [g_new[name]])
        largest = max(largest, result[layer].difference)
    assert largest > 1e-6  # zero against zero proves nothing


PASSES: Counter[tuple[int, str]] = Counter()
"""Calls by module, counted outside: a counter inside a module is reset after a measurement."""


class Counting(nn.Module):
    """Counts the passes through it, and fails at one of them if asked."""

    fail_at: int | None = None

    def forward(self, x: Tensor) -> Tensor:
        PASSES[id(self), "forward"] += 1
        if PASSES[id(self), "forward"] == self.fail_at:
            raise KeyboardInterrupt
        x = x.clone()
        if x.requires_grad:
            x.register_hook(self.count)
        return x

    def count(self, _gradient: Tensor) -> None:
        PASSES[id(self), "backward"] += 1

    @property
    def forwards(self) -> int:
        return PASSES[id(self), "forward"]

    @property
    def backwards(self) -> int:
        return PASSES[id(self), "backward"]

    def start_again(self, fail_at: int | None) -> None:
        self.fail_at = fail_at
        PASSES.clear()


def counted() -> nn.Sequential:
    counting = Counting()
    counting.start_again(None)
    return seeded(
        lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, CLASSES))
    ).append(counting)
