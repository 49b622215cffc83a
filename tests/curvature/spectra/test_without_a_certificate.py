"""Eigenvalues that stop on the residual: what they cost, what they say, and how often they are wrong."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
import torch
from matrices import rotated
from references import flat_parameters, network
from torch import Tensor, nn
from torch.autograd.functional import hessian

import wellcond as wc
from wellcond.curvature import likely_start
from wellcond.curvature.operator import LinearOperator
from wellcond.learning_rate.limits.preconditioned import Preconditioned
from wellcond_papers.models import mlp


def small(seed: int, batches: int = 1) -> wc.Problem:
    """At initialization, or after 50 steps."""
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
    """Gradient of the mean loss, by backward()."""
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


def dense(problem: wc.Problem) -> Tensor:
    (x, y), model = problem.batches[0], problem.model
    return hessian(lambda theta: problem.loss(network(model, x)(theta), y), flat_parameters(model), vectorize=True)


@pytest.mark.slow
def test_it_stops_within_three_products_of_an_oracle_and_seldom_too_early() -> None:
    false = products = certified = 0
    for seed in range(20):
        problem = small(seed)
        matrix = dense(problem)
        recorded = Recorded(matrix, wc.Hessian(problem).likely_start())
        top = wc.eigenvalues(recorded, tol=1e-3, confidence=None, seed=seed)
        true = float(torch.linalg.eigvalsh(matrix)[-1])
        is_false = abs(float(top.values[-1]) - true) > 1e-3 * true
        false += is_false
        assert top.converged
        assert is_false or top.matvecs <= recorded.products_of_an_oracle(1e-3) + 3
        products += top.matvecs
        certified += wc.eigenvalues(matrix, tol=1e-3, seed=seed).matvecs
    assert false <= 1
    assert products < certified


def test_the_status_says_what_the_errors_are() -> None:
    matrix = rotated(np.linspace(0, 1, 50), 0)
    top = wc.eigenvalues(matrix, tol=1e-2, confidence=None)
    assert "stopped on the residual" in top.status
    assert "larger ones may hide" in top.status
    vector = top.vectors[:, -1]
    residual = float((matrix @ vector - top.values[-1] * vector).norm())
    assert float(top.errors[-1]) == pytest.approx(residual, rel=1e-6)
    closest = float((torch.linalg.eigvalsh(matrix) - top.values[-1]).abs().min())
    assert closest <= float(top.errors[-1])


@pytest.mark.slow
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
    result, usual = wc.eigenvalues(matrix, tol=1e-2, confidence=confidence), wc.eigenvalues(matrix, tol=1e-2)
    assert (result.matvecs > usual.matvecs) == (confidence > 0.99)
    assert abs(float(result.values[-1]) - 1) <= float(result.errors[-1])


@pytest.mark.parametrize("confidence", [0, 1, -0.5, 2.0])
def test_a_confidence_is_a_probability(confidence: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        wc.eigenvalues(torch.eye(3), confidence=confidence)


# the start


class WholeBatch(nn.Module):
    """Refuses a part of its batch."""

    def __init__(self, model: nn.Module, size: int) -> None:
        super().__init__()
        self.model, self.size = model, size

    def forward(self, x: Tensor) -> Tensor:
        if len(x) != self.size:
            raise RuntimeError("another batch size")
        return self.model(x)


def without_a_part(seed: int, batches: int = 1) -> wc.Problem:
    problem = small(seed, batches)
    return wc.Problem(WholeBatch(problem.model, 64 // batches), problem.loss, problem.batches)


def direction_by_definition(problem: wc.Problem, root: Tensor) -> Tensor:
    """The first eigenvector of D Jᵀ M J D, with J and M the means over the first 8 examples; everything dense."""
    x = problem.batches[0][0][:8]
    params = list(problem.model.parameters())
    shapes = [p.shape for p in params]

    def outputs(flat: Tensor) -> Tensor:
        parts = flat.split([shape.numel() for shape in shapes])
        named = {name: part.view(shape) for (name, _), part, shape in zip(named_parameters, parts, shapes, strict=True)}
        return torch.func.functional_call(problem.model, named, (x,))

    named_parameters = list(problem.model.named_parameters())
    flat = torch.cat([p.detach().reshape(-1) for p in params])
    jacobian = torch.func.jacrev(outputs)(flat).mean(0) * root
    p = outputs(flat).softmax(-1).detach()
    curvature = (torch.diag_embed(p) - p[:, :, None] * p[:, None, :]).mean(0)
    return torch.linalg.eigh(jacobian.T @ curvature @ jacobian).eigenvectors[:, -1]


@pytest.mark.parametrize("kind", [wc.Hessian, wc.GGN, wc.Fisher])
def test_the_start_moves_all_outputs_together(kind: type) -> None:
    problem = small(0)
    result = kind(problem).likely_start()
    expected = direction_by_definition(problem, torch.ones(problem.size).double())
    assert abs(float(result @ expected)) == pytest.approx(float(result.norm()), rel=1e-9)


@pytest.mark.slow
def test_the_start_is_nearly_the_first_eigenvector_unlike_the_gradient() -> None:
    starts, gradients = [], []
    for seed in range(6):
        generator = torch.Generator().manual_seed(seed)
        x, y = torch.randn(256, 50, generator=generator), torch.randint(0, 10, (256,), generator=generator)
        problem = wc.Problem(mlp([50, 64, 64, 10], init="default", seed=seed), nn.CrossEntropyLoss(), (x, y))
        hessian, gradient = wc.Hessian(problem), flat_gradient(problem)
        vector = wc.eigenvalues(hessian, tol=1e-5).vectors[:, 0]
        start = hessian.likely_start()
        starts.append(abs(float(start @ vector / start.norm())))
        gradients.append(abs(float(gradient @ vector / gradient.norm())))

    assert statistics.median(starts) > 0.8
    assert statistics.median(gradients) < 0.6


def test_the_start_of_a_preconditioned_matrix_is_that_matrix_s() -> None:
    problem = small(2)
    hessian = wc.Hessian(problem)
    scale = {
        name: torch.rand(p.shape, generator=torch.Generator().manual_seed(3)).double()
        for name, p in problem.params.items()
    }
    zero = dict.fromkeys(scale, torch.zeros(()))
    result = Preconditioned(hessian, scale, zero).likely_start()
    expected = direction_by_definition(problem, torch.cat([part.reshape(-1) for part in scale.values()]).sqrt())
    assert abs(float(result @ expected)) == pytest.approx(float(result.norm()), rel=1e-9)
    name = hessian.names[2]
    alone = Preconditioned(hessian, {name: scale[name]}, {name: torch.zeros(())}).likely_start()
    assert alone.shape == (problem.params[name].numel(),)


def test_the_start_costs_a_part_of_a_pass_for_every_output() -> None:
    problem = small(0)
    hessian = wc.Hessian(problem)
    hessian @ torch.ones(problem.size).double()
    before = problem.cost
    hessian.likely_start()
    cost = problem.cost - before
    assert cost.matvecs == 0
    assert cost.u == pytest.approx(1 / 3 + 8 / 64 * 2 / 3 * 4)  # the forward pass of a part counts as a whole one


@pytest.mark.parametrize("batches", [1, 4])
@pytest.mark.parametrize("kind", [wc.Hessian, wc.GGN, wc.Fisher])
def test_where_no_part_can_be_had_the_start_is_the_gradient(kind: type, batches: int) -> None:
    problem = without_a_part(1, batches)
    if batches == 4:  # a part of 16 examples is a whole batch
        problem.model.size = 16
        problem = wc.Problem(
            Tokens(problem.model), lambda out, y: nn.functional.cross_entropy(out[:, 0], y), problem.batches
        )
    expected = flat_gradient(problem)
    operator = kind(problem) if kind is not wc.Fisher or batches == 1 else wc.Fisher(problem, labels="data")
    assert torch.allclose(operator.likely_start(), expected, atol=1e-12)
    block = operator.layer(operator.names[2])
    size = block.shape[0]
    begin = sum(p.numel() for p in list(problem.params.values())[:2])
    assert torch.allclose(block.likely_start(), expected[begin : begin + size], atol=1e-12)
    assert torch.allclose((2 * operator + operator).likely_start(), 3 * expected, atol=1e-12)


class Tokens(nn.Module):
    """Outputs (N, 1, C), which are not those of single examples."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)[:, None]


def test_many_outputs_or_much_memory_give_the_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = small(0)
    expected = flat_gradient(problem)
    for name, value in (("MOST_OUTPUT_PASSES", 0.49), ("MOST_BYTES", 4 * 8 * problem.size - 1)):
        with monkeypatch.context() as patch:
            patch.setattr(likely_start, name, value)
            assert torch.allclose(wc.Hessian(problem).likely_start(), expected, atol=1e-12)
    hessian = wc.Hessian(without_a_part(0))
    name = hessian.names[0]
    scaled = Preconditioned(hessian, {name: torch.full((), 4.0)}, {name: torch.zeros(())}).likely_start()
    assert torch.allclose(scaled, 2 * expected[: len(scaled)], atol=1e-12)


def test_a_gradient_start_on_one_batch_costs_no_pass() -> None:
    problem = without_a_part(0)
    wc.Hessian(problem) @ torch.ones(problem.size).double()
    one = problem.cost.u
    hessian = wc.Hessian(problem)
    hessian.likely_start()
    hessian @ torch.ones(problem.size).double()
    assert problem.cost.u - one <= one


@pytest.mark.parametrize("scale", [1e-15, 1e12])
def test_the_start_has_no_scale(scale: float) -> None:
    """Whose squares leave the range of float32."""
    problem = small(0)
    model = problem.model.float()
    batches = [(x.float(), y) for x, y in problem.batches]
    plain, scaled = (
        wc.Hessian(wc.Problem(model, lambda out, y, s=s: nn.functional.cross_entropy(out, y) * s, batches))
        for s in (1.0, scale)
    )
    a, b = plain.likely_start(), scaled.likely_start()
    assert float(a @ (b / b.norm()) / a.norm()) == pytest.approx(1, abs=1e-4)


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
    top = wc.eigenvalues(wc.Hessian(problem), confidence=None)
    assert float(top.values[-1]) == pytest.approx(6.0)


def test_a_seed_fixes_the_numbers() -> None:
    hessian = wc.Hessian(small(3))
    runs = [wc.eigenvalues(hessian, confidence=None, seed=seed, max_matvecs=3).values for seed in (0, 0, 1)]
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


@pytest.mark.slow
def test_warm_starts_save_products() -> None:
    hessian = wc.Hessian(small(1)).dense()
    cold = wc.eigenvalues(hessian, confidence=None)
    warm = wc.eigenvalues(hessian, confidence=None, start=cold.vectors)
    assert warm.matvecs < cold.matvecs
