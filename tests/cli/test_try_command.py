from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from command import run, script

import wellcond as wc
from wellcond.cli.try_ import _table
from wellcond.verify.trial import trial
from wellcond.verify.trial_result import Run, Trial

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
"""


def target(folder: Path, code: str = "") -> str:
    return f"{script(folder, HEADER + code)}:build"


def words(text: str) -> str:
    """Without line breaks, which depend on the width of the terminal."""
    return " ".join(text.split())


def cells(output: str) -> dict[str, list[str]]:
    """The table as it was printed: the rates behind "lr", the losses behind each method."""
    lines = [re.split(r"\s{2,}", line.strip()) for line in output.splitlines()]
    return {line[0]: line[1:] for line in lines if line[0] in ("lr", "sgd", "bnp", "last-bn", "scale-amended")}


def same_problem() -> wc.Problem:
    """What build() in the user's file returns."""
    namespace: dict[str, object] = {}
    exec(HEADER, namespace)
    return namespace["build"]()  # type: ignore[operator]


def test_the_table_and_the_verdict_are_those_of_the_trial(tmp_path: Path) -> None:
    options = ["--steps", 30, "--lr", 0.1, "--lr", 0.5, "--momentum", 0.5]
    result = run("try", target(tmp_path), *options)
    assert result.exit_code == 0, result.output
    expected = trial(same_problem(), learning_rates=[0.1, 0.5], steps=30, momentum=0.5)
    finals = {name: [str(each) for each in runs.values()] for name, runs in expected.table().items()}
    assert cells(result.output) == {"lr": ["0.1", "0.5"], **finals}
    assert expected.verdict() in words(result.output)
    assert "34 parameters" in words(result.output)
    assert "Loss after 30 steps (mean of the last 3), by learning rate." in result.output


def test_without_options_all_methods_are_tried_at_five_rates(tmp_path: Path) -> None:
    result = run("try", target(tmp_path), "--steps", 2)
    assert result.exit_code == 0, result.output
    table = cells(result.output)
    assert table["lr"] == ["0.01", "0.03", "0.1", "0.3", "1"]
    assert list(table) == ["lr", "sgd", "bnp", "last-bn", "scale-amended"]
    assert all(len(line) == 5 for line in table.values())


def test_methods_are_chosen(tmp_path: Path) -> None:
    result = run("try", target(tmp_path), "--steps", 2, "--lr", 0.1, "--method", "bnp")
    assert list(cells(result.output)) == ["lr", "bnp"]
    assert "plain SGD was not tried" in words(result.output)


def test_a_seed_reaches_the_dropout(tmp_path: Path) -> None:
    path = target(
        tmp_path,
        """
def build():
    model = torch.nn.Sequential(torch.nn.Dropout(0.5), network())
    return wc.Problem(model, torch.nn.CrossEntropyLoss(), batches)
""",
    )
    options = ["--steps", 3, "--lr", 0.1, "--method", "sgd"]
    first, again, other = (cells(run("try", path, *options, "--seed", seed).output) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_an_optimizer_beside_the_problem_is_not_used(tmp_path: Path) -> None:
    path = target(
        tmp_path,
        """
def build():
    model = network()
    problem = wc.Problem(model, torch.nn.CrossEntropyLoss(), batches)
    return problem, torch.optim.SGD(model.parameters(), lr=1e9)
""",
    )
    assert run("try", path, "--steps", 2).exit_code == 0


def test_diverged_runs_say_at_which_step(tmp_path: Path) -> None:
    path = target(
        tmp_path,
        """
def build():                                # the loss is w², and a step takes w to (1 − 2 lr) w
    model = torch.nn.Linear(1, 1, bias=False).double()
    torch.nn.init.ones_(model.weight)
    return wc.Problem(model, torch.nn.MSELoss(), (torch.ones(2, 1).double(), torch.zeros(2, 1).double()))
""",
    )
    result = run("try", path, "--method", "sgd", "--lr", 0.25, "--lr", "1e60", "--steps", 3)
    assert cells(result.output)["sgd"] == ["0.0625", "1.6e+241"]
    result = run("try", path, "--method", "sgd", "--lr", 0.25, "--lr", "1e60", "--steps", 4)
    assert cells(result.output)["sgd"] == ["0.0156", "diverged @ 4"]


def test_a_refusal_is_shown_with_its_reason_and_is_no_failure(tmp_path: Path) -> None:
    path = target(
        tmp_path,
        """
class Skip(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = torch.nn.Linear(3, 2).double(), torch.nn.Linear(3, 2).double()

    def forward(self, x):
        return self.one(x) + self.two(x)

def build():
    return wc.Problem(Skip(), torch.nn.CrossEntropyLoss(), batches)
""",
    )
    result = run("try", path, "--steps", 2, "--lr", 0.1)
    assert result.exit_code == 0, result.output
    table = cells(result.output)
    assert table["scale-amended"] == table["last-bn"] == ["–"]
    assert float(table["sgd"][0]) > 0
    text = words(result.output)
    assert "scale-amended refused: the paths from 'one' and 'two' meet in an operation 'add' before the output." in text
    assert "last-bn refused: the model has several last linear layers: 'one', 'two'." in text


def test_warnings_are_told_once_below_the_table(tmp_path: Path) -> None:
    path = target(
        tmp_path,
        """
def build():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)).double()
    return wc.Problem(model, torch.nn.CrossEntropyLoss(), batches)
""",
    )
    text = words(run("try", path, "--steps", 2).output)
    assert text.count("warning: no normalization follows '0'") == 1


def test_the_best_loss_of_a_method_is_bold_and_divergence_red() -> None:
    runs = [
        Run("sgd", 0.1, [0.5]),
        Run("sgd", 0.3, [0.25]),
        Run("sgd", 1.0, [0.5], diverged_at=2),
        Run("bnp", 0.1, [3.0]),
    ]
    columns = [[(cell.plain, cell.style) for cell in column.cells] for column in _table(Trial(runs)).columns[1:]]
    assert columns == [[("0.5", ""), ("3", "bold")], [("0.25", "bold"), ("", "")], [("diverged @ 2", "red"), ("", "")]]


# interrupted

INTERRUPTED = """
class Interrupted(torch.nn.Module):
    calls = 0

    def forward(self, x):
        Interrupted.calls += 1
        if Interrupted.calls == {last}:
            raise KeyboardInterrupt
        return x

def build():
    model = torch.nn.Sequential(Interrupted(), torch.nn.Linear(3, 2).double())
    return wc.Problem(model, torch.nn.CrossEntropyLoss(), batches)
"""
CHOICE = ["--method", "sgd", "--method", "bnp", "--lr", 0.1, "--lr", 0.2, "--steps", 5]


def test_an_interrupt_prints_what_is_finished(tmp_path: Path) -> None:
    # one pass over the two batches, three runs of five steps, and two steps of the fourth
    result = run("try", target(tmp_path, INTERRUPTED.format(last=2 + 3 * 5 + 2)), *CHOICE)
    assert result.exit_code == 130
    table = cells(result.stdout)
    assert table["lr"] == ["0.1", "0.2"]
    assert [len(table[name]) for name in ("sgd", "bnp")] == [2, 1]
    assert "plain SGD's best loss" in words(result.stdout)
    assert result.stderr.strip() == "interrupted: 3 of 4 runs are finished"


def test_an_interrupt_before_anything_is_finished_says_so(tmp_path: Path) -> None:
    result = run("try", target(tmp_path, INTERRUPTED.format(last=4)), *CHOICE)
    assert result.exit_code == 130
    assert cells(result.stdout) == {}
    assert result.stderr.strip() == "interrupted: 0 of 4 runs are finished"


# the picture


def test_curves_are_drawn_where_asked(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "curves.png"
    result = run("try", target(tmp_path), "--steps", 20, "--lr", 0.1, "--plot", out)
    assert result.exit_code == 0, result.output
    assert out.read_bytes().startswith(b"\x89PNG")
    assert str(out) in result.output.replace("\n", "")


def test_without_a_finished_run_there_is_no_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "curves.png"
    result = run("try", target(tmp_path), "--method", "sgd", "--lr", "1e300", "--steps", 5, "--plot", out)
    assert result.exit_code == 0, result.output
    assert "No run finished; try lower learning rates." in result.output
    assert not out.exists()


def test_without_matplotlib_a_picture_is_refused_before_the_users_code_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("wellcond.report.curves", "wellcond.report.figures"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name in ("matplotlib", "matplotlib.axes", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    path = script(tmp_path, "raise SystemError('ran')")
    result = run("try", f"{path}:build", "--plot", tmp_path / "curves.png")
    assert result.exit_code == 1
    assert result.stderr == 'error: matplotlib is not installed. Run:  pip install "wellcond[plots]"\n'


def test_a_picture_that_cannot_be_written_is_refused_before_the_users_code_runs(tmp_path: Path) -> None:
    path = script(tmp_path, "raise SystemError('ran')")
    result = run("try", f"{path}:build", "--plot", tmp_path / "no" / "curves.png")
    assert result.exit_code == 1
    assert "does not exist" in result.stderr


# what can be wrong


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--method", "adam"], "a method must be one of sgd, bnp, last-bn, scale-amended, not 'adam'"),
        (["--lr", "-0.1"], "a learning rate must be > 0 and finite, not -0.1"),
        (["--lr", "fast"], "Invalid value for '--lr'"),
        (["--steps", "0"], "steps must be ≥ 1, not 0"),
        (["--momentum", "1"], "momentum must be ≥ 0 and < 1, not 1"),
    ],
)
def test_settings_that_make_no_training_are_usage_errors(options: list[str], said: str, tmp_path: Path) -> None:
    path = script(tmp_path, "raise SystemError('ran')")
    result = run("try", f"{path}:build", *options)
    assert result.exit_code == 2
    assert said in words(result.stderr.replace("│", ""))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("trian.py:build", "there is no file {folder}/trian.py. Did you mean train.py?"),
        ("train.py:bild", "train.py has no function 'bild'. Closest: build."),
        ("train.py:inputs", "'inputs' in train.py is a Tensor, not a function that returns it."),
        ("train.py:network", "network() returned a Sequential; return a wellcond.Problem, or (problem, optimizer)."),
    ],
)
def test_a_target_that_leads_to_no_problem_is_one_line(name: str, said: str, tmp_path: Path) -> None:
    target(tmp_path)
    result = run("try", f"{tmp_path}/{name}")
    assert (result.exit_code, result.stderr) == (1, f"error: {said.format(folder=tmp_path)}\n")


def test_a_problem_that_cannot_be_trained_is_one_line(tmp_path: Path) -> None:
    path = target(
        tmp_path,
        """
def build():
    return wc.Problem(network(), torch.nn.CrossEntropyLoss(), (inputs, torch.arange(8)))
""",
    )
    result = run("try", path)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: targets run from 0 to 7")
    assert result.stderr.count("\n") == 1


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    path, search_path = target(tmp_path), list(sys.path)
    assert run("try", path, "--steps", 2).exit_code == 0
    assert {name for name in sys.modules if "wellcond_target" in name} == set()
    assert sys.path == search_path
    assert [each.name for each in tmp_path.iterdir()] == ["train.py"]


def test_the_example_of_the_readme_can_be_tried() -> None:
    root = Path(__file__).parents[2]
    [named] = re.findall(r"wellcond try (examples/\S+)", (root / "README.md").read_text(encoding="utf-8"))
    result = run("try", root / named, "--steps", 1, "--lr", 0.03, "--method", "sgd")
    assert result.exit_code == 0, result.output
    assert re.search(r"sgd\s+2\.3", result.output)  # log 10: it starts at chance
