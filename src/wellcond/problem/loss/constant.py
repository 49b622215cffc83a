"""The loss of the best constant prediction: what a network has to beat to have learned anything from its inputs."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from wellcond.problem.loss.likelihoods import CrossEntropy, Likelihood
from wellcond.problem.loss.losses import Loss

STEPS = 30
"""Iterations of L-BFGS: losses in use are convex in a constant, which has few entries."""
UNBOUNDED = -1e15
"""A loss that a constant can push below this has no minimum: that of logits in place of log-probabilities, say."""


def constant_loss(
    loss: Loss,
    likelihood: Likelihood | None,
    outputs: Sequence[Tensor],
    targets: Sequence[Any],
    class_dim: int | None = None,
) -> float | None:
    """The least mean loss over some batches if every example had the same outputs; None where it is not known.

    With cross-entropy it is the entropy of the labels' frequencies, with squared error the targets' variance. Other
    losses are minimized over one example's outputs, which stay probabilities where the network's own are. Classes of
    tokens or pixels have the same outputs at every position. A loss with the wrong sign has no minimum.

    Args:
        loss: (outputs, targets) → mean loss.
        likelihood: Likelihood whose negative logarithm it is, if that is known.
        outputs: Outputs of every batch, without a graph.
        targets: Targets of every batch.
        class_dim: Dimension of the outputs that counts classes, where the likelihood is not known. A model that
            computes its own loss takes no other outputs; the entropy of its labels stands for its constant.

    Example:
        >>> y = [torch.tensor([0, 0, 1, 1])]
        >>> round(constant_loss(torch.nn.functional.cross_entropy, None, [torch.zeros(4, 2)], y), 4)    # log 2
        0.6931
    """
    if not all(isinstance(each, Tensor) and each.dim() for each in outputs):
        return None
    if isinstance(likelihood, CrossEntropy):
        class_dim = likelihood.class_dim
        if not any(each.is_floating_point() for each in targets):
            return _entropy(torch.cat([each[each != likelihood.ignore_index].reshape(-1) for each in targets]))
    least = _minimum(loss, outputs, targets, class_dim)
    if least is None:
        return None if class_dim is None else _label_entropy(targets, outputs[0].shape[class_dim])
    return least if UNBOUNDED < least < math.inf else None


def _minimum(loss: Loss, outputs: Sequence[Tensor], targets: Sequence[Any], class_dim: int | None) -> float | None:
    """The minimum over one example's outputs, or over one position's if there are classes; None if the loss raises."""
    dims = outputs[0].dim()
    shared = [0] if class_dim is None else [dim for dim in range(dims) if dim != class_dim % dims]
    form = _form_of(loss, outputs[0], targets[0])
    weights = [len(each) / sum(map(len, outputs)) for each in outputs]
    starts = [torch.zeros_like(outputs[0].double().mean(shared, keepdim=True))]
    if form is _as_it_is:
        means = (_mean(tensors, outputs, weights, shared) for tensors in (outputs, targets))
        starts = [mean for mean in means if mean is not None] or starts

    def mean_loss(free: Tensor) -> Tensor:
        constant = form(free)
        values = [
            w * loss(constant.to(each.dtype).expand_as(each).contiguous(), target).double()
            for w, each, target in zip(weights, outputs, targets, strict=True)
        ]
        total: Tensor = torch.stack(values).sum()
        return total

    try:
        with torch.enable_grad():
            # a loss that clamps is flat at the mean output, but not at the mean target
            free = [start.requires_grad_() for start in starts]  # a loss may refuse outputs without a graph
            return _minimized(mean_loss, min(free, key=lambda start: _or_inf(float(mean_loss(start).detach()))))
    except Exception:  # the user's loss may accept no other outputs than the model's own, and raise anything
        return None


def _mean(
    tensors: Sequence[Any], outputs: Sequence[Tensor], weights: Sequence[float], shared: Sequence[int]
) -> Tensor | None:
    """The mean over examples of tensors in the shape of the outputs; None if they are of another size."""
    if not all(isinstance(t, Tensor) and t.numel() == f.numel() for t, f in zip(tensors, outputs, strict=True)):
        return None
    if len({each.shape[1:] for each in outputs}) > 1:
        return None
    means = [
        w * t.detach().double().reshape(f.shape).mean(list(shared), keepdim=True)
        for w, t, f in zip(weights, tensors, outputs, strict=True)
    ]
    return torch.stack(means).sum(0).nan_to_num(0.0, 0.0, 0.0)


def _minimized(function: Callable[[Tensor], Tensor], free: Tensor) -> float:
    def closure() -> Tensor:
        optimizer.zero_grad()
        value = function(free)
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer = torch.optim.LBFGS([free], max_iter=STEPS, line_search_fn="strong_wolfe")
    optimizer.step(closure)  # type: ignore[no-untyped-call]
    return float(function(free).detach())


def _or_inf(value: float) -> float:
    return value if math.isfinite(value) else math.inf


def _label_entropy(targets: Sequence[Any], classes: int) -> float | None:
    """Entropy of class indices; None if the targets are something else."""
    if not all(isinstance(each, Tensor) and not each.is_floating_point() for each in targets):
        return None
    labels = torch.cat([each.reshape(-1) for each in targets])
    return _entropy(labels[(labels >= 0) & (labels < classes)])


def _entropy(labels: Tensor) -> float | None:
    """Entropy of the labels' frequencies. L-BFGS would take long to reach −∞, the logit of a class that is absent."""
    counts = labels.long().bincount().double()
    return float(torch.special.entr(counts / counts.sum()).sum()) if len(labels) else None


def _form_of(loss: Loss, outputs: Tensor, targets: Any) -> Callable[[Tensor], Tensor]:
    """The map that makes any numbers outputs of the network's form: log-probabilities, probabilities, or themselves.

    A loss of probabilities refuses negative ones, or is NaN there.
    """
    dims = [dim for dim in range(1, outputs.dim()) if outputs.shape[dim] > 1]
    for dim in dims:
        if torch.allclose(outputs.logsumexp(dim), outputs.new_zeros(()), atol=1e-3):
            return functools.partial(torch.log_softmax, dim=dim)
    try:
        with torch.no_grad():  # with a graph, a problem refuses a loss that depends on no parameter
            takes_any = bool(loss(torch.full_like(outputs, -1.0), targets).isfinite())
    except Exception:  # the user's loss may refuse them in any way
        takes_any = False
    if takes_any:
        return _as_it_is
    for dim in dims:
        if torch.allclose(outputs.sum(dim), outputs.new_ones(()), atol=1e-3):
            return functools.partial(torch.softmax, dim=dim)
    return torch.sigmoid


def _as_it_is(free: Tensor) -> Tensor:
    return free
