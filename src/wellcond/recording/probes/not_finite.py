"""Where NaN or infinity comes from, once a step has spread it to all weights: the layer that returns it in any case."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from wellcond.errors import NonFinite
from wellcond.network.calling import tensors_in
from wellcond.network.isolation.arithmetic import own_arithmetic
from wellcond.network.isolation.copies import copied
from wellcond.network.isolation.isolation import rng_kept
from wellcond.network.taps import tapped
from wellcond.problem.batches import examples_in
from wellcond.problem.loss.outputs import Loss
from wellcond.problem.not_finite import LayerOutput, first_not_finite, not_finite_in
from wellcond.recording.probes.subject import Subject
from wellcond.results import Row
from wellcond.results import quantities as q

MOST_WEIGHTS = 2**27
"""Entries of the weights of a network that is copied: half a GiB, which a training that has lost its way can spare."""


def source_of_nan(model: nn.Module, loss: Loss | None, batches: Sequence[Any], step: int) -> list[Row]:
    """What is first to hold NaN or infinity: the batch, a layer's outputs or the gradient there; no row if none does.

    Batches go through a copy of the model in which weights that are not finite are drawn anew. So a layer that divides
    by a mask that is empty, or takes the root of 0, shows it whatever the weights are; steps that were too long do not.

    Args:
        model: The model.
        loss: Its loss; None if it returns it.
        batches: The batch whose loss is not finite, then the one before: its gradients may be what was not.
        step: The step of the first.

    Returns:
        A row with the number of such values in the batch, the share of a layer's outputs, or the number of entries of
        the gradient of its inputs. Of a network too large to copy the batch alone is looked at.
    """
    count, *before = (not_finite_in(batch) for batch in batches)
    if count and not any(before):  # otherwise the model takes missing values, or masks of -inf
        return [Row(step, "", q.NOT_FINITE_VALUES, float(count), "")]
    if sum(p.numel() for p in model.parameters()) > MOST_WEIGHTS:
        return []
    with own_arithmetic(), rng_kept(next(model.parameters()).device):
        twin = copied(model)
        _draw_lost_weights(twin)
        subject, named = Subject(twin, loss), {name: module for name, module in twin.named_modules() if name}
        for batch in batches:
            seen = _Seen()
            problem = subject.problem(batch, examples_in(batch))
            with problem.measuring(), torch.enable_grad():
                (((index, data)),) = problem.data()
                watched = tapped(named, seen.on_call, seen.on_gradient, seen.on_input_gradient)
                with contextlib.suppress(NonFinite), watched:
                    problem.training_loss(index, data).backward()  # type: ignore[no-untyped-call]
            origin = first_not_finite([], [], seen.calls)
            if origin is not None:
                is_layer = origin.place == "layer"
                return [Row(step, origin.name, q.NOT_FINITE_SHARE, origin.amount, "")] if is_layer else []
            if (source := seen.source_of_gradient) is not None:
                return [Row(step, source[0], q.NOT_FINITE_GRADIENTS, float(source[1]), "")]
    return []


class _Seen:
    """Outputs of modules in the order of their calls, and what is not finite in the gradients that come back."""

    def __init__(self) -> None:
        self.calls: list[LayerOutput] = []
        self._of_outputs: dict[str, int] = {}
        self._of_inputs: dict[str, int] = {}

    def on_call(self, name: str, module: nn.Module, x: Any, output: Any) -> None:
        share = not_finite_in(output) / max(sum(t.numel() for t in tensors_in(output)), 1)
        self.calls.append(LayerOutput(name, type(module).__name__, share, not not_finite_in(x)))

    def on_gradient(self, name: str, _module: nn.Module, _returned: Any, g: Tensor) -> None:
        self._of_outputs[name] = self._of_outputs.get(name, 0) + not_finite_in(g)

    def on_input_gradient(self, name: str, _module: nn.Module, _returned: Any, g: Tensor) -> None:
        self._of_inputs[name] = self._of_inputs.get(name, 0) + not_finite_in(g)

    @property
    def source_of_gradient(self) -> tuple[str, int] | None:
        """The last layer with a finite gradient of its outputs and one of its inputs that is not, with how much."""
        lost = [name for name, count in self._of_inputs.items() if count and self._of_outputs.get(name) == 0]
        inner = [name for name in lost if not any(other.startswith(f"{name}.") for other in lost)]
        last = next((call.name for call in reversed(self.calls) if call.name in inner), None)
        return None if last is None else (last, self._of_inputs[last])


@torch.no_grad()
def _draw_lost_weights(model: nn.Module) -> None:
    for module in model.modules():
        lost = [p for p in module.parameters(recurse=False) if not p.isfinite().all()]
        if lost and callable(reset := getattr(module, "reset_parameters", None)):
            reset()
        for p in lost:
            if not p.isfinite().all():
                p.normal_(0.0, p.shape[-1] ** -0.5 if p.dim() > 1 else 1.0)
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_floating_point() and not buffer.isfinite().all():
                buffer.fill_(float("var" in name))
