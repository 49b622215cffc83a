"""`cross-entropy`: the cross-entropy of logits in place of the logarithm of probabilities."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wellcond.remedies.forward_calls import calls_of, last_call, with_calls_replaced
from wellcond.remedies.loss_probe import first_batch, loss_at
from wellcond.remedies.remedy import remedy
from wellcond.remedies.setup import Setup


@remedy("cross-entropy", "output", rules=("output-loss-mismatch", "non-finite"))
def cross_entropy(setup: Setup) -> Setup | None:
    """Uses the cross-entropy of the logits in place of the logarithm of probabilities, which is infinite at zero.

    Both are −log p of the label: the loss keeps its meaning and its unit.
    """
    outputs, targets = first_batch(setup)
    if not _is_log_of_probabilities(setup, outputs, targets):
        return None
    calls = calls_of(setup)
    last = last_call(calls)
    if last is not None and last.name in ("softmax", "sigmoid", "relu"):
        setup = with_calls_replaced(setup, calls, [last], nn.Identity())
    return setup.with_loss(F.cross_entropy, "loss = nn.functional.cross_entropy")


def _is_log_of_probabilities(setup: Setup, outputs: Any, targets: Any) -> bool:
    """Whether a loss is −log p of the label, at made-up probabilities."""
    is_index = isinstance(targets, Tensor) and not targets.is_floating_point()
    if not is_index or not isinstance(outputs, Tensor) or outputs.dim() != 2 or targets.dim() != 1:
        return False
    p = (4 * torch.arange(outputs.numel(), dtype=torch.float32).sin()).view(outputs.shape).softmax(-1)
    loss = loss_at(setup, p.to(outputs), targets)
    return math.isclose(loss, float(F.nll_loss(p.log(), targets.cpu())), rel_tol=1e-2)
