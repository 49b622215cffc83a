"""`FILE.py:FUNCTION`: what leads to a problem, and one line for whatever does not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from command import one_line, run, script, words


@pytest.mark.slow
def test_a_file_may_import_its_neighbors_and_leaves_no_trace(tmp_path: Path) -> None:
    script(tmp_path, name="neighbor_of_train.py")
    code = """
    from dataclasses import dataclass
    from neighbor_of_train import network, problem

    @dataclass
    class Settings:
        width: "int" = 3

    def build():
        return problem(network())
    """
    path, modules = list(sys.path), set(sys.modules)
    result = run("diagnose", f"{script(tmp_path, code, header='')}:build", "--fail-on", "never")
    assert result.exit_code == 0, result.output
    assert sys.path == path
    assert not {name for name in set(sys.modules) - modules if "train" in name}
    assert not (tmp_path / "__pycache__").exists()


@pytest.mark.parametrize("command", ["diagnose", "probe", "predict-lr", "suggest-lr", "treat"])
@pytest.mark.parametrize("target", ["train.py", "train.py:", ":build"])
def test_a_target_without_a_function(command: str, target: str) -> None:
    assert "names no function; write FILE.py:FUNCTION, as in train.py:build" in one_line(run(command, target))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    script(tmp_path)
    message = one_line(run("diagnose", f"{tmp_path / 'trian.py'}:build"))
    assert message == f"there is no file {tmp_path / 'trian.py'}. Did you mean train.py?"


@pytest.mark.parametrize(
    ("code", "function", "message"),
    [
        ("def build(): pass", "bild", "train.py has no function 'bild'. Closest: build."),
        ("x = 1", "build", "train.py has no function 'build'. It defines no functions."),
        ("x = 1", "x", "'x' in train.py is a int, not a function that returns it."),
        (
            "def build(width, depth=2, *rest, **more): pass",
            "build",
            "build() wants arguments; give defaults to: width.",
        ),
        (
            "import sys; sys.exit(3)",
            "build",
            "importing train.py raised SystemExit: 3 (train.py, line 1: import sys; sys.exit(3))",
        ),
        (
            "import no_such_library",
            "build",
            "importing train.py raised ModuleNotFoundError: No module named 'no_such_library' "
            "(train.py, line 1: import no_such_library)",
        ),
        (
            """\
            def build():
                width = 3
                return helper(width)

            def helper(width):
                raise ValueError("no such\\n  width")
            """,
            "build",
            'build() raised ValueError: no such width (train.py, line 6: raise ValueError("no such\\n  width"))',
        ),
        (
            """\
            import torch
            def build():
                return torch.nn.Linear(2, 2)(torch.ones(1, 3))
            """,
            "build",
            "build() raised RuntimeError: mat1 and mat2 shapes cannot be multiplied … "
            "(train.py, line 3: return torch.nn.Linear(2, 2)(torch.ones(1, 3)))",
        ),
        ("def build(:", "build", "importing train.py raised SyntaxError … (train.py, line 1: def build(:)"),
    ],
    ids=[
        "typo",
        "no_functions",
        "a_number",
        "arguments",
        "exits",
        "missing_library",
        "raises",
        "library_raises",
        "syntax",
    ],
)
def test_a_file_that_does_not_lead_to_a_problem(code: str, function: str, message: str, tmp_path: Path) -> None:
    path = script(tmp_path, code, header="")
    begin, _, end = message.partition(" … ")
    error = one_line(run("diagnose", f"{path}:{function}"))
    assert error == message or (end and error.startswith(begin) and error.endswith(end))


@pytest.mark.parametrize(
    ("returned", "named"), [("None", "NoneType"), ("(1, 2, 3)", "tuple of int, int, int"), ("network()", "Sequential")]
)
def test_a_function_that_returns_something_else(returned: str, named: str, tmp_path: Path) -> None:
    path = script(tmp_path, f"\ndef other():\n    return {returned}\n")
    message = one_line(run("diagnose", f"{path}:other"))
    assert message == f"other() returned a {named}; return a wellcond.Problem, or (problem, optimizer)."


WRONG = """
def wrong():
    return problem(network(), (torch.randn(8, 3), torch.arange(8)))
"""
"""Eight classes for two outputs."""


def test_a_problem_that_cannot_be_trained_is_refused(tmp_path: Path) -> None:
    message = one_line(run("treat", f"{script(tmp_path, WRONG)}:wrong"))
    assert message.startswith("targets run from 0 to 7")


def test_a_problem_that_cannot_be_measured_is_still_diagnosed(tmp_path: Path) -> None:
    result = run("diagnose", f"{script(tmp_path, WRONG)}:wrong")
    assert result.exit_code == 4
    assert "from 0 to 7" in words(result.stdout).split("Numbers")[0]
