"""`findings.jsonl`: one line for each beginning or end of a finding, and the findings that these lines give."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import fields
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, NamedTuple

from wellcond.diagnosis.finding import SEVERITIES, Finding
from wellcond.results import Row
from wellcond.results.files import write_atomically
from wellcond.results.result import as_json

FINDINGS = "findings.jsonl"
WORDS = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}
"""Numbers that JSON has no way to write."""


class FindingEvent(NamedTuple):
    """A finding that began or ended.

    Attributes:
        event: `"began"` or `"ended"`.
        step: Step at which this was noticed.
        finding: The finding, whose `step` and `until` say when it began and ended.
    """

    event: Literal["began", "ended"]
    step: int
    finding: Finding


def as_line(event: FindingEvent, time: float) -> bytes:
    """One line of the file."""
    return _line({"event": event.event, "step": event.step, "time": time, "finding": as_json(event.finding)})


def append_lines(folder: Path, lines: Iterable[bytes]) -> int:
    """Add lines to the file, all or none; returns its size."""
    with (folder / FINDINGS).open("ab+", buffering=0) as file:
        before = file.seek(0, os.SEEK_END)
        file.seek(max(before - 1, 0))
        is_cut = file.read(1) not in (b"", b"\n")  # by a writer that was killed: its line ends here
        content = b"\n" * is_cut + b"".join(lines)
        if file.write(content) != len(content):
            file.truncate(before)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return before + len(content)


def read_lines(folder: Path) -> tuple[list[dict[str, Any]], int]:
    """The events in the file, and the number of lines that are damaged, as the last one is if its writer was killed."""
    try:
        lines = (folder / FINDINGS).read_bytes().splitlines()
    except FileNotFoundError:
        return [], 0
    events, damaged = [], 0
    for line in lines:
        try:
            event = json.loads(line)
            finding_of(event["finding"])
            events.append({**event, "step": int(event["step"])})
        except (ValueError, KeyError, TypeError, AttributeError):
            damaged += bool(line)
    return events, damaged


def findings_of(events: Iterable[Mapping[str, Any]]) -> tuple[Finding, ...]:
    """Every finding as its last event has it: those that are still there first, then worst first, then oldest first."""
    latest = {_key(event): event for event in events}
    return by_weight(finding_of(event["finding"]) for event in latest.values())


def by_weight(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Findings that are still there first, then worst first, then oldest first."""
    return tuple(sorted(findings, key=lambda f: (f.until is not None, SEVERITIES.index(f.severity), f.step or 0)))


def finding_of(entry: Mapping[str, Any]) -> Finding:
    """A finding as `as_json` wrote it; fields of later versions are left out."""
    known = {each.name: entry[each.name] for each in fields(Finding) if each.name in entry}
    if known["severity"] not in SEVERITIES:
        raise ValueError(f"{known['severity']!r} is no severity")
    known["evidence"] = {name: WORDS.get(str(value), value) for name, value in known.get("evidence", {}).items()}
    known["limits"] = {name: float(value) for name, value in known.get("limits", {}).items()}
    known["rows"] = tuple(
        Row(step, layer, what, float(x), unit) for step, layer, what, x, unit in known.get("rows", ())
    )
    known["consequences"] = tuple(map(finding_of, known.get("consequences", ())))
    return Finding(**known)


def rewrite(folder: Path, events: Iterable[Mapping[str, Any]]) -> None:
    """Replace the file at once."""
    write_atomically(folder / FINDINGS, b"".join(map(_line, events)), is_durable=True)


def shortened(events: Iterable[Mapping[str, Any]], max_bytes: int) -> list[Mapping[str, Any]]:
    """The last event of each finding, without its rows; if these are too many, the newest and those still there."""
    latest = {_key(event): event for event in events}
    brief = [{**event, "finding": {**event["finding"], "rows": [], "consequences": []}} for event in latest.values()]
    ranked = sorted(brief, key=lambda event: (event["event"] == "ended", -event["step"]))
    totals = accumulate(len(_line(event)) for event in ranked)
    fitting = [event for event, total in zip(ranked, totals, strict=True) if total <= max_bytes]
    return sorted(fitting, key=lambda event: event["step"])


def _key(event: Mapping[str, Any]) -> tuple[Any, ...]:
    """What tells a finding from others, whichever event reports it."""
    return tuple(event["finding"].get(name) for name in ("rule", "layer", "step"))


def _line(event: Mapping[str, Any]) -> bytes:
    return json.dumps(event, ensure_ascii=False, allow_nan=False).encode() + b"\n"
