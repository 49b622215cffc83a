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


def test_short_runs_are_sampled_whenever_their_steps_have_doubled() -> None:
    """Steps of 0.1 ms, of which the budget pays for next to nothing: each doubling costs 0.5 ms and a turn."""
    turns = {}
    for gifted in ((), ("everything",)):
        allowance = Allowance(1e-6, all_parts())
        allowance.gifted, turns[gifted] = gifted, []
        for step in range(1, 3001):
            allowance.pass_time(1e-4)
            if allowance.is_turn("everything", step):
                allowance.charge("everything", 3e-4, step)
                turns[gifted].append(step)
    assert len(turns[()]) == 1
    since = [step for step in turns["everything",] if step > 100]
    assert all(any(low <= step <= 1.1 * low for step in since) for low in (128, 256, 512, 1024, 2048))
    assert len(since) <= 2 * 5 + 1
    assert allowance.spent < 12 * (5e-4 + 3e-4)


# who is paid


def test_the_shares_of_all_purses_are_the_whole_budget() -> None:
    purses = {id(part.purse): part.purse for part in all_parts().values()}.values()
    assert sum(purse.share for purse in purses) == pytest.approx(1.0)


def saving(*prices: float, shares: tuple[float, ...] = ()) -> Allowance:
    """Parts with a purse each, whose first turns are thought to take these steps; none has had one."""
    shares = shares or (1.0,) * len(prices)
    parts = {
        f"part {i}": Activity(Purse(share), price=price)
        for i, (price, share) in enumerate(zip(prices, shares, strict=True))
    }
    return Allowance(0.1, parts)


def balances(allowance: Allowance, steps: int) -> list[float]:
    """What is in the purses after some steps of a second, of which nothing is spent: nine hundredths of them in all."""
    for _ in range(steps):
        allowance.pass_time(1.0)
    allowance.is_turn("part 0", steps)
    return [part.purse.balance for part in allowance.parts.values()]


def test_what_one_purse_has_no_room_for_is_for_the_others() -> None:
    """Nine seconds among three: a purse holds three turns or three steps, whichever is longer."""
    assert balances(saving(200.0, 0.1), 100) == pytest.approx([6.0, 3.0])
    assert balances(saving(200.0, 0.1, 100.0), 100) == pytest.approx([3.0, 3.0, 3.0])
    assert balances(saving(200.0, 0.1, 100.0, shares=(1.0, 4.0, 1.0)), 100) == pytest.approx([3.0, 3.0, 3.0])
    assert balances(saving(200.0, 0.1, 100.0, shares=(2.0, 4.0, 1.0)), 100) == pytest.approx([4.0, 3.0, 2.0])


def test_purses_that_are_all_full_leave_the_rest_unspent() -> None:
    assert balances(saving(0.1, 0.1), 1000) == pytest.approx([3.0, 3.0])


def test_a_purse_that_holds_more_than_it_may_save_loses_nothing_and_gets_nothing() -> None:
    allowance = saving(200.0, 0.1)
    allowance.parts["part 1"].purse.balance = 50.0  # its turns have become cheaper
    assert balances(allowance, 100) == pytest.approx([9.0, 50.0])


def test_a_debt_is_paid_from_the_share_of_its_purse_alone() -> None:
    allowance = saving(200.0, 200.0)
    allowance.parts["part 1"].purse.balance = -2.0
    assert balances(allowance, 100) == pytest.approx([4.5, 2.5])


def test_what_is_done_on_every_step_is_paid_before_anything_else() -> None:
    allowance = saving(200.0)
    allowance.spend(1.0)
    assert balances(allowance, 100) == pytest.approx([0.09 * 101 - 1.0])


def test_curvature_has_its_turns_however_expensive_the_other_probes_are() -> None:
    usual, next_to_others = (
        simulated(1000, prices).parts["curvature"].turns for prices in ({}, {"conditioning": 20.0})
    )
    assert next_to_others >= 0.8 * usual > 10


def test_a_rehearsal_counts_as_recording_and_costs_no_purse_anything() -> None:
    allowance = saving(200.0)
    allowance.start_up(10.0)
    allowance.parts["part 0"].know_price(0.5, step=1)
    assert (allowance.spent, allowance.wall, allowance.share) == (10.0, 10.0, 1.0)
    part = allowance.parts["part 0"]
    assert (part.turns, part.price, part.next_step, part.purse.balance) == (1, 0.5, 2, 0.0)
    assert balances(allowance, 10) == pytest.approx([0.9])


def test_a_gpu_that_is_waited_for_is_time_of_the_run() -> None:
    allowance = saving(200.0)
    for _ in range(10):
        allowance.pass_time(1.0)
    allowance.pass_pause(4.0)
    assert allowance.wall == pytest.approx(14.0)
    assert allowance.usual_step == 1.0
    allowance.pass_pause(1000.0)
    assert allowance.wall == pytest.approx(34.0)  # as a step that takes longer than twenty of them


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


def test_what_the_end_of_a_run_takes_is_saved_before_anything_else_is_paid() -> None:
    """Of 100 steps of one second, 0.9 · 5 s are handed out; with 4 s reserved, half a second is left for turns."""
    spent = []
    for reserved in (0.0, 4.0):
        allowance = Allowance(0.05, {"probe": Activity(Purse(1.0), price=0.01)})
        allowance.reserve(reserved)
        for step in range(1, 101):
            allowance.pass_time(1.0)
            if allowance.is_turn("probe", step):
                allowance.charge("probe", 0.01, step)
        spent.append(allowance.spent)
    assert spent[1] < 0.55 < spent[0]
