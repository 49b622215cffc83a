"""Hooks on the steps of optimizers: gradients where they are right, which is after unscaling and before clearing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from wellcond.problem.ranks.team import Team
from wellcond.recording.watching.layout import Layout, norm_rows
from wellcond.recording.watching.readings import ToRows
from wellcond.recording.watching.shards import global_norms, norms_of_parts, own_part
from wellcond.results import Row
from wellcond.results import quantities as q
from wellcond.training.optimizers import reads_only

MOST_COPIED = 2**25
"""Entries of the weights that are copied to see what a step changes; of a larger network, those of layers in turn."""

STEPS_TO_KNOW = 3
"""Steps that show how often gradients are written to: the first one begins with none."""

HALF = (torch.float16, torch.bfloat16)
"""Weights whose steps may be rounded away."""

OF_GRADIENTS, OF_WEIGHTS = READ_TOGETHER = "gradients", "weights"
"""Parts of recording in which the processes of a sharded model add up what each reads."""

Guard = Callable[[str, Callable[[], Any]], Any]
"""Calls a function of the part with this name, counts its time, and lets no error out into the training loop."""


@dataclass(frozen=True)
class Norms:
    """Norms of some parameters, on their device.

    Attributes:
        layers: The layer of each.
        values: (n,) norms of the gradients; or (2n,) of the weights and of their changes.
        lost: (2,) entries that have a gradient and that the step left as they were, and entries that have one; of
            weights in half precision, None without any.
    """

    layers: list[str]
    values: Tensor
    lost: Tensor | None = None


@dataclass
class Seen:
    """What hooks have seen of the steps of all optimizers. It is read at every step: so it is plain numbers.

    Attributes:
        steps: Steps that all optimizers have taken.
        is_captured: Whether one was captured as a CUDA graph, whose replays call no hooks.
        has_new_rates: Whether learning rates may have changed since this was last set to False.
        writes_anew: Whether a gradient was written to a number of times that it never was before, as where it is not
            cleared any more, since this was last set to False.
    """

    steps: int = 0
    is_captured: bool = False
    has_new_rates: bool = False
    writes_anew: bool = False


class StepWatch:
    """Reads gradients, weights and updates of one optimizer.

    Args:
        optimizer: The optimizer, whose step gets two hooks.
        layout: Layers of the model.
        guard: Around everything that a hook does.
        seen: Where it notes what recording asks at every step.
        team: The processes that hold parts of the parameters; None if this one holds all.

    Attributes:
        steps: Steps that the optimizer has taken.
        rates: Learning rates of its groups in the last one.
        writes: How often a gradient was written to between two steps, so far.
        wants_gradients: Whether the gradients of the coming step are read.
        wants_weights: Whether its weights and updates are.
        gradients: Of the last step that was read.
        updates: Of the last step that was read.
        before: The parameters before the last step whose weights were read: each with its values.
    """

    def __init__(
        self, optimizer: Optimizer, layout: Layout, guard: Guard, seen: Seen, team: Team | None = None
    ) -> None:
        self.optimizer = optimizer
        self.steps = 0
        self.rates: list[Any] = []
        self.wants_gradients = self.wants_weights = False
        self.gradients: Norms | None = None
        self.updates: Norms | None = None
        self.before: list[tuple[Tensor, Tensor]] = []
        self._layout, self._guard, self._seen, self._team = layout, guard, seen, team
        self._next_layer = 0
        self._is_read = False
        self._first: Tensor | None = None
        self._version = 0
        self.writes: set[int] = set()
        self._handles = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]

    def want(self, *, gradients: bool, weights: bool) -> None:
        """Choose what is read of the coming step, and forget what was."""
        self.wants_gradients, self.wants_weights = gradients, weights
        self.gradients = self.updates = None
        self.before = []
        self._is_read = False

    def remove(self) -> None:
        """Remove the hooks."""
        while self._handles:
            self._handles.pop().remove()

    def parameters(self) -> list[Tensor]:
        """Those of the model that the optimizer holds."""
        held = (p for group in self.optimizer.param_groups for p in group["params"])
        return [p for p in held if self._layout.layer_of(p) is not None]

    @reads_only
    def _before_step(self, _optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # a scheduler may change them right after the step
        rates = [group["lr"] for group in self.optimizer.param_groups if "lr" in group]
        # tensors are not compared, which would wait for a GPU
        if rates and (type(rates[0]) is not float or rates != self.rates):
            self._seen.has_new_rates = True
        self.rates = rates
        self._count_writes()
        if self._is_read or not (self.wants_gradients or self.wants_weights):
            return None
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            self._guard(OF_GRADIENTS, self._read)
            return None

        def watched() -> Any:  # there are no gradients before the optimizer calls the closure
            value = closure()
            if not self._is_read:
                self._guard(OF_GRADIENTS, self._read)
            return value

        return (args[0], watched, *args[2:]), {name: value for name, value in kwargs.items() if name != "closure"}

    def _count_writes(self) -> None:
        """How often the first gradient was written to since the last step, by its version, which begins with it."""
        if self._first is None:
            params = (p for group in self.optimizer.param_groups for p in group["params"])
            self._first = next((p for p in params if p.grad is not None), None)
        gradient = None if self._first is None else self._first.grad
        if gradient is not None:
            writes = gradient._version - self._version
            self._version += writes
            if writes not in self.writes:
                self._seen.writes_anew |= self.steps > STEPS_TO_KNOW
                self.writes.add(writes)

    @reads_only
    def _after_step(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self.steps += 1
        self._seen.steps += 1
        if is_capturing():
            self._seen.is_captured = True
        if self.before and self.updates is None:
            self._guard(OF_WEIGHTS, self._read_update)

    @torch.no_grad()
    def _read(self) -> None:
        self._is_read = True
        if is_capturing():
            return
        params = self.parameters()
        if self.wants_gradients:
            moved = [p for p in params if p.grad is not None]
            if moved:
                norms = global_norms([p.grad for p in moved if p.grad is not None], self._team)
                scale = getattr(self.optimizer, "grad_scale", None)  # a GradScaler's: a fused optimizer unscales itself
                self.gradients = Norms(self._layers(moved), norms if scale is None else norms / scale.to(norms))
        if self.wants_weights:
            self.before = [(p, own_part(p.detach()).clone()) for p in self._in_turn(params)]

    @torch.no_grad()
    def _read_update(self) -> None:
        if is_capturing():
            return
        params, old = [p for p, _ in self.before], [values for _, values in self.before]
        moved = torch._foreach_sub([own_part(p.detach()) for p in params], old)
        norms = norms_of_parts([*old, *moved], [*params, *params], self._team)
        self.updates = Norms(self._layers(params), norms, _lost_entries(self.before, self._team))

    def _layers(self, params: Sequence[Tensor]) -> list[str]:
        return [self._layout.layer_of(p) or "" for p in params]

    def _in_turn(self, params: list[Tensor]) -> list[Tensor]:
        """All, or as much as may be copied in whole layers, each time the next ones."""
        if sum(p.numel() for p in params) <= MOST_COPIED:
            return params
        by_layer: dict[str, list[Tensor]] = {}
        for p in params:
            by_layer.setdefault(self._layout.layer_of(p) or "", []).append(p)
        layers = list(by_layer)
        chosen: list[Tensor] = []
        for _ in layers:
            own = by_layer[layers[self._next_layer % len(layers)]]
            if chosen and sum(p.numel() for p in (*chosen, *own)) > MOST_COPIED:
                break
            chosen += own
            self._next_layer += 1
        return chosen


def _lost_entries(before: Sequence[tuple[Tensor, Tensor]], team: Team | None) -> Tensor | None:
    counts = []
    for p, old in before:
        if p.dtype in HALF and p.grad is not None and not p.grad.is_sparse:
            has_gradient = own_part(p.grad) != 0
            counts.append(torch.stack([(has_gradient & (own_part(p) == old)).sum(), has_gradient.sum()]))
    if not counts:
        return None
    total = torch.stack(counts).sum(0)
    return total if team is None else team.add([total], "norms")[0]


def lost_reading(step: int, lost: Tensor) -> tuple[Tensor, ToRows]:
    """Share of the entries with a gradient that a step leaves as they were."""
    return lost.float(), lambda counts: [Row(step, "", q.LOST_UPDATES, counts[0] / max(counts[1], 1.0), "")]


def gradient_reading(step: int, read: Sequence[Norms]) -> tuple[Tensor, ToRows]:
    """Gradient norms of all optimizers, by layer."""
    layers = [layer for norms in read for layer in norms.layers]
    return torch.cat([norms.values for norms in read]), lambda values: norm_rows(step, q.GRADIENT_NORM, layers, values)


def update_reading(step: int, read: Sequence[Norms], is_whole: bool) -> tuple[Tensor, ToRows]:
    """Norms of the weights before a step, and of its change of them relative to these; both by layer.

    Args:
        step: The step.
        read: Of all optimizers.
        is_whole: Whether all layers are among them, so that there is a number of the whole network.
    """
    layers = [layer for norms in read for layer in norms.layers]
    halves = [norms.values.chunk(2) for norms in read]

    def rows(values: list[float]) -> list[Row]:
        sizes = norm_rows(step, q.WEIGHT_NORM, layers, values[: len(layers)])
        changes = norm_rows(step, q.UPDATE_RATIO, layers, values[len(layers) :])
        ratios = [c._replace(value=c.value / w.value) for c, w in zip(changes, sizes, strict=True) if w.value]
        return [row for row in (*sizes, *ratios) if row.layer or is_whole]

    return torch.cat([*(old for old, _ in halves), *(change for _, change in halves)]), rows


def is_capturing() -> bool:
    """Whether a CUDA graph is being captured: what runs now would be part of it, and run at every replay.

    Nothing is captured before a GPU is in use; without one, a build of torch for CUDA refuses the question.
    """
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()  # type: ignore[no-untyped-call]
