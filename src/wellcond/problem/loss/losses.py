"""Losses: which likelihood one is the logarithm of, and whether it is a mean over the batch.

A loss is recognized by its values, not by its name: `nn.CrossEntropyLoss()`, `F.cross_entropy` and a user's own lambda
around either are the same function, which one evaluation on the network's outputs shows.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from wellcond.errors import InvalidProblem
from wellcond.problem.loss.likelihoods import Bernoulli, CrossEntropy, Gaussian, Likelihood
from wellcond.problem.loss.output_batches import OutputBatch, compared_examples, is_one, scaling, tolerance
from wellcond.problem.loss.outputs import Loss as Loss

ADDS_UP = (
    "the loss adds up over the batch: its gradients do not shrink as examples are added. "
    "wellcond needs the mean over the batch: divide by the number of examples."
)
_SUMS_ARE_TAKEN = ContextVar("sums are taken", default=False)


def check_is_loss(loss: Any) -> None:
    """Refuse what cannot be called as `loss(outputs, targets)`: a class without brackets, a name, a number."""
    if isinstance(loss, type):
        raise InvalidProblem(f"loss is the class {loss.__name__}; write {loss.__name__}(), with brackets.")
    if loss is not None and not callable(loss):
        raise InvalidProblem(
            f"loss is a {type(loss).__name__}; write nn.CrossEntropyLoss(), or a function loss(outputs, targets) that "
            "returns a tensor with one number."
        )


def recognize(loss: Loss, loss_at: Loss, outputs: Tensor, targets: Any) -> Likelihood | None:
    """The likelihood whose mean negative logarithm `loss` computes, or None.

    Value and gradient must both agree with the candidate on these outputs, or on their first examples where they are
    very many numbers, as over a vocabulary. `NLLLoss` of log-probabilities is cross-entropy too: they are logits that
    are normalized already.

    Args:
        loss: The user's loss, whose options are read.
        loss_at: The same as a function of the output tensor, which is evaluated.
        outputs: Outputs of one batch.
        targets: Targets of the same batch.
    """
    if not isinstance(targets, Tensor) or outputs.dim() == 0:
        return None
    examples = compared_examples(outputs)
    if examples < len(outputs) and targets.dim() and len(targets) == len(outputs):
        with contextlib.suppress(Exception):  # a loss may count its examples
            known = _recognized(loss, loss_at, outputs[:examples].clone(), targets[:examples])
            # an index that is ignored may be among the others, and a sum has another scale
            if known is None or explains(known, loss_at(outputs.detach(), targets), outputs, targets):
                return known
    return _recognized(loss, loss_at, outputs, targets)


def _recognized(loss: Loss, loss_at: Loss, outputs: Tensor, targets: Tensor) -> Likelihood | None:
    outputs, targets, value, gradient = _in_high_precision(loss_at, outputs, targets)
    if not gradient.any():  # a perfect fit, or saturated outputs: every loss agrees there, so use other outputs
        outputs = torch.arange(outputs.numel(), device=outputs.device).sin().view_as(outputs).to(outputs.dtype)
        try:
            value, gradient = _value_and_gradient(loss_at, outputs, targets)
        except RuntimeError:  # a loss of probabilities refuses other numbers
            return None
    for candidate in _candidates(loss, value, gradient, outputs, targets):
        if gradient.any() and _has(candidate, value, gradient, outputs, targets):
            return candidate
    return None


def agrees(likelihood: Likelihood, loss_at: Loss, outputs: Tensor, targets: Any) -> bool:
    """Whether a loss has the likelihood's value and gradient on this batch too (at equal outputs, values agree)."""
    outputs, targets, value, gradient = _in_high_precision(loss_at, outputs, targets)
    return _has(likelihood, value, gradient, outputs, targets)


def _in_high_precision(loss_at: Loss, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Outputs and targets in float64 if the loss takes them, and its value and gradient there.

    At small outputs losses are nearly equal: in float32 a loss that resembles a cross-entropy would pass for one.
    """
    wide = outputs.detach().double(), targets.double() if targets.is_floating_point() else targets
    try:
        return *wide, *_value_and_gradient(loss_at, *wide)
    except Exception:  # a user's loss with a float32 weight, say, may raise anything
        return outputs, targets, *_value_and_gradient(loss_at, outputs, targets)


def _has(candidate: Likelihood, value: Tensor, gradient: Tensor, outputs: Tensor, targets: Any) -> bool:
    """Whether a likelihood has this value and gradient."""
    own_value, own_gradient = _value_and_gradient(candidate.mean, outputs, targets)
    if not _is_close(value, own_value):
        return False
    difference, negligible = gradient - own_gradient, tolerance(value) * gradient.norm()
    if isinstance(candidate, CrossEntropy) and not difference.norm() <= negligible:
        difference = _seen_by_the_model(difference, outputs, candidate.class_dim)
    return bool(difference.norm() <= negligible)


def _seen_by_the_model(gradient: Tensor, outputs: Tensor, class_dim: int) -> Tensor:
    """The part of a gradient that a model of log-probabilities can follow: Σ_c p_c = 1 rules out steps along p."""
    if not torch.allclose(outputs.logsumexp(class_dim), outputs.new_zeros(()), atol=1e-4):
        return gradient
    p = outputs.softmax(class_dim)
    return gradient - p * ((gradient * p).sum(class_dim, keepdim=True) / (p * p).sum(class_dim, keepdim=True))


def explains(likelihood: Likelihood, value: Tensor, outputs: Tensor, targets: Any) -> bool:
    """Whether `value` is the likelihood's mean loss of these outputs."""
    return _is_close(value.detach(), likelihood.mean(outputs.detach(), targets))


def _candidates(loss: Loss, value: Tensor, gradient: Tensor, outputs: Tensor, targets: Tensor) -> Iterator[Likelihood]:
    is_index = not targets.is_floating_point() and targets.dtype != torch.bool
    is_paired = targets.is_floating_point() and targets.shape == outputs.shape
    for class_dim in {2: [1]}.get(outputs.dim(), [1, -1] if outputs.dim() > 2 else []):
        positions = outputs.select(class_dim, 0).shape
        if is_index and targets.numel() == positions.numel():
            yield CrossEntropy(class_dim, option(loss, "ignore_index", -100))
            # an option inside a lambda cannot be read, but ignored positions have no gradient
            counts = gradient.movedim(class_dim, -1).reshape(targets.numel(), -1).any(1)
            for ignored in sorted(set(targets.reshape(-1)[~counts].tolist()))[:2]:
                yield CrossEntropy(class_dim, ignored)
        elif is_paired and torch.allclose(targets.sum(class_dim), targets.new_ones(()), atol=1e-4):
            yield CrossEntropy(class_dim)
    if not is_paired:
        return
    kinds: list[type[Gaussian] | type[Bernoulli]] = [Gaussian]
    if bool((targets >= 0).all() and (targets <= 1).all()):
        kinds.append(Bernoulli)
    for kind in kinds:
        scale = float(value / kind(1.0).mean(outputs.detach(), targets))
        if 0 < scale < math.inf:
            yield kind(scale)


def _value_and_gradient(loss: Loss, outputs: Tensor, targets: Any) -> tuple[Tensor, Tensor]:
    """Value and gradient of the loss at these outputs; a loss that does not depend on them has gradient zero."""
    leaf = outputs.detach().requires_grad_()
    with torch.enable_grad():
        value = loss(leaf, targets)
        gradient = torch.autograd.grad(value, leaf, allow_unused=True)[0] if value.requires_grad else None
    return value.detach().reshape(()), torch.zeros_like(leaf) if gradient is None else gradient


def _is_close(value: Tensor, own: Tensor) -> bool:
    return math.isclose(float(value), float(own), rel_tol=tolerance(value), abs_tol=tolerance(value))


def option(loss: Loss, name: str, default: Any) -> Any:
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
    seen = targets[targets != option(loss, "ignore_index", -100)]
    classes = outputs.shape[1]
    if seen.numel() and (int(seen.min()) < 0 or int(seen.max()) >= classes):
        raise InvalidProblem(
            f"targets run from {int(seen.min())} to {int(seen.max())}, but the model has {classes} outputs "
            f"(classes 0 to {classes - 1}). Shift the labels, widen the last layer, or set ignore_index."
        )


@contextlib.contextmanager
def sums_taken() -> Iterator[None]:
    """Inside, a loss that sums over a batch is measured as it is: its step is that of the sum, and so is its Hessian.

    Such a loss has no likelihood, and every batch weighs the same in the mean over batches.
    """
    token = _SUMS_ARE_TAKEN.set(True)
    try:
        yield
    finally:
        _SUMS_ARE_TAKEN.reset(token)


def sums_are_taken() -> bool:
    """Whether a loss that sums over a batch is measured as it is, and not refused."""
    return _SUMS_ARE_TAKEN.get()


def check_reduction(loss: Loss) -> None:
    """Refuse a loss whose own `reduction` is not the mean."""
    if option(loss, "reduction", "mean") in ("sum", "none") and not sums_are_taken():
        raise InvalidProblem(
            f'the loss has reduction="{option(loss, "reduction", "")}"; wellcond needs the mean over the batch. '
            'Write reduction="mean".'
        )


def is_taken_sum(batch: OutputBatch, gradients: list[Tensor], part: OutputBatch | None = None) -> bool:
    """Whether a loss sums over the batch, where sums are taken.

    Raises:
        InvalidProblem: It does, and they are not taken: the scale of what is measured per term would be wrong.
    """
    is_sum = adds_up(batch, gradients, part)
    if is_sum and not sums_are_taken():
        raise InvalidProblem(ADDS_UP)
    return is_sum


def adds_up(batch: OutputBatch, gradients: list[Tensor], part: OutputBatch | None = None) -> bool:
    """Whether a loss is a sum over the examples: with some of them twice, the gradients of the others do not shrink.

    False if the loss cannot be called with other examples and is not a plain sum. Over one example, a sum is a mean;
    and where outputs have time steps in front, a loss may be a sum over these and the mean over examples.

    Args:
        batch: Outputs and targets of one batch.
        gradients: Gradients of its loss with respect to the outputs.
        part: Some of its examples, which are counted twice; the first eighth by default.
    """
    if batch.examples == 1 or batch.is_steps_first:
        return False
    part = part or batch.taken(torch.arange(math.ceil(batch.examples / 8), device="cpu"))
    try:
        both = batch.joined(part).gradients()
        alone = part.gradients()
    except Exception:  # a user's loss that takes no other batch may raise anything
        return _is_plain_sum(batch)
    first, second = batch.split(both)
    return all(is_one(scaling(*pair)) for pair in ((first, gradients), (second, alone)))


def _is_plain_sum(batch: OutputBatch) -> bool:
    """Whether a loss that takes no other batch has the gradients of a sum of cross-entropies or squared errors."""
    (outputs, *others) = batch.tensors
    if others or batch.examples < 2:
        return False
    try:
        (at_zero,) = batch.at(torch.zeros_like(outputs)).gradients()
        (at_one,) = batch.at(torch.ones_like(outputs)).gradients()
    except Exception:  # as above
        return False
    if torch.allclose(at_one - at_zero, torch.full_like(outputs, 2.0)):
        return True
    for dim in {1, outputs.dim() - 1} & set(range(1, outputs.dim())):
        rows = at_zero.movedim(dim, -1).reshape(-1, outputs.shape[dim])
        rows = rows[rows.any(-1)]
        residuals = 1.0 / outputs.shape[dim] - rows  # p − e_y at equal logits
        one_hot = residuals.round()
        if len(rows) > 1 and torch.allclose(residuals, one_hot) and bool((one_hot.sum(-1) == 1).all()):
            return True
    return False
