"""Training both forms of every case, and every control: whether a fault hurts, and whether the healthy are healthy."""

from __future__ import annotations

from typing import Any

from benchmarks.verdicts.case import Case, Control

CLEARLY = 0.1
"""A faulty form is clearly worse if it scores so much less than the repaired one on average, and less on every seed."""


def verified(case: Case, seeds: int = 3) -> dict[str, Any]:
    """Scores of both forms before and after the same number of steps, from the same seeds."""
    scores: dict[str, list[float]] = {}
    for form, faulty in (("faulty", True), ("repaired", False)):
        programs = [case.build(faulty, seed) for seed in range(seeds)]
        scores[f"{form}_before"] = [round(program.scored(), 4) for program in programs]
        for program in programs:
            program.train(case.steps)
        scores[form] = [round(program.scored(), 4) for program in programs]
    gaps = [repaired - faulty for faulty, repaired in zip(scores["faulty"], scores["repaired"], strict=True)]
    hurts = sum(gaps) / len(gaps) > CLEARLY and min(gaps) > 0
    return {"case": case.name, "number": case.number, "steps": case.steps, **scores, "hurts": hurts}


def trains(control: Control, seeds: int = 3) -> dict[str, Any]:
    """Scores of a control before and after its training."""
    before, after = [], []
    for seed in range(seeds):
        program = control.build(seed)
        before.append(round(program.scored(), 4))
        program.train(control.more - control.steps)
        after.append(round(program.scored(), 4))
    return {"control": control.name, "steps": control.more, "before": before, "after": after,
            "least": control.least, "trains": min(after) >= control.least}  # fmt: skip
