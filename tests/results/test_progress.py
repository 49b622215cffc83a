"""Bars: in a terminal, not in a pipe; one for a call and all that it calls; the price in front."""

from __future__ import annotations

import contextlib
import io
import time
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn

import wellcond as wc
from wellcond.results import Progress, progress
from wellcond.results.progress import Bar, announce, shows_progress


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What a person sees, with bars from the first moment on."""
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=120)
    monkeypatch.setattr(progress, "is_watched", lambda: True)
    monkeypatch.setattr(progress, "bar", lambda: contextlib.closing(Bar(console, patience=0.0)))
    return shown


@shows_progress
def inner(progress: Progress | None = None) -> str:
    if progress is not None:
        progress("inner", 0.5)
    return "done"


@shows_progress
def outer(progress: Progress | None = None) -> str:
    if progress is not None:
        announce(progress, 28_000, 420.0)
        progress("outer", 0.2)
    return inner()


def test_nothing_is_written_into_a_pipe(capfd: pytest.CaptureFixture[str]) -> None:
    assert outer() == "done"
    assert capfd.readouterr() == ("", "")


def test_one_bar_for_a_call_and_all_that_it_calls(terminal: io.StringIO) -> None:
    assert outer() == "done"
    text = terminal.getvalue()
    assert "at most 28,000 training steps, about 7 min 0 s: outer" in text
    assert "inner" not in text
    assert inner() == "done"
    assert "inner" in terminal.getvalue()


def test_who_passes_a_progress_gets_it_and_no_bar(terminal: io.StringIO) -> None:
    seen: list[tuple[str, float]] = []
    outer(progress=lambda what, share: seen.append((what, share)))
    assert seen == [("at most 28,000 training steps, about 7 min 0 s", 0.0), ("outer", 0.2)]
    assert terminal.getvalue() == ""


def test_a_bar_is_gone_after_an_error(terminal: io.StringIO) -> None:
    @shows_progress
    def failing(progress: Progress | None = None) -> None:
        assert progress is not None
        progress("work", 0.1)
        raise KeyError("x")

    with pytest.raises(KeyError):
        failing()
    assert terminal.getvalue().endswith("\x1b[2K")  # its line is erased
    assert inner() == "done"


def test_a_call_that_ends_at_once_shows_nothing() -> None:
    shown = io.StringIO()
    bar = Bar(Console(file=shown, force_terminal=True))
    bar("work", 0.1)
    bar.close()
    assert shown.getvalue() == ""
    bar = Bar(Console(file=shown, force_terminal=True), patience=0.01)
    time.sleep(0.02)
    bar("work", 0.1)
    bar.close()
    assert "work" in shown.getvalue()


@pytest.mark.slow
def test_a_diagnosis_says_first_what_it_will_take(terminal: io.StringIO) -> None:
    x = torch.randn(32, 4)
    problem = wc.Problem(nn.Linear(4, 2), nn.CrossEntropyLoss(), (x, x[:, 0].gt(0).long()))
    messages: list[tuple[str, float]] = []
    diagnosis = wc.diagnose(problem, progress=lambda what, share: messages.append((what, share)))
    plan = next(i for i, (what, _) in enumerate(messages) if what.startswith("at most"))
    assert {what for what, _ in messages[:plan]} <= {"inspection", "behavior"}
    assert diagnosis.cost.u <= float(messages[plan][0].split()[2])
    wc.diagnose(problem)
    assert "training steps, about" in terminal.getvalue()


def test_calls_of_the_library_show_a_bar(terminal: io.StringIO) -> None:
    x = torch.randn(16, 4)
    problem = wc.Problem(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), nn.MSELoss(), (x, x[:, :2]))
    calls: list[Any] = [wc.max_lr, wc.conditioning, lambda p: wc.eigenvalues(wc.Hessian(p))]
    for call in calls:
        before = terminal.getvalue()
        call(problem)
        assert len(terminal.getvalue()) > len(before)
