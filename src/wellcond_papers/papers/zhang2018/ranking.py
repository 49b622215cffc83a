"""The accuracies of Table 1 of zhang2018, and which method is ahead."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from statistics import median

from wellcond.results.quantities import TEST_ACCURACY
from wellcond_papers.experiments.claims import Outcome, is_greater, judged
from wellcond_papers.experiments.table import Table
from wellcond_papers.papers.percentages import error_of_test
from wellcond_papers.papers.zhang2018.methods import DEPTHS, METHODS, PRINTED
from wellcond_papers.papers.zhang2018.training import AMENDED


def accuracies(table: Table, arm: str) -> list[float]:
    """Per cent at the end, of each seed; none if a run diverged."""
    runs = table.arm(arm)
    return [] if any(record.has_diverged for record in runs) else [100 * share for share in runs.lasts(TEST_ACCURACY)]


def ran(table: Table, data: str) -> Iterator[tuple[int, dict[str, list[float]]]]:
    """The accuracies of all methods at each depth that was run."""
    for depth in DEPTHS:
        arms = {method: f"VGG-{depth}, {data}, {method}" for method in METHODS}
        if own := {method: accuracies(table, arm) for method, arm in arms.items() if arm in table.arms}:
            yield depth, own


def middle(values: list[float]) -> str:
    """The median of the seeds, as text."""
    return f"{median(values):.1f}" if values else "diverged"


def in_words(table: Table, data: str) -> str:
    """The medians, as text, and which depths were not run."""
    parts = []
    for depth, runs in ran(table, data):
        each = [f"{method} {middle(values)}" for method, values in runs.items()]
        parts.append(f"VGG-{depth}: {', '.join(each)}")
    missing = [f"VGG-{depth}" for depth in DEPTHS if depth not in dict(ran(table, data))]
    parts += [f"not run: {', '.join(missing)}"] if missing else []
    return "in percent, " + "; ".join(parts) if len(missing) < len(DEPTHS) else ""


def ours(runs: dict[str, list[float]]) -> list[float] | None:
    """Scale-amended SGD at the rate of the table, or at that of figure 1 if it was run at no other; None if neither."""
    return runs.get(PRINTED, runs.get(AMENDED))


def is_ahead(own: list[float], other: list[float]) -> bool | None:
    """Whether the median of one method is higher than that of another; a method that diverged is not ahead.

    None if the medians differ by less than the choice of the test images explains, or the seeds are too far apart to
    tell. By this rule scale-amended SGD and SGD are level in the source's own table for VGG-11, 13 and 16 on CIFAR-10.

    Args:
        own: Per cent, of each seed.
        other: Likewise.
    """
    if not own or not other:
        return bool(own)
    lead = median(own) - median(other)
    error = 100 * error_of_test([share / 100 for share in (*own, *other)])
    return None if abs(lead) <= error or is_greater(own, other) is None else lead > 0


def is_ahead_of_all(own: list[float], others: Iterable[list[float]]) -> bool | None:
    """Whether one method is more accurate than each of the others; None if it is level with one of them."""
    ahead = [is_ahead(own, other) for other in others]
    return False if False in ahead else None if None in ahead else True


def best(table: Table, data: str, rivals: tuple[str, ...], depths: tuple[int, ...] = DEPTHS) -> list[bool | None]:
    """Whether scale-amended SGD is ahead of all of these methods, at each depth at which all of them were run.

    None for a depth at which it is level with one of them.
    """
    cases: list[bool | None] = []
    for depth, runs in ran(table, data):
        own, others = ours(runs), [runs[method] for method in rivals if method in runs]
        if depth in depths and own is not None and len(others) == len(rivals):
            cases.append(is_ahead_of_all(own, others))
    return cases


def judged_of(count: int, cases: Sequence[bool | None], measured: str) -> Outcome:
    """The outcome of a claim about this many networks or methods; while some are not run, it holds in part at best."""
    outcome = judged(cases, measured)
    return replace(outcome, verdict="holds in part") if outcome.verdict == "holds" and len(cases) < count else outcome
