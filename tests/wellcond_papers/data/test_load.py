from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from wellcond.errors import CorruptData, DataNotFound
from wellcond_papers.data import Dataset, load


def test_a_data_set_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load("digits") is load("digits", train=True)
    assert load("digits") is not load("digits", train=False)
    assert load("digits", size=32) is load("digits", size=32)
    monkeypatch.setenv("WELLCOND_DATA", str(tmp_path))
    with pytest.raises(DataNotFound, match=str(tmp_path)):
        load("cifar10")
    monkeypatch.setenv("WELLCOND_DATA", str(tmp_path / "other"))
    with pytest.raises(DataNotFound, match="other"):
        load("cifar10")


def test_digits_become_color_images_of_any_size() -> None:
    small, large = load("digits"), load("digits", size=32, channels=3)
    assert large.images.shape == (1437, 3, 32, 32)
    assert (large.peak, large.classes, large.name) == (16, small.classes, small.name)
    assert torch.equal(large.images[:, 0], large.images[:, 2])
    assert torch.equal(large.labels, small.labels)


@pytest.mark.parametrize(("wrong", "hint"), [("cifar", "did you mean 'cifar10'"), ("svhn", "only digits, mnist")])
def test_an_unknown_name_is_refused_with_the_choices(wrong: str, hint: str) -> None:
    with pytest.raises(ValueError, match=hint):
        load(wrong)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10", "cifar100", "imagenet"])
@pytest.mark.parametrize("train", [True, False])
def test_an_empty_folder_is_told_what_to_fetch_and_where_to_put_it(tmp_path: Path, name: str, train: bool) -> None:
    with pytest.raises(DataNotFound) as caught:
        load(name, tmp_path, train=train)
    text = str(caught.value)
    assert "http" in text
    assert str(tmp_path) in text
    if name != "imagenet":
        assert f"download('{name}', '{tmp_path}')" in text


def blocks(*values: int) -> Dataset:
    """One gray image, row by row."""
    side = int(len(values) ** 0.5)
    images = torch.tensor(values, dtype=torch.uint8).reshape(1, 1, side, side)
    return Dataset(images, torch.tensor([0]), ("one",), "one")


def test_smaller_images_are_means_of_blocks_behind_a_crop() -> None:
    assert blocks(0, 1, 2, 3).resized(1).images.item() == 2  # 1.5, rounded up
    nine = blocks(9, 9, 9, 9, 5, 9, 9, 9, 9)
    assert nine.resized(1).images.item() == 9  # 77/9
    # 3 → 2: a crop, since blocks of one pixel fit
    assert nine.resized(2).images.flatten().tolist() == [9, 9, 9, 5]
    assert nine.resized(3).images.equal(nine.images)


def test_larger_images_are_interpolated() -> None:
    assert blocks(7).resized(4).images.flatten().tolist() == [7] * 16
    # centers of the new pixels lie at ±1/4 of the old ones
    row = blocks(0, 100, 0, 100).resized(4).images[0, 0, 0].tolist()
    assert row == [0, 25, 75, 100]


def test_sizes_and_channels_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="size must be at least 1, not 0"):
        load("digits", size=0)
    color = load("digits", channels=3)
    with pytest.raises(ValueError, match="images of 3 channels cannot be given 1"):
        color.with_channels(1)
    assert color.with_channels(3) is color


# CIFAR-100 and Fashion-MNIST: what differs from CIFAR-10 and MNIST

PIXELS = np.random.default_rng(0).integers(0, 256, (3, 3072), dtype=np.uint8)


def test_a_cifar100_record_is_two_labels_and_three_planes(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-100-binary"
    folder.mkdir()
    rows = [bytes([coarse, fine]) + x.tobytes() for coarse, fine, x in zip((1, 2, 3), (99, 0, 41), PIXELS, strict=True)]
    (folder / "train.bin").write_bytes(b"".join(rows))
    data = load("cifar100", tmp_path)
    assert data.labels.tolist() == [99, 0, 41]
    assert torch.equal(data.images, torch.from_numpy(PIXELS).reshape(3, 3, 32, 32))
    assert [data.classes[k] for k in (0, 41, 99)] == ["apple", "lawn_mower", "worm"]
    assert len(set(data.classes)) == 100


def test_pickles_of_cifar100_have_fine_labels(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    whole = {b"data": PIXELS, b"fine_labels": [5, 6, 99], b"coarse_labels": [1, 2, 3]}
    (folder / "test").write_bytes(pickle.dumps(whole))
    assert load("cifar100", tmp_path, train=False).labels.tolist() == [5, 6, 99]
    (folder / "train").write_bytes(pickle.dumps({b"data": PIXELS, b"labels": [5, 6, 7]}))
    with pytest.raises(CorruptData, match="expected the keys 'data' and 'fine_labels'"):
        load("cifar100", tmp_path)


def test_damaged_records_of_cifar100_are_reported(tmp_path: Path) -> None:
    (tmp_path / "test.bin").write_bytes(bytes(3073))
    with pytest.raises(CorruptData, match="multiple of 3074 bytes"):
        load("cifar100", tmp_path, train=False)
    (tmp_path / "test.bin").write_bytes(bytes([0, 100]) + bytes(3072))
    with pytest.raises(CorruptData, match="labels in 0 to 99, found 100"):
        load("cifar100", tmp_path, train=False)


def test_fashion_mnist_is_never_taken_from_the_files_of_mnist(tmp_path: Path) -> None:
    def idx(*shape: int) -> bytes:
        sizes = b"".join(n.to_bytes(4, "big") for n in shape)
        return bytes([0, 0, 8, len(shape)]) + sizes + bytes(int(np.prod(shape)))

    def write(folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "t10k-images-idx3-ubyte").write_bytes(idx(2, 28, 28))
        (folder / "t10k-labels-idx1-ubyte").write_bytes(idx(2))

    write(tmp_path)
    write(tmp_path / "MNIST" / "raw")
    with pytest.raises(DataNotFound, match="FashionMNIST"):
        load("fashion-mnist", tmp_path, train=False)
    write(tmp_path / "FashionMNIST" / "raw")
    data = load("fashion-mnist", tmp_path, train=False)
    assert data.name == "Fashion-MNIST test"
    assert data.classes[9] == "Ankle boot"


@pytest.mark.parametrize("train", [True, False])
def test_the_real_cifar100_has_balanced_classes_and_the_known_mean(real_data: Path, train: bool) -> None:
    if not (real_data / "cifar-100-binary").is_dir() and not (real_data / "cifar-100-python").is_dir():
        pytest.skip("CIFAR-100 is not in $WELLCOND_DATA")
    data = load("cifar100", real_data, train=train)
    assert data.labels.bincount().tolist() == [500 if train else 100] * 100
    if train:
        assert [round(m, 4) for m in data.moments[0].tolist()] == [0.5071, 0.4865, 0.4409]
