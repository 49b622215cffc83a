"""What a model's outputs are, told by their values and their graph, and what its loss takes them for."""

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

from wellcond.network.graph import is_affine, norms_of_sums, plain, strays_in, tail_of, upstream
from wellcond.problem.loss.likelihoods import Bernoulli, CrossEntropy, Gaussian, Likelihood

LossKind = Literal["cross-entropy", "nll", "kl", "bce", "bce-logits", "squared", "other"]
"""`cross-entropy` and `bce-logits` take logits, `nll` and `kl` log-probabilities, `bce` probabilities."""


@dataclass(frozen=True)
class OutputFacts:
    """One batch's outputs against their targets and their loss.

    Attributes:
        shape: Of the tensor that the loss compares.
        target_shape: Of the targets, if they are one tensor.
        tail: The last operations that made the outputs, last first, up to a product with a weight: `("Softmax",)`.
        tail_dim: The dimension of the last one, where it has one, from the front.
        loss_kind: What the loss takes outputs for.
        loss_operations: All operations of the loss.
        low: The smallest output.
        high: The largest.
        rms: √(mean f²).
        std: Of all outputs.
        variation: E‖f − E f‖² / E‖f‖² over the examples; 0 if the inputs do not matter.
        class_dim: The dimension of the classes, for cross-entropy and negative log-likelihoods.
        classes: How many.
        loss: Its value, which may be NaN; None if it could not be computed.
        best_constant: The loss of the best outputs that are the same for all examples, where it is known.
        reshaped_loss: The loss of the outputs in the shape of the targets, where both shapes differ but hold as many.
        reshaped_perfect_loss: The loss of right outputs in the shape of the targets.
        perfect_loss: The loss of outputs that are right: the targets, or logits far on their side.
        log_low: The smallest number whose logarithm the loss takes; None if it takes none.
        clamped: The share of numbers that the loss clamps before it takes their logarithm; None if it clamps none.
        saturated: The share of examples whose probabilities are all within 1e-3 of 0 or 1, of a classifier.
        accuracy: The share of examples that a classifier gets right.
        is_affine: Whether the outputs are an affine function of the inputs but for the tail, told by the graph.
        post_norms: LayerNorms on the residual stream itself, as in a post-norm transformer.
        strays: Shapes of trainable tensors in the model's graph that are no parameters of it.
        low_target: The smallest target.
        high_target: The largest.
        share_outside: The share of targets outside of what the tail can give.
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
    reshaped_loss: float | None
    reshaped_perfect_loss: float | None
    perfect_loss: float | None
    log_low: float | None
    clamped: float | None
    saturated: float | None
    accuracy: float | None
    is_affine: bool
    post_norms: int
    strays: tuple[tuple[int, ...], ...]
    low_target: float
    high_target: float
    share_outside: float


RANGES = {"Sigmoid": (0.0, 1.0), "Softmax": (0.0, 1.0), "Tanh": (-1.0, 1.0), "Relu": (0.0, math.inf),
          "HardSigmoid": (0.0, 1.0)}  # fmt: skip
"""What an operation can give."""
PRODUCTS = frozenset({"Mm", "Bmm", "Addmm", "Baddbmm", "Mv", "Dot", "CdistForward", "EuclideanDist"})
"""Operations that compare outputs with one another."""
COMPARING = ("BinaryCrossEntropy", "BinaryCrossEntropyWithLogits", "MseLoss", "SmoothL1Loss", "HuberLoss")
"""Losses that take outputs and targets of one shape."""
SURE = 0.01
"""Odds that right logits give to every wrong class; smoothed labels punish smaller ones."""
MARGIN = 0.02
"""Targets that are beyond the range by less than this share of 1 are rounding, or smoothing of labels."""


def output_facts(
    outputs: Tensor,
    targets: Any,
    loss: Tensor | None,
    loss_of: Callable[[Tensor, Any], Tensor],
    known: Iterable[Tensor],
    likelihood: Likelihood | None,
    *,
    is_divergence: bool = False,
) -> OutputFacts:
    """Read what one batch shows.

    Args:
        outputs: What the loss compares, with its graph.
        targets: Of the same batch.
        loss: Its value, with its graph; None if the loss raised.
        loss_of: The loss as a function of other outputs and targets; it may raise.
        known: The parameters of the model, frozen ones too, and other tensors that are known to be differentiated.
        likelihood: What the loss was recognized as, if it was.
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
    number = None if loss is None else float(loss.detach())
    given = None if compared is None else compared.double()
    low, high = RANGES.get(tail[0], (-math.inf, math.inf)) if tail else (-math.inf, math.inf)
    is_paired = given is not None and target is not None and (target.is_floating_point() or given.shape == values.shape)
    outside = 0.0
    if is_paired and given is not None and given.numel():
        outside = float(((given < low - MARGIN) | (given > high + MARGIN)).double().mean())
    dim = None if dim is None else dim if dim >= 0 else dim + outputs.dim()
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
        loss=number,
        best_constant=at.best_constant(),
        reshaped_loss=at.reshaped(),
        reshaped_perfect_loss=at.reshaped_perfect(),
        perfect_loss=at.perfect(),
        log_low=_log_low(nodes),
        clamped=_clamped(nodes),
        saturated=at.saturated(),
        accuracy=at.accuracy(),
        is_affine=is_affine(outputs.grad_fn),
        post_norms=norms_of_sums(outputs.grad_fn),
        strays=strays_in(outputs, known),
        low_target=float(given.min()) if given is not None and given.numel() else math.nan,
        high_target=float(given.max()) if given is not None and given.numel() else math.nan,
        share_outside=outside,
    )


def _names(nodes: Iterable[Node]) -> frozenset[str]:
    return frozenset(map(plain, nodes))


def _loss_kind(operations: frozenset[str], likelihood: Likelihood | None) -> LossKind:
    if operations & PRODUCTS or "CtcLoss" in operations:
        return "other"  # what it takes for logits is made from outputs, or what it compares them with from targets
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
    """The smallest argument of a logarithm, which autograd keeps for the backward pass."""
    kept = [_kept(node) for node in nodes if plain(node) in ("Log", "Log2", "Log10")]
    return min((float(t.min()) for t in kept if t is not None and t.numel()), default=None)


def _clamped(nodes: set[Node]) -> float | None:
    """The share of values that are clamped, where a logarithm is taken as well."""
    if not any(plain(node) in ("Log", "Log2", "Log10") for node in nodes):
        return None
    shares = []
    for node in nodes:
        values = _kept(node) if plain(node) in ("Clamp", "ClampMin", "ClampMax") else None
        if values is not None and values.numel():
            low, high = (getattr(node, f"_saved_{end}", None) for end in ("min", "max"))
            outside = torch.zeros_like(values, dtype=torch.bool)
            outside = outside if low is None else outside | (values < low)
            outside = outside if high is None else outside | (values > high)
            shares.append(float(outside.double().mean()))
    return max(shares, default=None)


def _compared(nodes: Iterable[Node], target: Tensor) -> Tensor:
    """What the loss compares outputs with, which autograd keeps: it may have been made from the targets."""
    kept = [getattr(node, "_saved_target", None) for node in nodes if plain(node) in COMPARING]
    return kept[0] if len(kept) == 1 and isinstance(kept[0], Tensor) else target


def _same_ends(compared: Tensor, target: Tensor) -> bool:
    """Whether targets are compared as they are: those that are broadcast still have the same smallest and largest."""
    if not target.numel() or not compared.numel():
        return True
    return all(float(getattr(compared, end)()) == float(getattr(target, end)()) for end in ("min", "max"))


def _kept(node: Node) -> Tensor | None:
    """What an operation has kept of its input."""
    try:
        kept = node._saved_self  # type: ignore[attr-defined]
    except (AttributeError, RuntimeError):  # it keeps none, or has been freed
        return None
    return kept.detach() if isinstance(kept, Tensor) else None


def _class_dim(outputs: Tensor, target: Tensor | None, likelihood: Likelihood | None) -> int | None:
    """1, or the last where a loss has flattened (N, T, C), or the model has computed it itself."""
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
    """The loss at other outputs; what it refuses is None."""

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
                warnings.simplefilter("ignore")  # the loss has warned of its own outputs before
                value = float(self.loss_of(outputs, self.targets))
        except Exception:  # a user's loss may refuse other outputs in any way
            return None
        return value if math.isfinite(value) else None

    def best_constant(self) -> float | None:
        """Class frequencies as logits, or the mean of the targets; of these examples."""
        p = self._frequencies()
        if p is not None and self.class_dim is not None:
            shape = [1] * self.outputs.dim()
            shape[self.class_dim] = len(p)
            logits = p.clamp_min(1e-12).log().to(self.outputs.dtype).view(shape)
            found = self.at(logits.expand_as(self.outputs))
            # a model that computes its loss itself takes no other outputs
            return float(torch.special.entr(p).sum()) if found is None else found
        target = self._paired()
        if target is None:
            return None
        mean = target.mean(0, keepdim=True)
        if self.kind == "bce-logits":
            mean = torch.logit(mean.clamp(1e-6, 1 - 1e-6))
        return self.at(mean.expand_as(self.outputs).to(self.outputs.dtype).contiguous())

    def perfect(self) -> float | None:
        """The loss of the right answer."""
        hot = self._one_hot()
        if hot is not None:
            return self.at(hot.clamp_min(SURE).log().to(self.outputs.dtype))
        target = self._paired()
        return None if target is None else self.at(self._right(target))

    def _right(self, target: Tensor) -> Tensor:
        return ((target - 0.5) * 40 if self.kind == "bce-logits" else target).to(self.outputs.dtype)

    def reshaped(self) -> float | None:
        """The loss of [N, 1] outputs as [N], as the targets are: another one than it is, if it was broadcast."""
        target = self._of_other_shape()
        return None if target is None else self.at(self.outputs.reshape(target.shape))

    def reshaped_perfect(self) -> float | None:
        """And of right ones: no larger than in the outputs' own shape, if it was broadcast there."""
        target = self._of_other_shape()
        return None if target is None else self.at(self._right(target.double()))

    def _of_other_shape(self) -> Tensor | None:
        target = self.target
        if target is None or target.shape == self.outputs.shape or target.numel() != self.outputs.numel():
            return None
        return target.detach()

    def probabilities(self) -> Tensor | None:
        """(…, classes) of a classifier."""
        if self.class_dim is not None:
            rows = self.outputs.movedim(self.class_dim, -1).double()
            return rows.softmax(-1)  # of log-probabilities, these are they
        if self.kind in ("bce", "bce-logits"):
            p = self.outputs.double().sigmoid() if self.kind == "bce-logits" else self.outputs.double()
            return p.flatten(1) if p.dim() > 1 else p[:, None]
        return None

    def saturated(self) -> float | None:
        p = self.probabilities()
        if self.tail[:1] in (("Sigmoid",), ("Softmax",)):
            p = self.outputs.double().flatten(1) if self.outputs.dim() > 1 else self.outputs.double()[:, None]
        return None if p is None else float(((p < 1e-3) | (p > 1 - 1e-3)).all(-1).double().mean())

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
        """Of the outputs' shape; zero where a label counts nowhere."""
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
        """The targets in the shape of the outputs, where they hold as many."""
        if self.class_dim is not None or self.target is None or self.target.numel() != self.outputs.numel():
            return None
        return self.target.detach().reshape(self.outputs.shape).double()
