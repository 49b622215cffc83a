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
        f"{arm}: at the start, gradients explode exponentially from the top to the lower layers",
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


def is_small_after_a_step(arm: str) -> Claim:
    """The greatest of all layers, at iterations 1 to 7."""

    @claim(
        f"{arm}: after a single step the weight-gradients are small",
        paper="“This increased magnitude of weight leads to small weight gradients (‘Iter1’ to ‘Iter7’)”",
    )
    def check(table: Table) -> Outcome:
        falls = greatest_falls(table, arm)
        times = ", ".join(map(number, falls))
        details = f"the greatest λ_max of all layers is {times} times smaller than at the start"
        return judged([fall > LARGE for fall in falls], details if falls else "")

    return check


def lower_third_is_small_after_a_step(arm: str) -> Claim:
    """At iterations 1 to 7, layer by layer."""

    @claim(
        f"{arm}: after a single step the weight-gradients of the lower third of the layers are small",
        paper="“some layers (especially the lower layers) of the network enter the state of weight domination”",
        is_ours=True,
    )
    def check(table: Table) -> Outcome:
        before = magnitudes(table, arm, 0)
        lower = len(before) // 3
        falls = [
            old / new
            for step in ITERATIONS[1:]
            for old, new in zip(before[:lower], magnitudes(table, arm, step)[:lower], strict=False)
            if new > 0
        ]
        if not falls:
            return judged([], "")
        span = f"{number(min(falls))} to {number(max(falls))} times smaller"
        return judged([fall > LARGE for fall in falls], f"λ_max is {span}, {number(median(falls))} in the median")

    return check


def small_at_other_rates(arm: str) -> Claim:
    """The greatest of all layers, at iterations 1 to 7, rate by rate."""

    @claim(
        f"{arm}: after a single step the weight-gradients are small at other learning rates too",
        paper="gives no rate",
        is_ours=True,
    )
    def check(table: Table) -> Outcome:
        falls = {rate: greatest_falls(table, at_rate(arm, rate)) for rate in RATES if rate != LR}
        falls = {rate: each for rate, each in falls.items() if each}
        words = [f"lr {rate:g}: {number(min(each))} to {number(max(each))}" for rate, each in falls.items()]
        details = f"times that the greatest λ_max of all layers is smaller than at the start, {'; '.join(words)}"
        return judged([fall > LARGE for each in falls.values() for fall in each], details if falls else "")

    return check


def weights_grow(arm: str) -> Claim:
    """From iteration 0 to 1."""

    @claim(
        f"{arm}: that step increases the weights of the lower layers exponentially",
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
