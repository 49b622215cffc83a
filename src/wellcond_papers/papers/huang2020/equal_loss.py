"""The conditioning of two networks when they have the same loss.

In an MLP, κ_p of what a layer gets back rises as the loss falls, with BN and without, so that of two networks the one
that trains faster has the greater κ_p of Σ∇h at the same step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from wellcond.results import number
from wellcond.results.quantities import LOSS, MatrixQuantities
from wellcond_papers.experiments.claims import Claim, Outcome, claim, judged
from wellcond_papers.experiments.table import Record, Table
from wellcond_papers.papers.huang2020.deep_mlp import by_seed, hidden

LEVELS = (4.0, 3.0, 2.0, 1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)


def at_loss(record: Record, quantity: str, loss: float) -> dict[str, float]:
    """One quantity of the hidden layers when the loss first falls to a level; {} if it starts below or stays above.

    It is interpolated between the two looks around that moment, along the logarithms of both.
    """
    losses = record.series(LOSS)
    for before, after in pairwise(losses):
        if losses[before] > loss >= losses[after]:
            share = math.log(losses[before] / loss) / math.log(losses[before] / losses[after])
            old, new = (hidden(record.by_layer(quantity, step), quantity) for step in (before, after))
            return {layer: between(old[layer], new[layer], share) for layer in old if layer in new}
    return {}


def between(a: float, b: float, share: float) -> float:
    """a^(1−share) · b^share; infinite if one of them is.

    Example:
        >>> between(1.0, 100.0, 0.5), between(1.0, float("inf"), 0.5)
        (10.0, inf)
    """
    return math.inf if math.inf in (a, b) else a ** (1 - share) * b**share


def better_conditioned_at_equal_loss(
    name: str, matrix: MatrixQuantities, pairs: Sequence[tuple[str, str]], shares: Sequence[float] = (0.5, 0.8)
) -> Claim:
    """BN has the smaller κ_p, layer by layer and seed by seed, at every level of the loss that both networks reach."""

    @claim(
        f"at equal loss too, BN lowers κ_p of {name} in the hidden layers",
        paper="compares networks after equal steps",
        is_ours=True,
    )
    def check(table: Table) -> Outcome:
        cases: list[bool] = []
        details = []
        for plain, bn in pairs:
            init = f"{bn.removeprefix('BN, ')}, " if ", " in bn else ""
            quantities = [matrix.kappa[p] for p in shares]
            at_levels = {level: compared(table, plain, bn, quantities, level) for level in LEVELS}
            reached = [level for level, values in at_levels.items() if values]
            for level in reached:
                smaller = [with_bn < without for without, with_bn in at_levels[level]]
                cases += smaller
                if level in (reached[0], reached[len(reached) // 2], reached[-1]):
                    without, with_bn = (number(median(column)) for column in zip(*at_levels[level], strict=True))
                    counted = f"{init}loss {level:g}: smaller in {sum(smaller)} of {len(smaller)}"
                    details.append(f"{counted}, median {with_bn} with BN, {without} without")
        if not cases:
            return judged([], "the loss of the measured images was not recorded, or no level is reached by both")
        return judged(cases, f"smaller in {sum(cases)} of {len(cases)} comparisons; {'; '.join(details)}")

    return check


def compared(table: Table, plain: str, bn: str, quantities: Sequence[str], loss: float) -> list[tuple[float, float]]:
    """Without and with BN at one loss, by seed, quantity and layer; both infinite says nothing."""
    values = []
    for pair in by_seed(table, plain, bn):
        for quantity in quantities:
            without, with_bn = (at_loss(record, quantity, loss) for record in pair)
            values += [(without[layer], with_bn[layer]) for layer in without if layer in with_bn]
    return [pair for pair in values if min(pair) < math.inf]
