"""Figures I and III of huang2020, small."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from wellcond.experiments.huang2020_fisher import NORMS, draw, fisher_conditioning
from wellcond.models.mlp import Norm
from wellcond.results.quantities import FISHER

DATA = os.environ.get("WELLCOND_DATA")
needs_mnist = pytest.mark.skipif(
    DATA is None or not (Path(DATA) / "MNIST").exists(), reason="WELLCOND_DATA names no folder with MNIST"
)


@needs_mnist
@pytest.mark.parametrize("norm", ["none", "batch"])
def test_the_layers_blocks_share_out_the_full_matrix(norm: Norm) -> None:
    rows = fisher_conditioning(3, norm, data=DATA, examples=30, units=6)
    values = {(row.layer, row.quantity): row.value for row in rows}
    layers = ["fc1", "fc2", "fc3"]
    traces = [values[layer, FISHER.trace] for layer in layers]
    # the trace of a matrix is that of its diagonal blocks, and a block's spectrum lies inside the whole one's
    assert math.isclose(sum(traces), values["", FISHER.trace], rel_tol=1e-9)
    assert all(values[layer, FISHER.lambda_max] <= values["", FISHER.lambda_max] * (1 + 1e-9) for layer in layers)
    assert values["", FISHER.rank] <= 30 * 9


@needs_mnist
@pytest.mark.slow
def test_the_picture_has_three_panels_per_figure() -> None:
    networks = {name: fisher_conditioning(4, norm, data=DATA, examples=20, units=4) for name, norm in NORMS.items()}
    assert len(draw({"I": networks, "III": networks}).axes) == 6
