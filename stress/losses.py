"""Random losses, each with its terms written out: loss = Σ w ℓ / Σ w over the terms of a batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stress.models import Draw, logits_of

Likelihood = Literal["categorical", "gaussian", "bernoulli"]


@dataclass(frozen=True)
class Loss:
    """A loss as a user writes it, and what is known of it.

    Attributes:
        name: For the report.
        call: `loss(outputs, targets)`, the mean.
        targets: Logits ↦ targets of one batch.
        terms: (logits, targets) ↦ ℓ of every term, and its weight in the mean.
        likelihood: The distribution that ℓ is the negative logarithm of, if it is of one of the known ones.
    """

    name: str
    call: Any
    targets: Callable[[Tensor], Any]
    terms: Callable[[Tensor, Any], tuple[Tensor, Tensor]]
    likelihood: Likelihood | None = None

    def to(self, device: str) -> None:
        if isinstance(self.call, nn.Module):
            self.call.to(device)


def rows(logits: Tensor) -> Tensor:
    """(terms, C) of (N, C) or (N, T, C)."""
    return logits.reshape(-1, logits.shape[-1])


def indices(draw: Draw, ignored: int | None = None) -> Callable[[Tensor], Tensor]:
    def targets(logits: Tensor) -> Tensor:
        y = torch.randint(0, logits.shape[-1], logits.shape[:-1])
        if ignored is not None:
            y.view(-1)[torch.rand(y.numel()) < 0.4] = ignored
            y.view(-1)[0] = 0
        return y

    return targets


def ones(losses: Tensor) -> tuple[Tensor, Tensor]:
    return losses, torch.ones_like(losses)


def cross_entropy(draw: Draw) -> Loss:
    def call(outputs: Any, y: Tensor) -> Tensor:
        return F.cross_entropy(rows(logits_of(outputs)), y.reshape(-1))

    def terms(o: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return ones(F.cross_entropy(rows(o), y.reshape(-1), reduction="none"))

    return Loss("cross entropy", call, indices(draw), terms, "categorical")


def ignoring(draw: Draw) -> Loss:
    ignored = draw.choice([-100, -1])

    def call(outputs: Any, y: Tensor) -> Tensor:
        return F.cross_entropy(rows(logits_of(outputs)), y.reshape(-1), ignore_index=ignored)

    def terms(o: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        counts = y.reshape(-1) != ignored
        return ones(F.cross_entropy(rows(o)[counts], y.reshape(-1)[counts], reduction="none"))

    return Loss(f"cross entropy, ignore_index {ignored}", call, indices(draw, ignored), terms, "categorical")


def smoothed(draw: Draw) -> Loss:
    ignored = draw.choice([None, -100])

    def call(outputs: Any, y: Tensor) -> Tensor:
        return F.cross_entropy(rows(logits_of(outputs)), y.reshape(-1), label_smoothing=0.1)

    def terms(o: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        counts = y.reshape(-1) != -100
        losses = F.cross_entropy(rows(o)[counts], y.reshape(-1)[counts], reduction="none", label_smoothing=0.1)
        return ones(losses)

    return Loss("label smoothing" + (" ignoring" if ignored else ""), call, indices(draw, ignored), terms)


def weighted(draw: Draw) -> Loss:
    def weights(o: Tensor) -> Tensor:
        return torch.logspace(0, 2, o.shape[-1], dtype=torch.float64, device=o.device).to(o.dtype)

    def call(outputs: Any, y: Tensor) -> Tensor:
        o = logits_of(outputs)
        return F.cross_entropy(rows(o), y.reshape(-1), weight=weights(o))

    def terms(o: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return F.cross_entropy(rows(o), y.reshape(-1), reduction="none"), weights(o)[y.reshape(-1)]

    return Loss("class weights", call, indices(draw), terms)


def focal(draw: Draw) -> Loss:
    def each(o: Tensor, y: Tensor) -> Tensor:
        losses = F.cross_entropy(rows(o), y.reshape(-1), reduction="none")
        return (1 - torch.exp(-losses)) ** 2 * losses

    return Loss(
        "focal",
        lambda outputs, y: each(logits_of(outputs), y).mean(),
        indices(draw),
        lambda o, y: ones(each(o, y)),
    )


def scaled_cross_entropy(draw: Draw) -> Loss:
    factor = 10.0 ** draw.uniform(-30, 30)

    def each(o: Tensor, y: Tensor) -> Tensor:
        return factor * F.cross_entropy(rows(o), y.reshape(-1), reduction="none")

    return Loss(
        f"{factor:.0e} cross entropy",
        lambda outputs, y: factor * F.cross_entropy(rows(logits_of(outputs)), y.reshape(-1)),
        indices(draw),
        lambda o, y: ones(each(o, y)),
    )


def squared(draw: Draw) -> Loss:
    def call(outputs: Any, y: Tensor) -> Tensor:
        return F.mse_loss(logits_of(outputs), y)

    def terms(o: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return ones(((o - y) ** 2).flatten(1).mean(1))

    def targets(logits: Tensor) -> Tensor:  # of the size of the outputs, so that the loss is not all theirs
        return logits + logits.std() * torch.randn(logits.shape, dtype=logits.dtype)

    return Loss("squared error", call, targets, terms, "gaussian")


def binary(draw: Draw) -> Loss:
    def call(outputs: Any, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(logits_of(outputs), y)

    def terms(o: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return ones(F.binary_cross_entropy_with_logits(o, y, reduction="none").flatten(1).mean(1))

    def targets(logits: Tensor) -> Tensor:
        return torch.randint(0, 2, logits.shape).to(logits.dtype)

    return Loss("binary cross entropy", call, targets, terms, "bernoulli")


def custom(draw: Draw) -> Loss:
    """Per example, of all its outputs: no likelihood, smooth, not convex."""

    def each(o: Tensor, y: Tensor) -> Tensor:
        return torch.log1p(((o - y) ** 2).flatten(1).sum(1)) + 0.1 * torch.sin(o.flatten(1).sum(1))

    return Loss(
        "robust",
        lambda outputs, y: each(logits_of(outputs), y).mean(),
        lambda logits: logits + torch.randn(logits.shape, dtype=logits.dtype),
        lambda o, y: ones(each(o, y)),
    )


class Centered(nn.Module):
    """A loss that follows the mean output in a buffer, counts its calls, and uses what it knew before the call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("center", torch.full((1,), 0.3))
        self.calls, self.history = 0, []

    def forward(self, outputs: Any, y: Tensor) -> Tensor:
        o = logits_of(outputs)
        before = self.center.clone()
        self.calls += 1
        self.history.append(self.calls)
        with torch.no_grad():
            self.center.mul_(0.9).add_(0.1 * o.detach().mean().to(self.center))
        return F.cross_entropy(rows(o - before * o.detach().square()), y.reshape(-1))


def stateful(draw: Draw) -> Loss:
    module = Centered()

    def terms(o: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        shifted = o - torch.tensor(0.3).to(o) * o.detach().square()
        return ones(F.cross_entropy(rows(shifted), y.reshape(-1), reduction="none"))

    return Loss("stateful", module, indices(draw), terms)


class Whole:
    """A loss that takes the whole batch only."""

    def __init__(self, examples: int, smoothing: float) -> None:
        self.examples, self.smoothing = examples, smoothing

    def __call__(self, outputs: Any, y: Tensor) -> Tensor:
        o = logits_of(outputs)
        if len(o) != self.examples:
            raise KeyError(f"{len(o)} examples")
        return F.cross_entropy(rows(o), y.reshape(-1), label_smoothing=self.smoothing)


LOSSES: tuple[Callable[[Draw], Loss], ...] = (
    cross_entropy, cross_entropy, cross_entropy, ignoring, smoothed, weighted, focal, scaled_cross_entropy, squared,
    squared, binary, custom, stateful,
)  # fmt: skip


def random_loss(draw: Draw) -> Loss:
    return draw.choice(LOSSES)(draw)
