"""The state in which a model is measured, and the promise that everything is put back."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm

OF_EVERY_MODULE = vars(nn.Module()).keys()


@contextlib.contextmanager
def isolated(
    model: nn.Module, device: torch.device, *, batchnorm: Literal["batch", "running"], dropout: bool
) -> Iterator[None]:
    """Put a model into the measured state; on leaving, modes, buffers, generators and kernel choices are as they were.

    Buffers, and tensors that are plain attributes, are exchanged for copies. So the user's own tensors are never
    written to, not even by a BatchNorm that updates its running statistics.

    Args:
        model: The model to measure.
        device: Its device.
        batchnorm: Whether BatchNorm uses the statistics of each batch or its running ones.
        dropout: Whether dropout is on.
    """
    modules = list(model.modules())
    modes = [(module, module.training) for module in modules]
    tracking = [m for m in modules if batchnorm == "batch" and isinstance(m, _BatchNorm) and m.track_running_stats]
    sparse = [m for m in modules if isinstance(m, (nn.Embedding, nn.EmbeddingBag)) and m.sparse]
    buffers = [(module, dict(module._buffers)) for module in modules if module._buffers]

    def put_back() -> None:
        for module, mode in modes:
            module.training = mode
        for norm in tracking:
            norm.track_running_stats = True
        for embedding in sparse:
            embedding.sparse = True
        for module, held in buffers:
            module._buffers.clear()
            module._buffers.update(held)

    with contextlib.ExitStack() as stack:
        stack.callback(put_back)
        stack.enter_context(_attributes_kept(modules))
        stack.enter_context(_generators_kept(generators_of(model)))
        stack.enter_context(rng_kept(device))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        if torch.is_autocast_enabled(device.type):
            stack.enter_context(torch.autocast(device.type, enabled=False))  # half precision has no second derivative
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))  # the only attention kernel with a double backward
        # the fast path of attention computes layers without calling them
        attention = torch.backends.mha
        stack.enter_context(_switched(attention.set_fastpath_enabled, attention.get_fastpath_enabled(), False))
        if device.type == "cuda":
            # cuDNN's RNNs have no double backward; TF32 keeps ten bits, which no error bound here allows for
            use_cudnn = not any(isinstance(module, nn.RNNBase) for module in modules)
            kept = {name: getattr(torch.backends.cudnn, name) for name in ("benchmark", "deterministic")}
            stack.enter_context(torch.backends.cudnn.flags(enabled=use_cudnn, allow_tf32=False, **kept))
            precision = torch.get_float32_matmul_precision()
            stack.enter_context(_switched(torch.set_float32_matmul_precision, precision, "highest"))
        if "torch._dynamo" in sys.modules:  # something may be compiled, and compiled graphs have no double backward
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        for module, held in buffers:
            for name, value in held.items():
                module._buffers[name] = None if value is None else value.clone()
        for embedding in sparse:
            embedding.sparse = False  # sparse gradients have no double backward
        for norm in tracking:
            norm.track_running_stats = False  # batch renorm's output depends on statistics that a pass would move
        for module in modules:
            module.training = batchnorm == "batch" if isinstance(module, _BatchNorm) else dropout
        yield


@contextlib.contextmanager
def parameters_kept(params: Iterable[nn.Parameter]) -> Iterator[None]:
    """Inside, give a parameter other values by `p.data = tensor`; on leaving, each has its own storage again.

    The user's memory is never written to. It stays as it is bit for bit, whatever happens, and graphs that were built
    on it before can still be differentiated.
    """
    own = [(p, p.data) for p in params]
    try:
        yield
    finally:
        for p, data in own:
            p.data = data


@contextlib.contextmanager
def rng_kept(device: torch.device) -> Iterator[None]:
    """Put the random number generators of Python, NumPy, the CPU and the model's device back afterwards."""
    devices = [device] if device.type == "cuda" else []
    of_python, of_numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)


def seed_generators(seed: int, device: torch.device) -> None:
    """Seed the generators that `rng_kept` restores, and no others."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)


@contextlib.contextmanager
def loader_generators_kept(batches: Any) -> Iterator[None]:
    """Keep a loader's own generators, and those of its samplers, from advancing."""
    batch_sampler = getattr(batches, "batch_sampler", None)
    owners = [batches, getattr(batches, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None)]
    generators = [getattr(owner, "generator", None) for owner in owners]
    with _generators_kept(g for g in generators if isinstance(g, torch.Generator)):
        yield


def generators_of(model: nn.Module) -> list[torch.Generator]:
    """The generators that a model's modules hold as attributes."""
    values = (value for module in model.modules() for value in _own_attributes(module).values())
    return [value for value in values if isinstance(value, torch.Generator)]


def _own_attributes(module: nn.Module) -> dict[str, Any]:
    """A module's own attributes. Those that every module has are left out, which saves most of the time."""
    attributes = vars(module)
    return {key: attributes[key] for key in attributes.keys() - OF_EVERY_MODULE}


@contextlib.contextmanager
def _generators_kept(generators: Iterable[torch.Generator]) -> Iterator[None]:
    states = [(generator, generator.get_state()) for generator in generators]
    try:
        yield
    finally:
        for generator, state in states:
            generator.set_state(state)


@contextlib.contextmanager
def _attributes_kept(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Put back tensors that are plain attributes of modules, or in lists that are; inside they may be written to.

    Pruning, and the old weight and spectral norm, keep the weight they compute on every pass there, with its graph.
    Tensors without a graph are exchanged for copies, as buffers are.
    """
    before = [(module, _own_attributes(module)) for module in modules]
    lists = {
        id(value): (value, list(value))
        for _, held in before
        for value in held.values()
        if isinstance(value, list) and any(isinstance(item, Tensor) for item in value)
    }
    copies: dict[int, Tensor] = {}

    def lent(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.requires_grad or isinstance(value, nn.Parameter):
            return value
        if id(value) not in copies:
            copies[id(value)] = value.clone()
        return copies[id(value)]

    try:
        for module, held in before:
            vars(module).update({key: lent(value) for key, value in held.items() if isinstance(value, Tensor)})
        for own, items in lists.values():
            own[:] = map(lent, items)
        yield
    finally:
        for module, held in before:
            for key, value in {**_own_attributes(module), **held}.items():
                now = vars(module).get(key)
                if key not in held and isinstance(value, Tensor):
                    del vars(module)[key]
                elif value is not now and any(isinstance(either, (Tensor, list)) for either in (value, now)):
                    vars(module)[key] = value  # past __setattr__, which does more than that for a recurrent layer
        for own, items in lists.values():
            own[:] = items


@contextlib.contextmanager
def _switched(switch: Callable[[Any], None], before: Any, inside: Any) -> Iterator[None]:
    """A setting of torch's, put back afterwards."""
    switch(inside)
    try:
        yield
    finally:
        switch(before)


def random_state_and_buffers(model: nn.Module, device: torch.device) -> list[object]:
    """All that a forward pass may move: generators, global and the model's own, and which buffers were written to."""
    states = [torch.get_rng_state(), *(generator.get_state() for generator in generators_of(model))]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    buffers = [(id(buffer), buffer._version) for buffer in model.buffers()]
    of_numpy = [part.tobytes() if isinstance(part, np.ndarray) else part for part in np.random.get_state()]
    return [random.getstate(), of_numpy, buffers, *(state.numpy().tobytes() for state in states)]
