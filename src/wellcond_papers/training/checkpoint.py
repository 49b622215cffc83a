"""`Checkpoint`: the state of a training run on disk, from which it continues bit for bit."""

from __future__ import annotations

import hashlib
import io
import os
import random
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from wellcond.errors import Unsupported
from wellcond.results import Row
from wellcond.results.files import write_atomically
from wellcond_papers.training.distributed import is_writer
from wellcond_papers.training.history import History

SECONDS = 20.0
"""Time between saves, if steps are not counted: little is lost, and little time is spent on saving."""
DAMAGED = "{path} is damaged ({why}). The run starts again from its first step."
ANOTHER_RUN = """\
{path} belongs to another run: {why}.
Delete it to start again, or name another file: Checkpoint("another.pt", …)."""


class HasState(Protocol):
    """A model, an optimizer, BNP."""

    def state_dict(self) -> dict[str, Any]:
        """Everything that determines what it does next."""

    def load_state_dict(self, state: Any) -> Any:
        """Restore a state."""


@dataclass(frozen=True)
class Checkpoint:
    """Where and how often the state of a run is saved.

    The file holds the parts, the losses and evaluations so far, and the random number generators of torch, NumPy and
    Python. It is written whole or not at all, begins with a checksum, and is read without running code. Of several
    processes the first writes it and all read it; their generators continue as those of the first.

    Attributes:
        path: The file. Its folder is created if it is missing.
        parts: Objects whose state is saved: `{"model": model, "optimizer": optimizer}`.
        every: Steps between saves; None for one every 20 seconds. The end of the run is saved too.
    """

    path: str | os.PathLike[str]
    parts: Mapping[str, HasState]
    every: int | None = None

    def __post_init__(self) -> None:
        if self.every is not None and self.every < 1:
            raise ValueError(f"every must be at least 1 step, not {self.every}")

    def save(self, history: History, settings: Mapping[str, Any]) -> None:
        """Write the current state; of several processes only the first does.

        Args:
            history: The run so far.
            settings: Settings that must be the same when the run continues.
        """
        if not is_writer():
            return
        content = io.BytesIO()
        state = {
            "settings": dict(settings),
            "parts": {name: part.state_dict() for name, part in self.parts.items()},
            "losses": torch.tensor(history.losses, dtype=torch.float64),
            "evaluations": [list(row) for row in history.evaluations],
            "diverged_at": history.diverged_at,
            "cause": history.cause,
            "generators": _generators(),
        }
        torch.save(state, content)
        path = Path(self.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, _checksum(content.getvalue()) + content.getvalue())

    def load(self, settings: Mapping[str, Any]) -> History | None:
        """Put the parts and the generators into the state of the file, and return the run so far.

        Returns:
            None if there is no file, or a damaged one, which is warned about.

        Raises:
            Unsupported: The file belongs to another run.
        """
        state = self._read()
        if state is None:
            return None
        if state["parts"].keys() != self.parts.keys():
            raise self.refusal(f"it has the parts {', '.join(state['parts'])}, and not {', '.join(self.parts)}")
        for name, here in settings.items():
            if (there := state["settings"].get(name)) != here:
                raise self.refusal(f"its {name} is {there}, and not {here}")
        for name, part in self.parts.items():
            try:
                part.load_state_dict(state["parts"][name])
            except (RuntimeError, ValueError, KeyError) as error:
                raise self.refusal(f"its {name} does not fit ({error})") from error
        _set_generators(state["generators"])
        rows = [Row(*row) for row in state["evaluations"]]
        return History(state["losses"].tolist(), rows, state["diverged_at"], state["cause"])

    def _read(self) -> dict[str, Any] | None:
        try:
            content = Path(self.path).read_bytes()
        except FileNotFoundError:
            return None
        size = len(_checksum(b""))
        why = "its checksum is wrong"
        if content[:size] == _checksum(content[size:]):
            try:
                state: dict[str, Any] = torch.load(io.BytesIO(content[size:]), map_location="cpu", weights_only=True)
                return state
            except Exception as error:  # torch raises exceptions of many kinds for a file that it cannot read
                why = str(error)
        warnings.warn(DAMAGED.format(path=self.path, why=why), stacklevel=4)
        return None

    def refusal(self, why: str) -> Unsupported:
        """The error if the file belongs to another run."""
        return Unsupported(ANOTHER_RUN.format(path=self.path, why=why))


def _checksum(content: bytes) -> bytes:
    return b"wellcond checkpoint " + hashlib.sha256(content).hexdigest().encode() + b"\n"


def _generators() -> dict[str, Any]:
    kind, keys, *rest = np.random.get_state()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None,  # type: ignore[no-untyped-call]
        "numpy": [kind, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest],
        "python": random.getstate(),
    }


def _set_generators(states: dict[str, Any]) -> None:
    torch.set_rng_state(states["torch"])
    if states["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
    kind, keys, *rest = states["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    random.setstate(states["python"])
