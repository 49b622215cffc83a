"""The spectral density."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from matrices import network_like, rotated

import wellcond as wc
from wellcond.curvature.spectra.lanczos import noise


def test_the_quadrature_is_exact_when_lanczos_runs_to_the_end() -> None:
    """With n steps a probe's moments are zᵀAᵏz/‖z‖², to rounding; their mean over Gaussian z is tr(Aᵏ)/n."""
    matrix, generator = rotated(np.array([1.0, 2.0, 3.0, -1.0]), 0), torch.Generator().manual_seed(5)
    estimate = wc.density(matrix, probes=10, iterations=4, seed=5)
    starts = [noise(4, 1, generator, matrix)[:, 0] for _ in range(10)]
    for order in (1, 2, 3):
        power = torch.linalg.matrix_power(matrix, order)
        expected = [float(z @ power @ z / (z @ z)) for z in starts]
        moments = (estimate.weights * estimate.nodes**order).sum(1)
        assert moments.tolist() == pytest.approx(expected, rel=1e-10)
        assert estimate.moment(order) == pytest.approx(sum(expected) / 10, rel=1e-10)
    assert torch.allclose(estimate.weights.sum(1), torch.ones(10, dtype=torch.float64))


@pytest.mark.slow
def test_the_density_is_the_smoothed_histogram_of_the_eigenvalues() -> None:
    values = np.random.default_rng(0).normal(size=400)
    estimate = wc.density(rotated(values, 0), probes=30, iterations=60, width=0.3)
    grid = estimate.grid.numpy()
    true = np.exp(-0.5 * ((grid[:, None] - values) / 0.3) ** 2).mean(1) / (0.3 * np.sqrt(2 * np.pi))
    assert np.abs(estimate.density.numpy() - true).max() < 5 * float(estimate.error.max()) + 1e-3
    assert np.trapezoid(estimate.density.numpy(), grid) == pytest.approx(1, abs=1e-3)


def test_both_signs_and_isolated_eigenvalues_are_kept() -> None:
    values = network_like(np.random.default_rng(2), 300)
    estimate = wc.density(rotated(values, 2), probes=4, iterations=50)
    assert float(estimate.nodes.max()) == pytest.approx(values.max(), rel=1e-6)
    assert float(estimate.nodes.min()) == pytest.approx(values.min(), rel=1e-2)
