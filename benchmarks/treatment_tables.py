"""Judges the long runs of `benchmarks.treatments`: the tables of the guide, and its picture.

The winner of a treatment is right if it ends no higher than the best arm of the long runs by more than the 95 %
interval of their paired differences, or by more than a hundredth of the loss before training.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.treatments import RESULTS, SEEDS
from wellcond.report.figures.style import COLORS, GRAY, bare_axes, legend_below, new_figure
from wellcond.results import number
from wellcond.treatment.arm import Change

NEGLIGIBLE = 0.01
"""Of the loss before training."""
SHOWN = (1e-4, 3.0)
"""Shares beyond these stand at the edge."""
PICTURE = Path(__file__).parents[1] / "docs" / "figures" / "treatments.png"


@dataclass(frozen=True)
class Outcome:
    """What the long runs say of one fault.

    Attributes:
        case: Its name.
        winner: What `treat` chose.
        best: The best arm of the long runs.
        losses: Final losses after the long runs, medians, by arm; infinite where it diverged.
        is_winner: Whether the winner ends as low as the best, within noise; None where it was not trained longer.
        beats_random: Whether the winner ended lower than the remedy drawn at random, with equal steps.
        beaten_share: Of all single remedies, the share that ends clearly higher than the winner in the long runs.
    """

    case: str
    winner: str
    best: str
    losses: dict[str, float]
    is_winner: bool | None
    beats_random: bool
    beaten_share: float


def outcome_of(case: str, result: dict[str, Any]) -> Outcome:
    """Compare the winner with all other arms."""
    long = {name: each.get("finals", []) for name, each in result["long"].items()}
    losses = {name: _median(finals) for name, finals in long.items()}
    best, winner, random = min(losses, key=losses.__getitem__, default=""), result["winner"], result["random"]
    short = {name: _median(arm["finals"]) for name, arm in result["arms"].items()}
    single = [name for name in losses if "+" not in name and name not in (winner, "untreated")]
    is_known = winner in long
    worse = [name for name in single if is_known and not _is_as_low(long[name], long[winner], result["first"])]
    return Outcome(
        case, winner, best, losses,
        is_winner=_is_as_low(long[winner], long[best], result["first"]) if is_known else None,
        beats_random=random is not None and random != winner and short[winner] < short[random],
        beaten_share=len(worse) / max(len(single), 1),
    )  # fmt: skip


def _is_as_low(ours: list[float | None], best: list[float | None], first: float) -> bool:
    """Whether an arm ends as low as another, within the noise of seeds or a hundredth of the loss before training."""
    pairs = [(a, b) for a, b in zip(ours, best, strict=False) if a is not None and b is not None]
    if len(pairs) < len(SEEDS):
        return False
    change = Change.of([a - b for a, b in pairs])
    return change.low <= 0 or change.mean <= NEGLIGIBLE * abs(first)


def faults_table(results: dict[str, Any]) -> str:
    """One line per fault, as the guide shows it; and how often the choice is right, and better than the random one."""
    steps, longer = results["steps"], results["steps"] * results["longer"]
    lines = [
        f"| fault | untreated | what treat chose, {steps} steps | random remedy, {steps} steps | untreated, {longer} "
        f"steps | its choice, {longer} steps | best arm, {longer} steps | right | beats random |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    every = [outcome_of(case, result) for case, result in results["faults"].items()]
    for each, result in zip(every, results["faults"].values(), strict=True):
        short = {name: _text(_median(arm["finals"])) for name, arm in result["arms"].items()}
        long = {name: _text(loss) for name, loss in each.losses.items()}
        cells = [
            each.case,
            short["untreated"],
            f"**{each.winner}** {short[each.winner]}",
            f"{result['random']} {short[result['random']]}",
            *(
                [long["untreated"], long[each.winner], f"{each.best} {long[each.best]}"]
                if each.is_winner is not None
                else ["", "not measured", ""]
            ),
            {True: "yes", False: "no", None: ""}[each.is_winner],
            "yes" if each.beats_random else "no",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    known = [each for each in every if each.is_winner is not None]
    right, better = sum(each.is_winner is True for each in known), sum(each.beats_random for each in every)
    share = 100 * sum(each.beaten_share for each in known) / len(known)
    lines += [
        "",
        f"Right in {right} of {len(known)}; better than the random remedy in {better} of {len(every)}; after {longer} "
        f"steps its choice ends clearly below {share:.0f} % of the single remedies.",
    ]
    return "\n".join(lines)


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
    """The final losses of all arms after the long runs, as shares of the untreated network's or of the first loss."""
    figure = new_figure(9, 0.42 * len(results["faults"]) + 1.4)
    axes = figure.subplots()
    shown = [case for case, result in results["faults"].items() if outcome_of(case, result).is_winner is not None]
    for place, case in enumerate(shown):
        result = results["faults"][case]
        each = outcome_of(case, result)
        own = each.losses["untreated"]
        scale = abs(own) if math.isfinite(own) else abs(result["first"])
        finite = {name: loss / scale for name, loss in each.losses.items() if math.isfinite(loss)}
        shares = {name: min(max(share, SHOWN[0]), SHOWN[1]) for name, share in finite.items()}
        others = [share for name, share in shares.items() if name not in (each.winner, result["random"])]
        axes.plot(others, [place] * len(others), "|", color=GRAY, markersize=9)
        if result["random"] in shares:
            axes.plot(shares[result["random"]], place, "x", color=COLORS[0], markersize=7)
        axes.plot(shares[each.winner], place, "o", color=COLORS[1], markersize=7)
    axes.plot([], [], "o", color=COLORS[1], label="what treat chose")
    axes.plot([], [], "x", color=COLORS[0], label="the remedy drawn at random")
    axes.plot([], [], "|", color=GRAY, label="every other arm")
    axes.axvline(1.0, color=GRAY, linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yticks(range(len(shown)), shown)
    axes.invert_yaxis()
    steps = results["steps"] * results["longer"]
    bare_axes(
        axes, x=f"loss after {steps} steps, as a share of the untreated network's (of the first loss if that diverged)"
    )
    legend_below(figure, axes)
    figure.savefig(PICTURE, dpi=130)


def _median(finals: list[float | None]) -> float:
    finished = [final for final in finals if final is not None]
    return median(finished) if finished and len(finished) == len(finals) else math.inf


def _text(value: float | None) -> str:
    return "diverged" if value is None or not math.isfinite(value) else number(value)


if __name__ == "__main__":
    measured = json.loads(RESULTS.read_text(encoding="utf-8"))["results"]
    print(faults_table(measured), "", bnp_table(measured), sep="\n")
    picture(measured)
