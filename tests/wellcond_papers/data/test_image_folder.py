from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from wellcond.errors import CorruptData, DataNotFound, TooLarge
from wellcond_papers.data import Batches, ImageFolder, load

Image = pytest.importorskip("PIL.Image")

SIZE = 14
SIDE = 16
"""8/7 of it: an image of this side is not resized, so that its pixels come back as they are."""


def write(path: Path, pixels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Six images of three classes; the red of image k is k."""
    generator = np.random.default_rng(0)
    for k in range(6):
        pixels = generator.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
        pixels[..., 0] = k
        name = f"{'abc'[k % 3]}/{'deep/' if k == 5 else ''}{k}.png"
        for part in ("train", "val"):
            write(tmp_path / "imagenet" / part / name, pixels)
    return tmp_path


def number(image: torch.Tensor) -> int:
    return int(image[0, 0, 0])


def test_folders_are_classes_and_images_may_lie_deeper(root: Path) -> None:
    data = load("imagenet", root, size=SIZE)
    assert repr(data) == "ImageFolder(ImageNet train: 6 images of 3x14x14, 3 classes)"
    assert data.classes == ("a", "b", "c")
    images, labels = data.tensors(standardize=False)
    assert sorted(round(255 * float(x[0, 0, 0])) for x in images) == [0, 1, 2, 3, 4, 5]
    assert all(round(255 * float(x[0, 0, 0])) % 3 == y for x, y in zip(images, labels, strict=True))


def test_the_center_is_cut_out_pixel_by_pixel(root: Path) -> None:
    data = ImageFolder(root / "imagenet" / "val", SIZE)
    for path, (image, _) in zip(data.paths, data, strict=False):
        whole = torch.from_numpy(np.asarray(Image.open(path)).copy()).permute(2, 0, 1)
        assert torch.equal(image, whole[:, 1:15, 1:15])


def test_the_shorter_side_is_resized_and_gray_becomes_color(tmp_path: Path) -> None:
    # left half black, right half white: the middle of the square is the edge
    pixels = np.zeros((40, 80), dtype=np.uint8)
    pixels[:, 40:] = 255
    write(tmp_path / "a" / "x.png", pixels)
    image, label = ImageFolder(tmp_path, 28)[0]
    assert (image.shape, image.dtype, label) == ((3, 28, 28), torch.uint8, 0)
    assert not image[:, :, :13].any()
    assert bool((image[:, :, 15:] == 255).all())


def test_a_share_of_a_batch_is_decoded_alone(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = load("imagenet", root, size=SIZE)
    whole = [Batches(data, 4, seed=3, augment=("crop", "flip"))(step) for step in range(2)]
    decoded: list[int] = []
    original = ImageFolder.decoded

    def counted(self: ImageFolder, chosen: Sequence[int], places: Any = None) -> torch.Tensor:
        if self is shared:  # another thread may still decode the next whole batch
            decoded.append(len(chosen))
        return original(self, chosen, places)

    monkeypatch.setattr(ImageFolder, "decoded", counted)
    shared = ImageFolder(root / "imagenet" / "train", SIZE)
    batches, share = Batches(shared, 4, seed=3, augment=("crop", "flip")), slice(1, None, 2)
    for step, (x, y) in enumerate(whole):
        mine = batches(step, share)
        assert torch.equal(mine[0], x[share])
        assert torch.equal(mine[1], y[share])
    assert set(decoded) == {2}


def test_a_stream_has_the_first_images_in_order(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wellcond_papers.data.image_folder.STREAMED", 2)
    data = ImageFolder(root / "imagenet" / "train", SIZE)
    parts = list(data.stream(torch.device("cpu"), 5))
    x, y = data.tensors(count=5)
    assert [len(labels) for _, labels in parts] == [2, 2, 1]
    assert torch.equal(torch.cat([images for images, _ in parts]), x)
    assert torch.equal(torch.cat([labels for _, labels in parts]), y)


def test_inputs_have_imagenet_s_mean_and_deviation(root: Path) -> None:
    data = load("imagenet", root, size=SIZE)
    plain, standard = (data.tensors(standardize=flag, count=3)[0] for flag in (False, True))
    mean, std = (torch.tensor(v)[:, None, None] for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    torch.testing.assert_close(standard, (plain - mean) / std)


def test_a_data_loader_takes_it(root: Path) -> None:
    loaded = list(DataLoader(ImageFolder(root / "imagenet" / "train", SIZE), batch_size=4))
    assert [tuple(x.shape) for x, _ in loaded] == [(4, 3, 14, 14), (2, 3, 14, 14)]


def test_batches_by_step_are_the_same_in_any_order_and_cover_an_epoch(root: Path) -> None:
    data = load("imagenet", root, size=SIZE)
    batches = Batches(data, 2, seed=1, augment=["crop", "flip"], standardize=False)
    assert batches.per_epoch == 3
    forwards = [batches(step) for step in range(7)]
    numbers = [round(255 * float(x[0, 0, 0])) for step in range(3) for x in forwards[step][0]]
    assert sorted(numbers) == [0, 1, 2, 3, 4, 5]
    again = Batches(data, 2, seed=1, augment=["crop", "flip"], standardize=False)
    for step in (6, 2, 0, 5):
        assert torch.equal(again(step)[0], forwards[step][0])
        assert torch.equal(again(step)[1], forwards[step][1])


def test_a_crop_is_a_window_of_the_image(root: Path) -> None:
    data = ImageFolder(root / "imagenet" / "train", SIZE)
    x, _ = Batches(data, 6, seed=2, augment=["crop"], standardize=False)(0)
    corners = set()
    for image in (255 * x).round().to(torch.uint8):
        path = next(path for path in data.paths if path.stem == str(number(image)))
        whole = torch.from_numpy(np.asarray(Image.open(path)).copy()).permute(2, 0, 1)
        windows = {(r, c): whole[:, r : r + SIZE, c : c + SIZE] for r in range(3) for c in range(3)}
        corners |= {corner for corner, window in windows.items() if torch.equal(window, image)}
    assert len(corners) > 1


def test_the_first_images_are_of_several_classes(tmp_path: Path) -> None:
    for k in range(20):
        write(tmp_path / f"{k // 10}" / f"{k}.png", np.zeros((4, 4, 3), dtype=np.uint8))
    data = ImageFolder(tmp_path, 2)
    assert data.labels[:8].unique().tolist() == [0, 1]
    assert [path.name for path in data.paths] == [path.name for path in ImageFolder(tmp_path, 2).paths]


def test_another_size_decodes_nothing_and_other_channels_are_refused(root: Path) -> None:
    data = load("imagenet", root, size=SIZE, channels=3)
    assert isinstance(data, ImageFolder)
    assert data.resized(7)[0][0].shape == (3, 7, 7)
    assert data.size == SIZE
    with pytest.raises(ValueError, match="cannot be given 1"):
        data.with_channels(1)
    with pytest.raises(ValueError, match="size must be at least 1"):
        data.resized(0)


def test_what_does_not_fit_in_memory_is_refused_before_it_is_decoded(root: Path) -> None:
    with pytest.raises(TooLarge, match="take 54 GiB; ask for fewer, or for batches"):
        load("imagenet", root).resized(56_755).tensors()


def test_missing_folders_and_damaged_images_are_named(root: Path, tmp_path: Path) -> None:
    with pytest.raises(DataNotFound, match="one folder per class"):
        ImageFolder(tmp_path / "nowhere")
    (tmp_path / "empty" / "a").mkdir(parents=True)
    with pytest.raises(DataNotFound, match="has no images"):
        ImageFolder(tmp_path / "empty")
    (root / "imagenet" / "val" / "a" / "0.png").write_bytes(b"no image")
    with pytest.raises(CorruptData, match=r"0\.png: expected an image"):
        load("imagenet", root, train=False, size=SIZE).tensors()
    batches = Batches(load("imagenet", root, train=False, size=SIZE), 1)
    with pytest.raises(CorruptData, match=r"0\.png"):
        list(map(batches, range(6)))


def test_sixteen_bits_become_eight(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for value in (0, 257, 128 * 257, 65535):
        Image.fromarray(np.full((SIDE, SIDE), value, dtype=np.uint16)).save(tmp_path / "a" / f"{value}.png")
    images = ImageFolder(tmp_path, SIZE).images
    assert sorted(images[:, 0, 0, 0].tolist()) == [0, 1, 128, 255]
