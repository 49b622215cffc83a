from __future__ import annotations

from pathlib import Path

import pytest
import torch
from command import built, run, script, words

import wellcond as wc


def test_the_parts_printed_are_those_of_the_suggestion(tmp_path: Path) -> None:
    result = run("suggest-lr", f"{script(tmp_path)}:build", "--momentum", 0.5, "--steps", 3)
    assert result.exit_code == 0, result.output
    found = wc.suggest_lr(built(), steps=3, momentum=0.5)
    for part in (found.limit, found.predicted, found.trial):
        assert str(part) in result.output
    assert found.verdict() in words(result.output)


def test_the_rate_to_start_with_lowers_the_loss(tmp_path: Path) -> None:
    result = run("suggest-lr", f"{script(tmp_path)}:build", "--momentum", 0)
    line = next(line for line in result.output.splitlines() if line.startswith("Start with lr = "))
    problem = built()
    x, y = problem.batches[0]
    optimizer = torch.optim.SGD(problem.model.parameters(), lr=float(line.split("=")[1].split(":")[0]))
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(problem.model(x), y)
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize("function", ["with_optimizer", "with_adam"])
def test_an_optimizer_beside_the_problem_takes_the_steps(function: str, tmp_path: Path) -> None:
    result = run("suggest-lr", f"{script(tmp_path)}:{function}", "--steps", 2)
    assert result.exit_code == 0, result.output
    assert "loss after 2 steps" in result.output
    assert ("no prediction" in result.output) == (function == "with_adam")
    assert "Start with lr = " in result.output
