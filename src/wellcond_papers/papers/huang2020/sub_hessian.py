"""What huang2020 believes of sub-Hessians: their largest eigenvalue indicates the magnitude of the weight-gradient."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations

from wellcond.curvature.hessian import Hessian
from wellcond.curvature.spectra.eigenvalues import eigenvalues
from wellcond.problem.problem import Problem
from wellcond.results import Row, number
from wellcond.results.quantities import FISHER, GRADIENT_NORM, HESSIAN
from wellcond_papers.experiments.claims import Outcome, claim, judged
from wellcond_papers.experiments.table import Table

APART = 2.0
"""Weight-gradients within such a factor of each other have no order that a matrix could indicate."""
KNOWN = 1e-3
"""The error of an eigenvalue, relative to the largest."""
PRODUCTS = 60
"""Of the sub-Hessian with vectors, in search of its least eigenvalue; a relative error of one that is 0 never ends."""
Layer = tuple[str, str]
"""A network and one of its layers."""


def sub_hessians(problem: Problem, weights: Sequence[str]) -> list[Row]:
    """λ_max and λ_min of the sub-Hessian of every weight, and the length of the gradient of the mean loss there."""
    with problem.measuring():
        _, gradients = problem.loss_and_gradients({name: problem.params[name] for name in weights})
    rows = []
    for name in weights:
        gradient, layer = gradients[name], name.removesuffix(".weight")
        hessian = Hessian(problem, layers=[name])
        largest = eigenvalues(hessian, confidence=None).values[-1]
        smallest = eigenvalues(hessian, which="smallest", confidence=None, max_matvecs=PRODUCTS).values[0]
        rows.append(Row(None, layer, HESSIAN.lambda_max, float(largest), ""))
        rows.append(Row(None, layer, HESSIAN.lambda_min, float(smallest), ""))
        rows.append(Row(None, layer, GRADIENT_NORM, 0.0 if gradient is None else float(gradient.norm()), ""))
    return rows


def of_layers(table: Table, matrix: str, quantity: str) -> dict[Layer, float]:
    """One quantity of every layer of both networks."""
    return {
        (network, layer): value
        for network in ("plain", "BN")
        for layer, value in table.arm(f"{network} {matrix}").mean_by_layer(quantity).items()
        if layer
    }


def same_order(gradients: Mapping[Layer, float], magnitudes: Mapping[Layer, float], *, within: bool) -> list[bool]:
    """Whether the layer with the greater gradient has the greater λ_max, pair by pair of layers that are `APART`.

    Args:
        gradients: The length of the weight-gradient.
        magnitudes: λ_max.
        within: Whether both layers are of one network, or one is of each.

    Example:
        >>> lengths = {("BN", "fc1"): 1.0, ("BN", "fc2"): 9.0}
        >>> same_order(lengths, {("BN", "fc1"): 0.1, ("BN", "fc2"): 0.5}, within=True)
        [True]
    """
    return [
        (gradients[a] > gradients[b]) == (magnitudes[a] > magnitudes[b])
        for a, b in combinations([layer for layer in gradients if layer in magnitudes], 2)
        if (a[0] == b[0]) == within and max(gradients[a], gradients[b]) >= APART * min(gradients[a], gradients[b])
    ]


@claim(
    "λ_max of the sub-Hessian can indicate the magnitude of the weight-gradient in each layer: of two layers whose "
    "gradients differ 2 times or more it is greater in that with the greater",
    paper="“We believe that the max eigenvalue of sub-Hessian can also indicate the magnitude of the weight-gradient "
    "in each layer, like the sub-FIM/sub-M”",
)
def indicates_the_gradient(table: Table) -> Outcome:
    """Layers in pairs, of one network or one of each: that with the greater gradient has the greater λ_max."""
    gradients = of_layers(table, "H", GRADIENT_NORM)
    cases, details = [], []
    for matrix, quantity in {"H": HESSIAN.lambda_max, "F": FISHER.lambda_max, "M": FISHER.lambda_max}.items():
        inside, between = (same_order(gradients, of_layers(table, matrix, quantity), within=w) for w in (True, False))
        counts = [f"{sum(each)} of {len(each)}" for each in (inside, between)]
        details.append(f"{matrix}_k {counts[0]} within a network, {counts[1]} between plain and BN")
        if matrix == "H":
            cases = inside + between
    return judged(
        cases, f"pairs of layers in the order of their weight-gradients: {'; '.join(details)}" if cases else ""
    )


@claim(
    "the sub-Hessian has negative eigenvalues: λ_min is below −λ_max / 1000",
    paper="“the general condition number … is not well defined for sub-Hessian, since it has negative eigenvalues”",
)
def has_negative_eigenvalues(table: Table) -> Outcome:
    """In every layer of both networks."""
    largest, smallest = (of_layers(table, "H", quantity) for quantity in (HESSIAN.lambda_max, HESSIAN.lambda_min))
    shares = {layer: value / largest[layer] for layer, value in smallest.items()}
    words = []
    for network in ("plain", "BN"):
        own = [share for (name, _), share in shares.items() if name == network]
        if own:
            counted = f"{sum(share < -KNOWN for share in own)} of {len(own)} layers"
            words.append(f"in {counted} of {network}, λ_min / λ_max from {number(min(own))} to {number(max(own))}")
    return judged([share < -KNOWN for share in shares.values()], "; ".join(words))


@claim(
    "without BN λ_max of the sub-Hessian is that of the sub-Fisher matrix, since a rectifier network is linear in one "
    "layer's weights, piece by piece; with BN it is not, in some layer",
    paper="says nothing of the kind",
    is_ours=True,
)
def is_fisher_without_bn(table: Table) -> Outcome:
    """λ_max of H_k over that of F_k, on the same images: 1 in every layer, and not with BN."""
    hessian, fisher = of_layers(table, "H", HESSIAN.lambda_max), of_layers(table, "F", FISHER.lambda_max)
    ratios = {
        network: [hessian[layer] / fisher[layer] for layer in hessian if layer in fisher and layer[0] == network]
        for network in ("plain", "BN")
    }
    if not all(ratios.values()):
        return judged([], "")
    words = [f"{number(min(each))} to {number(max(each))} in {network}" for network, each in ratios.items()]
    is_same = {
        network: [math.isclose(ratio, 1.0, rel_tol=2 * KNOWN) for ratio in ratios[network]] for network in ratios
    }
    cases = [*is_same["plain"], not all(is_same["BN"])]
    return judged(cases, f"λ_max(H_k) / λ_max(F_k): {'; '.join(words)}")
