"""`Threshold` and `Condition`: the numbers that rules compare with, each with its origin."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from types import ModuleType
from typing import Literal


@dataclass(frozen=True)
class Threshold:
    """Where a quantity becomes a warning, and where it becomes severe.

    Attributes:
        quantity: What is compared, in words.
        warn: Value from which on it is a warning; NaN if there is no such value.
        severe: Value from which on it is severe; NaN if it is never severe by itself.
        origin: Theorem, section or measurement that the numbers come from.
        bad: Whether larger or smaller values are worse.
        healthy: Names of the same quantity in `rules/healthy.json`, if it was measured there.
        inside_healthy_because: Why the warning may lie inside the range of healthy networks; "" if it does not.

    Example:
        >>> dead = Threshold("share of dead units", 0.7, 0.95, origin="healthy networks reach 0.56")
        >>> dead.is_warning(0.8), dead.is_severe(0.8), dead.limits()
        (True, False, {'warning': 0.7, 'severe': 0.95})
    """

    quantity: str
    warn: float
    severe: float
    _: KW_ONLY
    origin: str
    bad: Literal["above", "below"] = "above"
    healthy: tuple[str, ...] = ()
    inside_healthy_because: str = ""

    def is_warning(self, value: float) -> bool:
        """Whether a value is beyond the warning end."""
        return self._is_beyond(value, self.warn)

    def is_severe(self, value: float) -> bool:
        """Whether a value is beyond the severe end."""
        return self._is_beyond(value, self.severe)

    def _is_beyond(self, value: float, end: float) -> bool:
        return value > end if self.bad == "above" else value < end  # False if there is no such end: it is NaN

    def limits(self, unit: float = 1.0) -> dict[str, float]:
        """Both ends, for `Finding.limits`.

        Args:
            unit: What the quantity is relative to, in the unit of the finding's rows.
        """
        ends = {"warning": self.warn, "severe": self.severe}
        return {name: unit * end for name, end in ends.items() if not math.isnan(end)}


@dataclass(frozen=True)
class Condition:
    """A number that decides whether a rule speaks at all: enough data, or a case in which there is nothing to say.

    Attributes:
        quantity: What is compared, in words.
        at: The number.
        origin: Where it comes from.

    Example:
        >>> Condition("examples", 32, origin="a binary label is the same in 32 examples once in 2³¹ times").at
        32
    """

    quantity: str
    at: float
    _: KW_ONLY
    origin: str


def thresholds_in(rule_file: ModuleType) -> list[Threshold | Condition]:
    """All thresholds and conditions of a rule's file, or of the files of its folder, in their order."""
    numbers: list[Threshold | Condition] = []
    for each in vars(rule_file).values():
        if isinstance(each, (Threshold, Condition)):
            numbers.append(each)
        elif isinstance(each, ModuleType) and each.__name__.startswith(f"{rule_file.__name__}."):
            numbers += thresholds_in(each)
    return numbers
