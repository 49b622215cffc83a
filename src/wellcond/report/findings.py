"""Findings as a list: all of them, the worst, those of a layer, and those that an earlier diagnosis had."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from wellcond.diagnosis.finding import SEVERITIES, Finding, Severity, flat
from wellcond.errors import OutputError
from wellcond.results.text import WHOLE_MODEL

Place = tuple[str, str]
"""The rule of a finding, and its layer: what stays the same from one diagnosis to the next."""


def worst(findings: Iterable[Finding]) -> Severity | None:
    """The worst severity, consequences included; None if there are no findings."""
    return worst_of(each.severity for each in flat(findings))


def worst_of(severities: Iterable[Severity]) -> Severity | None:
    """The worst of some severities; None if there are none."""
    return min(severities, key=SEVERITIES.index, default=None)


def place(finding: Finding) -> Place:
    """The rule and the layer."""
    return finding.rule, finding.layer


def by_layer(findings: Iterable[Finding]) -> dict[str, list[Finding]]:
    """Findings of each layer, consequences included; those of the whole network are at ""."""
    layers: dict[str, list[Finding]] = {}
    for each in flat(findings):
        layers.setdefault("" if each.layer == WHOLE_MODEL else each.layer, []).append(each)
    return layers


def read_baseline(path: Path) -> set[Place]:
    """The places of an earlier diagnosis, as `--out old.json` or `--json` wrote it.

    Raises:
        OutputError: There is no such file, or it does not hold a diagnosis.
    """
    how = f"write one with: wellcond diagnose FILE.py:FUNCTION --out {path}"
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))["values"]["findings"]
        return set(_places(entries))
    except FileNotFoundError:
        raise OutputError(f"there is no file {path} to compare with; {how}") from None
    except OSError as error:
        raise OutputError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise OutputError(f"{path} does not hold a diagnosis as JSON; {how}") from error


def _places(entries: Sequence[dict[str, object]]) -> Iterator[Place]:
    for entry in entries:
        yield str(entry["rule"]), str(entry["layer"])
        inner = entry["consequences"]
        assert isinstance(inner, list)
        yield from _places(inner)
