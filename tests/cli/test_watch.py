"""`wellcond watch`: one look in a pipe, and a live view that follows a run until it ends."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path

import pytest
from command import one_line, run, words
from large_run import write_large_run
from made_runs import HOSTILE, small_run
from recorded import open_run, write_run
from rich.console import Console

from wellcond.cli.commands import watch as command
from wellcond.recording.directory.run_directory import ROWS
from wellcond.recording.history import History
from wellcond.recording.run import Follower, Run, read_run
from wellcond.results import Row
from wellcond.results import quantities as q


def test_one_look_has_loss_rate_layers_and_findings(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "a", small_run())
    result = run("watch", tmp_path / "runs" / "a", "--once", width=120)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].startswith("runs/a  ended · 1,200 steps · Net · ")
    assert lines[1].startswith("✗ Severe (dying-neurons")
    assert "110 % of its limit 0.1, measured at step 1,200" in result.stdout
    assert "!" in next(line for line in lines if line.startswith("loss "))  # steps 900 and 901 are NaN
    order = [next(i for i, line in enumerate(lines) if line.strip().startswith(each)) for each in ("body.3", "body.2")]
    assert order == sorted(order)  # the finding first, then NaN
    assert [line.split()[2] for line in lines if line.startswith("since step")] == ["1,100", "1,000", "400"]


def test_a_healthy_run_says_so(tmp_path: Path) -> None:
    write_run(tmp_path, Run.of(History([Row(1, "", q.TRAINING_LOSS, 2.0, "")]), [], {}))
    assert "✓ Nothing was found in 1 step." in run("watch", tmp_path).stdout


def test_a_name_is_neither_markup_nor_emoji(tmp_path: Path) -> None:
    for name in (":ok:[red]x", HOSTILE[:20]):
        write_run(tmp_path / str(len(name)), small_run(name))
        assert name in run("watch", tmp_path / str(len(name)), "--once", width=200).stdout


def test_json_has_the_last_number_of_everything(tmp_path: Path) -> None:
    write_run(tmp_path, small_run())
    content = json.loads(run("watch", tmp_path, "--json").stdout)
    assert (content["step"], content["status"]) == (1200, "ended")
    assert content["network"][q.LR] == pytest.approx(0.11)
    assert next(iter(content["layers"])) == "body.3"
    assert content["layers"]["body.2"][q.GRADIENT_NORM] == "nan"
    assert content["findings"][0]["rule"] == "dying-neurons"


def test_without_a_run_one_look_is_refused(tmp_path: Path) -> None:
    assert "holds no recorded run" in one_line(run("watch", tmp_path / "none", "--once"))


def test_it_waits_for_a_run_follows_it_and_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded_run = small_run()
    later = [Row(1300, "", q.TRAINING_LOSS, 0.125, "")]
    directory = None

    def something_happens(_seconds: float) -> None:
        nonlocal directory
        if directory is None:
            directory = open_run(tmp_path / "a", recorded_run)
        elif later:
            directory.append([later.pop()])
        else:
            directory.close()

    monkeypatch.setattr(time, "sleep", something_happens)
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=100, height=40, color_system=None)
    command.follow(Follower(tmp_path / "a"), tmp_path / "a", console, 0.1)
    output = text.getvalue()
    assert output.count("waiting for a run in") == 1
    assert "running · 1,200 steps" in output
    assert "running · 1,300 steps" in output
    assert "ended · 1,300 steps" in output
    assert output.rindex("\x1b[?1049l") < output.rindex("ended · 1,300 steps")  # it stays after the live view


@pytest.mark.slow
def test_ctrl_c_ends_it_cleanly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    directory = open_run(tmp_path, small_run())
    monkeypatch.setattr(time, "sleep", interrupt)
    console = Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)
    monkeypatch.setattr(command, "new_console", lambda: console)
    assert run("watch", tmp_path).exit_code == 0
    directory.close()


def test_files_are_read_once_and_give_what_the_whole_run_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = open_run(tmp_path, small_run())
    follower = Follower(tmp_path)
    follower.read()
    names = []
    read = follower._reader.read
    monkeypatch.setattr(follower._reader, "read", lambda path: names.append(path.name) or read(path))
    follower.read()
    assert names == []
    for step in range(1201, 1240):
        directory.append([Row(step, "", q.TRAINING_LOSS, 1 / step, ""), Row(step, "body.0", q.WEIGHT_NORM, step, "")])
        run = follower.read()
    assert 0 < len(names) < 60  # new files, and some that were merged
    whole = read_run(tmp_path)
    for quantity in whole.history.quantities():
        own, other = (each.history.series(quantity) for each in (run, whole))
        assert own.steps.tolist() == other.steps.tolist()
        for layer in whole.history.layers(quantity):
            own, other = (each.history.series(quantity, layer) for each in (run, whole))
            assert own.steps[-1] == other.steps[-1]
    directory.close()


def test_a_resumed_run_is_read_again(tmp_path: Path) -> None:
    open_run(tmp_path, small_run()).close()
    follower = Follower(tmp_path)
    assert follower.read().last_step == 1200
    directory = open_run(tmp_path, Run.of(History(), [], {}))
    directory.truncate(800)
    assert follower.read().last_step == 800
    directory.close()


@pytest.mark.slow
def test_a_million_rows_open_at_once(tmp_path: Path) -> None:
    write_large_run(tmp_path, 1_000_000)
    assert len(list((tmp_path / ROWS).iterdir())) == 5
    started = time.process_time()
    result = run("watch", tmp_path, "--once")
    assert time.process_time() - started < 1.0
    assert "12,340 steps" in words(result.stdout)
