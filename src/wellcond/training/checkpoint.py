"""`Checkpoint`: the state of a training run on disk, from which it continues bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


class HasState(Protocol):
    """A model, an optimizer, BNP."""

    def state_dict(self) -> dict[str, Any]:
        """All that decides what it does next."""

    def load_state_dict(self, state: Any) -> Any:
        """Take a state over."""


@dataclass(frozen=True)
class Checkpoint:
    """Where and how often the state of a run is kept.

    Attributes:
        path: The file.
        parts: What has a state beside the loop itself: `{"model": model, "optimizer": optimizer}`.
        every: Steps from one to the next.
    """

    path: Path
    parts: Mapping[str, HasState]
    every: int = 1000
