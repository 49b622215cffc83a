from __future__ import annotations

import math

import pytest

from wellcond.diagnosis.finding import Finding
from wellcond.recording.comparison import compare_runs
from wellcond.recording.history import History
from wellcond.recording.run import Run
from wellcond.recording.settings import optimizer_classes, settings
from wellcond.results import Row
from wellcond.results import quantities as q


def losses(*values: float) -> Run:
    return Run.of(History(Row(i, "", q.TRAINING_LOSS, v, "") for i, v in enumerate(values, start=1)), [], {})


def gradients(factor: float, steps: range) -> Run:
    return Run.of(History(Row(i, "fc", q.GRADIENT_NORM, factor * i**2, "") for i in steps), [], {})


def test_losses_are_compared_at_steps_that_both_have() -> None:
    comparison = compare_runs({"a": losses(*range(8, 0, -1)), "b": losses(4.0, 3.0, 2.0, 1.0)})
    assert comparison.losses == {1: {"a": 8, "b": 4}, 2: {"a": 7, "b": 3}, 3: {"a": 6, "b": 2}, 4: {"a": 5, "b": 1}}
    assert comparison.ends == {"a": (8, 1.0), "b": (4, 1.0)}
    assert comparison.rows(4) == [
        Row(4, "a", q.TRAINING_LOSS, 5, ""),
        Row(4, "b", q.TRAINING_LOSS, 1, ""),
    ]


def test_the_loss_at_a_step_is_not_that_of_a_single_batch() -> None:
    noisy = [1.0] * 1000
    noisy[499] = noisy[999] = 50.0
    assert compare_runs({"a": losses(*noisy), "b": losses(*[2.0] * 1000)}).losses[500] == {"a": 1.0, "b": 2.0}


def test_a_run_that_is_not_finite_is_never_the_best() -> None:
    verdict = compare_runs({"a": losses(1.0, math.nan), "b": losses(9.0, 9.0)}).verdict()
    assert verdict == "b has the lowest loss at step 2: 9; a nan."


def test_the_same_run_twice_differs_in_nothing() -> None:
    comparison = compare_runs({"a": losses(2.0, 1.0), "b": losses(2.0, 1.0)})
    assert comparison.verdict() == "All have the same loss at step 2: 1; b 1."
    assert comparison.settings == {}
    assert comparison.findings == ()


def test_runs_without_losses_are_compared_all_the_same() -> None:
    assert "no step in common" in compare_runs({"a": losses(), "b": losses(1.0)}).verdict()


@pytest.mark.parametrize("steps", [range(1, 100), range(10, 200, 3)])
def test_layers_are_compared_by_their_ratio_at_steps_of_both(steps: range) -> None:
    (difference,) = compare_runs({"a": gradients(1.0, range(1, 150)), "b": gradients(5.0, steps)}).layers
    assert (difference.layer, difference.quantity, difference.run) == ("fc", q.GRADIENT_NORM, "b")
    assert difference.factor == pytest.approx(5.0, rel=0.01)


def test_layers_without_a_step_or_a_positive_number_in_common_are_left_out() -> None:
    runs = {"a": gradients(1.0, range(1, 9)), "b": gradients(1.0, range(20, 30)), "c": gradients(0.0, range(1, 9))}
    assert compare_runs(runs).layers == ()


def test_findings_that_one_run_lacks_are_listed_worst_first() -> None:
    spike = Finding(rule="loss-spike", severity="warning", summary="", step=3, until=5)
    dead = Finding(rule="dying-neurons", layer="fc", severity="severe", summary="", step=7)
    both = Finding(rule="overfitting", severity="note", summary="", step=9)
    first = Run.of(History(), [spike, both], {})
    second = Run.of(History(), [dead, both], {})
    listed = compare_runs({"a": first, "b": second}).findings
    assert [(each.rule, each.layer, each.steps) for each in listed] == [
        ("dying-neurons", "fc", {"b": "since step 7"}),
        ("loss-spike", "", {"a": "steps 3 to 5"}),
    ]


def test_a_model_of_another_size_is_a_difference() -> None:
    small, large = ([{"name": "", "type": "Net", "parameters": count}] for count in (10, 2000))
    runs = {"a": Run.of(History(), [], {"model": small}), "b": Run.of(History(), [], {"model": large})}
    expected = {"a": "1 modules, 10 parameters", "b": "1 modules, 2,000 parameters"}
    assert compare_runs(runs).settings == {"model": expected}


def test_one_run_is_refused() -> None:
    with pytest.raises(ValueError, match="two or more"):
        compare_runs({"a": losses(1.0)})


def test_settings_of_several_optimizers_and_groups_have_numbers() -> None:
    groups = [{"lr": 0.1, "betas": [0.9, 0.99]}, {"lr": 0.2, "foreach": None}]
    manifest = {"optimizer": [{"class": "Adam", "groups": groups}, {"class": "SGD", "groups": [{"lr": 1.0}]}]}
    assert optimizer_classes(manifest) == ["Adam", "SGD"]
    assert settings(manifest) == {
        "optimizer 1": "Adam",
        "optimizer 1 group 1 lr": "0.1",
        "optimizer 1 group 1 betas": "0.9, 0.99",
        "optimizer 1 group 2 lr": "0.2",
        "optimizer 2": "SGD",
        "optimizer 2 lr": "1",
    }
