"""lange2022: the Hessian of one unit and what P makes of it, against autograd in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lange2022_matrices import centering, extended, scaling
from references import assert_same
from torch import nn
from unit_hessians import (
    CONVOLUTIONS,
    autograd_hessian,
    convolutional,
    curvature,
    joint_curvature,
    labeled,
    library_hessian,
    perceptron,
    rows,
)
from zoo import CLASSES, seeded

import wellcond as wc
from wellcond_papers.papers.lange2022.unit import Preconditioner, hessian_factor

DENSE = [
    pytest.param(activation, layer, unit, seed, id=f"{activation.__name__}-{layer}-{unit}-{seed}")
    for seed, activation in enumerate([nn.ReLU, nn.Tanh])
    for layer, unit in [(0, 1), (2, 1), (4, 2)]
]


@pytest.mark.parametrize(("activation", "layer", "unit", "seed"), DENSE)
def test_proposition_2_the_hessian_of_a_unit_is_a_weighted_gram_matrix(
    activation: type[nn.Module], layer: int, unit: int, seed: int
) -> None:
    model, data = perceptron(activation), labeled(11, 4, seed=seed)
    H_hat = extended(model[:layer](data[0]).detach())
    S = curvature(model, layer, unit, data)
    assert_same(S, joint_curvature(model, layer, unit, data), 1e-13)  # which is diagonal
    expected = autograd_hessian(model, layer, unit, data)
    assert_same(H_hat.T @ S @ H_hat, expected, 1e-12)
    assert_same(library_hessian(model, layer, unit, data), expected, 1e-12)


@pytest.mark.parametrize("unit", range(CLASSES))
def test_proposition_2_of_the_last_layer_is_the_hessian_factor(unit: int) -> None:
    model, data = perceptron(nn.ReLU), labeled(11, 4, seed=2)
    with torch.no_grad():
        h, logits = model[:4](data[0]), model(data[0])
    A = hessian_factor(h, logits, unit)
    H_hat, S = extended(h), curvature(model, 4, unit, data)
    assert_same(A.T @ A, H_hat.T @ S @ H_hat, 1e-12)


def test_proposition_2_needs_examples_that_do_not_meet_after_the_unit() -> None:
    """With a BatchNorm after it, the loss of an example depends on the others: the form stays, S is full."""
    model = seeded(lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, CLASSES)))
    data = labeled(9, 4, seed=0)
    H_hat = extended(data[0])
    S = joint_curvature(model, 0, 1, data)
    expected = autograd_hessian(model, 0, 1, data)
    assert_same(H_hat.T @ S @ H_hat, expected, 1e-11)
    diagonal = H_hat.T @ torch.diag(S.diagonal()) @ H_hat
    assert (diagonal - expected).norm() > 0.1 * expected.norm()


# preconditioned

UNITS: dict[str, Any] = {
    "first dense": lambda: (perceptron(nn.Tanh), 0, 2, labeled(13, 4, seed=0)),
    "hidden dense": lambda: (perceptron(nn.Tanh), 2, 1, labeled(13, 4, seed=1)),
    "last dense": lambda: (perceptron(nn.Tanh), 4, 0, labeled(13, 4, seed=2)),
    "same": lambda: (convolutional({"padding": "same"}, "ReLU, pooled"), 2, 3, labeled(4, 1, 5, 4, seed=3)),
    "stride": lambda: (convolutional(CONVOLUTIONS["stride"], "ReLU, pooled"), 2, 0, labeled(9, 1, 5, 4, seed=4)),
}


@pytest.mark.parametrize("case", UNITS)
def test_theorem_3_preconditioned_is_the_hessian_of_normalized_features(case: str) -> None:
    """∇_z² L = Pᵀ ∇²L P = Ĝᵀ S Ĝ, with Ĝ = Ĥ P = [e, G]; G has mean 0 and variance 1 in each column, and eᵀG = 0."""
    model, layer, unit, data = UNITS[case]()
    H, S = rows(model, layer, unit, data[0]), curvature(model, layer, unit, data)
    P = centering(H) @ scaling(H)
    G_hat = extended(H) @ P
    G = torch.stack([(column - column.mean()) / column.std(correction=0) for column in H.T], 1)
    assert_same(G_hat, extended(G), 1e-12)
    assert G.sum(0).abs().max() < 1e-11
    torch.testing.assert_close((G**2).mean(0), torch.ones(G.shape[1]).double(), rtol=1e-12, atol=0)

    in_z = autograd_hessian(model, layer, unit, data, P)
    assert_same(G_hat.T @ S @ G_hat, in_z, 1e-10)
    assert_same(P.T @ autograd_hessian(model, layer, unit, data) @ P, in_z, 1e-10)
    assert_same(Preconditioner.of(H).applied_to(extended(H)), G_hat, 1e-12)


@pytest.mark.parametrize("means", ["kernel", "channel"])
def test_theorem_3_of_padded_convolutions_needs_the_mean_per_kernel_entry(means: Any) -> None:
    """With BNP's P: the exact statistics (19), (20) make e orthogonal to G; one mean a channel (21) does not."""
    model, (x, y) = convolutional({"padding": "same"}, "ReLU, pooled"), labeled(4, 1, 5, 4, seed=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    bnp = wc.BNP(model, optimizer, rho=0.0, eps1=0.0, eps2=0.0, means=means)
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    bnp.remove()
    layer = bnp.layers["2"]
    mean, variance = (t.repeat_interleave(layer.repeats) for t in (layer.mean, layer.variance))
    G = Preconditioner(mean, variance.sqrt()).applied_to(extended(rows(model, 2, 0, x)))[:, 1:]
    cosine = G.sum(0).norm() / (G.norm() * len(G) ** 0.5)
    variance_error = ((G - G.mean(0)) ** 2).mean(0).sub(1).abs().max()
    if means == "kernel":
        assert max(cosine, variance_error) < 1e-9  # the exact variance is a difference of moments
    else:
        assert min(cosine, variance_error) > 0.01
