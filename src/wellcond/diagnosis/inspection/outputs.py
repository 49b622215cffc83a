"""What a model's outputs are, by their values and their graph, compared with their targets and their loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from wellcond.diagnosis.inspection.data import wide
from wellcond.diagnosis.inspection.other_outputs import OtherOutputs
from wellcond.network.graph import is_affine, norms_of_sums, tail_of
from wellcond.problem.loss.loss_graph import LossGraph, LossKind


@dataclass(frozen=True)
class OutputFacts:
    """One batch's outputs compared with their targets and their loss.

    Attributes:
        shape: Shape of the tensor that the loss compares with the targets.
        target_shape: Shape of the targets, if they are one tensor.
        tail: Last operations that made the outputs, last first, up to a product with a weight: `("Softmax",)`.
        tail_dim: Dimension of the last operation, if it has one, counted from the front.
        loss_kind: What the loss takes outputs for.
        loss_operations: All operations of the loss.
        low: Smallest output.
        high: Largest output.
        rms: √(mean f²).
        std: Standard deviation of all outputs.
        variation: E‖f − E f‖² / E‖f‖² over the examples; 0 if the inputs do not matter.
        class_dim: Dimension of the classes, for cross-entropy and negative log-likelihoods.
        classes: Number of classes.
        loss: Value of the loss, which may be NaN; None if it could not be computed.
        best_constant: Loss of the best outputs that are the same for all examples (`constant_loss`); None if unknown.
        uninformed_loss: Loss of the class frequencies, or of the mean target, as the answer for every example; None if
            unknown. It is `best_constant` for cross-entropy and squared error, and exists for a loss with a wrong sign.
        uniform_loss: Loss of a classifier that gives every class the same probability: log C, with the loss's own
            weights; None if it is no classifier of logits or log-probabilities.
        loss_at_targets: Loss of outputs that equal the targets, whatever the loss compares; None if the sizes differ.
        reshaped_loss: Loss of the outputs in the shape of the targets, if the shapes differ and the sizes do not.
        reshaped_perfect_loss: Loss of correct outputs in the shape of the targets.
        perfect_loss: Loss of correct outputs: the targets, or logits far on their side.
        flattened_perfect_loss: The same for labels (examples, steps) that are flattened as they lie, next to outputs
            with the steps in front; None for others.
        loss_at_logarithms: Loss of outputs that equal the logarithms of the targets; None if one is negative.
        log_low: Smallest number whose logarithm the loss takes; None if it takes none.
        clamped: Share of numbers that the loss clamps before it takes their logarithm; None if it clamps none.
        saturated: Share of examples whose probabilities are all within 1e-3 of 0 or 1, for a classifier.
        accuracy: Share of examples that a classifier gets right.
        is_affine: Whether the graph shows the outputs, up to the tail, to be an affine function of the inputs.
        post_norms: LayerNorms on the residual stream itself, as in a post-norm transformer.
        low_target: Smallest target.
        high_target: Largest target.
        share_outside: Share of targets outside of the range of the tail.
        variance_outside: Mean square of how far outside they are, over their variance: what no output explains.
        coded_dim: The only dimension that can be that of the classes, by the targets: one that targets of classes do
            not have, or in which targets are one-hot codes.
        normalized_dims: Dimensions over which the outputs, or their exponentials, sum to one.
        share_of_other_sums: Share of the targets, of the same shape, that do not sum to one over these dimensions.
        turned_codes: The shape in which targets of zeros and ones are one-hot codes, if they are in no dimension of
            their own shape: they were reshaped.
    """

    shape: tuple[int, ...]
    target_shape: tuple[int, ...] | None
    tail: tuple[str, ...]
    tail_dim: int | None
    loss_kind: LossKind
    loss_operations: frozenset[str]
    low: float
    high: float
    rms: float
    std: float
    variation: float | None
    class_dim: int | None
    classes: int | None
    loss: float | None
    best_constant: float | None
    uninformed_loss: float | None
    uniform_loss: float | None
    loss_at_targets: float | None
    reshaped_loss: float | None
    reshaped_perfect_loss: float | None
    perfect_loss: float | None
    flattened_perfect_loss: float | None
    loss_at_logarithms: float | None
    log_low: float | None
    clamped: float | None
    saturated: float | None
    accuracy: float | None
    is_affine: bool
    post_norms: int
    low_target: float
    high_target: float
    share_outside: float
    variance_outside: float
    coded_dim: int | None = None
    normalized_dims: frozenset[int] = frozenset()
    share_of_other_sums: float = 0.0
    turned_codes: tuple[int, ...] | None = None


RANGES = {"Sigmoid": (0.0, 1.0), "Softmax": (0.0, 1.0), "Tanh": (-1.0, 1.0), "Relu": (0.0, math.inf),
          "HardSigmoid": (0.0, 1.0)}  # fmt: skip
"""Range of an operation."""
MARGIN = 0.02
"""Targets beyond the range by less than this are rounding errors or smoothed labels."""
ROUNDED_SUM = 1e-2
"""Distance from one of a sum of probabilities that rounding explains, also in bfloat16."""


def output_facts(
    outputs: Tensor,
    targets: Any,
    loss: float | None,
    graph: LossGraph,
    loss_of: Callable[[Tensor, Any], Tensor],
    best_constant: float | None,
) -> OutputFacts:
    """Read the outputs of one batch.

    Args:
        outputs: Tensor that the loss compares with the targets, with its graph.
        targets: Targets of the same batch.
        loss: Value of the loss; None if the loss raised.
        graph: What the loss does with the outputs.
        loss_of: The loss as a function of other outputs and targets; it may raise.
        best_constant: Loss of the best outputs that are the same for all examples.
    """
    tail, dim = tail_of(outputs.grad_fn)
    values = wide(outputs.detach())
    finite = values[values.isfinite()]
    finite = finite if finite.numel() else values.new_zeros(1)
    target, compared, class_dim = graph.target, graph.compared, graph.class_dim
    is_own = compared is not None and target is not None and _same_ends(compared, target)
    at = OtherOutputs(loss_of, outputs.detach(), targets, target if is_own else None, graph.kind, class_dim, tail)
    by_example = values.reshape(len(values), -1)
    total = float(by_example.square().sum())
    references = None if compared is None else wide(compared)
    low, high = RANGES.get(tail[0], (-math.inf, math.inf)) if tail else (-math.inf, math.inf)
    is_outside, variance_outside = torch.zeros(1), 0.0
    if references is not None and target is not None and references.numel():
        is_paired = target.is_floating_point() or references.shape == values.shape
        is_outside = ((references < low - MARGIN) | (references > high + MARGIN)) & is_paired
        beyond = (references - references.clamp(low, high)).square().mean()
        variance_outside = float(beyond / references.var(correction=0)) if bool(is_outside.any()) else 0.0
    dim = None if dim is None else dim if dim >= 0 else dim + outputs.dim()
    normalized = frozenset(dim for dim in range(values.dim()) if is_normalized(values, dim))
    return OutputFacts(
        shape=tuple(outputs.shape),
        target_shape=None if target is None else tuple(target.shape),
        tail=tail,
        tail_dim=dim,
        loss_kind=graph.kind,
        loss_operations=graph.operations,
        low=float(finite.min()),
        high=float(finite.max()),
        rms=float(finite.square().mean().sqrt()),
        std=float(finite.std(correction=0)),
        variation=float((by_example - by_example.mean(0)).square().sum()) / total
        if len(by_example) > 1 and 0 < total < math.inf
        else None,
        class_dim=class_dim,
        classes=None if class_dim is None else outputs.shape[class_dim],
        loss=loss,
        best_constant=best_constant,
        uninformed_loss=at.uninformed(),
        uniform_loss=at.uniform(),
        loss_at_targets=at.at_targets(target),
        reshaped_loss=at.reshaped(),
        reshaped_perfect_loss=at.reshaped_perfect(),
        perfect_loss=at.perfect(),
        flattened_perfect_loss=at.flattened_perfect(),
        loss_at_logarithms=at.at_logarithms(),
        log_low=graph.log_low,
        clamped=graph.clamped,
        saturated=at.saturated(),
        accuracy=at.accuracy(),
        is_affine=is_affine(outputs.grad_fn),
        post_norms=norms_of_sums(outputs.grad_fn),
        low_target=float(references.min()) if references is not None and references.numel() else math.nan,
        high_target=float(references.max()) if references is not None and references.numel() else math.nan,
        share_outside=float(is_outside.double().mean()),
        variance_outside=variance_outside,
        coded_dim=None if target is None else _coded_dim(values, target),
        normalized_dims=normalized,
        share_of_other_sums=0.0 if target is None else _share_of_other_sums(values, target, normalized),
        turned_codes=None if target is None or target.shape != values.shape else _turned_codes(target),
    )


def _coded_dim(outputs: Tensor, target: Tensor) -> int | None:
    dims = range(1, outputs.dim())
    if target.shape == outputs.shape:
        is_code = bool(((target == 0) | (target == 1)).all())
        dims_of_codes = [dim for dim in dims if is_code and bool((target.sum(dim) == 1).all())]
    elif target.is_floating_point() or not target.numel():
        return None
    else:
        sizes, highest = tuple(outputs.shape), int(target.max())
        without = {dim: (*sizes[:dim], *sizes[dim + 1 :]) for dim in dims if highest < sizes[dim]}
        dims_of_codes = [dim for dim, rest in without.items() if rest == tuple(target.shape)]
    return dims_of_codes[0] if len(dims_of_codes) == 1 else None


def _turned_codes(target: Tensor) -> tuple[int, ...] | None:
    """The shape with the classes moved from the front to the end, or back, in which targets are one-hot codes."""
    n, *sizes = target.shape
    if len(sizes) < 2 or not bool(((target == 0) | (target == 1)).all()):
        return None
    front, end = (n, *sizes[1:], sizes[0]), (n, sizes[-1], *sizes[:-1])
    codes = [shape for shape, dim in ((front, -1), (end, 1)) if bool((target.reshape(shape).sum(dim) == 1).all())]
    is_code = any(bool((target.sum(dim) == 1).all()) for dim in range(1, target.dim()))
    return codes[0] if codes and not is_code else None


def is_normalized(outputs: Tensor, dim: int) -> bool:
    """Whether outputs are probabilities, or their logarithms, over a dimension of more than one entry."""
    if outputs.shape[dim] < 2 or not bool(outputs.isfinite().all()):
        return False
    sums = outputs.sum(dim) if bool((outputs >= 0).all()) else outputs.exp().sum(dim)
    return bool(((sums - 1).abs() < ROUNDED_SUM).all())


def _share_of_other_sums(outputs: Tensor, target: Tensor, dims: Iterable[int]) -> float:
    if target.shape != outputs.shape or bool((outputs < 0).any()):
        return 0.0
    sums = [target.double().sum(dim).flatten() for dim in dims if dim > 0]
    return float(((torch.cat(sums) - 1).abs() > MARGIN).double().mean()) if sums else 0.0


def _same_ends(compared: Tensor, target: Tensor) -> bool:
    """Whether targets are compared as they are: broadcasting leaves the smallest and the largest the same."""
    if not target.numel() or not compared.numel():
        return True
    return all(float(getattr(compared, end)()) == float(getattr(target, end)()) for end in ("min", "max"))
