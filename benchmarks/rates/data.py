"""Data of the tasks: real digits, and what is drawn from known sources; mini-batches in a new order each epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from wellcond.problem.digits import digit_images

SYMBOLS, LENGTH = 24, 32


@dataclass
class Shuffled:
    """Mini-batches in a new order on every pass, as a shuffling loader gives them; the last incomplete one is left out.

    Attributes:
        tensors: Inputs and targets.
        size: Of a mini-batch.
        noise: Standard deviation of fresh noise on the inputs: augmentation.
    """

    tensors: tuple[Tensor, ...]
    size: int
    noise: float = 0.0

    def __len__(self) -> int:
        return len(self.tensors[0]) // self.size

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        order = torch.randperm(len(self.tensors[0]))
        for index in order[: len(self) * self.size].split(self.size):
            first, *others = (each[index] for each in self.tensors)
            if self.noise:
                first = first + self.noise * torch.randn_like(first)
            yield (first, *others)


@cache
def digits() -> tuple[Tensor, Tensor]:
    """1797 images, (N, 1, 8, 8), standardized as a whole; and their labels."""
    pixels, labels = digit_images()
    images = pixels.float()
    return ((images - images.mean()) / images.std()).reshape(-1, 1, 8, 8), labels


def images(size: int, noise: float = 0.0, flat: bool = False) -> Shuffled:
    """Digits and their labels."""
    x, y = digits()
    return Shuffled((x.flatten(1) if flat else x, y), size, noise)


def own_images(size: int, noise: float = 0.0) -> Shuffled:
    """Digits in [0, 1] as inputs and as targets."""
    x, _ = digits()
    x = ((x - x.min()) / (x.max() - x.min())).flatten(1)
    return Shuffled((x, x), size, noise)


def real_or_spliced(size: int) -> Shuffled:
    """Digits, and images whose halves are of two different ones; the target tells which."""
    x, _ = digits()
    generator = torch.Generator().manual_seed(1)
    other = x[torch.randperm(len(x), generator=generator)]
    spliced = torch.cat([x[..., :4], other[..., 4:]], -1)
    y = torch.cat([torch.ones(len(x), 1), torch.zeros(len(x), 1)])
    return Shuffled((torch.cat([x, spliced]), y), size, noise=0.2)


@cache
def text() -> Tensor:
    """(4096, LENGTH + 1) symbols of a source in which the last two decide what can follow."""
    generator = torch.Generator().manual_seed(2)
    likely = torch.randn(SYMBOLS, SYMBOLS, SYMBOLS, generator=generator).mul(2.5).softmax(-1)
    drawn = torch.randint(0, SYMBOLS, (4096, 2), generator=generator)
    for _ in range(LENGTH - 1):
        nxt = torch.multinomial(likely[drawn[:, -2], drawn[:, -1]], 1, generator=generator)
        drawn = torch.cat([drawn, nxt], 1)
    return drawn


def sequences(size: int) -> Shuffled:
    """Text, and the same text one symbol later."""
    return Shuffled((text()[:, :-1], text()[:, 1:]), size)


def bags(size: int) -> Shuffled:
    """Pieces of text, and which of two sources they are from: the second is the first one read backwards."""
    forwards = text()[:, :12]
    x = torch.cat([forwards, forwards.flip(1)])
    pairs = x[:, :-1] * SYMBOLS + x[:, 1:]
    y = torch.cat([torch.zeros(len(forwards)), torch.ones(len(forwards))]).long()
    return Shuffled((pairs, y), size)


def teacher(size: int, features: int = 20, noise: float = 0.1) -> Shuffled:
    """A function of two layers with noise on its values, which are standardized."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(4096, features, generator=generator)
    hidden = torch.tanh(x @ torch.randn(features, 16, generator=generator) / features**0.5 * 2)
    y = hidden @ torch.randn(16, 1, generator=generator)
    y = (y - y.mean()) / y.std()
    return Shuffled((x, y + noise * torch.randn(y.shape, generator=generator)), size)


def correlated(size: int, features: int = 50) -> Shuffled:
    """A linear function of features whose variances fall from 1 to 1/1000, with noise."""
    generator = torch.Generator().manual_seed(4)
    scales = torch.logspace(0, -1.5, features)
    x = torch.randn(4096, features, generator=generator) * scales
    y = x @ (torch.randn(features, 1, generator=generator) / scales.sqrt()[:, None])
    y = y / y.std()
    return Shuffled((x, y + 0.3 * torch.randn(y.shape, generator=generator)), size)


def per_symbol(logits: Tensor, symbols: Tensor) -> Tensor:
    """The mean cross-entropy over all positions."""
    return F.cross_entropy(logits.flatten(0, 1), symbols.flatten())


def evidence_bound(outputs: tuple[Tensor, Tensor, Tensor], images: Tensor) -> Tensor:
    """The negative evidence lower bound of a VAE with Bernoulli pixels, per image and pixel."""
    logits, mean, log_variance = outputs
    reconstruction = F.binary_cross_entropy_with_logits(logits, images, reduction="sum")
    divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum()
    return (reconstruction + divergence) / images.numel()


Loss = Callable[..., Tensor]
