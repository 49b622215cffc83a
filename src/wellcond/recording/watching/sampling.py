"""What of a step is read: its loss and rate always, gradients often, and everything on some steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from wellcond.problem.ranks.team import Team
from wellcond.recording.mishaps import Mishaps
from wellcond.recording.watching.activations import ActivationWatch
from wellcond.recording.watching.backwards import BackwardWatch
from wellcond.recording.watching.layout import Layout
from wellcond.recording.watching.readings import Readings
from wellcond.recording.watching.rounding_watch import RoundingWatch
from wellcond.recording.watching.settings_watch import SettingsWatch
from wellcond.recording.watching.steps import Seen, StepWatch, gradient_reading, lost_reading, update_reading
from wellcond.results import Row

Depth = Literal["", "gradients", "everything"]
"""How much is read of a step, besides its loss and rate."""
NOTHING: Final = ""
GRADIENTS: Final = "gradients"
EVERYTHING: Final = "everything"


class Sampling:
    """Reads one step after the other, each as deep as it was planned.

    Args:
        model: The model itself, without wrappers.
        optimizers: Those that train it.
        scaler: The GradScaler, if one is used and known.
        calls_are_seen: Whether hooks see the calls of the model's layers; not if it is compiled.
        readings: Where numbers on a device go.
        mishaps: Guards the hooks.
        team: The processes that hold parts of the parameters; None if this one holds all.

    Attributes:
        layout: Layers of the model.
        depth: What is read of the coming step.
        seen: What hooks have seen of the steps.
        settings: What code sets, and may change in mid-run.
        rounding: Whether weights are rounded after steps; None if this process holds parts of them.
        has_scaler: Whether the scaler of losses is known.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        scaler: Any,
        calls_are_seen: bool,
        readings: Readings,
        mishaps: Mishaps,
        team: Team | None = None,
    ) -> None:
        self.layout = Layout(model)
        self._first = next(model.parameters())
        self.depth: Depth = NOTHING
        self.seen = Seen()
        self.steps = [StepWatch(each, self.layout, mishaps.guard, self.seen, team) for each in optimizers]
        self.backwards = BackwardWatch(self._parameters, self.layout, self._scale, mishaps.guard)
        self.activations = ActivationWatch(model, mishaps.guard) if calls_are_seen else None
        self.has_scaler = scaler is not None
        self._scaler = scaler
        self._are_parts = team is not None
        self._readings = readings
        self.settings = SettingsWatch(model, self.steps, self.layout, readings)
        self.rounding = None if team is not None else RoundingWatch(self._parameters, self.layout, readings)

    @property
    def order(self) -> list[str]:
        """Layers in the order of their calls in the last step that was seen, then the others."""
        seen = [] if self.activations is None else self.activations.outputs.started
        return list(dict.fromkeys([*seen, *self.layout.layers]))

    @property
    def before(self) -> dict[Tensor, Tensor]:
        """Every parameter with its values before the last step, if that was copied; empty if not, or not of all."""
        copied = {p: values for watch in self.steps for p, values in watch.before}
        return copied if len(copied) == len(self._parameters()) else {}

    @property
    def device(self) -> torch.device:
        """The device of the model's first parameter."""
        return self._first.device

    def unseen(self, rows: Sequence[Row]) -> list[Row]:
        """Rows of layers and quantities that hooks have never seen."""
        known = set() if self.activations is None else self.activations.outputs.known
        return [row for row in rows if (row.layer, row.quantity) not in known]

    def plan(self, depth: Depth) -> None:
        """Choose what is read of the coming step, and put hooks where they are needed."""
        self.depth = depth
        for watch in self.steps:
            watch.want(gradients=depth != NOTHING, weights=depth == EVERYTHING)
        if depth != NOTHING and not self._are_parts:  # hooks do not see the gradients of parts
            self.backwards.begin()
        if depth == EVERYTHING and self.activations is not None:
            self.activations.begin()

    def end(self) -> None:
        """Remove the hooks of one step."""
        self.backwards.end()
        if self.activations is not None:
            self.activations.end()

    def collect(self, step: int) -> list[Row]:
        """Hand over what was read of the step that has ended.

        Returns:
            Rows of numbers that are not on a device.
        """
        self.end()
        gradients = [watch.gradients for watch in self.steps if watch.gradients is not None]
        if gradients:
            self._readings.add(*gradient_reading(step, gradients))
        changed = [watch.updates for watch in self.steps if watch.updates is not None]
        if changed:
            whole = sum(len(watch.parameters()) for watch in self.steps)
            self._readings.add(*update_reading(step, changed, sum(len(each.layers) for each in changed) == whole))
            if half := [each.lost for each in changed if each.lost is not None]:
                self._readings.add(*lost_reading(step, torch.stack(half).sum(0)))
        if (passes := self.backwards.reading(step)) is not None:
            self._readings.add(*passes)
        watch = self.activations if self.depth == EVERYTHING else None
        if watch is not None and (calls := watch.outputs.reading(step)) is not None:
            self._readings.add(*calls)
        if self.depth != EVERYTHING:
            return []
        return [
            *([] if self._are_parts else self.settings.unheld(step)),
            *self.settings.rows(step, self.backwards.scale),
        ]

    def changes(self, step: int) -> list[Row]:
        """What has changed between steps, if anything has: settings, and the precision of the weights."""
        rows = self.settings.changes(step)
        if self.rounding is not None and self.rounding.is_due(step, is_deep=self.depth == EVERYTHING):
            rows += self.rounding.rows(step)
        return rows

    def state_dict(self) -> dict[str, Any]:
        """Settings as last recorded, how often gradients were written to, and what is read of the coming step."""
        return {
            "settings": self.settings.state_dict(),
            "depth": self.depth,
            "rounding": None if self.rounding is None else self.rounding.state_dict(),
            "writes": [sorted(watch.writes) for watch in self.steps],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.settings.load_state_dict(state["settings"])
        if self.rounding is not None and state["rounding"] is not None:
            self.rounding.load_state_dict(state["rounding"])
        for watch, writes in zip(self.steps, state["writes"], strict=True):
            watch.writes = set(writes)
        self.end()
        self.plan(state["depth"])

    def _scale(self) -> Tensor | float | None:
        """What losses are multiplied with; None if half precision is used, and no scaler is known."""
        if self._scaler is not None:
            scale: Tensor | None = getattr(self._scaler, "_scale", None)  # one that is off has none
            return 1.0 if scale is None else scale.detach().clone()
        return None if self.activations is not None and self.activations.outputs.is_half else 1.0

    def _parameters(self) -> list[Tensor]:
        return [p for watch in self.steps for p in watch.parameters()]

    def remove(self) -> None:
        """Remove all hooks."""
        self.end()
        for watch in self.steps:
            watch.remove()
