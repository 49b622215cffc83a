"""Ghost BN against a loop over its ghosts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from norm_references import (
    CHANNELS,
    SHAPES,
    Variant,
    assert_all_same,
    assert_running_statistics,
    batch,
    normalized_by_groups,
    unbiased,
    with_affine,
    with_gradients,
)
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from zoo import normal

from wellcond.nn import GhostBatchNorm1d, GhostBatchNorm2d


def ghost(dims: str, ghost_size: int, **options: Any) -> Any:
    return Variant("GhostBatchNorm").layer(dims, ghost_size=ghost_size, **options)


SEVEN = {
    1: [[0], [1], [2], [3], [4], [5], [6]],
    2: [[0, 1], [2, 3], [4, 5], [6]],
    3: [[0, 1, 2], [3, 4, 5], [6]],
    4: [[0, 1, 2, 3], [4, 5, 6]],
    5: [[0, 1, 2, 3, 4], [5, 6]],
    6: [[0, 1, 2, 3, 4, 5], [6]],
    7: [[0, 1, 2, 3, 4, 5, 6]],
}
"""Ghosts of seven examples where each has several positions, by their size."""
SEVEN_ALONE = SEVEN | {2: [[0, 1], [2, 3], [4, 5, 6]], 3: [[0, 1, 2], [3, 4, 5, 6]], 6: [[0, 1, 2, 3, 4, 5, 6]]}
"""The same where an example is one value: the seventh, alone, joins the ghost before it."""
each_case = pytest.mark.parametrize(
    ("dims", "ghost_size", "ghosts"),
    [
        (dims, size, ghosts)
        for dims in SHAPES
        for size, ghosts in (SEVEN_ALONE if dims == "1d" else SEVEN).items()
        if not (dims == "1d" and size == 1)
    ],
)


@each_case
def test_each_ghost_is_normalized_by_itself(dims: str, ghost_size: int, ghosts: list[list[int]]) -> None:
    """Outputs and gradients, ragged and lone last chunks included."""
    layer, x = ghost(dims, ghost_size), batch(dims).requires_grad_()
    expected = with_affine(layer, normalized_by_groups(x, ghosts, layer.eps))
    assert_all_same(with_gradients(layer(x), [x]), with_gradients(expected, [x]))


@each_case
@pytest.mark.parametrize("momentum", [0.3, None])
def test_running_statistics_average_the_ghosts_once_per_step(
    dims: str, ghost_size: int, ghosts: list[list[int]], momentum: float | None
) -> None:
    """Each ghost counts by its examples, which makes the mean that of the batch; its variance is the unbiased one."""

    def variance(channel: Tensor) -> Tensor:
        examples = channel.reshape(7, -1)
        return sum(len(ghost) * unbiased(examples[torch.tensor(ghost)]) for ghost in ghosts) / 7

    statistics = {"running_mean": (0.0, torch.mean), "running_var": (1.0, variance)}
    assert_running_statistics(ghost(dims, ghost_size, momentum=momentum), dims, momentum, statistics)


@pytest.mark.parametrize("size", [2, 16, 20_000])
def test_the_running_variance_estimates_that_of_the_population(size: int) -> None:
    """20 000 values of variance 4: the estimate's standard error is 4·√(2/(n − ghosts)), 5 of them allowed."""
    layer = GhostBatchNorm1d(1, momentum=1.0, ghost_size=size, dtype=torch.float64)
    layer(2 * normal(20_000, 1))
    assert abs(float(layer.running_var) - 4) < 5 * 4 * (2 / (20_000 - 20_000 / size)) ** 0.5


def test_ghosts_of_one_value_are_refused_with_the_cure() -> None:
    with pytest.raises(ValueError, match="ghost_size of 2 or more"):
        GhostBatchNorm1d(CHANNELS, ghost_size=1)(torch.zeros(6, CHANNELS))


class Operations(TorchDispatchMode):
    """Counts what is really executed."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("many", "two"), [(64, 4), (65, 5)])
def test_many_ghosts_take_as_many_operations_as_two(many: int, two: int) -> None:
    def operations(examples: int) -> int:
        with Operations() as executed:
            GhostBatchNorm2d(CHANNELS, ghost_size=2)(torch.randn(examples, CHANNELS, 3, 3)).sum().backward()
        return executed.count

    assert operations(many) == operations(two)
