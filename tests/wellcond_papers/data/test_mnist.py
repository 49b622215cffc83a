from __future__ import annotations

import gzip
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from wellcond.errors import CorruptData, DataNotFound
from wellcond_papers.data import mnist

IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
COUNT = 6


def idx(values: Tensor) -> bytes:
    header = struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
    return header + values.numpy().tobytes()


@pytest.fixture
def pixels() -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (COUNT, 28, 28), dtype=torch.uint8, generator=generator)


@pytest.fixture
def root(tmp_path: Path, pixels: Tensor) -> Path:
    """A folder with a small training set, its files neither gzipped nor in a subfolder."""
    (tmp_path / IMAGES).write_bytes(idx(pixels))
    (tmp_path / LABELS).write_bytes(idx(torch.arange(COUNT).byte()))
    return tmp_path


def test_images_and_labels_are_those_of_the_files_of_each_set(root: Path, pixels: Tensor) -> None:
    data = mnist(root)
    assert torch.equal(data.images, pixels[:, None])
    assert data.labels.tolist() == list(range(COUNT))
    assert data.classes == tuple("0123456789")
    (root / "t10k-images-idx3-ubyte").write_bytes(idx(pixels[:2]))
    (root / "t10k-labels-idx1-ubyte").write_bytes(idx(torch.tensor([9, 8]).byte()))
    assert mnist(root, train=False).labels.tolist() == [9, 8]


@pytest.mark.parametrize("folder", ["", "MNIST/raw", "raw"])
@pytest.mark.parametrize("mark", "-.")
@pytest.mark.parametrize("gzipped", [False, True])
def test_every_published_name_and_folder_gives_the_same_data(
    root: Path, tmp_path_factory: pytest.TempPathFactory, folder: str, mark: str, gzipped: bool
) -> None:
    other = tmp_path_factory.mktemp("other")
    (other / folder).mkdir(parents=True, exist_ok=True)
    for name in (IMAGES, LABELS):
        content = (root / name).read_bytes()
        path = other / folder / (name.replace("-idx", f"{mark}idx") + ".gz" * gzipped)
        path.write_bytes(gzip.compress(content) if gzipped else content)
    assert torch.equal(mnist(other).images, mnist(root).images)
    assert torch.equal(mnist(other).labels, mnist(root).labels)


def test_without_a_root_it_is_that_of_the_environment_or_the_folder_data(
    root: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WELLCOND_DATA", str(root))
    assert len(mnist()) == COUNT
    home = tmp_path_factory.mktemp("home")
    (home / "data").symlink_to(root)
    monkeypatch.chdir(home)
    monkeypatch.delenv("WELLCOND_DATA")
    assert len(mnist()) == COUNT


def test_missing_files_are_named_with_the_folders_and_what_to_do(root: Path) -> None:
    (root / LABELS).unlink()
    with pytest.raises(DataNotFound) as caught:
        mnist(root)
    text = str(caught.value)
    assert f"{root} (without {LABELS})" in text
    assert f"{root / 'MNIST' / 'raw'} (no such folder)" in text
    assert f"https://ossci-datasets.s3.amazonaws.com/mnist/{IMAGES}.gz\n" in text
    assert f"into {root / 'MNIST' / 'raw'} (no need to unpack)" in text
    assert f"from wellcond_papers.data import download; download('mnist', '{root}')" in text
    assert "WELLCOND_DATA" in text


@pytest.mark.parametrize("side", [1, 5, 9, 12, 14, 20, 28])
def test_shrinking_is_a_center_crop_and_an_area_average(root: Path, pixels: Tensor, side: int) -> None:
    factor = max(f for f in range(1, 29) if side * f <= 28)
    margin = (28 - side * factor) // 2
    center = pixels[:, None, margin : margin + side * factor, margin : margin + side * factor].double()
    average = nn.functional.avg_pool2d(center, factor)
    shrunk = mnist(root, size=side).images
    assert shrunk.shape == (COUNT, 1, side, side)
    # Rounding to a byte moves a pixel by at most one half.
    assert (shrunk.double() - average).abs().max() <= 0.5


def test_size_12_averages_2x2_blocks_of_the_central_24x24(root: Path) -> None:
    image = torch.zeros(COUNT, 28, 28, dtype=torch.uint8)
    image[:, 2:4, 2:4] = torch.tensor([[100, 0], [20, 80]], dtype=torch.uint8)
    image[:, :2] = 255
    (root / IMAGES).write_bytes(idx(image))
    shrunk = mnist(root, size=12).images
    assert shrunk[0, 0, 0, 0] == 50
    assert shrunk.sum() == 50 * COUNT


@pytest.mark.parametrize("size", [0, -3, 29])
def test_a_size_without_a_pooling_factor_is_refused(root: Path, size: int) -> None:
    with pytest.raises(ValueError, match="1 to 28"):
        mnist(root, size=size)


BYTES = COUNT * 784
CORRUPT: dict[str, tuple[str, Callable[[bytes], bytes], str]] = {
    "another magic number": (
        IMAGES, lambda old: b"\x00\x00\x0d\x03" + old[4:], "expected the magic number 0x00000803, found 0x00000d03",
    ),
    "labels for images": (
        IMAGES, lambda _: idx(torch.arange(COUNT).byte()) + bytes(100), "number 0x00000803, found 0x00000801",
    ),
    "other dimensions": (
        IMAGES, lambda _: idx(torch.zeros(COUNT, 20, 28).byte()), r"items of shape \(28, 28\), found \(20, 28\)",
    ),
    "a byte too few": (IMAGES, lambda old: old[:-1], f"expected {BYTES} bytes .* found {BYTES - 1}"),
    "a byte too many": (IMAGES, lambda old: old + b"\x00", f"expected {BYTES} bytes .* found {BYTES + 1}"),
    "no header": (LABELS, lambda _: b"", "expected an idx header of 8 bytes, found 0"),
    "half a header": (LABELS, lambda old: old[:7], "expected an idx header of 8 bytes, found 7"),
    "an empty set": (LABELS, lambda _: idx(torch.zeros(0).byte()), "at least one item"),
    "fewer labels": (
        LABELS, lambda _: idx(torch.zeros(COUNT - 1).byte()), f"expected {COUNT} labels.* found {COUNT - 1}",
    ),
    "a label beyond nine": (
        LABELS, lambda _: idx(torch.full((COUNT,), 10).byte()), "expected labels in 0 to 9, found 10",
    ),
    "a damaged gzip file": (
        IMAGES, lambda old: with_changed_middle(gzip.compress(old)), "expected a complete gzip file",
    ),
}  # fmt: skip


def with_changed_middle(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1 :]


@pytest.mark.parametrize(("name", "change", "message"), CORRUPT.values(), ids=CORRUPT)
def test_a_file_that_does_not_hold_what_it_promises_is_reported(
    root: Path, name: str, change: Callable[[bytes], bytes], message: str
) -> None:
    (root / name).write_bytes(change((root / name).read_bytes()))
    with pytest.raises(CorruptData, match=f"{name}: .*{message}"):
        mnist(root)


def test_a_gzip_file_cut_anywhere_is_reported(root: Path) -> None:
    whole = gzip.compress((root / LABELS).read_bytes())
    (root / LABELS).unlink()
    for size in range(len(whole)):
        (root / f"{LABELS}.gz").write_bytes(whole[:size])
        with pytest.raises(CorruptData, match=LABELS):
            mnist(root)


@pytest.mark.slow
@pytest.mark.parametrize("promised", [COUNT, 2**32 - 1])
def test_a_gzip_bomb_is_refused_without_being_unpacked(root: Path, promised: int) -> None:
    header = struct.pack(">4I", 0x803, promised, 28, 28)
    (root / IMAGES).unlink()
    with gzip.open(root / f"{IMAGES}.gz", "wb") as file:
        file.write(header)
        for _ in range(64):
            file.write(bytes(2**20))
    tracemalloc.start()
    try:
        with pytest.raises(CorruptData, match=IMAGES):
            mnist(root)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_a_header_that_promises_more_than_the_file_holds_is_refused(root: Path, pixels: Tensor) -> None:
    (root / IMAGES).write_bytes(struct.pack(">4I", 0x803, 60_000, 28, 28) + pixels.numpy().tobytes())
    with pytest.raises(CorruptData, match=f"expected {60_000 * 784} bytes .* found {BYTES}"):
        mnist(root)


def test_real_mnist_has_the_published_counts_and_moments(real_data: Path) -> None:
    train, test = mnist(real_data), mnist(real_data, train=False)
    assert train.images.shape == (60000, 1, 28, 28)
    assert test.images.shape == (10000, 1, 28, 28)
    assert train.labels.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert test.labels.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    mean, std = train.moments
    # The published values carry four decimals.
    assert mean.item() == pytest.approx(0.1307, abs=5e-5)
    assert std.item() == pytest.approx(0.3081, abs=5e-5)
