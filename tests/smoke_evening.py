"""An evening over two experiments at smoke scale, which can be killed at any time: `python smoke_evening.py FOLDER`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.evening.evening import Evening
from benchmarks.evening.plan import Plan
from benchmarks.evening.queue import Entry

ENTRIES = (
    Entry("lange2022-fig3", "one question", 0.01, lambda s: "CIFAR-10" in s["arm"], scale="smoke", checkpoint=1),
    Entry("santurkar2018-fig8", "another", 0.01, scale="smoke"),
)


def plan_in(folder: Path) -> Plan:
    return Plan(ENTRIES, folder / "rows", folder / "runs")


def evening_in(folder: Path, **options: Any) -> Evening:
    return Evening(plan_in(folder), folder / "data", "cpu", workers=1, out=folder / "out", **options)


if __name__ == "__main__":
    os.sched_setaffinity(0, {0})  # one thread computes the same numbers everywhere
    evening_in(Path(sys.argv[1])).run(5)
