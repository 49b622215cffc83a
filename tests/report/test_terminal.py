from __future__ import annotations

import importlib
import io
import sys
from dataclasses import replace

import pytest
from subjects import AWKWARD, AWKWARD_NAME, SOUND, Subject

from wellcond.errors import MissingExtra
from wellcond.report.terminal import facts_table, new_console, show
from wellcond.results.quantities import INPUT

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


def test_text_of_any_kind_is_printed_as_it_is() -> None:
    console = new_console(file=io.StringIO(), width=80)
    console.print(f"train.py:ok: {AWKWARD_NAME}", style="bold")
    assert console.file.getvalue() == f"train.py:ok: {AWKWARD_NAME}\n"


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


def test_bars_span_the_range_on_wide_terminals() -> None:
    rows = [r._replace(value=1e-6) if (r.layer, r.quantity) == ("fc1", INPUT.lambda_max) else r for r in SOUND.rows()]
    text = printed(replace(SOUND, given=rows), 120)
    lines = {line.split()[0]: line for line in text.splitlines() if "fc" in line[:4]}
    assert "████████" in lines["fc2"]
    assert "▏" in lines["fc1"]


def test_missing_and_failed_parts_are_printed() -> None:
    text = printed(replace(SOUND, not_covered={"bn": "a [norm]"}, failed={"Hessian": "it is NaN"}), 80)
    assert "not covered: bn: a [norm]" in text
    assert "Hessian failed: it is NaN" in text


def test_networks_stand_side_by_side() -> None:
    console = new_console(file=io.StringIO(), width=120)
    console.print(facts_table({"plain": AWKWARD.rows(), "batchnorm": SOUND.rows()}))
    header, *lines = [line for line in console.file.getvalue().splitlines() if line.strip()]
    assert header.split() == ["plain", "batchnorm"]
    dead = next(line for line in lines if "dead ReLUs" in line)
    assert f"5 of 8 at {AWKWARD_NAME}; 6 of 16 in all" in dead
    assert "1 of 8 at fc1; 1 of 16 in all" in dead


def test_without_rich_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.delitem(sys.modules, "wellcond.report.terminal")
    with pytest.raises(MissingExtra, match=r'rich is not installed. Run:  pip install "wellcond\[report\]"'):
        importlib.import_module("wellcond.report.terminal")
