from __future__ import annotations

from pathlib import Path

import pytest
import torch
from command import run, script

import wellcond as wc

BUILD = """
import torch
import wellcond as wc

def build():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 40), torch.nn.ReLU(), torch.nn.Linear(40, 2))
    return wc.Problem(model, torch.nn.CrossEntropyLoss(), (torch.randn(16, 3), torch.arange(16) % 2))

def with_adam():
    problem = build()
    return problem, torch.optim.Adam(problem.model.parameters(), lr=1e-3)

def with_groups():
    problem = build()
    first, last = (problem.model[i].parameters() for i in (0, 2))
    return problem, torch.optim.SGD([{"params": first, "lr": 1.0}, {"params": last, "lr": 0.01}], lr=0.1)

def one_example():
    problem = build()
    return wc.Problem(problem.model, problem.loss, (torch.randn(1, 3), torch.zeros(1, dtype=torch.long)))

def with_pooling():
    layers = torch.nn.Conv2d(1, 2, 3), torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.Linear(2, 2)
    model = torch.nn.Sequential(*layers)
    return wc.Problem(model, torch.nn.CrossEntropyLoss(), (torch.randn(8, 1, 4, 4), torch.arange(8) % 2))
"""


def problem_of_the_script() -> wc.Problem:
    namespace: dict = {}
    exec(BUILD, namespace)
    return namespace["build"]()


def test_the_limit_is_measured_predicted_and_tried(tmp_path: Path) -> None:
    result = run("predict-lr", f"{script(tmp_path, BUILD)}:build", "--momentum", 0.9, "--steps", 3)
    assert result.exit_code == 0, result.output
    problem = problem_of_the_script()
    limit = wc.max_lr(problem, 0.9)
    assert str(limit) in result.output
    assert "Predicted, from the architecture" in result.output
    assert "loss after 3 steps" in result.output
    assert "Start with lr = " in result.output


def test_the_rate_to_start_with_lowers_the_loss(tmp_path: Path) -> None:
    result = run("predict-lr", f"{script(tmp_path, BUILD)}:build")
    told = next(line for line in result.output.splitlines() if line.startswith("Start with lr = "))
    rate = float(told.split("=")[1].split(":")[0])
    problem = problem_of_the_script()
    x, y = problem.batches[0]
    optimizer = torch.optim.SGD(problem.model.parameters(), lr=rate)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(problem.model(x), y)
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize(("function", "optimizer"), [("with_adam", "Adam"), ("with_groups", "SGD")])
def test_of_another_optimizer_only_the_limit_is_told(tmp_path: Path, function: str, optimizer: str) -> None:
    result = run("predict-lr", f"{script(tmp_path, BUILD)}:{function}")
    assert result.exit_code == 0, result.output
    assert f"not of this {optimizer}" in " ".join(result.output.split())
    assert "Tried" not in result.output
    assert "Start with lr = " in result.output


def test_a_layer_without_theory_is_named_and_the_rest_goes_on(tmp_path: Path) -> None:
    result = run("predict-lr", f"{script(tmp_path, BUILD)}:with_pooling")
    assert result.exit_code == 0, result.output
    assert "MaxPool2d" in result.output
    assert "Start with lr = " in result.output


def test_a_batch_that_the_theory_cannot_use_leaves_the_measurement(tmp_path: Path) -> None:
    result = run("predict-lr", f"{script(tmp_path, BUILD)}:one_example")
    assert result.exit_code == 0, result.output
    assert "no prediction from the architecture" in result.output
    assert "Start with lr = " in result.output


@pytest.mark.parametrize("words", ["vanilla", "ln"])
def test_without_batchnorm_there_are_no_columns_of_it(words: str, tmp_path: Path) -> None:
    result = run("predict-lr", "--arch", f"fc 784-100-10 {words}", "--plot", tmp_path / "layers.png")
    assert result.exit_code == 0, result.output
    assert "as trained" not in result.output
    assert (tmp_path / "layers.png").exists()


def test_an_architecture_needs_no_network(tmp_path: Path) -> None:
    picture = tmp_path / "figure.png"
    arch = "fc 784-1000-1000-1000-10"
    result = run("predict-lr", "--arch", arch, "--gamma", "0.5:2", "--plot", picture)
    assert result.exit_code == 0, result.output
    for gamma in (0.5, 2.0):
        expected = 2 * 1.9 / (1000 * gamma**2 / (2 * torch.pi))  # of the last layer's term, N γ²/2π
        assert any(line.split()[:2] == [f"{gamma:g}", f"{expected:.3g}"] for line in result.output.splitlines())
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "either"),
        (("train.py:build", "--arch", "fc 3-4-2"), "either"),
        (("train.py:build", "--gamma", "1"), "--gamma"),
        (("--arch", "fc 3"), "no architecture"),
        (("--arch", "fc 3-4-2", "--gamma", "x"), "gamma"),
        (("--arch", "fc 3-4-2", "--gamma", "0"), "gamma"),
        (("--arch", "fc 3-4-2", "--momentum", "1"), "momentum"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments: tuple[str, ...], said: str) -> None:
    result = run("predict-lr", *arguments)
    assert result.exit_code == 2
    assert said in result.output


def test_the_example_of_the_readme() -> None:
    root = Path(__file__).resolve().parents[2]
    result = run("predict-lr", f"{root / 'examples' / 'digits.py'}:convolutional")
    assert result.exit_code == 0, result.output
    told = next(line for line in (root / "README.md").read_text().splitlines() if line.startswith("Measured:"))
    assert told.removeprefix("Measured:").strip() in result.output
    assert "Start with lr = 0.616" in result.output
