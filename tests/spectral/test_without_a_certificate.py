"""Eigenvalues that stop on the residual: what they cost, what they say, and how often they are wrong."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from matrices import rotated
from torch import Tensor, nn

import wellcond as wc
from wellcond.curvature.operator import LinearOperator
from wellcond.curvature.preconditioned import Preconditioned
from wellcond.models import mlp


def small(seed: int, batches: int = 1) -> wc.Problem:
    """At initialisation, or after 50 steps."""
    generator = torch.Generator().manual_seed(seed)
    model = mlp([10, 16, 16, 4], init=("default", "he", "lecun")[seed % 3], seed=seed).double()
    x = torch.randn(64, 10, generator=generator).double()
    y = torch.randint(0, 4, (64,), generator=generator)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for _ in range(50 * (seed % 2)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return wc.Problem(model, nn.CrossEntropyLoss(), list(zip(x.chunk(batches), y.chunk(batches), strict=True)))


def flat_gradient(problem: wc.Problem) -> Tensor:
    """Of the mean loss, by backward()."""
    model = problem.model
    model.zero_grad()
    sum(problem.loss(model(x), y) for x, y in problem.batches).div(len(problem.batches)).backward()
    gradient = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
    model.zero_grad()
    return gradient


class Recorded(LinearOperator):
    """A matrix that keeps what it is multiplied with."""

    def __init__(self, matrix: Tensor, start: Tensor | None) -> None:
        self.matrix, self.start, self.seen = matrix, start, []

    shape = property(lambda self: tuple(self.matrix.shape))
    dtype = property(lambda self: self.matrix.dtype)
    device = property(lambda self: self.matrix.device)

    def layer(self, *names: str) -> LinearOperator:
        raise NotImplementedError

    def likely_start(self) -> Tensor | None:
        return self.start

    def _multiply(self, columns: Tensor) -> Tensor:
        self.seen.append(columns[:, 0].clone())
        return self.matrix @ columns

    def products_of_an_oracle(self, tol: float) -> int:
        true = float(torch.linalg.eigvalsh(self.matrix)[-1])
        basis = torch.linalg.qr(torch.stack(self.seen, 1)).Q
        for m in range(1, len(self.seen) + 1):
            ritz = torch.linalg.eigvalsh(basis[:, :m].T @ self.matrix @ basis[:, :m])[-1]
            if abs(float(ritz) - true) <= tol * true:
                return m
        return len(self.seen)


def test_it_stops_within_three_products_of_an_oracle_and_seldom_too_early() -> None:
    false = products = certified = 0
    for seed in range(20):
        problem = small(seed)
        matrix = wc.Hessian(problem).dense()
        recorded = Recorded(matrix, wc.Hessian(problem).likely_start())
        found = wc.eigenvalues(recorded, tol=1e-3, confidence=None, seed=seed)
        true = float(torch.linalg.eigvalsh(matrix)[-1])
        is_false = abs(float(found.values[-1]) - true) > 1e-3 * true
        false += is_false
        assert found.converged
        assert is_false or found.matvecs <= recorded.products_of_an_oracle(1e-3) + 3
        products += found.matvecs
        certified += wc.eigenvalues(matrix, tol=1e-3, seed=seed).matvecs
    assert false <= 1
    assert products < certified


def test_the_status_says_what_the_errors_are() -> None:
    matrix = rotated(np.linspace(0, 1, 50), 0)
    found = wc.eigenvalues(matrix, tol=1e-2, confidence=None)
    assert "stopped on the residual" in found.status
    assert "larger ones may hide" in found.status
    vector = found.vectors[:, -1]
    residual = float((matrix @ vector - found.values[-1] * vector).norm())
    assert float(found.errors[-1]) == pytest.approx(residual, rel=1e-6)
    closest = float((torch.linalg.eigvalsh(matrix) - found.values[-1]).abs().min())
    assert closest <= float(found.errors[-1])


def test_two_close_eigenvalues_fool_it_and_not_the_certificate() -> None:
    """The price of no certificate, as its docstring states it."""
    false = 0
    for seed in range(40):
        values = np.concatenate([[1.0, 1 - 3e-3], np.random.default_rng(seed).uniform(0, 0.3, 98)])
        matrix = rotated(values, seed)
        false += abs(float(wc.eigenvalues(matrix, confidence=None, seed=seed).values[-1]) - 1) > 1e-3
        assert abs(float(wc.eigenvalues(matrix, seed=seed).values[-1]) - 1) <= 1e-3
    assert 0 < false < 30


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.999999])
def test_any_confidence_can_be_asked_for(confidence: float) -> None:
    matrix = rotated(np.linspace(0, 1, 300), 0)
    found, usual = wc.eigenvalues(matrix, tol=1e-2, confidence=confidence), wc.eigenvalues(matrix, tol=1e-2)
    assert (found.matvecs > usual.matvecs) == (confidence > 0.99)
    assert abs(float(found.values[-1]) - 1) <= float(found.errors[-1])


@pytest.mark.parametrize("confidence", [0, 1, -0.5, 2.0])
def test_a_confidence_is_a_probability(confidence: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        wc.eigenvalues(torch.eye(3), confidence=confidence)


# the start


@pytest.mark.parametrize("batches", [1, 4])
@pytest.mark.parametrize("kind", [wc.Hessian, wc.GGN, wc.Fisher])
def test_the_start_is_the_gradient(kind: type, batches: int) -> None:
    problem = small(1, batches)
    expected = flat_gradient(problem)
    operator = kind(problem)
    assert torch.allclose(operator.likely_start(), expected, atol=1e-12)
    block = operator.layer(operator.names[2])
    size = block.shape[0]
    begin = sum(p.numel() for p in list(problem.params.values())[:2])
    assert torch.allclose(block.likely_start(), expected[begin : begin + size], atol=1e-12)
    assert torch.allclose((2 * operator + operator).likely_start(), 3 * expected, atol=1e-12)


def test_the_start_of_a_preconditioned_matrix_is_scaled() -> None:
    problem = small(2)
    hessian = wc.Hessian(problem)
    name = hessian.names[0]
    scale = {name: torch.full((), 4.0)}
    rows = problem.params[name].numel()
    expected = 2 * flat_gradient(problem)[:rows]
    found = Preconditioned(hessian, scale, {name: torch.zeros(())}).likely_start()
    assert torch.allclose(found, expected, atol=1e-12)


def test_on_one_batch_the_start_costs_no_pass() -> None:
    problem = small(0)
    wc.Hessian(problem) @ torch.ones(problem.size).double()
    one = problem.cost.u
    before = problem.cost.u
    hessian = wc.Hessian(problem)
    hessian.likely_start()
    hessian @ torch.ones(problem.size).double()
    assert problem.cost.u - before <= one


def test_a_gradient_of_zero_or_nan_is_no_start() -> None:
    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.zeros(3, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.w.abs().sqrt()[:, None]

    x, y = torch.ones(4, 3).double(), torch.ones(4, 1).double()
    assert wc.Hessian(wc.Problem(Root(), nn.MSELoss(), (x, y))).likely_start() is None
    still = nn.Linear(3, 1, bias=False).double()
    nn.init.zeros_(still.weight)
    problem = wc.Problem(still, nn.MSELoss(), (x, torch.zeros(4, 1).double()))
    found = wc.eigenvalues(wc.Hessian(problem), confidence=None)
    assert float(found.values[-1]) == pytest.approx(6.0)


def test_a_seed_fixes_the_numbers() -> None:
    hessian = wc.Hessian(small(3))
    runs = [wc.eigenvalues(hessian, confidence=None, seed=seed, max_matvecs=3).values for seed in (0, 0, 1)]
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


def test_warm_starts_save_products() -> None:
    hessian = wc.Hessian(small(1))
    cold = wc.eigenvalues(hessian, confidence=None)
    warm = wc.eigenvalues(hessian, confidence=None, start=cold.vectors)
    assert warm.matvecs < cold.matvecs
