from __future__ import annotations

import math

import pytest
import torch

from wellcond_papers.data.synthetic import gaussian, linear_teacher


def test_gaussian_inputs_have_mean_0_and_variance_1_and_a_seed() -> None:
    before = torch.get_rng_state()
    x = gaussian(200, 3, 8, 8, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    n = x.numel()
    assert abs(x.mean().item()) < 5 / math.sqrt(n)
    assert x.var().item() == pytest.approx(1, rel=5 * math.sqrt(2 / n))
    assert torch.equal(x, gaussian(200, 3, 8, 8, seed=1))
    assert not torch.equal(x, gaussian(200, 3, 8, 8, seed=2))
    assert torch.equal(x, gaussian(200, 3, 8, 8, seed=1, dtype=torch.float64).float())


def test_a_linear_teacher_is_a_matrix_with_entries_of_variance_1() -> None:
    x, y = linear_teacher(500, 40, seed=0, dtype=torch.float64)
    assert x.shape == y.shape == (500, 40)
    a = torch.linalg.lstsq(x, y).solution.T
    torch.testing.assert_close(x @ a.T, y)
    assert a.var().item() == pytest.approx(1, rel=5 * math.sqrt(2 / a.numel()))
    # the matrix is not made of the inputs
    assert abs((a * x[:40]).mean().item()) < 5 / 40
