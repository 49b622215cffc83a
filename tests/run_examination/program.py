"""What an examiner of recorded runs writes: training loops with a fault that only training shows, and healthy ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

Record = Callable[..., Any]
"""`record(model, optimizer, loss)` gives a recorder; call `recorder.step(value, batch)` after every optimizer step, and
`recorder.validation(value)` whenever the loop evaluates on held-out data. It changes nothing of the run."""


@dataclass(frozen=True)
class RunFault:
    """A loop with one fault.

    Attributes:
        name: Of the function.
        what: What is wrong, in words.
        run: Trains from the first to the last step.
        rules: Names that a careful person would call right; the best one first.
        layers: Modules that may be blamed; a name covers everything below it. Empty: no layer is meant.
        step: Step at which the fault begins to act.
        steps: Optimizer steps of the run.
    """

    name: str
    what: str
    run: Callable[[Record], None]
    rules: tuple[str, ...]
    layers: tuple[str, ...]
    step: int
    steps: int


@dataclass(frozen=True)
class HealthyRun:
    """A loop with nothing wrong.

    Attributes:
        name: Of the function.
        what: What may be mistaken for a fault, in words.
        run: Trains from the first to the last step.
        steps: Optimizer steps of the run.
    """

    name: str
    what: str
    run: Callable[[Record], None]
    steps: int


FAULTS: dict[str, RunFault] = {}
HEALTHY: dict[str, HealthyRun] = {}


def fault(
    what: str, *, rules: Iterable[str], layers: Iterable[str] = (), step: int, steps: int
) -> Callable[[Callable[[Record], None]], Callable[[Record], None]]:
    """Make a function a run with a fault."""

    def register(run: Callable[[Record], None]) -> Callable[[Record], None]:
        FAULTS[run.__name__] = RunFault(run.__name__, what, run, tuple(rules), tuple(layers), step, steps)
        return run

    return register


def healthy(what: str, *, steps: int) -> Callable[[Callable[[Record], None]], Callable[[Record], None]]:
    """Make a function a healthy run."""

    def register(run: Callable[[Record], None]) -> Callable[[Record], None]:
        HEALTHY[run.__name__] = HealthyRun(run.__name__, what, run, steps)
        return run

    return register
