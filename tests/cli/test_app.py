from __future__ import annotations

import sys

import pytest
from command import run

import wellcond
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
