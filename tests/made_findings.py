"""Findings made by hand, for every test that shows them."""

from __future__ import annotations

import math

from wellcond.diagnosis.finding import Finding
from wellcond.results import Row
from wellcond.results import quantities as q

AWKWARD_NAME = ":ok:[red]<b>&2"
"""An emoji code, a style of rich and a tag of HTML, none of which a layer's name may become."""


def norms(*values: float) -> tuple[Row, ...]:
    """The gradient norms of the layers fc1, fc2, …"""
    return tuple(Row(None, f"fc{i}", q.GRADIENT_NORM, value, "") for i, value in enumerate(values, start=1))


VANISHING = Finding(
    "vanishing-gradient",
    "fc1",
    "severe",
    0.93,
    "the gradient of fc1 is 2e-07 of that of fc5.",
    {"ratio": 2e-7, "healthy from": 1e-3, "also at": "fc2"},
    "Each ReLU halves the signal (He et al. 2015, eq. 10); 95 % of healthy networks are above the threshold.",
    "for m in model.modules():\n    if isinstance(m, nn.Linear):\n        nn.init.kaiming_normal_(m.weight)",
    norms(2e-7, 1e-5, 1e-3, 0.1, 1.0),
)
DEAD = Finding(
    "dying-neurons",
    AWKWARD_NAME,
    "warning",
    1.0,
    "3 of 4 ReLUs are zero on every example.",
    {"dead": 3.0, "units": 4.0},
    "A unit that is always zero gets no gradient.",
    "nn.LeakyReLU(0.01)",
)
UNSCALED = Finding(
    "unscaled-input",
    "",
    "severe",
    0.98,
    "the inputs reach 1e5.",
    {"largest": math.inf, "feature": "<3>"},
    "One rate suits one scale.",
    "inputs = (inputs - inputs.mean(0)) / inputs.std(0)",
    consequences=(VANISHING, DEAD),
)
DIVERGED = Finding(
    "learning-rate-too-high",
    "",
    "severe",
    0.9,
    "the loss rises within 4 steps.",
    {"lr": 0.5},
    "Above 2/λmax a step overshoots.",
    "",
    tuple(Row(step, "", q.TRAINING_LOSS, value, "") for step, value in enumerate([1.0, 2.0, math.nan, 8.0], start=1)),
)
NOTE = Finding("full-neurons", "fc2", "note", 0.5, "2 of 4 ReLUs are always on.", {"units": 4.0}, "Linear.", "pass")
MODULES = {"": "Net", "fc1": "Linear", AWKWARD_NAME: "ReLU", "fc2": "Linear", "head": "Linear"}
