"""Appendix B of huang2020: what an analysis costs, and what the largest eigenvalue of a sub-Hessian indicates."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from references import assert_same
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry
from zoo import integers, normal, seeded

import wellcond as wc

# cost


class Multiplications(TorchDispatchMode):
    """Multiplications of matrix products, and the cube of its side for every eigendecomposition."""

    def __init__(self) -> None:
        super().__init__()
        self.products = self.decompositions = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        operations = flop_registry.get(func.overloadpacket)
        if operations is not None:
            self.products += operations(*args, **(kwargs or {}), out_val=result) // 2
        if func.overloadpacket.__name__ == "_linalg_eigh":
            self.decompositions += args[0].shape[-1] ** 3
        return result


def perceptron(layers: int, width: int, examples: int) -> wc.Problem:
    """L layers of d neurons, d classes and N examples, as the source counts."""
    modules = [module for _ in range(layers) for module in (nn.Linear(width, width, bias=False), nn.Tanh())]
    model = seeded(lambda: nn.Sequential(*modules[:-1]))
    return wc.Problem(model, nn.CrossEntropyLoss(), (normal(examples, width), integers(width, examples)))


def moments(samples: list[Tensor]) -> list[Tensor]:
    """The second moment of each, with its eigenvalues computed."""
    matrices = [s.T @ s / len(s) for s in samples]
    for matrix in matrices:
        torch.linalg.eigvalsh(matrix)
    return matrices


@pytest.mark.parametrize(("L", "d", "N"), [(2, 3, 10), (5, 3, 10), (3, 6, 40)])
def test_appendix_b_the_three_analyses_cost_what_is_stated(L: int, d: int, N: int) -> None:
    """Naively, as the source says: from sample gradients (N, Ld²), from one layer's at a time, and from x and ∇h."""
    x, g = normal(L, N, d), normal(L, N, d, seed=1)
    gradients = [torch.einsum("ni,nj->nij", *pair).flatten(1) for pair in zip(x, g, strict=True)]
    with Multiplications() as full:
        (matrix,) = moments([torch.cat(gradients, 1)])
    with Multiplications() as layerwise:
        blocks = moments(gradients)
    with Multiplications() as factors:
        moments([*x, *g])
    for k, block in enumerate(blocks):
        rows = slice(k * d**2, (k + 1) * d**2)
        assert_same(block, matrix[rows, rows], 1e-12)
    assert (full.products, full.decompositions) == (N * (L * d**2) ** 2, (L * d**2) ** 3)
    assert (layerwise.products, layerwise.decompositions) == (N * L * (d**2) ** 2, L * (d**2) ** 3)
    assert (factors.products, factors.decompositions) == (2 * N * L * d**2, 2 * L * d**3)


def counted(measure: Callable[[wc.Problem], object], sizes: tuple[int, int, int]) -> int:
    """Of a measurement on a problem that has been evaluated before."""
    problem = perceptron(*sizes)
    measure(problem)
    with Multiplications() as count:
        measure(problem)
    return count.products


SIZES = [(2, 4, 16), (4, 4, 16), (2, 8, 16), (2, 4, 32)]
"""L, d and N; then each of them twice as large."""


def test_appendix_b_holds_for_the_library() -> None:
    """With forward and backward pass: at most 5NLd² for all factors, 4N(Ld²)² for the full matrix by products."""
    for L, d, N in SIZES:
        factors = counted(lambda p: wc.kronecker_factors(p, labels="data"), (L, d, N))
        full = counted(lambda p: wc.Fisher(p, labels="data").dense(), (L, d, N))
        assert 2 * N * L * d**2 < factors <= 5 * N * L * d**2
        assert N * (L * d**2) ** 2 < full <= 4 * N * (L * d**2) ** 2


def test_appendix_b_does_not_count_the_labels_of_the_fisher_matrix() -> None:
    """Σ∇h of the model's labels takes a backward pass for each of the d classes: O(NLd³), unless labels are drawn."""
    ratios = {}
    for d in (4, 8, 16):
        model, data = (
            counted(lambda p, labels=labels: wc.kronecker_factors(p, labels=labels), (2, d, 16))
            for labels in ("model", "data")
        )
        ratios[d] = model / data
    assert ratios[8] / ratios[4] > 1.6
    assert ratios[16] / ratios[8] > 1.7
    assert ratios[16] > 8


# the sub-Hessian


def weight_gradients(model: nn.Sequential, loss: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    names, weights = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss(model(batch[0]), batch[1]), weights), strict=True))


def largest(matrix: Tensor) -> float:
    return float(torch.linalg.eigvalsh(matrix)[-1])


def rectifier(outputs: int = 2) -> nn.Sequential:
    layers = [nn.Linear(4, 6, bias=False), nn.ReLU(), nn.Linear(6, 5, bias=False), nn.ReLU()]
    return seeded(lambda: nn.Sequential(*layers, nn.Linear(5, outputs, bias=False)))


def test_appendix_b_the_second_moment_bounds_the_weight_gradient() -> None:
    """‖E ∇ℓ‖² ≤ λ_max(M_k) ≤ E‖∇ℓ‖², for every layer: this is in what sense a sub-matrix indicates a magnitude."""
    model, batch = rectifier(3), (normal(30, 4), integers(3, 30))
    problem = wc.Problem(model, nn.CrossEntropyLoss(), batch)
    for name, gradient in weight_gradients(model, nn.CrossEntropyLoss(), batch).items():
        moment = wc.Fisher(problem, labels="data", layers=name).dense()
        assert float(gradient.square().sum()) <= largest(moment) <= float(moment.trace())


def test_appendix_b_the_sub_hessian_bounds_nothing() -> None:
    """Squared error and ReLU: the sub-Hessians are the same for all targets, while a gradient can be anything."""
    model, x = rectifier(), normal(30, 4)
    by_shift: list[dict[str, tuple[float, float]]] = []
    for shift in (0.0, 1.0, 100.0):
        batch = (x, model(x).detach() + shift)
        problem = wc.Problem(model, nn.MSELoss(), batch)
        gradients = weight_gradients(model, nn.MSELoss(), batch)
        hessians = {name: wc.Hessian(problem, layers=name).dense() for name in gradients}
        by_shift.append({name: (largest(hessians[name]), float(g.norm())) for name, g in gradients.items()})
    fitted, near, far = by_shift
    for name in fitted:
        assert near[name][0] == pytest.approx(fitted[name][0], rel=1e-10)
        assert far[name][0] == pytest.approx(fitted[name][0], rel=1e-10)
        assert fitted[name][1] == 0
        assert near[name][1] > 0.01
        assert far[name][1] == pytest.approx(100 * near[name][1], rel=1e-10)


def test_appendix_b_the_sub_hessian_scales_as_the_squared_weight_gradient() -> None:
    """Under theorem 1 with W_k → α_k W_k and a quadratic loss: λ_max(H_k) by (∏_{i≠k} α_i)², the gradient by μ times
    the root of that. So it tells one layer from another as the sub-FIM does, and nothing about μ."""
    scales = [1.5, 0.4, 2.0]
    model, x, residual = rectifier(), normal(30, 4), normal(30, 2, seed=5)
    mu = 0.01

    def measured(factor: float) -> tuple[dict[str, float], dict[str, float]]:
        batch = (x, model(x).detach() - factor * residual)
        problem = wc.Problem(model, nn.MSELoss(), batch)
        gradients = weight_gradients(model, nn.MSELoss(), batch)
        hessians = {name: largest(wc.Hessian(problem, layers=name).dense()) for name in gradients}
        return hessians, {name: float(gradient.norm()) for name, gradient in gradients.items()}

    hessians, gradients = measured(1.0)
    with torch.no_grad():
        for scale, weight in zip(scales, model.parameters(), strict=True):
            weight.mul_(scale)
    scaled_hessians, scaled_gradients = measured(mu)
    for k, name in enumerate(hessians):
        others = math.prod(scales) / scales[k]
        assert scaled_hessians[name] == pytest.approx(others**2 * hessians[name], rel=1e-10)
        assert scaled_gradients[name] == pytest.approx(mu * others * gradients[name], rel=1e-10)
