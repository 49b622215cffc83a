"""The norm variants by name, and slow references for them: loops over groups, plain formulas."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import torch
from references import assert_same
from torch import Tensor, nn
from zoo import normal

import wellcond.nn as wn

CHANNELS = 4
SHAPES: dict[str, tuple[int, ...]] = {
    "1d": (7, CHANNELS),
    "1d_length": (7, CHANNELS, 5),
    "2d": (7, CHANNELS, 3, 2),
    "3d": (7, CHANNELS, 2, 3, 2),
}
"""Seven examples: ragged for ghosts of two or three, and in (N, C) the last of them is alone."""
PLAIN: dict[str, type[nn.Module]] = {
    "1d": nn.BatchNorm1d, "1d_length": nn.BatchNorm1d, "2d": nn.BatchNorm2d, "3d": nn.BatchNorm3d,
}  # fmt: skip


@dataclass(frozen=True)
class Variant:
    """A family of layers with its settings."""

    family: str
    settings: dict[str, Any] = field(default_factory=dict)

    def layer_class(self, dims: str) -> type[nn.Module]:
        return getattr(wn, f"{self.family}{dims[:2]}")

    def layer(self, dims: str, channels: int = CHANNELS, **changes: Any) -> Any:
        """A layer in float64 whose γ and β are away from 1 and 0."""
        options = {"dtype": torch.float64} | self.settings | changes
        layer = self.layer_class(dims)(channels, **options)
        if layer.affine:
            fill_affine(layer)
        return layer


def fill_affine(layer: Any) -> None:
    with torch.no_grad():
        layer.weight.copy_(1 + 0.3 * normal(layer.num_features, seed=11))
        layer.bias.copy_(normal(layer.num_features, seed=12))


def fill_running(layer: Any) -> None:
    """Running statistics away from 0 and 1."""
    for name, buffer in layer.named_buffers():
        if name == "running_mean":
            buffer.copy_(normal(len(buffer), seed=21))
        elif name.startswith("running"):
            buffer.copy_(0.5 + normal(len(buffer), seed=22) ** 2)


VARIANTS: dict[str, Variant] = {
    "noisy": Variant("NoisyBatchNorm"),
    "l1": Variant("LpBatchNorm", {"p": 1}),
    "l2": Variant("LpBatchNorm", {"p": 2}),
    "linf": Variant("LpBatchNorm", {"p": inf}),
    "renorm": Variant("BatchRenorm", {"r_max": 1.2, "d_max": 0.1, "r_ramp": (0, 4), "d_ramp": (0, 2)}),
    "ghost": Variant("GhostBatchNorm", {"ghost_size": 3}),
    "four_things": Variant("FourThingsBatchNorm", {"ghost_size": 3}),
    "four_things_groups": Variant("FourThingsBatchNorm", {"ghost_size": 2, "channels_per_group": 2}),
    "four_things_alpha": Variant("FourThingsBatchNorm", {"ghost_size": 3, "channels_per_group": 2, "alpha": 0.3}),
}
DETERMINISTIC = [name for name in VARIANTS if name != "noisy"]
LIKE_PLAIN: dict[str, Variant] = {
    "noisy_without_noise": Variant("NoisyBatchNorm", {"n_mu": 0.0, "n_sigma": 1.0, "r_mu": 0.0, "r_sigma": 0.0}),
    "l2": Variant("LpBatchNorm", {"p": 2}),
    "renorm_before_its_ramp": Variant("BatchRenorm"),
    "one_ghost": Variant("GhostBatchNorm", {"ghost_size": 7}),
    "a_ghost_larger_than_the_batch": Variant("GhostBatchNorm", {"ghost_size": 100}),
}
"""Settings with which a variant is plain batch normalization, running statistics included."""


def batch(dims: str, seed: int = 0, **like: Any) -> Tensor:
    """Values whose channels have different means and scales."""
    x = normal(*SHAPES[dims], seed=seed)
    channel = torch.arange(CHANNELS, dtype=torch.float64).reshape(-1, *[1] * (x.dim() - 2))
    return (x * (1 + channel) + channel - 1).to(**like)


# formulas


def moments(values: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of all values."""
    mean = values.sum() / values.numel()
    return mean, ((values - mean) ** 2).sum() / values.numel()


def normalized_by_groups(x: Tensor, ghosts: Sequence[Sequence[int]], eps: float, channels: int = 1) -> Tensor:
    """(x − mean)/√(var + ε) over each ghost (list of examples) times a group of consecutive channels."""
    y = torch.zeros_like(x)
    for ghost in ghosts:
        for first in range(0, x.shape[1], channels):
            rows = torch.tensor(list(ghost))
            group = x[rows, first : first + channels]
            mean, var = moments(group)
            y[rows, first : first + channels] = (group - mean) / (var + eps).sqrt()
    return y


def per_channel(x: Tensor, statistic: Callable[[Tensor], Tensor]) -> Tensor:
    """A statistic of all values of each channel, (C,)."""
    return torch.stack([statistic(x[:, c].reshape(-1)) for c in range(x.shape[1])])


def spread(statistic: Tensor, x: Tensor) -> Tensor:
    return statistic.reshape(1, -1, *[1] * (x.dim() - 2))


def with_affine(layer: Any, y: Tensor) -> Tensor:
    return y if layer.weight is None else y * spread(layer.weight, y) + spread(layer.bias, y)


def unbiased(values: Tensor) -> Tensor:
    return moments(values)[1] * values.numel() / (values.numel() - 1)


def exponential_average(start: float, values: Sequence[Tensor], momentum: float | None) -> Tensor:
    """Of torch's meaning: weight `momentum` on the new value; None is the mean of all."""
    if momentum is None:
        return torch.stack(list(values)).mean(0)
    average = torch.full_like(values[0], start)
    for value in values:
        average = (1 - momentum) * average + momentum * value
    return average


# assertions


@contextlib.contextmanager
def state_kept(module: nn.Module) -> Iterator[None]:
    """Nothing that a checkpoint holds has changed."""
    before = copy.deepcopy(module.state_dict())
    yield
    assert [name for name, value in module.state_dict().items() if not torch.equal(value, before[name])] == []


def with_gradients(y: Tensor, inputs: Sequence[Tensor]) -> list[Tensor]:
    """The tensor, and the gradients of a weighted sum of its elements."""
    weights = normal(*y.shape, seed=5).to(y)
    return [y, *torch.autograd.grad((weights * y).sum(), inputs)]


def assert_all_same(actual: Sequence[Tensor], expected: Sequence[Tensor], tolerance: float = 1e-12) -> None:
    for ours, theirs in zip(actual, expected, strict=True):
        assert_same(ours, theirs, tolerance)


def assert_running_statistics(
    layer: Any, dims: str, momentum: float | None, statistics: dict[str, tuple[float, Callable[[Tensor], Tensor]]]
) -> None:
    """After three steps, each average of a statistic of a channel's values has moved from its start as it should."""
    batches = [batch(dims, seed) for seed in range(3)]
    for x in batches:
        layer(x)
    for name, (start, of_channel) in statistics.items():
        expected = exponential_average(start, [per_channel(x, of_channel) for x in batches], momentum)
        assert_same(layer.get_buffer(name), expected, 1e-12)
    assert layer.num_batches_tracked.item() == 3


def assert_layers_agree(layer: Any, plain: nn.Module, batches: Sequence[Tensor]) -> None:
    """Outputs, gradients and running statistics over training steps, and then evaluation, are the same."""
    for x in batches:
        argument = x.clone().requires_grad_()
        ours, theirs = (with_gradients(norm(argument), [argument, *norm.parameters()]) for norm in (layer, plain))
        assert_all_same(ours, theirs)
    for name, expected in plain.named_buffers():
        assert_same(getattr(layer, name), expected, 1e-12)
    assert_same(layer.eval()(batches[0]), plain.eval()(batches[0]), 1e-12)
