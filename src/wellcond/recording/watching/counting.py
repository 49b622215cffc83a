"""Which calls of `Recorder.step` are a step of the optimizer, and which are micro-batches of one."""

from __future__ import annotations

from typing import Any

from torch import Tensor

MOST_PASSES = 64
"""Calls that are taken for micro-batches of one step, until the first step of the optimizer is seen."""

EVERY_SKIPPED = 10
"""Steps that were skipped in a row are counted in tens."""
MORE = object()
"""What stands for a loss while a step has more micro-batches to come."""


class StepCount:
    """Counts steps of the optimizer, by its hooks.

    Where these see none for longer than ever before, every call counts: a GradScaler skips steps whose gradients are
    not finite, and the replay of a CUDA graph calls no hooks.

    Args:
        step: The last step of a run that is continued.

    Attributes:
        step: The last step.
        passes: Calls of the last step.
        sees_steps: Whether a step of the optimizer has been seen.
        skipped: Steps in a row that the optimizer has not taken, after it took some.

    Example:
        >>> count = StepCount()
        >>> count.loss_of_step(0, 3.0) is MORE, count.loss_of_step(1, 5.0), count.loss_of_step(2, 2.0)
        (True, 4.0, 2.0)
    """

    def __init__(self, step: int = 0) -> None:
        self.step = step
        self.passes = 1
        self.sees_steps = False
        self.skipped = 0
        self._taken = 0
        self._waiting: list[Any] = []
        self._patience = MOST_PASSES
        self._is_lost = False
        """Whether steps of the optimizer have not been seen for too long."""

    def loss_of_step(self, taken: int, value: Any, *, is_captured: bool = False) -> Any:
        """The loss of a step, or the mean of its micro-batches; `MORE` if there are others to come.

        Args:
            taken: Steps that the optimizer has taken so far.
            value: The loss of this call.
            is_captured: Whether steps run as a CUDA graph: then every call is one, and none is skipped.
        """
        if is_captured:
            self.sees_steps = False
            return value
        if taken == self._taken:
            if not self._is_lost and len(self._waiting) < self._patience:
                # a copy: replays of a CUDA graph write every loss to the same place
                self._waiting.append(value.detach().clone() if isinstance(value, Tensor) else value)
                return MORE
            self._is_lost = True
            self.skipped += self.sees_steps
        else:
            self._taken, self._is_lost, self.skipped = taken, False, 0
            self.passes = 1 + len(self._waiting)
            if not self.sees_steps or self.passes > 1 + self._patience:
                self._patience = self.passes - 1
                self.sees_steps = True
        if not self._waiting:
            return value
        values, self._waiting = [*self._waiting, value], []
        return sum(v.detach() if isinstance(v, Tensor) else v for v in values) / len(values)

    def state_dict(self) -> dict[str, Any]:
        """Where the count is, between two steps."""
        return {
            "step": self.step,
            "passes": self.passes,
            "sees_steps": self.sees_steps,
            "skipped": self.skipped,
            "patience": self._patience,
            "is_lost": self._is_lost,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved count; an optimizer's own steps are counted anew."""
        self.step, self.passes = state["step"], state["passes"]
        self.sees_steps, self.skipped = state["sees_steps"], state["skipped"]
        self._patience, self._is_lost = state["patience"], state["is_lost"]

    def begin(self, number: int | None) -> int:
        """The next step; its number, if it is counted elsewhere."""
        self.step = self.step + 1 if number is None else number
        return self.step
