"""The idx format: a big-endian header (type, number of dimensions, dimensions), then the bytes."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import torch
from torch import Tensor

from wellcond.errors import CorruptData

GZIP_MAGIC = b"\x1f\x8b"
UNSIGNED_BYTE = 0x08


def read_idx(path: Path, item: tuple[int, ...]) -> Tensor:
    """The (N, *item) uint8 array of an idx file, gzipped or not.

    Raises:
        CorruptData: The magic number, a dimension or the number of bytes is not as expected.
    """
    raw = _content(path)
    rank = 1 + len(item)
    start = 4 + 4 * rank
    if len(raw) < start:
        raise CorruptData(f"{path}: expected an idx header of {start} bytes, found {len(raw)} bytes in all.")
    magic, count, *shape = struct.unpack(f">{1 + rank}I", raw[:start])
    expected_magic = UNSIGNED_BYTE << 8 | rank
    if magic != expected_magic:
        raise CorruptData(f"{path}: expected the magic number {expected_magic:#010x}, found {magic:#010x}.")
    if tuple(shape) != item:
        raise CorruptData(f"{path}: expected items of shape {item}, found {tuple(shape)}.")
    if count == 0:
        raise CorruptData(f"{path}: expected at least one item, found a header that promises 0.")
    expected_bytes = count * math.prod(item)
    if len(raw) - start != expected_bytes:
        raise CorruptData(
            f"{path}: expected {expected_bytes} bytes after the header (it promises {count} items), "
            f"found {len(raw) - start}."
        )
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8, offset=start).reshape(count, *item)


def _content(path: Path) -> bytes:
    raw = path.read_bytes()
    if not raw.startswith(GZIP_MAGIC):
        return raw
    try:
        return gzip.decompress(raw)
    except (EOFError, OSError, zlib.error) as error:
        raise CorruptData(f"{path}: expected a complete gzip file, found a damaged one ({error}).") from error
