"""Every threshold has an origin, and lies outside of what healthy networks show or says why not.

Healthy networks are measured by `benchmarks/verdicts/healthy_zoo.py`.
"""

from __future__ import annotations

import ast
import json
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from wellcond.diagnosis import rules
from wellcond.diagnosis.rule import RULES
from wellcond.diagnosis.threshold import Condition, Threshold, thresholds_in
from wellcond.recording import rules as run_rules
from wellcond.recording.judging import loss_curve, rises
from wellcond.recording.judging.run_rule import RUN_RULES

PACKAGES = [(rules, RULES), (run_rules, RUN_RULES)]
FOLDER = Path(rules.__file__).parent
HEALTHY = json.loads((FOLDER / "healthy.json").read_text(encoding="utf-8"))["quantities"]
ALL = {
    f"{package.__name__}.{name}: {each.quantity}": each
    for package, names in PACKAGES
    for name in sorted(names)
    for each in thresholds_in(getattr(package, name.replace("-", "_")))
} | {f"rises: {each.quantity}": each for file in (loss_curve, rises) for each in thresholds_in(file)}
THRESHOLDS = {name: each for name, each in ALL.items() if isinstance(each, Threshold)}


@pytest.mark.parametrize(("package", "names"), PACKAGES)
def test_every_rule_has_a_file_or_a_folder_of_its_name(package: ModuleType, names: dict[str, list[Any]]) -> None:
    folder = Path(package.__file__ or "").parent
    files = [*folder.glob("[!_]*.py"), *(path.parent for path in folder.glob("*/__init__.py"))]
    assert {path.stem.replace("_", "-") for path in files} == names.keys()
    for name, functions in names.items():
        module = f"{package.__name__}.{name.replace('-', '_')}"
        assert all(f"{each.judge.__module__}.".startswith(f"{module}.") for each in functions)


@pytest.mark.parametrize("name", ALL)
def test_every_number_has_an_origin(name: str) -> None:
    assert len(ALL[name].origin) > 10
    assert isinstance(ALL[name], Condition) or not math.isnan(max(_ends(name), default=math.nan))


@pytest.mark.parametrize("name", THRESHOLDS)
def test_severe_is_beyond_warning(name: str) -> None:
    threshold = THRESHOLDS[name]
    if len(_ends(name)) == 2:
        assert threshold.severe == threshold.warn or threshold._is_beyond(threshold.severe, threshold.warn)


@pytest.mark.parametrize("name", [name for name, each in THRESHOLDS.items() if each.healthy])
def test_no_healthy_network_is_beyond_a_warning_or_the_rule_says_why(name: str) -> None:
    threshold = THRESHOLDS[name]
    first = threshold.severe if math.isnan(threshold.warn) else threshold.warn
    ends = [HEALTHY[each]["max" if threshold.bad == "above" else "min"] for each in threshold.healthy]
    are_inside = any(threshold._is_beyond(end, first) for end in ends)
    assert are_inside == bool(threshold.inside_healthy_because)


def test_comparisons_in_rules_have_names() -> None:
    """Numbers that are no counts (0 to 3) are thresholds or conditions, not literals in a comparison."""
    literals = [
        f"{path.name}:{node.lineno} compares with {number.value}"
        for package, _ in PACKAGES
        for path in Path(package.__file__ or "").parent.glob("**/[!_]*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Compare)
        for side in (node.left, *node.comparators)
        for number in ast.walk(side)
        if isinstance(number, ast.Constant) and isinstance(number.value, (int, float))
        and not isinstance(number.value, bool) and number.value not in (0, 1, 2, 3)
    ]  # fmt: skip
    assert literals == []


def _ends(name: str) -> list[float]:
    threshold = THRESHOLDS[name]
    return [end for end in (threshold.warn, threshold.severe) if not math.isnan(end)]
