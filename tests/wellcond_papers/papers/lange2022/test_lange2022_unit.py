"""The Hessian of one output unit: dead units, and the preconditioner that BNP applies."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from zoo import integers, normal

from wellcond.optim.bnp import BNP
from wellcond_papers.models import mlp
from wellcond_papers.papers.lange2022.unit import Preconditioner, conditioning, hessian_factor

EXACT = {"rtol": 1e-12, "atol": 1e-14}


@pytest.fixture
def batch() -> tuple[nn.Sequential, Tensor, Tensor]:
    """A network with one dead unit in its last hidden layer, and 30 examples."""
    model = mlp([6, 9, 5, 4], init="glorot", seed=0).double()
    nn.init.constant_(model.fc2.bias, 0.3)
    model.fc2.bias.data[2] = -100.0
    return model, normal(30, 6), integers(4, 30)


def matrix(mean: Tensor, inverse: Tensor) -> Tensor:
    """P = U D, written out."""
    U = torch.eye(6).double()
    U[0, 1:] = -mean
    return U @ torch.diag(torch.cat([torch.ones(1).double(), inverse]))


def test_a_dead_unit_is_zero_in_d_and_not_in_its_condition_number(batch: tuple[nn.Sequential, Tensor, Tensor]) -> None:
    model, x, _ = batch
    h = model[:-1](x).detach()
    factor = hessian_factor(h, model(x).detach())
    preconditioner = Preconditioner.of(h)
    mu = h.mean(0)
    sigma = ((h - mu) ** 2).mean(0).sqrt()
    assert (sigma == 0).nonzero().tolist() == [[2]]
    inverse = torch.tensor([0.0 if value == 0 else 1 / value for value in sigma.tolist()], dtype=torch.float64)
    torch.testing.assert_close(preconditioner.applied_to(factor), factor @ matrix(mu, inverse), **EXACT)
    live = sigma[sigma > 0]
    expected = float(max(live.max(), 1.0) / min(live.min(), 1.0))
    assert preconditioner.condition_number() == pytest.approx(expected, rel=1e-12)


def test_bnps_preconditioner_is_the_one_its_step_applies(batch: tuple[nn.Sequential, Tensor, Tensor]) -> None:
    model, x, y = batch
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    bnp = BNP(model, optimizer, rho=0.9)
    for _ in range(2):
        foreseen = Preconditioner.of_next_step(bnp, "fc3", model[:-1](x).detach())
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        plain = torch.cat([model.fc3.bias.grad[:, None], model.fc3.weight.grad], 1)
        optimizer.step()
    P = matrix(foreseen.mean, 1 / foreseen.scale)
    applied = torch.cat([model.fc3.bias.grad[:, None], model.fc3.weight.grad], 1)
    torch.testing.assert_close(applied, plain @ P @ P.T, **EXACT)  # q² = max(5/30, 1) = 1


def test_the_condition_number_is_over_nonzero_singular_values() -> None:
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.linalg.qr(torch.randn(n, n, generator=generator).double()).Q for n in (4, 7))
    values = torch.tensor([1e3, 10.0, 1e-4, 0.0]).double()
    kappa, rank = conditioning(left @ torch.diag(values) @ right[:4])
    # AᵀA has a κ of 10¹⁴, which its own eigenvalues, exact to 10⁻¹⁶ of the largest, would give to two digits
    assert kappa == pytest.approx(1e14, rel=1e-6)
    assert rank == 3
