"""Random cases over several processes, and the table of what came of them."""

from __future__ import annotations

import collections
import multiprocessing
import random
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from stress.bounds import rates, run_bounds
from stress.case import Outcome, random_case
from stress.checks import random_checks

SEEDS_APART = 1_000_000
"""Case i of seed s has the seed s · SEEDS_APART + i."""
Job = tuple[list[int], str]
"""Seeds and the device."""
ENOUGH, MOST_REFUSALS = 30, 0.4
"""A function that was asked so often and refused a larger share is of no use."""
PART = 20
"""Cases that a process takes at once."""


def run_case(seed: int, device: str) -> tuple[str, list[Outcome]]:
    """What is the case of this seed, and what came of each of its checks."""
    case = random_case(seed, device)
    return case.describe(), list(case.run(random_checks(case, random.Random(seed + 1))))


def run_part(job: Job) -> list[tuple[int, str, list[Outcome]]]:
    torch.set_num_threads(1)
    seeds, device = job
    return [(seed, *run_case(seed, device)) for seed in seeds]


@dataclass
class Report:
    """What came of all checks so far, by kind; refusals by their reason."""

    kinds: collections.Counter[str] = field(default_factory=collections.Counter)
    reasons: collections.Counter[str] = field(default_factory=collections.Counter)
    failures: list[str] = field(default_factory=list)
    bounds: list[bool] = field(default_factory=list)
    asked: dict[str, tuple[int, int]] = field(default_factory=dict)

    def add(self, outcome: Outcome, case: str, command: str) -> None:
        self.kinds[outcome.kind] += 1
        name = re.split(r"[ (.]", outcome.check)[0]
        refused, asked = self.asked.get(name, (0, 0))
        self.asked[name] = refused + (outcome.kind == "refused"), asked + 1
        if outcome.held is not None:
            self.bounds.append(outcome.held)
        if outcome.kind == "refused":
            self.reasons[re.sub(r"'[^']*'|[\d,.]+", "…", outcome.text)[:110]] += 1
        if outcome.is_failure:
            text = f"{outcome.kind.upper()} {outcome.check}, {case}\n    {outcome.text[:500]}\n    {command}"
            self.failures.append(text)
            print(text, flush=True)

    def refusing(self) -> list[str]:
        """Functions that refuse most of what they are asked."""
        return [
            f"{name} refused {refused} of {asked} times"
            for name, (refused, asked) in sorted(self.asked.items())
            if asked >= ENOUGH and refused > MOST_REFUSALS * asked
        ]

    def __str__(self) -> str:
        total = sum(self.kinds.values())
        lines = [f"{total} checks: " + ", ".join(f"{n} {kind}" for kind, n in self.kinds.most_common())]
        missed = len(self.bounds) - sum(self.bounds)
        lines.append(f"{len(self.bounds)} stated bounds in random cases, {missed} missed")
        lines += [f"{n:7} refused: {reason}" for reason, n in self.reasons.most_common(25)]
        return "\n".join(lines)


def run_random(seeds: list[int], device: str, jobs: int, report: Report) -> None:
    """All cases, in parts; progress is printed about every ten seconds."""
    started = messages = time.time()
    done = 0
    for part in _results(run_part, seeds, device, jobs):
        for seed, case, outcomes in part:
            for outcome in outcomes:
                report.add(outcome, case, f"python -m stress --case {seed} --device {device}")
        done += len(part)
        if time.time() - messages > 10:
            messages = time.time()
            print(f"… {done} of {len(seeds)} random cases, {messages - started:.0f} s", flush=True)


def run_rates(seeds: list[int], device: str, jobs: int, report: Report) -> None:
    """All runs of stated bounds; a rate that is too high is a failure."""
    runs = [run for part in _results(run_bounds, seeds, device, jobs) for run in part]
    for rate in rates(runs):
        print(rate)
        if rate.is_failure:
            report.failures.append(str(rate))


def _results(work: Callable[[Job], list[Any]], seeds: list[int], device: str, jobs: int) -> Iterator[list[Any]]:
    parts = [(seeds[i : i + PART], device) for i in range(0, len(seeds), PART)]
    if jobs == 1:
        yield from map(work, parts)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(work, parts)
