"""Small faults for the rules of which the real faults have fewer than three, to paste their remedies into."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.verdicts import data
from benchmarks.verdicts.case import Case, Program, accuracy, program, r2

REPAIRS: dict[str, Case] = {}
"""By name."""


def repair(rule: str, title: str, steps: int = 400) -> Callable[[Callable[[bool], Program]], Callable[[bool], Program]]:
    """Make a function of `faulty` a case of a rule."""

    def register(make: Callable[[bool], Program]) -> Callable[[bool], Program]:
        name = make.__name__.replace("_", "-")
        REPAIRS[name] = Case(0, name, title, make, (rule,), ("",), steps)
        return make

    return register


def stack(depth: int, activation: type[nn.Module] = nn.ReLU, *more: nn.Module) -> nn.Sequential:
    """`depth` hidden layers of 64 units on the pixels of digits."""
    hidden = [layer for _ in range(depth) for layer in (nn.Linear(64, 64), activation())]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(64, 10), *more)


def he(model: nn.Module) -> nn.Module:
    for layer in linears(model):
        nn.init.kaiming_normal_(layer.weight)
        nn.init.zeros_(layer.bias)
    return model


def linears(model: nn.Module) -> list[nn.Linear]:
    return [module for module in model.modules() if isinstance(module, nn.Linear)]


def on_digits(
    model: nn.Module, make: Any = SGD, loss: Any = F.cross_entropy, batch: int = 64, **options: Any
) -> Program:
    digits = data.digit_images(8)
    settings = {"lr": 0.1} if make is SGD else {"lr": 1e-3}
    return program(model, loss, digits, batch, make, accuracy(digits), **settings | options)


@torch.no_grad()
def scaled(layers: Sequence[nn.Linear], weight: float = 1.0, bias: float | None = None) -> None:
    for layer in layers:
        layer.weight *= weight
        if bias is not None:
            layer.bias.fill_(bias)


# weights


@repair("rank-collapse", "twenty ReLU layers as torch initializes them")
def collapsed_relus(faulty: bool) -> Program:
    model = stack(20)
    return on_digits(model if faulty else he(model), lr=0.05)


@repair("rank-collapse", "ten tanh layers with small weights and biases of 1")
def collapsed_tanhs(faulty: bool) -> Program:
    model = stack(10, nn.Tanh)
    if faulty:
        scaled(linears(model)[:-1], 0.3, 1.0)
    return on_digits(model, Adam)


@repair("rank-collapse", "fifteen sigmoid layers")
def collapsed_sigmoids(faulty: bool) -> Program:
    return on_digits(stack(15, nn.Sigmoid) if faulty else he(stack(15)), Adam)


@repair("rank-collapse", "a residual network whose streams are averaged over the batch of layers without a skip")
def collapsed_gelus(faulty: bool) -> Program:
    model = stack(16, nn.GELU)
    return on_digits(model if faulty else he(model), Adam)


@repair("bad-initialisation", "a last layer a hundred times too large")
def loud_last(faulty: bool) -> Program:
    model = stack(2)
    if faulty:
        scaled(linears(model)[-1:], 100.0)
    return on_digits(model, lr=0.05)


@repair("bad-initialisation", "biases of 30 in the hidden layers")
def large_biases(faulty: bool) -> Program:
    model = stack(3)
    if faulty:
        scaled(linears(model)[:-1], 1.0, 30.0)
    return on_digits(model)


@repair("bad-initialisation", "weights drawn from N(0, 1)")
def unit_weights(faulty: bool) -> Program:
    model = stack(4)
    if faulty:
        for layer in linears(model):
            nn.init.normal_(layer.weight)
    return on_digits(model, lr=0.05)


@repair("symmetric-initialisation", "all weights zero")
def zero_weights(faulty: bool) -> Program:
    model = stack(2)
    if faulty:
        scaled(linears(model), 0.0, 0.0)
    return on_digits(model)


@repair("symmetric-initialisation", "hidden weights of 0.01")
def equal_weights(faulty: bool) -> Program:
    model = stack(2)
    if faulty:
        for layer in linears(model):
            nn.init.constant_(layer.weight, 0.01)
    return on_digits(model, Adam)


@repair("activation-drift", "weights three times too large, twelve layers deep")
def growing_signals(faulty: bool) -> Program:
    model = he(stack(12))
    if faulty:
        scaled(linears(model), 3.0)
    return on_digits(model, lr=0.01)


@repair("activation-drift", "weights a fifth of what they should be, ten layers deep")
def fading_signals(faulty: bool) -> Program:
    model = he(stack(10))
    if faulty:
        scaled(linears(model), 0.2)
    return on_digits(model, lr=0.05)


@repair("dying-neurons", "biases of −5")
def dead_relus(faulty: bool) -> Program:
    model = stack(3)
    if faulty:
        scaled(linears(model)[:-1], 1.0, -5.0)
    return on_digits(model)


@repair("dying-neurons", "a network that one step at a rate of 50 has killed")
def killed_relus(faulty: bool) -> Program:
    built = on_digits(stack(3))
    if faulty:
        built.optimizer.param_groups[0]["lr"] = 50.0
        built.train(3)
        built.optimizer.param_groups[0]["lr"] = 0.1
    return built


@repair("full-neurons", "positive weights, so that no ReLU is ever off")
def full_relus(faulty: bool) -> Program:
    model = stack(3)
    if faulty:
        for layer in linears(model)[:-1]:
            layer.weight.data.abs_()
            layer.bias.data.fill_(1.0)
    return on_digits(model, lr=0.02)


@repair("saturated-activation", "tanh layers with weights twenty times too large")
def flat_tanhs(faulty: bool) -> Program:
    model = stack(3, nn.Tanh)
    if faulty:
        scaled(linears(model)[:-1], 20.0)
    return on_digits(model)


@repair("saturated-activation", "sigmoids with biases of 12")
def flat_sigmoids(faulty: bool) -> Program:
    model = stack(2, nn.Sigmoid)
    if faulty:
        scaled(linears(model)[:-1], 1.0, 12.0)
    return on_digits(model, Adam, lr=3e-3)


@repair("exploding-gradient", "a tanh RNN with recurrent weights three times too large")
def loud_recurrence(faulty: bool) -> Program:
    torch.manual_seed(1)
    model = Recurrent()
    if faulty:
        model.rnn.weight_hh_l0.data.normal_(0, 3 / 8)
    return on_digits(model, lr=0.05)


@repair("exploding-gradient", "fifteen layers with weights 2.5 times too large")
def loud_stack(faulty: bool) -> Program:
    model = he(stack(15))
    if faulty:
        scaled(linears(model), 2.5)
    return on_digits(model, lr=0.01)


class Recurrent(nn.Module):
    """An RNN over the rows of a digit."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.RNN(8, 64, batch_first=True), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.rnn(x.squeeze(1))[0][:, -1])
        return outputs


@repair("vanishing-gradient", "twenty tanh layers with small weights")
def fading_tanhs(faulty: bool) -> Program:
    model = stack(20, nn.Tanh)
    if not faulty:
        for layer in linears(model):
            nn.init.orthogonal_(layer.weight, gain=1.1)
            nn.init.zeros_(layer.bias)
    return on_digits(model)


@repair("vanishing-gradient", "eight sigmoid layers")
def fading_sigmoids(faulty: bool) -> Program:
    return on_digits(stack(8, nn.Sigmoid if faulty else nn.ReLU), Adam)


@repair("weight-domination", "weights that have grown a hundred times too large in front of a BatchNorm", 300)
def grown_weights(faulty: bool) -> Program:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64),
                          nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))  # fmt: skip
    if faulty:
        scaled(linears(model)[:-1], 300.0)
    return on_digits(model, lr=0.02)


# wiring


@repair("no-nonlinearity", "an MLP that lacks its activations")
def no_activations(faulty: bool) -> Program:
    rings = data.circles()
    between = nn.Identity if faulty else nn.ReLU
    model = nn.Sequential(nn.Linear(2, 32), between(), nn.Linear(32, 32), between(), nn.Linear(32, 2))
    return program(model, F.cross_entropy, rings, 32, Adam, accuracy(rings), lr=1e-2)


@repair("no-gradient", "an optimizer that was made before the last layer was exchanged")
def exchanged_head(faulty: bool) -> Program:
    model = stack(2)
    built = on_digits(model, momentum=0.9, weight_decay=1e-4, lr=0.05)
    model[-1] = nn.Linear(64, 10)
    scaled([model[-1]], 0.0)
    scaled(linears(model)[:1], 0.0 if faulty else 1.0)
    if not faulty:
        built.optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    return built


@repair("no-gradient", "a last layer of zeros that is frozen")
def frozen_head(faulty: bool) -> Program:
    model = stack(2)
    nn.init.zeros_(model[-1].weight)
    model[-1].requires_grad_(not faulty)
    return on_digits(model, Adam)


class Shared(nn.Module):
    """Two inputs of one number each with a layer for each, which are one and the same by mistake."""

    def __init__(self, is_shared: bool) -> None:
        super().__init__()
        first = nn.Linear(1, 16)
        self.layers = nn.ModuleList([first, first if is_shared else nn.Linear(1, 16)])
        self.head = nn.Sequential(nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(sum(layer(x[:, i : i + 1]) for i, layer in enumerate(self.layers)))
        return outputs


@repair("shared-weight", "a list of one layer twice", 600)
def repeated_layer(faulty: bool) -> Program:
    draw = torch.Generator().manual_seed(2)
    x = torch.randn(512, 2, generator=draw)
    numbers = x, x[:, :1].abs() - x[:, 1:].abs()
    return program(Shared(faulty), F.mse_loss, numbers, 32, Adam, r2(numbers), lr=1e-2)


@repair("dropout-too-strong", "dropout of 0.95 after every layer")
def strong_dropout(faulty: bool) -> Program:
    drop = 0.95 if faulty else 0.1
    layers = [layer for _ in range(3) for layer in (nn.Linear(64, 64), nn.ReLU(), nn.Dropout(drop))]
    return on_digits(nn.Sequential(nn.Flatten(), *layers, nn.Linear(64, 10)), Adam)


@repair("batchnorm-mode-gap", "BatchNorms whose running statistics never move")
def slow_statistics(faulty: bool) -> Program:
    momentum = 1e-5 if faulty else 0.1
    layers = [
        layer for _ in range(3) for layer in (nn.Linear(64, 64), nn.BatchNorm1d(64, momentum=momentum), nn.ReLU())
    ]
    model = nn.Sequential(nn.Flatten(), *layers, nn.Linear(64, 10))
    scaled(linears(model)[:-1], 3.0, 2.0)
    return on_digits(model, lr=0.05)


# data and loss


@repair("unscaled-target", "prices in thousands")
def dear_houses(faulty: bool) -> Program:
    x, y = data.houses(scaled=True)
    prices = x, 250_000 + 100_000 * y
    model = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 1))
    if faulty:
        return program(model, F.mse_loss, prices, 32, SGD, r2(prices), lr=0.05)
    return program(model, F.mse_loss, (x, y), 32, SGD, r2((x, y)), lr=0.05)


@repair("unscaled-target", "temperatures in kelvin, by absolute error")
def kelvin(faulty: bool) -> Program:
    x, y = data.houses(scaled=True)
    kelvins = x, 290 + 8 * y
    model = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 1))
    if faulty:
        return program(model, F.l1_loss, kelvins, 32, Adam, r2(kelvins), lr=1e-2)
    return program(model, F.l1_loss, (x, y), 32, Adam, r2((x, y)), lr=1e-2)


@repair("unscaled-input", "pixels from 0 to 255")
def raw_pixels(faulty: bool) -> Program:
    x, y = data.digit_images(8)
    pixels = (255 * x if faulty else x), y
    return program(stack(3), F.cross_entropy, pixels, 64, SGD, accuracy(pixels), lr=0.1)


@repair("ill-conditioned-input", "a large mean in every feature")
def shifted_features(faulty: bool) -> Program:
    x, y = data.houses(scaled=True)
    shifted = (x + 30 if faulty else x), y
    return program(nn.Linear(3, 1), F.mse_loss, shifted, 32, SGD, r2(shifted), lr=3e-4 if faulty else 0.05)


@repair("ill-conditioned-input", "two features that are almost the same", 600)
def twins(faulty: bool) -> Program:
    draw = torch.Generator().manual_seed(3)
    z = torch.randn(512, 4, generator=draw)
    x = torch.cat([z[:, :1] + 0.01 * z[:, 1:2], z[:, :1], z[:, 2:]], 1)
    numbers = (x if faulty else z), z[:, 1:2] + 0.2 * z[:, 2:3]
    return program(nn.Linear(4, 1), F.mse_loss, numbers, 32, SGD, r2(numbers), lr=0.05)


@repair("sorted-batches", "examples in the order of their labels")
def in_order_of_labels(faulty: bool) -> Program:
    x, y = data.digit_images(8)
    order = y.argsort()
    built = on_digits(stack(2), lr=0.2)
    if faulty:
        built.loader = DataLoader(TensorDataset(x[order], y[order]), batch_size=64, shuffle=False)
    return built


@repair("summed-loss", "a sum over the batch, at the rate of a mean")
def summed(faulty: bool) -> Program:
    loss = nn.CrossEntropyLoss(reduction="sum" if faulty else "mean")
    return on_digits(stack(3), SGD, loss, lr=0.05, momentum=0.9)


@repair("output-loss-mismatch", "labels of −1 and 1 under binary cross-entropy")
def signed_labels(faulty: bool) -> Program:
    x, y = data.circles()
    labels = x, (2.0 * y - 1 if faulty else y.float())[:, None]
    model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 1))

    def score(trained: nn.Module) -> float:
        return float(((trained(x)[:, 0] > 0) == (y > 0)).float().mean())

    return program(model, nn.BCEWithLogitsLoss(), labels, 32, Adam, score, lr=1e-2)


@repair("output-loss-mismatch", "nll_loss of raw outputs")
def raw_nll(faulty: bool) -> Program:
    return on_digits(stack(2, nn.ReLU, *([] if faulty else [nn.LogSoftmax(-1)])), SGD, nn.NLLLoss())


@repair("output-loss-mismatch", "a loss with the wrong sign")
def rewarded(faulty: bool) -> Program:
    sign = -1.0 if faulty else 1.0
    return on_digits(stack(2), SGD, lambda outputs, labels: sign * F.cross_entropy(outputs, labels))


# the optimizer


@repair("diverging", "maximize=True")
def uphill(faulty: bool) -> Program:
    return on_digits(stack(2), momentum=0.9, lr=0.02, maximize=faulty)


@repair("optimizer-setting", "Adam with ε = 1")
def large_eps(faulty: bool) -> Program:
    return on_digits(stack(3), Adam, eps=1.0 if faulty else 1e-8)


@repair("optimizer-setting", "a momentum of 0.999")
def long_momentum(faulty: bool) -> Program:
    return on_digits(stack(3), lr=0.1, momentum=0.999 if faulty else 0.9, nesterov=True)


@repair("learning-rate-too-high", "SGD with momentum at a rate of 5, in two groups")
def groups_too_high(faulty: bool) -> Program:
    model = stack(3)
    built = on_digits(model)
    rate = 5.0 if faulty else 0.05
    built.optimizer = SGD(
        [{"params": model[1].parameters(), "lr": rate / 2}, {"params": model[2:].parameters(), "weight_decay": 1e-4}],
        lr=rate,
        momentum=0.9,
    )
    return built


@repair("weight-decay-dominates", "AdamW with a decay of 100")
def strong_adamw(faulty: bool) -> Program:
    return on_digits(stack(3), AdamW, betas=(0.8, 0.99), weight_decay=100.0 if faulty else 0.01)
