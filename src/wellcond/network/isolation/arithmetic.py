"""How the library computes: in full precision, or as the user trains, and in one thread at a time.

Kernel choices, precision and random number generators belong to the whole process. Two measurements that interleave
would compute under each other's settings and restore the wrong ones, so the second waits for the first.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from wellcond.network.guarded import guarded
from wellcond.network.isolation.precision import Precision

DEVICE_TYPES = ("cpu", "cuda", "mps", "xpu")
HALF = (torch.float16, torch.bfloat16)
FULL_PRECISION = ("none", "ieee")
BY_BACKEND = [
    backend.matmul
    for backend in (torch.backends.cuda, torch.backends.mkldnn)
    if hasattr(getattr(backend, "matmul", None), "fp32_precision")
]
"""Precision settings of single backends, since torch 2.9."""
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

    def __enter__(self) -> bool:
        """Wait for the turn; returns whether it begins, and is not one inside another."""
        me = threading.get_ident()
        with self._changed:
            while self._owner not in (None, me) and not _is_worker_of_autograd():
                self._changed.wait(LOOK_AGAIN)
            if self._owner is None:
                self._owner = me
            self._depth += 1
            return self._depth == 1

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


class _Products(NamedTuple):
    """How float32 matrices are multiplied: the setting of each backend, and the common one."""

    by_backend: tuple[str, ...]
    common: str


PRECISE = _Products(("ieee",) * len(BY_BACKEND), "highest")
"""Without TF32, which keeps ten bits, and on a CPU without bfloat16."""


class _Trained:
    """What passes are computed in at the moment, and what the user had set when the turn began.

    Attributes:
        now: Precision of passes as the user trains; None: full precision.
        autocast: Dtype of the user's `torch.autocast`, by device type.
        products: How the user lets float32 matrices be multiplied.
    """

    def __init__(self) -> None:
        self.now: Precision | None = None
        self.autocast: dict[str, torch.dtype] = {}
        self.products = PRECISE

    def read_settings(self) -> None:
        enabled = filter(torch.is_autocast_enabled, DEVICE_TYPES)
        self.autocast = {kind: torch.get_autocast_dtype(kind) for kind in enabled}
        self.products = PRECISE
        if not _is_precise():
            self.products = _read_products()
            _set_products(self.products)


_TRAINED = _Trained()


def surrounding_autocast(kind: str) -> torch.dtype | None:
    """Dtype of the autocast that the library was called in; None outside of one. Call it in `own_arithmetic`."""
    return _TRAINED.autocast.get(kind)


def precision_now() -> Precision | None:
    """The precision of training that passes are computed in at the moment; None: full precision."""
    return _TRAINED.now


@contextlib.contextmanager
def trained_in(precision: Precision | None) -> Iterator[None]:
    """Inside, `passes` of a model are computed as it is trained; None: in full precision, also inside of another."""
    with own_arithmetic():
        outer, _TRAINED.now = _TRAINED.now, precision
        try:
            with own_arithmetic() if precision is None else _multiplied(_TRAINED.products):
                yield
        finally:
            _TRAINED.now = outer


@contextlib.contextmanager
def passes(device: torch.device) -> Iterator[None]:
    """Around a call of the model or the loss.

    Where passes are computed as in training, in its autocast, but without autocast's cache, in which a second pass
    would find weights of the first, and of another graph. On a GPU, with a guard of its kernels.
    """
    with contextlib.ExitStack() as stack:
        if _TRAINED.now is not None and _TRAINED.now.autocast is not None:
            stack.enter_context(torch.autocast(device.type, _TRAINED.now.autocast, cache_enabled=False))
        if device.type == "cuda":
            stack.enter_context(guarded())
        yield


class _NothingHalf(TorchFunctionMode):
    """`x.half()`, `x.to(torch.bfloat16)` and new tensors in half precision are float32."""

    def __torch_function__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.Tensor.half, torch.Tensor.bfloat16):
            return torch.Tensor.float(args[0])
        args = tuple(torch.float32 if isinstance(each, torch.dtype) and each in HALF else each for each in args)
        kwargs = {
            k: torch.float32 if isinstance(v, torch.dtype) and v in HALF else v for k, v in (kwargs or {}).items()
        }
        return func(*args, **kwargs)


@contextlib.contextmanager
def half_precision_ignored() -> Iterator[None]:
    """Inside, nothing is cast to half precision, also not by what a model does in its own code."""
    enter = torch.autocast.__enter__

    def entered(self: torch.autocast) -> Any:
        self._enabled = False
        return enter(self)  # type: ignore[no-untyped-call]

    torch.autocast.__enter__ = entered  # type: ignore[method-assign]
    try:
        with _NothingHalf():
            yield
    finally:
        torch.autocast.__enter__ = enter  # type: ignore[method-assign]


class own_arithmetic(contextlib.ContextDecorator):  # noqa: N801, it is used like a function
    """Inside: no autocast, no inference or anomaly mode, float32 in full precision, and no other thread.

    Every public function that computes is decorated with it. It does not affect computations of the user.
    """

    def __enter__(self) -> None:
        if _TURN.__enter__():
            _TRAINED.read_settings()
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
            if _TRAINED.now is None and not _is_precise():
                self._settings.enter_context(_multiplied(PRECISE))
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


def _read_products() -> _Products:
    """How float32 matrices are multiplied; call `_set_products` next.

    Torch refuses to read the common setting while those of backends contradict it, so these are changed first.
    """
    by_backend = []
    for matmul in BY_BACKEND:
        value = matmul.fp32_precision
        matmul.fp32_precision = "none"
        # what a backend has from the setting of all backends shall follow that one also later
        by_backend.append("none" if matmul.fp32_precision == value else value)
        matmul.fp32_precision = "ieee"
    return _Products(tuple(by_backend), torch.get_float32_matmul_precision())


def _set_products(products: _Products) -> None:
    torch.set_float32_matmul_precision(products.common)
    for matmul, precision in zip(BY_BACKEND, products.by_backend, strict=True):
        matmul.fp32_precision = precision


@contextlib.contextmanager
def _multiplied(products: _Products) -> Iterator[None]:
    """Inside, float32 matrices are multiplied in this way."""
    before = _read_products()
    _set_products(products)
    try:
        yield
    finally:
        _set_products(before)


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


@contextlib.contextmanager
def cudnn_as_set(*, enabled: bool) -> Iterator[None]:
    """cuDNN on or off, with all else as the user has set it."""
    before, torch.backends.cudnn.enabled = torch.backends.cudnn.enabled, enabled
    try:
        yield
    finally:
        torch.backends.cudnn.enabled = before


@contextlib.contextmanager
def attention_of_training() -> Iterator[None]:
    """Every kernel of attention, inside of a measurement, which takes the only one with a double backward."""
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        yield
