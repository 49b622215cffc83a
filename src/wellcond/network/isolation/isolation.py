"""The state in which a model is measured, and how everything is restored afterwards."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Literal

import numpy as np
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules import module as of_all_modules
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.utils import parametrize

from wellcond.network.isolation.arithmetic import cudnn_as_set, cudnn_without_tf32, own_arithmetic, precision_now
from wellcond.network.isolation.copies import Fingerprint
from wellcond.network.isolation.snapshot import Snapshot, kept
from wellcond.network.isolation.spectral_norms import settle
from wellcond.network.norms import dropout_off_in

DEEPEST, FEW = 6, 64
"""Depth to which a loader is searched for generators, and length of lists that are searched: longer ones hold data."""
APART = 1_000_003
"""Difference of the seeds of generators that are in different states: no number of epochs comes to it."""


@contextlib.contextmanager
def isolated(
    model: nn.Module,
    device: torch.device,
    *,
    batchnorm: Literal["batch", "running"],
    dropout: bool,
    norms: Collection[nn.Module] = (),
) -> Iterator[Snapshot]:
    """Put a model into the measured state; on leaving, modes, buffers, generators and kernel choices are restored.

    Buffers, and other tensors that its modules hold, are replaced by copies. So the user's own tensors are never
    written to, not even by a BatchNorm that updates its running statistics. Counters and containers are restored.
    Gradient hooks are off.

    Args:
        model: The model to measure.
        device: Its device.
        batchnorm: Whether BatchNorm uses the statistics of each batch or its running ones.
        dropout: Whether dropout is on.
        norms: Modules that are treated as BatchNorm, in addition to torch's own.

    Yields:
        The state of the modules on entering.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(own_arithmetic())  # waits for another thread's measurement of this model
        modules = list(model.modules())
        snapshot = Snapshot([model])
        tracking = [m for m in modules if batchnorm == "batch" and isinstance(m, _BatchNorm) and m.track_running_stats]
        sparse = [m for m in modules if isinstance(m, (nn.Embedding, nn.EmbeddingBag)) and m.sparse]
        stack.enter_context(kept(snapshot))
        stack.enter_context(frozen_lent(norms))
        stack.enter_context(rng_kept(device))
        stack.enter_context(gradient_hooks_off(modules))
        stack.enter_context(_no_cached_parametrizations())
        settle(modules)
        stack.enter_context(torch.enable_grad())
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))  # the only attention kernel with a double backward
        # the fast path of attention computes layers without calling them
        attention = torch.backends.mha
        stack.enter_context(_switched(attention.set_fastpath_enabled, attention.get_fastpath_enabled(), False))
        if device.type == "cuda":
            # cuDNN's RNNs have no double backward; TF32 has ten bits, fewer than any error bound here assumes
            cudnn = cudnn_without_tf32 if precision_now() is None else cudnn_as_set
            stack.enter_context(cudnn(enabled=not any(isinstance(m, nn.RNNBase) for m in modules)))
        if "torch._dynamo" in sys.modules:  # the model may be compiled, and compiled graphs have no double backward
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        for embedding in sparse:
            embedding.sparse = False  # sparse gradients have no double backward
        for norm in tracking:
            norm.track_running_stats = False  # batch renorm's output depends on statistics that a pass would move
        if not dropout:
            stack.enter_context(dropout_off_in(norms))
        for module in modules:
            module.training = batchnorm == "batch" if isinstance(module, _NormBase) or module in norms else dropout
        yield snapshot


@contextlib.contextmanager
def gradient_hooks_off(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Remove the hooks on gradients while inside: they are part of training, not of the loss.

    The dicts themselves are only emptied: torch and the handles of the hooks refer to them.
    """
    hooks: list[dict[Any, Any]] = [of_all_modules._global_backward_hooks, of_all_modules._global_backward_pre_hooks]
    for module in modules:
        hooks += [module._backward_hooks, module._backward_pre_hooks]
        hooks += [p._backward_hooks for p in module._parameters.values() if p is not None and p._backward_hooks]
    removed = [(of_one, dict(of_one)) for of_one in hooks if of_one]
    try:
        for of_one, _ in removed:
            of_one.clear()
        yield
    finally:
        for of_one, own in removed:
            of_one.clear()
            of_one.update(own)


@contextlib.contextmanager
def _no_cached_parametrizations() -> Iterator[None]:
    """Pause `parametrize.cached()`: a pass with other weights, or another graph, would use the cached ones."""
    before = parametrize._cache_enabled, parametrize._cache
    parametrize._cache_enabled, parametrize._cache = 0, {}
    try:
        yield
    finally:
        parametrize._cache_enabled, parametrize._cache = before


@contextlib.contextmanager
def parameters_kept(params: Iterable[nn.Parameter]) -> Iterator[None]:
    """Inside, parameters may get other values by `p.data = tensor`; on leaving, each has its own storage again.

    The user's memory is never written to. It stays the same bit for bit, whatever happens, and graphs that were built
    on it before can still be differentiated.
    """
    own = [(p, p.data) for p in params]
    try:
        yield
    finally:
        for p, data in own:
            p.data = data


@contextlib.contextmanager
def frozen_lent(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Replace frozen parameters by copies while inside: some modules keep statistics, or averages of weights, there."""
    frozen = [p for module in modules for p in module.parameters() if not p.requires_grad]
    with parameters_kept(frozen):
        for p in frozen:
            p.data = p.data.clone()
        yield


@contextlib.contextmanager
def rng_kept(device: torch.device) -> Iterator[None]:
    """Restore the random number generators of Python, NumPy, the CPU and the model's device afterwards.

    That of the default device too: a loader draws its seeds there.
    """
    devices = {d for d in (device, torch.get_default_device()) if d.type == "cuda"}
    with own_arithmetic():
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
def loader_generators_kept(loader: Any, seed: int | None = None) -> Iterator[None]:
    """Keep the generators of a loader, of its samplers, its data set and their transforms, from advancing.

    Args:
        loader: A loader, or any other iterable of batches.
        seed: Seed of torch's generators inside, of those in other states another one; None does not seed them.
    """
    generators = list(_generators_in(loader))
    states = [_state_of(generator) for generator in generators]
    try:
        if seed is not None:
            _seed_apart([each for each in generators if isinstance(each, torch.Generator)], seed)
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            _set_state_of(generator, state)


def _seed_apart(generators: list[torch.Generator], seed: int) -> None:
    """Seed generators, those in one state alike, and others not: two loaders that shuffle apart still do so."""
    states = [generator.get_state() for generator in generators]  # all of them, before any is seeded
    for generator, state in zip(generators, states, strict=True):
        place = next(k for k, other in enumerate(states) if torch.equal(state, other))
        generator.manual_seed(seed + APART * place)


def _generators_in(value: Any) -> Iterator[Any]:
    """Generators in the attributes and short lists of an object, and of the objects that these hold."""
    seen: set[int] = set()
    waiting = [(value, 0)]
    while waiting:
        value, depth = waiting.pop()
        if id(value) in seen or depth > DEEPEST or isinstance(value, (torch.Tensor, np.ndarray, type, nn.Module)):
            continue
        seen.add(id(value))
        if isinstance(value, (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)):
            yield value
        elif isinstance(value, (list, tuple)):
            waiting += [(item, depth + 1) for item in value] if len(value) <= FEW else []
        else:
            waiting += [(item, depth + 1) for item in getattr(value, "__dict__", {}).values()]


def _state_of(generator: Any) -> Any:
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.getstate() if isinstance(generator, random.Random) else generator.get_state()


def _set_state_of(generator: Any, state: Any) -> None:
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.set_state(state)


@contextlib.contextmanager
def _switched(switch: Callable[[Any], None], before: Any, inside: Any) -> Iterator[None]:
    """Change a setting of torch inside, and restore it afterwards."""
    switch(inside)
    try:
        yield
    finally:
        switch(before)


def movable(model: nn.Module, loss: Callable[..., Any]) -> Fingerprint:
    """All that a pass may change other than generators: the state of the model's modules and of the loss."""
    held = Snapshot([model, loss])
    return Fingerprint(held.values, held.tensors)


def generator_states(device: torch.device) -> Fingerprint:
    """The states of the generators that `seed_generators` seeds, to see whether random numbers are drawn."""
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    of_numpy = [part.tobytes() if isinstance(part, np.ndarray) else part for part in np.random.get_state()]
    return Fingerprint([hash(random.getstate()), *of_numpy], states)
