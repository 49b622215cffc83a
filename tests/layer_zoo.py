"""One network for every kind of layer, and for every way of using one that a rule could get wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from references import categorical
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from zoo import CLASSES, Case, Mean, Recurrent, Written, integers, normal, seeded

CONVOLUTIONS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "conv1d": (lambda: nn.Conv1d(2, 3, 3, stride=2, padding=1), (2, 6)),
    "conv2d": (lambda: nn.Conv2d(2, 3, (2, 3), stride=(1, 2), padding=(1, 0)), (2, 3, 5)),
    "conv2d_dilated": (lambda: nn.Conv2d(2, 2, 2, dilation=(1, 2), stride=2), (2, 4, 5)),
    "conv2d_grouped": (lambda: nn.Conv2d(4, 6, 2, groups=2, bias=False), (4, 3, 3)),
    "conv2d_depthwise": (lambda: nn.Conv2d(3, 6, 3, groups=3, padding=1), (3, 3, 3)),
    "conv2d_circular": (lambda: nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular"), (2, 3, 4)),
    "conv2d_reflect": (lambda: nn.Conv2d(2, 2, 3, padding=(1, 2), padding_mode="reflect", stride=2), (2, 3, 4)),
    "conv2d_replicate": (lambda: nn.Conv2d(2, 2, 3, padding=1, padding_mode="replicate"), (2, 3, 3)),
    "conv2d_same": (lambda: nn.Conv2d(2, 2, (2, 3), padding="same", dilation=(1, 2)), (2, 3, 5)),
    "conv2d_same_circular": (lambda: nn.Conv2d(1, 2, 2, padding="same", padding_mode="circular"), (1, 3, 3)),
    "conv3d": (lambda: nn.Conv3d(1, 2, 2, stride=(1, 2, 1)), (1, 2, 4, 3)),
    "transposed1d": (lambda: nn.ConvTranspose1d(2, 3, 3, stride=2, padding=1, output_padding=1), (2, 3)),
    "transposed2d": (lambda: nn.ConvTranspose2d(2, 2, (2, 3), stride=(2, 1), padding=(0, 1)), (2, 2, 3)),
    "transposed2d_grouped": (lambda: nn.ConvTranspose2d(4, 2, 2, groups=2, dilation=2, bias=False), (4, 2, 2)),
    "transposed2d_output_padding": (
        lambda: nn.ConvTranspose2d(1, 2, 2, stride=1, dilation=3, padding=1, output_padding=2), (1, 2, 2)
    ),
    "transposed3d": (lambda: nn.ConvTranspose3d(1, 2, (1, 2, 2), stride=(1, 2, 1)), (1, 2, 2, 2)),
}  # fmt: skip
"""Layers with the shape of an example they take."""

EXAMPLES = 4


class Sandwich(nn.Module):
    """before → layer → after, so that a test can take it apart."""

    def __init__(self, layer: nn.Module, shape: tuple[int, ...], before: nn.Module | None = None) -> None:
        super().__init__()
        self.before = before or nn.Identity()
        self.layer = layer
        features = layer(torch.zeros(1, *shape)).numel()
        self.after = nn.Sequential(nn.Tanh(), nn.Flatten(), nn.Linear(features, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.layer(self.before(x)))


def tied_functionally() -> nn.Module:
    """The embedding's weight is the head's too, without a module for it, as small language models write it."""
    return Written(
        lambda m, tokens: m.fc(m.embed(tokens)).tanh().mean(1) @ m.embed.weight.T,
        embed=nn.Embedding(CLASSES, 4),
        fc=nn.Linear(4, 4),
    )


class TiedModules(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.fc, self.head = nn.Embedding(CLASSES, 4), nn.Linear(4, 4), nn.Linear(4, CLASSES, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.fc(self.embed(tokens)).tanh().mean(1))


def called_twice() -> nn.Module:
    return Written(lambda m, x: m.head(m.fc(m.fc(x).tanh()).tanh()), fc=nn.Linear(4, 4), head=nn.Linear(4, CLASSES))


class Standardized(nn.Conv2d):
    """A subclass that uses another weight than the one it owns."""

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight - self.weight.mean((1, 2, 3), keepdim=True), self.bias)


def time_first() -> nn.Module:
    """(T, N, d) inside, with T equal to N."""
    return Written(
        lambda m, x: m.head(m.fc(x.transpose(0, 1)).tanh().transpose(0, 1).mean(1)),
        fc=nn.Linear(2, 3),
        head=nn.Linear(3, CLASSES),
    )


class OwnParameter(nn.Module):
    """A parameter that belongs to no layer, a layer never called, and one frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.unused, self.frozen, self.head = nn.Linear(2, 2), nn.Linear(4, 4), nn.Linear(4, CLASSES)
        self.frozen.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((self.scale * self.frozen(x)).tanh())


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm, self.head = nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        inside = checkpoint(
            lambda x: F.dropout(self.norm(self.fc(x)), 0.5, self.training).tanh(), x, use_reentrant=False
        )
        return self.head(inside)


class CoupledByHand(nn.Module):
    """Batch statistics without a BatchNorm module."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.head = nn.Linear(4, 3), nn.Linear(3, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc(x)
        return self.head(((h - h.mean(0)) / h.std(0)).tanh())


def classified(model: Callable[[], nn.Module], inputs: Any) -> Case:
    return Case(seeded(model), nn.CrossEntropyLoss(), (inputs, integers(CLASSES, EXAMPLES)), categorical(), "running")


def sandwich(name: str) -> Case:
    layer, shape = CONVOLUTIONS[name]
    return classified(lambda: Sandwich(layer(), shape), normal(EXAMPLES, *shape))


def with_embedding(**options: Any) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Embedding(5, 2, **options), nn.Tanh(), nn.Flatten(), nn.Linear(6, CLASSES))


TOKENS = torch.tensor([[0, 1, 4], [2, 2, 0], [3, 0, 0], [1, 4, 1]])

LAYERS: dict[str, Callable[[], Case]] = {
    **{name: (lambda name=name: sandwich(name)) for name in CONVOLUTIONS},
    "tokens": lambda: classified(
        lambda: nn.Sequential(nn.Linear(2, 3), nn.Tanh(), Mean(1), nn.Linear(3, CLASSES)), normal(EXAMPLES, 3, 2)
    ),
    "embedding": lambda: classified(with_embedding(), TOKENS),
    "embedding_padding": lambda: classified(with_embedding(padding_idx=0), TOKENS),
    "embedding_sparse": lambda: classified(with_embedding(sparse=True), TOKENS),
    "tied_modules": lambda: classified(TiedModules, integers(CLASSES, EXAMPLES, 3)),
    "tied_functionally": lambda: classified(tied_functionally, integers(CLASSES, EXAMPLES, 3)),
    "called_twice": lambda: classified(called_twice, normal(EXAMPLES, 4)),
    "overridden_forward": lambda: classified(
        lambda: Sandwich(Standardized(2, 2, 2), (2, 3, 3)), normal(EXAMPLES, 2, 3, 3)
    ),
    "layer_norm": lambda: classified(
        lambda: nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, CLASSES)), normal(EXAMPLES, 4)
    ),
    "group_norm": lambda: classified(
        lambda: Sandwich(nn.Sequential(nn.Conv2d(1, 4, 2), nn.GroupNorm(2, 4)), (1, 3, 3)), normal(EXAMPLES, 1, 3, 3)
    ),
    "prelu": lambda: classified(
        lambda: nn.Sequential(nn.Linear(4, 3), nn.PReLU(3), nn.Linear(3, CLASSES)), normal(EXAMPLES, 4)
    ),
    "gru": lambda: classified(lambda: Recurrent(nn.GRU), normal(EXAMPLES, 3, 2)),
    "rnn": lambda: classified(lambda: Recurrent(nn.RNN), normal(EXAMPLES, 3, 2)),
    "time_first": lambda: classified(time_first, normal(EXAMPLES, EXAMPLES, 2)),
    "own_parameter": lambda: classified(OwnParameter, normal(EXAMPLES, 4)),
    "checkpointed": lambda: classified(Checkpointed, normal(EXAMPLES, 4)),
    "coupled_by_hand": lambda: classified(CoupledByHand, normal(EXAMPLES, 4)),
    "weight_norm": lambda: classified(
        lambda: nn.Sequential(
            nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), nn.Tanh(), nn.Linear(3, CLASSES)
        ), normal(EXAMPLES, 4),
    ),
}  # fmt: skip
