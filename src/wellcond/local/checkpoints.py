"""Gradient checkpoints in a graph: those that can be differentiated in part and twice, and those that cannot."""

from __future__ import annotations

from torch import Tensor

from wellcond.errors import InvalidProblem
from wellcond.network.graph import upstream


def refuse_reentrant_checkpoints(end: Tensor) -> None:
    """`torch.utils.checkpoint` with `use_reentrant=True` hides what it computes from everything but `.backward()`."""
    if any(node.name() == "CheckpointFunctionBackward" for node in upstream([end.grad_fn], None)):
        raise InvalidProblem(
            "the model uses torch.utils.checkpoint with use_reentrant=True, which gives no derivatives in single "
            "tensors and no second ones. Write checkpoint(..., use_reentrant=False)."
        )
