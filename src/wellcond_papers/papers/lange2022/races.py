"""Races of learning rates: every method of a row of a table at several rates, an arm each, and which was best."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from wellcond.report.figures.style import legend_below, look_of
from wellcond.results.quantities import LOSS
from wellcond_papers.experiments.claims import END, Claim, Outcome, is_greater, judged
from wellcond_papers.experiments.experiment import Settings
from wellcond_papers.experiments.pictures import panels
from wellcond_papers.experiments.table import Table
from wellcond_papers.papers.lange2022.comparison import COMPARABLE
from wellcond_papers.papers.lange2022.runs import is_near, of_seeds
from wellcond_papers.papers.percentages import percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEVEL = 0.005
"""Accuracies at two rates that differ by no more are as good: the best of several is ahead by chance."""


def raced(row: str, method: str, rates: Iterable[float], **settings: object) -> dict[str, Settings]:
    """The arms of a method, one per rate.

    Example:
        >>> raced("batch 6", "BN", [0.05], batch=6)
        {'batch 6: BN at 0.05': {'method': 'BN', 'lr': 0.05, 'batch': 6}}
    """
    return {f"{row}: {method} at {rate:g}": {"method": method, "lr": rate, **settings} for rate in rates}


def by_rate(table: Table, row: str, method: str) -> dict[float, Table]:
    """The runs of a method, by their rate."""
    own = [arm for arm in table.arms if arm.startswith(f"{row}: {method} at ")]
    return {table.arm(arm)[0].settings["lr"]: table.arm(arm) for arm in own}


def best_rate(runs: Mapping[float, Table]) -> float:
    """The rate with the highest mean accuracy in the end."""
    return max(runs, key=lambda rate: fmean(of_seeds(runs[rate])))


def best_are_printed(row: str, printed: Mapping[str, float]) -> Claim:
    """The best of the raced rates is the printed one, method by method; a tie if both are as good."""

    def check(table: Table) -> Outcome:
        cases: list[bool | None] = []
        details = []
        for method, rate in printed.items():
            runs = by_rate(table, row, method)
            if rate not in runs or len(runs) == 1:
                continue
            best = best_rate(runs)
            ours, theirs = of_seeds(runs[best]), of_seeds(runs[rate])
            is_better = is_greater(ours, theirs, at_least=LEVEL)
            cases.append(True if best == rate else None if is_better is None else False)
            other = f", {_percent(theirs)} at {rate:g}" if best != rate else ""
            details.append(f"{method} {best:g} ({_percent(ours)}{other})")
        return judged(cases, "; ".join(details))

    listed = ", ".join(f"{method} {rate:g}" for method, rate in printed.items())
    says = f"{row}: the best rates are the printed ones (within half a point is a tie)"
    return Claim(says, listed, check, needs=END)


def converges_better(says: str, paper: str, rows: Sequence[str], better: str, worse: str) -> Claim:
    """The training loss is lower in the end, each method at the rate that lowers it most."""

    def check(table: Table) -> Outcome:
        cases, details = [], []
        for row in rows:
            ours, theirs = (_lowest_losses(by_rate(table, row, method)) for method in (better, worse))
            if ours and theirs:
                cases.append(is_greater(theirs, ours))
                details.append(f"{row}: training loss {fmean(ours):.3g} against {fmean(theirs):.3g}")
        return judged(cases, "; ".join(details))

    return Claim(says, paper, check, needs=END)


def _lowest_losses(runs: Mapping[float, Table]) -> list[float]:
    """The final losses of all seeds at the best rate; diverged runs are out of the race."""
    finished = [seeds.lasts(LOSS) for seeds in runs.values() if not any(record.has_diverged for record in seeds)]
    return min(finished, key=fmean, default=[])


def as_good(says: str, paper: str, pairs: Sequence[tuple[str, str, str]]) -> Claim:
    """Two methods of a row end with comparable accuracies, each at its best rate."""
    return _between_best(says, paper, pairs, lambda ours, theirs: is_near(ours, theirs, COMPARABLE))


def is_better(says: str, paper: str, pairs: Sequence[tuple[str, str, str]]) -> Claim:
    """A method of a row ends with a higher accuracy than another, each at its best rate."""
    return _between_best(says, paper, pairs, lambda ours, theirs: is_greater(ours, theirs, at_least=LEVEL))


def _between_best(
    says: str,
    paper: str,
    pairs: Sequence[tuple[str, str, str]],
    is_so: Callable[[Sequence[float], Sequence[float]], bool | None],
) -> Claim:
    """A claim about the accuracies of two methods of a row, each at its best rate."""

    def check(table: Table) -> Outcome:
        cases, details = [], []
        for row, *methods in pairs:
            raced_ones = [by_rate(table, row, method) for method in methods]
            if all(raced_ones):
                ours, theirs = (of_seeds(runs[best_rate(runs)]) for runs in raced_ones)
                cases.append(is_so(ours, theirs))
                details.append(f"{row}: {methods[0]} {_percent(ours)}, {methods[1]} {_percent(theirs)}")
        return judged(cases, "; ".join(details))

    return Claim(says, paper, check, needs=END)


def _percent(seeds: Sequence[float]) -> str:
    return percent([100 * share for share in seeds])


def drawing(printed: Mapping[str, Mapping[str, float]]) -> Callable[[Table], Figure]:
    """The final accuracy over the rate, a panel per row of the table; the printed rates are circles."""

    def draw(table: Table) -> Figure:
        split = {arm: arm.split(": ", 1) for arm in table.arms}
        rows = list(dict.fromkeys(row for row, _ in split.values()))
        methods = list(dict.fromkeys(rest.rpartition(" at ")[0] for _, rest in split.values()))
        figure, axes = panels(rows)
        for row in rows:
            for place, method in enumerate(methods):
                runs = by_rate(table, row, method)
                heights = {rate: fmean(of_seeds(runs[rate])) for rate in sorted(runs)}
                look = look_of(place)
                axes[row].plot(list(heights), list(heights.values()), marker=".", label=method, **look)
                best = printed.get(row, {}).get(method)
                if best in heights:
                    circle = {"markersize": 11, "markerfacecolor": "none", "color": look["color"]}
                    axes[row].plot([best], [heights[best]], "o", **circle)
            axes[row].set(xscale="log", xlabel="learning rate", ylabel="test accuracy")
        legend_below(figure, axes[rows[0]], columns=4)
        return figure

    return draw
