"""Set-ups of small networks that remedies apply to, one per remedy, and how the arms of `treat` begin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

import wellcond as wc
from wellcond.remedies import REMEDIES, Setup
from wellcond.training.copy_trainer import CopyTrainer

Loss = Callable[[Any, Any], Tensor]
CLASSES, RATE, STEPS = 3, 0.05, 6


def table(scale: float = 1.0, shift: float = 0.0, targets: str = "classes") -> list[tuple[Tensor, Tensor]]:
    """Three batches of eight examples with four features."""
    draw = torch.Generator().manual_seed(0)
    x = shift + scale * torch.randn(24, 4, generator=draw, dtype=torch.float64)
    y = torch.randint(0, CLASSES, (24,), generator=draw)
    if targets == "numbers":
        y = 300 + 50 * x.sum(1, keepdim=True) / scale
    return list(zip(x.split(8), y.split(8), strict=True))


def network(*layers: nn.Module) -> nn.Sequential:
    """Layers in a row, a perceptron by default, in double precision and from seed 0."""
    torch.manual_seed(0)
    layers = layers or (nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, CLASSES))
    for layer in layers:
        if hasattr(layer, "reset_parameters"):
            layer.reset_parameters()
    return nn.Sequential(*layers).double()


def setup(
    model: nn.Module,
    batches: Any = None,
    loss: Loss = F.cross_entropy,
    make: Callable[..., Optimizer] = SGD,
    **settings: Any,
) -> Setup:
    """A set-up whose optimizer is `make(parameters, lr=RATE, **settings)`."""
    optimizer = make(model.parameters(), lr=RATE, **settings)
    return Setup.of(wc.Problem(model, loss, batches or table()), optimizer, steps=40)


def treated(name: str, untreated: Setup) -> Setup:
    """A set-up with a remedy that applies to it."""
    result = REMEDIES[name].apply(untreated)
    assert result is not None
    return result


def start_of_arm(of: Setup, lr: float, seed: int = 0) -> tuple[nn.Module, Optimizer]:
    """The model and the optimizer that an arm of `treat` trains."""
    run = CopyTrainer(of.problem, of.optimizer, of.momentum, before_training=of.before_training).start(lr, seed=seed)
    return run.model, run.optimizer


class Recurrent(nn.Module):
    """An LSTM or a GRU, and a linear layer on its last output."""

    def __init__(self, kind: type[nn.LSTM | nn.GRU] = nn.LSTM) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rnn, self.head = kind(2, 5, batch_first=True), nn.Linear(5, CLASSES)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.rnn(x)[0][:, -1])
        return outputs


def sequences() -> list[tuple[Tensor, Tensor]]:
    x = torch.randn(8, 20, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return [(x, torch.arange(8) % CLASSES)]


def log_loss(p: Tensor, y: Tensor) -> Tensor:
    return -p.log().gather(1, y[:, None]).mean()


def binary() -> list[tuple[Tensor, Tensor]]:
    return [(x, (y[:, None] > 1).double()) for x, y in table()]


def transformer() -> Setup:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    return setup(nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True).double(), [(x, x.flip(1))], F.mse_loss)


def with_loud_attention() -> Setup:
    own = transformer()
    with torch.no_grad():
        own.problem.model.get_parameter("self_attn.in_proj_weight").mul_(20)
    return own


def with_one_layer_twice() -> Setup:
    twice = nn.Linear(4, 4)
    return setup(network(twice, nn.Tanh(), twice, nn.Linear(4, CLASSES)), momentum=0.9, weight_decay=1e-3)


def with_frozen_layer() -> Setup:
    model = network()
    model[0].requires_grad_(False)
    optimizer = SGD(model[2].parameters(), RATE)
    return Setup.of(wc.Problem(model, F.cross_entropy, table()), optimizer)


def with_large_bias() -> Setup:
    model = network(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, CLASSES))
    nn.init.constant_(model[0].bias, 20.0)
    return setup(model)


def normalized_network() -> nn.Sequential:
    return network(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, CLASSES))


def with_shifted_norm() -> Setup:
    model = normalized_network()
    nn.init.constant_(model[1].bias, -8.0)
    return setup(model)


SETUPS: dict[str, Callable[[], Setup]] = {
    "adam": lambda: setup(network()),
    "batchnorm": lambda: setup(network()),
    "bnp": lambda: setup(network()),
    "class-dimension": lambda: setup(network(nn.Linear(4, CLASSES), nn.LogSoftmax(0)), loss=F.nll_loss),
    "clip": lambda: setup(network()),
    "cross-entropy": lambda: setup(network(nn.Linear(4, CLASSES), nn.Softmax(-1)), loss=log_loss),
    "decorrelate-inputs": lambda: setup(network(), table(50.0, 7.0)),
    "fresh-norms": with_shifted_norm,
    "group-norm": lambda: setup(normalized_network()),
    "he-init": lambda: setup(network()),
    "larger-eps": lambda: setup(network(), make=Adam, eps=1e-16),
    "last-bn": lambda: setup(network()),
    "layernorm": lambda: setup(network()),
    "leaky-relu": lambda: setup(network(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, CLASSES))),
    "lecun-init": lambda: setup(network()),
    "less-dropout": lambda: setup(network(nn.Linear(4, 6), nn.Dropout(0.8), nn.Linear(6, CLASSES))),
    "less-weight-decay": lambda: setup(network(), make=AdamW, weight_decay=0.5),
    "logits": lambda: setup(network(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, CLASSES), nn.Softmax(-1))),
    "match-shapes": lambda: setup(
        network(nn.Linear(4, 1)),
        [(x, y.squeeze(1) / 300) for x, y in table(targets="numbers")],
        lambda h, y: (h - y).square().mean(),
    ),
    "no-decay-of-norms": lambda: setup(normalized_network(), make=AdamW, weight_decay=0.5),
    "nonlinearity": lambda: setup(network(nn.Linear(4, 6), nn.Linear(6, CLASSES))),
    "open-gates": lambda: setup(Recurrent(), sequences()),
    "orthogonal-init": lambda: setup(network()),
    "orthogonal-recurrence": lambda: setup(Recurrent(), sequences()),
    "own-layers": with_one_layer_twice,
    "pre-norm": transformer,
    "rate": lambda: setup(network()),
    "relu": lambda: setup(network(nn.Linear(4, 6), nn.Sigmoid(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, CLASSES))),
    "scale-amended": lambda: setup(normalized_network(), momentum=0.9),
    "scale-inputs": lambda: setup(network(), table(50.0, 7.0)),
    "scale-targets": lambda: setup(network(nn.Linear(4, 1)), table(targets="numbers"), F.mse_loss),
    "sgd": lambda: setup(network(), make=Adam),
    "sigmoid-output": lambda: setup(network(nn.Linear(4, 1), nn.ReLU()), binary(), F.binary_cross_entropy),
    "softer-attention": with_loud_attention,
    "unfreeze": with_frozen_layer,
    "unit-signals": lambda: setup(network()),
    "usual-settings": lambda: setup(network(), make=Adam, eps=0.1, betas=(0.95, 0.5), maximize=True),
    "warm-up": lambda: setup(network()),
    "zero-biases": with_large_bias,
    "zero-last": lambda: setup(network()),
}
"""A set-up that each remedy applies to. A new remedy needs one here."""
