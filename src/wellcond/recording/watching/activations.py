"""What the outputs of layers are like, seen by a hook on the calls of one training step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from wellcond.diagnosis.inspection.nonlinearities import is_flat
from wellcond.network.calling import tensors_in
from wellcond.network.layers import called_modules, feature_dim, rule_for, weighted_layers
from wellcond.network.norms import is_norm, unit_dim
from wellcond.network.taps import tapped_from_outside
from wellcond.recording.watching.layout import stacked
from wellcond.recording.watching.readings import ToRows
from wellcond.recording.watching.steps import Guard, is_capturing
from wellcond.results import Row
from wellcond.results import quantities as q

RECTIFYING = (nn.ReLU, nn.ReLU6)
BOUNDED: dict[type[nn.Module], str] = {nn.Tanh: "tanh", nn.Sigmoid: "sigmoid"}
"""Modules whose output shows where they are flat, with the name of the function."""
FEWEST_EXAMPLES, MOST_EXAMPLES, MOST_ENTRIES = 8, 64, 1024
"""Examples, and entries of each, of which the spread of outputs over examples is computed."""


class Outputs:
    """Numbers of the outputs of layers, one call each, on their device.

    Args:
        model: Model whose layers they are.

    Attributes:
        started: Names of the layers that were seen, in the order of their calls.
        known: Layers and quantities that were seen at any step.
        is_half: Whether an output was float16, for which losses are usually scaled.
    """

    def __init__(self, model: nn.Module) -> None:
        self.weighted = weighted_layers(model)
        norms = {name: module for name, module in called_modules(model).items() if is_norm(module)}
        self.sized = {**self.weighted, **norms}
        self.started: list[str] = []
        self.known: set[tuple[str, str]] = set()
        self.is_half = False
        self._numbers: list[tuple[str, str, Tensor]] = []
        self._seen: set[tuple[str, str]] = set()
        """At this step."""
        self._final: tuple[str, Tensor] | None = None
        """Output of the last layer so far at this step."""
        self._last = ""

    def clear(self) -> None:
        """Begin with another step."""
        self.started, self._numbers, self._seen, self._last, self._final = [], [], set(), "", None

    @torch.no_grad()
    def see(self, name: str, module: nn.Module, x: Any, output: Any) -> None:
        """Note the output of a layer, at its first call in a step."""
        tensor = next((t for t in tensors_in(output) if t.is_floating_point()), None)
        if tensor is None or not tensor.numel() or is_capturing():
            return
        self.is_half |= tensor.dtype == torch.float16
        if isinstance(module, RECTIFYING):
            self.see_rectified(tensor)
        elif type(module) in BOUNDED:
            self.see_bounded(BOUNDED[type(module)], tensor)
        elif name in self.sized:
            self._last = name
            if self._is_first(name, q.SIGNAL_RMS):
                self.started.append(name)
                size = torch.linalg.vector_norm(tensor, dtype=_wide(tensor)) / tensor.numel() ** 0.5
                self._numbers.append((name, q.SIGNAL_RMS, size))
                if name in self.weighted:
                    self._final = name, tensor.detach()
                if isinstance(module, _BatchNorm) and isinstance(x, Tensor):
                    self._see_statistics(name, module, x)

    @torch.no_grad()
    def see_rectified(self, output: Tensor) -> None:
        """Note the share of a ReLU's units that are off on the whole batch, under the name of the layer before it."""
        if output.dim() > 1 and self._is_first(self._last, q.DEAD_SHARE):
            dim = self._unit_dim(output)
            others = [d for d in range(output.dim()) if d != dim]
            self._numbers.append((self._last, q.DEAD_SHARE, (output.amax(others) <= 0).float().mean()))

    @torch.no_grad()
    def see_bounded(self, function: str, output: Tensor) -> None:
        """Note the share of values where a bounded function is flat, under the name of the layer before it."""
        if self._is_first(self._last, q.SATURATED_SHARE):
            flat = is_flat(function, output).float().mean()
            self._numbers.append((self._last, q.SATURATED_SHARE, flat))

    def reading(self, step: int) -> tuple[Tensor, ToRows] | None:
        """All numbers of the step; None if no call was seen."""
        if not self._numbers:
            return None
        final, self._final = self._final, None  # it is not held any longer than the step
        if final is not None and final[1].dim() > 1 and len(final[1]) >= FEWEST_EXAMPLES:
            self._numbers.append((final[0], q.OUTPUT_SPREAD, _spread(final[1])))
        names = [(name, quantity) for name, quantity, _ in self._numbers]
        self.known.update(names)

        def rows(values: list[float]) -> list[Row]:
            return [Row(step, *each, value, "") for each, value in zip(names, values, strict=True)]

        return stacked([number for _, _, number in self._numbers]), rows

    def _see_statistics(self, name: str, norm: _BatchNorm, x: Tensor) -> None:
        """Distance of a BatchNorm's running statistics from those of its input, in running standard deviations.

        One in evaluation mode is trained with what it is evaluated with.
        """
        if not norm.training or norm.running_mean is None or norm.running_var is None:
            return
        if x.dim() < 2 or x.numel() == x.shape[1]:
            return  # a single value of each channel has no variance
        variance, mean = torch.var_mean(x.to(_wide(x)), [d for d in range(x.dim()) if d != 1])
        expected = norm.running_var + norm.eps
        shift = (mean - norm.running_mean).square() / expected
        stretch = ((variance + norm.eps) / expected).log().square()
        self._numbers.append((name, q.STATISTICS_GAP, (shift + stretch).mean().sqrt()))

    def _unit_dim(self, output: Tensor) -> int:
        before = self.sized.get(self._last)
        rule = None if before is None else rule_for(before)
        if rule is not None:
            dim = rule.unit_dim(output)
        else:
            dim = feature_dim(output) if before is None else unit_dim(before, output)
        return min(dim, output.dim() - 1)

    def _is_first(self, name: str, quantity: str) -> bool:
        """Whether it is the first such number of a layer in this step; further calls are not counted."""
        is_first = (name, quantity) not in self._seen
        self._seen.add((name, quantity))
        return is_first


class ActivationWatch:
    """Watches the calls of a model's layers in one training step, from `begin` to `end`.

    Args:
        model: The model.
        guard: Around everything that the hook does.
    """

    def __init__(self, model: nn.Module, guard: Guard) -> None:
        self.outputs = Outputs(model)
        self._guard = guard
        self._names = {module: name for name, module in called_modules(model).items()}
        self._remove: Callable[[], None] | None = None

    def begin(self) -> None:
        """Put the hook in place."""
        self.outputs.clear()

        def on_call(*call: Any) -> None:
            self._guard("activations", lambda: self.outputs.see(*call))

        self._remove = tapped_from_outside(self._names, on_call)

    def end(self) -> None:
        """Remove the hook."""
        if self._remove is not None:
            self._remove()
            self._remove = None


@torch.no_grad()
def _spread(output: Tensor) -> Tensor:
    """RMS over entries of their standard deviation over examples."""
    some = output[:MOST_EXAMPLES].flatten(1)
    some = some[:, :: -(-some.shape[1] // MOST_ENTRIES)].to(_wide(output))
    return (some - some.mean(0)).square().mean().sqrt()


def _wide(t: Tensor) -> torch.dtype:
    """A type in which the norm of half-precision numbers does not overflow."""
    return torch.float64 if t.dtype == torch.float64 else torch.float32
