"""What is read from the heat maps of wei2019: where training diverges, the best rate, and tendencies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import fmean, median

from wellcond_papers.experiments.claims import END, CauseKind, Outcome, is_greater, judged
from wellcond_papers.papers.wei2019.heat_maps import LINES, SQUARED, HeatMap

NOT_HERE: CauseKind = "the paper's claim does not hold here"
NOT_NAMED: CauseKind = "depends on a setting that differs here, or that the source does not name"
NO_TENDENCY = 0.5
TENDENCY = 0.75
"""The share of pairs from which on there is a tendency (a rank correlation of ½)."""
UP_TO_THE_GRID = (
    "Where training begins to diverge is known up to the grid of rates, 1.8 times apart at `paper`: the geometric mean "
    "of the last rate that trains and the first that diverges is shown. A limit is right if some rate between these "
    "two is within a factor of 2 of it."
)
EPOCHS = 5
"""How long the source trains."""


def spread(values: Sequence[float]) -> str:
    """The median, and from the least to the greatest, to two digits.

    Example:
        >>> spread([1234.0, 2.0, 0.0567]), spread([2.0])
        ('2 (0.057 to 1,200)', '2')
    """
    middle, low, high = (f"{float(f'{value:.2g}'):,g}" for value in (median(values), min(values), max(values)))
    return middle if low == high else f"{middle} ({low} to {high})"


def rising(values: Sequence[Sequence[float]]) -> float:
    """The share of pairs in which the earlier value is the lower one: 1 if they always rise, ½ without a tendency.

    A pair that is too close to tell is half of one.

    Args:
        values: Of each, one number per seed.

    Example:
        >>> rising([[1.0], [2.0], [3.0]]), rising([[2.0, 1.0], [1.4, 1.6], [3.0, 3.5]])
        (1.0, 0.8333333333333334)
    """
    order = [is_greater(second, first) for first, second in combinations(values, 2)]
    return fmean(0.5 if is_so is None else is_so for is_so in order)


def has_tendency(share: float) -> bool | None:
    """Whether three quarters of the pairs rise; None if only more than half do.

    Example:
        >>> has_tendency(0.8), has_tendency(0.6), has_tendency(0.5)
        (True, None, False)
    """
    return True if share >= TENDENCY else None if share > NO_TENDENCY else False


def separated(maps: Mapping[str, HeatMap], line: str) -> list[bool]:
    """Whether a limit parts training from divergence, at each γ of each map where it can be decided."""
    cases = [heat_map.separates(line, value) for heat_map in maps.values() for value in heat_map.values]
    return [case for case in cases if case is not None]


def divergence_of(maps: Mapping[str, HeatMap], lines: Sequence[str] = LINES) -> str:
    """Where training begins to diverge over each limit, and in how many rows the limit is right up to a factor of 2."""
    parts = []
    for line in lines:
        ratios = [ratio for heat_map in maps.values() for ratio in heat_map.ratios(line)]
        right = separated(maps, line)
        where = spread(ratios) if ratios else "not reached"
        parts.append(f"{line} {where}, right in {sum(right)} of {len(right)} rows")
    return f"where training begins to diverge, over η* (right up to a factor of 2): {'; '.join(parts)}" if maps else ""


def trained_to_the_end(maps: Mapping[str, HeatMap]) -> dict[str, HeatMap]:
    """The maps with at least half of the training of the source, which alone can say what is best after it."""
    return {arm: heat_map for arm, heat_map in maps.items() if heat_map.settings["epochs"] >= END * EPOCHS}


def judged_at_the_end(cases: Sequence[bool | None], measured: str) -> Outcome:
    """The outcome from maps that are trained to the end; without any, training was too short to tell.

    Example:
        >>> judged_at_the_end([], "0.3").verdict, judged_at_the_end([], "").verdict
        ('too short to tell', 'not tested')
    """
    return judged(cases, measured) if cases or not measured else Outcome("too short to tell", measured)


def best_over(maps: Mapping[str, HeatMap], line: str) -> Outcome:
    """Whether the best rate is about half the limit, in every row of every map that is trained to the end."""
    ratios = {
        arm: [heat_map.best(value)[1] / heat_map.limit(line, value) for value in heat_map.values]
        for arm, heat_map in maps.items()
    }
    # committed grids have half decades: a rate is about another if it is its neighbor
    near = {arm: [abs(math.log10(2 * ratio)) <= 0.5 for ratio in values] for arm, values in ratios.items()}
    words = [f"{arm.removesuffix(SQUARED)} {spread(values)}" for arm, values in ratios.items()]
    share = f"within half a decade of ½ in {sum(map(sum, near.values()))} of {sum(map(len, near.values()))} rows"
    measured = f"best rate over η* {line}: {'; '.join(words)}; {share}" if words else ""
    return judged_at_the_end([case for arm in trained_to_the_end(maps) for case in near[arm]], measured)
