"""The page of every rule, made from its file: wrong and right code, what to do, thresholds, causes, and its record."""

from __future__ import annotations

import ast
import re
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
import rule_record
import rules as rule_pages

import wellcond
from wellcond.diagnosis.causes import CAUSES, KINDS, MUTUAL
from wellcond.diagnosis.rule import RULES, Rule
from wellcond.recording.judging.run_rule import RUN_RULES
from wellcond.remedies import REMEDIES
from wellcond.report.rule_sections import HEAD, Section, has_page, page, sections
from wellcond.report.rule_source import RuleSource

NAMES = sorted(KINDS)
NAME = re.compile(r"`([\w-]+)`")
SOURCES = Path(wellcond.__file__).parent


def files_of(name: str) -> list[Path]:
    """The files that a rule is written in, by its name alone."""
    stem = name.replace("-", "_")
    folders = [SOURCES / "diagnosis" / "rules", SOURCES / "recording" / "rules"]
    files = [folder / f"{stem}.py" for folder in folders]
    files += [path for folder in folders for path in (folder / stem).glob("*.py")]
    return [path for path in files if path.exists()]


def by_title(name: str) -> dict[str, Section]:
    return {each.title: each for each in sections(name)}


def test_every_rule_has_a_page() -> None:
    assert set(NAMES) == RULES.keys() | RUN_RULES.keys()
    assert all(map(has_page, NAMES))


@pytest.mark.parametrize("name", NAMES)
def test_a_page_has_all_that_its_file_says(name: str) -> None:
    parts = by_title(name)
    first = parts[""].text
    assert re.match(r"[A-ZΑ-Ωκλ0-9`].*\.$", first.partition("\n\n")[0], re.DOTALL)
    assert "Its findings are " in first
    pairs = re.findall(
        r"# wrong\n(.*?)\n\n# right\n(.*?)(?=\n\n# wrong\n|\Z)", parts["Wrong and right"].code, re.DOTALL
    )
    assert pairs
    for wrong, right in pairs:
        assert ast.dump(ast.parse(wrong)) != ast.dump(ast.parse(right))
    made_for_a_loss = name == "summed-loss"  # no line of its remedy stands in the file
    assert parts.keys() & {"What to do", "Lines that it may print"} or made_for_a_loss
    assert parts["Why it matters"].items
    text = page(name)
    assert text.startswith(f"# {name}\n\n")
    assert "None" not in re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL)


@pytest.mark.parametrize("name", NAMES)
def test_thresholds_are_those_written_in_the_file(name: str) -> None:
    calls = [
        node
        for path in files_of(name)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("Threshold", "Condition")
    ]
    parts = by_title(name)
    titles = ("Thresholds", "Thresholds in a recorded run")
    rows = [row for title in titles if title in parts for row in parts[title].table]
    written = {ast.literal_eval(call.args[0]) for call in calls if isinstance(call.args[0], ast.Constant)}
    assert written <= {row[0] for row in rows}
    assert all(len(row) == len(HEAD) and row[3] and (row[1] or row[2]) for row in rows)


@pytest.mark.parametrize("name", NAMES)
def test_causes_and_effects_are_those_of_the_graph(name: str) -> None:
    causes = {cause for cause, effects in CAUSES.items() if name in effects}
    effects = set(CAUSES.get(name, ()))
    either = causes & effects & MUTUAL
    expected = {
        "Look for these first, since each of them may be its cause": causes - either,
        "It may be the cause or the effect of these; the worse of the two is taken for the cause": either,
        "It explains": effects - either,
    }
    items = by_title(name).get("Causes and effects", Section("")).items
    stated = {words: set(NAME.findall(names)) for words, _, names in (item.partition(":") for item in items)}
    assert stated == {words: names for words, names in expected.items() if names}


@pytest.mark.parametrize("name", NAMES)
def test_every_remedy_that_treat_tries_is_there(name: str) -> None:
    tried = {remedy for remedy, each in REMEDIES.items() if name in each.rules}
    todo = by_title(name).get("What to do", Section("")).items
    assert tried <= set(NAME.findall(" ".join(todo)))


def test_a_rule_of_ones_own_has_its_docstring(monkeypatch: pytest.MonkeyPatch) -> None:
    def judge(evidence: object) -> list[object]:
        """What it looks for.

        And why | how.
        """
        return []

    monkeypatch.setitem(RULES, "my-rule", [Rule("my-rule", judge)])  # type: ignore[arg-type, list-item]
    assert not has_page("my-rule")
    assert page("my-rule") == "# my-rule\n\nWhat it looks for.\n\nAnd why | how."


def test_a_table_is_markdown() -> None:
    section = Section("T", table=(("|x|", "> 1", "", "origin"),))
    assert section.markdown() == (
        "## T\n\n| quantity | warning | severe | origin |\n| ---|---|---|--- |\n| \\|x\\| | > 1 |  | origin |"
    )


# the source of a rule

FILE = '''"""made-up: things that
are wrong.

More about it.

Wrong:
    x = 1

    y = 2
Right:
    x = 2

Wrong:
    z = 1
Right:
    z = 2

    z = 3
"""
from __future__ import annotations

def why(is_large):
    if is_large:
        return "It is large."
    return f"It is {is_large}."

def finding(layer, reason, basis="measured"):
    return Finding(rule="made-up", reason=reason, basis=basis)

def judge(evidence):
    remedy = "# look at the data" if evidence else f"x = {evidence}"
    yield finding("fc", "By position.", "proven")
    yield Finding(reason=why(1), remedy=remedy, treatment="batchnorm")
    yield Finding(reason=f"At {evidence.layer} it is.", remedy=f"{evidence.lines}")
    yield Finding(reason="no sentence")
'''


def imported(path: Path, name: str) -> ModuleType:
    sys.modules.pop(name, None)
    module = ModuleType(name)
    module.__file__ = str(path)
    module.__doc__ = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")), clean=False)
    return module


def test_what_stands_in_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "made_up.py").write_text(FILE, encoding="utf-8")
    source = RuleSource("made-up", imported(tmp_path / "made_up.py", "made_up"))
    assert source.summary == "Things that are wrong."
    assert source.mistakes == [("x = 1\n\ny = 2", "x = 2"), ("z = 1", "z = 2\n\nz = 3")]
    assert source.bases == ["proven", "measured"]
    assert set(source.reasons) == {"By position.", "It is large.", "It is ….", "At … it is."}
    assert source.own_remedies == ["# look at the data", "x = …"]  # lines that a finding makes are not known here
    assert source.advised == ["batchnorm"]


def test_a_rule_of_several_files_is_read_as_one() -> None:
    package = import_module("wellcond.diagnosis.rules.output_loss_mismatch")
    source = RuleSource("output-loss-mismatch", package)
    text = "".join(path.read_text(encoding="utf-8") for path in files_of("output-loss-mismatch"))
    assert len(files_of("output-loss-mismatch")) > 3
    assert len(source.reasons) > 10
    for reason in source.reasons:
        longest = max(re.split("…", reason), key=len)
        assert longest[:30] in re.sub(r'"\s+f?"', "", text), reason


# pages of the site


@pytest.mark.parametrize("name", NAMES)
def test_links_of_a_page_lead_to_pages(name: str) -> None:
    text = rule_pages.page(name)
    linked = set(re.findall(r"\]\(([\w-]+)\.md\)", text))
    assert linked <= set(NAMES) - {name}
    assert f"wellcond diagnose --explain {name}" in text
    assert [each for each in ("## Wrong and right", "## How often it is right") if each not in text] == []


def test_the_record_counts_every_fault_of_the_examinations_once() -> None:
    faults, sound = rule_record._first_results()
    total = right = wrongly = 0
    for name in NAMES:
        text = rule_record.record(name)
        if kinds := re.search(r"(\d+) of (\d+) faults of this kind", text):
            right, total = right + int(kinds[1]), total + int(kinds[2])
        wrongly += int(re.search(r"named first in (\d+) of all", text)[1])  # type: ignore[index]
        assert f"of all {len(faults)} " in text
        assert f"of {len(sound)} sound" in text
    named = [fault for fault in faults if fault["findings"]]
    assert total == sum(fault["rules"][0] in NAMES for fault in faults) > 100
    assert right == sum(bool(fault["first"]) for fault in faults if fault["rules"][0] in NAMES)
    assert wrongly == sum(fault["findings"][0]["rule"] not in fault["rules"] for fault in named)


def test_the_index_lists_every_rule_once() -> None:
    text = rule_pages.index()
    assert sorted(re.findall(r"^\| \[`([\w-]+)`\]\(rules/\1\.md\)", text, re.M)) == NAMES
