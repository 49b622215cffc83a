"""What a race could reach at best: all 22 rates are trained for fewer steps, and the best of them is moved by a law.

python -m benchmarks.rates.bound        # seconds: reads the final losses of the sweep; to docs/figures/rates_bound.png

A law multiplies the best rate after fewer steps (both seeds, smoothed over neighbors) by a factor: one for all tasks,
one for each kind of optimizer that `suggest_lr` tells apart, or one by a linear law of what the short sweep shows. The
first two are chosen by how many of the judged tasks they bring within 10 %, so that none of their form does better; the
linear one is fitted to these tasks by least squares. The second count is of tasks that the law has not seen: they are
left out one at a time. Whoever trains less knows less: a race of `suggest_lr` takes 500 steps, the sweep 22 × 400.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.rates.judging import Judge
from benchmarks.rates.sweep import ALL, LENGTHS
from wellcond.learning_rate.race.race import drift_of
from wellcond.report.figures.style import COLORS, GRAY, bare_axes, new_figure

ROOT = Path(__file__).resolve().parents[2]
FINALS = ROOT / "benchmarks" / "results" / "rates_finals.npz"
PICTURE = ROOT / "docs" / "figures" / "rates_bound.png"
FACTORS = np.geomspace(0.02, 5, 241)
WITHIN, FAR = 1.1, 1.5

Array = NDArray[np.float64]
Law = Callable[[NDArray[np.intp]], Array]
"""By the tasks that it is fitted to, the factor of every task."""


class Shorter:
    """Tasks whose rates are known after fewer steps, and judged after more.

    Attributes:
        names: The tasks.
        ratios: The loss over the lowest at the best rate after fewer steps times a factor: (tasks, factors).
        is_good: Whether a factor brings a task within 10 %.
    """

    def __init__(self, judge: Judge, fewer: int, steps: int) -> None:
        self.judge, self.fewer, self.steps = judge, fewer, steps
        self.names = [name for name in ALL if judge.knows(name, 0, steps)]
        self.ratios = np.array([[self.ratio(name, factor) for factor in FACTORS] for name in self.names])
        self.is_good = self.ratios <= WITHIN

    def ratio(self, name: str, factor: float) -> float:
        """The loss over the lowest at the best rate after fewer steps times a factor."""
        return self.judge.ratio(name, self.steps, self.judge.best(name, self.fewer) * factor)

    def one_for_all(self, fitted: NDArray[np.intp]) -> Array:
        return np.full(len(self.names), _most_good(self.is_good[fitted]))

    def one_per_kind(self, fitted: NDArray[np.intp]) -> Array:
        """Kinds of optimizer as `suggest_lr` moves their rates: plain SGD, Adagrad, all others."""
        weight = torch.nn.Parameter(torch.zeros(1))
        kinds = np.array([drift_of(ALL[name].optimizer([weight], lr=0.1)) for name in self.names])
        return np.array([_most_good(self.is_good[fitted[kinds[fitted] == kind]]) for kind in kinds])

    def linear(self, fitted: NDArray[np.intp]) -> Array:
        """Of the script's own rate, of how far rates are as good below and above the best, and of the fall so far."""
        shown = np.array([self._shown(name) for name in self.names])
        middles = np.array([np.mean(self._good_rates(name, self.steps)) for name in self.names])
        best = middles - np.log([self.judge.best(name, self.fewer) for name in self.names])
        return np.exp(shown @ np.linalg.lstsq(shown[fitted], best[fitted], rcond=None)[0])

    def count(self, factors: Sequence[float] | Array) -> int:
        """How many tasks their factors bring within 10 %."""
        return sum(self.ratio(name, factor) <= WITHIN for name, factor in zip(self.names, factors, strict=True))

    def left_out(self, law: Law) -> int:
        """The same with each task's factor fitted to the other tasks."""
        every = np.arange(len(self.names))
        return self.count([law(np.delete(every, place))[place] for place in every])

    def fewest_far(self) -> int:
        """How many tasks end above 1.5 times the lowest loss, whatever the factor is."""
        return int((self.ratios > FAR).sum(0).min())

    def _shown(self, name: str) -> list[float]:
        best, (low, high) = np.log(self.judge.best(name, self.fewer)), self._good_rates(name, self.fewer)
        fall = self.judge.smoothed(name, self.fewer)[0].min() - self.judge.first(name)
        return [1.0, np.log(ALL[name].own) - best, best - low, high - best, fall]

    def _good_rates(self, name: str, steps: int) -> tuple[float, float]:
        """The logarithms of the rates around the best that are within 10 %."""
        losses = self.judge.smoothed(name, steps)[0]
        best, is_bad = int(losses.argmin()), losses > losses.min() + np.log(WITHIN)
        low = max(np.flatnonzero(is_bad[:best]), default=-1) + 1
        high = best + min(np.flatnonzero(is_bad[best:]), default=len(losses) - best) - 1
        return float(np.log(ALL[name].rates[low])), float(np.log(ALL[name].rates[high]))


def _most_good(is_good: NDArray[np.bool_]) -> float:
    """The factor that brings most tasks within 10 %; 1 without tasks."""
    return float(FACTORS[is_good.sum(0).argmax()]) if len(is_good) else 1.0


def picture(shorter: Shorter) -> Any:
    """Of every task the factors within 10 %, and the one that lies in most of these bars."""
    figure = new_figure(7.5, 1.2 + 0.2 * len(shorter.names))
    axes = figure.subplots()
    order = np.argsort([np.log(FACTORS[good]).mean() for good in shorter.is_good])
    best = _most_good(shorter.is_good)
    for place, task in enumerate(order):
        good = shorter.is_good[task]
        color = COLORS[1] if good[np.searchsorted(FACTORS, best)] else COLORS[0]
        axes.plot(FACTORS, np.where(good, place, np.nan), color=color, linewidth=4, solid_capstyle="butt")
    axes.axvline(best, color=GRAY, linewidth=1.2)
    axes.set_xscale("log")
    axes.set_yticks(range(len(order)), [shorter.names[task] for task in order], fontsize=8)
    bare_axes(axes, x=f"rates within 10 % after {shorter.steps:,} steps, over the best after {shorter.fewer}")
    return figure


def main() -> None:
    judge = Judge(dict(np.load(FINALS)))
    print("known after  judged after  cost of knowing  law            within 10 %  left out")
    for place, fewer in enumerate(LENGTHS):
        for steps in LENGTHS[place + 1 :]:
            shorter = Shorter(judge, fewer, steps)
            every = np.arange(len(shorter.names))
            laws: dict[str, Law] = {
                "one for all": shorter.one_for_all, "one per kind": shorter.one_per_kind, "linear": shorter.linear,
            }  # fmt: skip
            for name, law in laws.items():
                counts = f"{shorter.count(law(every)):5d} of {len(every)}  {shorter.left_out(law):8d}"
                print(f"{fewer:11,d}  {steps:12,d}  {22 * fewer:15,d}  {name:13s}  {counts}")
            print(f"one for all: above {FAR:g} times the lowest loss at least {shorter.fewest_far()}")
    picture(Shorter(judge, LENGTHS[0], LENGTHS[-1])).savefig(PICTURE, dpi=130)


if __name__ == "__main__":
    main()
