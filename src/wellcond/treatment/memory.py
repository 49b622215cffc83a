"""Memory of a training step: the same on every device, by counting tensors."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from wellcond.network.calling import tensors_in
from wellcond.problem.batches import Batch
from wellcond.training.copy_run import CopyRun


def memory_of_step(run: CopyRun, batch: Batch) -> int:
    """Bytes of weights, buffers, gradients and optimizer state, and of what a forward pass keeps for the backward pass.

    Call it inside `run.training()`, after a step: many optimizers make their state there. It takes a forward pass.
    """
    held: dict[int, int] = {}

    def count(tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            if tensor.layout is torch.strided:
                held[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()

    def keep(tensor: Tensor) -> Tensor:
        count([tensor])
        return tensor

    parameters = list(run.model.parameters())
    count(parameters)
    count(run.model.buffers())
    count(p.grad for p in parameters if p.grad is not None)
    states = tensors_in(list(run.optimizer.state.values()))
    count(tensor for tensor in states if tensor.dim())  # its counters are of torch's default type
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        run.problem.training_loss(len(run.losses), batch)
    return sum(held.values())
