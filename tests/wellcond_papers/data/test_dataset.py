from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from wellcond_papers.data import Dataset


def random_set(count: int = 50, channels: int = 3) -> Dataset:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, channels, 5, 4), dtype=torch.uint8, generator=generator)
    labels = torch.randint(0, 3, (count,), generator=generator)
    return Dataset(images, labels, ("a", "b", "c"), "random")


def test_inputs_are_pixels_over_the_peak_in_any_dtype_and_shape() -> None:
    data = random_set()
    x, y = data.tensors(dtype=torch.float64, standardize=False)
    assert torch.equal(x, data.images.double() / 255)
    assert torch.equal(y, data.labels)
    assert torch.equal(data.tensors(flatten=True)[0], data.tensors()[0].reshape(50, 60))
    assert torch.equal(data.tensors(dtype=torch.bfloat16)[0], data.tensors()[0].bfloat16())  # rounded once
    images = torch.tensor([0, 4, 16], dtype=torch.uint8).reshape(3, 1, 1, 1)
    sixteenths = Dataset(images, torch.zeros(3, dtype=torch.int64), ("a",), "sixteenths", peak=16)
    assert sixteenths.tensors(standardize=False)[0].flatten().tolist() == [0.0, 0.25, 1.0]


def test_standardized_channels_have_mean_zero_and_std_one() -> None:
    data = random_set()
    pixels = data.images.double() / 255
    mean, std = data.moments
    torch.testing.assert_close(mean, pixels.mean((0, 2, 3)), atol=1e-13, rtol=0)
    torch.testing.assert_close(std, pixels.std((0, 2, 3), correction=0), atol=1e-13, rtol=0)
    x, _ = data.tensors(dtype=torch.float64)
    # float64 sums over 1000 pixels: rounding stays far below 1e-12.
    torch.testing.assert_close(x.mean((0, 2, 3)), torch.zeros(3, dtype=torch.float64), atol=1e-12, rtol=0)
    ones = torch.ones(3, dtype=torch.float64)
    torch.testing.assert_close(x.std((0, 2, 3), correction=0), ones, atol=1e-12, rtol=0)
    flat = Dataset(torch.full((4, 1, 2, 2), 9, dtype=torch.uint8), torch.zeros(4).long(), ("a",), "flat")
    # 9/255 is not a float32 number, so the mean of a constant channel is met to one rounding.
    torch.testing.assert_close(flat.tensors()[0], torch.zeros(4, 1, 2, 2), atol=1e-8, rtol=0)


def test_a_subset_and_its_batches_are_copies_scaled_like_the_whole_set() -> None:
    data = random_set()
    x, y = data.tensors(flatten=True)
    x30, y30 = data.tensors(count=30, flatten=True)
    assert torch.equal(x30, x[:30])
    assert torch.equal(y30, y[:30])
    batches = data.batches(8, count=30, flatten=True)
    assert [len(labels) for _, labels in batches] == [8, 8, 8, 6]
    assert torch.equal(torch.cat([inputs for inputs, _ in batches]), x30)
    assert torch.equal(torch.cat([labels for _, labels in batches]), y30)
    x.zero_()
    y.fill_(9)
    assert data.images.any()
    assert data.labels.max() < 3


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda data: data.tensors(count=0), "1 to 50"),
        (lambda data: data.tensors(count=-1), "1 to 50"),
        (lambda data: data.tensors(count=51), "1 to 50"),
        (lambda data: data.batches(0), "at least 1"),
        (lambda data: data.tensors(dtype=torch.int64), "floating-point"),
    ],
)
def test_wrong_arguments_are_refused(wrong: Callable[[Dataset], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wrong(random_set())


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (torch.zeros(2, 1, 2, 2), torch.zeros(2).long(), "uint8"),
        (torch.zeros(2, 4).byte(), torch.zeros(2).long(), r"\(N, C, H, W\)"),
        (torch.zeros(0, 1, 2, 2).byte(), torch.zeros(0).long(), "non-empty"),
        (torch.zeros(2, 1, 2, 2).byte(), torch.zeros(3).long(), r"\(2,\) int64"),
        (torch.zeros(2, 1, 2, 2).byte(), torch.zeros(2), "int64"),
        (torch.zeros(2, 1, 2, 2).byte(), torch.tensor([0, 1]), "0 to 0"),
        (torch.zeros(2, 1, 2, 2).byte(), torch.tensor([0, -1]), "0 to 0"),
    ],
)
def test_inconsistent_contents_are_refused(images: torch.Tensor, labels: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Dataset(images, labels, ("only",), "bad")
