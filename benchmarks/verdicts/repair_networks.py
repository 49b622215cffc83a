"""Networks as people write them, with functions called in `forward`, to paste remedies into."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import AdamW, Optimizer

from benchmarks.verdicts import data
from benchmarks.verdicts.case import Program, accuracy, program

Function = Callable[[Tensor], Tensor]


class Perceptron(nn.Module):
    """Layers in a list, and a function that is called after each of them."""

    def __init__(self, depth: int, function: Function = F.relu, inputs: int = 64, width: int = 64, outputs: int = 10):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width if i else inputs, width) for i in range(depth)])
        self.out = nn.Linear(width, outputs)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for layer in self.layers:
            x = self.function(layer(x))
        outputs: Tensor = self.out(x)
        return outputs


class Convolutions(nn.Module):
    """A strided stem, more convolutions of the same width, and a linear layer, on digits of 8×8."""

    def __init__(self, depth: int = 2, width: int = 12, function: Function = F.relu, norm: Any = None) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, stride=2, padding=1)
        self.convs = nn.ModuleList([nn.Conv2d(width, width, 3, padding=1) for _ in range(depth - 1)])
        self.norms = nn.ModuleList([nn.Identity() if norm is None else norm(width) for _ in range(depth)])
        self.fc = nn.Linear(16 * width, 10)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        for conv, norm in zip([self.stem, *self.convs], self.norms, strict=True):
            x = self.function(norm(conv(x)))
        outputs: Tensor = self.fc(x.flatten(1))
        return outputs


class Rows(nn.Module):
    """A recurrent network over the rows of a digit, which reads its label off the last state."""

    def __init__(self, kind: type[nn.RNNBase] = nn.LSTM, width: int = 32, **options: Any) -> None:
        super().__init__()
        self.rnn = kind(8, width, batch_first=True, **options)
        self.fc = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.fc(self.rnn(x.squeeze(1))[0][:, -1])
        return outputs


class Cell(nn.Module):
    """A recurrent network that is a loop over two linear layers; it reads its outputs off the last state."""

    def __init__(self, inputs: int, width: int, outputs: int, function: Function = torch.tanh) -> None:
        super().__init__()
        self.inward, self.recurrent = nn.Linear(inputs, width), nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, outputs)
        nn.init.orthogonal_(self.recurrent.weight)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(len(x), self.recurrent.in_features)
        for step in x.unbind(1):
            state = self.function(self.inward(step) + self.recurrent(state))
        outputs: Tensor = self.out(state)
        return outputs


class Attention(nn.Module):
    """Attention of four heads by einsum."""

    def __init__(self, width: int, scale: float) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (4, -1)) for layer in (self.q, self.k, self.v))
        weights = (torch.einsum("bihd,bjhd->bhij", q, k) * self.scale).softmax(-1)
        outputs: Tensor = self.o(torch.einsum("bhij,bjhd->bihd", weights, v).flatten(2))
        return outputs


class Block(nn.Module):
    """Attention and a feed-forward layer with a residual path around each, and norms before or after them."""

    def __init__(self, attention: nn.Module, width: int, *, prenorm: bool) -> None:
        super().__init__()
        self.attention, self.up, self.down = attention, nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.prenorm = prenorm

    def forward(self, x: Tensor) -> Tensor:
        if self.prenorm:
            x = x + self.attention(self.norm1(x))
            return x + self._forward(self.norm2(x))
        x = self.norm1(x + self.attention(x))
        outputs: Tensor = self.norm2(x + self._forward(x))
        return outputs

    def _forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.down(F.gelu(self.up(x)))
        return outputs


class Tokens(nn.Module):
    """Blocks over the tokens of `data.marked_tokens`; the label is read off the first of them."""

    def __init__(self, blocks: Sequence[nn.Module], width: int = 32, vocabulary: int = 16, outputs: int = 8) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(0.02 * torch.randn(10, width))
        self.blocks, self.norm, self.head = nn.ModuleList(blocks), nn.LayerNorm(width), nn.Linear(width, outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.positions
        for block in self.blocks:
            x = block(x)
        outputs: Tensor = self.head(self.norm(x)[:, 0])
        return outputs


def transformer(depth: int = 1, width: int = 32, scale: float = 0.35, *, prenorm: bool = True) -> Tokens:
    """Own blocks with own attention; 0.35 is 1/√8, right for four heads of eight."""
    return Tokens([Block(Attention(width, scale), width, prenorm=prenorm) for _ in range(depth)], width)


def on_tokens(model: nn.Module, make: Any = AdamW, batch: int = 64, **options: Any) -> Program:
    """A program that trains it on marked tokens."""
    tokens = data.marked_tokens()
    return program(model, F.cross_entropy, tokens, batch, make, accuracy(tokens), **{"lr": 3e-3} | options)


def grouped(make: Callable[..., Optimizer], model: nn.Module, decay: float = 0.01, **options: Any) -> Optimizer:
    """Weights in a group with decay, and biases and norms in one without."""
    matrices, vectors = ([p for p in model.parameters() if (p.dim() > 1) == is_matrix] for is_matrix in (True, False))
    return make([{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}], **options)
