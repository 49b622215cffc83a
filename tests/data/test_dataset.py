from __future__ import annotations

import importlib
import sys

import pytest
import torch

import wellcond
import wellcond.models
from wellcond.data import Dataset


def random_set(count: int = 50, channels: int = 3) -> Dataset:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, channels, 5, 4), dtype=torch.uint8, generator=generator)
    labels = torch.randint(0, 3, (count,), generator=generator)
    return Dataset(images, labels, ("a", "b", "c"), "random")


def test_unstandardized_pixels_are_bytes_over_255() -> None:
    data = random_set()
    x, y = data.tensors(dtype=torch.float64, standardize=False)
    assert torch.equal(x, data.images.double() / 255)
    assert torch.equal(y, data.labels)


def test_peak_is_the_value_that_becomes_one() -> None:
    images = torch.tensor([0, 4, 16], dtype=torch.uint8).reshape(3, 1, 1, 1)
    data = Dataset(images, torch.zeros(3, dtype=torch.int64), ("a",), "sixteenths", peak=16)
    assert data.tensors(standardize=False)[0].flatten().tolist() == [0.0, 0.25, 1.0]


def test_standardized_channels_have_mean_zero_and_std_one() -> None:
    x, _ = random_set().tensors(dtype=torch.float64)
    # float64 sums over 1000 pixels: rounding stays far below 1e-12.
    torch.testing.assert_close(x.mean((0, 2, 3)), torch.zeros(3, dtype=torch.float64), atol=1e-12, rtol=0)
    std = x.std((0, 2, 3), correction=0)
    torch.testing.assert_close(std, torch.ones(3, dtype=torch.float64), atol=1e-12, rtol=0)


def test_moments_from_the_histogram_are_the_direct_ones() -> None:
    data = random_set()
    pixels = data.images.double() / 255
    mean, std = data.moments
    torch.testing.assert_close(mean, pixels.mean((0, 2, 3)), atol=1e-13, rtol=0)
    torch.testing.assert_close(std, pixels.std((0, 2, 3), correction=0), atol=1e-13, rtol=0)


def test_a_subset_is_scaled_like_the_whole_set() -> None:
    data = random_set()
    x, y = data.tensors()
    x7, y7 = data.tensors(count=7)
    assert torch.equal(x7, x[:7])
    assert torch.equal(y7, y[:7])


def test_a_constant_channel_becomes_zero() -> None:
    data = Dataset(torch.full((4, 1, 2, 2), 9, dtype=torch.uint8), torch.zeros(4).long(), ("a",), "flat")
    # 9/255 is not a float32 number, so the mean is met to one rounding.
    torch.testing.assert_close(data.tensors()[0], torch.zeros(4, 1, 2, 2), atol=1e-8, rtol=0)


def test_half_precision_is_the_rounded_single_precision() -> None:
    data = random_set()
    assert torch.equal(data.tensors(dtype=torch.bfloat16)[0], data.tensors()[0].bfloat16())


def test_flatten_keeps_one_row_per_example() -> None:
    data = random_set()
    x, _ = data.tensors(flatten=True)
    assert torch.equal(x, data.tensors()[0].reshape(50, 60))


def test_batches_put_together_are_the_tensors() -> None:
    data = random_set()
    batches = data.batches(8, count=30, flatten=True)
    assert [len(y) for _, y in batches] == [8, 8, 8, 6]
    x, y = data.tensors(count=30, flatten=True)
    assert torch.equal(torch.cat([b[0] for b in batches]), x)
    assert torch.equal(torch.cat([b[1] for b in batches]), y)


def test_the_tensors_are_copies() -> None:
    data = random_set()
    x, y = data.tensors()
    x.zero_()
    y.fill_(9)
    assert data.images.any()
    assert data.labels.max() < 3


@pytest.mark.parametrize("count", [0, -1, 51])
def test_a_count_outside_the_set_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match="1 to 50"):
        random_set().tensors(count=count)


def test_a_batch_size_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        random_set().batches(0)


def test_an_integer_dtype_is_refused() -> None:
    with pytest.raises(ValueError, match="floating-point"):
        random_set().tensors(dtype=torch.int64)


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


def test_the_data_and_models_rooms_import_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    for name in ("data", "models"):
        monkeypatch.setattr(wellcond, name, getattr(wellcond, name))  # so that it is put back
        for module in [m for m in sys.modules if m.startswith(f"wellcond.{name}")]:
            monkeypatch.delitem(sys.modules, module)
        importlib.import_module(f"wellcond.{name}")
