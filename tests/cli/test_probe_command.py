"""`wellcond probe`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from command import built, run, script

import wellcond as wc


@pytest.fixture
def target(tmp_path: Path) -> str:
    return f"{script(tmp_path)}"


def test_the_walk_and_the_covariate_shift_are_printed(target: str) -> None:
    result = run("probe", f"{target}:build", "--lr", 0.2, "--steps", 3)
    assert result.exit_code == 0, result.output
    assert str(wc.landscape(built(), lr=0.2, steps=3)) in result.output
    problem = built()
    assert str(wc.covariate_shift(problem, torch.optim.SGD(problem.params.values(), lr=0.2))) in result.output


def test_the_optimizer_gives_the_learning_rate_and_the_step(target: str) -> None:
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


def test_an_unknown_layer_is_refused_before_the_work(target: str) -> None:
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
def test_an_optimizer_with_several_rates_needs_the_option_lr(tmp_path: Path, rates: tuple[float, float]) -> None:
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
