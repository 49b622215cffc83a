from __future__ import annotations

import sys
from importlib import metadata
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import typer
from command import run
from typer.testing import CliRunner

import wellcond
from wellcond.cli.app import COMMANDS, Commands, add_command
from wellcond.cli.main import main


def test_version() -> None:
    result = run("--version")
    assert (result.exit_code, result.output.strip()) == (0, f"wellcond {wellcond.__version__}")


HELP = {
    (): ["demo", "diagnose", "predict-lr", "probe", "reproduce", "suggest-lr", "sweep", "treat"],
    ("demo",): ["wellcond demo --open", "--depth"],
    ("diagnose",): [
        "wellcond diagnose train.py:build --out report.html",
        "return wc.Problem(model",
        *("--fail-on", "--baseline", "--select", "--ignore", "--explain", "--list-rules"),
    ],
    ("predict-lr",): ["wellcond predict-lr train.py:build", "--arch", "--gamma 0.1:3"],
    ("probe",): ["wellcond probe train.py:build", "--layer", "--span"],
    ("reproduce",): ["wellcond reproduce santurkar2018-fig9 --scale smoke", "--launcher", "--workers", "--data"],
    ("sweep",): ["wellcond sweep train.py:train --grid lr=0.1,0.01", "--seeds", "--launcher", "log:FROM:TO:COUNT"],
    ("suggest-lr",): ["wellcond suggest-lr train.py:build", "--steps", "--momentum"],
    ("treat",): ["wellcond treat train.py:build", "--remedies", "--steps", "--seeds"],
}


@pytest.mark.parametrize(("command", "expected"), HELP.items())
def test_help_shows_how_to_use_each_command(command: tuple[str, ...], expected: list[str]) -> None:
    result = run(*command, "--help")
    assert result.exit_code == 0
    assert all(text in result.output for text in [*expected, *(("--out", "--json") if command else ())])
    assert "[bold]" not in result.output
    assert "[cyan]" not in result.output


THIRD_PARTY = """
from typing import Annotated
import typer

def hello(name: Annotated[str, typer.Option(help="Whom to greet.")] = "you") -> None:
    "Greet somebody."
    typer.echo(f"hello {name}")

def odd(value: "Nothing") -> None:
    "A signature that typer cannot read."

def fails() -> None:
    "Fails on purpose."
    from wellcond.errors import Unsupported
    raise Unsupported("not today")
"""


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> typer.Typer:
    """Commands of another package: two that work, one that is not there, one that typer cannot read."""
    (tmp_path / "third_party.py").write_text(THIRD_PARTY, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    app = typer.Typer(cls=Commands, pretty_exceptions_enable=False)
    for name, value in {
        "hello": "third_party:hello",
        "fails": "third_party:fails",
        "missing": "third_party.nowhere:command",
        "odd": "third_party:odd",
    }.items():
        add_command(app, EntryPoint(name, value, COMMANDS))
    return app


def test_a_command_of_another_package_is_one_of_ours(app: typer.Typer) -> None:
    runner = CliRunner()
    assert runner.invoke(app, ["hello", "--name", "Ada"]).output == "hello Ada\n"
    failed = runner.invoke(app, ["fails"])
    assert (failed.exit_code, failed.stderr) == (1, "error: not today\n")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("missing", "ModuleNotFoundError: No module named 'third_party.nowhere'; 'third_party' is not a package"),
        ("odd", "NameError: name 'Nothing' is not defined"),
    ],
)
def test_a_broken_command_says_why_and_takes_no_other_down(app: typer.Typer, name: str, reason: str) -> None:
    runner = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"})
    help_text = runner.invoke(app, ["--help"]).output
    assert "Greet somebody." in help_text
    assert f"Cannot be loaded from third_party: {reason[:40]}" in help_text
    result = runner.invoke(app, [name, "--any", "option", "1"])
    assert result.exit_code == 1
    assert result.stderr == f"error: the command {name!r} of third_party cannot be loaded: {reason}\n"
    assert runner.invoke(app, ["hello"]).output == "hello you\n"


def test_the_commands_of_the_papers_are_found_as_entry_points() -> None:
    assert {"reproduce", "sweep"} <= {entry.name for entry in metadata.entry_points(group=COMMANDS)}


def test_no_command_shows_the_help() -> None:
    assert "Usage:" in run().output


def test_without_typer_the_command_that_installs_it_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "typer", None)
    monkeypatch.delitem(sys.modules, "wellcond.cli.app", raising=False)
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 1
    assert capsys.readouterr().err == 'typer is not installed. Run:  pip install "wellcond[cli]"\n'
