"""The run directory: what is written is read back, whatever happens to the writer, the disk or the files."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from wellcond.diagnosis.finding import Finding, flat
from wellcond.errors import CorruptData, OutputError, RunInUse
from wellcond.recording.directory.findings_log import FindingEvent
from wellcond.recording.directory.run_directory import RunDirectory
from wellcond.recording.run import read_run
from wellcond.results import Row

pandas = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

LAYERS = "abcdefgh"
SMALL = 2**20
"""The smallest bound, whose files are full at 1024 rows."""


def rows(start: int, end: int, *, layers: int = 3) -> list[Row]:
    """The loss of every step and a norm of each layer, whose values tell their step and layer."""
    return [
        Row(step, f"fc{i}" if i else "", "weight_norm" if i else "training_loss", step + i / 10, "")
        for step in range(start, end)
        for i in range(layers + 1)
    ]


def finding(step: int, *, rule: str = "loss-spike", until: int | None = None, **fields: Any) -> Finding:
    return Finding(rule=rule, severity="warning", summary="the loss jumped.", step=step, until=until, **fields)


def began(step: int, **fields: Any) -> FindingEvent:
    return FindingEvent("began", step, finding(step, **fields))


def total_bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # merged since
            total += path.stat().st_size if path.is_file() else 0
    return total


@pytest.fixture
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is not waited for."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


# what is written is read back


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    directory = RunDirectory.open(tmp_path / "a", {"optimizer": "SGD"})
    for start in range(1, 400, 7):
        directory.append(rows(start, start + 7))
    assert read_run(tmp_path / "a").rows() == rows(1, 400)
    directory.close()
    assert len(list((tmp_path / "a" / "rows").iterdir())) < 20
    table = pandas.read_parquet(tmp_path / "a" / "rows")
    assert [*table.columns] == ["time", "step", "layer", "quantity", "value", "unit"]
    written = [Row(*line) for line in table[[*Row._fields]].itertuples(index=False)]
    assert written == rows(1, 400)


def test_numbers_that_are_none_come_back(tmp_path: Path) -> None:
    directory = RunDirectory.open(tmp_path, {})
    values = [float("inf"), -float("inf"), 0.1, 1e-320]
    directory.append([Row(step, "</script>", "lr", value, "lr") for step, value in enumerate(values, start=1)])
    directory.append([Row(9, "", "lr", float("nan"), "lr"), Row(None, "", "lr", 1.0, "lr")])
    history = read_run(tmp_path).history
    assert history.series("lr", "</script>").values.tolist() == values
    assert str(history.series("lr").values.tolist()) == "[nan]"
    assert history.unit("lr") == "lr"


@pytest.mark.parametrize("library", ["polars", "duckdb"])
def test_other_readers_read_it(tmp_path: Path, library: str) -> None:
    reader = pytest.importorskip(library)
    directory = RunDirectory.open(tmp_path, {}, max_bytes=SMALL)
    for start in range(1, 1000, 10):
        directory.append(rows(start, start + 10))
    pattern = str(tmp_path / "rows" / "*.parquet")
    columns = ", ".join(Row._fields)
    if library == "polars":
        lines = reader.read_parquet(pattern).select(Row._fields).rows()
    else:
        lines = reader.sql(f"select {columns} from '{pattern}' order by step, layer").fetchall()
    assert [Row(*line) for line in lines] == rows(1, 1001)


def test_time_never_goes_back_when_the_clock_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = RunDirectory.open(tmp_path, {})
    wall = time.time()
    for step, jump in enumerate((0, -1e6, 1e6, -1e9), start=1):
        monkeypatch.setattr(time, "time", lambda jump=jump: wall + jump)
        directory.append(rows(step, step + 1))
    times = read_run(tmp_path).times.values
    assert len(times) == 4
    assert (times[1:] > times[:-1]).all()
    assert abs(times[-1] - wall) < 60


# files are merged


@pytest.mark.slow
@pytest.mark.usefixtures("quick_disk")
def test_there_are_few_files_whatever_the_size_of_appends(tmp_path: Path) -> None:
    directory = RunDirectory.open(tmp_path, {}, max_bytes=SMALL)
    most = 0
    for step in range(1, 400):
        directory.append(rows(step, step + 1, layers=0 if step < 300 else 40))
        most = max(most, len(list((tmp_path / "rows").iterdir())))
    assert most < 40
    assert read_run(tmp_path).rows() == rows(1, 300, layers=0) + rows(300, 400, layers=40)


@contextmanager
def dying_at(monkeypatch: pytest.MonkeyPatch, call: int, name: str = "unlink") -> Iterator[None]:
    """A process that dies at one of its calls that change a folder: nothing after it happens."""
    real = getattr(Path, name)
    calls = iter(range(call))

    def dies(self: Path, *args: Any, **kwargs: Any) -> Any:
        if self.suffix == ".parquet" and next(calls, None) is None:
            raise Killed
        return real(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Path, name, dies)
        yield


class Killed(BaseException):
    """Ends everything, as kill -9 would."""


@pytest.mark.parametrize("survivors", range(4))
def test_a_merge_that_was_cut_shows_no_row_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, survivors: int
) -> None:
    directory = RunDirectory.open(tmp_path, {}, max_bytes=SMALL)
    step = 1
    with dying_at(monkeypatch, survivors), suppress(Killed):
        while step < 400:
            directory.append(rows(step, step + 1))
            step += 1
            assert directory.size > 0  # which waits until files are merged
    assert 1 < step < 400
    names = {path.name for path in (tmp_path / "rows").iterdir()}
    run = read_run(tmp_path)
    assert run.rows() == rows(1, run.last_step + 1)
    directory._lock.release()
    again = RunDirectory.open(tmp_path, {}, max_bytes=SMALL)
    assert {path.name for path in (tmp_path / "rows").iterdir()} < names
    assert len(pandas.read_parquet(tmp_path / "rows")) == len(run.rows())
    again.append(rows(run.last_step + 1, run.last_step + 2))
    assert read_run(tmp_path).rows() == rows(1, run.last_step + 2)


def test_a_merge_that_breaks_is_reported_by_the_next_append_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> int:
        raise ZeroDivisionError("merging")

    directory = RunDirectory.open(tmp_path, {})
    with monkeypatch.context() as patch:
        patch.setattr("wellcond.recording.directory.merging.due", broken)
        directory.append(rows(1, 3))
        with pytest.raises(ZeroDivisionError, match="merging"):
            directory.append(rows(3, 5))
    directory.append(rows(5, 7))
    directory.close()
    assert read_run(tmp_path).rows() == rows(1, 7)
    assert read_run(tmp_path).status == "ended"


def test_an_append_does_not_wait_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the thread that merges does: rows are there to be read while it still waits."""
    waits, may_go_on = threading.Event(), threading.Event()
    directory = RunDirectory.open(tmp_path, {}, max_bytes=SMALL)

    def slow(_: int) -> None:
        assert threading.current_thread() is not threading.main_thread()
        waits.set()
        assert may_go_on.wait(10)

    monkeypatch.setattr(os, "fsync", slow)
    step = 0
    while not waits.wait(0.01):
        step += 1
        directory.append(rows(step, step + 1))
    assert read_run(tmp_path).rows() == rows(1, step + 1)
    may_go_on.set()
    assert directory.size > 0
    monkeypatch.undo()
    assert len(list((tmp_path / "rows").iterdir())) == 1
    assert read_run(tmp_path).rows() == rows(1, step + 1)


# the bound


@pytest.mark.slow
@pytest.mark.usefixtures("quick_disk")
def test_a_long_run_stays_below_its_bound_and_is_never_cut_off(tmp_path: Path) -> None:
    directory = RunDirectory.open(tmp_path, {}, max_bytes=SMALL)
    generator = random.Random(0)
    layers, most, length = ("", "a", "b", "c", "d", "e", "f", "g"), 0, 200
    for start in range(1, 60_001, length):
        lines = [
            Row(step, layer, "weight_norm", generator.random(), "")
            for step in range(start, start + length)
            for layer in layers
        ]
        if start % 5000 == 1:
            lines.insert(0, Row(start, "", "lr", float(start), "lr"))
        directory.append(lines)
        directory.append_findings([began(start, reason="x" * 500)])
        most = max(most, total_bytes(tmp_path))
    assert SMALL / 2 < most < SMALL
    assert len(list((tmp_path / "rows").iterdir())) < 200
    run = read_run(tmp_path)
    for layer in layers:
        series = run.history.series("weight_norm", layer)
        assert (series.steps[0], series.steps[-1]) == (1, 60_000)
        gaps = series.steps[1:] - series.steps[:-1]
        assert (gaps[-2000:] == 1).all()  # the newest steps are all there
        assert (gaps[:15] == 1).all()  # and the first ones
        old = gaps[16:][series.steps[17:] < 30_000]
        assert old.min() >= 4  # 8 rows of 9 bytes at each of 60,000 steps are more than four times the bound
        assert old.max() <= 4 * old.min()  # the older ones are evenly spaced, with no hole
    assert run.history.series("lr").steps.tolist() == list(range(1, 60_001, 5000))  # rare numbers stay
    assert {each.step for each in run.findings} >= {60_001 - length}


@pytest.mark.slow
@pytest.mark.usefixtures("quick_disk")
def test_one_append_larger_than_the_bound(tmp_path: Path) -> None:
    generator = random.Random(0)
    directory = RunDirectory.open(tmp_path, {}, max_bytes=SMALL)
    directory.append([Row(step, "", "lr", generator.random(), "") for step in range(1, 150_001)])
    directory.close()  # which waits until files are thinned
    steps = read_run(tmp_path).history.series("lr").steps
    assert total_bytes(tmp_path) < SMALL
    assert (steps[0], steps[-1]) == (1, 150_000)


@pytest.mark.usefixtures("quick_disk")
def test_findings_stay_below_their_bound(tmp_path: Path) -> None:
    directory = RunDirectory.open(tmp_path, {}, max_bytes=SMALL)
    evidence_rows = tuple(rows(1, 20))
    directory.append_findings([began(1, rule="diverging", rows=evidence_rows)])
    for step in range(2, 100):
        directory.append_findings([began(step, rows=evidence_rows)])
        directory.append_findings([FindingEvent("ended", step + 1, finding(step, until=step + 1, rows=evidence_rows))])
    assert (tmp_path / "findings.jsonl").stat().st_size < SMALL / 16
    findings = list(flat(read_run(tmp_path).findings))
    assert [each.rule for each in findings if each.until is None] == ["diverging"]  # the oldest, and still there
    assert max(each.step or 0 for each in findings) == 99


def test_a_bound_that_is_too_small(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="too small"):
        RunDirectory.open(tmp_path / "b", {}, max_bytes=1000)
    assert not (tmp_path / "b").exists()


# resuming


def test_a_resumed_run_goes_on(tmp_path: Path) -> None:
    first = RunDirectory.open(tmp_path, {"budget": 0.05}, max_bytes=SMALL)
    for start in range(1, 500, 10):
        first.append(rows(start, start + 10))
        first.append_findings([began(start)])
    first.append_findings([FindingEvent("ended", 490, finding(1, until=480))])
    first.close()
    second = RunDirectory.open(tmp_path, {"budget": 0.1}, max_bytes=SMALL)
    assert second.last_step == 500
    second.truncate(234)
    assert read_run(tmp_path).last_step == second.last_step == 234
    for start in range(235, 400, 10):
        second.append(rows(start, start + 10))
    run = read_run(tmp_path)
    assert run.rows() == rows(1, 405)
    assert [life["first_step"] for life in run.manifest["lives"]] == [1, 235]
    assert run.manifest["budget"] == 0.1
    assert run.manifest["created"] == run.manifest["lives"][0]["started"]
    assert [each.step for each in run.findings] == list(range(1, 235, 10))
    assert all(each.until is None for each in run.findings)


@pytest.mark.parametrize("survivors", range(3))
def test_truncation_that_was_cut_loses_nothing_before_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, survivors: int
) -> None:
    directory = RunDirectory.open(tmp_path, {})
    for start in range(1, 100, 10):
        directory.append(rows(start, start + 10))
    with dying_at(monkeypatch, survivors), pytest.raises(Killed):
        directory.truncate(7)
    directory._lock.release()
    cut = read_run(tmp_path)
    assert cut.rows() == rows(1, cut.last_step + 1)
    again = RunDirectory.open(tmp_path, {}, max_bytes=SMALL)
    again.truncate(7)
    assert read_run(tmp_path).rows() == rows(1, 8)


# one writer


def test_a_second_writer_is_refused_by_name(tmp_path: Path) -> None:
    directory = RunDirectory.open(tmp_path, {})
    with pytest.raises(RunInUse, match=f"process {os.getpid()} on .* one writer at a time"):
        RunDirectory.open(tmp_path, {})
    directory.append(rows(1, 3))
    directory.close()
    directory.close()
    with pytest.raises(OutputError, match="gone or replaced"):
        directory.append(rows(3, 4))
    RunDirectory.open(tmp_path, {}).close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_a_forked_worker_does_not_hold_the_lock(tmp_path: Path) -> None:
    directory = RunDirectory.open(tmp_path, {})
    child = os.fork()
    if child == 0:
        time.sleep(30)
        os._exit(0)
    try:
        assert read_run(tmp_path).status == "running"
        directory.close()
        RunDirectory.open(tmp_path, {}).close()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


# the disk


def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", fails)


def test_rows_wait_until_the_disk_takes_them(tmp_path: Path) -> None:
    directory = RunDirectory.open(tmp_path, {})
    directory.append(rows(1, 3))
    with pytest.MonkeyPatch.context() as patch:
        full_disk(patch)
        for start in (3, 5, 7):
            with pytest.raises(OutputError) as error:
                directory.append(rows(start, start + 2))
            assert re.fullmatch(r".* could not be written: No space left on device\.", str(error.value))
        assert read_run(tmp_path).last_step == 2
    directory.append(rows(9, 11))
    assert read_run(tmp_path).rows() == rows(1, 11)


def test_what_waits_is_thinned_and_not_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wellcond.recording.directory.run_directory.WAITING_ROWS", 1000)
    directory = RunDirectory.open(tmp_path, {})
    with monkeypatch.context() as patch:
        full_disk(patch)
        for start in range(1, 5001, 100):
            with pytest.raises(OutputError):
                directory.append(rows(start, start + 100, layers=0))
    directory.close()
    steps = read_run(tmp_path).history.series("training_loss").steps
    assert len(steps) <= 1000
    assert (steps[0], steps[-1]) == (1, 5000)


def test_a_folder_that_vanishes_and_comes_back(tmp_path: Path) -> None:
    directory = RunDirectory.open(tmp_path / "a", {})
    directory.append(rows(1, 3))
    (tmp_path / "a").rename(tmp_path / "b")
    with pytest.raises(OutputError, match="deleted, moved or unmounted"):
        directory.append(rows(3, 5))
    with pytest.raises(OutputError, match="deleted, moved or unmounted"):
        directory.append_findings([began(4)])
    assert not (tmp_path / "a").exists()
    (tmp_path / "b").rename(tmp_path / "a")
    directory.append(rows(5, 7))
    run = read_run(tmp_path / "a")
    assert run.rows() == rows(1, 7)
    assert run.findings == (finding(4),)


def mounted(folder: Path, size: str) -> bool:
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    return sys.platform == "linux" and subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_a_disk_that_is_really_full_or_read_only(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    if not mounted(disk, "256k"):
        pytest.skip("only root may mount a file system")
    try:
        directory = RunDirectory.open(disk / "a", {})
        directory.append(rows(1, 3))
        (disk / "ballast").write_bytes(b"0" * 100_000)
        with pytest.raises(OSError, match="space"):
            (disk / "more").write_bytes(b"0" * 200_000)
        with pytest.raises(OutputError, match="No space left on device"):
            directory.append(rows(3, 5))
        with pytest.raises(OutputError, match="No space left on device"):
            directory.append_findings([began(4, reason="x" * 5000)])
        run = read_run(disk / "a")
        assert run.rows() == rows(1, 3)
        assert run.notes == ()
        (disk / "more").unlink()
        directory.append(rows(5, 7))
        assert read_run(disk / "a").rows() == rows(1, 7)
        assert len(read_run(disk / "a").findings) == 1
        directory.close()
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        with pytest.raises(OutputError, match="Read-only file system"):
            RunDirectory.open(disk / "b", {})
        with pytest.raises(OutputError, match="Read-only file system"):
            RunDirectory.open(disk / "a", {})
        assert read_run(disk / "a").status == "ended"
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_file_in_the_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    with pytest.raises(OutputError, match="could not be written"):
        RunDirectory.open(tmp_path / "a", {})


# damaged files


@pytest.mark.usefixtures("quick_disk")
def test_damaged_and_foreign_files_are_left_out_and_named(tmp_path: Path) -> None:
    directory = RunDirectory.open(tmp_path, {})
    for step in range(1, 8):
        directory.append(rows(step, step + 1))
    directory.close()
    segments = sorted((tmp_path / "rows").iterdir())
    assert len(segments) == 7
    segments[2].write_bytes(segments[2].read_bytes()[:-100])
    segments[4].write_bytes(b"")
    (tmp_path / "rows" / "other.parquet").write_bytes(segments[0].read_bytes())
    pandas.DataFrame({"x": [1]}).to_parquet(tmp_path / "rows" / "000100-000100.parquet")
    run = read_run(tmp_path)
    assert [step for step in range(1, 9) if run.rows(step)] == [1, 2, 4, 6, 7]
    assert [note.split()[0] for note in run.notes] == [
        segments[2].name,
        segments[4].name,
        "000100-000100.parquet",
        "other.parquet",
    ]
    again = RunDirectory.open(tmp_path, {}, max_bytes=SMALL)
    for step in range(8, 200):
        again.append(rows(step, step + 1))
    assert len(read_run(tmp_path).notes) == 4  # merges do not hide them
    assert len(list((tmp_path / "rows").iterdir())) < 40
    assert len(read_run(tmp_path).history) == 4 * (199 - 2)


def test_a_manifest_that_cannot_be_read(tmp_path: Path) -> None:
    RunDirectory.open(tmp_path, {}).close()
    manifest = json.loads((tmp_path / "run.json").read_text())
    for text, message in (
        ('{"schema": 1, ', r"run\.json is damaged"),
        ("[]", "no manifest of a recorded run"),
        (json.dumps(manifest | {"schema": 2}), "later wellcond .*schema 2"),
    ):
        (tmp_path / "run.json").write_text(text)
        with pytest.raises(CorruptData, match=message):
            read_run(tmp_path)
        with pytest.raises(CorruptData, match=message):
            RunDirectory.open(tmp_path, {})
    (tmp_path / "run.json").write_text(json.dumps(manifest))
    RunDirectory.open(tmp_path, {}).close()  # the lock was released each time


def test_a_line_of_findings_that_was_cut(tmp_path: Path) -> None:
    directory = RunDirectory.open(tmp_path, {})
    directory.append_findings([began(1), began(2)])
    path = tmp_path / "findings.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    assert [each.step for each in read_run(tmp_path).findings] == [1]
    directory.append_findings([began(3)])
    run = read_run(tmp_path)
    assert [each.step for each in run.findings] == [1, 3]
    assert run.notes == ("1 line of findings.jsonl left out: damaged.",)


# a writer that is killed


def write_for_ever(folder: Path, reports: int) -> None:
    """Append step after step, and report each that was written."""
    directory = RunDirectory.open(folder, {}, max_bytes=SMALL)
    step = directory.last_step
    while True:
        step += 1
        directory.append([Row(step, layer, "weight_norm", float(step), "") for layer in LAYERS])
        directory.append_findings([began(step)] if step % 50 == 0 else [])
        os.write(reports, step.to_bytes(8, "big"))


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_kill_at_any_moment(tmp_path: Path) -> None:
    """Fifty writers, one after the other: the rows are those of steps 1 to n, and no step that was reported is lost."""
    generator = random.Random(0)
    reported, reported_findings = 0, set[int]()
    for _ in range(50):
        read, write = os.pipe()
        writer = os.fork()
        if writer == 0:
            try:
                write_for_ever(tmp_path, write)
            finally:
                os._exit(1)
        os.close(write)
        with os.fdopen(read, "rb") as reports:
            reported = int.from_bytes(reports.read(8), "big")
            assert read_run(tmp_path).status == "running"
            time.sleep(generator.uniform(0, 0.03))
            os.kill(writer, signal.SIGKILL)
            os.waitpid(writer, 0)
            rest = reports.read()
            steps = [int.from_bytes(rest[i : i + 8], "big") for i in range(0, len(rest), 8)]
            reported = max(steps, default=reported)
            reported_findings |= {step for step in steps if step % 50 == 0}
        run = read_run(tmp_path)
        assert (run.status, run.notes) == ("killed", ())
        assert run.last_step in (reported, reported + 1)
        for layer in LAYERS:
            series = run.history.series("weight_norm", layer)
            assert series.steps.tolist() == list(range(1, run.last_step + 1))
            assert (series.values == series.steps).all()
        assert {each.step for each in run.findings} >= reported_findings
    RunDirectory.open(tmp_path, {}).close()
    assert not list(tmp_path.rglob("*.tmp"))
    assert len(pandas.read_parquet(tmp_path / "rows")) == len(LAYERS) * run.last_step
    assert len(run.manifest["lives"]) == 50
