"""The printed formulas of wei2019, against the recursions written out."""

from __future__ import annotations

import pytest
import torch
from wei2019_recursions import batchnorm, convolution_terms, vanilla

from wellcond.learning_rate.meanfield import predict
from wellcond_papers.papers.wei2019.printed import printed_contributions

FC = "fc 784-1000-1000-1000-10"
WIDTHS = [784, 1000, 1000, 1000]
CONV = "conv 1x28x28 {} k3 s2 10 {}"
SIDES = [28, 13, 6, 2]


@pytest.mark.parametrize(("gamma", "expected"), [(0.1, 1.61), (1.0, 230), (3.0, 2432)])
def test_a_dense_network_is_the_printed_formula(gamma: float, expected: float) -> None:
    lambda_max, layers = printed_contributions(FC, gamma)
    terms = batchnorm(4, gamma, as_printed=True).terms(WIDTHS)
    assert [float(layer.term) for layer in layers] == pytest.approx(terms, rel=1e-12)
    assert float(lambda_max) == pytest.approx(sum(terms), rel=1e-12)
    assert float(lambda_max) == pytest.approx(expected, rel=2e-3)


def test_without_batchnorm_a_dense_network_is_as_predicted() -> None:
    lambda_max, layers = printed_contributions(f"{FC} vanilla")
    assert [float(layer.term) for layer in layers] == pytest.approx(vanilla(4).terms(WIDTHS), rel=1e-12)
    assert float(lambda_max) == pytest.approx(predict(f"{FC} vanilla").lambda_max, rel=1e-12)


@pytest.mark.parametrize(("channels", "expected"), [([30, 60, 90], 343.8), ([200, 300, 400], 1973.5)])
@pytest.mark.parametrize("head", ["flatten", "pool"])
def test_convolutions_are_the_printed_formula(channels: list[int], expected: float, head: str) -> None:
    lambda_max, layers = printed_contributions(CONV.format("-".join(map(str, channels)), head))
    terms = convolution_terms([1, *channels], SIDES, 1.0, head, as_printed=True)
    assert [float(layer.term) for layer in layers] == pytest.approx(terms, rel=1e-12)
    if head == "flatten":
        assert float(lambda_max) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("line", [FC, "fc 20-30-30-3 tanh vanilla", "conv 2x6x6 4-5 k3 p1 3", "fc 9-8-8-8-2 residual"])
def test_a_grid_is_its_networks_one_by_one(line: str) -> None:
    gammas = torch.tensor([0.4, 1.0, 2.5], dtype=torch.float64)
    grid, _ = printed_contributions(line, gammas)
    for gamma, value in zip(gammas.tolist(), grid.expand(3).tolist(), strict=True):
        assert value == pytest.approx(float(printed_contributions(line, gamma)[0]), rel=1e-12)
