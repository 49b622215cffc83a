"""Judges the long runs of `benchmarks.treatments`: the tables of the guide, and its picture.

A winner holds if it ends below the untreated network after ten times more steps: by more than the 95 % interval of
their differences over seeds and batches of the test, or by more than a hundredth of the loss of an uninformed answer;
or if it finishes where that diverges. A random remedy wins if it ends below the winner by more than both.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.treatments import HEALTHY, RESULTS, SICK
from wellcond.report.figures.style import COLORS, GRAY, bare_axes, legend_below, new_figure
from wellcond.results import number
from wellcond.treatment.arm import Change

NEGLIGIBLE = 0.01
"""Of the loss of an uninformed answer."""
SHOWN = (1e-3, 3.0)
"""Shares beyond these stand at the edge."""
PICTURE = Path(__file__).parents[1] / "docs" / "figures" / "treatments.png"
UNTREATED = "untreated"


@dataclass(frozen=True)
class Outcome:
    """What the long runs say of one treatment.

    Attributes:
        name: The set-up.
        winner: What `treat` chose; the untreated network if it says that nothing helps.
        random: The remedy drawn at random; "" if there was none.
        losses: Losses of the test after the long runs by arm, means over seeds; infinite where one diverged.
        change: The winner's loss less that of the untreated network; None where either diverged, or both are one.
        holds: Whether the winner still wins; None if `treat` says that nothing helps.
        random_wins: Whether the random remedy ends clearly below the winner.
    """

    name: str
    winner: str
    random: str
    losses: dict[str, float]
    change: Change | None
    holds: bool | None
    random_wins: bool


def outcome_of(name: str, result: dict[str, Any]) -> Outcome:
    """Compare the winner with the untreated network and the random remedy."""
    long = {arm: each["judged"] for arm, each in result["long"].items()}
    losses = {arm: fmean(map(fmean, judged)) if all(judged) else math.inf for arm, judged in long.items()}
    winner, random = result["winner"] or UNTREATED, result["random"] or ""
    change = None if winner == UNTREATED else _change(long[winner], long[UNTREATED])
    from_winner = _change(long[random], long[winner]) if random in long else None
    little = NEGLIGIBLE * abs(result["uninformed"])
    return Outcome(
        name, winner, random, losses, change,
        holds=None if winner == UNTREATED else losses[winner] < losses[UNTREATED] and _is_gain(change, any, little),
        random_wins=from_winner is not None and _is_gain(from_winner, all, little),
    )  # fmt: skip


def _is_gain(change: Change | None, of: Callable[[Iterable[bool]], bool], little: float) -> bool:
    """Whether any, or all, of these hold: it is more than noise, and it is more than little."""
    return change is None or (change.mean < 0 and of([change.high < 0, change.mean < -little]))


def _change(ours: list[list[float]], theirs: list[list[float]]) -> Change | None:
    if not all(ours) or not all(theirs):
        return None
    return Change.of([[a - b for a, b in zip(*pair, strict=True)] for pair in zip(ours, theirs, strict=True)])


def outcomes(results: dict[str, Any]) -> dict[str, Outcome]:
    """Of all set-ups that were measured, in the order in which they were chosen."""
    measured = results["set-ups"]
    return {name: outcome_of(name, measured[name]) for name in (*SICK, *HEALTHY) if "long" in measured.get(name, {})}


def treatments_table(results: dict[str, Any]) -> str:
    """One line per set-up, as the guide shows it; and how often what `treat` says holds."""
    steps, longer = results["steps"], results["steps"] * results["longer"]
    lines = [
        f"| set-up | untreated, {steps} steps | what treat chose | untreated, {longer} steps | its choice | "
        "difference (95 %) | random remedy | holds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    every = outcomes(results)
    for name, each in every.items():
        arms = results["set-ups"][name]["arms"]
        is_helped = each.winner != UNTREATED
        cells = [
            f"{'sick' if name in SICK else 'healthy'}: {name}",
            _text(_median(arms[UNTREATED]["finals"])),
            f"**{each.winner}** {_text(_median(arms[each.winner]['finals']))}" if is_helped else "nothing helps",
            _text(each.losses[UNTREATED]),
            _text(each.losses[each.winner]) if is_helped else "",
            "" if each.change is None else str(each.change),
            f"{each.random} {_text(each.losses[each.random])}" if each.random in each.losses else "",
            {True: "yes", False: "no", None: ""}[each.holds],
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", summary(every)])


def summary(every: dict[str, Outcome]) -> str:
    """How often what `treat` says holds."""
    sick, healthy = ([every[name] for name in names if name in every] for names in (SICK, HEALTHY))
    helped = [each for each in sick if each.holds is not None]
    right = [each for each in healthy if each.holds in (None, True)]
    silent = sum(each.holds is None for each in healthy)
    unhelped = [each for each in every.values() if each.holds is None]
    missed = sum(each.random_wins for each in unhelped)
    beaten = sum(each.random_wins for each in every.values()) - missed
    return (
        f"Of {len(sick)} sick set-ups a remedy helps {len(helped)}; after ten times more steps it still wins in "
        f"{sum(each.holds is True for each in helped)} of these. Of {len(healthy)} healthy ones `treat` says that "
        f"nothing helps, or names a gain that holds, in {len(right)} ({silent} and {len(right) - silent}). The random "
        f"remedy ends clearly below a winner in {beaten} of {len(every) - len(unhelped)}, and clearly below the "
        f"untreated network in {missed} of the {len(unhelped)} where `treat` says that nothing helps."
    )


def bnp_table(results: dict[str, Any]) -> str:
    """One line per network: the optimizer alone, and with BNP over it."""
    lines = ["| network | optimizer alone | with BNP | change (95 %) |", "|---|---|---|---|"]
    for task, result in results["bnp"].items():
        finals, rates = result["finals"], result["lr"]
        cells = [f"{_text(_median(finals[name]))} at lr {_text(rates[name])}" for name in ("rate", "bnp")]
        change = "" if result["change"] is None else str(Change(*result["change"]))
        lines.append(f"| {task} | {' | '.join(cells)} | {change} |")
    return "\n".join(lines)


def picture(results: dict[str, Any]) -> None:
    """The losses of the test after the long runs, as shares of the untreated network's or of an uninformed answer's."""
    every = outcomes(results)
    figure = new_figure(9, 0.3 * len(every) + 1.4)
    axes = figure.subplots()
    for place, each in enumerate(every.values()):
        finite = {name: loss for name, loss in each.losses.items() if math.isfinite(loss)}
        uninformed = abs(results["set-ups"][each.name]["uninformed"])
        scale = abs(finite.get(UNTREATED, 0.0)) or uninformed or math.inf  # left edge: nothing else finishes
        shares = {name: min(max(loss / scale, SHOWN[0]), SHOWN[1]) for name, loss in finite.items()}
        others = [share for name, share in shares.items() if name not in (each.winner, each.random, UNTREATED)]
        axes.plot(others, [place] * len(others), "|", color=GRAY, markersize=9)
        if each.random in shares:
            axes.plot(shares[each.random], place, "x", color=COLORS[0], markersize=7)
        if each.winner in shares:
            axes.plot(shares[each.winner], place, "o", color=COLORS[1], markersize=7)
    axes.plot([], [], "o", color=COLORS[1], label="what treat chose (at 1: nothing)")
    axes.plot([], [], "x", color=COLORS[0], label="the remedy drawn at random")
    axes.plot([], [], "|", color=GRAY, label="the second best")
    axes.axvline(1.0, color=GRAY, linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xticks([SHOWN[0], 0.01, 0.1, 1, SHOWN[1]], ["≤ 0.001", "0.01", "0.1", "1", "≥ 3"])
    axes.minorticks_off()
    axes.set_yticks(range(len(every)), list(every), fontsize=8)
    axes.invert_yaxis()
    steps = results["steps"] * results["longer"]
    bare_axes(axes, x=f"loss of the test after {steps} steps, as a share of the untreated network's")
    legend_below(figure, axes)
    figure.savefig(PICTURE, dpi=130)


def _median(finals: list[float | None]) -> float:
    finished = [final for final in finals if final is not None]
    return median(finished) if finished and len(finished) == len(finals) else math.inf


def _text(value: float | None) -> str:
    return "diverged" if value is None or not math.isfinite(value) else number(value)


if __name__ == "__main__":
    measured = json.loads(RESULTS.read_text(encoding="utf-8"))["results"]
    print(treatments_table(measured), "", bnp_table(measured), sep="\n")
    picture(measured)
