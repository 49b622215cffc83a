"""Runs made by hand, for every test that shows one."""

from __future__ import annotations

import math

import numpy as np

from wellcond.diagnosis.finding import Finding
from wellcond.recording.history import History
from wellcond.recording.run import Run
from wellcond.results import Row
from wellcond.results import quantities as q

HOSTILE = "</script><script>document.title='hacked'</script><img src=x onerror=alert(1)>"
"""A layer's name that would run as a script if it were not escaped."""


def training_rows(steps: int, spike: int = 700) -> list[Row]:
    """The loss of a run with a spike, NaN at two steps, and a rate that rises above its limit."""
    random = np.random.default_rng(0)
    rows = []
    for step in range(1, steps + 1):
        loss = 0.3 + 2 * math.exp(-step / 300) + 0.05 * random.normal()
        loss += 6 * math.exp(-abs(step - spike) / 5)
        rows.append(Row(step, "", q.TRAINING_LOSS, math.nan if step in (900, 901) else loss, ""))
        if step == 1 or step % 100 == 0:
            rows.append(Row(step, "", q.LR, 0.1 * min(step / 400, 1.0) + 0.01, "lr"))
            limit = 0.25 - 0.15 * step / steps
            rows += [
                Row(step, "", name, limit * factor, "lr")
                for name, factor in ((q.MAX_LR, 1), (q.MAX_LR_LOW, 0.9), (q.MAX_LR_HIGH, 1.1))
            ]
        if step % 50 == 0:
            rows.append(Row(step, "", q.VALIDATION_LOSS, loss + step / 4000, ""))
            rows.append(Row(step, "", q.GRADIENT_NORM, 1 + random.random(), ""))
            rows.append(Row(step, "", q.UNCLIPPED_GRADIENT_NORM, 2 + random.random(), ""))
            rows.append(Row(step, "", q.HESSIAN.lambda_max, 10 + step / 100, ""))
    return rows


def layer_rows(layers: list[str], steps: range) -> list[Row]:
    """Five quantities of every layer; gradients fall with depth, and units die over time."""
    rows = []
    for step in steps:
        for depth, layer in enumerate(layers):
            share = depth / max(len(layers) - 1, 1)
            values = {
                q.GRADIENT_NORM: math.nan if step >= 900 and depth == 2 else 10 ** (-4 * share) * (1 + step % 7 / 7),
                q.UPDATE_RATIO: 1e-3 * (1 + share),
                q.SIGNAL_RMS: 1.0 + share,
                q.WEIGHT_NORM: 4.0,
            }
            if depth % 2:
                values |= {q.DEAD_SHARE: min(step / 2000, 1.0) * share, q.SATURATED_SHARE: 0.0}
            rows += [Row(step, layer, name, value, "") for name, value in values.items()]
    return rows


def findings(layer: str) -> tuple[Finding, ...]:
    """Findings that are still there and one that ended, on the network and on a layer."""
    return (
        Finding(
            rule="dying-neurons",
            layer=layer,
            severity="severe",
            summary=f"62 % of the units of {layer} are off on every example since step 400.",
            evidence={"dead share": 0.62, "units": 64.0},
            limits={"warning from": 0.3},
            reason="A unit that is always zero gets no gradient, and never comes back.",
            remedy="nn.LeakyReLU(0.01)",
            step=400,
        ),
        Finding(
            rule="learning-rate-too-high",
            severity="warning",
            summary="the rate is 1.2 × its limit since step 1000.",
            evidence={"lr": 0.11, "limit": 0.09},
            reason="Above 2(1+μ)/λmax a step overshoots.",
            remedy="# lower the rate to 0.08",
            step=1000,
        ),
        Finding(
            rule="loss-spike",
            severity="warning",
            summary="the loss rises from 0.5 to 6.5 at step 700 and comes back within 20 steps.",
            evidence={"before": 0.5, "peak": 6.5},
            reason="One batch is unlike the others.",
            remedy="# look at the batch of step 700",
            step=695,
            until=720,
        ),
        Finding(rule="overfitting", severity="note", summary="validation is 0.3 above training.", step=1100),
    )


def manifest(modules: dict[str, str]) -> dict[str, object]:
    return {
        "schema": 1,
        "created": 1.7e9,
        "budget": 0.05,
        "optimizer": {"class": "SGD", "groups": [{"lr": 0.1, "momentum": 0.9}]},
        "model": [
            {"name": name, "type": kind, "parameters": 1000 + i} for i, (name, kind) in enumerate(modules.items())
        ],
    }


def small_run(layer: str = "body.3") -> Run:
    """A run of 1200 steps of a network with ten layers, one of which has a name of your choice."""
    layers = [f"body.{i}" for i in range(9)]
    layers[3:4] = [layer]
    modules = {"": "Net", "body": "Sequential"} | {each: "ReLU" if i % 2 else "Linear" for i, each in enumerate(layers)}
    rows = training_rows(1200) + layer_rows(layers, range(10, 1201, 10))
    return Run.of(History(rows), findings(layer), manifest(modules))
