"""`findings.jsonl`: a line for each beginning or end of a finding, or when more is known of it, and what they give."""

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
IDENTITY = ("rule", "layer", "step")
"""What tells a finding from others."""
WORDS = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}
"""Numbers that JSON has no way to write."""


class FindingEvent(NamedTuple):
    """A finding that began or ended, or of which more is known.

    Attributes:
        event: `"began"`, `"ended"`, or `"moved"` if its layer, or where it began, is another one than was said.
        step: Step at which this was noticed.
        finding: The finding, whose `step` and `until` say when it began and ended.
        before: As it was said before, if it has moved.
    """

    event: Literal["began", "ended", "moved"]
    step: int
    finding: Finding
    before: Finding | None = None


def as_line(event: FindingEvent, time: float) -> bytes:
    """One line of the file."""
    of = {} if event.before is None else {"of": [getattr(event.before, name) for name in IDENTITY]}
    return _line({"event": event.event, "step": event.step, "time": time, **of, "finding": as_json(event.finding)})


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


def findings_of(events: Iterable[Mapping[str, Any]]) -> list[Finding]:
    """Every finding as its last event has it, in the order in which they were first seen."""
    return [finding_of(event["finding"]) for event in _latest(events)]


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
    brief = [{**event, "finding": {**event["finding"], "rows": [], "consequences": []}} for event in _latest(events)]
    ranked = sorted(brief, key=lambda event: (event["event"] == "ended", -event["step"]))
    totals = accumulate(len(_line(event)) for event in ranked)
    fitting = [event for event, total in zip(ranked, totals, strict=True) if total <= max_bytes]
    return sorted(fitting, key=lambda event: event["step"])


def _latest(events: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The last event of each finding, also if it has moved since its first."""
    latest: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    first: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for event in events:
        known = tuple(event["finding"].get(name) for name in IDENTITY)
        before = tuple(event.get("of", known))
        origin = first.get(before, before)
        first[known] = origin
        latest[origin] = event
    return list(latest.values())


def _line(event: Mapping[str, Any]) -> bytes:
    return json.dumps(event, ensure_ascii=False, allow_nan=False).encode() + b"\n"
