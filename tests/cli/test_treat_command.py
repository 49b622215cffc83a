from __future__ import annotations

from pathlib import Path

import pytest
from command import built, one_line, parsed, run, script, words

from wellcond.cli.commands.treat import _arms
from wellcond.treatment.arm import Arm
from wellcond.treatment.judged_run import JudgedRun
from wellcond.treatment.treat import treat
from wellcond.treatment.treatment import Treatment

HEADER = """
import warnings

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

def two_last_layers():
    class Sum(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = torch.nn.Linear(3, 2).double(), torch.nn.Linear(3, 2).double()

        def forward(self, x):
            return self.one(x) + self.two(x)

    return wc.Problem(Sum(), torch.nn.CrossEntropyLoss(), batches)

def warns():
    def loss(outputs, targets):
        warnings.warn("the inputs are old")
        return torch.nn.functional.cross_entropy(outputs, targets)
    return wc.Problem(network(), loss, batches)

def diverges():
    model = torch.nn.Sequential(torch.nn.Linear(3, 2)).double()
    return wc.Problem(model, lambda h, y: torch.nn.functional.cross_entropy(h, y) * torch.inf, batches)
"""
QUICK = ("--steps", 4, "--seeds", 1)


def target(folder: Path, function: str = "build", code: str = "") -> str:
    return f"{script(folder, code, header=HEADER)}:{function}"


@pytest.mark.slow
def test_what_is_printed_is_the_treatment(tmp_path: Path) -> None:
    options = ["--steps", 12, "--momentum", 0.5, "--seeds", 2, "--remedies", "bnp, last-bn"]
    result = run("treat", target(tmp_path), *options, width=200)
    assert result.exit_code == 0, result.output
    expected = treat(built(HEADER), remedies=["bnp", "last-bn"], steps=12, momentum=0.5, seeds=range(2))
    text = words(result.output)
    assert expected.verdict().split(" A step takes")[0] in text
    assert f"{expected.title}, and its difference to the untreated network:" in text
    _, lines = expected.table()
    for cells in lines:
        assert all(cell in text for cell in cells)
    assert expected.price in text
    assert expected.best is expected.untreated
    assert words(expected.code) not in text  # nothing helps, so there is nothing to write


@pytest.mark.slow
def test_json_holds_every_arm_and_its_runs(tmp_path: Path) -> None:
    values = parsed(run("treat", target(tmp_path, "with_adam"), "--remedies", "sgd", *QUICK, "--json"))["values"]
    assert next(iter(values["arms"])) == "untreated"
    (losses,) = (run["losses"] for run in values["arms"]["untreated"]["runs"]["0.02"].values())
    assert len(losses) == 4
    assert "torch.optim.SGD" in values["arms"]["sgd"]["code"]


@pytest.mark.slow
def test_without_options_all_that_applies_is_screened(tmp_path: Path) -> None:
    result = run("treat", target(tmp_path, "with_adam"), *QUICK, width=200)
    assert result.exit_code == 0, result.output
    text = words(result.output)
    assert "screened out after 4 steps:" in text
    assert "control (random)" in text
    assert "rate" in text


def test_a_refusal_is_shown_with_its_reason_and_does_not_fail(tmp_path: Path) -> None:
    result = run("treat", target(tmp_path, "two_last_layers"), *QUICK, "--remedies", "last-bn,scale-amended")
    assert result.exit_code == 0, result.output
    text = words(result.output)
    assert "scale-amended refused: the paths from 'one' and 'two' meet in an operation 'add' before the output." in text
    assert "last-bn refused: the model has several last linear layers: 'one', 'two'." in text


@pytest.mark.slow
def test_warnings_are_printed_once_below_the_table(tmp_path: Path) -> None:
    text = words(run("treat", target(tmp_path, "warns"), *QUICK, "--remedies", "clip").output)
    assert text.count("warning: the inputs are old") == 1


def test_the_best_arm_is_bold_and_divergence_red() -> None:
    arms = {
        "untreated": Arm("untreated", {0.1: {0: JudgedRun([0.5])}}),
        "bnp": Arm("bnp", {0.3: {0: JudgedRun([0.25])}}),
        "adam": Arm("adam", {1.0: {0: JudgedRun([0.5], diverged_at=2)}}),
        "clip": Arm("clip", screened=1.0),
    }
    table = _arms(Treatment(arms, (0,), 1))
    names = [(cell.plain, cell.style) for cell in table.columns[0].cells]
    assert names == [("untreated", ""), ("bnp", "bold"), ("adam", "red")]


def test_without_a_finished_run_a_picture_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "curves.png"
    result = run("treat", target(tmp_path, "diverges"), "--remedies", "adam", *QUICK, "--out", out)
    assert "No run finished" in result.output
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
    return wc.Problem(model, torch.nn.CrossEntropyLoss(), batches), torch.optim.SGD(model.parameters(), lr=0.1)
"""


@pytest.mark.parametrize(("last", "runs"), [(15, 0), (26, 1)])
def test_an_interrupt_prints_what_is_finished(tmp_path: Path, last: int, runs: int) -> None:
    code = INTERRUPTED.format(last=last)
    result = run("treat", target(tmp_path, "interrupted", code), "--steps", 10, "--seeds", 2, "--remedies", "adam")
    assert result.exit_code == 130
    assert result.stderr.strip() == f"interrupted after {runs} runs"
    assert ("untreated it ends at" in words(result.stdout)) == bool(runs)
