"""What does not show in the files of `tests/cli/golden`: narrow terminals, colours, a missing library."""

from __future__ import annotations

import importlib
import io
import sys
from dataclasses import replace

import pytest
from subjects import AWKWARD, AWKWARD_NAME, SOUND, Subject, layer

from wellcond.errors import MissingExtra
from wellcond.report.facts import plain_text
from wellcond.report.terminal import new_console, show

BARS = str.maketrans("", "", "▏▎▍▌▋▊▉█")


def printed(subject: Subject, width: int, colour: bool = False) -> str:
    system = "standard" if colour else None
    console = new_console(file=io.StringIO(), width=width, force_terminal=colour, color_system=system)
    show(subject, console)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [80, 120])
def test_all_numbers_and_names_are_whole_at_any_width(width: int) -> None:
    text = printed(AWKWARD, width)
    assert max(map(len, text.splitlines())) <= width
    line = next(line for line in text.splitlines() if line.startswith(f" {AWKWARD_NAME} "))
    assert " ".join(line.translate(BARS).split()) == f"{AWKWARD_NAME} 0 ∞ 3/4 0 ∞ 3/4 5/8 2/8"


def test_a_long_name_gives_way_before_a_number_does() -> None:
    long = "encoder.layers.11.attention.output.dense"
    rows = [row._replace(layer=long) if row.layer == "fc2" else row for row in SOUND.rows()]
    text = printed(replace(SOUND, given=rows), 70)
    assert "attention.output.dense" in "".join(text.split())
    assert "3/4" in text
    assert "λmax Σ∇h" in text


def test_the_worst_cells_are_red_and_only_they() -> None:
    red = [part.split("\x1b")[0] for part in printed(AWKWARD, 120, colour=True).split("\x1b[1;31m")[1:]]
    assert [cell.strip() for cell in red] == ["∞", "∞", "5/8"]


@pytest.mark.parametrize(("count", "lines"), [(64, 64), (1000, 64)])
def test_of_many_layers_the_telling_ones_are_printed_and_the_rest_counted(count: int, lines: int) -> None:
    worst = count // 2 + 1
    rows = [row for i in range(count) for row in layer(f"fc{i}", kappa=50.0 if i == worst else 10.0)]
    for text in (printed(replace(SOUND, given=rows), 100), plain_text(replace(SOUND, given=rows))):
        shown = [line.split()[0] for line in text.splitlines() if line.strip().startswith("fc")]
        assert shown[0] == "fc0"
        assert shown[-1] == f"fc{count - 1}"
        assert f"fc{worst}" in shown
        assert shown == sorted(shown, key=lambda name: int(name[2:]))
        assert len(shown) <= lines
        assert (f"{len(shown)} of 1,000 layers" in text) == (count == 1000)


def test_without_rich_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.delitem(sys.modules, "wellcond.report.terminal")
    with pytest.raises(MissingExtra, match=r'rich is not installed. Run:  pip install "wellcond\[report\]"'):
        importlib.import_module("wellcond.report.terminal")
