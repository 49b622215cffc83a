"""Likelihoods: the distributions of labels that losses are the logarithms of.

Legend: N examples (dimension 0 of the outputs), C classes or outputs, one *term* is one summand of the mean loss
(an example, or a token of a sequence), r the square-root factors of a term.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


class Fields:
    """Fields over a batch's outputs, each computed when it is read: all at once may not fit into memory.

    >>> fields = Fields(3, lambda r: torch.full((2,), float(r)))
    >>> len(fields), fields[2]
    (3, tensor([2., 2.]))
    """

    def __init__(self, count: int, at: Callable[[int], Tensor]) -> None:
        self._count, self._at = count, at

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, r: int) -> Tensor:
        return self._at(r)

    def __iter__(self) -> Iterator[Tensor]:
        return map(self._at, range(self._count))

    def __truediv__(self, number: float) -> Fields:
        return Fields(self._count, lambda r: self._at(r) / number)


class Likelihood(ABC):
    """p(y | outputs) with per-term loss ℓ = −log p, up to a constant and, for Bernoulli, a temperature.

    Every likelihood here is an exponential family in its natural parameter, so that the exact Fisher matrix in
    the outputs, E_y[∇ℓ ∇ℓᵀ], is `fisher_over_ggn` times the Hessian of the loss in the outputs.
    """

    fisher_over_ggn: float = 1.0

    # must define

    @abstractmethod
    def mean(self, outputs: Tensor, targets: Any) -> Tensor:
        """The loss itself: the mean of ℓ over the terms."""

    @abstractmethod
    def sample(self, outputs: Tensor, targets: Any, generator: torch.Generator) -> Any:
        """Targets drawn from the model's own prediction, in the form the loss takes them."""

    @abstractmethod
    def fisher_factor(self, outputs: Tensor, targets: Any) -> Fields:
        """R fields f of the outputs' shape: for each example n, Σ_r f_rn f_rnᵀ = Σ_terms E_y[∇ℓ ∇ℓᵀ]."""

    # may override

    def terms(self, outputs: Tensor, targets: Any) -> float:
        """Number of summands of the mean, which is the weight of a batch in the mean over batches."""
        return float(outputs.shape[0])

    def term_dims(self, outputs: Tensor) -> tuple[int, ...]:
        """The dimensions of the outputs that belong to one term."""
        return tuple(range(1, outputs.dim()))


def one_term_each(fields: Fields, term_dims: Sequence[int]) -> Fields:
    """R fields of the outputs' shape → R · terms per example of them, with one term left in every example.

    An example's positions share its parameters but not their labels.
    """
    shape = fields[0].shape
    positions = [dim for dim in range(1, len(shape)) if dim not in {d % len(shape) for d in term_dims}]
    sizes = [shape[dim] for dim in positions]
    if math.prod(sizes) == 1:
        return fields

    def term(index: int) -> Tensor:
        place, r = divmod(index, len(fields))
        field, keep = fields[r], torch.ones((), dtype=torch.bool, device=fields[r].device)
        for dim, size in zip(reversed(positions), reversed(sizes), strict=True):
            place, here = divmod(place, size)
            is_here = torch.arange(size, device=field.device) == here
            keep = keep.to(field.device) & is_here.view(-1, *[1] * (field.dim() - dim - 1))
        return torch.where(keep, field, 0.0)

    return Fields(math.prod(sizes) * len(fields), term)


@dataclass(frozen=True)
class CrossEntropy(Likelihood):
    """Cross-entropy over class indices or class probabilities, one term per position.

    Attributes:
        class_dim: 1 as in `F.cross_entropy`, or −1 for (N, T, C) outputs whose loss flattens the tokens.
        ignore_index: The label whose positions do not count.
    """

    class_dim: int
    ignore_index: int = -100

    def _valid(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Which positions count, of the shape of the logits (…, C) without the classes."""
        if targets.is_floating_point():
            return torch.ones(logits.shape[:-1], dtype=torch.bool, device=logits.device)
        return (targets != self.ignore_index).reshape(logits.shape[:-1])

    def mean(self, outputs: Tensor, targets: Tensor) -> Tensor:
        log_p = outputs.movedim(self.class_dim, -1).log_softmax(-1)
        if targets.is_floating_point():
            return -(targets.movedim(self.class_dim, -1) * log_p).sum(-1).mean()
        valid = self._valid(log_p, targets)
        # a GPU aborts on an index out of range, as ignored ones are
        index = targets.reshape(valid.shape).clamp(0, log_p.shape[-1] - 1).long()
        return -log_p.gather(-1, index.unsqueeze(-1)).squeeze(-1)[valid].mean()

    def term_dims(self, outputs: Tensor) -> tuple[int, ...]:
        return (self.class_dim % outputs.dim(),)

    def terms(self, outputs: Tensor, targets: Tensor) -> float:
        return float(self.counts(outputs, targets).sum())

    def counts(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """(N,): the positions of each example that count."""
        return self._valid(outputs.movedim(self.class_dim, -1), targets).reshape(len(outputs), -1).sum(1)

    def sample(self, outputs: Tensor, targets: Tensor, generator: torch.Generator) -> Tensor:
        logits = outputs.detach().movedim(self.class_dim, -1)
        probabilities = logits.softmax(-1).flatten(0, -2).cpu()
        drawn = torch.multinomial(probabilities, 1, generator=generator)[:, 0].to(outputs.device)
        drawn = drawn.reshape(logits.shape[:-1])
        if targets.is_floating_point():
            return F.one_hot(drawn, logits.shape[-1]).to(targets.dtype).movedim(-1, self.class_dim)
        drawn = drawn.masked_fill(~self._valid(logits, targets), self.ignore_index)
        return drawn.reshape(targets.shape).to(targets.dtype)

    def fisher_factor(self, outputs: Tensor, targets: Tensor) -> Fields:
        # diag(q) − q qᵀ = Σ_c q_c (e_c − q)(e_c − q)ᵀ at every position
        q = outputs.detach().movedim(self.class_dim, -1).softmax(-1)
        valid = self._valid(q, targets)

        def label(c: int) -> Tensor:
            field = -q
            field[..., c] += 1
            return (field * (q[..., c].sqrt() * valid).unsqueeze(-1)).movedim(-1, self.class_dim)

        return one_term_each(Fields(q.shape[-1], label), (self.class_dim,))


@dataclass(frozen=True)
class Gaussian(Likelihood):
    """Squared error, ℓ_n = scale · Σ_c (f_c − y_c)²: a Gaussian of variance 1 / (2·scale)."""

    scale: float

    def mean(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.scale * (outputs - targets).square().sum() / len(outputs)

    def sample(self, outputs: Tensor, targets: Any, generator: torch.Generator) -> Tensor:
        noise = torch.randn(outputs.shape, generator=generator, dtype=outputs.dtype, device="cpu").to(outputs.device)
        return outputs.detach() + noise * math.sqrt(0.5 / self.scale)

    def fisher_factor(self, outputs: Tensor, targets: Any) -> Fields:
        return _diagonal_factor(torch.full_like(outputs.detach(), math.sqrt(2 * self.scale)))


@dataclass(frozen=True)
class Bernoulli(Likelihood):
    """Binary cross-entropy with logits, ℓ_n = scale · Σ_c bce(f_c, y_c), independent labels y_c ~ σ(f_c).

    With `reduction="mean"` over C outputs, scale is 1/C, so ∇ℓ carries 1/C and the Fisher matrix 1/C²:
    it is 1/C times the GGN. One output, or a sum over outputs, makes the two equal.
    """

    scale: float

    @property
    def fisher_over_ggn(self) -> float:  # type: ignore[override]
        return self.scale

    def mean(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.scale * F.binary_cross_entropy_with_logits(outputs, targets, reduction="sum") / len(outputs)

    def sample(self, outputs: Tensor, targets: Tensor, generator: torch.Generator) -> Tensor:
        return torch.bernoulli(outputs.detach().sigmoid().cpu(), generator=generator).to(targets)

    def fisher_factor(self, outputs: Tensor, targets: Any) -> Fields:
        p = outputs.detach().sigmoid()
        return _diagonal_factor(self.scale * (p * (1 - p)).sqrt())


def _diagonal_factor(root: Tensor) -> Fields:
    """(N, *shape) square roots of a diagonal → a field for each entry of an example."""
    flat = root.reshape(len(root), -1)

    def entry(r: int) -> Tensor:
        field = torch.zeros_like(flat)
        field[:, r] = flat[:, r]
        return field.view_as(root)

    return Fields(flat.shape[1], entry)
