"""What lange2022's sentences about training curves mean in numbers, and their picture.

An arm is called "panel: method". A run that diverged counts as an accuracy of 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from wellcond.report.figures.style import GRAY, bare_axes, draw_curves, new_figure
from wellcond.results import number
from wellcond.results.quantities import LOSS, TEST_ACCURACY
from wellcond_papers.experiments.claims import Claim, Outcome, judged
from wellcond_papers.experiments.experiment import Settings
from wellcond_papers.experiments.table import Record, Table
from wellcond_papers.papers.percentages import DISAGREE, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COMPARABLE = 0.02
"""Accuracies that differ by no more are comparable."""
SIGNIFICANT = 0.02
"""Accuracies that differ by more differ significantly."""
BEGINNING = 0.2
"""The share of a run that is its beginning."""


def arms(panel: str, methods: Mapping[str, Settings], **common: object) -> dict[str, Settings]:
    """The arms of a panel.

    Example:
        >>> arms("MNIST", {"BNP": {"lr": 0.5}}, batch=60)
        {'MNIST: BNP': {'method': 'BNP', 'batch': 60, 'lr': 0.5}}
    """
    return {f"{panel}: {method}": {"method": method, **common, **own} for method, own in methods.items()}


def rates(**by_method: float) -> dict[str, Settings]:
    """Settings of methods that differ in the learning rate alone."""
    return {method: {"lr": lr} for method, lr in by_method.items()}


# what is compared


def first_step_at(curve: Mapping[int, float], loss: float) -> float:
    """The first step with a loss of at most `loss`, on a curve linear between evaluations; inf if there is none.

    Example:
        >>> first_step_at({0: 3.0, 100: 2.0, 200: 1.0}, 1.75)
        125.0
    """
    before: tuple[int, float] | None = None
    for step, value in curve.items():
        if value <= loss:
            if before is None:
                return float(step)
            share = (before[1] - loss) / (before[1] - value)
            return before[0] + share * (step - before[0])
        before = step, value
    return math.inf


def steps_to_loss_of(reference: Table, runs: Table) -> list[tuple[float, float]]:
    """Seed by seed: the share of the reference's steps after which it, and a run, reach the loss it ends with."""
    pairs = []
    for own in reference:
        curve = own.series(LOSS)
        if own.has_diverged or not curve:
            continue
        end = max(curve)
        for run in runs.where(seed=own.settings["seed"]):
            pairs.append((first_step_at(curve, curve[end]) / end, first_step_at(run.series(LOSS), curve[end]) / end))
    return pairs


def accuracy(runs: Table, begin: float = 1.0, end: float = 1.0) -> float | None:
    """The mean test accuracy over the seeds, at the end or over a stretch of the run; None without runs."""
    values = of_seeds(runs, begin, end)
    return fmean(values) if values else None


def of_seeds(runs: Table, begin: float = 1.0, end: float = 1.0) -> list[float]:
    """The test accuracy of every seed."""
    return [_accuracy(record, begin, end) for record in runs]


def _accuracy(record: Record, begin: float, end: float) -> float:
    series = record.series(TEST_ACCURACY)
    if record.has_diverged or not series:
        return 0.0
    last = max(series)
    # looks are at whole steps, which may lie half a step outside
    return fmean(value for step, value in series.items() if step and begin * last - 1 < step < end * last + 1)


def accuracies(
    table: Table, panel: str, methods: Sequence[str], begin: float = 1.0, end: float = 1.0
) -> dict[str, list[float]]:
    """The test accuracies of all seeds, by the methods of a panel that were run."""
    by_method = {method: of_seeds(table.arm(f"{panel}: {method}"), begin, end) for method in methods}
    return {method: seeds for method, seeds in by_method.items() if seeds}


# claims


def reaches_sooner(says: str, paper: str, runs: Sequence[tuple[str, str]]) -> Claim:
    """An arm reaches the final training loss of another sooner than that one itself.

    Args:
        says: The claim.
        paper: The paper's words.
        runs: Arms: the faster one and the one whose loss it reaches.
    """

    def check(table: Table) -> Outcome:
        cases, details = [], []
        for arm, reference in runs:
            shares = steps_to_loss_of(table.arm(reference), table.arm(arm))
            cases += [other < own for own, other in shares]
            if shares:
                mean = fmean(other for _, other in shares)
                when = f"after {mean:.2f} of its steps" if mean < math.inf else "not in every run"
                details.append(f"{arm} reaches the loss of {reference.split(': ')[-1]} {when}")
        return judged(cases, "; ".join(details))

    return Claim(says, paper, check)


def outperforms(
    says: str, paper: str, panel: str, better: Sequence[str], worse: Sequence[str], *, by: float = 0.0,
    begin: float = 1.0, end: float = 1.0,
) -> Claim:  # fmt: skip
    """Every one of some methods has a higher test accuracy than every one of others.

    Args:
        says: The claim.
        paper: The paper's words.
        panel: The panel.
        better: The methods that are claimed to be better.
        worse: The methods they are compared with.
        by: The least difference.
        begin: The share of the run from which the accuracy is averaged.
        end: The share up to which it is.
    """

    def check(table: Table) -> Outcome:
        high, low = (accuracies(table, panel, methods, begin, end) for methods in (better, worse))
        cases = [fmean(a) > fmean(b) + by for a in high.values() for b in low.values()]
        return judged(cases, _listed(high | low, table, panel))

    return Claim(says, paper, check)


def ahead_early(says: str, paper: str, panel: str, faster: Sequence[str], slower: Sequence[str]) -> Claim:
    """The mean test accuracy over the beginning of the run is higher."""
    return outperforms(says, paper, panel, faster, slower, begin=0.0, end=BEGINNING)


def comparable(says: str, paper: str, panel: str, methods: Sequence[str], within: float = COMPARABLE) -> Claim:
    """The final test accuracies of methods, all against the first, differ by little."""

    def check(table: Table) -> Outcome:
        by_method = accuracies(table, panel, methods)
        values = [fmean(seeds) for seeds in by_method.values()]
        return judged([abs(value - values[0]) <= within for value in values[1:]], _listed(by_method, table, panel))

    return Claim(says, paper, check)


def does_not_train(says: str, paper: str, panel: str, method: str) -> Claim:
    """The training loss is no lower in the end than in the beginning."""

    def check(table: Table) -> Outcome:
        runs = table.arm(f"{panel}: {method}")
        ends = [(series[0], series[max(series)]) for record in runs if (series := record.series(LOSS))]
        details = f"loss {fmean(a for a, _ in ends):.3g}, then {fmean(b for _, b in ends):.3g}; " if ends else ""
        return judged([b >= a for a, b in ends], details + _listed(accuracies(table, panel, [method]), table, panel))

    return Claim(says, paper, check)


def gains_more(says: str, paper: str, panel: str, more: Sequence[str], less: Sequence[str], *, at: float) -> Claim:
    """The test accuracy of every one of some methods rises more from a share of the run to its end."""

    def gains(table: Table, methods: Sequence[str]) -> dict[str, list[float]]:
        before, after = accuracies(table, panel, methods, at - 0.1, at), accuracies(table, panel, methods)
        return {m: [b - a for a, b in zip(before[m], after[m], strict=True)] for m in before}

    def check(table: Table) -> Outcome:
        high, low = gains(table, more), gains(table, less)
        cases = [fmean(a) > fmean(b) for a in high.values() for b in low.values()]
        return judged(cases, _listed(high | low, table, panel))

    return Claim(says, paper, check)


def overfits(says: str, paper: str, panel: str, method: str, *, after: int) -> Claim:
    """The test accuracy is lower in the end than at its best, and the runs are longer than `after` steps."""

    def check(table: Table) -> Outcome:
        mean = table.arm(f"{panel}: {method}").mean_series(TEST_ACCURACY)
        if not mean or max(mean) <= after:
            return judged([], f"the runs end before step {after}" if mean else "")
        best = max(mean, key=mean.__getitem__)
        details = f"{100 * mean[best]:.1f} % at step {best}, {100 * mean[max(mean)]:.1f} % in the end"
        return judged([mean[max(mean)] < mean[best]], details)

    return Claim(says, paper, check)


def _listed(by_method: Mapping[str, Sequence[float]], table: Table, panel: str) -> str:
    """Accuracies by method, with the number of runs that diverged."""
    parts = []
    for method, seeds in by_method.items():
        lost = sum(record.has_diverged for record in table.arm(f"{panel}: {method}"))
        result = "diverged" if lost == len(seeds) else percent([100 * share for share in seeds])
        parts.append(f"{method} {result}" + (f" ({lost} diverged)" if 0 < lost < len(seeds) else ""))
    return ", ".join(parts)


# the picture


def draw(table: Table) -> Figure:
    """Training loss above and test accuracy below, one column per panel."""
    split = {arm: arm.split(": ", 1) for arm in table.arms}
    titles = list(dict.fromkeys(panel for panel, _ in split.values()))
    methods = list(dict.fromkeys(method for _, method in split.values()))
    figure = new_figure(max(4.2 * len(titles), 7.0), 6.6)
    columns = figure.subplots(2, len(titles), squeeze=False, sharex="col").T
    for title, (above, below) in zip(titles, columns, strict=True):
        runs = {split[arm][1]: table.arm(arm) for arm in table.arms if split[arm][0] == title}
        for axes, quantity in ((above, LOSS), (below, TEST_ACCURACY)):
            _draw_runs(axes, runs, quantity, methods)
        _zoom(above, {method: _curves(seeds, LOSS) for method, seeds in runs.items()})
        bare_axes(above, title=title, y="training loss")
        bare_axes(below, x="training step", y="test accuracy")
    handles = {label: h for axes in columns[:, 0] for h, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    named = [method for method in methods if method in handles]
    figure.legend([handles[m] for m in named], named, loc="outside lower center", ncols=len(named), frameon=False)
    return figure


def _draw_runs(axes: Axes, runs: Mapping[str, Table], quantity: str, methods: Sequence[str]) -> None:
    """One line per method in the band of its seeds; one per seed where the seeds end far apart."""
    for method, seeds in runs.items():
        ends = of_seeds(seeds)
        curves = _curves(seeds, quantity)
        apart = 100 * (max(ends) - min(ends)) > DISAGREE
        for group in ([curve] for curve in curves) if apart else [curves] if curves else []:
            draw_curves(axes, {method: group}, methods)


def _curves(runs: Table, quantity: str) -> list[tuple[list[int], list[float]]]:
    curves = [record.series(quantity) for record in runs]
    return [(list(series), list(series.values())) for series in curves if series]


def _zoom(axes: Axes, curves: Mapping[str, Sequence[tuple[list[int], list[float]]]]) -> None:
    """Cut the axis a little above the lowest initial loss; a note names the methods that go higher."""
    highest = {method: max(max(heights) for _, heights in lines) for method, lines in curves.items() if lines}
    runs = [heights for lines in curves.values() for _, heights in lines]
    if not runs:
        return
    least, top = min(min(heights) for heights in runs), 1.15 * min(heights[0] for heights in runs)
    if 0 < least < 0.1:
        axes.set_yscale("log")
    if 0 < least < top:
        axes.set_ylim(0.9 * least, top)
        above = [f"{method} {number(value)}" for method, value in highest.items() if value > top]
        note = f"higher at times: {', '.join(above)}" if above else ""
        axes.text(0.98, 0.98, note, transform=axes.transAxes, ha="right", va="top", fontsize=8, color=GRAY)
