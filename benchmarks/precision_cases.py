"""Faults of precision, each with its repair, and sound set-ups in mixed precision.

All of them train in seconds: a fault is one only if training shows it, so `trained` runs both forms as a script would.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW, Optimizer

import wellcond as wc

STEPS = 300
"""Training steps of a verification."""


@dataclass
class Setup:
    """A script: what it trains, and how.

    Attributes:
        model: On its device.
        loss: `loss(outputs, targets)`.
        batches: As a loader gives them.
        optimizer: Of the model's parameters.
        autocast: Dtype of the autocast around model and loss.
        scaler: Settings of its `GradScaler`; None without one.
    """

    model: nn.Module
    loss: Callable[[Any, Any], Tensor]
    batches: list[tuple[Tensor, Tensor]]
    optimizer: Optimizer
    autocast: torch.dtype | None = None
    scaler: dict[str, Any] | None = None

    @property
    def device(self) -> str:
        return next(self.model.parameters()).device.type

    def new_scaler(self) -> Any:
        return None if self.scaler is None else torch.amp.GradScaler(self.device, **self.scaler)

    def problem(self) -> wc.Problem:
        return wc.Problem(self.model, self.loss, self.batches, autocast=self.autocast, scaler=self.new_scaler())


@dataclass
class Fault:
    """A mistake and its repair.

    Attributes:
        name: In words.
        build: The faulty form on a device, or the repaired one.
        rules: Rules one of which names the cause.
    """

    name: str
    build: Callable[[str, bool], Setup]
    rules: tuple[str, ...]


def trained(setup: Setup, steps: int = STEPS) -> float:
    """The mean loss over all batches after some steps; infinite if it is not finite."""
    scaler = setup.new_scaler()
    for step in range(steps):
        x, y = setup.batches[step % len(setup.batches)]
        setup.optimizer.zero_grad()
        with torch.autocast(setup.device, setup.autocast or torch.bfloat16, enabled=setup.autocast is not None):
            loss = setup.loss(setup.model(x), y)
        if scaler is None:
            loss.backward()
            setup.optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(setup.optimizer)
            scaler.update()
    with (
        torch.no_grad(),
        torch.autocast(setup.device, setup.autocast or torch.bfloat16, enabled=setup.autocast is not None),
    ):
        losses = [float(setup.loss(setup.model(x), y)) for x, y in setup.batches]
    mean = sum(losses) / len(losses)
    return mean if math.isfinite(mean) else math.inf


# data


def table(device: str, features: int = 32, classes: int = 8, examples: int = 512) -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(0)
    x, w = torch.randn(examples, features, generator=draw), torch.randn(features, classes, generator=draw)
    return _batches(x, (x @ w).argmax(1), device)


def regression(device: str, features: int = 16, scale: float = 1.0) -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(0)
    x, w = torch.randn(512, features, generator=draw), torch.randn(features, 4, generator=draw)
    return _batches(x, scale * torch.tanh(x @ w / features**0.5), device)


def images(device: str) -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(0)
    y = torch.randint(0, 4, (256,), generator=draw)
    x = torch.randn(256, 3, 12, 12, generator=draw)
    for k in range(4):
        x[y == k, :, 3 * k : 3 * k + 3] += 1.0
    return _batches(x, y, device, 32)


def sequences(device: str, length: int = 16, words: int = 40) -> list[tuple[Tensor, Tensor]]:
    """Each word is the one before plus the first step of its sequence."""
    draw = torch.Generator().manual_seed(0)
    start, step = (torch.randint(0, words, (256, 1), generator=draw), torch.randint(1, 4, (256, 1), generator=draw))
    whole = (start + step * torch.arange(length + 1)) % words
    return _batches(whole[:, :-1], whole[:, 1:], device, 32)


def _batches(x: Tensor, y: Tensor, device: str, size: int = 64) -> list[tuple[Tensor, Tensor]]:
    return [(a.to(device), b.to(device)) for a, b in zip(x.split(size), y.split(size), strict=True)]


def cast(batches: list[tuple[Tensor, Tensor]], dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    return [tuple(t.to(dtype) if t.is_floating_point() else t for t in pair) for pair in batches]  # type: ignore[misc]


# networks


def perceptron(inputs: int = 32, outputs: int = 8, width: int = 64, norm: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Linear(inputs, width), nn.ReLU()]
    layers += [nn.LayerNorm(width)] if norm else []
    return nn.Sequential(*layers, nn.Linear(width, width), nn.ReLU(), nn.Linear(width, outputs))


def convolutional(norm: Callable[[int], nn.Module] = nn.BatchNorm2d) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), norm(16), nn.ReLU(),
        nn.Conv2d(16, 16, 3, stride=2, padding=1), norm(16), nn.ReLU(),
        nn.Flatten(), nn.Linear(16 * 36, 4),
    )  # fmt: skip


class Attention(nn.Module):
    """Causal self-attention; `plainly` takes exponentials without subtracting the largest, and does not scale."""

    def __init__(self, width: int, heads: int = 4, plainly: bool = False) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.plainly = heads, plainly

    def forward(self, x: Tensor) -> Tensor:
        n, t, d = x.shape
        q, k, v = (z.view(n, t, self.heads, -1).transpose(1, 2) for z in self.qkv(x).chunk(3, -1))
        if self.plainly:
            mask = torch.ones(t, t, device=x.device, dtype=torch.bool).tril()
            # 11.1 is the logarithm of 65504, the largest number of float16
            weights = (q @ k.transpose(-1, -2)).to(x.dtype if x.dtype == torch.float32 else q.dtype)
            weights = torch.where(mask, torch.ops.aten.exp(weights), 0.0).to(q.dtype)
            mixed = weights @ v / weights.sum(-1, keepdim=True)
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        result: Tensor = self.out(mixed.to(q.dtype).transpose(1, 2).reshape(n, t, d))
        return result


class Block(nn.Module):
    def __init__(self, width: int, dropout: float = 0.0, plainly: bool = False) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, plainly=plainly)
        self.norm2, self.drop = nn.LayerNorm(width), nn.Dropout(dropout)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.attention(self.norm1(x)))
        result: Tensor = x + self.drop(self.feed(self.norm2(x)))
        return result


class Transformer(nn.Module):
    def __init__(self, words: int = 40, width: int = 32, dropout: float = 0.0, plainly: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(64, width)
        self.blocks = nn.Sequential(*(Block(width, dropout, plainly) for _ in range(2)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words) + self.places.weight[: words.shape[1]]
        result: Tensor = self.head(self.norm(self.blocks(x)))
        return result


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.lstm, self.head = nn.Embedding(40, 32), nn.LSTM(32, 64, batch_first=True), nn.Linear(64, 40)

    def forward(self, words: Tensor) -> Tensor:
        result: Tensor = self.head(self.lstm(self.words(words))[0])
        return result


class OwnNorm(nn.Module):
    """A norm written by hand: `kind` is "squares", the root of a mean of squares, or "moments", E x² − (E x)²."""

    def __init__(self, kind: str, in_float32: bool) -> None:
        super().__init__()
        self.kind, self.in_float32 = kind, in_float32

    def forward(self, x: Tensor) -> Tensor:
        before = x.dtype
        x = x.float() if self.in_float32 else x
        if self.kind == "squares":
            x = x / ((x * x).mean(-1, keepdim=True) + 1e-6) ** 0.5
        else:
            mean = x.mean(-1, keepdim=True)
            variance = (x * x).mean(-1, keepdim=True) - mean * mean
            x = (x - mean) / (variance.clamp_min(0) + 1e-5) ** 0.5
        return x.to(before)


class Shifted(nn.Module):
    """Adds a constant, as features have that are far from zero."""

    def __init__(self, by: float, times: float = 1.0) -> None:
        super().__init__()
        self.by, self.times = by, times

    def forward(self, x: Tensor) -> Tensor:
        return x * self.times + self.by


class Positions(nn.Module):
    """Sines of a time of up to a thousand steps, made from the time in some dtype."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.dtype = dtype
        self.net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, time: Tensor) -> Tensor:
        frequencies = torch.logspace(0, -2, 16, device=time.device)
        angle = (time.to(self.dtype) * frequencies.to(self.dtype)).to(self.dtype)
        result: Tensor = self.net(torch.cat([angle.sin(), angle.cos()], 1).float())
        return result


def tokens_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs.flatten(0, 1).float(), targets.flatten())


# faults


def _no_scaler(device: str, is_repaired: bool) -> Setup:
    model = perceptron(16, 4, norm=False).to(device)
    loss = lambda f, y: 1e-3 / 64 * F.mse_loss(f.float(), y)  # noqa: E731, a weight, and the steps of an accumulation
    scaler: dict[str, Any] | None = {"init_scale": 2.0**20} if is_repaired else None
    return Setup(model, loss, regression(device), Adam(model.parameters(), 1e-3), torch.float16, scaler)


def _fixed_scale(device: str, is_repaired: bool) -> Setup:
    setup = _no_scaler(device, is_repaired)
    if not is_repaired:
        setup.scaler = {"init_scale": 1.0, "growth_interval": 10**6}
    return setup


def _bf16_adam(device: str, is_repaired: bool) -> Setup:
    model = perceptron().to(device)
    if is_repaired:
        return Setup(model, _in_float, table(device), AdamW(model.parameters(), 1e-4), torch.bfloat16)
    model = model.bfloat16()
    return Setup(model, _in_float, cast(table(device), torch.bfloat16), AdamW(model.parameters(), 1e-4))


def _bf16_sgd(device: str, is_repaired: bool) -> Setup:
    model = perceptron().to(device)
    if is_repaired:
        return Setup(model, _in_float, table(device), SGD(model.parameters(), 1e-2), torch.bfloat16)
    model = model.bfloat16()
    return Setup(model, _in_float, cast(table(device), torch.bfloat16), SGD(model.parameters(), 1e-2))


def _half_eps(device: str, is_repaired: bool) -> Setup:
    model = perceptron(norm=False).to(device).half()
    eps = 1e-4 if is_repaired else 1e-8
    return Setup(model, _in_float, cast(table(device), torch.float16), Adam(model.parameters(), 1e-3, eps=eps))


def _exponentials(device: str, is_repaired: bool) -> Setup:
    model = Transformer(plainly=not is_repaired).to(device)
    with torch.no_grad():
        for block in model.blocks:
            block.attention.qkv.weight.mul_(4.0)
    return Setup(
        model, tokens_loss, sequences(device), AdamW(model.parameters(), 1e-3), torch.float16, {"init_scale": 2.0**10}
    )


def _summed_squares(device: str, is_repaired: bool) -> Setup:
    model = perceptron(32, 1024).to(device).half()

    def loss(f: Tensor, y: Tensor) -> Tensor:
        f, y = (f.float(), y.float()) if is_repaired else (f, y)
        errors = f - y
        return (errors * errors).sum() / errors.numel()

    draw = torch.Generator().manual_seed(0)
    x, w = torch.randn(512, 32, generator=draw), torch.randn(32, 1024, generator=draw)
    batches = cast(_batches(x, 3.0 * (x @ w / 32**0.5).tanh(), device), torch.float16)
    return Setup(model, loss, batches, Adam(model.parameters(), 1e-3, eps=1e-4))


def _own_norm(kind: str, dtype: torch.dtype, by: float, times: float) -> Callable[[str, bool], Setup]:
    def build(device: str, is_repaired: bool) -> Setup:
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(32, 64),
            Shifted(by, times),
            OwnNorm(kind, is_repaired),
            nn.Linear(64, 64),
            nn.ReLU(),
            nn.Linear(64, 8),
        ).to(device)
        scaler: dict[str, Any] | None = {"init_scale": 2.0**10} if dtype == torch.float16 else None
        return Setup(model, _in_float, table(device), AdamW(model.parameters(), 3e-3), dtype, scaler)

    return build


def _growing(device: str, is_repaired: bool) -> Setup:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(8):
        layer = nn.Linear(64, 64)
        nn.init.normal_(layer.weight, std=0.6)
        layers += [layer, nn.ReLU()]
    model = nn.Sequential(nn.Linear(32, 64), *layers, nn.LayerNorm(64), nn.Linear(64, 8)).to(device)
    dtype = torch.bfloat16 if is_repaired else torch.float16
    scaler: dict[str, Any] | None = None if is_repaired else {"init_scale": 2.0**10}
    return Setup(model, _in_float, table(device), AdamW(model.parameters(), 1e-3), dtype, scaler)


def _log_of_half(device: str, is_repaired: bool) -> Setup:
    model = perceptron(norm=False).to(device)
    with torch.no_grad():
        model[-1].weight.mul_(60.0)  # type: ignore[union-attr, operator]

    def loss(f: Tensor, y: Tensor) -> Tensor:
        if is_repaired:
            return F.cross_entropy(f.float(), y)
        p = f.softmax(1).half()
        return -(p + 1e-8).log().float().gather(1, y[:, None]).mean()

    return Setup(model, loss, table(device), AdamW(model.parameters(), 1e-3), torch.float16, {"init_scale": 2.0**10})


def _positions(device: str, is_repaired: bool) -> Setup:
    model = Positions(torch.float32 if is_repaired else torch.bfloat16).to(device)
    draw = torch.Generator().manual_seed(0)
    time = torch.randint(512, 1024, (512, 1), generator=draw).float()
    batches = _batches(time, (time * 0.7).sin(), device)
    return Setup(model, nn.MSELoss(), batches, AdamW(model.parameters(), 3e-3), torch.bfloat16)


def _in_float(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs.float(), targets)


FAULTS = [
    Fault("float16 without a GradScaler, a loss of small weight", _no_scaler, ("gradient-underflow",)),
    Fault("a GradScaler whose scale is fixed at 1", _fixed_scale, ("gradient-underflow",)),
    Fault("weights in bfloat16, AdamW at 1e-4", _bf16_adam, ("lost-updates",)),
    Fault("weights in bfloat16, SGD at 1e-2", _bf16_sgd, ("lost-updates",)),
    Fault("weights in float16, Adam with eps 1e-8", _half_eps, ("non-finite", "optimizer-setting")),
    Fault("attention by plain exponentials in float16", _exponentials, ("half-overflow",)),
    Fault("squares summed in float16", _summed_squares, ("half-overflow",)),
    Fault(
        "an RMS norm of one's own in float16",
        _own_norm("squares", torch.float16, 0.0, 600.0),
        ("half-overflow", "rounding-error"),
    ),
    Fault("activations beyond float16", _growing, ("half-overflow",)),
    Fault("the logarithm of probabilities in float16", _log_of_half, ("half-overflow",)),
    Fault("times of a thousand steps in bfloat16", _positions, ("rounding-error",)),
    Fault(
        "a norm of one's own in bfloat16, by E x² − (E x)²",
        _own_norm("moments", torch.bfloat16, 10.0, 1.0),
        ("rounding-error",),
    ),
]


# sound set-ups

FP16 = {"autocast": torch.float16, "scaler": {}}
BF16 = {"autocast": torch.bfloat16}


def _sound(
    build: Callable[[], nn.Module],
    loss: Callable[[Any, Any], Tensor],
    data: Callable[[str], list[tuple[Tensor, Tensor]]],
    options: dict[str, Any],
    optimizer: Callable[[Any], Optimizer] = lambda params: AdamW(params, 1e-3),
    weights: torch.dtype | None = None,
) -> Callable[[str], Setup]:
    def make(device: str) -> Setup:
        torch.manual_seed(0)
        model, batches = build().to(device), data(device)
        if weights is not None:
            model, batches = model.to(weights), cast(batches, weights)
        return Setup(model, loss, batches, optimizer(model.parameters()), **options)

    return make


def _group_norm(channels: int) -> nn.Module:
    return nn.GroupNorm(4, channels)


SOUND: dict[str, Callable[[str], Setup]] = {
    "perceptron, bfloat16": _sound(perceptron, nn.CrossEntropyLoss(), table, BF16),
    "perceptron, float16 and GradScaler": _sound(perceptron, nn.CrossEntropyLoss(), table, FP16),
    "BatchNorm, bfloat16": _sound(convolutional, nn.CrossEntropyLoss(), images, BF16),
    "BatchNorm, float16 and GradScaler": _sound(convolutional, nn.CrossEntropyLoss(), images, FP16),
    "GroupNorm, float16, GradScaler, SGD": _sound(
        lambda: convolutional(_group_norm), nn.CrossEntropyLoss(), images, FP16, lambda p: SGD(p, 0.05, 0.9)
    ),
    "transformer, bfloat16": _sound(Transformer, tokens_loss, sequences, BF16),
    "transformer, float16 and GradScaler": _sound(Transformer, tokens_loss, sequences, FP16),
    "transformer with dropout, bfloat16": _sound(lambda: Transformer(dropout=0.1), tokens_loss, sequences, BF16),
    "LSTM, bfloat16": _sound(Recurrent, tokens_loss, sequences, BF16, lambda p: AdamW(p, 3e-3)),
    "regression, float16 and GradScaler": _sound(lambda: perceptron(16, 4), nn.MSELoss(), regression, FP16),
    "weights in bfloat16, AdamW at 1e-3": _sound(perceptron, _in_float, table, {}, weights=torch.bfloat16),
    "weights in float16, Adam with eps 1e-4": _sound(
        perceptron, _in_float, table, {}, lambda p: Adam(p, 1e-3, eps=1e-4), torch.float16
    ),
}
