"""BN with four things: groups, running moments, mixing at inference and the decay of γ − 1 and β."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from norm_references import (
    CHANNELS,
    SHAPES,
    VARIANTS,
    Variant,
    assert_all_same,
    batch,
    exponential_average,
    fill_affine,
    fill_running,
    normalized_by_groups,
    per_channel,
    with_affine,
    with_gradients,
)
from references import assert_same
from torch import Tensor, nn
from zoo import normal

from wellcond.errors import WellcondError
from wellcond.nn import FourThingsBatchNorm1d, FourThingsBatchNorm2d, GhostBatchNorm2d, affine_penalty


def four_things(dims: str, **options: Any) -> Any:
    return Variant("FourThingsBatchNorm").layer(dims, **options)


# training


@pytest.mark.parametrize("dims", SHAPES)
@pytest.mark.parametrize("channels", [1, 2, 4])
def test_groups_of_examples_and_channels_are_normalized_by_themselves(dims: str, channels: int) -> None:
    """Seven examples in twos: a seventh that is a single value joins the group before it."""
    alone = dims == "1d" and channels == 1
    ghosts = [[0, 1], [2, 3], [4, 5, 6]] if alone else [[0, 1], [2, 3], [4, 5], [6]]
    layer = four_things(dims, ghost_size=2, channels_per_group=channels, alpha=0.7)  # which training does not feel
    x = batch(dims).requires_grad_()
    expected = with_affine(layer, normalized_by_groups(x, ghosts, layer.eps, channels))
    assert_all_same(with_gradients(layer(x), [x]), with_gradients(expected, [x]))


def test_by_default_it_trains_like_ghosts_of_sixteen_examples() -> None:
    x = normal(40, CHANNELS, 3, 3)
    expected = GhostBatchNorm2d(CHANNELS, ghost_size=16, dtype=torch.float64)(x)
    assert_same(FourThingsBatchNorm2d(CHANNELS, dtype=torch.float64)(x), expected, 1e-12)


@pytest.mark.parametrize("examples", [1, 5])
@pytest.mark.parametrize("dims", SHAPES)
def test_one_example_times_channels_is_group_normalization(dims: str, examples: int) -> None:
    layer, x = four_things(dims, ghost_size=1, channels_per_group=2), batch(dims)[:examples]
    assert_same(layer(x), F.group_norm(x, CHANNELS // 2, layer.weight, layer.bias, layer.eps), 1e-12)
    assert layer.running_var.isfinite().all()


def test_a_group_of_one_value_is_refused() -> None:
    with pytest.raises(ValueError, match="more than 1 value"):
        four_things("1d", ghost_size=1)(batch("1d"))


# running moments


def running_moments(batches: list[Tensor], momentum: float | None) -> tuple[Tensor, Tensor]:
    """M₁ and M₂: averages of E[x] and E[x²], from 0 and 1."""
    first = [per_channel(x, torch.mean) for x in batches]
    second = [per_channel(x, lambda v: (v**2).mean()) for x in batches]
    return exponential_average(0, first, momentum), exponential_average(1, second, momentum)


@pytest.mark.parametrize("dims", SHAPES)
@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("momentum", [0.01, 0.3, None])
def test_running_statistics_are_moments_of_the_whole_batch(dims: str, channels: int, momentum: float | None) -> None:
    layer = four_things(dims, ghost_size=2, channels_per_group=channels, momentum=momentum)
    batches = [batch(dims, seed) for seed in range(4)]
    for x in batches:
        layer(x)
    m1, m2 = running_moments(batches, momentum)
    assert_same(layer.running_mean, m1, 1e-12)
    assert_same(layer.running_var, m2 - m1**2, 1e-11)
    assert layer.num_batches_tracked.item() == 4


def test_large_means_do_not_cancel_in_float32() -> None:
    """Mean 1e4, variance 1: E[x²] − E[x]² in float32 has an error of 1e8 · 6e-8 = 6, more than the variance itself."""
    layer = FourThingsBatchNorm2d(1, momentum=None, alpha=0.5)
    batches = [(1e4 + normal(32, 1, 8, 8, seed=seed)).float() for seed in range(5)]
    for x in batches:
        layer(x)
    m1, m2 = running_moments([x.double() for x in batches], None)
    assert_same(layer.running_var, m2 - m1**2, 1e-5)
    y = layer.eval()(batches[0])
    assert y.isfinite().all()
    assert 0.9 < float(y.detach().std()) < 1.1


# evaluation


def mixed(layer: Any, x: Tensor, m1: Tensor, m2: Tensor, alpha: float) -> Tensor:
    """m = (1−α)M₁ + αE_i[x], s = (1−α)M₂ + αE_i[x²], example by example and group by group."""
    y, size = torch.zeros_like(x), layer.channels_per_group
    for i in range(len(x)):
        for first in range(0, CHANNELS, size):
            group = slice(first, first + size)
            own = x[i, group].reshape(-1)
            m = (1 - alpha) * m1[group].mean() + alpha * own.mean()
            s = (1 - alpha) * m2[group].mean() + alpha * (own**2).mean()
            y[i, group] = (x[i, group] - m) / (s - m**2 + layer.eps).sqrt()
    return with_affine(layer, y)


@pytest.mark.parametrize("dims", SHAPES)
@pytest.mark.parametrize("channels", [1, 2, 4])
@pytest.mark.parametrize("alpha", [0.0, 0.2, 1.0])
def test_evaluation_mixes_in_the_moments_of_the_example(dims: str, channels: int, alpha: float) -> None:
    layer = four_things(dims, channels_per_group=channels).eval()
    fill_running(layer)
    layer.alpha = alpha  # it may be chosen after training
    m1, m2 = layer.running_mean, layer.running_var + layer.running_mean**2
    if dims == "1d" and channels == 1 and alpha > 0:
        with pytest.raises(WellcondError, match="alpha=0, or channels_per_group"):
            layer(batch(dims))
    else:
        assert_same(layer(batch(dims)), mixed(layer, batch(dims), m1, m2, alpha), 1e-11)


def test_alpha_needs_running_statistics() -> None:
    with pytest.raises(ValueError, match=r"alpha=0\.5: without running statistics"):
        FourThingsBatchNorm2d(CHANNELS, track_running_stats=False, alpha=0.5)


# the decay of γ − 1 and β


class Net(nn.Module):
    """Two four-things layers, one of them used twice, a plain BN, and one without affine part."""

    def __init__(self) -> None:
        super().__init__()
        self.first = four_things("1d", ghost_size=4)
        self.again = self.first
        self.linear = nn.Linear(CHANNELS, CHANNELS).double()
        self.inner = nn.Sequential(nn.BatchNorm1d(CHANNELS).double(), VARIANTS["four_things_groups"].layer("1d"))
        self.plain = FourThingsBatchNorm1d(CHANNELS, affine=False, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return self.plain(self.inner(self.linear(self.again(self.first(x)))))


def decayed(net: Net) -> list[tuple[nn.Parameter, float]]:
    """The parameters that decay, and where to."""
    return [(p, to) for m in (net.first, net.inner[1]) for p, to in ((m.weight, 1.0), (m.bias, 0.0))]


def loss(net: Net, x: Tensor) -> Tensor:
    return (net(x) * normal(*x.shape, seed=8)).mean()


def test_the_penalty_decays_gamma_to_one_and_beta_to_zero() -> None:
    """One step of SGD is p ← p − lr (g + λ (p − p₀)), once for a layer used twice, and p − lr g of other layers."""
    net, x, lr, decay = Net(), batch("1d"), 0.5, 0.1
    params = dict(net.named_parameters())
    gradients = dict(zip(params, torch.autograd.grad(loss(net, x), list(params.values())), strict=True))
    targets = {id(p): to for p, to in decayed(net)}
    assert_same(affine_penalty(net), sum(0.5 * ((p - to) ** 2).sum() for p, to in decayed(net)), 1e-14)
    expected = {
        name: (p - lr * (gradients[name] + (decay * (p - targets[id(p)]) if id(p) in targets else 0))).detach()
        for name, p in params.items()
    }
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    (loss(net, x) + decay * affine_penalty(net)).backward()
    optimizer.step()
    for name, p in params.items():
        assert_same(p, expected[name], 1e-12)


def penalized_gradients(scale: float, parts: int) -> list[Tensor]:
    """With a loss scaled as a GradScaler does, and over equal micro-batches."""
    net = Net()
    net.eval()  # a loss that is a mean over examples: the micro-batches' mean is the batch's
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    for x in batch("1d")[:6].chunk(parts):
        scaler.scale((net(x).square().mean() + 0.1 * affine_penalty(net)) / parts).backward()
    scaler.unscale_(optimizer)
    return [p.grad for p in net.parameters() if p.grad is not None]


def test_the_penalty_is_exact_under_a_grad_scaler_and_with_accumulation() -> None:
    with torch.random.fork_rng():
        results = []
        for scale, parts in ((1.0, 1), (1024.0, 1), (1024.0, 3)):
            torch.manual_seed(0)
            results.append(penalized_gradients(scale, parts))
    assert len(results[0]) == 8
    for other in results[1:]:
        assert_all_same(other, results[0])


def test_under_autocast_the_penalty_is_float32() -> None:
    layer = FourThingsBatchNorm2d(CHANNELS)
    fill_affine(layer)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        penalty = affine_penalty(layer)
    assert penalty.dtype == torch.float32
    assert_same(penalty, ((layer.weight.double() - 1) ** 2).sum() / 2 + (layer.bias.double() ** 2).sum() / 2, 1e-6)


def test_a_model_with_nothing_to_decay_is_refused() -> None:
    with pytest.raises(WellcondError, match="Sequential has no FourThingsBatchNorm layer"):
        affine_penalty(nn.Sequential(nn.BatchNorm2d(3), FourThingsBatchNorm2d(3, affine=False)))
