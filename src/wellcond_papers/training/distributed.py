"""Several processes under `torchrun` that train one network, each on its share of every batch."""

from __future__ import annotations

import atexit
import gc
import os
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, distributed, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from wellcond_papers.data.batches import Batches

BATCH_OF_A_PROCESS = """\
on a CPU every process normalizes by the statistics of its own share of the batch, and running statistics are those of
the first process: BatchNorm differs from that in one process. On GPUs it becomes SyncBatchNorm, which does not."""


def join_processes() -> None:
    """Join the other processes, if `torchrun` started this one; each gets its own GPU, if there are any."""
    if distributed.is_available() and distributed.is_torchelastic_launched() and not distributed.is_initialized():
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
        atexit.register(_leave_processes)


def _leave_processes() -> None:
    """Free what holds the connections, and close them, while Python is still there.

    Threads of torch's gloo that outlive the interpreter abort the process (pytorch/pytorch#179291).
    """
    gc.collect()  # a wrapped model is part of a cycle
    distributed.destroy_process_group()


def process_count() -> int:
    """The number of processes that train together."""
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def is_writer() -> bool:
    """Whether this is the process that writes files."""
    return process_count() == 1 or distributed.get_rank() == 0


def shared(model: nn.Module) -> nn.Module:
    """The model with gradients that are averaged over all processes; its BatchNorm layers become SyncBatchNorm."""
    device = next(model.parameters()).device
    if any(isinstance(module, _BatchNorm) for module in model.modules()):
        if device.type == "cuda":
            nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
        else:
            warnings.warn(BATCH_OF_A_PROCESS, stacklevel=3)
    return DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None)


def share_of(batches: Callable[[int], tuple[Tensor, Tensor]], step: int) -> tuple[Tensor, Tensor, float]:
    """This process's examples of a step, and the weight of their mean loss.

    The mean over the processes of weight times mean loss is the mean loss of the joined batch, also where the shares
    are not equally large.
    """
    count, share = process_count(), slice(distributed.get_rank(), None, process_count())
    if isinstance(batches, Batches):
        x, y = batches(step, share)
        return x, y, count * len(y) / batches.size
    x, y = batches(step)
    return x[share], y[share], count * len(y[share]) / len(y)


def mean_over_processes(value: Tensor) -> Tensor:
    """The mean of a tensor over the processes, without a graph."""
    total = value.detach().clone()
    distributed.all_reduce(total)
    return total / process_count()
