"""Thresholds of symptoms lie beyond what healthy networks show, as measured by `benchmarks/verdicts/healthy_zoo.py`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from wellcond.diagnosis import rules
from wellcond.diagnosis.rules import activations, data, gradients, scales

HEALTHY = json.loads((Path(rules.__file__).parent / "healthy.json").read_text(encoding="utf-8"))["quantities"]


@pytest.mark.parametrize(
    ("quantity", "threshold"),
    [
        ("dead units, relu", activations.DYING),
        ("full units, relu", activations.FULL),
        ("attention: standard deviation of logits", activations.LARGE_LOGITS),
        ("gain, weight", scales.LARGE_GAIN),
        ("gain, recurrent", scales.LARGE_GAIN),
        ("RMS: largest / smallest layer", scales.DRIFTED),
        ("inputs: RMS", data.LARGER_INPUT),
        ("inputs: largest / median feature", data.DOMINANCE),
        ("sensitivity: first / last layer", gradients.GROWING),
    ],
)
def test_no_healthy_network_is_above(quantity: str, threshold: float) -> None:
    assert HEALTHY[quantity]["max"] < threshold


@pytest.mark.parametrize(
    ("quantity", "threshold"),
    [
        ("sensitivity: first / last layer", gradients.VANISHED),
        ("variation, Linear", activations.SIMILAR),
        ("gain, weight", scales.SMALL_GAIN),
    ],
)
def test_no_healthy_network_is_below(quantity: str, threshold: float) -> None:
    assert HEALTHY[quantity]["min"] > threshold
