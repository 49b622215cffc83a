"""The loss of the best constant prediction: what a network has to beat to have learned anything from its inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from wellcond.problem.loss.likelihoods import CrossEntropy, Likelihood
from wellcond.problem.loss.losses import Loss

STEPS = 30
"""Of L-BFGS: losses in use are convex in a constant, and a handful of numbers are sought."""
UNBOUNDED = 1e25
"""A loss that a constant can take so far has no least value: that of logits where log-probabilities were meant, say."""


def constant_loss(
    loss: Loss, likelihood: Likelihood | None, outputs: Sequence[Tensor], targets: Sequence[Any]
) -> float | None:
    """The least mean loss over some batches if every example had the same outputs; None where it cannot be had.

    With cross-entropy it is the entropy of the labels' frequencies, with squared error the targets' variance. Other
    losses are minimized over one example's outputs, which stay probabilities where the network's own are. Classes of
    tokens or pixels have the same outputs at every position.

    Args:
        loss: (outputs, targets) → mean loss.
        likelihood: What it is the logarithm of, if that is known.
        outputs: Of every batch, without a graph.
        targets: Of every batch.

    Example:
        >>> y = [torch.tensor([0, 0, 1, 1])]
        >>> round(constant_loss(torch.nn.functional.cross_entropy, None, [torch.zeros(4, 2)], y), 4)    # log 2
        0.6931
    """
    if not all(isinstance(each, Tensor) and each.dim() for each in outputs):
        return None
    shared = [0]
    if isinstance(likelihood, CrossEntropy):
        if not any(each.is_floating_point() for each in targets):
            return _entropy(torch.cat([each[each != likelihood.ignore_index].reshape(-1) for each in targets]))
        shared = [dim for dim in range(outputs[0].dim()) if dim != likelihood.class_dim % outputs[0].dim()]
    form = _form_of(loss, outputs[0], targets[0])
    weights = [len(each) / sum(map(len, outputs)) for each in outputs]
    free = torch.zeros_like(outputs[0].double().mean(shared, keepdim=True))
    if form is _as_it_is and len({each.shape[1:] for each in outputs}) == 1:
        means = (each.double().mean(shared, keepdim=True) for each in outputs)
        free = torch.stack([w * mean for w, mean in zip(weights, means, strict=True)]).sum(0)
        free = free.nan_to_num(0.0, 0.0, 0.0)
    free.requires_grad_()

    def mean_loss() -> Tensor:
        constant = form(free)
        values = [
            w * loss(constant.to(each.dtype).expand_as(each).contiguous(), target).double()
            for w, each, target in zip(weights, outputs, targets, strict=True)
        ]
        total: Tensor = torch.stack(values).sum()
        return total

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = mean_loss()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer = torch.optim.LBFGS([free], max_iter=STEPS, line_search_fn="strong_wolfe")
    try:
        with torch.enable_grad():
            optimizer.step(closure)  # type: ignore[no-untyped-call]
            least = float(mean_loss().detach())
    except Exception:  # a user's loss may take no other outputs than the model's own
        return None
    return least if abs(least) < UNBOUNDED else None


def _entropy(labels: Tensor) -> float | None:
    """Of the labels' frequencies. L-BFGS would be long on its way to the logits of classes that do not occur, −∞."""
    counts = labels.long().bincount().double()
    return float(torch.special.entr(counts / counts.sum()).sum()) if len(labels) else None


def _form_of(loss: Loss, outputs: Tensor, targets: Any) -> Callable[[Tensor], Tensor]:
    """What keeps a constant where the network's outputs are: log-probabilities, probabilities, or any numbers.

    A loss of probabilities refuses negative ones, or is NaN there.
    """
    if outputs.dim() > 1 and torch.allclose(outputs.logsumexp(1), outputs.new_zeros(()), atol=1e-3):
        return _log_softmax
    try:
        takes_any = bool(loss(torch.full_like(outputs, -1.0), targets).isfinite())
    except Exception:  # the user's loss may refuse them in any way
        takes_any = False
    if takes_any:
        return _as_it_is
    is_softmax = outputs.dim() > 1 and torch.allclose(outputs.sum(1), outputs.new_ones(()), atol=1e-3)
    return _softmax if is_softmax else torch.sigmoid


def _as_it_is(free: Tensor) -> Tensor:
    return free


def _softmax(free: Tensor) -> Tensor:
    return free.softmax(1)


def _log_softmax(free: Tensor) -> Tensor:
    return free.log_softmax(1)
