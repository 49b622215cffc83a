"""How the library computes: in full precision, whatever the user's settings, and in one thread at a time.

Kernel choices, precision and random number generators belong to the whole process. Two measurements that interleave
would compute under each other's settings and restore the wrong ones, so the second waits for the first.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

import torch

DEVICE_TYPES = ("cpu", "cuda", "mps", "xpu")
FULL_PRECISION = ("none", "ieee")
LOOK_AGAIN = 0.5
"""Seconds. The garbage collector may release a turn in the waiting thread itself, just before it begins to wait."""


class _Turn:
    """A reentrant lock that any thread may release.

    A generator that holds it may be closed by the garbage collector, which can run in any thread.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._changed = threading.Condition()
        self._owner: int | None = None
        self._depth = 0

    def __enter__(self) -> None:
        me = threading.get_ident()
        with self._changed:
            while self._owner not in (None, me) and not _is_worker_of_autograd():
                self._changed.wait(LOOK_AGAIN)
            if self._owner is None:
                self._owner = me
            self._depth += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._depth -= 1
            if self._depth == 0:
                self._owner = None
                self._changed.notify()


def _is_worker_of_autograd() -> bool:
    """Whether this thread runs a backward pass that another one waits for: it would wait for its turn forever."""
    in_backward = torch._C._current_graph_task_id() != -1
    return in_backward and isinstance(threading.current_thread(), threading._DummyThread)


_TURN = _Turn()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_TURN.reset)  # the thread that has the turn is not in the child


class own_arithmetic(contextlib.ContextDecorator):  # noqa: N801, it is used like a function
    """Inside: no autocast, no inference or anomaly mode, float32 in full precision, and no other thread.

    Every public function that computes is decorated with it. It does not affect computations of the user.
    """

    def __enter__(self) -> None:
        _TURN.__enter__()
        self._settings = contextlib.ExitStack()
        try:
            if torch.is_inference_mode_enabled():
                self._settings.enter_context(torch.inference_mode(False))
            for kind in DEVICE_TYPES:
                if torch.is_autocast_enabled(kind):
                    # without its cache too, in which a model's own autocast would find weights of an earlier pass
                    self._settings.enter_context(torch.autocast(kind, enabled=False, cache_enabled=False))
            if torch.is_anomaly_enabled():  # which makes passes slow, and prints where the user's own code is to blame
                self._settings.enter_context(torch.autograd.set_detect_anomaly(False))
            if not _is_precise():
                self._settings.enter_context(_precise())
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def __exit__(self, *error: object) -> None:
        try:
            self._settings.close()
        finally:
            _TURN.__exit__()

    def _recreate_cm(self) -> own_arithmetic:
        return own_arithmetic()  # a decorated function may call itself


def _is_precise() -> bool:
    if not BY_BACKEND:
        return torch.get_float32_matmul_precision() == "highest"
    return all(matmul.fp32_precision in FULL_PRECISION for matmul in BY_BACKEND)


@contextlib.contextmanager
def _precise() -> Iterator[None]:
    """Products of float32 matrices without TF32, which keeps ten bits, and on a CPU without bfloat16."""
    own = [matmul.fp32_precision for matmul in BY_BACKEND]
    for matmul in BY_BACKEND:
        matmul.fp32_precision = "ieee"  # torch refuses to read the common setting while these contradict it
    common = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(common)
        for matmul, precision in zip(BY_BACKEND, own, strict=True):
            matmul.fp32_precision = precision


@contextlib.contextmanager
def cudnn_without_tf32(*, enabled: bool) -> Iterator[None]:
    """cuDNN on or off, and without TF32, which can be set for all its operations and for single ones."""
    cudnn = torch.backends.cudnn
    own = {op: torch._C._get_fp32_precision_getter("cuda", op) for op in ("conv", "rnn") if hasattr(cudnn, "conv")}
    try:
        _ = cudnn.allow_tf32
    except RuntimeError:  # the common setting and those of single operations contradict each other; this sets all
        cudnn.allow_tf32 = own["conv"] != "tf32"
    other_flags = {name: getattr(cudnn, name) for name in ("benchmark", "deterministic")}
    try:
        with cudnn.flags(enabled=enabled, allow_tf32=False, **other_flags):
            for op in own:
                torch._C._set_fp32_precision_setter("cuda", op, "ieee")
            yield
    finally:
        for op, precision in own.items():
            torch._C._set_fp32_precision_setter("cuda", op, precision)


BY_BACKEND = [
    backend.matmul
    for backend in (torch.backends.cuda, torch.backends.mkldnn)
    if hasattr(getattr(backend, "matmul", None), "fp32_precision")
]
"""Precision settings of single backends, since torch 2.9."""
