"""The rows behind findings that bring none: the same number of every layer, or the losses of the short runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.inspection.inspect import Inspection
from wellcond.diagnosis.inspection.signals import Signal
from wellcond.results import Row
from wellcond.results.quantities import (
    DEAD_SHARE,
    FULL_SHARE,
    INPUT,
    SATURATED_SHARE,
    SENSITIVITY,
    SIGNAL_RMS,
    TRAINING_LOSS,
    VARIATION,
)

Number = Callable[[Signal], float | None]


def _share(units: Signal, which: str) -> float | None:
    chosen = getattr(units, which)
    return float(chosen.double().mean()) if len(chosen) else None


OF_LAYERS: dict[str, tuple[str, Number]] = {
    "vanishing-gradient": (SENSITIVITY, lambda signal: signal.sensitivity if signal.is_weighted else None),
    "exploding-gradient": (SENSITIVITY, lambda signal: signal.sensitivity if signal.is_weighted else None),
    "activation-drift": (SIGNAL_RMS, lambda signal: signal.rms if signal.is_weighted else None),
    "rank-collapse": (VARIATION, lambda signal: signal.variation),
    "dying-neurons": (DEAD_SHARE, lambda signal: _share(signal, "dead")),
    "full-neurons": (FULL_SHARE, lambda signal: _share(signal, "full")),
    "saturated-activation": (SATURATED_SHARE, lambda signal: signal.saturated),
}
"""By rule, what of a layer it judges."""
OF_CONDITIONING = ("ill-conditioned-input",)
OF_RUNS = (
    "learning-rate-too-high",
    "learning-rate-too-low",
    "loss-not-decreasing",
    "diverging",
    "labels-unrelated",
    "weight-decay-dominates",
    "dropout-too-strong",
)
"""Rules that judge the loss over a run with the optimizer as it is."""


def illustrated(findings: Iterable[Finding], evidence: Evidence) -> tuple[Finding, ...]:
    """The findings, each with rows; those that a rule gave are kept.

    Args:
        findings: What was found.
        evidence: What it was found in.
    """
    return tuple(
        replace(
            each,
            rows=each.rows or tuple(_rows(each.rule, evidence)),
            consequences=illustrated(each.consequences, evidence),
        )
        for each in findings
    )


def _rows(rule: str, evidence: Evidence) -> Iterable[Row]:
    if rule in OF_LAYERS and evidence.inspection is not None:
        return _of_layers(evidence.inspection, *OF_LAYERS[rule])
    if rule in OF_CONDITIONING and evidence.conditioning is not None:
        return [row for row in evidence.conditioning.rows() if row.quantity == INPUT.kappa[0.5] and row.layer]
    if rule in OF_RUNS and evidence.trial is not None and evidence.trial.own is not None:
        losses = evidence.trial.own.run.losses
        return [Row(step, "", TRAINING_LOSS, loss, "") for step, loss in enumerate(losses, start=1)]
    return ()


def _of_layers(inspection: Inspection, quantity: str, number: Number) -> Iterable[Row]:
    found = {
        signal.name: value for signal in inspection.signals if (value := number(signal)) is not None and signal.name
    }
    return [Row(None, name, quantity, float(value), "") for name, value in found.items()]
