"""The parts of a diagnosis, one after another: what each was to cost, what it took, and how it ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from wellcond.diagnosis.budget import Budget
from wellcond.errors import Interrupted, NotDeterministic, WellcondError
from wellcond.problem.problem import Problem
from wellcond.results import Cost, Progress

INTERRUPTED = "interrupted"
WITH_FULL = 'budget="full" measures it'


@dataclass(frozen=True)
class Part:
    """One part of a diagnosis.

    Attributes:
        name: What it measures.
        outcome: `"cut short"` is one that Ctrl-C ended with a first result; `"interrupted"` one that has none.
        estimate: What it was to cost at most, in u.
        cost: What it took.
        seconds: What it took.
        note: Why it is not measured, or how far it came.
    """

    name: str
    outcome: Literal["measured", "failed", "left out", "cut short", "interrupted"]
    estimate: float
    cost: Cost
    seconds: float
    note: str = ""


class Parts:
    """Measures parts: each may fail without the others, and what Ctrl-C leaves of them is kept.

    Args:
        problem: What is measured.
        budget: What it may take.
        progress: Called as (part, share of all work done).
        on_part: Called after every part.

    Attributes:
        found: What was measured, by part.
        done: What became of every part so far.
    """

    def __init__(
        self, problem: Problem, budget: Budget, progress: Progress | None, on_part: Callable[[], None]
    ) -> None:
        self.problem, self.budget, self.progress, self.on_part = problem, budget, progress, on_part
        self.found: dict[str, Any] = {}
        self.done: list[Part] = []
        self.is_interrupted = False

    @property
    def failed(self) -> dict[str, str]:
        """Why a part is missing, by its name; those that the budget left out have not failed."""
        return {part.name: part.note for part in self.done if part.outcome in ("failed", "interrupted")}

    def measure(
        self,
        name: str,
        function: Callable[[Progress], Any],
        catch: type[Exception] | tuple[()] = Exception,
        *,
        is_free: bool = False,
    ) -> None:
        """Measure one part, unless no time is left for it.

        Args:
            name: What it measures.
            function: Called with the `progress` to pass on; what it returns is the part.
            catch: The failures that end only this part.
            is_free: Whether it takes no more than a pass, so that it is done even after Ctrl-C.
        """
        if self.is_interrupted and not is_free:
            self._end(name, "interrupted", INTERRUPTED)
            return
        if self.budget.is_spent and not is_free:
            self._end(name, "left out", f"the {self.budget.seconds:g} s of the budget were spent; {WITH_FULL}")
            return
        report = self._report(name)
        began, before = time.perf_counter(), self.problem.cost
        outcome: Literal["measured", "failed", "cut short", "interrupted"] = "measured"
        note = ""
        try:
            report(name, 0.0)
            self.found[name] = function(report)
        except NotDeterministic:
            raise
        except catch as error:
            first_line, *_ = f"{type(error).__name__}: {error}".strip().removesuffix(":").splitlines()
            outcome, note = "failed", str(error) if isinstance(error, WellcondError) else first_line
        except Interrupted as interrupt:
            self.is_interrupted = True
            self.found[name] = interrupt.result
            outcome, note = "cut short", interrupt.result.status
        except KeyboardInterrupt:
            self.is_interrupted = True
            outcome, note = "interrupted", INTERRUPTED
        cost = self.problem.cost - before
        self.budget.spend(cost.matvecs)
        self._end(name, outcome, note, cost, time.perf_counter() - began)

    def leave_out(self, name: str) -> None:
        """Say that a part is none of this budget's."""
        self._end(name, "left out", WITH_FULL)

    def _end(self, name: str, outcome: Any, note: str, cost: Cost = Cost(), seconds: float = 0.0) -> None:  # noqa: B008
        self.done.append(Part(name, outcome, self.budget.prices.get(name, 0.0), cost, seconds, note))
        try:
            self._report(name)(name, 1.0)
            self.on_part()
        except KeyboardInterrupt:
            self.is_interrupted = True

    def _report(self, name: str) -> Progress:
        """The progress of one part as that of all of them; a part that was not planned has none."""
        prices, total = self.budget.prices, sum(self.budget.prices.values())
        names = list(prices)
        planned = names.index(name) if name in names else len(names)
        begin, end = (sum(list(prices.values())[:count]) / total for count in (planned, planned + 1))

        def report(_what: str, share: float) -> None:
            if self.progress is not None and name in prices:
                self.progress(name, min(begin + (end - begin) * share, end))

        return report
