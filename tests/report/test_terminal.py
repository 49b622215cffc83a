"""What does not show in the files of `tests/cli/golden`: narrow terminals, colors, a missing library."""

from __future__ import annotations

import importlib
import io
import re
import sys
from dataclasses import replace

import pytest
from made_findings import AWKWARD_NAME
from subjects import AWKWARD, SOUND, Subject, layer

from wellcond.errors import MissingExtra
from wellcond.report.terminal import new_console, show_diagnosis
from wellcond.report.text import diagnosis_text

BARS = str.maketrans("", "", "▏▎▍▌▋▊▉█")


def printed(subject: Subject, width: int, color: bool = False) -> str:
    system = "standard" if color else None
    console = new_console(file=io.StringIO(), width=width, force_terminal=color, color_system=system)
    show_diagnosis(subject, console)
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
    text = printed(replace(SOUND, measured_rows=rows), 70)
    names = [line.split()[0] for line in text[text.index(" layer ") :].splitlines() if line.strip()]
    assert "attention.output.dense" in "".join(names)
    assert "3/4" in text
    assert "λmax Σ∇h" in text


def test_only_layers_with_a_finding_are_colored_in_the_table() -> None:
    numbers = printed(AWKWARD, 120, color=True).split("Numbers")[1]
    colored = re.findall("\x1b\\[1;3[13]m(.*?)\x1b", numbers)
    assert [cell.strip() for cell in colored] == ["fc1", AWKWARD_NAME]


def test_the_verdict_comes_first_then_findings_tree_and_numbers() -> None:
    text = printed(AWKWARD, 100)
    order = ["Verdict: 3", "SEVERE", "vanishing-gradient at fc1", "WARNING", "NOTE", "fc2  Linear  ● full", "Numbers"]
    places = [text.index(part) for part in [*order, "λmax Σx", "Σx: second moment", "loss "]]
    assert places == sorted(places)


def test_a_sound_network_is_green_and_has_no_tree() -> None:
    text = printed(SOUND, 100, color=True)
    assert "\x1b[1;32m✓ Verdict: 0 <found>." in text
    assert "\x1b[1;31m" not in text
    assert "Net" not in text


def test_the_summary_that_the_assessment_quotes_is_not_said_again() -> None:
    text = printed(AWKWARD, 200)
    assert AWKWARD.findings[0].summary not in text
    assert text.count(AWKWARD.findings[1].summary) == 1


def test_code_is_never_wrapped_so_that_it_can_be_pasted() -> None:
    long = "optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)  # " + "a long comment " * 8
    finding = replace(AWKWARD.findings[0], remedy=f"if True:\n    {long}")
    lines = printed(replace(AWKWARD, findings=(finding,)), 60).splitlines()
    assert [line.rstrip() for line in lines if "True" in line or "comment" in line] == [
        "        if True:",
        f"            {long.rstrip()}",
    ]


def test_advice_without_code_is_a_sentence() -> None:
    finding = replace(AWKWARD.findings[0], remedy="# look at the labels next to their inputs")
    shown = replace(AWKWARD, findings=(finding,))
    for text in (printed(shown, 100), diagnosis_text(shown)):
        assert "Look at the labels next to their inputs." in text
        assert "# look" not in text


@pytest.mark.parametrize(("count", "lines"), [(24, 24), (1000, 24)])
def test_of_many_layers_the_extremes_are_printed_and_the_rest_counted(count: int, lines: int) -> None:
    worst = count // 2 + 1
    rows = [row for i in range(count) for row in layer(f"fc{i}", kappa=50.0 if i == worst else 10.0)]
    for text in (printed(replace(SOUND, measured_rows=rows), 100), diagnosis_text(replace(SOUND, measured_rows=rows))):
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
