"""One forward pass of a model, run on a batch or watched as the user makes it, with the calls of its modules."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from wellcond.network.calling import unwrapped
from wellcond.network.chain import Call, ForwardPass, is_norm
from wellcond.network.isolation import isolated
from wellcond.network.layers import is_affine
from wellcond.network.taps import tapped


def trace(model: nn.Module, inputs: Any) -> ForwardPass:
    """Run the model once on a batch (one example is enough) and change nothing of it.

    inputs: a tensor, a tuple (`model(*inputs)`) or a dict (`model(**inputs)`), moved to the model's device.
    """
    model = unwrapped(model)
    device = next(model.parameters()).device
    inputs = tree_map(lambda value: value.to(device) if isinstance(value, Tensor) else value, inputs)
    # running statistics, since those of a single example may not exist; all else as in training
    with isolated(model, device, batch_statistics=False, dropout=True), _trainable(model), _recorded(model) as calls:
        if isinstance(inputs, Mapping):
            outputs = model(**inputs)
        else:
            outputs = model(*inputs) if isinstance(inputs, (tuple, list)) else model(inputs)
        return ForwardPass.of(calls, _tensors(outputs))


def watch(model: nn.Module, then: Callable[[ForwardPass], None]) -> None:
    """Call `then` with the user's first forward pass that has gradients; the hooks come off right after it.

    Inside a compiled graph there are no layers to be seen, so a `torch.compile`d model is traced on the input that
    it was first called with. One that was compiled in place, by `model.compile()`, cannot be watched.
    """
    inner, compiled = unwrapped(model), _compiled(model)
    outside = inner if compiled is None else compiled
    if inner._compiled_call_impl is not None:
        return
    hooks = contextlib.ExitStack()
    calls = hooks.enter_context(_recorded(inner)) if compiled is None else []

    def after(_name: str, module: nn.Module, x: Any, outputs: Any) -> None:
        if module is not outside or torch.compiler.is_compiling():
            return  # a deep copy of the model carries the same hooks; a compiled step has no layers to be seen
        tensors = _tensors(outputs)
        if any(t.requires_grad for t in tensors):
            hooks.close()
            then(ForwardPass.of(calls, tensors) if compiled is None else trace(inner, x))
        calls.clear()  # or a long evaluation before the training would fill the memory

    hooks.enter_context(tapped({"": outside}, after))


@contextlib.contextmanager
def _recorded(model: nn.Module) -> Iterator[list[Call]]:
    """The calls of every module that is weighted, a norm, or owns parameters."""
    calls: list[Call] = []
    modules = {
        name: module
        for name, module in model.named_modules()
        if is_affine(module) or is_norm(module) or any(True for _ in module.parameters(recurse=False))
    }

    def on_call(name: str, module: nn.Module, x: Any, output: Any) -> None:
        if not torch.compiler.is_compiling() and (tensors := _tensors(output)):
            calls.append(Call.of(name, module, x if isinstance(x, Tensor) else None, tensors[0]))

    with tapped(modules, on_call):
        yield calls


@contextlib.contextmanager
def _trainable(model: nn.Module) -> Iterator[None]:
    """All parameters have gradients, so that frozen layers stand in the graph too."""
    frozen = [p for p in model.parameters() if p.is_floating_point() and not p.requires_grad]
    for p in frozen:
        p.requires_grad_(True)
    try:
        yield
    finally:
        for p in frozen:
            p.requires_grad_(False)


def _compiled(model: nn.Module) -> nn.Module | None:
    """The outermost `torch.compile`d module around the network."""
    while model is not (inner := unwrapped(model)):
        if getattr(model, "_orig_mod", None) is not None:
            return model
        model = getattr(model, "module", inner)
    return None


def _tensors(value: Any) -> list[Tensor]:
    """The tensors in a tensor, a nest of containers, or an output object of a Hugging Face model."""
    if hasattr(value, "to_tuple"):
        value = value.to_tuple()
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
