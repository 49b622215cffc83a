"""What huang2020 claims of deep networks with BN: gradients explode at the start, and are small after one step."""

from __future__ import annotations

import math
from statistics import fmean, median

from wellcond.results import number
from wellcond.results.quantities import KRONECKER, WEIGHT_NORM
from wellcond_papers.experiments.claims import Claim, Outcome, claim, judged
from wellcond_papers.experiments.table import Table

ITERATIONS = range(8)
LR = 0.1
RATES = (0.001, 0.01, LR, 1.0)
"""The source gives none; arms are named after those other than `LR`."""
LARGE = 10.0
"""Times smaller after a step, or times greater weights, that count."""


def at_rate(arm: str, rate: float) -> str:
    """What a network at some rate is called."""
    return arm if rate == LR else f"{arm}, lr {rate:g}"


def magnitudes(table: Table, arm: str, step: int) -> list[float]:
    """λ_max of the hidden layers of one network, from the lowest up."""
    return list(table.arm(arm).mean_by_layer(KRONECKER.lambda_max, step).values())[1:-1]


def growth(values: list[float]) -> float:
    """By how much λ_max grows from layer to layer downwards, between the means of the lower and of the upper half.

    Example:
        >>> round(growth([8.0, 4.0, 2.0, 1.0]), 6)
        2.0
    """
    logs = [math.log(value) for value in values]
    middle = len(logs) // 2
    distance = len(logs) - middle
    return math.exp((fmean(logs[:middle]) - fmean(logs[middle:])) / distance) if middle else 1.0


def explodes(arm: str) -> Claim:
    """At iteration 0."""

    @claim(
        f"{arm}: at the start, gradients explode exponentially from the top to the lower layers: λ_max grows more "
        "than 5 % a layer, and more than 10 times in all",
        paper="“the weight-gradient has exponential explosion at initialization (‘Iter0’)”",
    )
    def check(table: Table) -> Outcome:
        values = magnitudes(table, arm, 0)
        if not values:
            return judged([], "")
        if min(values) == 0:
            return judged([False], "a layer gets no gradient at all")
        factor = growth(values)
        total = values[0] / values[-1]
        details = f"λ_max grows {number(factor)} times a layer, {number(total)} times over {len(values)} layers"
        return judged([factor > 1.05, total > LARGE], details)

    return check


def greatest_falls(table: Table, arm: str) -> list[float]:
    """How many times smaller the greatest λ_max of all layers is at each of iterations 1 to 7 than at the start."""
    before = magnitudes(table, arm, 0)
    later = [magnitudes(table, arm, step) for step in ITERATIONS[1:]]
    return [max(before) / max(after) for after in later if after and max(after) > 0]


def falls_where_weights_grew(table: Table, arm: str) -> list[float]:
    """How many times smaller λ_max is than at the start, at iterations 1 to 7, of layers that the first step changed.

    Seed by seed, of the hidden layers whose weights are more than `LARGE` times as large after it.
    """
    falls = []
    for record in table.arm(arm):
        before, after = (record.by_layer(WEIGHT_NORM, step) for step in (0, 1))
        grown = [layer for layer in list(before)[1:-1] if after.get(layer, 0.0) > LARGE * before[layer]]
        looks = [record.by_layer(KRONECKER.lambda_max, step) for step in ITERATIONS]
        falls += [looks[0][layer] / look[layer] for look in looks[1:] for layer in grown if look.get(layer, 0.0) > 0]
    return falls


def is_small_after_a_step(arm: str) -> Claim:
    """The layers that the paper speaks of."""

    @claim(
        f"{arm}: the layers whose weights grew more than 10 times have small weight-gradients after that step: λ_max "
        "is more than 10 times smaller",
        paper="“This increased magnitude of weight leads to small weight gradients (‘Iter1’ to ‘Iter7’)”",
    )
    def check(table: Table) -> Outcome:
        falls = falls_where_weights_grew(table, arm)
        small = [fall > LARGE for fall in falls]
        details = f"in {sum(small)} of {len(small)} cases, layers times iterations times seeds"
        return judged(small, f"{details}; {number(median(falls))} times smaller in the median" if falls else "")

    return check


def all_are_small_after_a_step(arm: str) -> Claim:
    """The greatest of all layers, at iterations 1 to 7."""

    @claim(
        f"{arm}: after a single step the weight-gradients of all layers are small: the greatest λ_max is more than 10 "
        "times smaller",
        paper="speaks of layers whose weights grew, “especially the lower layers”",
        is_ours=True,
    )
    def check(table: Table) -> Outcome:
        falls = greatest_falls(table, arm)
        times = ", ".join(map(number, falls))
        details = f"the greatest λ_max of all layers is {times} times smaller than at the start"
        return judged([fall > LARGE for fall in falls], details if falls else "")

    return check


def small_at_other_rates(arm: str) -> Claim:
    """The same layers, rate by rate."""

    @claim(
        f"{arm}: the layers whose weights grew more than 10 times have small weight-gradients at other learning rates "
        "too",
        paper="gives no rate",
        is_ours=True,
    )
    def check(table: Table) -> Outcome:
        by_rate = {rate: falls_where_weights_grew(table, at_rate(arm, rate)) for rate in RATES if rate != LR}
        small = {rate: [fall > LARGE for fall in falls] for rate, falls in by_rate.items() if falls}
        words = [f"lr {rate:g}: {sum(each)} of {len(each)}" for rate, each in small.items()]
        return judged([case for each in small.values() for case in each], f"cases, {'; '.join(words)}" if words else "")

    return check


def weights_grow(arm: str) -> Claim:
    """From iteration 0 to 1."""

    @claim(
        f"{arm}: that step increases the weights of the lower layers exponentially: more than 10 times in the lowest, "
        "and more in the lower half than in the upper",
        paper="“the first-step gradients dominate the weights due to gradient explosion in lower layers, hence the "
        "exponential growth in the magnitude of the weight”",
    )
    def check(table: Table) -> Outcome:
        old, new = (list(table.arm(arm).mean_by_layer(WEIGHT_NORM, step).values())[1:-1] for step in (0, 1))
        if not old or not new:
            return judged([], "")
        ratios = [after / before for before, after in zip(old, new, strict=True)]
        details = (
            f"‖W‖ is {number(ratios[0])} times as large in the lowest hidden layer, {number(ratios[-1])} in the highest"
        )
        return judged([ratios[0] > LARGE, growth(ratios) > 1.0], details)

    return check
