"""Findings as a list: all of them, the worst, those of a layer, and those that an earlier diagnosis had."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from wellcond.diagnosis.finding import SEVERITIES, Finding, Severity
from wellcond.errors import OutputError
from wellcond.results.text import WHOLE_MODEL

Place = tuple[str, str]
"""The rule of a finding, and its layer: what stays the same from one diagnosis to the next."""


def flat(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Every finding, each before those that it explains.

    Example:
        >>> inner = Finding("exploding-gradient", "fc1", "warning", 0.9, "", {}, "", "")
        >>> outer = Finding("unscaled-input", "", "severe", 0.9, "", {}, "", "", consequences=(inner,))
        >>> [each.rule for each in flat([outer])]
        ['unscaled-input', 'exploding-gradient']
    """
    for finding in findings:
        yield finding
        yield from flat(finding.consequences)


def worst(findings: Iterable[Finding]) -> Severity | None:
    """The worst severity, of consequences too; None where nothing was found."""
    return worst_of(each.severity for each in flat(findings))


def worst_of(severities: Iterable[Severity]) -> Severity | None:
    """The worst of some severities; None of none."""
    return min(severities, key=SEVERITIES.index, default=None)


def place(finding: Finding) -> Place:
    """The rule and the layer."""
    return finding.rule, finding.layer


def by_layer(findings: Iterable[Finding]) -> dict[str, list[Finding]]:
    """Layer → what was found there, consequences too; what concerns no layer is at ""."""
    found: dict[str, list[Finding]] = {}
    for each in flat(findings):
        found.setdefault("" if each.layer == WHOLE_MODEL else each.layer, []).append(each)
    return found


def read_baseline(path: Path) -> set[Place]:
    """The places of an earlier diagnosis, as `--out old.json` or `--json` wrote it.

    Raises:
        OutputError: The file is not that of a diagnosis.
    """
    wanted = f"{path} is no diagnosis as JSON; write one with: wellcond diagnose FILE.py:FUNCTION --out {path}"
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))["values"]["findings"]
        return set(_places(entries))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OutputError(wanted) from error


def _places(entries: Sequence[dict[str, object]]) -> Iterator[Place]:
    for entry in entries:
        yield str(entry["rule"]), str(entry["layer"])
        inner = entry["consequences"]
        assert isinstance(inner, list)
        yield from _places(inner)
