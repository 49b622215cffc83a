"""Batches by step, against slow references that treat one image at a time."""

from __future__ import annotations

import math
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

from wellcond_papers.data import Batches, Dataset
from wellcond_papers.data.batches import MARGIN, draw_epoch, rotate


def dataset(count: int = 50, channels: int = 3, height: int = 9, width: int = 12) -> Dataset:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, channels, height, width), generator=generator, dtype=torch.uint8)
    return Dataset(images, torch.arange(count), tuple(map(str, range(count))), "random")


def cropped_and_flipped(x: Tensor, shift: Tensor, flip: bool, is_cropped: bool, is_flipped: bool) -> Tensor:
    """Pixel by pixel."""
    height, width = x.shape[1:]
    down, across = (int(s) - MARGIN for s in shift) if is_cropped else (0, 0)
    y = torch.zeros_like(x)
    for row in range(height):
        for column in range(width):
            mirrored = width - 1 - column if is_flipped and flip else column
            source = row + down, mirrored + across
            if 0 <= source[0] < height and 0 <= source[1] < width:
                y[:, row, column] = x[:, source[0], source[1]]
    return y


@pytest.mark.parametrize("augment", [(), ("crop",), ("flip",), ("crop", "flip")])
@pytest.mark.parametrize("standardize", [True, False])
def test_crops_and_flips_are_exactly_those_of_the_draws(augment: Any, standardize: bool) -> None:
    images = dataset(12)
    x, _ = images.tensors(standardize=standardize)
    batches = Batches(images, 4, seed=3, augment=augment, standardize=standardize)
    draws = draw_epoch(12, 3, 1)
    for place in range(12):
        inputs, labels = batches(3 + place // 4)
        expected = cropped_and_flipped(
            x[draws.image[place]], draws.shift[place], bool(draws.flip[place]), "crop" in augment, "flip" in augment
        )
        assert torch.equal(inputs[place % 4], expected)
        assert labels[place % 4] == draws.image[place]


def test_draws_are_uniform_and_leave_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    draws = draw_epoch(90_000, 0, 0)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(draws.image.sort().values, torch.arange(90_000))
    # five standard errors
    assert draws.flip.double().mean().item() == pytest.approx(0.5, abs=5 * 0.5 / 300)
    for axis in (0, 1):
        shares = draws.shift[:, axis].bincount(minlength=9) / 90_000
        assert torch.allclose(shares, torch.tensor(1 / 9), atol=5 * math.sqrt(1 / 9 * 8 / 9 / 90_000))
    degrees = torch.rad2deg(draws.angle)
    assert 14.9 < degrees.max() <= 15 + 1e-5
    assert -15 - 1e-5 <= degrees.min() < -14.9
    assert abs(degrees.mean().item()) < 5 * 30 / math.sqrt(12 * 90_000)


def rotated(x: Tensor, angle: float) -> Tensor:
    """One image, pixel by pixel: the value at the place that turns into it, weighted by the four pixels around it."""
    height, width = x.shape[1:]
    middle = (height - 1) / 2, (width - 1) / 2
    y = torch.zeros_like(x)
    for row in range(height):
        for column in range(width):
            down, across = row - middle[0], column - middle[1]
            # rows run downwards, so that this is a counterclockwise turn by the angle
            source = (
                middle[0] + math.sin(angle) * across + math.cos(angle) * down,
                middle[1] + math.cos(angle) * across - math.sin(angle) * down,
            )
            low = math.floor(source[0]), math.floor(source[1])
            for r in (low[0], low[0] + 1):
                for c in (low[1], low[1] + 1):
                    if 0 <= r < height and 0 <= c < width:
                        weight = (1 - abs(source[0] - r)) * (1 - abs(source[1] - c))
                        y[:, row, column] += weight * x[:, r, c]
    return y


def test_rotation_is_the_bilinear_one_also_of_oblong_images() -> None:
    for height, width in ((5, 5), (4, 7), (7, 4)):
        x = torch.rand(4, 2, height, width, dtype=torch.float64)
        angles = torch.tensor([0.0, 0.2, -0.25, 1.3], dtype=torch.float64)
        expected = torch.stack([rotated(image, float(angle)) for image, angle in zip(x, angles, strict=True)])
        torch.testing.assert_close(rotate(x, angles), expected, rtol=0, atol=1e-10)


def test_a_quarter_turn_is_counterclockwise() -> None:
    x = torch.rand(1, 1, 5, 5, dtype=torch.float64)
    turned = rotate(x, torch.tensor([math.pi / 2], dtype=torch.float64))
    torch.testing.assert_close(turned[0, 0], torch.rot90(x[0, 0]), rtol=0, atol=1e-12)


def test_rotated_batches_turn_every_image_by_its_angle() -> None:
    images = dataset(10)
    x, _ = images.tensors()
    draws = draw_epoch(10, 0, 0)
    inputs, _ = Batches(images, 10, augment=["rotation"])(0)
    for place in range(10):
        expected = rotated(x[draws.image[place]].double(), float(draws.angle[place]))
        torch.testing.assert_close(inputs[place].double(), expected, rtol=0, atol=1e-5)


def test_an_epoch_has_every_image_once_and_the_next_has_another_order() -> None:
    batches = Batches(dataset(50), 10, seed=1, augment=["crop"])
    assert batches.per_epoch == 5
    epochs = [torch.cat([batches(5 * epoch + k)[1] for k in range(5)]).tolist() for epoch in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(50))
    assert epochs[0] != epochs[1]


def test_a_ragged_rest_is_left_out_and_count_takes_the_first() -> None:
    batches = Batches(dataset(50), 8, count=20)
    assert batches.per_epoch == 2
    assert all(batches(step)[1].max() < 20 and len(batches(step)[1]) == 8 for step in range(6))


def test_a_step_has_the_same_batch_whatever_was_asked_for_before() -> None:
    def fresh(seed: int = 7) -> Batches:
        return Batches(dataset(50), 8, seed=seed, augment=["crop", "flip", "rotation"])

    forwards = [fresh()(step) for step in range(15)]
    batches = fresh()
    for step in [*reversed(range(15)), 3, 11, 3]:
        x, y = batches(step)
        assert torch.equal(x, forwards[step][0])
        assert torch.equal(y, forwards[step][1])
    assert not torch.equal(fresh(8)(0)[0], forwards[0][0])


def test_the_order_does_not_depend_on_the_augmentation() -> None:
    labels = [Batches(dataset(50), 25, augment=augment)(0)[1] for augment in ((), ("crop",), ("flip", "rotation"))]
    assert torch.equal(labels[0], labels[1])
    assert torch.equal(labels[0], labels[2])


def test_many_batches_made_at_once_are_the_same_as_one_by_one() -> None:
    """As on a GPU, where the parts of an epoch do not divide it."""
    one = Batches(dataset(50), 8, augment=["crop", "flip"])
    many = Batches(dataset(50), 8, augment=["crop", "flip"])
    many._batches_at_once = 4
    for step in range(14):
        assert torch.equal(one(step)[0], many(step)[0])
        assert torch.equal(one(step)[1], many(step)[1])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu_crops_and_flips_are_the_same_bits() -> None:
    images = dataset(50)
    for augment, tolerance in ((["crop", "flip"], 0.0), (["crop", "flip", "rotation"], 1e-5)):
        here, there = (Batches(images, 8, augment=augment, device=device) for device in ("cpu", "cuda"))
        for step in range(14):
            torch.testing.assert_close(there(step)[0].cpu(), here(step)[0], rtol=0, atol=tolerance)
            assert torch.equal(there(step)[1].cpu(), here(step)[1])


def test_shapes_layouts_and_dtypes() -> None:
    images = dataset(20)
    x, _ = Batches(images, 5, flatten=True, dtype=torch.float64, augment=["crop"])(0)
    assert (x.shape, x.dtype) == ((5, 3 * 9 * 12), torch.float64)
    plain, _ = Batches(images, 5, augment=["crop"])(0)
    torch.testing.assert_close(x, plain.double().flatten(1), rtol=0, atol=1e-6)
    last, _ = Batches(images, 5, channels_last=True, augment=["crop"])(0)
    assert last.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(last, plain)
    half, _ = Batches(images, 5, dtype=torch.bfloat16, augment=["crop", "flip", "rotation"])(0)
    assert half.dtype == torch.bfloat16


def test_what_was_made_for_one_part_is_freed_before_the_next() -> None:
    batches = Batches(dataset(50), 8, augment=["crop"])
    parts = []
    for step in range(20):
        batches(step)
        assert batches._part is not None
        parts.append(weakref.ref(batches._part[1]))
    assert [part() is not None for part in parts] == [False] * 19 + [True]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"size": 0}, "size must lie in 1 to 50"),
    ({"size": 51}, "size must lie in 1 to 50"),
    ({"size": 8, "count": 5}, "size must lie in 1 to 5"),
    ({"size": 8, "count": 51}, "count must lie in 1 to 50"),
    ({"size": 8, "count": 0}, "count must lie in 1 to 50"),
    ({"size": 8, "augment": ["crop", "mixup"]}, "augment takes crop, flip, rotation, not mixup"),
    ({"size": 8, "dtype": torch.uint8}, "dtype must be a floating-point type"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_what_makes_no_batches_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Batches(dataset(50), **options)
