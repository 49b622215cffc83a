"""Findings written by hand, for every test that shows them."""

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
    rule="vanishing-gradient",
    layer="fc1",
    severity="severe",
    basis="measured",
    summary="the gradient of fc1 is 2e-07 of that of fc5.",
    evidence={"ratio": 2e-7, "also at": "fc2"},
    limits={"healthy from": 1e-3},
    reason="Each ReLU halves the signal (He et al. 2015, eq. 10); 95 % of healthy networks are above the threshold.",
    remedy="for m in model.modules():\n    if isinstance(m, nn.Linear):\n        nn.init.kaiming_normal_(m.weight)",
    rows=norms(2e-7, 1e-5, 1e-3, 0.1, 1.0),
)
DEAD = Finding(
    rule="dying-neurons",
    layer=AWKWARD_NAME,
    severity="warning",
    basis="measured",
    summary="3 of 4 ReLUs are zero on every example.",
    evidence={"dead": 3.0, "units": 4.0},
    reason="A unit that is always zero gets no gradient.",
    remedy="nn.LeakyReLU(0.01)",
)
UNSCALED = Finding(
    rule="unscaled-input",
    layer="",
    severity="severe",
    basis="proven",
    summary="the inputs reach 1e5.",
    evidence={"largest": math.inf, "feature": "<3>"},
    reason="One rate suits one scale.",
    remedy="inputs = (inputs - inputs.mean(0)) / inputs.std(0)",
    consequences=(VANISHING, DEAD),
)
DIVERGED = Finding(
    rule="learning-rate-too-high",
    layer="",
    severity="severe",
    basis="tried",
    summary="the loss rises within 4 steps.",
    evidence={"lr": 0.5},
    reason="Above 2/λmax a step overshoots.",
    remedy="",
    rows=tuple(
        Row(step, "", q.TRAINING_LOSS, value, "") for step, value in enumerate([1.0, 2.0, math.nan, 8.0], start=1)
    ),
)
NOTE = Finding(
    rule="full-neurons",
    layer="fc2",
    severity="note",
    basis="measured",
    summary="2 of 4 ReLUs are always on.",
    evidence={"units": 4.0},
    reason="Linear.",
    remedy="pass",
)
MODULES = {"": "Net", "fc1": "Linear", AWKWARD_NAME: "ReLU", "fc2": "Linear", "head": "Linear"}
