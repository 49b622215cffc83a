"""Figure 1 of wei2019: λ_max by formula and by measurement."""

from __future__ import annotations

import pytest

from wellcond.results import Row
from wellcond.results.quantities import LAMBDA_MAX, MAX_LR
from wellcond_papers.experiments.experiment import Job
from wellcond_papers.experiments.table import Record, Table
from wellcond_papers.papers.wei2019.fig1 import EXPERIMENT, NETWORKS, measure


def cell(arm: str, **settings: object) -> Record:
    """One arm at γ 0.5 and 1."""
    chosen = {**EXPERIMENT.arms[arm], "arm": arm, "seed": 0, "gammas": [0.5, 1.0], "examples": 200, **settings}
    return Record(chosen, list(measure(Job(chosen))))


@pytest.mark.parametrize(
    ("arm", "expected"),
    [
        ("FC: BatchNorm, as printed", 230),
        ("FC: BatchNorm, statistics constant", 361.5),
        ("FC: vanilla, as printed", 2234),
        ("conv: BatchNorm, as printed", 343.8),
        ("conv: BatchNorm, statistics constant", 143.5),
    ],
)
def test_the_formulas_give_what_the_theory_says(arm: str, expected: float) -> None:
    record = cell(arm)
    assert record.by_layer(LAMBDA_MAX)["γ 1"] == pytest.approx(expected, rel=2e-3)
    assert record.by_layer(MAX_LR)["γ 1"] == pytest.approx(3.8 / expected, rel=2e-3)


@pytest.mark.parametrize("kind", ["BatchNorm, as trained", "vanilla, corrected"])
def test_the_corrected_formula_agrees_with_what_is_measured(kind: str) -> None:
    """One random network of width 300: its λ_max scatters by some tenths around that of the ensemble."""
    family = kind.partition(",")[0]
    theory, measured = (
        cell(f"FC: {line}", network="fc 100-300-300-300-10", gammas=[1.0]).by_layer(LAMBDA_MAX)["γ 1"]
        for line in (kind, f"{family}, measured")
    )
    assert measured == pytest.approx(theory, rel=0.5)


def test_without_batchnorm_gamma_changes_nothing() -> None:
    assert len(set(cell("FC: vanilla, corrected").by_layer(LAMBDA_MAX).values())) == 1


def test_a_formula_above_the_measured_value_is_no_bound() -> None:
    def record(line: str, value: float) -> Record:
        return Record({"arm": f"FC: BatchNorm, {line}", "seed": 0}, [Row(0, "γ 1", LAMBDA_MAX, value, "")])

    claim = EXPERIMENT.claims[4]
    verdicts = [
        claim.check(Table([record("as printed", at), record("measured", 100.0)])).verdict for at in (99.0, 150.0)
    ]
    assert verdicts == ["holds", "does not hold"]


@pytest.mark.parametrize(("times", "verdict"), [(1.09, "holds"), (1.11, "holds in part")])
def test_up_to_ten_percent_more_just_below_3_is_level(times: float, verdict: str) -> None:
    gammas = {"γ 1": 0.1, "γ 2": 0.2, "γ 2.9": times}
    records = [
        Record(
            {"arm": f"{kind}: {line}, as printed", "seed": 0, "gammas": [1.0, 2.0, 2.9]},
            [Row(0, gamma, LAMBDA_MAX, value if line == "BatchNorm" else 1.0, "") for gamma, value in gammas.items()],
        )
        for kind in NETWORKS
        for line in ("BatchNorm", "vanilla")
    ]
    assert EXPERIMENT.claims[0].check(Table(records)).verdict == verdict


def test_exchanging_both_kinds_of_network_turns_the_claim_around() -> None:
    records = [cell(f"{kind}: {line}, as printed") for kind in NETWORKS for line in ("BatchNorm", "vanilla")]
    claim = EXPERIMENT.claims[0]
    assert claim.check(Table(records)).verdict == "holds"
    other = {a: b for pair in EXPERIMENT.contrast for a, b in (pair, pair[::-1])}
    swapped = [Record({**record.settings, "arm": other[record.arm]}, record.rows) for record in records]
    assert claim.check(Table(swapped)).verdict == "does not hold"
