"""What a cell of a notebook shows while it runs: bars and recorders, each in one output, without widgets."""

from __future__ import annotations

import re
import sys
import textwrap
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from wellcond.recording import live_display
from wellcond.recording.live_display import LiveDisplay
from wellcond.results import progress
from wellcond.results.cell_output import CellOutput, is_notebook
from wellcond.results.progress import NotebookBar, bar, is_watched, shows_progress


class Cell:
    """A cell of a notebook: what was displayed in it first, and in its place later."""

    def __init__(self) -> None:
        self.outputs: list[list[dict[str, str]]] = []

    def DisplayHandle(self) -> Any:
        shown: list[dict[str, str]] = []

        def show(content: dict[str, str], *, raw: bool) -> None:
            assert raw  # a dictionary of forms, and not an object to show
            shown.append(content)

        def display(content: dict[str, str], *, raw: bool) -> None:
            self.outputs.append(shown)
            show(content, raw=raw)

        return SimpleNamespace(display=display, update=show)


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Cell:
    """As in a kernel, where nothing but IPython can be imported for showing something."""
    shown_in = Cell()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=object())))
    monkeypatch.setitem(sys.modules, "IPython.display", shown_in)
    for library in ("ipywidgets", "rich", "tqdm"):
        monkeypatch.setitem(sys.modules, library, None)
    return shown_in


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that goes on when `now` is set."""
    time = SimpleNamespace(now=0.0)
    monkeypatch.setattr(progress, "time", SimpleNamespace(perf_counter=lambda: time.now))
    return time


@pytest.mark.parametrize(
    ("shell", "is_there"),
    [
        (None, False),  # no IPython at all
        (SimpleNamespace(get_ipython=lambda: None), False),  # imported by a library
        (SimpleNamespace(get_ipython=lambda: object()), False),  # IPython in a terminal
        (SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=object())), True),
    ],
)
def test_a_notebook_is_known_by_its_kernel(monkeypatch: pytest.MonkeyPatch, shell: Any, is_there: bool) -> None:
    if shell is None:
        monkeypatch.delitem(sys.modules, "IPython", raising=False)
    else:
        monkeypatch.setitem(sys.modules, "IPython", shell)
    assert is_notebook() == is_there
    assert is_watched() == is_there  # tests have no terminal
    with bar() as shown:
        assert isinstance(shown, NotebookBar) == is_there


def test_an_output_is_replaced(cell: Cell) -> None:
    first, second = CellOutput(), CellOutput()
    first.show("<b>1</b>", "1")
    second.show("<b>a</b>", "a")
    first.show("<b>2</b>", "2")
    assert cell.outputs == [
        [{"text/html": "<b>1</b>", "text/plain": "1"}, {"text/html": "<b>2</b>", "text/plain": "2"}],
        [{"text/html": "<b>a</b>", "text/plain": "a"}],
    ]


def test_a_bar_needs_no_widgets_and_is_gone_at_the_end(cell: Cell, clock: SimpleNamespace) -> None:
    with bar() as shown:
        shown.plan("at most 100 training steps")
        shown("<early>", 0.1)
        assert cell.outputs == []  # a call that ends soon shows nothing
        clock.now = 1.0
        shown("<layers>", 0.25)
        clock.now = 1.1
        shown("too soon", 0.3)
        clock.now = 3.0
        shown("trial", 0.75)
    ((first, second, last),) = cell.outputs
    assert 'value="0.250"' in first["text/html"]
    assert first["text/plain"] == "25%, about 3 s left at most 100 training steps: <layers>"
    assert "<small>at most 100 training steps: &lt;layers&gt;</small>" in first["text/html"]
    assert second["text/plain"] == "75%, about 1 s left at most 100 training steps: trial"
    assert last == {"text/html": "", "text/plain": ""}


def test_a_bar_at_its_ends(cell: Cell, clock: SimpleNamespace) -> None:
    shown = NotebookBar(patience=0.0)
    shown("begin", 0.0)
    clock.now = 1.0
    shown("end", 1.0)
    assert [content["text/plain"] for content in cell.outputs[0]] == ["0% begin", "100% end"]


def test_a_bar_that_was_never_shown_leaves_nothing(cell: Cell) -> None:
    with bar() as shown:
        shown("work", 0.5)
    assert cell.outputs == []


def test_calls_in_a_notebook_show_one_bar(cell: Cell, clock: SimpleNamespace) -> None:
    @shows_progress
    def inner(progress: Any = None) -> None:
        assert progress is None

    @shows_progress
    def outer(progress: Any = None) -> None:
        clock.now += 1.0
        progress("work", 0.5)
        inner()

    outer()
    assert len(cell.outputs) == 1
    assert re.search(r"50%, about 1 s left work$", cell.outputs[0][0]["text/plain"])


@pytest.mark.parametrize("drawing", [0.001, 0.05])
def test_a_recorder_is_drawn_again_now_and_then(cell: Cell, monkeypatch: pytest.MonkeyPatch, drawing: float) -> None:
    """Not more often than every two seconds, and for a hundredth of the time at most."""
    monkeypatch.setattr(live_display, "rendered", lambda form, run: f"{form} {run}")
    time, begins = SimpleNamespace(now=0.0), []

    def run() -> Any:
        begins.append(time.now)
        time.now += drawing
        return len(begins)

    display = LiveDisplay(run, clock=lambda: time.now)
    while time.now < 100:
        time.now += 0.01
        display.refresh()
    assert cell.outputs == [[{"text/html": f"fragment {i + 1}", "text/plain": str(i + 1)} for i in range(len(begins))]]
    pause = max(2.0, 100 * drawing)
    assert all(pause <= later - earlier <= pause + drawing + 0.02 for earlier, later in pairwise(begins))
    assert len(begins) >= 19


CELLS = (
    """
    import sys
    sys.modules["ipywidgets"] = sys.modules["rich"] = None
    import torch, wellcond as wc
    from torch import nn
    from wellcond.recording import live_display
    from wellcond.results import progress
    live_display.BETWEEN = progress.BETWEEN = 0.0
    live_display.SHARE_OF_TIME = float("inf")
    progress.Bar.__init__.__defaults__ = None, 0.0  # shown at once
    model, loss = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.randn(32, 4), torch.arange(32) % 2
    """,
    "wc.diagnose(wc.Problem(model, loss, batch), optimizer)",
    """
    rec = wc.Recorder(model, optimizer, loss)
    display(rec)
    for _ in range(20):
        value = loss(model(batch[0]), batch[1])
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        rec.step(value, batch)
    rec.close()
    """,
)


@pytest.mark.slow
def test_in_a_kernel() -> None:
    """A bar that came and went, a diagnosis, and a recorder whose picture is that of the end."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    sources = [textwrap.dedent(source) for source in CELLS]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    updates: list[dict[str, str]] = []

    class Client(nbclient.NotebookClient):  # type: ignore[misc, name-defined]
        def process_message(self, message: Any, *args: Any) -> Any:
            if message["msg_type"] in ("display_data", "update_display_data"):
                updates.append(message["content"]["data"])
            return super().process_message(message, *args)

    Client(notebook, timeout=60).execute()
    setup, diagnosis, recorder = (cell.outputs for cell in notebook.cells)
    assert setup == []
    bar, verdict = diagnosis
    assert bar.data == {"text/html": "", "text/plain": ""}
    assert any("training steps, about" in each["text/plain"] for each in updates)
    assert 'class="verdict' in verdict.data["text/html"]
    (shown,) = recorder  # whose probes show no bars
    assert "20 steps" in shown.data["text/html"]
    assert len([each for each in updates if " steps · " in each.get("text/html", "")]) > 20
