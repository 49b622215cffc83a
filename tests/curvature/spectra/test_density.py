"""The spectral density."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from matrices import network_like, rotated

import wellcond as wc


@pytest.mark.slow
def test_the_quadrature_is_exact_when_lanczos_runs_to_the_end() -> None:
    """With n steps a probe's moments are zᵀAᵏz/‖z‖²; their mean over many probes is tr(Aᵏ)/n to a few per cent."""
    values = np.array([1.0, 2.0, 3.0, -1.0])
    found = wc.density(rotated(values, 0), probes=4000, iterations=4)
    for order in (1, 2, 3):
        assert found.moment(order) == pytest.approx((values**order).mean(), abs=0.2)
    assert torch.allclose(found.weights.sum(1), torch.ones(4000, dtype=torch.float64))


def test_the_density_is_the_smoothed_histogram_of_the_eigenvalues() -> None:
    values = np.random.default_rng(0).normal(size=400)
    found = wc.density(rotated(values, 0), probes=30, iterations=60, width=0.3)
    grid = found.grid.numpy()
    true = np.exp(-0.5 * ((grid[:, None] - values) / 0.3) ** 2).mean(1) / (0.3 * np.sqrt(2 * np.pi))
    assert np.abs(found.density.numpy() - true).max() < 5 * float(found.error.max()) + 1e-3
    assert np.trapezoid(found.density.numpy(), grid) == pytest.approx(1, abs=1e-3)


def test_both_signs_and_isolated_eigenvalues_are_kept() -> None:
    values = network_like(np.random.default_rng(2), 300)
    found = wc.density(rotated(values, 2), probes=4, iterations=50)
    assert float(found.nodes.max()) == pytest.approx(values.max(), rel=1e-6)
    assert float(found.nodes.min()) == pytest.approx(values.min(), rel=1e-2)
