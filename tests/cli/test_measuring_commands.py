"""`wellcond diagnose` and `wellcond probe`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from command import built, one_line, parsed, run, script, words

import wellcond as wc
from wellcond.diagnosis import diagnose as diagnosing
from wellcond.spectral.eigenvalues import eigenvalues


def test_a_problem_is_diagnosed_with_the_optimizer_beside_it(tmp_path: Path) -> None:
    result = run("diagnose", f"{script(tmp_path)}:with_optimizer")
    assert result.exit_code == 0, result.output
    text = words(result.output)
    for part in ("26 parameters", "on 8 examples", "κ50 Σx", "with momentum 0.9; the optimizer is at 0.25"):
        assert part in text


@pytest.fixture
def target(tmp_path: Path) -> str:
    return f"{script(tmp_path)}"


def test_the_walk_and_the_covariate_shift_are_printed(target: str) -> None:
    result = run("probe", f"{target}:build", "--lr", 0.2, "--steps", 3)
    assert result.exit_code == 0, result.output
    assert str(wc.landscape(built(), lr=0.2, steps=3)) in result.output
    problem = built()
    assert str(wc.covariate_shift(problem, torch.optim.SGD(problem.params.values(), lr=0.2))) in result.output


def test_an_optimizer_beside_the_problem_gives_the_learning_rate_and_the_step(target: str) -> None:
    result = run("probe", f"{target}:with_optimizer")
    assert "from 0.5 to 4 times lr 0.25" in result.output
    assert "a step of SGD" in result.output


def test_local_hessians_of_the_layers_asked_for_and_no_covariate_shift(target: str) -> None:
    result = run("probe", f"{target}:build", "--no-shift", "--layer", "0", "--layer", "[1:3]")
    assert result.exit_code == 0, result.output
    weight = built().model[0].weight.detach()
    largest = float(torch.linalg.eigvalsh(weight.T @ weight)[-1])
    line = next(line for line in result.output.splitlines() if line.startswith("H_z, gauss_newton"))
    assert float(line.split()[3]) == pytest.approx(largest, rel=1e-2)
    assert "ReLU → Linear" in result.output
    assert "Covariate" not in result.output


def test_a_layer_that_is_not_there_is_said_before_the_work(target: str) -> None:
    result = run("probe", f"{target}:build", "--layer", "fc9")
    assert result.exit_code == 1
    assert "fc9" in result.stderr
    assert not result.stdout.strip()


def test_a_step_that_cannot_be_replayed_leaves_the_walk(tmp_path: Path) -> None:
    code = """
    def with_bnp():
        problem, optimizer = with_optimizer()
        wc.BNP(problem.model, optimizer)
        return problem, optimizer
    """
    result = run("probe", f"{script(tmp_path, code)}:with_bnp")
    assert result.exit_code == 0, result.output
    assert "β-smoothness" in result.output
    assert "not measured" in result.output


@pytest.mark.parametrize("rates", [(0.0, 0.0), (0.1, 0.01)])
def test_which_of_an_optimizers_rates_is_walked_must_be_said(tmp_path: Path, rates: tuple[float, float]) -> None:
    code = f"""
    def with_groups():
        problem = build()
        first, last = (problem.model[i].parameters() for i in (0, 2))
        groups = [{{"params": first, "lr": {rates[0]}}}, {{"params": last, "lr": {rates[1]}}}]
        return problem, torch.optim.SGD(groups)
    """
    path = script(tmp_path, code)
    refused = run("probe", f"{path}:with_groups")
    assert refused.exit_code == 2
    assert "--lr" in refused.output
    assert run("probe", f"{path}:with_groups", "--lr", 0.1).exit_code == 0


# diagnose


def test_the_layers_are_printed_before_the_rest_is_measured_and_only_once(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def announced(*arguments: Any, **options: Any) -> Any:
        print("now the Hessian")
        return eigenvalues(*arguments, **options)

    monkeypatch.setattr(diagnosing, "eigenvalues", announced)
    result = run("diagnose", f"{target}:build")
    assert result.exit_code == 0, result.output
    before, after = result.stdout.split("now the Hessian")
    assert "Problem(" in before
    assert "κ50 Σx" in before
    assert "largest stable lr" in after
    assert result.stdout.count("κ50 Σx ") == 1
    assert result.stdout.count("Problem(") == 1


def test_json_is_all_that_is_printed(target: str) -> None:
    content = parsed(run("diagnose", f"{target}:build", "--json"))
    assert [part["name"] for part in content["values"]["parts"]][:2] == ["layers", "Hessian eigenvalues"]


@pytest.mark.parametrize("as_json", [False, True])
def test_ctrl_c_prints_and_saves_what_is_known_and_exits_with_130(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_json: bool
) -> None:
    def interrupt(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(diagnosing, "eigenvalues", interrupt)
    files = tmp_path / "rows.csv", tmp_path / "page.html"
    out = [argument for file in files for argument in ("--out", file)]
    result = run("diagnose", f"{target}:build", *out, *(["--json"] if as_json else []))
    assert result.exit_code == 130
    assert "interrupted" in result.stderr
    assert "gradient_norm" in files[0].read_text(encoding="utf-8")
    assert "Could not be measured" in files[1].read_text(encoding="utf-8")
    if as_json:
        assert json.loads(result.stdout)["values"]["failed"]["Hessian eigenvalues"] == "interrupted"
    else:
        assert result.stdout.count("κ50 Σx ") == 1
        assert "Hessian eigenvalues, largest stable lr failed: interrupted" in words(result.stdout)


@pytest.mark.parametrize(("budget", "has_trace"), [("fast", False), ("full", True), ("30", True)])
def test_the_budget_is_fast_full_or_seconds(target: str, budget: str, has_trace: bool) -> None:
    content = parsed(run("diagnose", f"{target}:build", "--budget", budget, "--json"))
    assert (content["values"]["trace"] is not None) == has_trace


def test_layers_are_listed_by_name_or_refused_with_those_that_are_near(target: str) -> None:
    content = parsed(run("diagnose", f"{target}:build", "--layers", "2", "--json"))
    assert {row["layer"] for row in content["rows"]} == {"", "2"}
    assert "'fc2'" in one_line(run("diagnose", f"{target}:build", "--layers", "fc2"))


@pytest.mark.parametrize("budget", ["slow", "0", "-3", "nan"])
def test_another_budget_is_a_usage_error(target: str, budget: str) -> None:
    result = run("diagnose", f"{target}:build", "--budget", budget)
    assert result.exit_code == 2
    assert "seconds" in words(result.stderr)
