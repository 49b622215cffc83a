"""Scales of inputs and targets against numbers that can be computed by hand, and which inputs are badly scaled."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from zoo import integers, normal, white

from wellcond.diagnosis.inspection.data import (
    TensorFacts,
    facts_of,
    feature_dim,
    is_badly_scaled,
    is_too_large,
    is_too_small,
)


def facts(*tensors: Tensor, channels_first: bool = False) -> TensorFacts:
    (one,) = facts_of(list(tensors), "inputs", channels_first)
    return one


def test_moments_are_those_of_all_batches_together() -> None:
    first, second = torch.tensor([[3.0, 0.0], [-1.0, 2.0]]), torch.tensor([[1.0, 4.0]])
    of = facts(first, second)
    x = torch.cat([first, second]).double()
    assert of.examples == 3
    assert of.rms == pytest.approx(float(x.square().mean().sqrt()))
    assert (of.mean, of.std) == pytest.approx((float(x.mean()), float(x.std(correction=0))))
    assert (of.low, of.high, of.reach) == (-1.0, 4.0, 4.0)
    torch.testing.assert_close(of.feature_mean, torch.tensor([1.0, 2.0]).double())
    torch.testing.assert_close(of.feature_rms, torch.tensor([11 / 3, 20 / 3]).double().sqrt())


@pytest.mark.parametrize(
    ("shape", "channels_first", "dim"),
    [((5,), False, 0), ((5, 3), False, 1), ((5, 7, 3), False, 2), ((5, 3, 7), True, 1), ((5, 3, 7, 7), False, 1)],
)
def test_features_are_counted_in_one_dimension(shape: tuple[int, ...], channels_first: bool, dim: int) -> None:
    assert feature_dim(torch.zeros(shape), channels_first=channels_first) == dim
    assert facts(torch.rand(shape), channels_first=channels_first).features == (shape[dim] if len(shape) > 1 else 1)


def test_values_that_are_not_finite_are_counted_and_left_out() -> None:
    of = facts(torch.tensor([[1.0, 2.0], [math.nan, 5.0], [3.0, math.inf]]))
    assert of.not_finite == 2
    assert (of.low, of.high) == (1.0, 2.0)


def test_what_the_values_are() -> None:
    one_hot = facts(torch.eye(3))
    assert (one_hot.is_one_hot, one_hot.is_binary, one_hot.has_scale) == (True, True, False)
    index = facts(integers(5, 8))
    assert (index.is_index, index.features, index.has_scale) == (True, 0, False)
    constant = facts(torch.tensor([[1.0, 5.0], [2.0, 5.0]]))
    assert constant.constant.tolist() == [1]
    assert facts(torch.ones(4, 2)).is_same_within_batches
    assert [each.name for each in facts_of([{"a": torch.ones(2), "b": torch.ones(2)}], "inputs", False)] == [
        "inputs['a']",
        "inputs['b']",
    ]


UNEVEN = torch.cat([white(64, 4), 1000 * white(64, 1)], 1)


@pytest.mark.parametrize(
    ("x", "large", "small"),
    [
        (white(64, 4), False, False),
        (3.9 * white(64, 4), False, False),
        (4.1 * white(64, 4), True, False),
        (0.04 * torch.rand(64, 4), False, True),
        (torch.rand(64, 1, 8, 8), False, False),
        (255 * torch.rand(64, 1, 8, 8), True, False),
        (UNEVEN, True, False),
        (UNEVEN / 1000, False, False),
        (torch.zeros(64, 4), False, False),
        (torch.eye(64), False, False),
        (integers(1000, 64, 4), False, False),
    ],
    ids=["white", "3.9", "4.1", "tiny", "pixels", "raw", "uneven", "uneven but ordinary", "zero", "one-hot", "tokens"],
)
def test_badly_scaled_is_too_large_or_too_small(x: Tensor, large: bool, small: bool) -> None:
    of = facts(x)
    assert (is_too_large(of), is_too_small(of), is_badly_scaled(of)) == (large, small, large or small)


def test_dominance_is_the_largest_feature_over_the_median_one() -> None:
    assert facts(UNEVEN).dominance == pytest.approx(1000)
    assert facts(normal(8, 3, 4, 4)).dominance == 1.0  # only in a table


def test_batches_of_other_lengths_are_described_by_their_numbers() -> None:
    of = facts(torch.tensor([[1.0, 3.0]]), torch.tensor([[2.0, 4.0, 6.0]]))
    assert (of.low, of.high, of.not_finite) == (1, 6, 0)


@pytest.mark.parametrize(
    ("counts", "shapes", "may_be"),
    [
        ([[3, 5], [2, 4]], [(2, 5), (2, 4)], True),  # padded to the longest of each batch
        ([[3, 5], [2, 4]], [(8,), (6,)], True),  # joined to one
        ([[3, 5], [2, 4]], [(2, 9), (2, 9)], False),
        ([[3, 5], [2, 4]], [(2, 5), (2, 9)], False),  # by chance in one batch
    ],
)
def test_lengths_are_the_sizes_of_another_tensor_in_every_batch(
    counts: list[list[int]], shapes: list[tuple[int, ...]], may_be: bool
) -> None:
    lengths = [torch.tensor(each) for each in counts]
    whole = [(torch.zeros(shape), each) for shape, each in zip(shapes, lengths, strict=True)]
    (of,) = facts_of(lengths, "targets", False, whole=whole)
    assert of.may_be_lengths is may_be
