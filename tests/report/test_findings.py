"""Findings as text, as small plots and as a tree."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from made_findings import AWKWARD_NAME, DEAD, DIVERGED, MODULES, NOTE, UNSCALED, VANISHING, norms

from wellcond.diagnosis.finding import flat
from wellcond.errors import OutputError
from wellcond.report.bars import MOST_BLOCKS
from wellcond.report.findings import by_layer, read_baseline, worst
from wellcond.report.strips import Strip, strips
from wellcond.report.text import findings_text
from wellcond.report.tree import folded, is_short, model_tree
from wellcond.results import Row
from wellcond.results import quantities as q
from wellcond.results.result import as_json


def test_consequences_come_after_their_cause_and_count_for_the_worst() -> None:
    assert [each.rule for each in flat([NOTE, UNSCALED])] == [
        "full-neurons",
        "unscaled-input",
        "vanishing-gradient",
        "dying-neurons",
    ]
    assert worst([replace(NOTE, consequences=(DEAD,))]) == "warning"
    assert worst([]) is None
    assert {layer: len(each) for layer, each in by_layer([UNSCALED]).items()} == {"": 1, "fc1": 1, AWKWARD_NAME: 1}


def test_a_baseline_has_the_places_of_all_findings(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    path.write_text(json.dumps({"values": {"findings": as_json([UNSCALED, NOTE])}}), encoding="utf-8")
    assert read_baseline(path) == {(each.rule, each.layer) for each in flat([UNSCALED, NOTE])}


@pytest.mark.parametrize("content", ["no json", "[1]", '{"values": {}}', '{"values": {"findings": [3]}}'])
def test_another_file_is_not_a_baseline(content: str, tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(OutputError, match="does not hold a diagnosis as JSON; write one with: wellcond diagnose"):
        read_baseline(path)


def test_a_baseline_that_cannot_be_read_is_named_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"there is no file .*old\.json to compare with; write one with: wellcond"):
        read_baseline(tmp_path / "old.json")
    with pytest.raises(OutputError, match="cannot be read: Is a directory"):
        read_baseline(tmp_path)


def test_text_has_all_that_a_finding_has() -> None:
    text = findings_text([UNSCALED, VANISHING])
    for part in ("unscaled-input (proven)", "largest ∞", "why: One rate", "→ dying-neurons at", "‖∂L/∂θ‖  ▁"):
        assert part in text
    assert VANISHING.remedy.splitlines()[-1] in text


def test_the_summary_that_the_assessment_quotes_is_not_said_again() -> None:
    text = findings_text([UNSCALED, VANISHING, NOTE])
    assert UNSCALED.summary not in text
    assert text.count(f"\n  {VANISHING.summary}") == 1
    assert NOTE.summary in findings_text([NOTE])


def test_many_consequences_are_counted() -> None:
    text = findings_text([replace(UNSCALED, consequences=(VANISHING,) * 9)])
    assert text.count("→ vanishing-gradient at fc1") == 6
    assert text.endswith("and 3 more")


def test_heights_are_logarithmic_over_decades_and_else_proportional() -> None:
    wide = Strip("", ("a", "b", "c"), (1e-6, 1e-3, 1.0))
    assert wide.is_log
    middle = (wide.height(1e-6) + wide.height(1.0)) / 2
    assert wide.height(1e-3) == pytest.approx(middle)
    narrow = Strip("", ("a", "b"), (1.0, 2.0))
    assert not narrow.is_log
    assert narrow.height(2.0) == 1.0
    assert narrow.height(1.0) == pytest.approx((narrow.height(2.0) + narrow.height(0.0)) / 2)


@pytest.mark.parametrize(
    "values", [(0.0, 0.0), (math.nan, math.inf), (0.0, 5.0), (-1.0, 3.0), (1.0, 1.0), (-math.inf, 1e-300)]
)
def test_every_value_has_a_height_between_0_and_1(values: tuple[float, ...]) -> None:
    strip = Strip("", tuple("ab"), values, frozenset([0]))
    assert all(0 <= strip.height(value) <= 1 for value in values)
    assert len(strip.sparkline()) == 2
    assert strip.caption()


def test_of_many_layers_the_blamed_one_stays_in_the_sparkline() -> None:
    values = [1.0] * 500
    values[333] = 1e-4
    strip = strips(replace(VANISHING, layer="fc334", rows=norms(*values)))[0]
    blocks = strip.sparkline()
    assert len(blocks) <= MOST_BLOCKS
    assert [block for block, is_marked in blocks if is_marked] == ["▁"]


def test_a_limit_sets_the_scale_and_a_parameter_marks_its_layer() -> None:
    strip = strips(replace(VANISHING, layer="fc2.weight"))[0]
    assert (strip.limits, strip.marked) == ((("healthy from", 1e-3),), {1})
    assert "healthy from 0.001" in findings_text([VANISHING])
    assert strip.height(2e-7) < strip.height(1e-3) < strip.height(1.0)


def test_rows_with_steps_are_a_curve_and_a_single_number_is_no_plot() -> None:
    curve = strips(DIVERGED)[0]
    assert curve.is_curve
    assert curve.caption() == "1 at first, 8 after 4 steps"
    assert strips(DEAD) == []


def test_several_runs_are_several_curves_each_with_its_rate() -> None:
    def run(lr: float, *losses: float) -> list[Row]:
        points = [Row(step, "", q.TRAINING_LOSS, loss, "") for step, loss in enumerate(losses, start=1)]
        return [Row(0, "", q.TRAINED_LR, lr, "lr"), *points]

    rows = (Row(0, "", q.TRAINING_LOSS, 2.0, ""), *run(10.0, 3.0, math.nan), *run(0.1, 1.5, 1.0))
    drawn = strips(replace(DIVERGED, rows=rows))
    assert [(strip.title, strip.labels) for strip in drawn] == [
        ("loss at lr 10", ("0", "1", "2")),
        ("loss at lr 0.1", ("1", "2")),
    ]
    assert drawn[1].values == (1.5, 1.0)


def test_the_tree_has_every_module_and_every_blamed_parameter() -> None:
    blamed = replace(VANISHING, layer="body.0.weight")
    tree = model_tree({"": "Net", "body": "Sequential", "body.0": "Linear", "body.1": "ReLU"}, [blamed, UNSCALED])
    assert [node.path for node in tree.walk()][:5] == ["", "body", "body.0", "body.0.weight", "body.1"]
    assert tree.severity == "severe"
    assert tree.children["body"].severity is None
    assert tree.children["body"].worst_inside == "severe"
    assert tree.children["body"].children["1"].worst_inside is None


def test_a_long_tree_is_folded_where_nothing_was_found() -> None:
    modules = {"": "Net"} | {f"fc{i}": "Linear" for i in range(100)}
    tree = model_tree(modules, [replace(DEAD, layer="fc50"), replace(DEAD, layer="fc52")])
    assert not is_short(tree)
    shown = folded(tree, whole=False)
    assert [len(each) if isinstance(each, list) else each.name for each in shown] == [50, "fc50", "fc51", "fc52", 47]
    assert len(folded(tree, whole=True)) == 100
    assert is_short(model_tree(MODULES, []))
