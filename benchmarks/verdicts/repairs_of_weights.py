"""Faults of initial weights, in networks that are written in different ways: signals, gradients, units."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW, RMSprop

from benchmarks.verdicts import data
from benchmarks.verdicts.case import Program, accuracy, program, r2
from benchmarks.verdicts.repair_cases import on_digits, repair
from benchmarks.verdicts.repair_networks import (
    Cell,
    Convolutions,
    Perceptron,
    Rows,
    grouped,
    on_tokens,
    transformer,
)


@torch.no_grad()
def matrices(model: nn.Module, factor: float) -> None:
    for p in model.parameters():
        if p.dim() > 1:
            p *= factor


@torch.no_grad()
def he_anew(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model


@torch.no_grad()
def biased(model: nn.Module, value: float) -> None:
    """All biases but the last layer's."""
    layers = [module for module in model.modules() if isinstance(module, nn.Linear | nn.Conv2d)]
    for layer in layers[:-1]:
        layer.bias.fill_(value)


# rank


@repair("rank-collapse", "fifteen convolutions as torch initializes them", 200)
def collapsed_convolutions(faulty: bool) -> Program:
    model = Convolutions(15, 8)
    return on_digits(model if faulty else he_anew(model), momentum=0.9, lr=0.01)


@repair("rank-collapse", "thirty SiLU layers in a loop, decayed in one of two groups")
def collapsed_loop(faulty: bool) -> Program:
    model = Perceptron(30, F.silu, width=32)
    built = on_digits(model if faulty else he_anew(model))
    built.optimizer = grouped(AdamW, model, lr=1e-3, betas=(0.9, 0.98))
    return built


@repair("rank-collapse", "a table and ten sigmoids called in a loop")
def collapsed_table(faulty: bool) -> Program:
    x, y = data.table("wine", scaled=True)
    model = Perceptron(10, torch.sigmoid if faulty else F.relu, 13, 32, 3)
    return program(model if faulty else he_anew(model), F.cross_entropy, (x, y), 32, SGD, accuracy((x, y)), lr=0.02,
                   momentum=0.9)  # fmt: skip


# symmetry


@repair("symmetric-initialisation", "all weights of four layers in a list are 0.02")
def constant_list(faulty: bool) -> Program:
    model = Perceptron(4, F.gelu)
    if faulty:
        for p in model.parameters():
            nn.init.constant_(p, 0.02)
    return on_digits(model, lr=0.1, momentum=0.9, weight_decay=1e-4, nesterov=True)


@repair("symmetric-initialisation", "all convolutions are zero")
def zero_convolutions(faulty: bool) -> Program:
    model = Convolutions(3)
    if faulty:
        for p in model.parameters():
            nn.init.zeros_(p)
    return on_digits(model, Adam, lr=3e-3)


@repair("symmetric-initialisation", "an LSTM of two layers whose weights are all 0.1")
def constant_lstm(faulty: bool) -> Program:
    model = Rows(nn.LSTM, num_layers=2)
    if faulty:
        for p in model.rnn.parameters():
            nn.init.constant_(p, 0.1)
    return on_digits(model, RMSprop, lr=3e-3, alpha=0.95, momentum=0.5)


@repair("symmetric-initialisation", "a transformer whose matrices are all 0.05", 250)
def constant_transformer(faulty: bool) -> Program:
    model = transformer(2)
    if faulty:
        for p in model.parameters():
            if p.dim() > 1:
                nn.init.constant_(p, 0.05)
    built = on_tokens(model)
    built.optimizer = grouped(AdamW, model, lr=3e-3)
    return built


# scale


@repair("activation-drift", "twelve convolutions with weights a quarter of what they should be", 200)
def fading_convolutions(faulty: bool) -> Program:
    model = he_anew(Convolutions(12, 8))
    if faulty:
        matrices(model, 0.25)
    return on_digits(model, momentum=0.9, lr=0.01)


class Residual(nn.Module):
    """Blocks x + f(x) without norms."""

    def __init__(self, depth: int, scale: float = 1.0) -> None:
        super().__init__()
        self.fcs = nn.ModuleList([nn.Linear(64, 64) for _ in range(depth)])
        self.head, self.scale = nn.Linear(64, 10), scale

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for fc in self.fcs:
            x = x + self.scale * torch.relu(fc(x))
        outputs: Tensor = self.head(x)
        return outputs


@repair("activation-drift", "thirty residual blocks, each of which doubles its inputs")
def growing_blocks(faulty: bool) -> Program:
    model = he_anew(Residual(30))
    matrices(model, 1.0 if faulty else 0.1)
    return on_digits(model, momentum=0.9, lr=0.01)


@repair("bad-initialisation", "an LSTM with weights drawn from N(0, 5)")
def loud_lstm(faulty: bool) -> Program:
    model = Rows(nn.LSTM)
    if faulty:
        for p in model.parameters():
            nn.init.normal_(p, 0, 5)
    return on_digits(model, lr=0.1, momentum=0.9)


@repair("bad-initialisation", "convolutions drawn from N(0, 1)", 300)
def unit_convolutions(faulty: bool) -> Program:
    model = Convolutions(3)
    if faulty:
        for module in model.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.normal_(module.weight)
    return on_digits(model, lr=0.01, momentum=0.9)


@repair("bad-initialisation", "a head with weights of N(0, 30) on a transformer", 250)
def loud_head(faulty: bool) -> Program:
    model = transformer(1)
    if faulty:
        nn.init.normal_(model.head.weight, 0, 30)
    return on_tokens(model, SGD, lr=0.05, momentum=0.9)


@repair("weight-domination", "convolutions a thousand times too large in front of their BatchNorms", 150)
def dominating_convolutions(faulty: bool) -> Program:
    model = Convolutions(8, 6, norm=nn.BatchNorm2d)
    if faulty:
        with torch.no_grad():
            for conv in [model.stem, *model.convs]:
                conv.weight *= 1000
    return on_digits(model, lr=0.02, momentum=0.9)


class Normed(nn.Module):
    """Linear layers and the function layer_norm after each."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3, self.out = (nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 64),
                                                  nn.Linear(64, 10))  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for layer in (self.fc1, self.fc2, self.fc3):
            x = torch.relu(F.layer_norm(layer(x), (64,)))
        outputs: Tensor = self.out(x)
        return outputs


@repair("weight-domination", "weights that have grown a thousand times too large in front of layer_norm", 300)
def dominating_layers(faulty: bool) -> Program:
    model = Normed()
    if faulty:
        with torch.no_grad():
            for layer in (model.fc1, model.fc2, model.fc3):
                layer.weight *= 1000
        nn.init.zeros_(model.out.weight)
    return on_digits(model, lr=0.02)


# units


@repair("dying-neurons", "convolutions with biases of −10", 300)
def dead_convolutions(faulty: bool) -> Program:
    model = Convolutions(3)
    if faulty:
        biased(model, -10.0)
    return on_digits(model, momentum=0.9, lr=0.02)


@repair("dying-neurons", "BatchNorms with shifts of −8")
def dead_norms(faulty: bool) -> Program:
    model = Convolutions(2, norm=nn.BatchNorm2d)
    if faulty:
        for norm in model.norms:
            nn.init.constant_(norm.bias, -8.0)
    return on_digits(model, Adam)


@repair("dying-neurons", "a table of 30 columns and biases of −20, with a group of its own for the head")
def dead_table(faulty: bool) -> Program:
    x, y = data.table("breast_cancer", scaled=True)
    model = Perceptron(2, F.relu, 30, 32, 2)
    if faulty:
        biased(model, -20.0)
    built = program(model, F.cross_entropy, (x, y), 32, SGD, accuracy((x, y)), lr=0.05)
    built.optimizer = SGD([{"params": model.layers.parameters()}, {"params": model.out.parameters(), "lr": 0.1}],
                          lr=0.05, momentum=0.9)  # fmt: skip
    return built


@repair("full-neurons", "rings, and biases of 15 in a list of layers")
def full_list(faulty: bool) -> Program:
    rings = data.circles()
    model = Perceptron(2, F.relu, 2, 32, 2)
    if faulty:
        biased(model, 15.0)
    return program(model, F.cross_entropy, rings, 32, SGD, accuracy(rings), lr=0.05)


@repair("full-neurons", "rings, and a BatchNorm whose shifts of 10 turn every ReLU on")
def full_norms(faulty: bool) -> Program:
    rings = data.circles()
    model = nn.Sequential(nn.Linear(2, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2))
    if faulty:
        nn.init.constant_(model[1].bias, 10.0)
    return program(model, F.cross_entropy, rings, 32, SGD, accuracy(rings), lr=0.02, momentum=0.5)


@repair("saturated-activation", "tanh called in forward, after weights thirty times too large")
def flat_function(faulty: bool) -> Program:
    model = Perceptron(4, torch.tanh)
    if faulty:
        with torch.no_grad():
            for layer in model.layers:
                layer.weight *= 30
    return on_digits(model, momentum=0.9, lr=0.02)


@repair("saturated-activation", "convolutions with hardtanh and biases of 6", 300)
def flat_convolutions(faulty: bool) -> Program:
    model = Convolutions(3, function=torch.tanh)
    if faulty:
        biased(model, 6.0)
    return on_digits(model, Adam)


@repair("saturated-activation", "a regression by sigmoids whose weights are drawn from N(0, 20)")
def flat_regression(faulty: bool) -> Program:
    x, y = data.houses(scaled=True)
    model = Perceptron(2, torch.sigmoid, 3, 32, 1)
    if faulty:
        for layer in model.layers:
            nn.init.normal_(layer.weight, 0, 20)
    return program(model, F.mse_loss, (x, y), 32, Adam, r2((x, y)), lr=1e-2)


# gradients


@repair("exploding-gradient", "a loop over a recurrent layer whose weight has a norm of 3", 200)
def loud_loop(faulty: bool) -> Program:
    x, y = data.first_value(512, 25)
    model = Cell(2, 32, 2)
    if faulty:
        with torch.no_grad():
            model.recurrent.weight *= 3
    return program(model, F.cross_entropy, (x, y), 32, SGD, accuracy((x, y)), lr=0.05, momentum=0.9)


@repair("exploding-gradient", "an RNN with ReLUs over rows, and recurrent weights of norm 6")
def loud_relus(faulty: bool) -> Program:
    model = Rows(nn.RNN, nonlinearity="relu")
    nn.init.orthogonal_(model.rnn.weight_hh_l0)
    if faulty:
        with torch.no_grad():
            model.rnn.weight_hh_l0 *= 6
    return on_digits(model, lr=0.02)


@repair("exploding-gradient", "sixteen residual blocks with weights three times too large")
def loud_blocks(faulty: bool) -> Program:
    model = Residual(16)
    if faulty:
        matrices(model, 3.0)
    return on_digits(model, lr=0.01, momentum=0.9)


@repair("vanishing-gradient", "six sigmoids called in forward")
def fading_functions(faulty: bool) -> Program:
    return on_digits(Perceptron(6, torch.sigmoid if faulty else F.relu), momentum=0.9, lr=0.05)


@repair("vanishing-gradient", "an LSTM whose forget gates are shut, over sixty steps", 150)
def shut_gates(faulty: bool) -> Program:
    x, y = data.first_value(256, 60)
    model = _Sequence(32)
    with torch.no_grad():
        model.rnn.bias_hh_l0[32:64] = -4.0 if faulty else 4.0
    return program(model, F.cross_entropy, (x, y), 32, Adam, accuracy((x, y)), lr=1e-2)


class _Sequence(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(2, width, batch_first=True), nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.rnn(x)[1][0][-1])
        return outputs


@repair("vanishing-gradient", "a loop over a recurrent layer with small weights, for thirty steps", 200)
def fading_loop(faulty: bool) -> Program:
    x, y = data.first_value(512, 30)
    model = Cell(2, 32, 2)
    if faulty:
        with torch.no_grad():
            model.recurrent.weight *= 0.3
    return program(model, F.cross_entropy, (x, y), 32, Adam, accuracy((x, y)), lr=3e-3)


@repair("vanishing-gradient", "twelve convolutions with tanh and small weights", 250)
def fading_tanh_convolutions(faulty: bool) -> Program:
    model = Convolutions(12, 8, torch.tanh)
    if faulty:
        matrices(model, 0.5)
    else:
        for module in model.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.orthogonal_(module.weight, gain=1.1)
                nn.init.zeros_(module.bias)
    return on_digits(model, Adam)
