"""Verdict, table, rows and picture of treatments whose runs are written by hand."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path
from statistics import stdev, variance
from typing import Any

import pytest

from wellcond.errors import OutputError
from wellcond.results import Cost
from wellcond.results.quantities import (
    COST,
    DIVERGED_AT,
    FINAL_LOSS,
    HELD_OUT_LOSS,
    SCREENED_LOSS,
    STEPS,
    TRAINED_LR,
)
from wellcond.treatment.arm import Arm, Change, Spread
from wellcond.treatment.judged_run import Check, JudgedRun
from wellcond.treatment.student import two_sided_quantile
from wellcond.treatment.treatment import Treatment

DIVERGED = JudgedRun([2.0, 9.0], diverged_at=3)


def judged(loss: float, **options: Any) -> JudgedRun:
    """20 steps with one loss, which is that of two held-out batches too."""
    return JudgedRun([loss] * 20, checks=(Check(20, (loss, loss), (loss, loss)),), **options)


def arm(name: str, *finals: float | JudgedRun, lr: float = 0.1, **options: Any) -> Arm:
    """One run per seed, by its loss or the run itself."""
    runs = {seed: run if isinstance(run, JudgedRun) else judged(run) for seed, run in enumerate(finals)}
    return Arm(name, {lr: runs} if runs else {}, code=f"{name} with lr={{lr}}", **options)


def treatment(*arms: Arm) -> Treatment:
    seeds = max(len(runs) for each in arms for runs in each.runs.values())
    return Treatment({each.name: each for each in arms}, tuple(range(seeds)), 20, 10, Cost(8, 8), 60.0)


PLAIN = arm("untreated", 1.0, 1.1, 1.2)
CASES: dict[str, tuple[list[Arm], str, str | None]] = {
    "a remedy helps": (
        [PLAIN, arm("bnp", 0.5, 0.6, 0.7), arm("rate", 0.9, 1.0, 1.1, lr=0.3)],
        "bnp helps: it ends at 0.6 (0.5 to 0.7) at lr 0.1, the untreated network at 1.1 (1 to 1.2) at lr 0.1. It "
        "reaches the untreated network's training loss after 2 of 20 steps. A better rate alone ends at 1 (0.9 to 1.1) "
        "at lr 0.3.",
        "bnp",
    ),
    "seeds that are paired tell what ranges that overlap do not": (
        [arm("untreated", 1.0, 2.0, 3.0), arm("bnp", 0.5, 1.49, 2.5)],
        "bnp helps: it ends at 1.49 (0.5 to 2.5) at lr 0.1, the untreated network at 2 (1 to 3) at lr 0.1.",
        "bnp",
    ),
    "within noise": (
        [PLAIN, arm("bnp", 0.4, 1.3, 0.9)],
        "None of these helps: untreated it ends at 1.1 (1 to 1.2) at lr 0.1, with bnp at 0.9 (0.4 to 1.3) at lr 0.1, "
        "which is within noise; fewer arms and more seeds would tell: remedies=['bnp'], seeds=range(3, 23).",
        "untreated",
    ),
    "lower, but drawn at random": (
        [PLAIN, arm("bnp", 0.5, 0.6, 0.7, is_random=True), arm("adam", 1.0, 1.2, 1.2)],
        "None of these helps: untreated it ends at 1.1 (1 to 1.2) at lr 0.1, with bnp at 0.6 (0.5 to 0.7) at lr 0.1, "
        "a remedy drawn at random, which never wins; remedies=['bnp'] tries it for itself.",
        "untreated",
    ),
    "higher": (
        [PLAIN, arm("bnp", 1.4, 1.3, 1.9)],
        "None of these helps: untreated it ends at 1.1 (1 to 1.2) at lr 0.1, with bnp at 1.4 (1.3 to 1.9) at lr 0.1.",
        "untreated",
    ),
    "less than a hundredth is no help": (
        [arm("untreated", 0.41), arm("bnp", 0.4069)],
        "None of these helps: untreated it ends at 0.41 at lr 0.1, with bnp at 0.407 at lr 0.1, which is "
        "too little to matter.",
        "untreated",
    ),
    "losses may be negative": (
        [arm("untreated", -1.0), arm("bnp", -2.0)],
        "bnp helps: it ends at -2 at lr 0.1, the untreated network at -1 at lr 0.1. It reaches the untreated "
        "network's training loss after 2 of 20 steps.",
        "bnp",
    ),
    "the untreated network diverges": (
        [arm("untreated", DIVERGED), arm("bnp", 0.5)],
        "bnp helps: it ends at 0.5 at lr 0.1, where the untreated network diverged @ 3.",
        "bnp",
    ),
    "alone": ([PLAIN, Arm("bnp", refused="no")], "None of these helps: untreated it ends at 1.1 (1 to 1.2) at lr 0.1, "
              "and no remedy finished.", "untreated"),
    "all diverged": (
        [arm("untreated", DIVERGED), arm("bnp", DIVERGED)],
        "No run finished: nothing that was tried trains this network. See what wellcond diagnose says.",
        None,
    ),
    "the rate alone is as good": (
        [PLAIN, arm("bnp", 0.5, 0.6, 0.7), arm("rate", 0.55, 0.58, 0.73, lr=0.3)],
        "rate helps: it ends at 0.58 (0.55 to 0.73) at lr 0.3, the untreated network at 1.1 (1 to 1.2) at lr 0.1. It "
        "reaches the untreated network's training loss after 2 of 20 steps.",
        "rate",
    ),
    "the lowest is within noise, another is not": (
        [PLAIN, arm("bnp", 0.1, 1.3, 0.7), arm("adam", 0.8, 0.9, 1.0)],
        "adam helps: it ends at 0.9 (0.8 to 1) at lr 0.1, the untreated network at 1.1 (1 to 1.2) at lr 0.1. It "
        "reaches the untreated network's training loss after 2 of 20 steps.",
        "adam",
    ),
    "one remedy is as good as two": (
        [PLAIN, arm("bnp + adam", 0.5, 0.6, 0.7), arm("bnp", 0.55, 0.61, 0.69), arm("clip", 0.9, is_random=True)],
        "bnp helps: it ends at 0.61 (0.55 to 0.69) at lr 0.1, the untreated network at 1.1 (1 to 1.2) at lr 0.1. It "
        "reaches the untreated network's training loss after 2 of 20 steps. A remedy drawn at random, clip, ends at "
        "0.9 at lr 0.1.",
        "bnp",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("arms", "verdict", "best"), CASES.values(), ids=CASES)
def test_the_verdict_and_the_best_arm(arms: list[Arm], verdict: str, best: str | None) -> None:
    result = treatment(*arms)
    assert result.verdict() == verdict
    assert (result.best.name if result.best else None) == best
    assert result.code == (f"{best} with lr={result.best.best_lr:g}" if result.best else "")


def test_an_interval_is_students() -> None:
    change = Change.of([[1.0], [2.0], [3.0]])  # scipy.stats.t.interval(0.95, 2, 2, 1/√3)
    assert change.mean == 2.0
    assert change.low == pytest.approx(-0.48413771, abs=1e-7)
    assert change.high == pytest.approx(4.48413771, abs=1e-7)
    assert Change.of([[1.0, 2.0, 3.0]]) == change  # of one seed, the batches are the sample
    assert Change.of([[0.5]]) == (0.5, 0.5, 0.5)
    many = Change.of([[0.0], [1.0]] * 20)
    assert many.high - many.mean == pytest.approx(2.02269092 * stdev([0.0, 1.0] * 20) / math.sqrt(40), rel=1e-8)


def test_seeds_and_batches_add_to_the_interval() -> None:
    change = Change.of([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    by_seed, by_batch = variance([1.5, 3.5, 5.5]) / 3, variance([3.0, 4.0]) / 2
    degrees = int((by_seed + by_batch) ** 2 / (by_seed**2 / 2 + by_batch**2 / 1))
    half = two_sided_quantile(degrees) * math.sqrt(by_seed + by_batch)
    assert change == pytest.approx((3.5, 3.5 - half, 3.5 + half))


def test_of_one_seed_the_held_out_data_are_the_noise() -> None:
    losses = {"untreated": (1.0, 1.0, 1.0), "bnp": (0.2, 1.1, 0.8)}
    arms = [arm(name, JudgedRun([1.0] * 20, checks=(Check(20, each, each),))) for name, each in losses.items()]
    assert (
        "with bnp at 0.7 at lr 0.1, which is within the noise of the held-out data; more of them (validation=) or more "
        "steps may tell." in treatment(*arms).verdict()
    )


def simulated(draw: random.Random, name: str, levels: list[float], scale: float) -> Arm:
    """Five seeds of an arm that is as good as any: effects of its seeds and batches, and noise."""
    of_batch = [level + scale * draw.gauss(0, 0.2) for level in levels]
    of_seed = [scale * draw.gauss(0, 0.1) for _ in range(5)]
    tables = [tuple(a + b + scale * draw.gauss(0, 0.1) for a in of_batch) for b in of_seed]
    return arm(name, *(JudgedRun([1.0] * 20, checks=(Check(20, table, table),)) for table in tables))


@pytest.mark.slow
def test_of_arms_that_do_nothing_at_most_one_treatment_in_twenty_has_one_that_helps() -> None:
    draw, false = random.Random(0), 0
    for _ in range(200):
        levels = [draw.lognormvariate(0, 0.5) for _ in range(8)]
        names = ["untreated", *"abcdef"]
        arms = [
            simulated(draw, name, levels, scale) for name, scale in zip(names, (1, 1, 1, 0.3, 0.3, 2, 2), strict=True)
        ]
        result = treatment(*arms)
        if result.promising is not None:  # whose loss on these batches is low by chance, and stays as low
            both = result.untreated, result.promising
            longer = {each.name: next(iter(each.runs.values())) for each in both}
            arms = [replace(each, longer=longer.get(each.name, {})) for each in arms]
            result = replace(treatment(*arms), long_steps=200)
        false += result.best is not result.untreated
    assert false <= 10


@pytest.mark.parametrize(
    ("plain", "after", "best"),
    [(1.0, 0.4, "adam"), (1.0, 0.99, "untreated"), (math.inf, 0.4, "adam"), (1.0, math.inf, "untreated")],
)
def test_longer_runs_tell_a_gain_from_noise(plain: float, after: float, best: str) -> None:
    arms = [arm("untreated", 1.0, 1.3, 0.9), arm("adam", 0.9, 0.8, 0.95)]
    short = treatment(*arms)
    assert short.promising is short.arms["adam"]
    assert short.best is short.untreated

    def longer(end: float) -> dict[int, JudgedRun]:
        return {seed: DIVERGED if math.isinf(end) else judged(end + 0.01 * seed) for seed in (0, 1)}

    arms = [replace(each, longer=longer(end)) for each, end in zip(arms, (plain, after), strict=True)]
    result = replace(treatment(*arms), long_steps=200)
    assert result.best is result.arms[best]
    if (plain, after) == (1.0, 0.4):
        assert "After 200 steps it is at 0.405, the untreated network at 1" in result.verdict()
        assert "Only these longer runs tell it from noise: -0.6" in result.verdict()
    if (plain, after) == (1.0, 0.99):
        assert result.verdict().endswith("; after 200 steps at 1, with adam at 0.995.")


def test_a_control_has_no_longer_run() -> None:
    result = treatment(arm("untreated", 1.0, 1.3, 0.9), arm("adam", 0.9, 0.8, 0.95, is_random=True))
    assert result.promising is None


def test_a_run_is_judged_where_one_would_stop_it() -> None:
    """By the half of the batches that did not choose where."""
    run = JudgedRun([1.0] * 20, checks=(Check(10, (0.4, 0.6), (0.7, 0.9)), Check(20, (0.5, 0.7), (0.1, 0.1))))
    assert run.judged == (0.7, 0.9)
    assert JudgedRun([2.0] * 20).judged == (2.0,)  # nothing is held out
    assert JudgedRun([1.0] * 20, checks=(Check(20, (1.0,), (math.inf,)),)).judged == ()


def test_the_control_never_wins() -> None:
    result = treatment(PLAIN, arm("bnp", 0.1, 0.1, 0.1, is_random=True), arm("adam", 0.5, 0.6, 0.7))
    assert result.best is result.arms["adam"]


@pytest.mark.parametrize(("after", "best"), [(0.4, "adam"), (0.6, "untreated"), (math.inf, "untreated")])
def test_what_is_only_faster_at_first_does_not_help(after: float, best: str) -> None:
    arms = [arm("untreated", 1.0, 1.1, longer={0: judged(0.6)}), arm("adam", 0.5, 0.6, longer={0: judged(after)})]
    result = replace(treatment(*arms), long_steps=200)
    assert result.best is result.arms[best]
    if best == "adam":
        assert "After 200 steps it is at 0.4, the untreated network at 0.6." in result.verdict()
    else:
        assert result.verdict() == (
            "None of these helps for long: untreated it ends at 1.05 (1 to 1.1) at lr 0.1, with adam at 0.55 (0.5 to "
            f"0.6) at lr 0.1, but after 200 steps at 0.6, with adam at {'0.6' if after == 0.6 else 'no finite loss'}."
        )


def test_an_interrupt_leaves_no_final_word() -> None:
    screening = treatment(PLAIN, Arm("bnp", screened=0.3), Arm("adam", screened=0.4), Arm("sgd", screened=math.inf))
    assert replace(screening, is_complete=False).verdict() == (
        "Interrupted after 3 runs. So far: untreated it ends at 1.1 (1 to 1.2) at lr 0.1, and no remedy has been "
        "trained in full. In the screening, of 10 steps, bnp is lowest: 0.3."
    )
    helped = replace(treatment(PLAIN, arm("bnp", 0.5, 0.6, 0.7)), is_complete=False)
    assert helped.verdict().startswith("Interrupted after 6 runs. So far: bnp helps: it ends at 0.6")


def test_a_network_that_fits_needs_no_help() -> None:
    arms = [arm("untreated", 0.004, 0.0041), arm("sgd", 0.001, 0.0011)]
    result = replace(treatment(*arms), uninformed_loss=0.69)
    assert result.best is result.untreated
    assert result.verdict() == (
        "Nothing helps, and nothing has to: untreated it ends at 0.00405 (0.004 to 0.0041) at lr 0.1, 0.59 % of what "
        "an uninformed answer has."
    )


def test_what_a_lower_loss_costs() -> None:
    def priced(name: str, loss: float, seconds: float, memory: int) -> Arm:
        return arm(name, *(judged(loss, seconds=seconds, memory=memory * 2**20) for _ in range(2)))

    arms = [
        priced("untreated", 1.0, 0.001, 4), priced("bnp", 0.5, 0.003, 5), priced("adam", 0.7, 0.001, 6),
        priced("both", 0.5, 0.003, 9), priced("worse", 0.9, 0.009, 9),
    ]  # fmt: skip
    result = treatment(*arms)
    assert [each.name for each in result.pareto] == ["bnp", "adam", "untreated"]
    assert result.prices()[1] == [
        ["bnp", "50 %", "3 ms", "5 MiB"], ["adam", "30 %", "1 ms", "6 MiB"], ["untreated", "", "1 ms", "4 MiB"],
    ]  # fmt: skip
    assert "loss lower by" in str(result)


@pytest.mark.parametrize(
    ("degrees", "level", "quantile"),
    [
        (1, 0.95, 12.706204736),
        (2, 0.95, 4.302652730),
        (3, 0.95, 3.182446305),
        (15, 0.95, 2.131449546),
        (39, 0.95, 2.022690920),
        (200, 0.95, 1.971896224),
        (4, 0.5, 0.740697084),
        (7, 0.99, 3.499483297),
    ],
)
def test_quantiles_of_students_distribution_are_those_of_scipy(degrees: int, level: float, quantile: float) -> None:
    """`scipy.stats.t.ppf((1 + level) / 2, degrees)`."""
    assert two_sided_quantile(degrees, level) == pytest.approx(quantile, abs=1e-8)


def test_an_arm_in_which_a_seed_diverged_has_no_final_loss() -> None:
    mixed = arm("bnp", 0.1, DIVERGED)
    assert (mixed.best_lr, mixed.best_final, mixed.outcome) == (None, None, "1 of 2 diverged")
    assert arm("bnp", 2.0, 3.0).best_final == Spread(2.5, 2.0, 3.0)
    assert treatment(arm("untreated", 5.0, 5.0), mixed).best is not mixed


def test_a_slower_step_is_reported() -> None:
    slow, fast = judged(0.5, seconds=0.03), judged(1.0, seconds=0.01)
    verdict = treatment(arm("untreated", fast), arm("bnp", slow)).verdict()
    assert verdict.endswith("A step takes 3.0 times as long.")


def test_it_prints_as_a_table_with_its_verdict() -> None:
    result = treatment(
        PLAIN,
        arm("bnp", 0.5, 0.6, 0.7, found_by=("unscaled-input",)),
        Arm("adam", screened=0.25),
        Arm("clip", screened=math.inf),
        Arm("last-bn", refused="no"),
    )
    printed = str(result).splitlines()
    assert printed[:5] == [
        result.verdict(),
        "",
        result.code,
        "",
        "Loss after at most 20 steps, median (least to greatest) of 3 seeds",
    ]
    lines = {line.split()[0]: line for line in printed[6:10]}
    assert lines.keys() == {"untreated", "bnp", "adam", "clip"}
    assert "  -0.5  " in lines["bnp"]
    assert lines["bnp"].endswith("unscaled-input")
    assert "screened: 0.25" in lines["adam"]
    assert "diverged" in lines["clip"]
    assert "last-bn refused: no" in printed
    assert printed[-1] == "cost: 8 u (training steps), of at most 60 planned"


def test_where_nothing_helps_there_is_nothing_to_write() -> None:
    result = treatment(PLAIN, arm("bnp", 1.5, 1.6, 1.7))
    assert result.best is result.untreated
    assert result.code
    assert result.code not in str(result)


def test_rows_hold_every_arm_and_the_best_one_first() -> None:
    arms = [PLAIN, arm("bnp", 0.2, 0.1, 0.3, lr=0.7), arm("adam", DIVERGED), Arm("clip", screened=0.4)]
    result = treatment(*arms, Arm("last-bn", refused="no"))
    by_arm: dict[str, dict[str, float]] = {}
    for row in result.rows(step=7):
        assert row.step == 7
        by_arm.setdefault(row.layer, {})[row.quantity] = row.value
    assert by_arm == {
        "": {TRAINED_LR: 0.7, HELD_OUT_LOSS: 0.2, FINAL_LOSS: 0.2, STEPS: 20, COST: 8},
        "untreated": {TRAINED_LR: 0.1, HELD_OUT_LOSS: 1.1, FINAL_LOSS: 1.1},
        "bnp": {TRAINED_LR: 0.7, HELD_OUT_LOSS: 0.2, FINAL_LOSS: 0.2},
        "adam": {DIVERGED_AT: 3},
        "clip": {SCREENED_LOSS: 0.4},
    }


def test_json_holds_every_run_and_the_picture_needs_one(tmp_path: Path) -> None:
    result = treatment(PLAIN, arm("bnp", 0.2, 0.1, 0.3))
    saved = json.loads(result.save(tmp_path / "t.json").read_text())["values"]["arms"]
    assert saved["bnp"]["runs"]["0.1"]["2"]["losses"] == [0.3] * 20
    assert len(result.figure().axes[0].lines) == 2
    none = treatment(arm("untreated", DIVERGED))
    assert {row.quantity for row in none.rows()} == {STEPS, COST, DIVERGED_AT}
    with pytest.raises(OutputError, match="nothing to draw"):
        none.figure()
