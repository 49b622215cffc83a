"""What short runs and remedies did, as curves of the loss."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from wellcond.report.strips import BLOCKS, MOST_BLOCKS
from wellcond.results import number

Curve = tuple[Sequence[float], Sequence[float]]
"""Training steps (n,), and losses (n,)."""


MOST_CURVES = 6
"""Of remedies in one plot: there are as many colors."""


class Trained(Protocol):
    """A training run. A `wellcond.training.run.Run` is one."""

    @property
    def losses(self) -> Sequence[float]: ...
    def curve(self) -> tuple[Sequence[int], Sequence[float]]: ...


class ShortRun(Protocol):
    """A run at one rate."""

    @property
    def lr(self) -> float: ...
    @property
    def run(self) -> Trained: ...


class ShortRuns(Protocol):
    """Short runs of copies. A `wellcond.diagnosis.trial.Trial` is one."""

    @property
    def own(self) -> ShortRun | None: ...
    @property
    def others(self) -> Sequence[ShortRun]: ...
    @property
    def variants(self) -> Mapping[str, ShortRun]: ...
    @property
    def few(self) -> ShortRun | None: ...


class TreatedArm(Protocol):
    """One remedy, or the untreated network."""

    @property
    def name(self) -> str: ...
    @property
    def best_lr(self) -> float | None: ...
    @property
    def runs(self) -> Mapping[float, Mapping[int, Trained]]: ...


class Treated(Protocol):
    """What remedies did. A `wellcond.treatment.treatment.Treatment` is one."""

    @property
    def title(self) -> str: ...
    @property
    def code(self) -> str: ...
    @property
    def notes(self) -> Sequence[str]: ...
    @property
    def arms(self) -> Mapping[str, TreatedArm]: ...
    @property
    def untreated(self) -> TreatedArm: ...
    @property
    def best(self) -> TreatedArm | None: ...
    def verdict(self) -> str: ...
    def table(self) -> tuple[list[str], list[list[str]]]: ...


def helps(treated: Treated) -> bool:
    """Whether a remedy is better than none."""
    return treated.best is not None and treated.best.name != treated.untreated.name


def trial_curves(trial: ShortRuns) -> dict[str, Curve]:
    """The loss of every short run, by what was tried: the optimizer as it is first."""
    runs: dict[str, ShortRun] = {}
    if trial.own is not None:
        runs[f"as it is, lr {trial.own.lr:.3g}"] = trial.own
    runs |= {f"lr {each.lr:.3g}": each for each in trial.others}
    runs |= dict(trial.variants)
    if trial.few is not None:
        runs[f"a handful of examples, Adam, lr {trial.few.lr:.3g}"] = trial.few
    curves = {name: list(each.run.losses) for name, each in runs.items()}
    return {name: (list(range(1, len(losses) + 1)), _gaps(losses)) for name, losses in curves.items() if losses}


def treated_curves(treated: Treated, *, only_best: bool = False) -> dict[str, Curve]:
    """The loss of arms at their rates, the mean over seeds: the untreated network, the best remedy, then the others.

    Args:
        treated: What remedies did.
        only_best: Leave the others out.
    """
    chosen = [treated.untreated, *([treated.best] if treated.best is not None else [])]
    chosen += [] if only_best else treated.arms.values()
    curves: dict[str, Curve] = {}
    for arm in {arm.name: arm for arm in chosen}.values():
        rate = arm.best_lr if arm.best_lr is not None else min(arm.runs, default=None)
        if rate is not None:
            found = [run.curve() for run in arm.runs[rate].values()]
            steps = min((steps for steps, _ in found), key=len)
            mean = [sum(losses[i] for _, losses in found) / len(found) for i in range(len(steps))]
            curves |= {f"{arm.name}, lr {rate:.3g}": (list(steps), _gaps(mean))} if steps else {}
    return dict(list(curves.items())[:MOST_CURVES])


def sparklines(curves: Mapping[str, Curve]) -> dict[str, str]:
    """Each curve in blocks, all on one scale from 0 to the largest first loss, with where it begins and ends.

    Example:
        >>> sparklines({"before": ([1, 2], [2.0, 2.0]), "after": ([1, 2], [2.0, 0.5])})
        {'before': '██  2 → 2', 'after': '█▂  2 → 0.5'}
    """
    known = {name: [loss for loss in losses if not math.isnan(loss)] for name, (_, losses) in curves.items()}
    top = max((losses[0] for losses in known.values() if losses), default=1.0) or 1.0
    lines = {}
    for name, losses in known.items():
        size = -(-len(losses) // MOST_BLOCKS) or 1
        blocks = "".join(_block(losses[i] / top) for i in range(0, len(losses), size))
        lines[name] = f"{blocks}  {number(losses[0])} → {number(losses[-1])}" if losses else "diverged at once"
    return lines


def _block(share: float) -> str:
    return BLOCKS[min(max(math.ceil(share * len(BLOCKS)) - 1, 0), len(BLOCKS) - 1)]


def _gaps(values: Iterable[float]) -> list[float]:
    """NaN, a gap in a curve, in place of what is not finite."""
    return [value if math.isfinite(value) else math.nan for value in values]
