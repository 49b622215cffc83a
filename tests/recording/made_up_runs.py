"""Runs of made-up numbers, for rules and the course of findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from wellcond.diagnosis.finding import Finding
from wellcond.recording import rules  # noqa: F401  registers them
from wellcond.recording.history import History
from wellcond.recording.judging.run_rule import RUN_RULES, RunEvidence
from wellcond.results import Row

STEPS = 2000
EVERY = 20
"""Steps between two samples of a layer."""


def learning(steps: int = STEPS, noise: float = 0.05, seed: int = 0) -> np.ndarray:
    """A loss that falls from 2.3 to 0.3, with noise."""
    t = np.arange(steps)
    return 0.3 + 2.0 * np.exp(-t / 150) + noise * np.random.default_rng(seed).standard_normal(steps)


def sampled(function: ArrayLike) -> dict[int, float]:
    """Every 20th number of a series over all steps, by its step."""
    values = np.asarray(function, float)
    return {step: float(values[step - 1]) for step in range(EVERY, len(values) + 1, EVERY)}


def evidence(
    losses: ArrayLike,
    quantities: Mapping[tuple[str, str], Mapping[int, float]] | None = None,
    inspected: Sequence[Finding] = (),
    inspected_at: int | None = None,
) -> RunEvidence:
    """A run with these losses, and numbers of layers by quantity, layer and step."""
    values = np.asarray(losses, float)
    history = History(Row(step, "", "training_loss", float(loss), "") for step, loss in enumerate(values, start=1))
    layers: dict[str, None] = {}
    for (quantity, layer), series in (quantities or {}).items():
        history.add(Row(step, layer, quantity, float(value), "") for step, value in series.items())
        layers |= {layer: None} if layer else {}
    return RunEvidence(history, len(values), tuple(layers), "SGD", tuple(inspected), inspected_at)


def by(rule: str, run: RunEvidence) -> list[Finding]:
    """What one rule says of a run."""
    return [finding for each in RUN_RULES[rule] for finding in each.judge(run)]
