"""What a lower loss costs: arms by their loss, the time of a step and its memory."""

from __future__ import annotations

from collections.abc import Sequence

from wellcond.treatment.arm import Arm


def unbeaten(arms: Sequence[Arm], *, least_gain: float, slower: float) -> list[Arm]:
    """The arms that no other one beats in loss, time of a step and memory at once (Pareto); the lowest loss first.

    Args:
        arms: Those without a finished run are left out.
        least_gain: Losses that differ by less are equal.
        slower: Times of a step in a smaller ratio are equal: a clock cannot tell them from each other.
    """
    trained = [arm for arm in arms if arm.best_final is not None and arm.memory]

    def is_better(one: Arm, other: Arm) -> list[bool]:
        """In loss, in time and in memory."""
        gain = median_of(other) - median_of(one)
        return [gain > least_gain, other.seconds > slower * one.seconds, other.memory > one.memory]

    def is_beaten(arm: Arm, by: Arm) -> bool:
        return any(is_better(by, arm)) and not any(is_better(arm, by))

    return sorted((arm for arm in trained if not any(is_beaten(arm, by) for by in trained)), key=median_of)


def price_table(arms: Sequence[Arm], untreated: Arm) -> tuple[list[str], list[list[str]]]:
    """Headings, and the gain, the time of a step and the memory of these arms and of the untreated network."""
    body = []
    for arm in {arm.name: arm for arm in (*arms, untreated) if arm.memory}.values():
        gain, plain = "", untreated.best_final
        if plain is not None and plain.median and arm is not untreated:
            gain = f"{100 * (1 - median_of(arm) / plain.median):.3g} %"
        body.append([arm.name, gain, f"{1e3 * arm.seconds:.3g} ms", f"{arm.memory / 2**20:.3g} MiB"])
    return ["", "loss lower by", "time of a step", "memory"], body


def median_of(arm: Arm) -> float:
    """The median loss of an arm that has finished."""
    assert arm.best_final is not None
    return arm.best_final.median
