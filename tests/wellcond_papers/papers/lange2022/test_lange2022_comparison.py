"""Claims about training curves, on curves made by hand."""

from __future__ import annotations

import math

import pytest

from wellcond.results import Row
from wellcond.results.quantities import DIVERGED_AT, LOSS, TEST_ACCURACY, TRAINING_LOSS
from wellcond_papers.experiments.claims import Claim, Outcome
from wellcond_papers.experiments.table import Record, Table
from wellcond_papers.papers.lange2022.comparison import (
    comparable,
    does_not_overfit,
    gains_more,
    keeps_up,
    nearer,
    outperforms,
    overfits,
)
from wellcond_papers.papers.lange2022.convergence import ahead_early, does_not_train, reaches_sooner, trains
from wellcond_papers.papers.lange2022.curves import drawing
from wellcond_papers.papers.lange2022.networks import TENSORFLOW_BN
from wellcond_papers.papers.lange2022.readings import read_as
from wellcond_papers.papers.lange2022.runs import first_epoch, first_step_at, of_seeds, steps_to_loss_of


def run(arm: str, losses: list[float], accuracies: list[float] = (), seed: int = 0, diverged: bool = False) -> Record:
    """Evaluated every 100 steps."""
    rows = [Row(100 * k, "", LOSS, value, "") for k, value in enumerate(losses)]
    rows += [Row(100 * k, "", TEST_ACCURACY, value, "") for k, value in enumerate(accuracies)]
    rows += [Row(None, "", DIVERGED_AT, 1.0, "steps")] if diverged else []
    return Record({"arm": arm, "seed": seed, "data": "cifar10", "batch": 250}, rows)


def trained(arm: str, losses: list[float]) -> Record:
    """Mean losses of the mini-batches over stretches of half an epoch."""
    return Record(
        {"arm": arm, "data": "cifar10", "batch": 250},
        [Row(100 * k, "", TRAINING_LOSS, value, "") for k, value in enumerate(losses, 1)],
    )


def verdict(claim: Claim, *records: Record) -> str:
    return claim.check(Table(records)).verdict


def test_a_loss_is_first_reached_between_two_evaluations_or_never() -> None:
    curve = {0: 3.0, 100: 2.0, 200: 1.0}
    assert [first_step_at(curve, loss) for loss in (1.25, 2, 5, 0.5)] == [175, 100, 0, math.inf]
    assert first_step_at({0: 3.0, 100: 1.0, 200: 3.0}, 2) == 50


def test_steps_are_compared_seed_by_seed_as_shares_of_the_reference() -> None:
    plain = Table([run("vanilla", [3, 2.5, 2], seed=0), run("vanilla", [3, 2, 1], seed=1)])
    fast = Table([run("BNP", [3, 1, 0.5], seed=0), run("BNP", [3, 1, 1], seed=1)])
    # 3 → 1 passes 2 at step 50 and reaches 1 at step 100, of 200
    assert steps_to_loss_of(plain, fast) == [(1.0, 0.25), (1.0, 0.5)]


def test_a_reference_that_diverged_has_no_loss_to_reach() -> None:
    assert steps_to_loss_of(Table([run("vanilla", [3, 2], diverged=True)]), Table([run("BNP", [3, 1])])) == []


def test_who_reaches_the_loss_sooner() -> None:
    claim = reaches_sooner("", "", [("BNP", "vanilla")])
    assert verdict(claim, run("vanilla", [3, 2, 1]), run("BNP", [3, 1, 0.5])) == "holds"
    assert verdict(claim, run("vanilla", [3, 1, 0.5]), run("BNP", [3, 2, 1])) == "does not hold"
    assert verdict(claim, run("vanilla", [3, 1, 0.5])) == "not tested"
    measured = claim.check(Table([run("vanilla", [3, 2, 1]), run("BNP", [3, 1, 0.5])])).measured
    assert measured == "BNP reaches the loss of vanilla after 0.50 of its steps"


def test_sooner_but_not_as_soon_as_claimed_is_a_tie() -> None:
    claim = reaches_sooner("", "", [("BNP", "vanilla")], within=0.5)
    plain = run("vanilla", [3, 2, 1])
    for losses, expected in (([3, 1, 0.5], "holds"), ([3, 2, 0.5], "holds in part"), ([3, 2, 1.5], "does not hold")):
        assert verdict(claim, plain, run("BNP", losses)) == expected


def test_the_accuracy_of_a_run_is_its_last_or_a_mean_or_0_if_it_diverged() -> None:
    curve = [0.1, 0.2, 0.4, 0.6, 0.8]
    assert of_seeds(Table([run("x", [], curve), run("x", [], curve, diverged=True)])) == [0.8, 0.0]
    assert of_seeds(Table([run("x", [], curve)]), begin=0.0, end=0.5) == [pytest.approx(0.3)]  # without step 0


def test_the_beginning_is_the_training_loss_of_the_first_epoch() -> None:
    assert first_epoch(Table([trained("x", [3.0, 2.0, 0.1])])) == [2.5]
    claim = ahead_early("", "", "p", "BN", "BNP")
    fast, slow = [2.0, 1.0, 5.0], [2.0, 1.5, 0.1]
    assert verdict(claim, trained("p: BN", fast), trained("p: BNP", slow)) == "holds"
    assert verdict(claim, trained("p: BN", slow), trained("p: BNP", fast)) == "does not hold"
    assert verdict(claim, trained("p: BN", slow)) == "not tested"


def test_claims_about_final_accuracies() -> None:
    runs = [
        run("p: a", [], [0, 0.50]),
        run("p: b", [], [0, 0.515]),
        run("p: c", [], [0, 0.60]),
        run("q: a", [], [0, 1]),
    ]
    assert verdict(outperforms("", "", "p", ["c"], ["a", "b"]), *runs) == "holds"
    # above both, above one of them by less
    assert verdict(outperforms("", "", "p", ["c"], ["a", "b"], by=0.09), *runs) == "holds in part"
    assert verdict(outperforms("", "", "p", ["a"], ["b", "c"]), *runs) == "does not hold"
    assert verdict(comparable("", "", "p", ["a", "b"]), *runs) == "holds"
    assert verdict(comparable("", "", "p", ["a", "c"]), *runs) == "does not hold"
    assert verdict(comparable("", "", "p", ["a"]), *runs) == "not tested"
    assert verdict(nearer("", "", "p", "a", ["b"], "c"), *runs) == "holds"
    assert verdict(nearer("", "", "p", "a", ["c"], "b"), *runs) == "does not hold"
    assert verdict(keeps_up("", "", [("p", "b", "a"), ("p", "a", "b")]), *runs) == "holds"
    assert verdict(keeps_up("", "", [("p", "a", "c")]), *runs) == "does not hold"


def test_a_claim_about_several_methods_is_not_judged_on_some_of_them() -> None:
    runs = [run("p: a", [3, 2], [0, 0.5]), run("p: b", [3, 4], [0, 0.6])]
    claims = [
        outperforms("", "", "p", ["b"], ["a", "d"]),
        comparable("", "", "p", ["a", "b", "d"]),
        nearer("", "", "p", "a", ["d"], "b"),
        keeps_up("", "", [("p", "b", "a"), ("p", "b", "d")]),
        does_not_train("", "", "p", ["b", "d"]),
        reaches_sooner("", "", [("p: a", "p: b"), ("p: a", "p: d")]),
    ]
    for claim in claims:
        outcome = claim.check(Table(runs))
        assert outcome.verdict == "not tested"
        assert outcome.measured.endswith("d")
        assert "not run" in outcome.measured


def test_accuracies_are_compared_wherever_training_may_have_ended() -> None:
    falls, rises = run("p: a", [], [0, 0.5, 0.6, 0.5]), run("p: b", [], [0, 0.4, 0.5, 0.7])
    assert verdict(outperforms("", "", "p", ["b"], ["a"]), falls, rises) == "holds"
    claim = outperforms("", "", "p", ["b"], ["a"], over=[(0.65, 0.65), (1.0, 1.0)])
    assert verdict(claim, falls, rises) == "does not hold"
    assert claim.check(Table([falls, rises])).measured == (
        "at 0.65 of the run b 50.0 %, a 60.0 %; at 1.00 of the run b 70.0 %, a 50.0 %"
    )
    assert verdict(comparable("", "", "p", ["a", "b"], within=0.15, over=[(0.65, 0.65)]), falls, rises) == "holds"


def test_a_sentence_that_holds_under_one_reading_holds_in_part() -> None:
    def reading(outcome: str) -> list[Claim]:
        return [Claim("it trains", "", lambda table: Outcome(outcome, "1.0"))]

    def of(*outcomes: str) -> str:
        [claim] = read_as(dict(zip(("raw", "standardized"), map(reading, outcomes), strict=True)))
        return claim.check(Table([])).verdict

    for same in ("holds", "does not hold", "not tested"):
        assert of(same, same) == of(same, "not tested") == same
    assert of("holds", "does not hold") == of("does not hold", "holds in part") == "holds in part"


def test_bn_is_the_one_with_the_sources_defaults_where_it_was_run() -> None:
    runs = [run("p: BN", [], [0, 0.4]), run("p: BNP", [], [0, 0.5])]
    claim = outperforms("", "", "p", ["BNP"], ["BN"])
    assert claim.check(Table(runs)) == Outcome("holds", "BNP 50.0 %, BN 40.0 %")
    runs.append(run(f"p: {TENSORFLOW_BN}", [], [0, 0.6]))
    assert claim.check(Table(runs)) == Outcome("does not hold", f"BNP 50.0 %, {TENSORFLOW_BN} 60.0 %")


def test_seeds_that_overlap_are_a_tie() -> None:
    runs = [run("p: a", [], [0, value]) for value in (0.4, 0.6)] + [run("p: b", [], [0, value]) for value in (0.5, 0.6)]
    assert verdict(outperforms("", "", "p", ["b"], ["a"]), *runs) == "holds in part"
    assert verdict(outperforms("", "", "p", ["a"], ["b"]), *runs) == "holds in part"
    assert verdict(comparable("", "", "p", ["a", "b"]), *runs) == "holds in part"
    assert verdict(keeps_up("", "", [("p", "a", "b")]), *runs) == "holds in part"


def test_accuracies_that_the_test_images_cannot_tell_apart_are_a_tie() -> None:
    """√(p (1 − p) / 10 000) is 0.5 points at a half and 0.14 at 98 %; of a gain, which has two accuracies, √2 times."""
    for low, high, expected in (
        (0.5, 0.504, "holds in part"),
        (0.5, 0.506, "holds"),
        (0.98, 0.981, "holds in part"),
        (0.98, 0.982, "holds"),
    ):
        ends = [run("p: a", [], [0, low]), run("p: b", [], [0, high])]
        assert verdict(outperforms("", "", "p", ["b"], ["a"]), *ends) == expected
    flat = run("p: a", [], [0.1, *[0.5] * 10])
    for end, expected in ((0.506, "holds in part"), (0.508, "holds")):
        rises = run("p: b", [], [0.1, *[0.5] * 5, *[end] * 5])
        assert verdict(gains_more("", "", "p", ["b"], ["a"], at=0.5), flat, rises) == expected
    center, far = run("p: a", [], [0, 0.5]), run("p: c", [], [0, 0.46])
    for near, expected in ((0.463, "holds in part"), (0.467, "holds")):
        assert verdict(nearer("", "", "p", "a", ["b"], "c"), center, run("p: b", [], [0, near]), far) == expected


def test_what_was_found_says_how_many_runs_diverged() -> None:
    runs = [run("p: a", [], [0, 0.5]), run("p: b", [], [0, 0.5]), run("p: b", [], [0, 0.5], diverged=True)]
    claim = outperforms("", "", "p", ["a"], ["b"])
    assert claim.check(Table(runs)).measured == "a 50.0 %, b 0.0 to 50.0 % (1 diverged)"
    assert claim.check(Table([runs[0], runs[2]])).measured == "a 50.0 %, b diverged"


def test_seeds_that_disagree_are_told_by_their_range() -> None:
    runs = [
        run("p: a", [], [0, 0.72]),
        run("p: a", [], [0, 0.11]),
        run("p: b", [], [0, 0.6]),
        run("p: b", [], [0, 0.7]),
    ]
    measured = comparable("", "", "p", ["a", "b"]).check(Table(runs)).measured
    assert measured == "a 11.0 to 72.0 %, b 65.0 %"


def test_a_network_whose_loss_does_not_fall_does_not_train() -> None:
    claim = does_not_train("", "", "p", ["BN"])
    assert verdict(claim, run("p: BN", [2.3, 2.4, 2.35], [0.1, 0.1, 0.11])) == "holds"
    assert verdict(claim, run("p: BN", [2.3, 2.4, 2.0], [0.1, 0.1, 0.3])) == "does not hold"
    other = trains("", "", "p", ["BN"])
    assert verdict(other, run("p: BN", [2.3, 2.4, 2.0], [0.1, 0.1, 0.3])) == "holds"
    assert verdict(other, run("p: BN", [2.3, 2.4, 2.35], [0.1, 0.1, 0.11])) == "does not hold"
    measured = claim.check(Table([run("p: BN", [2, 7, 9], [0.1, 0.1, 0.11])])).measured
    assert measured == "BN: loss 2, then 9; BN 11.0 %"


def test_a_gain_is_counted_from_just_before_the_decay() -> None:
    claim = gains_more("", "", "p", ["BN"], ["BNP"], at=0.5)
    steep, flat = [0.1, 0.2, 0.3, 0.4, 0.5, 0.5, 0.9, 0.9, 0.9, 0.9, 0.9], [0.1, *[0.8] * 10]
    assert verdict(claim, run("p: BN", [], steep), run("p: BNP", [], flat)) == "holds"
    assert claim.check(Table([run("p: BN", [], steep), run("p: BNP", [], flat)])).measured == "BN 40.0 %, BNP 0.0 %"
    assert verdict(claim, run("p: BN", [], flat), run("p: BNP", [], steep)) == "does not hold"
    lost = run("p: BNP", [], [0.1], diverged=True)
    assert claim.check(Table([run("p: BN", [], steep), lost])) == Outcome(
        "not tested", "BN 40.0 %; not run: BNP to the end"
    )


def test_overfitting_is_a_fall_of_the_accuracy_since_some_epoch() -> None:
    falls, rises = [0.1, 0.2, 0.3, 0.4, 0.5, 0.5, 0.5, 0.4, 0.4, 0.4, 0.4], [k / 10 for k in range(11)]
    claim, opposite = overfits("", "", "p", "BNP", since=0.5), does_not_overfit("", "", "p", "BNP")
    assert [verdict(claim, run("p: BNP", [], curve)) for curve in (falls, rises)] == ["holds", "does not hold"]
    assert [verdict(opposite, run("p: BNP", [], curve)) for curve in (falls, rises)] == ["does not hold", "holds"]
    assert verdict(claim) == verdict(opposite) == "not tested"
    assert claim.check(Table([run("p: BNP", [], falls)])).measured == "50.0 % at 0.50 of the run, 40.0 % last"
    within_error = [0.1, *[0.5] * 6, *[0.496] * 4]
    assert verdict(claim, run("p: BNP", [], within_error)) == "holds in part"
    assert verdict(opposite, run("p: BNP", [], within_error)) == "holds"


def test_the_picture_is_drawn_also_of_diverged_and_empty_runs() -> None:
    whole = run("left: BNP", [3, 2, 1], [0.1, 0.2, 0.3])
    short = run("left: BN", [3], [0.1], diverged=True)
    figure = drawing(left="left")(
        Table([whole, short, run("right: BNP", [3, 2], [0.1, 0.2]), run("right: LN", [], diverged=True)])
    )
    assert [axes.get_title(loc="left") for axes in figure.axes[:2]] == ["(left) left", "right"]
    assert figure.axes[0].lines[0].get_xdata().tolist() == [0, 0.5, 1.0]  # epochs of 200 steps
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["BNP", "BN"]
