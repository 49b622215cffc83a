"""What a model's outputs are, by their values and their graph, and what its loss takes them for."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.utils._pytree import tree_leaves

from wellcond.network.graph import is_affine, norms_of_sums, plain, tail_of, upstream
from wellcond.problem.loss.constant import constant_loss
from wellcond.problem.loss.likelihoods import Bernoulli, CrossEntropy, Gaussian, Likelihood

LossKind = Literal["cross-entropy", "nll", "kl", "bce", "bce-logits", "squared", "other"]
"""`cross-entropy` and `bce-logits` take logits, `nll` and `kl` log-probabilities, `bce` probabilities."""


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
        log_low: Smallest number whose logarithm the loss takes; None if it takes none.
        clamped: Share of numbers that the loss clamps before it takes their logarithm; None if it clamps none.
        saturated: Share of examples whose probabilities are all within 1e-3 of 0 or 1, for a classifier.
        accuracy: Share of examples that a classifier gets right.
        is_affine: Whether the graph shows the outputs, up to the tail, to be an affine function of the inputs.
        post_norms: LayerNorms on the residual stream itself, as in a post-norm transformer.
        low_target: Smallest target.
        high_target: Largest target.
        share_outside: Share of targets outside of the range of the tail.
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
    log_low: float | None
    clamped: float | None
    saturated: float | None
    accuracy: float | None
    is_affine: bool
    post_norms: int
    low_target: float
    high_target: float
    share_outside: float
    coded_dim: int | None = None
    normalized_dims: frozenset[int] = frozenset()
    share_of_other_sums: float = 0.0
    turned_codes: tuple[int, ...] | None = None


RANGES = {"Sigmoid": (0.0, 1.0), "Softmax": (0.0, 1.0), "Tanh": (-1.0, 1.0), "Relu": (0.0, math.inf),
          "HardSigmoid": (0.0, 1.0)}  # fmt: skip
"""Range of an operation."""
PRODUCTS = frozenset({"Mm", "Bmm", "Addmm", "Baddbmm", "Mv", "Dot", "CdistForward", "EuclideanDist"})
"""Operations that compare outputs with each other."""
COMPARING = ("BinaryCrossEntropy", "BinaryCrossEntropyWithLogits", "MseLoss", "SmoothL1Loss", "HuberLoss")
"""Losses that take outputs and targets of one shape."""
WRONG_CLASS, WRONG_CLASSES = 0.01, 0.1
"""Odds of every wrong class in correct logits, and of all of them at most; smoothed labels punish smaller ones."""
CORRECT_LOGIT = 20.0
"""|logit| of a correct binary answer."""
MARGIN = 0.02
"""Targets beyond the range by less than this are rounding errors or smoothed labels."""
ROUNDED_SUM = 1e-2
"""Distance from one of a sum of probabilities that rounding explains, also in bfloat16."""
FLAT_PROBABILITY = 1e-3
"""Distance of a saturated probability from 0 or 1."""


def output_facts(
    outputs: Tensor,
    targets: Any,
    loss: Tensor | None,
    loss_of: Callable[[Tensor, Any], Tensor],
    likelihood: Likelihood | None,
    *,
    is_divergence: bool = False,
) -> OutputFacts:
    """Read the outputs of one batch.

    Args:
        outputs: Tensor that the loss compares with the targets, with its graph.
        targets: Targets of the same batch.
        loss: Value of the loss, with its graph; None if the loss raised.
        loss_of: The loss as a function of other outputs and targets; it may raise.
        likelihood: Likelihood that the loss was recognized as, if it was.
        is_divergence: Whether the loss is torch's Kullback-Leibler divergence, which takes log-probabilities.
    """
    tail, dim = tail_of(outputs.grad_fn)
    values = outputs.detach().double()
    finite = values[values.isfinite()]
    finite = finite if finite.numel() else values.new_zeros(1)
    target = next((t for t in tree_leaves(targets) if isinstance(t, Tensor)), None)
    nodes = upstream([None if loss is None else loss.grad_fn], outputs.grad_fn)
    operations = _names(nodes)
    kind = "kl" if is_divergence else _loss_kind(operations, likelihood)
    class_dim = _class_dim(outputs, target, likelihood) if kind in ("cross-entropy", "nll") else None
    compared = None if target is None else _compared(nodes, target).detach()
    is_own = compared is not None and target is not None and _same_ends(compared, target)
    at = _Values(loss_of, outputs.detach(), targets, target if is_own else None, kind, class_dim, tail)
    by_example = values.reshape(len(values), -1)
    total = float(by_example.square().sum())
    references = None if compared is None else compared.double()
    low, high = RANGES.get(tail[0], (-math.inf, math.inf)) if tail else (-math.inf, math.inf)
    is_outside = torch.zeros(1)
    if references is not None and target is not None and references.numel():
        is_paired = target.is_floating_point() or references.shape == values.shape
        is_outside = ((references < low - MARGIN) | (references > high + MARGIN)) & is_paired
    dim = None if dim is None else dim if dim >= 0 else dim + outputs.dim()
    normalized = frozenset(dim for dim in range(values.dim()) if _is_normalized(values, dim))
    return OutputFacts(
        shape=tuple(outputs.shape),
        target_shape=None if target is None else tuple(target.shape),
        tail=tail,
        tail_dim=dim,
        loss_kind=kind,
        loss_operations=operations,
        low=float(finite.min()),
        high=float(finite.max()),
        rms=float(finite.square().mean().sqrt()),
        std=float(finite.std(correction=0)),
        variation=float((by_example - by_example.mean(0)).square().sum()) / total
        if len(by_example) > 1 and 0 < total < math.inf
        else None,
        class_dim=class_dim,
        classes=None if class_dim is None else outputs.shape[class_dim],
        loss=None if loss is None else float(loss.detach()),
        best_constant=at.best_constant(likelihood),
        uninformed_loss=at.uninformed(),
        uniform_loss=at.uniform(),
        loss_at_targets=at.at_targets(target),
        reshaped_loss=at.reshaped(),
        reshaped_perfect_loss=at.reshaped_perfect(),
        perfect_loss=at.perfect(),
        log_low=_log_low(nodes),
        clamped=_clamped(nodes),
        saturated=at.saturated(),
        accuracy=at.accuracy(),
        is_affine=is_affine(outputs.grad_fn),
        post_norms=norms_of_sums(outputs.grad_fn),
        low_target=float(references.min()) if references is not None and references.numel() else math.nan,
        high_target=float(references.max()) if references is not None and references.numel() else math.nan,
        share_outside=float(is_outside.double().mean()),
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


def _is_normalized(outputs: Tensor, dim: int) -> bool:
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


def _names(nodes: Iterable[Node]) -> frozenset[str]:
    return frozenset(map(plain, nodes))


def _loss_kind(operations: frozenset[str], likelihood: Likelihood | None) -> LossKind:
    if operations & PRODUCTS or "CtcLoss" in operations:
        return "other"  # its logits are computed from the outputs, or its references from the targets
    if "BinaryCrossEntropyWithLogits" in operations:
        return "bce-logits"
    if "BinaryCrossEntropy" in operations:
        return "bce"
    if operations & {"NllLoss", "NllLoss2D", "NllLossNd"}:
        return "cross-entropy" if "LogSoftmax" in operations else "nll"
    if "LogSoftmax" in operations:
        return "cross-entropy"
    if operations & {"MseLoss", "SmoothL1Loss", "HuberLoss"}:
        return "squared"
    kinds: dict[type, LossKind] = {CrossEntropy: "cross-entropy", Bernoulli: "bce-logits", Gaussian: "squared"}
    return kinds.get(type(likelihood), "other")


def _log_low(nodes: Iterable[Node]) -> float | None:
    """The smallest argument of a logarithm, which autograd saves for the backward pass."""
    arguments = [_saved_input(node) for node in nodes if plain(node) in ("Log", "Log2", "Log10")]
    return min((float(t.min()) for t in arguments if t is not None and t.numel()), default=None)


def _clamped(nodes: set[Node]) -> float | None:
    """The share of values that are clamped, if a logarithm is taken too."""
    if not any(plain(node) in ("Log", "Log2", "Log10") for node in nodes):
        return None
    shares = []
    for node in nodes:
        values = _saved_input(node) if plain(node) in ("Clamp", "ClampMin", "ClampMax") else None
        if values is not None and values.numel():
            low, high = (getattr(node, f"_saved_{end}", None) for end in ("min", "max"))
            outside = torch.zeros_like(values, dtype=torch.bool)
            outside = outside if low is None else outside | (values < low)
            outside = outside if high is None else outside | (values > high)
            shares.append(float(outside.double().mean()))
    return max(shares, default=None)


def _compared(nodes: Iterable[Node], target: Tensor) -> Tensor:
    """What the loss compares outputs with, which autograd saves: it may have been computed from the targets."""
    saved = [getattr(node, "_saved_target", None) for node in nodes if plain(node) in COMPARING]
    return saved[0] if len(saved) == 1 and isinstance(saved[0], Tensor) else target


def _same_ends(compared: Tensor, target: Tensor) -> bool:
    """Whether targets are compared as they are: broadcasting leaves the smallest and the largest the same."""
    if not target.numel() or not compared.numel():
        return True
    return all(float(getattr(compared, end)()) == float(getattr(target, end)()) for end in ("min", "max"))


def _saved_input(node: Node) -> Tensor | None:
    """The input that an operation has saved for its backward pass."""
    try:
        saved = node._saved_self  # type: ignore[attr-defined]
    except (AttributeError, RuntimeError):  # it saves none, or has been freed
        return None
    return saved.detach() if isinstance(saved, Tensor) else None


def _class_dim(outputs: Tensor, target: Tensor | None, likelihood: Likelihood | None) -> int | None:
    """1, or the last dimension if the loss has flattened (N, T, C) or the model computes the loss itself."""
    if outputs.dim() < 2:
        return None
    if target is None:
        return outputs.dim() - 1
    if isinstance(likelihood, CrossEntropy):
        return likelihood.class_dim % outputs.dim()
    if target.shape == outputs.shape or outputs.dim() == 2:
        return 1
    by_class = outputs.select(1, 0)
    return 1 if target.shape == by_class.shape else outputs.dim() - 1


@dataclass(frozen=True)
class _Values:
    """The loss at other outputs; None where it refuses them."""

    loss_of: Callable[[Tensor, Any], Tensor]
    outputs: Tensor
    targets: Any
    target: Tensor | None
    kind: LossKind
    class_dim: int | None
    tail: tuple[str, ...]

    def at(self, outputs: Tensor) -> float | None:
        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the loss has already warned about the model's own outputs
                value = float(self.loss_of(outputs, self.targets))
        except Exception:  # the user's loss may refuse other outputs in any way
            return None
        return value if math.isfinite(value) else None

    def best_constant(self, likelihood: Likelihood | None) -> float | None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return constant_loss(self.loss_of, likelihood, [self.outputs], [self.targets], self.class_dim)

    def uninformed(self) -> float | None:
        """Class frequencies as logits, or the mean of the targets."""
        p = self._frequencies()
        if p is not None and self.class_dim is not None:
            shape = [1] * self.outputs.dim()
            shape[self.class_dim] = len(p)
            logits = p.clamp_min(1e-12).log().to(self.outputs.dtype).view(shape)
            return self.at(logits.expand_as(self.outputs))
        target = self._paired()
        if target is None:
            return None
        mean = target.mean(0, keepdim=True)
        if self.kind == "bce-logits":
            mean = torch.logit(mean.clamp(1e-6, 1 - 1e-6))
        return self.at(mean.expand_as(self.outputs).to(self.outputs.dtype).contiguous())

    def uniform(self) -> float | None:
        """All classes alike: equal logits, or log-probabilities of −log C."""
        if self.kind not in ("cross-entropy", "nll", "bce-logits"):
            return None
        classes = 1 if self.class_dim is None or self.kind != "nll" else self.outputs.shape[self.class_dim]
        return self.at(torch.full_like(self.outputs, -math.log(classes)))

    def at_targets(self, target: Tensor | None) -> float | None:
        """Outputs that equal the targets as they are in the batch."""
        if target is None or target.numel() != self.outputs.numel():
            return None
        return self.at(target.detach().reshape(self.outputs.shape).to(self.outputs.dtype))

    def perfect(self) -> float | None:
        """The loss of correct outputs."""
        hot = self._one_hot()
        if hot is not None and self.class_dim is not None:
            odds = min(WRONG_CLASS, WRONG_CLASSES / max(hot.shape[self.class_dim] - 1, 1))
            return self.at(hot.clamp_min(odds).log().to(self.outputs.dtype))
        target = self._paired()
        return None if target is None else self.at(self._correct(target))

    def _correct(self, target: Tensor) -> Tensor:
        return ((target - 0.5) * 2 * CORRECT_LOGIT if self.kind == "bce-logits" else target).to(self.outputs.dtype)

    def reshaped(self) -> float | None:
        """The loss of [N, 1] outputs in the shape [N] of the targets; it differs if the loss broadcasts."""
        target = self._of_other_shape()
        return None if target is None else self.at(self.outputs.reshape(target.shape))

    def reshaped_perfect(self) -> float | None:
        """The same of correct outputs; no larger than in the outputs' own shape if the loss broadcasts there."""
        target = self._of_other_shape()
        return None if target is None else self.at(self._correct(target.double()))

    def _of_other_shape(self) -> Tensor | None:
        target = self.target
        if target is None or target.shape == self.outputs.shape or target.numel() != self.outputs.numel():
            return None
        return target.detach()

    def probabilities(self) -> Tensor | None:
        """(…, classes) of a classifier."""
        if self.class_dim is not None:
            rows = self.outputs.movedim(self.class_dim, -1).double()
            return rows.softmax(-1)  # log-probabilities give the probabilities themselves
        if self.kind in ("bce", "bce-logits"):
            p = self.outputs.double().sigmoid() if self.kind == "bce-logits" else self.outputs.double()
            return p.flatten(1) if p.dim() > 1 else p[:, None]
        return None

    def saturated(self) -> float | None:
        p = self.probabilities()
        if self.tail[:1] in (("Sigmoid",), ("Softmax",)):
            p = self.outputs.double().flatten(1) if self.outputs.dim() > 1 else self.outputs.double()[:, None]
        return (
            None if p is None else float(((p < FLAT_PROBABILITY) | (p > 1 - FLAT_PROBABILITY)).all(-1).double().mean())
        )

    def accuracy(self) -> float | None:
        p, hot = self.probabilities(), self._one_hot()
        if p is not None and hot is not None and self.class_dim is not None:
            counts = hot.sum(self.class_dim) > 0
            right = p.argmax(-1) == hot.movedim(self.class_dim, -1).argmax(-1)
            return float(right[counts].double().mean())
        target = self._paired()
        if p is not None and target is not None and self.class_dim is None:
            return float(((p > 0.5) == (target.reshape(p.shape) > 0.5)).double().mean())
        return None

    def _one_hot(self) -> Tensor | None:
        """One-hot labels in the shape of the outputs; zero where a label is ignored."""
        if self.class_dim is None or self.target is None:
            return None
        if self.target.shape == self.outputs.shape:
            return self.target.double()
        shape = self.outputs.movedim(self.class_dim, -1).shape
        if self.target.is_floating_point() or self.target.numel() != math.prod(shape[:-1]):
            return None
        index = self.target.reshape(shape[:-1]).long()
        valid = (index >= 0) & (index < shape[-1])
        hot = torch.nn.functional.one_hot(index.clamp(0, shape[-1] - 1), shape[-1]).double() * valid[..., None]
        return hot.movedim(-1, self.class_dim)

    def _frequencies(self) -> Tensor | None:
        hot = self._one_hot()
        if hot is None or self.class_dim is None:
            return None
        counts = hot.movedim(self.class_dim, -1).flatten(0, -2).sum(0)
        return counts / counts.sum() if float(counts.sum()) > 0 else None

    def _paired(self) -> Tensor | None:
        """The targets in the shape of the outputs, if the sizes agree."""
        if self.class_dim is not None or self.target is None or self.target.numel() != self.outputs.numel():
            return None
        return self.target.detach().reshape(self.outputs.shape).double()
