"""How often a rule was right: on cases that the rules were not written with, and where its lines were pasted."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from committed import read
from verdict_tables import EXAMINATIONS, REPAIRS, RUN_EXAMINATIONS


def record(rule: str) -> str:
    """What all examinations showed of a rule at first sight, in sentences."""
    faults, sound = _first_results()
    own = [fault for fault in faults if fault["rules"][0] == rule]
    named = [fault for fault in faults if fault["findings"] and fault["findings"][0]["rule"] == rule]
    wrongly = [fault for fault in named if rule not in fault["rules"]]
    accused = sum(any(each["rule"] == rule and each["severity"] == "severe" for each in one) for one in sound)
    right = sum(fault["first"] for fault in own)
    kinds = f"{right} of {len(own)} faults of this kind got the right cause first" if own else "none was of this kind"
    return (
        f"Of the faults that the rules were not written with, {kinds}. It was named first in {len(wrongly)} of all "
        f"{len(faults)} where another cause was meant, and called {accused or 'none'} of {len(sound)} sound set-ups "
        "severely ill. [How these cases were made](../verdicts.md)"
    )


@cache
def _first_results() -> tuple[list[dict[str, Any]], list[list[dict[str, Any]]]]:
    """All faults, and the findings on all that is sound: of diagnoses and of recorded runs."""
    paths = [*EXAMINATIONS.glob("2*/first.json"), *RUN_EXAMINATIONS.glob("2*/first.json")]
    results = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(paths)]
    faults = [fault for result in results for fault in result["faults"]]
    sound = [one["findings"] for result in results for one in (*result.get("sound", ()), *result.get("healthy", ()))]
    return faults, sound + [fault["repaired"]["findings"] for fault in faults if "repaired" in fault]


def example(rule: str) -> str:
    """Lines that a finding of this rule printed for a fault, and what pasting them gained; "" if none were pasted."""
    rows = [row for row in read(REPAIRS)["results"] if row["rule"] == rule and "score" in row["rounds"][0]]
    if not rows:
        return ""
    row = max(rows, key=lambda row: row["rounds"][0]["score"] - row["faulty"])
    first = row["rounds"][0]
    return (
        f"For the fault “{row['title']}”, these lines bring the score from {row['faulty']:.2f} to {first['score']:.2f} "
        f"(1 is perfect):\n\n```py\n{first['lines']}\n```"
    )
