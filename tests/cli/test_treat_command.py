from __future__ import annotations

import re
from pathlib import Path

from command import built, one_line, run, script, words

from wellcond.cli.treat import _table
from wellcond.training.run import Run
from wellcond.verify.treat import treat
from wellcond.verify.treatment import Arm, Treatment

HEADER = """
import torch
import wellcond as wc

def network():
    torch.manual_seed(0)
    layers = [torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.ReLU(), torch.nn.Linear(4, 2)]
    return torch.nn.Sequential(*layers).double()

inputs = torch.sin(torch.arange(24.0).double()).view(8, 3)
batches = [(inputs[:4], torch.arange(4) % 2), (inputs[4:], torch.arange(4) % 2)]

def build():
    return wc.Problem(network(), torch.nn.CrossEntropyLoss(), batches)

def with_adam():
    model = network()
    problem = wc.Problem(model, torch.nn.CrossEntropyLoss(), batches)
    return problem, torch.optim.Adam(model.parameters(), lr=0.02)

def quadratic():                                # the loss is w², and a step takes w to (1 − 2 lr) w
    model = torch.nn.Linear(1, 1, bias=False).double()
    torch.nn.init.ones_(model.weight)
    return wc.Problem(model, torch.nn.MSELoss(), (torch.ones(2, 1).double(), torch.zeros(2, 1).double()))

class Skip(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = torch.nn.Linear(3, 2).double(), torch.nn.Linear(3, 2).double()

    def forward(self, x):
        return self.one(x) + self.two(x)

def two_last_layers():
    return wc.Problem(Skip(), torch.nn.CrossEntropyLoss(), batches)

def without_norm():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)).double()
    return wc.Problem(model, torch.nn.CrossEntropyLoss(), batches)
"""
ARMS = ["sgd", "bnp", "last-bn", "scale-amended"]


def target(folder: Path, function: str = "build", code: str = "") -> str:
    return f"{script(folder, code, header=HEADER)}:{function}"


def cells(output: str) -> dict[str, list[str]]:
    """The table as it was printed: the arms behind "lr", the losses behind each rate."""
    lines = [re.split(r"\s{2,}", line.strip()) for line in output.splitlines()]
    return {line[0]: line[1:] for line in lines if line[0] == "lr" or re.fullmatch(r"[\d.e+]+", line[0])}


def test_the_table_and_the_verdict_are_those_of_the_treatment(tmp_path: Path) -> None:
    options = ["--steps", 30, "--lr", 0.1, "--lr", 0.5, "--momentum", 0.5, "--seeds", 2]
    result = run("treat", target(tmp_path), *options, width=200)
    assert result.exit_code == 0, result.output
    expected = treat(built(HEADER), learning_rates=[0.1, 0.5], steps=30, momentum=0.5, seeds=range(2))
    finals = {f"{lr:g}": [arm.cell(lr) for arm in expected.arms.values()] for lr in expected.learning_rates}
    assert cells(result.output) == {"lr": ARMS, **finals}
    assert expected.verdict() in words(result.output)
    assert expected.code in result.output
    assert expected.figure().axes[0].get_ylabel() == "training loss, running mean over 3 steps"
    assert "34 parameters" in words(result.output)
    title = "Loss after 30 steps (mean of the last 3, median (least to greatest) of 2 seeds), by learning rate."
    assert title in result.output


def test_without_options_all_remedies_are_tried_at_five_rates(tmp_path: Path) -> None:
    result = run("treat", target(tmp_path), "--steps", 2, width=120)
    assert result.exit_code == 0, result.output
    table = cells(result.output)
    assert list(table) == ["lr", "0.01", "0.03", "0.1", "0.3", "1"]
    assert table["lr"] == ARMS
    assert all(len(line) == 4 for line in table.values())
    assert "of 3 seeds" in result.output


def test_an_optimizer_beside_the_problem_takes_the_steps(tmp_path: Path) -> None:
    path = target(tmp_path, "with_adam")
    result = run("treat", path, "--steps", 2, "--seeds", 1)
    assert result.exit_code == 0, result.output
    assert list(cells(result.output)) == ["lr", "0.002", "0.006", "0.02", "0.06", "0.2"]
    assert cells(result.output)["lr"][:2] == ["adam", "bnp"]
    with_sgd = run("treat", path, "--steps", 2, "--seeds", 1, "--lr", 0.1, "--momentum", 0)
    assert cells(with_sgd.output)["lr"] == ARMS


def test_diverged_runs_say_at_which_step(tmp_path: Path) -> None:
    path = target(tmp_path, "quadratic")
    for steps, losses in ((3, ["0.0625", "1.6e+241"]), (4, ["0.0156", "diverged @ 4"])):
        result = run("treat", path, "--remedy", "bnp", "--lr", 0.25, "--lr", "1e60", "--steps", steps)
        assert [line[0] for line in cells(result.output).values()] == ["sgd", *losses]


def test_a_refusal_is_shown_with_its_reason_and_is_no_failure(tmp_path: Path) -> None:
    result = run("treat", target(tmp_path, "two_last_layers"), "--steps", 2, "--lr", 0.1)
    assert result.exit_code == 0, result.output
    losses = dict(zip(*cells(result.output).values(), strict=True))
    assert losses["scale-amended"] == losses["last-bn"] == "–"
    assert float(losses["sgd"].split()[0]) > 0
    text = words(result.output)
    assert "scale-amended refused: the paths from 'one' and 'two' meet in an operation 'add' before the output." in text
    assert "last-bn refused: the model has several last linear layers: 'one', 'two'." in text


def test_warnings_are_told_once_below_the_table(tmp_path: Path) -> None:
    text = words(run("treat", target(tmp_path, "without_norm"), "--steps", 2).output)
    assert text.count("warning: no normalization follows '0'") == 1


def test_the_best_loss_of_an_arm_is_bold_and_divergence_red() -> None:
    sgd = Arm("sgd", {0.1: {0: Run([0.5])}, 0.3: {0: Run([0.25])}, 1.0: {0: Run([0.5], diverged_at=2)}})
    treatment = Treatment({"sgd": sgd, "bnp": Arm("bnp", {0.1: {0: Run([3.0])}})}, (0.1, 0.3, 1.0), (0,), 1, {}, 6)
    columns = [[(cell.plain, cell.style) for cell in column.cells] for column in _table(treatment).columns[1:]]
    assert columns == [[("0.5", ""), ("0.25", "bold"), ("diverged @ 2", "red")], [("3", "bold"), ("", ""), ("", "")]]


def test_without_a_finished_run_a_picture_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "curves.png"
    result = run("treat", target(tmp_path), "--remedy", "bnp", "--lr", "1e300", "--steps", 5, "--out", out)
    assert "No run finished; try lower learning rates." in result.output
    assert one_line(result) == "no run finished, so there is nothing to draw."
    assert not out.exists()


INTERRUPTED = """
calls = []

class Interrupted(torch.nn.Module):
    def forward(self, x):
        calls.append(x)
        if len(calls) == {last}:
            raise KeyboardInterrupt
        return x

def interrupted():
    model = torch.nn.Sequential(Interrupted(), torch.nn.Linear(3, 2).double())
    return wc.Problem(model, torch.nn.CrossEntropyLoss(), batches)
"""
CHOICE = ["--remedy", "bnp", "--lr", 0.1, "--lr", 0.2, "--steps", 5, "--seeds", 1]


def test_an_interrupt_prints_what_is_finished(tmp_path: Path) -> None:
    # one pass over the two batches, three runs of five steps, and two steps of the fourth
    result = run("treat", target(tmp_path, "interrupted", INTERRUPTED.format(last=2 + 3 * 5 + 2)), *CHOICE)
    assert result.exit_code == 130
    table = cells(result.stdout)
    assert table["lr"] == ["sgd", "bnp"]
    assert [len(table[rate]) for rate in ("0.1", "0.2")] == [2, 1]
    assert "sgd ends at" in words(result.stdout)
    assert result.stderr.strip() == "interrupted: 3 of 4 runs are finished"


def test_an_interrupt_before_anything_is_finished_says_so(tmp_path: Path) -> None:
    result = run("treat", target(tmp_path, "interrupted", INTERRUPTED.format(last=4)), *CHOICE)
    assert result.exit_code == 130
    assert result.stdout == ""
    assert result.stderr.strip() == "interrupted: no runs are finished"
