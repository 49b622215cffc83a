"""The stress suite in small, and whether it finds what is planted."""

from __future__ import annotations

import math
import random

import pytest
import torch
from torch import nn

from stress import bounds, checks, named, states
from stress.case import Case, Check, Outcome
from stress.losses import LOSSES
from stress.models import FAMILIES
from stress.suite import Report, run_case
from stress.without import MENDS, ROOT


@pytest.mark.slow
@pytest.mark.parametrize("name", named.NAMED)
def test_named_case(name: str) -> None:
    outcomes = named.run_named(name, "cpu")
    assert outcomes
    assert [o for o in outcomes if o.is_failure] == []


@pytest.mark.parametrize("seed", range(12))
def test_random_case(seed: int) -> None:
    _, outcomes = run_case(seed, "cpu")
    assert [o for o in outcomes if o.is_failure] == []


def small_case(state: states.State = states.PLAIN) -> Case:
    return named.problem_case("cpu", named.plain_network, state=state)


def outcome_of(case: Case, check: Check) -> Outcome:
    (outcome,) = case.run([check])
    return outcome


def test_a_wrong_number_is_found() -> None:
    case = small_case()
    check = checks.dense(case, random.Random(0))
    assert outcome_of(case, check).kind == "right"
    slightly_wrong = Check("planted", lambda p, s: 1.00001 * check.measure(p, s), check.judge)
    assert outcome_of(case, slightly_wrong).kind == "silent"


@pytest.mark.slow
def test_a_bound_that_is_too_small_is_found_and_a_chance_miss_is_not() -> None:
    case = small_case()
    check = checks.trace(case, random.Random(0))
    for misses, kind in ((6, "silent"), (2, "right")):
        # the first run misses, and this number of others
        judge = iter([checks.Verdict("right", held=i >= misses) for i in range(6)])
        planted = Check("planted", check.measure, lambda _, judge=judge: next(judge), misses=3)
        assert outcome_of(case, planted).kind == kind


def test_a_raw_error_is_found() -> None:
    case = small_case()
    assert outcome_of(case, Check("planted", lambda p, s: [][0], lambda _: checks.RIGHT)).kind == "crash"


@pytest.mark.parametrize(
    "change",
    [
        lambda p: p.model.train(False),
        lambda p: p.model[0].weight.data.add_(1e-9),
        lambda p: p.model[0].register_forward_hook(lambda *_: None),
        lambda p: setattr(p.model[0].weight, "grad", torch.zeros_like(p.model[0].weight)),
        lambda p: setattr(p.model[0], "calls", 1),
        lambda p: p.batches[0][0].zero_(),
        lambda p: torch.rand(1),
        lambda p: random.random(),
        lambda p: torch.backends.mha.set_fastpath_enabled(False),
    ],
)
def test_a_change_is_found(change: object) -> None:
    case = small_case()
    try:
        assert outcome_of(case, Check("planted", lambda p, s: change(p), lambda _: checks.RIGHT)).kind == "changed"
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


def test_a_suite_that_refuses_everything_shows() -> None:
    report = Report()
    for _ in range(100):
        report.add(Outcome("eigenvalues(Hessian, 1)", "refused", "no"), "", "")
        report.add(Outcome("trace(GGN)", "right"), "", "")
    assert report.refusing() == ["eigenvalues refused 100 of 100 times"]


def test_the_binomial_tail_and_interval() -> None:
    exact = sum(math.comb(50, i) * 0.1**i * 0.9 ** (50 - i) for i in range(8, 51))
    assert bounds.tail(8, 50, 0.1) == pytest.approx(exact, rel=1e-12)
    assert (bounds.tail(0, 50, 0.1), bounds.tail(1, 50, 0.0)) == (1.0, 0.0)
    # Clopper and Pearson's ends: the rates at which this number of misses, or more, has half a per cent
    low, high = bounds.interval(8, 50)
    assert bounds.tail(8, 50, low) == pytest.approx(0.005, rel=1e-6)
    assert 1 - bounds.tail(9, 50, high) == pytest.approx(0.005, rel=1e-6)
    assert bounds.interval(0, 50)[0] == 0


def test_a_rate_that_is_too_high_fails() -> None:
    def rate(misses: int) -> bounds.Rate:
        runs = [bounds.Run(("group",), i < misses, 0.01, "command") for i in range(400)]
        (result,) = bounds.rates(runs)
        return result

    assert not rate(4).is_failure
    assert rate(12).is_failure
    assert "FAILS, as by command" in str(rate(12))


@pytest.mark.slow
def test_random_cases_reach_everything() -> None:
    texts = [run_text(seed) for seed in range(200)]
    for family in FAMILIES:
        assert any(text.startswith(family) for text in texts), family
    for state in states.states("cpu"):
        assert any(text.endswith(state.name) for text in texts), state.name
    losses = {text.split(": ")[1].split(",")[0] for text in texts}
    assert len(losses) >= len(set(LOSSES))


def run_text(seed: int) -> str:
    from stress.case import random_case

    return random_case(seed, "cpu").describe()


def test_the_same_seed_is_the_same_case() -> None:
    from stress.case import random_case

    first, second = (random_case(11, "cpu") for _ in range(2))
    assert first.describe() == second.describe()
    assert torch.equal(first.truth.hessian, second.truth.hessian)


def test_references_agree_with_a_closed_form() -> None:
    """Softmax regression: H = GGN = Fisher = mean (diag p − p pᵀ) ⊗ x xᵀ."""
    case = named.problem_case("cpu", lambda: named.small(nn.Sequential(nn.Linear(4, 3, bias=False))))
    x = case.batches[0][0]
    p = (x @ case.model[0].weight.T).softmax(-1).detach()
    covariance = torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1)
    expected = torch.einsum("nab,ni,nj->aibj", covariance, x, x).reshape(12, 12) / len(x)
    for result in (case.truth.hessian, case.truth.ggn, case.truth.fisher_model):
        assert torch.allclose(result, expected, atol=1e-12)


def test_mends_are_where_the_table_says() -> None:
    for name, mend in MENDS.items():
        assert (ROOT / "src" / "wellcond" / mend.file).read_text().count(mend.text) == 1, name
        assert mend.found_by in named.NAMED
