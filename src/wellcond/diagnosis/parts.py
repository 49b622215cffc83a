"""The parts of a diagnosis, one after another: the estimate, the cost and the outcome of each."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from wellcond.diagnosis.budget import CURVATURE_PARTS, Budget, PartName
from wellcond.diagnosis.evidence import Evidence
from wellcond.errors import Interrupted, NotDeterministic, WellcondError
from wellcond.problem.problem import Problem
from wellcond.problem.training_step import TrainingStep
from wellcond.results import Cost, Progress
from wellcond.results.progress import announce

T = TypeVar("T")

FREE = Cost()
INTERRUPTED = "interrupted"
WITH_FULL = 'budget="full" measures it'

Outcome = Literal["measured", "failed", "left out", "cut short", "interrupted"]
"""`"cut short"` is a part that Ctrl-C ended with a first result, `"interrupted"` one that has none."""


@dataclass(frozen=True)
class Part:
    """One part of a diagnosis.

    Attributes:
        name: What it measures.
        outcome: How it ended.
        estimate: Cost planned for it, in u. Runs of a network in trouble may take what is planned for the curvature,
            which is then left out: all parts together take no more than their estimates.
        cost: Cost it had.
        seconds: Time it took.
        note: Why it was not measured, how far it came, or of which batches it is.
    """

    name: PartName
    outcome: Outcome
    estimate: float
    cost: Cost
    seconds: float
    note: str = ""


class Parts:
    """Measures parts: one may fail without the others, and what Ctrl-C leaves of a part is its result.

    Args:
        problem: What is measured.
        budget: What it may cost.
        progress: Called as (part, share of all work done).
        on_part: Called after every part with the evidence so far.
        before: Cost of the problem when the diagnosis began: what was spent since belongs to the first part.

    Attributes:
        done: Every part so far.
    """

    def __init__(
        self,
        problem: Problem,
        budget: Budget,
        progress: Progress | None,
        on_part: Callable[[Evidence], None],
        before: Cost,
    ) -> None:
        self._problem, self._budget, self._progress, self._on_part = problem, budget, progress, on_part
        self._counted = before
        self.done: list[Part] = []
        self._is_interrupted = False
        self._share = 0.0

    @property
    def failed(self) -> dict[str, str]:
        """Why a part is missing, by its name; a part that the budget left out has not failed."""
        return {part.name: part.note for part in self.done if part.outcome in ("failed", "interrupted")}

    def measure(
        self,
        name: PartName,
        function: Callable[[Progress], T],
        catch: type[Exception] | tuple[()] = Exception,
        *,
        of: Problem | None = None,
        is_free: bool = False,
    ) -> T | None:
        """Measure one part, unless no time is left for it.

        Args:
            name: What it measures.
            function: Measures it; called with the `progress` to pass on.
            catch: Exceptions that end only this part.
            of: What is measured, if it is the problem's first batches only.
            is_free: Whether it takes no more than a pass, so that it is measured even after Ctrl-C.

        Returns:
            What the function returns; None if it failed, was interrupted without a result, or was left out.
        """
        if self._is_interrupted and not is_free:
            self._end(name, "interrupted", INTERRUPTED)
            return None
        if self._budget.is_spent and not is_free:
            self._end(name, "left out", f"the {self._budget.seconds:.3g} s of the budget were spent; {WITH_FULL}")
            return None
        report = self._report(name)
        of = self._problem if of is None else of
        began, before_of = time.perf_counter(), of.cost
        result: T | None = None
        outcome: Outcome = "measured"
        note = ""
        try:
            report(name, 0.0)
            result = function(report)
        except NotDeterministic as error:
            # a step may train another network too, as a discriminator; and after a trial other findings count
            if not isinstance(of.loss, TrainingStep) and name not in CURVATURE_PARTS:
                raise
            outcome, note = "failed", str(error)
        except catch as error:
            first_line, *_ = f"{type(error).__name__}: {error}".strip().removesuffix(":").splitlines()
            outcome, note = "failed", str(error) if isinstance(error, WellcondError) else first_line
        except Interrupted as interrupt:
            self._is_interrupted = True
            partial: Any = interrupt.result
            result, outcome, note = partial, "cut short", partial.status
        except KeyboardInterrupt:
            self._is_interrupted = True
            outcome, note = "interrupted", INTERRUPTED
        if of is not self._problem:
            self._problem.count_copies(of.cost - before_of)
            if of.batch_count < self._problem.batch_count:
                note = note or f"of the first {of.batch_count} of {self._problem.batch_count} batches"
        cost, self._counted = self._problem.cost - self._counted, self._problem.cost
        self._budget.spend(cost.matvecs)
        self._end(name, outcome, note, cost, time.perf_counter() - began)
        return result

    def announce(self, steps: float, seconds: float) -> None:
        """Say what all parts will take at most."""
        if self._progress is not None:
            announce(self._progress, steps, seconds, self._share)

    def leave_out(self, name: PartName) -> None:
        """Record that the budget does not include a part."""
        self._end(name, "left out", WITH_FULL)

    def hand_over(self, evidence: Evidence) -> Evidence:
        """Call `on_part`, in which the user may press Ctrl-C too."""
        try:
            self._on_part(evidence)
        except KeyboardInterrupt:
            self._is_interrupted = True
        return evidence

    def _end(self, name: PartName, outcome: Outcome, note: str, cost: Cost = FREE, seconds: float = 0.0) -> None:
        self.done.append(Part(name, outcome, self._budget.prices.get(name, 0.0), cost, seconds, note))
        try:
            self._report(name)(name, 1.0)
        except KeyboardInterrupt:
            self._is_interrupted = True

    def _report(self, name: PartName) -> Progress:
        """Progress of one part as that of all parts; a part that was not planned has none."""
        prices, total = self._budget.prices, sum(self._budget.prices.values())
        names = list(prices)
        planned = names.index(name) if name in names else len(names)
        begin, end = (sum(list(prices.values())[:count]) / total for count in (planned, planned + 1))

        def report(_what: str, share: float) -> None:
            if self._progress is not None and name in prices:
                self._share = max(self._share, min(begin + (end - begin) * share, end))  # though plans change
                self._progress(name, self._share)

        return report
