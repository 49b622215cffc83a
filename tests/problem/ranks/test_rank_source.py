"""Batches of several processes, joined along their examples and parted again."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from zoo import integers, normal

from wellcond.problem.batches import examples_in
from wellcond.problem.ranks.rank_source import TOGETHER, grouped, joined_batches, parted

X, Y = normal(6, 3), integers(3, 6)


def same(first: Any, second: Any) -> bool:
    if isinstance(first, Tensor):
        return torch.equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
    if isinstance(first, (tuple, list)):
        return type(first) is type(second) and all(map(same, first, second))
    return bool(first == second)


@pytest.mark.parametrize(
    ("whole", "parts"),
    [
        ((X, Y), [(X[:2], Y[:2]), (X[2:], Y[2:])]),
        ({"x": X, "y": Y, "flag": True}, [{"x": x, "y": y, "flag": True} for x, y in ((X[:3], Y[:3]), (X[3:], Y[3:]))]),
        (((X, X), Y), [((X[:5], X[:5]), Y[:5]), ((X[5:], X[5:]), Y[5:])]),
        ((X, Y), [(X, Y)]),
    ],
)
def test_parts_are_joined_along_their_examples(whole: Any, parts: list[Any]) -> None:
    assert same(joined_batches(parts), whole)


@pytest.mark.parametrize(
    "parts",
    [
        [(X[:3], Y[:3]), [X[3:], Y[3:]]],  # other containers
        [(X[:3], Y[:3]), (X[3:, :2], Y[3:])],  # sentences padded to other lengths
        [(X[:3], Y[0]), (X[3:], Y[1])],  # a number for all examples
        [{"x": X[:3], "names": list("abc")}, {"x": X[3:], "names": list("def")}],  # one name per example
    ],
)
def test_what_may_not_belong_together_is_not_joined(parts: list[Any]) -> None:
    assert joined_batches(parts) is None


def test_a_joined_batch_in_parts_again() -> None:
    assert same(parted((X, Y, "flag"), 3), [(X[i : i + 2], Y[i : i + 2], "flag") for i in (0, 2, 4)])
    assert [len(x) for x, _ in parted((X, Y), 4)] == [2, 2, 2]  # as torch.chunk divides six by four
    assert len(parted((X[:1], Y[:1]), 2)) == 1
    (only,) = parted((X, torch.tensor(2.0)), 1)
    assert same(only, (X, torch.tensor(2.0)))


def test_small_batches_are_grouped_and_large_ones_stay() -> None:
    small = [(normal(24, 3, seed=i), integers(3, 24, seed=i)) for i in range(3)]
    assert [examples_in(batch) for batch in grouped(small)] == [48, 24]
    large = [(normal(TOGETHER + 1, 3, seed=i), integers(3, TOGETHER + 1, seed=i)) for i in range(2)]
    assert same(list(grouped(large)), large)
    other = [(X[:3], Y[:3]), (X[3:, :2], Y[3:])]
    assert same(list(grouped(other)), other)
