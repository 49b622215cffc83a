"""A forward pass as the autograd graph shows it: which layers were called, and how they are connected.

Names and registration order say nothing about how layers are connected; the autograd graph of the outputs does.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from wellcond.errors import Unsupported
from wellcond.network.calling import tensors_in, unwrapped
from wellcond.network.example_inputs import run
from wellcond.network.graph import inputs_of, upstream
from wellcond.network.isolation.isolation import isolated
from wellcond.network.layers import is_affine
from wellcond.network.norms import is_norm
from wellcond.network.taps import tapped


@dataclass(frozen=True, eq=False)
class LayerCall:
    """One call of a module.

    Attributes:
        name: Name of the module in the model.
        module: The module.
        input_shape: Shape of its first argument; empty if that is not a tensor.
        output_shape: Shape of its first output.
        nodes: Nodes that it added to the autograd graph.
        before: Node that computed its input; None for data.
    """

    name: str
    module: nn.Module
    input_shape: torch.Size
    output_shape: torch.Size
    nodes: set[Node] = field(repr=False)
    before: Node | None = field(repr=False)


@dataclass(frozen=True)
class ForwardPass:
    """One forward pass.

    Attributes:
        calls: Calls that lead to the outputs, in the order of the forward pass.
        outputs: Outputs that have a gradient.
    """

    calls: list[LayerCall]
    outputs: list[Tensor]

    @classmethod
    def of(cls, calls: Iterable[LayerCall], outputs: Iterable[Tensor]) -> ForwardPass:
        """Leave out calls that no output depends on, such as those of an earlier pass that failed halfway."""
        outputs = [t for t in outputs if t.grad_fn is not None]
        reached = upstream([t.grad_fn for t in outputs], None)
        return cls([call for call in calls if call.nodes & reached], outputs)

    def chain(self) -> list[LayerCall]:
        """The weighted layers from the first to the last, if they form a chain.

        In a chain every path from the outputs back to the inputs meets the same layers in the same order. What happens
        between two layers may branch (a hand-written norm, x·σ(x)), as long as no layer is bypassed.

        Raises:
            Unsupported: The layers do not form a chain; the message names the place.
        """
        _check_no_sharing(self.calls)
        owner = {node: call for call in self.calls if is_affine(call.module) for node in call.nodes}
        order: list[LayerCall] = []
        ends = [t.grad_fn for t in self.outputs]
        while met := self._only_layer_met(ends, owner):
            if met in order:
                raise Unsupported(f"{met.name!r} uses more of the network than its own input.")
            order.append(met)
            ends = [met.before]
        if not order:
            raise Unsupported("no linear or convolutional layer leads to the output.")
        for call in self.calls:
            if is_affine(call.module) and call not in order:
                raise Unsupported(f"{call.name!r} works inside another layer.")
        return order[::-1]

    def last_layers(self, is_candidate: Callable[[nn.Module], bool]) -> list[str]:
        """Names of the candidates on which no other candidate depends, in the order of their last calls."""
        nodes: dict[str, set[Node]] = {}
        for call in self.calls:
            if is_candidate(call.module):
                nodes[call.name] = nodes.pop(call.name, set()) | call.nodes
        before = {name: upstream(own, None) for name, own in nodes.items()}

        def feeds(name: str, other: str) -> bool:
            # a layer that works inside another one is part of it
            return bool(nodes[name] & before[other]) and not nodes[other] <= nodes[name]

        return [name for name in nodes if not any(feeds(name, other) and not feeds(other, name) for other in nodes)]

    def _only_layer_met(self, ends: Iterable[Node | None], owner: Mapping[Node, LayerCall]) -> LayerCall | None:
        """The one layer that all paths backward from the ends meet first; None if they meet no layer."""
        leads_to: dict[Node, set[LayerCall]] = {}
        starts = [node for node in ends if node is not None]
        waiting = list(starts)
        while waiting:
            node = waiting[-1]
            above = [] if node in owner else inputs_of(node)
            if unknown := [n for n in above if n not in leads_to]:
                waiting += unknown
                continue
            waiting.pop()
            leads_to[node] = {owner[node]} if node in owner else set().union(*(leads_to[n] for n in above))
            if len(leads_to[node]) > 1:
                raise Unsupported(f"{_paths_from(leads_to[node])} meet in {self._place(node)}.")
        met = set().union(*(leads_to[node] for node in starts))
        if len(met) > 1:
            raise Unsupported(f"{_paths_from(met)} lead to different outputs.")
        return next(iter(met), None)

    def _place(self, join: Node) -> str:
        operation = re.sub(r"Backward\d*$", "", join.name()).lower()
        later = (repr(c.name) for c in self.calls if is_affine(c.module) and join in upstream([c.before], None))
        return f"an operation {operation!r} before {next(later, 'the output')}"


def read_forward_pass(model: nn.Module, inputs: Any, *, training: bool = True) -> ForwardPass:
    """Run the model once on a batch (one example is enough), without changing it.

    Args:
        model: The model, wrapped or not.
        inputs: A tensor, a tuple (`model(*inputs)`) or a dict (`model(**inputs)`).
        training: Whether to run it in training mode. Norms use their running statistics either way, since those of a
            single example may not exist.

    Raises:
        Unsupported: The model does not run on the inputs.
    """
    model = unwrapped(model)
    device = next(model.parameters()).device
    with (
        isolated(model, device, batchnorm="running", dropout=training),
        _all_trainable(model),
        _recorded(model) as calls,
    ):
        return ForwardPass.of(calls, tensors_in(run(model, inputs)))


def watch_forward_pass(model: nn.Module, then: Callable[[ForwardPass], None]) -> None:
    """Call `then` with the user's first forward pass that has gradients, and remove the hooks right after it.

    Hooks do not see the layers inside a compiled graph, so a `torch.compile`d model is run once more on its first
    input. A model compiled in place, by `model.compile()`, cannot be watched.
    """
    inner, compiled = unwrapped(model), _compiled(model)
    outside = inner if compiled is None else compiled
    if inner._compiled_call_impl is not None:
        return
    hooks = contextlib.ExitStack()
    calls = hooks.enter_context(_recorded(inner)) if compiled is None else []

    def after(_name: str, module: nn.Module, x: Any, outputs: Any) -> None:
        if module is not outside or torch.compiler.is_compiling():
            return  # a deep copy of the model has the same hooks; a compiled step shows no layers
        tensors = tensors_in(outputs)
        if any(t.requires_grad for t in tensors):
            hooks.close()
            then(ForwardPass.of(calls, tensors) if compiled is None else read_forward_pass(inner, x))
        calls.clear()  # a long evaluation before the training would fill the memory

    hooks.enter_context(tapped({"": outside}, after))


@contextlib.contextmanager
def _recorded(model: nn.Module) -> Iterator[list[LayerCall]]:
    """The calls of every module that is weighted, a norm, or owns parameters."""
    calls: list[LayerCall] = []
    modules = {
        name: module
        for name, module in model.named_modules()
        if is_affine(module) or is_norm(module) or any(True for _ in module.parameters(recurse=False))
    }

    def on_call(name: str, module: nn.Module, x: Any, output: Any) -> None:
        if not torch.compiler.is_compiling() and (tensors := tensors_in(output)):
            shape, before = (x.shape, x.grad_fn) if isinstance(x, Tensor) else (torch.Size(), None)
            nodes = upstream([tensors[0].grad_fn], before)
            calls.append(LayerCall(name, module, shape, tensors[0].shape, nodes, before))

    with tapped(modules, on_call):
        yield calls


@contextlib.contextmanager
def _all_trainable(model: nn.Module) -> Iterator[None]:
    """All parameters require gradients, so that frozen layers are in the graph too."""
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


def _paths_from(calls: Iterable[LayerCall]) -> str:
    return "the paths from " + " and ".join(repr(name) for name in sorted(call.name for call in calls))


def _check_no_sharing(calls: Iterable[LayerCall]) -> None:
    holder: dict[Tensor, str] = {}
    for call in calls:
        for p in call.module.parameters(recurse=False):
            if p in holder:
                twice = f"{call.name!r} is called more than once in a forward pass"
                tied = f"{holder[p]!r} and {call.name!r} share a parameter"
                raise Unsupported(f"{twice if holder[p] == call.name else tied}.")
        holder |= dict.fromkeys(call.module.parameters(recurse=False), call.name)
