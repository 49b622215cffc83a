"""Hooks on a few parameters: what a step's gradients are added to, how many passes they sum, and what clipping cuts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from wellcond.recording.watching.layout import Layout, norms_of
from wellcond.recording.watching.readings import ToRows
from wellcond.recording.watching.steps import Guard, is_capturing
from wellcond.results import Row
from wellcond.results import quantities as q

FEW_PARAMETERS = 3
"""Parameters that are watched: a first, a middle and a last one, since some may be unused."""


@dataclass
class _Pass:
    """One backward pass: norms of the gradients that were there, and of those that it adds, by layer."""

    layers: list[str] = field(default_factory=list)
    old: list[Tensor | None] = field(default_factory=list)
    new: list[Tensor] = field(default_factory=list)
    adds: bool = False


class BackwardWatch:
    """Watches the backward passes of one step, from `begin` to `end`.

    Args:
        parameters: All that are trained, in the model's order.
        layout: Layers of the model.
        scale: What losses are multiplied with before a backward pass; None if that is not known.
        guard: Around everything that a hook does.

    Attributes:
        scale: That of the last pass.
    """

    def __init__(
        self,
        parameters: Callable[[], Sequence[Tensor]],
        layout: Layout,
        scale: Callable[[], Tensor | float | None],
        guard: Guard,
    ) -> None:
        self.scale: Tensor | float | None = 1.0
        self._parameters, self._layout, self._scale_now, self._guard = parameters, layout, scale, guard
        self._handles: list[Any] = []
        self._passes: dict[int, _Pass] = {}
        self._unclipped: Tensor | None = None

    def begin(self) -> None:
        """Put hooks on a few parameters."""
        self._passes, self._unclipped = {}, None
        trained = [p for p in self._parameters() if p.requires_grad]
        places = {0, len(trained) // 2, len(trained) - 1} if trained else ()
        for p in (trained[place] for place in sorted(places)[:FEW_PARAMETERS]):
            on_gradient = functools.partial(self._on_gradient, p)
            self._handles.append(p.register_hook(on_gradient))  # type: ignore[no-untyped-call]
            self._handles.append(p.register_post_accumulate_grad_hook(self._on_sum))  # type: ignore[no-untyped-call]

    def end(self) -> None:
        """Remove the hooks."""
        while self._handles:
            self._handles.pop().remove()

    def _on_gradient(self, p: Tensor, gradient: Tensor) -> None:
        self._guard("backward passes", lambda: self._see(p, gradient))

    @torch.no_grad()
    def _see(self, p: Tensor, gradient: Tensor) -> None:
        if is_capturing():
            return
        seen = self._passes.setdefault(torch._C._current_graph_task_id(), _Pass())
        seen.layers.append(self._layout.layer_of(p) or "")
        seen.old.append(None if p.grad is None else norms_of([p.grad])[0])
        seen.new.append(norms_of([gradient])[0])

    def _on_sum(self, _parameter: Tensor) -> None:
        """A gradient was added to `.grad`; `torch.autograd.grad` adds none, and does not come here."""
        seen = self._passes.get(torch._C._current_graph_task_id())
        if seen is not None and not seen.adds:
            seen.adds = True
            # twice, to come after the callback with which DDP averages the gradients
            engine = torch.autograd.Variable._execution_engine
            engine.queue_callback(
                lambda: engine.queue_callback(lambda: self._guard("backward passes", self._after_pass))
            )

    @torch.no_grad()
    def _after_pass(self) -> None:
        self.scale = self._scale_now()  # the scaler changes it before the step is over
        gradients = [p.grad for p in self._parameters() if p.grad is not None]
        if gradients and not is_capturing():
            self._unclipped = torch.linalg.vector_norm(norms_of(gradients))

    def reading(self, step: int) -> tuple[Tensor, ToRows] | None:
        """What was seen in a step; None if no pass added to the gradients of these parameters."""
        scale = self.scale
        passes = [each for each in self._passes.values() if each.adds]
        if not passes or self._unclipped is None:
            return None
        first, none = passes[0], torch.zeros_like(passes[0].new[0])
        every = [[none if old is None else old for old in each.old] for each in passes]
        olds = [_joint(old) for old in every]
        unclipped = none if scale is None else self._unclipped / scale
        values = torch.stack([*every[0], *first.new, *olds, _joint(first.new), unclipped.to(none)])
        count = len(first.layers)

        def rows(numbers: list[float]) -> list[Row]:
            of_layers = list(zip(first.layers, numbers[:count], numbers[count : 2 * count], strict=True))
            *before, new, norm = numbers[2 * count :]
            cleared = [place for place, old in enumerate(before) if old == 0]
            since = len(before) - cleared[-1] if cleared else len(before)
            old = 0.0 if cleared else before[0]
            rows = [Row(step, "", q.ACCUMULATED, float(since), "passes")]
            if new > 0:
                rows.append(Row(step, "", q.UNCLEARED_GRADIENT, old / new, ""))
            if old > 0 and not all(own for _, own, _ in of_layers):  # some layers' are cleared
                rows += [Row(step, layer, q.UNCLEARED_GRADIENT, own / new, "") for layer, own, new in of_layers if new]
            if scale is not None:
                rows.append(Row(step, "", q.UNCLIPPED_GRADIENT_NORM, norm, ""))
            return rows

        return values, rows


def _joint(norms: Sequence[Tensor]) -> Tensor:
    joint: Tensor = torch.linalg.vector_norm(torch.stack(list(norms)))
    return joint
