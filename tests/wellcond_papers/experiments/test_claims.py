"""Verdicts from several seeds: what counts as a difference, and that no page calls less than that one."""

from __future__ import annotations

from statistics import fmean, stdev

import book
import pytest

from wellcond_papers.experiments.claims import Claim, is_greater, judged
from wellcond_papers.experiments.reproduction import Reproduction
from wellcond_papers.experiments.table import Record, Table
from wellcond_papers.papers.lange2022.runs import is_near
from wellcond_papers.papers.wei2019.judging import has_tendency, rising
from wellcond_papers.papers.zhang2018 import fig1

REPEATED = {
    f"{name}-{scale}": run
    for name in book.names()
    for scale, run in book.runs(name).items()
    if len({record.settings["seed"] for record in run.table}) > 1
}
"""The committed runs with several seeds."""


@pytest.mark.parametrize("shift", [0.5, 0.99, 1.01, 3.0])
def test_two_means_differ_if_they_do_by_more_than_one_seed_from_another(shift: float) -> None:
    """With equal spreads the limit is the standard deviation of either; five seeds do not make it smaller."""
    for count in (2, 5):
        theirs = [float(seed) for seed in range(count)]
        ours = [value + shift * stdev(theirs) for value in theirs]
        assert is_greater(ours, theirs) is (True if shift > 1 else None)
        assert is_greater(theirs, ours) is (False if shift > 1 else None)


def test_the_spread_is_that_of_both_and_of_one_where_the_other_has_one_seed() -> None:
    assert is_greater([10.0, 10.0], [6.0, 8.0]) is True  # 3 apart, √((0 + 2)/2) = 1
    assert is_greater([10.0, 10.0], [7.0, 11.0]) is None  # 1 apart, √(8/2)/… = 2
    assert is_greater([10.0], [7.0, 11.0]) is None  # 1 apart, √8
    assert is_greater([10.0], [9.0]) is True
    assert is_greater([10.0], [9.0], at_least=1.0) is None


def test_ties_alone_do_not_make_a_claim_hold_nor_fail() -> None:
    assert judged([None, None], "").verdict == "holds in part"
    assert judged([True, None], "").verdict == "holds in part"
    assert judged([False, None], "").verdict == "does not hold"


def test_pairs_that_are_too_close_count_half_in_a_tendency() -> None:
    apart, close = [[1.0, 1.1], [2.0, 2.1], [3.0, 3.1]], [[1.0, 2.0], [1.1, 2.1], [1.2, 2.2]]
    assert (rising(apart), rising(apart[::-1]), rising(close)) == (1.0, 0.0, 0.5)
    assert rising([[1.0, 1.1], [1.0, 1.2], [3.0, 3.1]]) == pytest.approx((0.5 + 1 + 1) / 3)
    assert [has_tendency(share) for share in (0.75, 0.74, 0.51, 0.5)] == [True, None, None, False]


def test_a_run_that_diverged_is_near_nothing_though_it_widens_the_spread() -> None:
    assert is_near([0.50, 0.52], [0.51, 0.53], within=0.02) is True
    assert is_near([0.40, 0.60], [0.55, 0.65], within=0.02) is None
    assert is_near([0.0, 0.60], [0.55, 0.65], within=0.02) is False
    assert is_near([0.50, 0.52], [0.60, 0.62], within=0.02) is False


def test_an_epoch_in_which_seeds_overlap_is_too_close_to_tell() -> None:
    def run(arm: str, seed: int, losses: list[float]) -> Record:
        rows = [fig1.Row(step, "", fig1.TRAINING_LOSS, loss, "") for step, loss in enumerate(losses)]
        return Record({"arm": f"CIFAR-10, {arm}", "seed": seed}, rows)

    sgd = [run("SGD", seed, [3.0, 2.0 + 0.2 * seed]) for seed in (0, 1)]
    outcome = fig1.lower_loss.check(Table([*sgd, *(run("scale-amended", s, [2.0, 1.9 + 0.2 * s]) for s in (0, 1))]))
    assert outcome.measured == "CIFAR-10: lower in 1 of 2 epochs, too close to tell in 1"
    assert outcome.verdict == "holds in part"
    outcome = fig1.lower_loss.check(Table([*sgd, *(run("scale-amended", s, [2.0, 1.0]) for s in (0, 1))]))
    assert outcome.verdict == "holds"
    outcome = fig1.lower_loss.check(Table([*sgd, *(run("scale-amended", s, [2.0, 9.0]) for s in (0, 1))]))
    assert outcome.verdict == "does not hold"


def replaced(run: Reproduction, twin: dict[str, str], lucky: int | None) -> Table:
    """The table where an arm has what its twin measured, in all seeds but the lucky one."""
    rows = {(record.arm, record.settings["seed"]): record.rows for record in run.table}

    def changed(record: Record) -> Record:
        seed = record.settings["seed"]
        other = rows.get((twin.get(record.arm, record.arm), seed), record.rows)
        return record if seed == lucky else Record(record.settings, other, record.seconds)

    return Table([changed(record) for record in run.table])


def claims_that_hold(run: Reproduction) -> list[Claim]:
    pairs = zip(run.experiment.claims, run.outcomes, strict=True)
    return [claim for claim, outcome in pairs if outcome.verdict == "holds"]


@pytest.mark.slow
@pytest.mark.parametrize("name", REPEATED)
def test_no_claim_that_compares_two_arms_holds_by_one_seed_alone(name: str) -> None:
    """Where all seeds of an arm but one are those of the other, its mean differs by d/n, its seeds by d/√n."""
    run = REPEATED[name]
    seeds = sorted({record.settings["seed"] for record in run.table})
    ways = [dict(run.experiment.contrast), {second: first for first, second in run.experiment.contrast}]
    exchanged = replaced(run, ways[0] | ways[1], lucky=None)
    tables = [[replaced(run, way, lucky) for lucky in seeds] for way in ways]
    for claim in claims_that_hold(run):
        if claim.check(exchanged).verdict == "does not hold":
            outcomes = [[claim.check(table) for table in each] for each in tables]
            original = claim.check(run.table).measured
            if all(any(outcome.measured != original for outcome in each) for each in outcomes):  # it depends on both
                verdicts = [outcome.verdict for each in outcomes for outcome in each]
                assert fmean(verdict == "holds" for verdict in verdicts) <= 0.5, claim.says


@pytest.mark.parametrize("name", REPEATED)
def test_a_claim_that_holds_does_so_in_most_seeds_alone(name: str) -> None:
    run = REPEATED[name]
    seeds = sorted({record.settings["seed"] for record in run.table})
    for claim in claims_that_hold(run):
        verdicts = [claim.check(run.table.where(seed=seed)).verdict for seed in seeds]
        assert verdicts.count("does not hold") <= len(seeds) / 3, claim.says
