"""`wellcond suggest-lr` and `wellcond predict-lr`."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest
import torch
from command import built, run, script, words

import wellcond as wc
from wellcond.report.races import race_picture
from wellcond.training.copy_run import CopyRun


@pytest.mark.slow
def test_the_parts_printed_are_those_of_the_suggestion(tmp_path: Path) -> None:
    result = run("suggest-lr", f"{script(tmp_path)}:build", "--momentum", 0.5, "--steps", 3, "--limits")
    assert result.exit_code == 0, result.output
    suggestion = wc.suggest_lr(built(), steps=3, momentum=0.5)
    assert suggestion.race is not None
    for part in (suggestion.limit, suggestion.predicted, race_picture(suggestion.race)):
        assert str(part) in result.output
    assert suggestion.verdict() in words(result.output)


@pytest.mark.slow
def test_the_answer_comes_first(tmp_path: Path) -> None:
    result = run("suggest-lr", f"{script(tmp_path)}:build", "--momentum", 0.5, "--steps", 3, width=300)
    assert result.output.splitlines()[1].startswith("Start with lr = ")
    assert str(wc.suggest_lr(built(), steps=3, momentum=0.5)).startswith("Start with lr = ")


@pytest.mark.slow
def test_the_rate_to_start_with_lowers_the_loss(tmp_path: Path) -> None:
    result = run("suggest-lr", f"{script(tmp_path)}:build", "--momentum", 0)
    line = next(line for line in result.output.splitlines() if line.startswith("Start with lr = "))
    problem = built()
    x, y = problem.batches[0]
    optimizer = torch.optim.SGD(problem.model.parameters(), lr=float(line.split()[4].rstrip(":")))
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(problem.model(x), y)
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.slow
@pytest.mark.parametrize("function", ["with_optimizer", "with_adam"])
def test_an_optimizer_returned_with_the_problem_takes_the_steps(function: str, tmp_path: Path) -> None:
    result = run("suggest-lr", f"{script(tmp_path)}:{function}", "--steps", 40, "--limits")
    assert result.exit_code == 0, result.output
    assert "yours" in result.output
    assert "Measured, from the curvature" in result.output
    assert ("Predicted, from the architecture" in result.output) == (function == "with_optimizer")


@pytest.mark.slow
def test_the_answer_is_short_unless_limits_are_asked_for(tmp_path: Path) -> None:
    result = run("suggest-lr", f"{script(tmp_path)}:with_optimizer", "--steps", 40, "--max-steps", 80)
    assert result.exit_code == 0, result.output
    assert "Measured" not in result.output
    assert len(result.output.splitlines()) < 24


@pytest.mark.slow
def test_several_weight_decays_make_a_table_and_other_words_are_refused(tmp_path: Path) -> None:
    path = f"{script(tmp_path)}:with_optimizer"
    result = run("suggest-lr", path, "--weight-decays", "0,0.1", "--batch-sizes", "4", "--max-steps", 60, "--steps", 30)
    assert result.exit_code == 0, result.output
    assert "weight decay" in result.output
    assert run("suggest-lr", path, "--batch-sizes", "many").exit_code == 2


@pytest.mark.slow
def test_the_limit_is_predicted_and_measured(tmp_path: Path) -> None:
    result = run("predict-lr", f"{script(tmp_path)}:build", "--momentum", 0.5)
    assert result.exit_code == 0, result.output
    assert str(wc.max_lr(built(), momentum=0.5)) in result.output
    assert str(wc.meanfield.predict(built(), momentum=0.5)) in result.output
    assert "Start with lr = " in result.output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "text"), [("with_optimizer", "SGD has lr 0.25"), ("with_adam", "Adam has lr 0.001")]
)
def test_the_optimizers_own_momentum_is_taken(function: str, text: str, tmp_path: Path) -> None:
    result = run("predict-lr", f"{script(tmp_path)}:{function}")
    assert result.exit_code == 0, result.output
    assert text in result.output
    assert "with momentum μ = 0.9" in result.output
    note = "note: the prediction is for SGD with momentum 0.9 and one learning rate"
    assert (note in words(result.output)) == ("note:" in result.output) == (function == "with_adam")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (
            """
    layers = torch.nn.Conv2d(1, 2, 3), torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.Linear(2, 2)
    return problem(torch.nn.Sequential(*layers), (torch.randn(8, 1, 4, 4), torch.arange(8) % 2))
    """,
            "MaxPool2d",
        ),
        ("    return problem(network(), (torch.randn(1, 3), torch.zeros(1, dtype=torch.long)))", "nothing: "),
    ],
    ids=["a_layer_without_theory", "one_example"],
)
def test_what_theory_cannot_use_leaves_the_measurement(code: str, reason: str, tmp_path: Path) -> None:
    result = run("predict-lr", f"{script(tmp_path, f'def other():{chr(10)}{code}')}:other")
    assert result.exit_code == 0, result.output
    assert "Predicted, from the architecture\nnothing: " in result.output
    assert reason in result.output
    assert "largest stable learning rate" in result.output


@pytest.mark.parametrize("options", [["fc 784-100-10 vanilla"], ["fc 784-100-10 ln"], ["fc 784-100-10", "--gamma", 1]])
def test_without_batchnorm_or_with_one_gamma_the_layers_are_shown(options: list[object], tmp_path: Path) -> None:
    result = run("predict-lr", "--arch", *options, "--out", tmp_path / "layers.png")
    assert result.exit_code == 0, result.output
    assert "as trained" not in result.output
    assert "λ_max" in result.output
    assert "fc1" in result.output
    assert (tmp_path / "layers.png").exists()


@pytest.mark.slow
def test_an_architecture_needs_no_network(tmp_path: Path) -> None:
    picture = tmp_path / "figure.png"
    arch = "fc 784-1000-1000-1000-10"
    result = run("predict-lr", "--arch", arch, "--gamma", "0.5:2", "--out", picture)
    assert result.exit_code == 0, result.output
    for gamma in (0.5, 2.0):
        expected = 2 * 1.9 / (1000 * gamma**2 / (2 * torch.pi))  # of the last layer's term, N γ²/2π
        assert any(line.split()[:2] == [f"{gamma:g}", f"{expected:.3g}"] for line in result.output.splitlines())
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("command", ["suggest-lr", "predict-lr"])
def test_ctrl_c_prints_what_is_known(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step, calls = CopyRun.step, count()

    def interrupted(run_of_copy: CopyRun, batch: object) -> None:
        if next(calls) == 40:
            raise KeyboardInterrupt
        step(run_of_copy, batch)  # type: ignore[arg-type]

    monkeypatch.setattr(CopyRun, "step", interrupted)
    result = run(command, f"{script(tmp_path)}:build")
    assert result.exit_code == 130
    assert "Start with lr = " in result.output
