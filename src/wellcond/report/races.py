"""A suggested learning rate as text: the answer, a small picture of the race, and what it took."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence

from wellcond.learning_rate.race.horizon import last_loss
from wellcond.learning_rate.race.outcome import Race, went_up
from wellcond.learning_rate.race.suggested_rate import SuggestedRate
from wellcond.report.bars import bar
from wellcond.report.figures.style import LOG_FROM
from wellcond.results import number
from wellcond.results.rendering import renders

WIDTH, BAR_WIDTH = 100, 30


@renders("text", SuggestedRate)
def suggestion_text(suggestion: SuggestedRate) -> str:
    """One screen: the answer comes first; the limit and the prediction are attributes that can be printed."""
    parts = [textwrap.fill(suggestion.verdict(), WIDTH)]
    if suggestion.race is not None and suggestion.race.runs:
        parts.append(race_picture(suggestion.race))
    parts.append("\n".join([*(f"note: {note}" for note in suggestion.notes), str(suggestion.cost)]))
    return "\n\n".join(parts)


def race_picture(race: Race) -> str:
    """A line per rate: how long it was raced, its last loss as a bar, and what became of it."""
    losses = {lr: last_loss(run.losses) for lr, run in race.runs.items() if not went_up(run)}
    share = _shares(list(losses.values()))
    rates, numbers = ["lr", *map(number, race.runs)], ["loss", *map(number, losses.values())]
    width, loss_width = (max(map(len, column)) for column in (rates, numbers))
    lines = [f"{'lr':>{width}}  steps  {'loss':>{loss_width}}"]
    for lr, run in race.runs.items():
        loss, shape = (number(losses[lr]), bar(share(losses[lr]), BAR_WIDTH)) if lr in losses else ("–", "")
        line = f"{number(lr):>{width}}  {len(run.losses):>5}  {loss:>{loss_width}}  {shape:<{BAR_WIDTH}}"
        lines.append(f"{line}  {_remark(race, lr)}".rstrip())
    return "\n".join(lines)


def _shares(losses: Sequence[float]) -> Callable[[float], float]:
    """How long the bar of a loss is: in proportion, or by its logarithm where losses differ by orders of magnitude."""
    low, high = min(losses, default=0.0), max(losses, default=1.0)
    if low > 0 and high > LOG_FROM * low:
        return lambda loss: math.log(loss / low) / math.log(high / low)
    zero = min(low, 0.0)
    return lambda loss: (loss - zero) / (high - zero or 1.0)


def _remark(race: Race, lr: float) -> str:
    run = race.runs[lr]
    remarks = ["yours"] if lr == race.own else []
    if run.diverged_at is not None:
        remarks.append(f"not finite at step {run.diverged_at}")
    elif went_up(run):
        remarks.append("went up")
    elif lr == race.best:
        remarks.append("lowest")
    if lr in race.held_out:
        held_out = race.held_out[lr]
        remarks.append(f"held-out loss {number(sum(held_out) / len(held_out))}")
    return ", ".join(remarks)
