"""A recorder in a notebook: its cell shows the run and goes on changing, rarely enough, and no failure ends a run."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from loops import Clock
from torch import nn

import wellcond as wc
from wellcond.recording.history import History
from wellcond.recording.live_display import LiveDisplay
from wellcond.recording.mishaps import RecordingWarning
from wellcond.recording.run import Run
from wellcond.results import Row

RUN = Run.of(History([Row(1, "", "training_loss", 2.5, "")]), [], {})


class Cell:
    """Stands for the output of a cell: notes what is shown."""

    def __init__(self, shown: list[tuple[str, str]]) -> None:
        self.shown = shown

    def show(self, html: str, text: str) -> None:
        self.shown.append((html, text))


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """HTML and text of everything that is shown in a cell."""
    shown: list[tuple[str, str]] = []
    monkeypatch.setattr("wellcond.recording.live_display.CellOutput", lambda: Cell(shown))
    return shown


@pytest.mark.parametrize(("seconds", "between"), [(0.0, 2.0), (0.005, 2.0), (0.5, 50.0)])
def test_drawing_takes_a_hundredth_of_the_time_at_most(
    shown: list[tuple[str, str]], seconds: float, between: float
) -> None:
    clock = Clock()

    def drawn() -> Run:
        clock.now += seconds
        return RUN

    display = LiveDisplay(drawn, clock)
    times = []
    for _ in range(8000):
        clock.now += 0.02
        before = len(shown)
        display.refresh()
        if len(shown) > before:
            times.append(clock.now)
    assert len(times) >= 3
    gaps = [after - before - seconds for before, after in itertools.pairwise(times)]
    assert gaps == pytest.approx([between] * len(gaps), abs=0.03)


def training(steps: int, cell_of: Any = None) -> wc.Recorder:
    """A run on a clock by which every step takes a second; it is displayed after the third."""
    clock = Clock()
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rec = wc.Recorder(model, optimizer, nn.MSELoss(), clock=clock)
    for step in range(1, steps + 1):
        if step == 4:
            rec._ipython_display_() if cell_of is None else cell_of(rec)
            rec._displays[0]._clock = clock
            rec._displays[0]._next = clock.now + 2.0
        optimizer.step()
        clock.now += 1.0
        rec.step(float(step))
    return rec


@pytest.mark.slow
def test_a_recorder_in_a_cell_shows_the_run_so_far_and_its_end(shown: list[tuple[str, str]]) -> None:
    rec = training(9)
    texts = [text for _, text in shown]
    assert [line for text in texts for line in text.splitlines() if line.startswith("running")] == [
        "running, 3 steps",
        "running, 5 steps",
        "running, 7 steps",
        "running, 9 steps",
    ]
    rec.close()
    assert "ended, 9 steps" in shown[-1][1]
    assert "<svg" in shown[-1][0] or "<table" in shown[-1][0]


def test_a_cell_that_cannot_be_drawn_is_said_once_and_not_tried_again(
    shown: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Cell, html: str, text: str) -> None:
        self.shown.append((html, text))
        if len(self.shown) > 1:
            raise ConnectionError("the notebook is closed")

    monkeypatch.setattr(Cell, "show", broken)
    with pytest.warns(RecordingWarning, match="the notebook is closed"):
        rec = training(20)
    rec.close()
    assert len(shown) == 2
    assert len(rec.problems) == 1
    assert len(rec.history.series("training_loss")) == 20


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[Any]:
    """A shell of IPython, and what it publishes."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    interactive = pytest.importorskip("IPython.core.interactiveshell")
    capture = pytest.importorskip("IPython.core.displaypub")
    shell = interactive.InteractiveShell.instance()
    shell.display_pub = capture.CapturingDisplayPublisher()
    yield shell
    interactive.InteractiveShell.clear_instance()


@pytest.mark.slow
def test_display_in_a_real_shell_replaces_one_output(shell: Any) -> None:
    from IPython.display import display

    training(9, display).close()
    outputs = shell.display_pub.outputs
    assert len(outputs) == 5
    assert len({output["transient"]["display_id"] for output in outputs}) == 1
    assert [bool(output.get("update")) for output in outputs] == [False, True, True, True, True]
    assert outputs[-1]["data"].keys() == {"text/html", "text/plain"}
    assert "ended, 9 steps" in outputs[-1]["data"]["text/plain"]
