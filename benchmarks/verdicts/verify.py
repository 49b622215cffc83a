"""Training both forms of every case, and every control: whether a fault hurts, and whether the healthy are healthy."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from benchmarks.verdicts.cases import CASES
from benchmarks.verdicts.controls import CONTROLS

CLEARLY = 0.1
"""A faulty form is clearly worse if it scores so much less than the repaired one on average, and less on every seed."""


def verify_case(name: str, seeds: int = 3) -> dict[str, Any]:
    """Scores of both forms before and after the same number of steps, from the same seeds."""
    torch.set_num_threads(1)
    case = CASES[name]
    scores: dict[str, list[float]] = {}
    for form, faulty in (("faulty", True), ("repaired", False)):
        programs = [case.build(faulty, seed) for seed in range(seeds)]
        scores[f"{form}_before"] = [round(program.scored(), 4) for program in programs]
        for program in programs:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # some of the faults warn
                program.train(case.steps)
        scores[form] = [round(program.scored(), 4) for program in programs]
    gaps = [repaired - faulty for faulty, repaired in zip(scores["faulty"], scores["repaired"], strict=True)]
    hurts = sum(gaps) / len(gaps) > CLEARLY and min(gaps) > 0
    return {"name": case.name, "number": case.number, "steps": case.steps, **scores, "hurts": hurts}


def verify_control(name: str, seeds: int = 3) -> dict[str, Any]:
    """Scores of a control before and after its training."""
    torch.set_num_threads(1)
    control = CONTROLS[name]
    before, after = [], []
    for seed in range(seeds):
        program = control.build(seed)
        before.append(round(program.scored(), 4))
        program.train(control.more - control.steps)
        after.append(round(program.scored(), 4))
    return {"name": control.name, "steps": control.more, "before": before, "after": after,
            "least": control.least, "trains": min(after) >= control.least}  # fmt: skip
