"""What a loss does with the outputs, read from the graph of its value."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.utils._pytree import tree_leaves

from wellcond.network.graph import plain, upstream
from wellcond.problem.loss.likelihoods import Bernoulli, CrossEntropy, Gaussian, Likelihood

LossKind = Literal["cross-entropy", "nll", "kl", "bce", "bce-logits", "squared", "other"]
"""`cross-entropy` and `bce-logits` take logits, `nll` and `kl` log-probabilities, `bce` probabilities."""
PRODUCTS = frozenset({"Mm", "Bmm", "Addmm", "Baddbmm", "Mv", "Dot", "CdistForward", "EuclideanDist"})
"""Operations that compare outputs with each other."""
COMPARING: dict[str, LossKind] = {"BinaryCrossEntropy": "bce", "BinaryCrossEntropyWithLogits": "bce-logits",
                                  "MseLoss": "squared", "SmoothL1Loss": "squared", "HuberLoss": "squared"}  # fmt: skip
"""Losses that take outputs and targets of one shape."""
NLLS = frozenset({"NllLoss", "NllLoss2D", "NllLossNd"})
"""Losses that take a number for each class, and one label."""


@dataclass(frozen=True)
class LossGraph:
    """What a loss takes outputs for, and what it computes from them.

    Attributes:
        kind: What the loss takes outputs for.
        operations: All operations of the loss.
        class_dim: Dimension of the classes, for cross-entropy and negative log-likelihoods.
        target: First tensor of the targets; None if there is none.
        compared: What outputs are compared with; None without targets. It may have been computed from these.
        log_low: Smallest number whose logarithm the loss takes; None if it takes none.
        clamped: Share of numbers that the loss clamps before it takes their logarithm; None if it clamps none.
    """

    kind: LossKind
    operations: frozenset[str]
    class_dim: int | None
    target: Tensor | None
    compared: Tensor | None
    log_low: float | None
    clamped: float | None

    @classmethod
    def of(
        cls,
        loss: Tensor | None,
        outputs: Tensor,
        targets: Any,
        likelihood: Likelihood | None,
        *,
        is_divergence: bool = False,
    ) -> LossGraph:
        """Read the graph between outputs and their loss.

        Args:
            loss: Value of the loss, with its graph; None if the loss raised.
            outputs: Tensor that the loss compares with the targets, with its graph.
            targets: Targets of the same batch.
            likelihood: Likelihood that the loss was recognized as, if it was.
            is_divergence: Whether the loss is torch's Kullback-Leibler divergence, which takes log-probabilities.

        Example:
            >>> outputs = torch.zeros(4, 3, requires_grad=True) * 2
            >>> targets = torch.tensor([0, 1, 2, 0])
            >>> graph = LossGraph.of(torch.nn.functional.cross_entropy(outputs, targets), outputs, targets, None)
            >>> graph.kind, graph.class_dim
            ('cross-entropy', 1)
        """
        target = next((t for t in tree_leaves(targets) if isinstance(t, Tensor)), None)
        nodes = upstream([None if loss is None else loss.grad_fn], outputs.grad_fn)
        operations = frozenset(map(plain, nodes))
        kind = "kl" if is_divergence else "other" if _is_of_parts(nodes, outputs) else _kind(operations, likelihood)
        return cls(
            kind,
            operations,
            _class_dim(outputs, target, likelihood) if kind in ("cross-entropy", "nll") else None,
            target,
            None if target is None else _compared(nodes, target).detach(),
            _log_low(nodes),
            _clamped(nodes),
        )


def _kind(operations: frozenset[str], likelihood: Likelihood | None) -> LossKind:
    if operations & PRODUCTS or "CtcLoss" in operations:
        return "other"  # its logits are computed from the outputs, or its references from the targets
    if "BinaryCrossEntropyWithLogits" in operations:
        return "bce-logits"
    if "BinaryCrossEntropy" in operations:
        return "bce"
    if operations & NLLS:
        return "cross-entropy" if "LogSoftmax" in operations else "nll"
    if "LogSoftmax" in operations:
        return "cross-entropy"
    if "squared" in map(COMPARING.get, operations):
        return "squared"
    kinds: dict[type, LossKind] = {CrossEntropy: "cross-entropy", Bernoulli: "bce-logits", Gaussian: "squared"}
    return kinds.get(type(likelihood), "other")


def _is_of_parts(nodes: Iterable[Node], outputs: Tensor) -> bool:
    """Whether different losses take different parts of the outputs, as where a class is asked for and a number."""
    kinds = set()
    for node in nodes:
        if (name := plain(node)) in COMPARING or name in NLLS:
            taken = _saved_input(node)
            if taken is not None and taken.numel() < outputs.numel():
                kinds.add(COMPARING.get(name, "nll"))
    return len(kinds) > 1


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
