"""States of the user's in which a measurement is called, each as a context manager around one model."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import wellcond as wc
from stress.models import Draw


@dataclass(frozen=True)
class State:
    """One state.

    Attributes:
        name: For the report.
        around: The model ↦ a context in which the measurement is called.
        on_cuda: Whether it says anything on a CPU.
    """

    name: str
    around: Callable[[nn.Module], contextlib.AbstractContextManager[Any]]
    on_cuda: bool = False


@contextlib.contextmanager
def hooked(handles: list[Any]) -> Iterator[None]:
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def parameter_hooks(model: nn.Module) -> contextlib.AbstractContextManager[None]:
    return hooked([p.register_hook(lambda g: 0.1 * g) for p in model.parameters() if p.requires_grad])


def backward_hooks(model: nn.Module) -> contextlib.AbstractContextManager[None]:
    """Hooks that watch, and hooks that change what passes."""
    with_weights = [m for m in model.modules() if isinstance(m, (nn.Linear, nn.Conv2d))]
    scaling = [
        m.register_full_backward_hook(lambda _m, inputs, _o: tuple(scaled(g) for g in inputs)) for m in with_weights
    ]
    return hooked(scaling)


def scaled(gradient: Any) -> Any:
    return None if gradient is None else 0.5 * gradient


@contextlib.contextmanager
def flag(get: Callable[[], Any], put: Callable[[Any], Any], value: Any) -> Iterator[None]:
    before = get()
    put(value)
    try:
        yield
    finally:
        put(before)


def precision(value: str) -> contextlib.AbstractContextManager[None]:
    return flag(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, value)


def deterministic() -> contextlib.AbstractContextManager[None]:
    return flag(torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True)


def default_dtype(dtype: torch.dtype) -> contextlib.AbstractContextManager[None]:
    return flag(torch.get_default_dtype, torch.set_default_dtype, dtype)


@contextlib.contextmanager
def default_device(device: str) -> Iterator[None]:
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextlib.contextmanager
def tf32(_model: nn.Module) -> Iterator[None]:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = True
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


@contextlib.contextmanager
def second_thread(model: nn.Module) -> Iterator[None]:
    """Another measurement that begins before and ends during or after this one."""
    stop = threading.Event()
    started = threading.Event()
    failures: list[Exception] = []
    with torch.random.fork_rng(devices=[]):
        other = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.BatchNorm1d(3), nn.Linear(3, 2))
    batch = torch.ones(4, 3).cumsum(0), torch.tensor([0, 1, 0, 1])

    def measure() -> None:
        try:
            while not stop.is_set():
                wc.conditioning(wc.Problem(other, nn.CrossEntropyLoss(), batch))
                started.set()
        except Exception as error:
            failures.append(error)
            started.set()

    thread = threading.Thread(target=measure)
    thread.start()
    started.wait()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    if failures:
        raise failures[0]


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    before = {m: m.training for m in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in before.items():
            module.training = mode


@contextlib.contextmanager
def gradients_present(model: nn.Module) -> Iterator[None]:
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    try:
        yield
    finally:
        for p in model.parameters():
            p.grad = None


def ignoring_model(context: Callable[[], Any]) -> Callable[[nn.Module], contextlib.AbstractContextManager[Any]]:
    return lambda _model: context()


def states(device: str) -> list[State]:
    """All that this device knows."""
    result = [
        State("autocast bf16", ignoring_model(lambda: torch.autocast(device, torch.bfloat16))),
        State("autocast fp16", ignoring_model(lambda: torch.autocast(device, torch.float16))),
        State("parameter hooks", parameter_hooks),
        State("backward hooks", backward_hooks),
        State("no_grad", ignoring_model(torch.no_grad)),
        State("inference mode", ignoring_model(torch.inference_mode)),
        State("default device", ignoring_model(lambda: default_device("cuda" if device == "cuda" else "meta"))),
        State("default float64", ignoring_model(lambda: default_dtype(torch.float64))),
        State("default bfloat16", ignoring_model(lambda: default_dtype(torch.bfloat16))),
        State("deterministic", ignoring_model(deterministic)),
        State("matmul precision medium", ignoring_model(lambda: precision("medium"))),
        State("second thread", second_thread),
        State("model in eval", evaluating),
        State("gradients present", gradients_present),
        State("TF32", tf32, on_cuda=True),
    ]  # fmt: skip
    return [state for state in result if device == "cuda" or not state.on_cuda]


PLAIN = State("plain", ignoring_model(contextlib.nullcontext))


def random_state(draw: Draw, device: str) -> State:
    return PLAIN if draw.random() < 0.4 else draw.choice(states(device))
