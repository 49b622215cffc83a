"""Faults of inputs, targets and losses, in networks that are written in different ways."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW
from torch.utils.data import DataLoader

from benchmarks.verdicts import data
from benchmarks.verdicts.case import Program, accuracy, program, r2
from benchmarks.verdicts.repair_cases import on_digits, repair
from benchmarks.verdicts.repair_networks import Convolutions, Perceptron, Rows, grouped


class Branches(nn.Module):
    """Pixels and a table of four columns, each with a branch of its own, as keyword arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.table, self.head = nn.Linear(64, 32), nn.Linear(4, 32), nn.Linear(64, 10)

    def forward(self, pixels: Tensor, columns: Tensor) -> Tensor:
        both = torch.cat([torch.relu(self.image(pixels.flatten(1))), torch.relu(self.table(columns))], 1)
        outputs: Tensor = self.head(both)
        return outputs


@repair("unscaled-input", "a branch of columns in thousands next to one of pixels, by name", 300)
def loud_branch(faulty: bool) -> Program:
    x, y = data.digit_images(8)
    columns = torch.randn(len(y), 4, generator=torch.Generator().manual_seed(1))
    y = y // 2 + 5 * (columns[:, 0] > 0)
    columns = 5000 * columns + 20_000 if faulty else columns
    examples = [({"pixels": p, "columns": c}, label) for p, c, label in zip(x, columns, y, strict=True)]
    model = Branches()

    def score(trained: nn.Module) -> float:
        return float((trained(pixels=x, columns=columns).argmax(1) == y).float().mean())

    loader = DataLoader(examples, batch_size=64, shuffle=True)
    return Program(model, F.cross_entropy, loader, SGD(model.parameters(), lr=0.1, momentum=0.9), score)


class Sliced(nn.Module):
    """Ages and incomes through a layer each, cut from one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(1, 16), nn.Linear(2, 16), nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.cat([self.a(x[:, :1]), self.b(x[:, 1:])], -1)
        outputs: Tensor = self.out(F.relu(hidden))
        return outputs


@repair("unscaled-input", "columns of one tensor, cut into branches")
def sliced_branches(faulty: bool) -> Program:
    x, y = data.houses(scaled=True)
    if faulty:
        x = data.houses(scaled=False)[0]
    model = Sliced()
    built = program(model, F.mse_loss, (x, y), 32, AdamW, r2((x, y)), lr=1e-2)
    built.optimizer = grouped(AdamW, model, lr=1e-2)
    return built


class Signals(nn.Module):
    """Convolutions over time."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1d(channels, 16, 3, padding=1), nn.Conv1d(16, 16, 3, padding=1)
        self.out = nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        outputs: Tensor = self.out(x.mean(-1))
        return outputs


def waves() -> data.Data:
    """(N, 3, 24): waves of two frequencies, in noise."""
    draw = torch.Generator().manual_seed(2)
    y = torch.randint(0, 2, (512,), generator=draw)
    time = torch.arange(24.0) * (0.5 + 0.7 * y[:, None])
    phase = 6.3 * torch.rand(512, 3, 1, generator=draw)
    return torch.sin(time[:, None] + phase) + 0.5 * torch.randn(512, 3, 24, generator=draw), y


@repair("unscaled-input", "sensors in volts, pascals and kelvins")
def sensors(faulty: bool) -> Program:
    x, y = waves()
    if faulty:
        x = x * torch.tensor([0.01, 300.0, 8.0])[:, None] + torch.tensor([0.0, 1e5, 290.0])[:, None]
    return program(Signals(3), F.cross_entropy, (x, y), 32, SGD, accuracy((x, y)), lr=0.05, momentum=0.9)


@repair("unscaled-input", "a GRU over rows of bytes", 300)
def raw_rows(faulty: bool) -> Program:
    x, y = data.digit_images(8)
    x = 255 * 16 * x if faulty else x
    return program(Rows(nn.GRU), F.cross_entropy, (x, y), 64, SGD, accuracy((x, y)), lr=0.2, momentum=0.9)


@repair("ill-conditioned-input", "powers of one number", 600)
def powers(faulty: bool) -> Program:
    z = torch.rand(512, 1, generator=torch.Generator().manual_seed(4))
    x = torch.cat([z**k for k in range(1, 5)], 1)
    y = torch.sin(7 * z)
    if not faulty:
        centered = x - x.mean(0)
        x = centered @ torch.linalg.inv(torch.linalg.cholesky(centered.T @ centered / len(x))).T
    return program(nn.Linear(4, 1), F.mse_loss, (x, y), 32, SGD, r2((x, y)), lr=0.05)


@repair("ill-conditioned-input", "eight sensors that are copies of one, but for what matters", 600)
def alike_sensors(faulty: bool) -> Program:
    z = torch.randn(512, 8, generator=torch.Generator().manual_seed(5))
    y = z[:, 1:2] - z[:, 2:3]
    x = z[:, :1] + 0.02 * z if faulty else z
    model = Perceptron(1, torch.tanh, 8, 32, 1)
    return program(model, F.mse_loss, (x, y), 32, SGD, r2((x, y)), lr=0.05, momentum=0.9)


@repair("ill-conditioned-input", "features of 100 ± 1, at the rate that they allow", 300)
def far_from_zero(faulty: bool) -> Program:
    x, y = data.table("wine", scaled=True)
    x = x + 100 if faulty else x
    model = Perceptron(1, F.relu, 13, 32, 3)
    return program(model, F.cross_entropy, (x, y), 32, SGD, accuracy((x, y)), lr=1e-4 if faulty else 0.05)


# targets


@repair("unscaled-target", "an LSTM that predicts thousands", 300)
def dear_rows(faulty: bool) -> Program:
    x, y = data.digit_images(8)
    sums = (y.float()[:, None] - 4.5) / 2.9
    targets = 40_000 + 3_000 * sums if faulty else sums
    model = Rows(nn.LSTM)
    model.fc = nn.Linear(32, 1)
    return program(model, F.mse_loss, (x, targets), 64, Adam, r2((x, targets)), lr=5e-3)


@repair("unscaled-target", "targets of a few millionths, by Huber's loss")
def tiny_targets(faulty: bool) -> Program:
    x, y = data.houses(scaled=True)
    y = 1e-5 * y if faulty else y
    return program(Perceptron(2, F.relu, 3, 32, 1), nn.HuberLoss(), (x, y), 32, SGD, r2((x, y)), lr=0.05, momentum=0.9)


@repair("unscaled-target", "three targets in units of their own")
def three_units(faulty: bool) -> Program:
    x, y = data.houses(scaled=True)
    three = torch.cat([y, x[:, :1] * x[:, 1:2], y - x[:, 2:]], 1)
    three = data.standardized(three) * torch.tensor([5000.0, 300.0, 2000.0]) + 10_000 if faulty else three
    model = Perceptron(2, F.relu, 3, 32, 3)
    built = program(model, F.mse_loss, (x, three), 32, Adam, r2((x, three)), lr=1e-2)
    built.optimizer = grouped(Adam, model, decay=1e-5, lr=1e-2)
    return built


# outputs and losses


class Ending(nn.Module):
    """Convolutions with a function at their end."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.body, self.function = Convolutions(2), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.body(x))


def unchanged(x: Tensor) -> Tensor:
    return x


@repair("output-loss-mismatch", "softmax at the end of forward, under cross-entropy", 150)
def softmax_in_forward(faulty: bool) -> Program:
    return on_digits(Ending((lambda x: x.softmax(1)) if faulty else unchanged), lr=0.05, momentum=0.5)


@repair("output-loss-mismatch", "a ReLU at the end of a regression whose targets are negative, too")
def relu_at_the_end(faulty: bool) -> Program:
    x, y = data.houses(scaled=True)
    model = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 1), nn.ReLU() if faulty else nn.Identity())
    return program(model, F.mse_loss, (x, y), 32, Adam, r2((x, y)), lr=1e-2)


class Squeezed(nn.Module):
    """A regression whose outputs have no last dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.out = nn.Linear(3, 32), nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.out(F.relu(self.fc(x)))
        return outputs


@repair("output-loss-mismatch", "targets (N,) and outputs (N, 1) of an own module, by Huber's loss")
def broadcast_huber(faulty: bool) -> Program:
    x, y = data.houses(scaled=True)
    numbers = x, (y[:, 0] if faulty else y)
    return program(Squeezed(), F.smooth_l1_loss, numbers, 32, Adam, r2((x, y)), lr=1e-2)


@repair("output-loss-mismatch", "sigmoid in forward, and a loss that takes logits", 300)
def sigmoid_twice(faulty: bool) -> Program:
    x, y = data.table("breast_cancer", scaled=True)
    rare = torch.cat([(y == 0).nonzero()[:20, 0], (y == 1).nonzero()[:, 0]])
    x, y = x[rare], y[rare].float()[:, None]
    model = _Sigmoid(faulty)

    def score(trained: nn.Module) -> float:
        outputs = trained(x)
        probability = outputs if faulty and outputs.min() >= 0 and outputs.max() <= 1 else outputs.sigmoid()
        return float(1 - (probability - y).square().sum() / (y - y.mean()).square().sum())

    return program(model, nn.BCEWithLogitsLoss(), (x, y), 32, SGD, score, lr=0.05)


class _Sigmoid(nn.Module):
    def __init__(self, is_probability: bool) -> None:
        super().__init__()
        self.fc, self.out, self.is_probability = nn.Linear(30, 16), nn.Linear(16, 1), is_probability

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.out(F.relu(self.fc(x)))
        return torch.sigmoid(outputs) if self.is_probability else outputs


@repair("saturated-output", "a probability whose last layer starts thousands of times too large")
def sure_probability(faulty: bool) -> Program:
    x, y = data.medical(scaled=True)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1), nn.Sigmoid())
    if faulty:
        with torch.no_grad():
            model[2].weight *= 3000
    return program(model, nn.BCELoss(), (x, y), 32, SGD, _accuracy_of_probability(x, y), lr=0.1)


@repair("saturated-output", "a probability in forward, after convolutions, with a bias of −60")
def sure_convolutions(faulty: bool) -> Program:
    x, y = data.digit_images(8)
    odd = (y % 2).float()[:, None]
    model = Ending(torch.sigmoid)
    model.body.fc = nn.Linear(192, 1)
    if faulty:
        nn.init.constant_(model.body.fc.bias, -60.0)
    return program(model, F.binary_cross_entropy, (x, odd), 64, SGD, _accuracy_of_probability(x, odd), lr=0.1,
                   momentum=0.9)  # fmt: skip


@repair("saturated-output", "a probability of a perceptron with weights of N(0, 5)")
def sure_perceptron(faulty: bool) -> Program:
    x, y = data.medical(scaled=True)
    model = nn.Sequential(Perceptron(1, F.relu, 8, 32, 1), nn.Sigmoid())
    if faulty:
        for p in model.parameters():
            nn.init.normal_(p, 0, 5)
    return program(model, nn.BCELoss(), (x, y), 32, Adam, _accuracy_of_probability(x, y), lr=1e-3)


def _accuracy_of_probability(x: Tensor, y: Tensor) -> Callable[[nn.Module], float]:
    def score(trained: nn.Module) -> float:
        outputs = trained(x)
        is_probability = outputs.min() >= 0 and outputs.max() <= 1
        return float(((outputs > (0.5 if is_probability else 0)) == (y > 0.5)).float().mean())

    return score


@repair("summed-loss", "squared errors summed over batch and outputs", 300)
def summed_squares(faulty: bool) -> Program:
    x, y = data.houses(scaled=True)
    reduction = "sum" if faulty else "mean"
    return program(Perceptron(2, torch.tanh, 3, 32, 1), nn.MSELoss(reduction=reduction), (x, y), 64, SGD, r2((x, y)),
                   lr=0.05, momentum=0.9)  # fmt: skip


@repair("summed-loss", "a loss of one's own that sums, over convolutions", 300)
def summed_by_hand(faulty: bool) -> Program:
    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        errors = -outputs.log_softmax(1).gather(1, labels[:, None])
        return errors.sum() if faulty else errors.mean()

    return on_digits(Convolutions(2), SGD, loss, lr=0.05, momentum=0.9)


# precision


@repair("non-finite", "Adam with ε of 1e-8 on weights in half precision", 60)
def half_perceptron(faulty: bool) -> Program:
    return _half(Perceptron(2), Adam, 1e-8 if faulty else 1e-4)


@repair("non-finite", "AdamW in half precision, with two groups", 60)
def half_groups(faulty: bool) -> Program:
    model = Perceptron(1, torch.tanh)
    built = _half(model, AdamW, 1e-4)
    built.optimizer = grouped(AdamW, model, lr=1e-3, eps=1e-8 if faulty else 1e-4, betas=(0.9, 0.95))
    return built


def _half(model: nn.Module, make: Any, eps: float) -> Program:
    x, y = data.digit_images(8)
    images = x.half(), y
    return program(model.half(), F.cross_entropy, images, 64, make, accuracy(images), lr=1e-3, eps=eps)


@repair("non-finite", "the root of a squared distance of zero", 300)
def root_of_zero(faulty: bool) -> Program:
    x, y = data.houses(scaled=True)
    three = y.repeat(1, 3)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return ((outputs - targets).square().sum(1) + (0.0 if faulty else 1e-8)).sqrt().mean()

    model = Perceptron(1, F.relu, 3, 32, 3)
    with torch.no_grad():
        three[:300] = 0.0
        x[:300] = 0.0
        for layer in (*model.layers, model.out):
            layer.bias.zero_()
    return program(model, loss, (x, three), 32, Adam, r2((x, three)), lr=1e-2)
