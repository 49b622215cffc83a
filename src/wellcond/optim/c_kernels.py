"""`kernels.c`: compiled if there is a compiler, and called with pointers to tensors."""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import torch
from torch import Tensor

NO_COMPILER = """\
fused=True needs a C compiler on the CPU, so BNP preconditions with plain operations: the same numbers, in more time.
{reason} To silence this warning, leave out fused=True."""
NAMES = {torch.float32: "float", torch.float64: "double"}
# the compiler may reorder additions, as for vectors; infinities and NaNs keep their meaning
OPTIONS = [
    "-O3",
    "-shared",
    "-fPIC",
    "-fno-math-errno",
    "-fassociative-math",
    "-fno-signed-zeros",
    "-fno-trapping-math",
]
EXTRAS = [["-march=native", "-fopenmp"], ["-march=native"], []]
"""Options that not every compiler has, in the order in which they are tried."""


class Kernels:
    """The functions of `kernels.c` for one dtype."""

    def __init__(self, library: ctypes.CDLL) -> None:
        pointer, long, double = ctypes.c_void_p, ctypes.c_long, ctypes.c_double
        self._moments, self._step = library.moments, library.step
        self._moments.argtypes = [pointer, *3 * [long], *2 * [pointer], ctypes.c_int]
        self._step.argtypes = [*7 * [pointer], *4 * [long], *4 * [double], ctypes.c_int]
        self._moments.restype = self._step.restype = None

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of dimension 1 over all others, of a contiguous tensor."""
        examples, columns = x.shape[:2]
        mean, variance = x.new_empty(columns), x.new_empty(columns)
        self._moments(
            x.data_ptr(), examples, columns, x.numel() // (examples * columns),
            mean.data_ptr(), variance.data_ptr(), _threads(x.numel()),
        )  # fmt: skip
        return mean, variance

    def step(
        self,
        running: tuple[Tensor, Tensor],
        batch: tuple[Tensor, Tensor],
        scale: Tensor,
        gradients: tuple[Tensor, Tensor | None] | None,
        sizes: tuple[int, int, int, int],
        settings: tuple[float, float, float, float],
    ) -> None:
        """Steps 2 to 5 for one layer; all tensors are contiguous.

        Args:
            running: μ and σ², which are updated.
            batch: μ_H and σ_H².
            scale: Space for 1/(q² σ̃²).
            gradients: G_w and G_b, if any, which are updated.
            sizes: Groups, columns of a group, entries of a row that share a column, outputs of a group.
            settings: 1 − ρ, q², ε₁ and ε₂.
        """
        (mean, variance), (batch_mean, batch_variance) = running, batch
        weight, bias = (None, None) if gradients is None else gradients
        self._step(
            mean.data_ptr(), variance.data_ptr(), batch_mean.data_ptr(), batch_variance.data_ptr(), scale.data_ptr(),
            None if weight is None else weight.data_ptr(), None if bias is None else bias.data_ptr(),
            *sizes, *settings, 1 if weight is None else _threads(weight.numel()),
        )  # fmt: skip


def _threads(numbers: int) -> int:
    # waking a thread for less work costs more than it saves
    return 1 if numbers < 2**15 else min(torch.get_num_threads(), 1 + numbers // 2**15)


@functools.cache
def c_kernels(dtype: torch.dtype, is_asked_for: bool) -> Kernels | None:
    """Compile the kernels, which takes a fraction of a second; None if there is no suitable compiler.

    Args:
        dtype: Dtype of the numbers.
        is_asked_for: Whether to warn if the kernels are not available. If not, they are compiled on Linux only:
            elsewhere calling a compiler that is not installed may open a window.
    """
    if not is_asked_for and sys.platform != "linux":
        return None
    kernels = _compiled(dtype)
    if isinstance(kernels, Kernels):
        return kernels
    if is_asked_for:
        warnings.warn(NO_COMPILER.format(reason=kernels), stacklevel=2)
    return None


@functools.cache
def _compiled(dtype: torch.dtype) -> Kernels | str:
    """The kernels, or the reason why they are not available."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return "There is no compiler on the path, and $CC is not set."
    if dtype not in NAMES:
        return f"The kernels do not support {dtype}."
    source, failed = Path(__file__).with_name("kernels.c"), ""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        library = Path(folder) / "kernels.so"
        for extras in EXTRAS:
            command = [*compiler.split(), *OPTIONS, *extras, f"-DT={NAMES[dtype]}", str(source), "-o", str(library)]
            try:
                subprocess.run(command, check=True, capture_output=True, text=True)
                return Kernels(ctypes.CDLL(str(library)))
            except (OSError, subprocess.CalledProcessError) as error:
                failed = str(getattr(error, "stderr", "") or error)
    return f"{compiler} failed: {failed.strip()}."


def column_moments(x: Tensor, is_asked_for: bool) -> tuple[Tensor, Tensor] | None:
    """`Kernels.moments` of a tensor; None if the kernels cannot read it."""
    if not x.is_cpu or x.dtype not in NAMES or not x.is_contiguous():
        return None
    kernels = c_kernels(x.dtype, is_asked_for)
    return None if kernels is None else kernels.moments(x)
