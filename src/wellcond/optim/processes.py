"""Several processes that train one model, each on its own batches: how they exchange the statistics of layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.join import Joinable, JoinHook
from torch.nn.parallel import DistributedDataParallel

from wellcond.errors import Unsupported
from wellcond.optim.input_statistics import InputStatistics, is_capturing, merged
from wellcond.optim.preconditioned_layer import PreconditionedLayer

NOT_JOINED = """\
the processes may run out of inputs at different times, and BNP does not take part: those that go on would wait for the
statistics of the others. Instead of  with Join([ddp]):  or  with ddp.join():  write

    bnp = BNP(ddp, optimizer)
    with Join([ddp, bnp]):"""

ALONE = """\
a step of several processes cannot be captured in a CUDA graph, since BNP exchanges their statistics through the CPU.
Run it uncaptured, or capture the step of one process."""


class SharedStatistics(Joinable):
    """The statistics of all processes together.

    They are exchanged at the end of the backward passes in which DDP sums gradients. So a process may skip a step
    without making the others wait, and BNP requires nothing that DDP does not. Without DDP, each step exchanges them.

    Args:
        model: The model, perhaps wrapped.
        process_group: The processes, if not those of a DDP-wrapped model.
        layers: The layers by name.
    """

    def __init__(self, model: nn.Module, process_group: Any, layers: dict[str, PreconditionedLayer]) -> None:
        super().__init__()
        inner = getattr(model, "_orig_mod", model)
        self.ddp = inner if isinstance(inner, DistributedDataParallel) else None
        self.process_group: Any = process_group or (None if self.ddp is None else self.ddp.process_group)
        self.layers = layers
        self._exchanged: list[InputStatistics | None] | None = None
        self._backward = -1

    def are_summed(self) -> bool:
        """In a forward pass: whether DDP sums the gradients of its backward pass over all processes."""
        ddp = DistributedDataParallel._active_ddp_module
        if ddp is None:
            return False
        if self.ddp is None:  # the model was wrapped after BNP was created
            self.ddp, self.process_group = ddp, self.process_group or ddp.process_group
        if ddp._join_config.enable and (not self._join_config.enable or self._join_config.is_first_joinable):
            raise Unsupported(NOT_JOINED)
        return bool(ddp.require_backward_grad_sync)

    def exchange_after_backward(self) -> None:
        """In a backward pass: exchange once, when the pass is over."""
        backward = torch._C._current_graph_task_id()
        if backward != self._backward:
            self._backward = backward
            torch.autograd.Variable._execution_engine.queue_callback(self.exchange)

    @torch.no_grad()
    def exchange(self) -> None:
        """Gather the statistics of all processes now.

        Raises:
            Unsupported: A CUDA graph is being captured, in which processes cannot exchange statistics.
        """
        if is_capturing(next(iter(self.layers.values())).weight):
            raise Unsupported(ALONE)
        layers = self.layers.values()
        dtypes = [torch.promote_types(layer.weight.dtype, torch.float32) for layer in layers]
        like = [layer.weight.new_empty(layer.columns, dtype=dtype) for layer, dtype in zip(layers, dtypes, strict=True)]
        self._exchanged = gathered([layer.collected.statistics() for layer in layers], like, self.process_group)

    def forget_exchange(self) -> None:
        """Drop the exchanged statistics, because there are newer ones."""
        self._exchanged = None

    def take(self) -> list[InputStatistics | None]:
        """The statistics that belong to the gradients of every layer; collection starts over."""
        if self.process_group is not None and self._exchanged is None:
            self.exchange()
        taken = [layer.collected.take() for layer in self.layers.values()]
        exchanged, self._exchanged = self._exchanged, None
        return taken if exchanged is None else exchanged

    # the interface of torch's Join

    def join_hook(self, **_options: Any) -> JoinHook:
        """The hook that runs in a process that is out of inputs, while others continue."""
        return ShadowedExchange(self)

    @property
    def join_device(self) -> torch.device:
        """Device on which statistics are exchanged."""
        return next(iter(self.layers.values())).weight.device

    @property
    def join_process_group(self) -> Any:
        """The processes that take part."""
        return self.process_group


def gathered(
    parts: Sequence[InputStatistics | None], like: Sequence[Tensor], group: Any
) -> list[InputStatistics | None]:
    """The statistics of all processes of a group, merged per layer in one exchange; some processes may have none.

    Args:
        parts: This process's statistics of every layer.
        like: A tensor for every layer, with the length, dtype and device of its statistics in all processes.
        group: The processes.
    """
    device = like[0].device

    def packed(part: InputStatistics | None, width: int) -> Tensor:
        if part is None:
            return torch.zeros(3 + 2 * width, dtype=torch.float64, device=device)
        counts = torch.tensor([part.rows, part.examples, part.positions], dtype=torch.float64, device=device)
        return torch.cat([counts, part.mean.to(counts), part.variance.to(counts)])

    mine = torch.cat([packed(part, len(own)) for part, own in zip(parts, like, strict=True)])
    everyone = [torch.empty_like(mine) for _ in range(torch.distributed.get_world_size(group))]
    torch.distributed.all_gather(everyone, mine, group)

    by_layer: list[list[InputStatistics]] = [[] for _ in like]
    for flat in everyone:
        pieces = torch.split(flat, [3 + 2 * len(own) for own in like])
        for layer, piece, own in zip(by_layer, pieces, like, strict=True):
            rows, examples, positions = map(int, piece[:3].tolist())
            if rows:
                mean, variance = piece[3:].to(own).chunk(2)
                layer.append(InputStatistics(mean, variance, rows, examples, positions))
    return [merged(layer) if layer else None for layer in by_layer]


class ShadowedExchange(JoinHook):
    """Lets a process without inputs take part in the exchanges of the others, with no statistics to add."""

    def __init__(self, shared: SharedStatistics) -> None:
        if shared.ddp is None:
            raise Unsupported(NOT_JOINED)
        self.shared, self.ddp = shared, shared.ddp

    def main_hook(self) -> None:
        """Runs once per forward pass of the others, after DDP's hook, which determines whether they sum gradients."""
        if self.ddp.require_forward_param_sync:
            for layer in self.shared.layers.values():
                layer.collected.take()
            self.shared.exchange()
            self.shared.forget_exchange()

    def post_hook(self, is_last_joiner: bool) -> None:
        """Copy the running statistics of a process that ran to the end, as DDP copies the weights."""
        group = self.shared.process_group
        moments = [moment for layer in self.shared.layers.values() for moment in (layer.mean, layer.variance)]
        device = moments[0].device
        last = torch.tensor(torch.distributed.get_rank(group) if is_last_joiner else -1, device=device)
        torch.distributed.all_reduce(last, torch.distributed.ReduceOp.MAX, group)
        flat = torch.cat([moment.to(device, torch.float64) for moment in moments])
        torch.distributed.broadcast(flat, torch.distributed.get_global_rank(group, int(last)), group)
        for moment, piece in zip(moments, torch.split(flat, [len(moment) for moment in moments]), strict=True):
            moment.copy_(piece)
