"""CIFAR's pickles, read by an unpickler that cannot run code.

A pickle names the functions that rebuild its objects, so an ordinary load runs whatever a stranger put there.
Here the few names that a numpy array needs stand for inert classes that only keep their arguments, and any
other name is refused. The pickle builds nothing of numpy's: the bytes are taken out afterwards, once their
type and number are checked.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from wellcond.errors import CorruptData


class _Array:
    """Keeps what numpy.ndarray.__reduce__ wrote: version, shape, dtype, Fortran order, bytes."""

    state: Any = None

    def __init__(self, *empty_array: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        self.state = state


class _Dtype:
    """Keeps the code of a numpy.dtype, such as 'u1'."""

    def __init__(self, code: object, *flags: object) -> None:
        self.code = code

    def __setstate__(self, layout: object) -> None:
        pass


class _Latin1(bytes):
    """Bytes, which Python 3 writes in old protocols as _codecs.encode(text, 'latin1'); no other codec."""

    def __new__(cls, text: str, encoding: str) -> Self:
        if encoding != "latin1":
            raise ValueError(f"the codec {encoding!r} is not allowed")
        return super().__new__(cls, text.encode("latin1"))

    def __setstate__(self, state: object) -> None:
        raise TypeError("bytes have no state")


# All three define __setstate__: a pickle that tries to write attributes on the class fails in that call.
_STAND_INS = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _Latin1,
}


class _InertUnpickler(pickle._Unpickler):
    """The unpickler written in Python: the one in C allocates whatever number of objects a few bytes claim."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        try:
            return _STAND_INS[module_name, global_name]
        except KeyError:
            raise CorruptData(
                f"the pickle asks for {module_name}.{global_name}, which images do not need. Nothing was run."
            ) from None


def read_pickle(path: Path, pixels: int, key: str = "labels") -> tuple[Tensor, list[int]]:
    """Return the images (n, pixels) uint8 and the n labels of one batch file, running none of its code.

    Args:
        path: The file.
        pixels: Values of an image.
        key: What the labels are called: "labels", or "fine_labels" in CIFAR-100.
    """
    try:
        with path.open("rb") as file:
            # encoding="bytes": the published files come from Python 2, whose str are these bytes.
            batch = _InertUnpickler(file, encoding="bytes").load()
    except CorruptData as refusal:
        raise CorruptData(f"{path}: {refusal}") from None
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise CorruptData(f"{path}: expected a complete pickle, found a damaged one ({error}).") from error
    if not isinstance(batch, dict):
        raise CorruptData(f"{path}: expected a dictionary, found {type(batch).__name__}.")
    images = _images(path, _entry(path, batch, "data", key), pixels)
    labels = _entry(path, batch, key, key)
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise CorruptData(f"{path}: expected {key!r} to be a list of integers, found another type.")
    if len(labels) != len(images):
        raise CorruptData(f"{path}: expected {len(images)} labels, one for each image, found {len(labels)}.")
    return images, labels


def _entry(path: Path, batch: dict[Any, Any], entry: str, labels: str) -> Any:
    for spelling in (entry.encode(), entry):
        if spelling in batch:
            return batch[spelling]
    raise CorruptData(f"{path}: expected the keys 'data' and {labels!r}, found {sorted(map(str, batch))}.")


def _images(path: Path, array: object, pixels: int) -> Tensor:
    match array:
        case _Array(state=(_, (int(count), width), _Dtype(code=code), order, bytes(content))):
            if code in ("u1", b"u1") and count > 0 and width == pixels and len(content) == count * pixels:
                flat = np.frombuffer(content, dtype=np.uint8)
                return torch.from_numpy(flat.reshape((count, pixels), order="F" if order else "C").copy())
            contents = f"shape ({count}, {width}), dtype {code!r}, {len(content)} bytes"
        case _:
            contents = "no matrix"
    raise CorruptData(f"{path}: expected 'data' to be a complete (n, {pixels}) 'u1' array, found {contents}.")
