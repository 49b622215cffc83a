"""What a loss means: how many terms its mean has, and the likelihood it is the logarithm of.

A loss is recognised by its values, not by its name: `nn.CrossEntropyLoss()`, `F.cross_entropy` and a user's
own lambda around either are the same function, and are told so by one evaluation on the network's outputs.

Legend: N examples (dimension 0 of the outputs), C classes or outputs, one *term* is one summand of the mean
(an example, or a token of a sequence), r the square-root factors of a term.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from wellcond.errors import InvalidProblem

Loss = Callable[[Any, Any], Tensor]


class Likelihood(ABC):
    """p(y | outputs) with per-term loss ℓ = −log p, up to a constant and, for Bernoulli, a temperature.

    Every likelihood here is an exponential family in its natural parameter, so that the exact Fisher matrix in
    the outputs, E_y[∇ℓ ∇ℓᵀ], is `fisher_over_ggn` times the Hessian of the loss in the outputs.
    """

    fisher_over_ggn: float = 1.0

    # must define

    @abstractmethod
    def terms(self, outputs: Tensor, targets: Any) -> float:
        """Number of summands of the mean (what a batch weighs beside others)."""

    @abstractmethod
    def sample(self, outputs: Tensor, targets: Any, generator: torch.Generator) -> Any:
        """Targets drawn from the model's own prediction, in the form the loss takes them."""

    @abstractmethod
    def fisher_factor(self, outputs: Tensor, targets: Any) -> Tensor:
        """(R, *outputs.shape): for each example n, Σ_r f[r, n] f[r, n]ᵀ = Σ_terms E_y[∇ℓ ∇ℓᵀ]."""

    # may override

    def term_dims(self, outputs: Tensor) -> tuple[int, ...]:
        """The dimensions of the outputs that belong to one term."""
        return tuple(range(1, outputs.dim()))

    def one_term_each(self, fields: Tensor) -> Tensor:
        """(R, *outputs.shape) → (R · terms an example, *outputs.shape), each with a single term left in every example."""
        return fields


@dataclass(frozen=True)
class CrossEntropy(Likelihood):
    """Cross-entropy over class indices or class probabilities, one term a position.

    class_dim: 1 as in `F.cross_entropy`, or −1 for (N, T, C) outputs whose loss flattens the tokens.
    """

    class_dim: int
    ignore_index: int = -100

    def _valid(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Which positions count, of the outputs' shape without the classes."""
        shape = outputs.select(self.class_dim, 0).shape
        if targets.is_floating_point():
            return torch.ones(shape, dtype=torch.bool, device=outputs.device)
        return (targets != self.ignore_index).reshape(shape)

    def term_dims(self, outputs: Tensor) -> tuple[int, ...]:
        return (self.class_dim,)

    def terms(self, outputs: Tensor, targets: Tensor) -> float:
        return float(self._valid(outputs, targets).sum())

    def sample(self, outputs: Tensor, targets: Tensor, generator: torch.Generator) -> Tensor:
        logits = outputs.movedim(self.class_dim, -1)
        probabilities = logits.softmax(-1).flatten(0, -2).cpu()
        drawn = torch.multinomial(probabilities, 1, generator=generator)[:, 0].to(outputs.device)
        drawn = drawn.reshape(logits.shape[:-1])
        if targets.is_floating_point():
            return F.one_hot(drawn, logits.shape[-1]).to(targets.dtype).movedim(-1, self.class_dim)
        return drawn.masked_fill(~self._valid(outputs, targets), self.ignore_index).reshape(targets.shape)

    def fisher_factor(self, outputs: Tensor, targets: Tensor) -> Tensor:
        # diag(q) − q qᵀ = Σ_c q_c (e_c − q)(e_c − q)ᵀ at every position
        q = outputs.detach().movedim(self.class_dim, -1).softmax(-1)
        deviations = torch.eye(q.shape[-1], dtype=q.dtype, device=q.device) - q.unsqueeze(-2)
        fields = q.sqrt().unsqueeze(-1) * deviations * self._valid(outputs, targets)[..., None, None]
        return self.one_term_each(fields.movedim(-2, 0).movedim(-1, self.class_dim % outputs.dim() + 1))

    def one_term_each(self, fields: Tensor) -> Tensor:
        # an example's positions share its parameters but not their labels
        f = fields.movedim(self.class_dim % (fields.dim() - 1) + 1, -1)
        count, n, c = f.shape[0], f.shape[1], f.shape[-1]
        flat = f.reshape(count, n, -1, c)
        positions = flat.shape[2]
        spread = flat.new_zeros(positions, count, n, positions, c)
        index = torch.arange(positions, device=flat.device)
        spread[index, :, :, index] = flat.permute(2, 0, 1, 3)
        spread = spread.reshape(positions * count, *f.shape[1:])
        return spread.movedim(-1, self.class_dim % (fields.dim() - 1) + 1)


@dataclass(frozen=True)
class Gaussian(Likelihood):
    """Squared error, ℓ_n = scale · Σ_c (f_c − y_c)²: a Gaussian of variance 1 / (2·scale)."""

    scale: float

    def terms(self, outputs: Tensor, targets: Any) -> float:
        return float(outputs.shape[0])

    def sample(self, outputs: Tensor, targets: Any, generator: torch.Generator) -> Tensor:
        noise = torch.randn(outputs.shape, generator=generator, dtype=outputs.dtype).to(outputs.device)
        return outputs.detach() + noise * (2 * self.scale) ** -0.5

    def fisher_factor(self, outputs: Tensor, targets: Any) -> Tensor:
        return _diagonal_factor(torch.full_like(outputs.detach(), (2 * self.scale) ** 0.5))


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

    def terms(self, outputs: Tensor, targets: Any) -> float:
        return float(outputs.shape[0])

    def sample(self, outputs: Tensor, targets: Tensor, generator: torch.Generator) -> Tensor:
        return torch.bernoulli(outputs.detach().sigmoid().cpu(), generator=generator).to(targets)

    def fisher_factor(self, outputs: Tensor, targets: Any) -> Tensor:
        p = outputs.detach().sigmoid()
        return _diagonal_factor(self.scale * (p * (1 - p)).sqrt())


def _diagonal_factor(root: Tensor) -> Tensor:
    """(N, *shape) square roots of a diagonal → (R, N, *shape), R = entries an example."""
    flat = root.flatten(1)
    return torch.diag_embed(flat).movedim(1, 0).reshape(flat.shape[1], *root.shape)


def recognise(loss: Loss, loss_at: Loss, outputs: Tensor, targets: Any) -> Likelihood | None:
    """The likelihood whose mean negative logarithm `loss` computes, or None.

    Value and gradient must both agree with the candidate on these outputs. `loss` tells its options, `loss_at`
    is evaluated.
    """
    if not isinstance(targets, Tensor) or outputs.dim() == 0:
        return None
    leaf = outputs.detach().requires_grad_()
    with torch.enable_grad():
        value = loss_at(leaf, targets)
        if not value.requires_grad:
            return None
        (gradient,) = torch.autograd.grad(value, leaf)
    ignore_index = _option(loss, "ignore_index", -100)
    for candidate, function in _candidates(outputs, targets, ignore_index):
        reference_leaf = outputs.detach().requires_grad_()
        with torch.enable_grad():
            reference = function(reference_leaf)
            (reference_gradient,) = torch.autograd.grad(reference, reference_leaf)
        scale = 1.0
        if candidate is not CrossEntropy and float(reference.detach()) > 0:
            scale = float(value.detach() / reference.detach())
        tolerance = 1e3 * torch.finfo(outputs.dtype).eps
        same_value = torch.isclose(value.detach(), scale * reference.detach(), rtol=tolerance, atol=tolerance)
        difference = (gradient - scale * reference_gradient).norm()
        if same_value and difference <= tolerance * gradient.norm() + 1e-30 and gradient.norm() > 0:
            if candidate is CrossEntropy:
                class_dim = -1 if targets.shape == outputs.shape[:-1] or outputs.dim() == 2 else 1
                if targets.is_floating_point():
                    class_dim = 1
                return CrossEntropy(class_dim, ignore_index)
            return candidate(scale)
    return None


def _candidates(outputs: Tensor, targets: Tensor, ignore_index: int) -> Any:
    n = outputs.shape[0]
    cross_entropy = functools.partial(F.cross_entropy, ignore_index=ignore_index)
    if not targets.is_floating_point():
        if outputs.dim() >= 2 and targets.shape == outputs.shape[:-1]:
            yield CrossEntropy, lambda o: cross_entropy(o.flatten(0, -2), targets.flatten())
        elif outputs.dim() >= 2 and targets.shape == outputs.shape[:1] + outputs.shape[2:]:
            yield CrossEntropy, lambda o: cross_entropy(o, targets)
        return
    if targets.shape != outputs.shape:
        return
    if outputs.dim() >= 2 and torch.allclose(targets.sum(1), targets.new_ones(()), atol=1e-4):
        yield CrossEntropy, lambda o: F.cross_entropy(o, targets)
    yield Gaussian, lambda o: F.mse_loss(o, targets, reduction="sum") / n
    if bool((targets >= 0).all() and (targets <= 1).all()):
        yield Bernoulli, lambda o: F.binary_cross_entropy_with_logits(o, targets, reduction="sum") / n


def _option(loss: Loss, name: str, default: Any) -> Any:
    """An option of a loss given as a module or as a `functools.partial`."""
    if isinstance(loss, functools.partial):
        return loss.keywords.get(name, default)
    return getattr(loss, name, default)


def check_targets(loss: Loss, outputs: Any, targets: Any) -> None:
    """Refuse class indices outside the outputs before a GPU kernel aborts on them."""
    is_index = isinstance(targets, Tensor) and not targets.is_floating_point() and targets.dtype != torch.bool
    function = loss.func if isinstance(loss, functools.partial) else loss
    if not (is_index and isinstance(outputs, Tensor) and outputs.dim() >= 2):
        return
    if function is not F.cross_entropy and not isinstance(function, torch.nn.CrossEntropyLoss):
        return
    seen = targets[targets != _option(loss, "ignore_index", -100)]
    classes = outputs.shape[1]
    if seen.numel() and (int(seen.min()) < 0 or int(seen.max()) >= classes):
        raise InvalidProblem(
            f"targets run from {int(seen.min())} to {int(seen.max())}, but the model has {classes} outputs "
            f"(classes 0 to {classes - 1}). Shift the labels, widen the last layer, or set ignore_index."
        )


def check_is_mean(loss: Loss, loss_at: Loss, outputs: Tensor, targets: Any, value: Tensor) -> None:
    """Refuse a loss that sums over the batch: every number here is per example, so its scale would be wrong."""
    if _option(loss, "reduction", "mean") in ("sum", "none"):
        raise InvalidProblem(
            f'the loss has reduction="{_option(loss, "reduction", "")}"; wellcond needs the mean over the batch. '
            'Write reduction="mean".'
        )
    n = outputs.shape[0] if outputs.dim() else 1
    if n < 2 or not isinstance(targets, Tensor) or targets.dim() == 0 or targets.shape[0] != n:
        return
    with torch.no_grad():
        half = n // 2
        first = loss_at(outputs[:half].detach(), targets[:half])
        second = loss_at(outputs[half:].detach(), targets[half:])
    parts = torch.stack([first.detach(), second.detach()])
    as_sum, as_mean = parts.sum(), (parts * parts.new_tensor([half, n - half])).sum() / n
    tolerance = 1e-3 * float(value.detach().abs())
    if float((value.detach() - as_sum).abs()) < tolerance < float((value.detach() - as_mean).abs()):
        raise InvalidProblem(
            "the loss adds up over the batch: its value on two halves sums to its value on the whole. "
            "wellcond needs the mean over the batch: divide by the number of examples."
        )
