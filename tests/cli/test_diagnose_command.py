from __future__ import annotations

import sys
from pathlib import Path

import pytest
from command import run, script

HEADER = """
import torch
import wellcond as wc

def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))

def problem(model):
    return wc.Problem(model, torch.nn.CrossEntropyLoss(), (torch.randn(8, 3), torch.arange(8) % 2))
"""
BUILD = (
    HEADER
    + """
def build():
    return problem(network())
"""
)


def one_line(result) -> str:
    """The error, which is one line on its own stream, with exit code 1 and no traceback."""
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.output
    return result.stderr.removeprefix("error: ").strip()


def test_a_problem_is_diagnosed_and_printed(tmp_path: Path) -> None:
    result = run("diagnose", f"{script(tmp_path, BUILD)}:build")
    assert result.exit_code == 0, result.output
    assert "26 parameters" in " ".join(result.output.split())
    assert "on 8 examples" in result.output
    assert "κ50 Σx" in result.output


def test_a_report_is_written_where_asked(tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    result = run("diagnose", f"{script(tmp_path, BUILD)}:build", "--out", out)
    assert result.exit_code == 0, result.output
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert str(out) in result.output.replace("\n", "")


def test_an_optimizer_beside_the_problem_is_used(tmp_path: Path) -> None:
    code = (
        HEADER
        + """
def build():
    model = network()
    return problem(model), torch.optim.SGD(model.parameters(), lr=0.25, momentum=0.9)
"""
    )
    assert "the optimizer is at 0.25" in " ".join(run("diagnose", f"{script(tmp_path, code)}:build").output.split())


def test_a_file_may_import_its_neighbours_and_leaves_nothing_behind(tmp_path: Path) -> None:
    script(tmp_path, HEADER, "neighbour_of_train.py")
    code = """
    from dataclasses import dataclass
    from neighbour_of_train import network, problem

    @dataclass
    class Settings:
        width: "int" = 3

    def build():
        return problem(network())
    """
    path, modules = list(sys.path), set(sys.modules)
    result = run("diagnose", f"{script(tmp_path, code)}:build")
    assert result.exit_code == 0, result.output
    assert sys.path == path
    assert not {name for name in set(sys.modules) - modules if "train" in name}
    assert not (tmp_path / "__pycache__").exists()


# what can be wrong


@pytest.mark.parametrize("target", ["train.py", "train.py:", ":build"])
def test_a_target_without_a_function(target: str) -> None:
    assert "names no function; write FILE.py:FUNCTION, as in train.py:build" in one_line(run("diagnose", target))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    script(tmp_path, BUILD)
    message = one_line(run("diagnose", f"{tmp_path / 'trian.py'}:build"))
    assert message == f"there is no file {tmp_path / 'trian.py'}. Did you mean train.py?"


def test_a_function_that_is_not_there(tmp_path: Path) -> None:
    message = one_line(run("diagnose", f"{script(tmp_path, BUILD)}:bild"))
    assert message == "train.py has no function 'bild'. Closest: build."


def test_a_file_without_functions(tmp_path: Path) -> None:
    assert one_line(run("diagnose", f"{script(tmp_path, 'x = 1')}:build")).endswith("It defines no functions.")


def test_something_that_is_not_a_function(tmp_path: Path) -> None:
    assert "'x' in train.py is a int, not a function" in one_line(run("diagnose", f"{script(tmp_path, 'x = 1')}:x"))


def test_a_function_that_wants_arguments(tmp_path: Path) -> None:
    path = script(tmp_path, "def build(width, depth=2, *rest, **more): pass")
    assert one_line(run("diagnose", f"{path}:build")) == "build() wants arguments; give defaults to: width."


def test_a_function_that_raises(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        """
    def build():
        width = 3
        return helper(width)

    def helper(width):
        raise ValueError("no such\\n  width")
    """,
    )
    message = one_line(run("diagnose", f"{path}:build"))
    place = r'(train.py, line 7: raise ValueError("no such\n  width"))'
    assert message == f"build() raised ValueError: no such width {place}"


def test_the_line_is_the_users_when_a_library_raises(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        """
    import torch
    def build():
        return torch.nn.Linear(2, 2)(torch.ones(1, 3))
    """,
    )
    message = one_line(run("diagnose", f"{path}:build"))
    assert message.startswith("build() raised RuntimeError: mat1 and mat2 shapes cannot be multiplied")
    assert message.endswith("(train.py, line 4: return torch.nn.Linear(2, 2)(torch.ones(1, 3)))")


def test_a_file_that_cannot_be_imported(tmp_path: Path) -> None:
    missing = one_line(run("diagnose", f"{script(tmp_path, 'import no_such_library')}:build"))
    assert missing.startswith("importing train.py raised ModuleNotFoundError: No module named 'no_such_library'")
    assert missing.endswith("(train.py, line 1: import no_such_library)")
    syntax = one_line(run("diagnose", f"{script(tmp_path, 'def build(:')}:build"))
    assert syntax.startswith("importing train.py raised SyntaxError")
    assert "line 1: def build(:" in syntax


def test_a_file_that_exits_when_imported(tmp_path: Path) -> None:
    message = one_line(run("diagnose", f"{script(tmp_path, 'import sys; sys.exit(3)')}:build"))
    assert message.startswith("importing train.py raised SystemExit: 3")


@pytest.mark.parametrize(
    ("returned", "named"), [("None", "NoneType"), ("(1, 2, 3)", "tuple of int, int, int"), ("network()", "Sequential")]
)
def test_a_function_that_returns_something_else(returned: str, named: str, tmp_path: Path) -> None:
    path = script(tmp_path, HEADER + f"\ndef build():\n    return {returned}\n")
    message = one_line(run("diagnose", f"{path}:build"))
    assert message == f"build() returned a {named}; return a wellcond.Problem, or (problem, optimizer)."


def test_a_problem_that_cannot_be_measured(tmp_path: Path) -> None:
    code = (
        HEADER
        + """
def build():
    return wc.Problem(network(), torch.nn.CrossEntropyLoss(), (torch.randn(8, 3), torch.arange(8)))
"""
    )
    assert "targets run from 0 to 7" in one_line(run("diagnose", f"{script(tmp_path, code)}:build"))


def test_an_output_that_cannot_be_written_is_refused_before_the_users_code_runs(tmp_path: Path) -> None:
    path = script(tmp_path, "raise SystemError('ran')")
    assert "does not exist" in one_line(run("diagnose", f"{path}:build", "--out", tmp_path / "no" / "r.html"))
