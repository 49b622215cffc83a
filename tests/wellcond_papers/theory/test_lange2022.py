"""Statements of lange2022 about one BNP step, in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector
from zoo import CLASSES, integers, normal, seeded

import wellcond as wc

LR = 0.05


class PostActivationBN(nn.Module):
    """Every layer after a BN without affine part whose statistics are constants, as in Proposition 7."""

    def __init__(self, layers: list[nn.Module], detached: bool = True) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.detached = detached

    def forward(self, x: Tensor) -> Tensor:
        self.statistics = []
        for k, layer in enumerate(self.layers):
            axes = [0, *range(2, x.dim())]
            shape = [1, -1] + [1] * (x.dim() - 2)
            source = x.detach() if self.detached else x
            mean, sigma = source.mean(axes), source.var(axes, correction=0).sqrt()
            self.statistics.append((mean.detach(), sigma.detach()))
            x = layer((x - mean.view(shape)) / sigma.view(shape))
            x = torch.tanh(x) if k < len(self.layers) - 1 else x
        return x

    def merged(self) -> nn.Sequential:
        """Ŵ = W diag(1/σ), b̂ = b − Ŵ μ, with the statistics of the last batch.

        Printed is b̂ = b − W diag(μ/σ), a vector less a matrix; the sums of its rows are meant.
        """
        modules: list[nn.Module] = []
        for layer, (mean, sigma) in zip(self.layers, self.statistics, strict=True):
            new: Any = type(layer)(*sizes(layer)).double()
            shape = [1, -1] + [1] * (layer.weight.dim() - 2)
            weight = layer.weight.detach() / sigma.view(shape)
            new.weight.data = weight
            new.bias.data = layer.bias.detach() - (weight * mean.view(shape)).flatten(1).sum(1)
            modules += [new, nn.Tanh()]
        return nn.Sequential(*modules[:-1])


def sizes(layer: Any) -> tuple[int, ...]:
    if isinstance(layer, nn.Linear):
        return layer.in_features, layer.out_features
    return layer.in_channels, layer.out_channels, *layer.kernel_size[:1]


def dense() -> list[nn.Module]:
    return [nn.Linear(6, 5), nn.Linear(5, 4), nn.Linear(4, CLASSES)]


def convolutional() -> list[nn.Module]:
    return [nn.Conv2d(2, 3, 3), nn.Conv2d(3, 4, 2), nn.Conv2d(4, CLASSES, 2)]


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x).flatten(2).mean(-1) if x.dim() > 2 else model(x), y)


def one_step_of_each(network: PostActivationBN, shape: tuple[int, ...], times_q2: bool) -> tuple[Tensor, Tensor]:
    """All parameters of the merged network: after a BNP step on it, and after a step of the BN network."""
    x, y = 3 * normal(*shape) + 1, integers(CLASSES, shape[0])
    bn_loss = loss(network, x, y)
    merged = network.merged()
    torch.testing.assert_close(loss(merged, x, y), bn_loss, rtol=1e-13, atol=0)  # the same function

    bn_loss.backward()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter -= LR * parameter.grad

    optimizer = torch.optim.SGD(
        [{"params": layer.parameters()} for layer in merged if not isinstance(layer, nn.Tanh)], LR
    )
    bnp = wc.BNP(merged, optimizer, rho=0.0, eps1=0.0, eps2=0.0)
    loss(merged, x, y).backward()
    bnp.precondition()
    bnp.remove()
    for group, layer in zip(optimizer.param_groups, bnp.layers.values(), strict=True):
        group["lr"] = LR * (layer.q2 if times_q2 else 1)
    optimizer.step()
    return parameters_to_vector(merged.parameters()), parameters_to_vector(network.merged().parameters())


CASES = [(dense, (20, 6)), (convolutional, (7, 2, 6, 6))]


@pytest.mark.parametrize(("make", "shape"), CASES)
def test_proposition_7_a_step_of_post_activation_bn_is_a_bnp_step(make: Any, shape: tuple[int, ...]) -> None:
    """With q = 1, that is, with the learning rate times q²."""
    ours, theirs = one_step_of_each(seeded(lambda: PostActivationBN(make())), shape, times_q2=True)
    torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-13)


def test_proposition_7_needs_q_to_be_1() -> None:
    """BNP is defined with (1/q)P; q² = 4 for the first convolution here, and the steps differ as printed."""
    ours, theirs = one_step_of_each(seeded(lambda: PostActivationBN(convolutional())), (7, 2, 6, 6), times_q2=False)
    assert (ours - theirs).abs().max() > 1e-3


@pytest.mark.parametrize(("make", "shape"), CASES)
def test_proposition_7_fails_if_gradients_pass_through_the_statistics(make: Any, shape: tuple[int, ...]) -> None:
    network = seeded(lambda: PostActivationBN(make(), detached=False))
    ours, theirs = one_step_of_each(network, shape, times_q2=True)
    assert (ours - theirs).abs().max() > 1e-3


def test_proposition_7_needs_the_preconditioner() -> None:
    """Plain gradient descent on the merged network goes elsewhere."""
    network = seeded(lambda: PostActivationBN(dense()))
    x, y = 3 * normal(20, 6) + 1, integers(CLASSES, 20)
    loss(network, x, y).backward()
    merged = network.merged()
    loss(merged, x, y).backward()
    with torch.no_grad():
        for parameter in (*network.parameters(), *merged.parameters()):
            parameter -= LR * parameter.grad
    differences = [(a - b).abs().max() for a, b in zip(merged.parameters(), network.merged().parameters(), strict=True)]
    assert max(differences) > 1e-3


def test_section_3_4_the_next_layer_absorbs_gain_and_shift() -> None:
    """W B_{β,γ}(h) + b = Ŵ B_{0,1}(h) + b̂ with Ŵ = W diag(γ), b̂ = W β + b."""
    affine = seeded(lambda: nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 4)))
    plain = nn.Sequential(nn.BatchNorm1d(6, affine=False), nn.Linear(6, 4)).double()
    gamma, beta, weight = affine[0].weight, affine[0].bias, affine[1].weight
    plain[1].weight.data, plain[1].bias.data = weight * gamma, weight @ beta + affine[1].bias
    h = 3 * normal(20, 6) + 1
    torch.testing.assert_close(plain(h), affine(h), rtol=1e-12, atol=1e-13)
