"""The budget holds on simulated clocks: in short runs and long ones, for cheap and expensive parts, when time jumps."""

from __future__ import annotations

import itertools

import pytest

from wellcond.recording.allowance import Activity, Allowance, Purse
from wellcond.recording.turns import all_parts


def simulated(steps: int, prices: dict[str, float], budget: float = 0.05, always: float = 0.0) -> Allowance:
    """A run whose steps take one second, and in which every part takes its turns."""
    allowance = Allowance(budget, all_parts())
    for step in range(1, steps + 1):
        allowance.pass_time(1.0)
        allowance.spend(always)
        for part in allowance.parts:
            if allowance.is_turn(part, step):
                allowance.charge(part, prices.get(part, 0.1), step)
    return allowance


@pytest.mark.parametrize("steps", [100, 500, 5000])
@pytest.mark.parametrize(
    "prices",
    [
        {},
        {"curvature": 3.0, "conditioning": 2.0, "everything": 0.5},
        {"curvature": 0.01, "conditioning": 0.01, "shift": 0.01, "gradients": 1e-4},
        {"curvature": 200.0, "inspection": 100.0},
    ],
    ids=["small", "large", "tiny", "huge"],
)
def test_the_budget_holds_but_for_a_few_steps_of_debt(steps: int, prices: dict[str, float]) -> None:
    allowance = simulated(steps, prices, always=0.002)
    surprises = sum(price for price in prices.values() if price > 10)  # nobody knows what a first turn takes
    assert allowance.spent <= 0.05 * allowance.wall + 5.0 + surprises
    assert allowance.spent == pytest.approx(allowance.share * allowance.wall)


def test_first_turns_come_early_and_are_spaced_by_the_logarithm_of_the_step() -> None:
    allowance, turns = Allowance(1.0, {"probe": Activity(Purse(1.0), price=0.1)}), []
    for step in range(1, 2001):
        allowance.pass_time(1.0)
        if allowance.is_turn("probe", step):
            allowance.charge("probe", 1e-6, step)
            turns.append(step)
    assert turns[:3] == [2, 3, 4]
    late = [step for step in turns if step > 200]
    assert len(late) > 40
    assert all(1.03 < after / before < 1.06 for before, after in itertools.pairwise(late))


def test_a_part_whose_price_falls_has_more_turns() -> None:
    cheap, dear = (simulated(500, {"curvature": price}).parts["curvature"].turns for price in (0.1, 2.0))
    assert cheap > 2 * dear > 0


def test_jumps_of_the_clock_buy_nothing() -> None:
    allowance = Allowance(0.05, all_parts())
    for _ in range(20):
        allowance.pass_time(1.0)
    allowance.pass_time(-3600.0)
    allowance.pass_time(365 * 24 * 3600.0)
    assert allowance.wall == pytest.approx(40.0)  # twenty steps, and no more than twenty for the jump


def test_a_part_that_is_closed_leaves_its_share_to_others() -> None:
    def turns(is_closed: bool) -> int:
        purses = {name: Activity(Purse(1.0), price=0.1) for name in ("one", "two")}
        allowance = Allowance(0.1, purses)
        if is_closed:
            allowance.close("two")
        for step in range(1, 101):
            allowance.pass_time(1.0)
            for name in purses:
                if allowance.is_turn(name, step):
                    allowance.charge(name, 1.0, step)
        return allowance.parts["one"].turns

    assert turns(True) >= 1.8 * turns(False)


def test_its_state_continues_it() -> None:
    whole, first, second = (Allowance(0.05, all_parts()) for _ in range(3))

    def run(allowance: Allowance, steps: range) -> None:
        for step in steps:
            allowance.pass_time(1.0)
            for part in allowance.parts:
                if allowance.is_turn(part, step):
                    allowance.charge(part, 0.3, step)

    run(whole, range(1, 301))
    run(first, range(1, 151))
    second.load_state_dict(first.state_dict())
    run(second, range(151, 301))
    assert second.state_dict() == whole.state_dict()
