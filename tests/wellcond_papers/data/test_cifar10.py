from __future__ import annotations

import os
import pickle
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from wellcond.errors import CorruptData, DataNotFound
from wellcond_papers.data import cifar10

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
PIXELS = np.random.default_rng(0).integers(0, 256, (3, 3072), dtype=np.uint8)
LABELS = [7, 0, 9]


def written_by_python_2(pixels: np.ndarray[Any, Any], labels: list[int]) -> bytes:
    """The opcodes of Python 2's pickle (protocol 2) for the published batches: its str are BINSTRINGs."""
    shape = b"K" + bytes([len(pixels)]) + b"M" + struct.pack("<H", pixels.shape[1]) + b"\x86"
    dtype = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNN" + 2 * b"J\xff\xff\xff\xff" + b"K\x00tb"
    content = b"T" + struct.pack("<I", pixels.size) + pixels.tobytes()
    empty = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    array = empty + b"(K\x01" + shape + dtype + b"\x89" + content + b"tb"
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(U\x04data" + array + b"U\x06labels" + numbers + b"u."


def batch_file(tmp_path: Path, content: bytes) -> Path:
    (tmp_path / "test_batch").write_bytes(content)
    return tmp_path


def records(pixels: np.ndarray[Any, Any], labels: list[int]) -> bytes:
    return b"".join(bytes([y]) + x.tobytes() for x, y in zip(pixels, labels, strict=True))


def check_small_set(root: Path) -> None:
    data = cifar10(root, train=False)
    assert torch.equal(data.images, torch.from_numpy(PIXELS).reshape(3, 3, 32, 32))
    assert data.labels.tolist() == LABELS
    assert data.classes == CLASSES


def test_binary_records_are_a_label_and_three_planes(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    (folder / "test_batch.bin").write_bytes(records(PIXELS, LABELS))
    check_small_set(tmp_path)


@pytest.mark.parametrize("protocol", range(5))
@pytest.mark.parametrize("keys", [(b"data", b"labels"), ("data", "labels")])
@pytest.mark.parametrize("order", "CF")
def test_pickles_of_python_3_are_read(tmp_path: Path, protocol: int, keys: tuple[Any, Any], order: Any) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    contents = (np.asarray(PIXELS, order=order), LABELS)
    batch_file(folder, pickle.dumps(dict(zip(keys, contents, strict=True)), protocol))
    check_small_set(tmp_path)


def test_pickles_of_python_2_are_read(tmp_path: Path) -> None:
    check_small_set(batch_file(tmp_path, written_by_python_2(PIXELS, LABELS)))


def test_the_training_set_is_the_five_batches_in_order(tmp_path: Path) -> None:
    for k in range(1, 6):
        (tmp_path / f"data_batch_{k}.bin").write_bytes(records(PIXELS[:1], [k]))
    assert cifar10(tmp_path).labels.tolist() == [1, 2, 3, 4, 5]


def test_missing_files_are_named_with_the_folders_and_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "data_batch_1.bin").write_bytes(records(PIXELS, LABELS))
    with pytest.raises(DataNotFound) as caught:
        cifar10(tmp_path)
    text = str(caught.value)
    missing = ", ".join(f"data_batch_{k}.bin" for k in range(2, 6))
    assert f"{tmp_path} (without {missing})" in text
    assert f"{tmp_path / 'cifar-10-batches-py'} (no such folder)" in text
    assert f"https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz\n             and unpack it in {tmp_path}." in text
    assert f"from wellcond_papers.data import download; download('cifar10', '{tmp_path}')" in text
    assert "WELLCOND_DATA" in text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        *(
            (records(PIXELS, LABELS)[:size], rf"expected a positive multiple of 3073 .*{size}\.")
            for size in (0, 1, 3072, 2 * 3073 - 1)
        ),
        (records(PIXELS, [0, 10, 2]), "expected labels in 0 to 9, found 0 to 10"),
    ],
)
def test_records_with_other_contents_are_reported(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "test_batch.bin").write_bytes(content)
    with pytest.raises(CorruptData, match=f"test_batch.bin: {message}"):
        cifar10(tmp_path, train=False)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ([1, 2], "expected a dictionary, found list"),
        ({"data": PIXELS}, "expected the keys 'data' and 'labels'"),
        ({"data": PIXELS, "labels": [1, 2]}, "expected 3 labels, one for each image, found 2"),
        ({"data": PIXELS, "labels": [1, -2, 3]}, "expected labels in 0 to 9, found -2 to 3"),
        ({"data": PIXELS, "labels": [1, 10**30, 3]}, "expected labels in 0 to 9"),
        ({"data": PIXELS, "labels": [1, 2.0, 3]}, "list of integers"),
        ({"data": PIXELS, "labels": "abc"}, "list of integers"),
        ({"data": PIXELS[:, :-1].copy(), "labels": LABELS}, r"found shape \(3, 3071\)"),
        ({"data": PIXELS[:0], "labels": []}, r"found shape \(0, 3072\)"),
        ({"data": PIXELS.astype(np.float32), "labels": LABELS}, "dtype 'f4'"),
        ({"data": PIXELS.reshape(3, 3, 1024), "labels": LABELS}, "found no matrix"),
        ({"data": "pixels", "labels": LABELS}, "found no matrix"),
    ],
)
def test_a_pickle_with_other_contents_is_reported(tmp_path: Path, batch: object, message: str) -> None:
    with pytest.raises(CorruptData, match=rf"test_batch: .*{message}"):
        cifar10(batch_file(tmp_path, pickle.dumps(batch, 4)), train=False)


def test_an_array_that_lacks_bytes_is_reported(tmp_path: Path) -> None:
    content = written_by_python_2(PIXELS, LABELS).replace(b"K\x03M\x00\x0c\x86", b"K\x04M\x00\x0c\x86")
    with pytest.raises(CorruptData, match=r"shape \(4, 3072\).* 9216 bytes"):
        cifar10(batch_file(tmp_path, content), train=False)


def test_a_pickle_cut_anywhere_is_reported(tmp_path: Path) -> None:
    whole = written_by_python_2(PIXELS[:1], LABELS[:1])
    for size in [*range(200), *range(200, len(whole) - 50, 97), *range(len(whole) - 50, len(whole))]:
        with pytest.raises(CorruptData, match="test_batch"):
            cifar10(batch_file(tmp_path, whole[:size]), train=False)


class Call:
    """An object whose pickle asks the reader to call a function."""

    def __init__(self, function: Any, *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", range(5))
def test_a_pickle_that_would_run_a_command_is_refused_and_runs_nothing(tmp_path: Path, protocol: int) -> None:
    trace = tmp_path / "trace"
    attack = Call(os.system, f"touch {trace}")
    root = batch_file(tmp_path, pickle.dumps({"data": attack, "labels": LABELS}, protocol))
    with pytest.raises(CorruptData, match=rf"test_batch: .*{os.system.__module__}\.system.*Nothing was run"):
        cifar10(root, train=False)
    assert not trace.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"cbuiltins\neval\n(U\x011tR.", "asks for builtins.eval"),
        (b"c__builtin__\ngetattr\n.", "asks for __builtin__.getattr"),
        (b"cnumpy\nload\n.", "asks for numpy.load"),
        (b"\x80\x04\x8c\x05numpy\x8c\x0endarray.tofile\x93.", "asks for numpy.ndarray.tofile"),
        (b"(U\x01xios\nsystem\n.", "asks for os.system"),
        (
            b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x05\x00\x00\x00rot13\x86R.",
            "codec 'rot13' is not allowed",
        ),
    ],
)
def test_any_global_or_codec_that_images_do_not_need_is_refused_by_name(
    tmp_path: Path, content: bytes, message: str
) -> None:
    with pytest.raises(CorruptData, match=message):
        cifar10(batch_file(tmp_path, content), train=False)


@pytest.mark.parametrize("name", [b"numpy\nndarray", b"numpy\ndtype", b"_codecs\nencode"])
def test_a_pickle_cannot_change_the_reader(tmp_path: Path, name: bytes) -> None:
    write_attribute = b"\x80\x02c" + name + b"\nN}X\x05\x00\x00\x00stateK\x01s\x86b."
    with pytest.raises(CorruptData, match="damaged"):
        cifar10(batch_file(tmp_path, write_attribute), train=False)
    check_small_set(batch_file(tmp_path, written_by_python_2(PIXELS, LABELS)))


def test_a_pickle_that_claims_millions_of_objects_takes_no_memory(tmp_path: Path) -> None:
    batch_file(tmp_path, b"\x80\x02}r" + struct.pack("<I", 2**24) + b".")
    tracemalloc.start()
    try:
        with pytest.raises(CorruptData, match="expected the keys"):
            cifar10(tmp_path, train=False)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_real_cifar10_has_the_published_counts_and_moments(real_data: Path) -> None:
    train, test = cifar10(real_data), cifar10(real_data, train=False)
    assert train.images.shape == (50000, 3, 32, 32)
    assert test.images.shape == (10000, 3, 32, 32)
    assert train.labels.bincount().tolist() == [5000] * 10
    assert test.labels.bincount().tolist() == [1000] * 10
    mean, std = train.moments
    # The published values carry four decimals.
    assert mean.tolist() == pytest.approx([0.4914, 0.4822, 0.4465], abs=1e-4)
    assert std.tolist() == pytest.approx([0.2470, 0.2435, 0.2616], abs=1e-4)


@pytest.mark.parametrize("train", [True, False])
def test_real_pickles_and_records_hold_the_same_images(real_data: Path, train: bool) -> None:
    folders = [real_data / "cifar-10-batches-bin", real_data / "cifar-10-batches-py"]
    if not all(folder.is_dir() for folder in folders):
        pytest.skip("only one of the two formats is there")
    binary, pickled = (cifar10(folder, train=train) for folder in folders)
    assert torch.equal(binary.images, pickled.images)
    assert torch.equal(binary.labels, pickled.labels)
