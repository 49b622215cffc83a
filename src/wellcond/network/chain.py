"""The chain of weighted layers of a network, read off one forward pass: their order, sizes and what lies between.

Names and registration order say nothing about how layers are connected; the autograd graph of the outputs does.
A chain is a network in which every path from the outputs back to the inputs meets the same layers in the same order.
What happens between two layers may branch (a hand-written norm, x·σ(x)), as long as no layer is passed by.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from wellcond.errors import WellcondError
from wellcond.network.graph import inputs_of, upstream
from wellcond.network.layers import is_affine

CURE = "The factors follow from the network only for a chain of layers; pass factors={layer: backward factor m, …}."


class NotAChain(WellcondError, ValueError):
    """The layers of a network do not form a chain."""


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a module: the shapes it took and gave, and the nodes it added to the autograd graph."""

    name: str
    module: nn.Module
    inputs: torch.Size
    output: torch.Size
    nodes: set[Node] = field(repr=False)
    before: Node | None = field(repr=False)
    """What made the module's input; None for data."""

    @classmethod
    def of(cls, name: str, module: nn.Module, x: Tensor | None, output: Tensor) -> Call:
        shape, before = (torch.Size(), None) if x is None else (x.shape, x.grad_fn)
        return cls(name, module, shape, output.shape, upstream([output.grad_fn], before), before)

    @property
    def features(self) -> tuple[int, int]:
        """n_in and n_out: features or channels of the input and of the output."""
        axis = -1 - self._space
        return self.inputs[axis], self.output[axis]

    @property
    def positions(self) -> int:
        """q: how many times an example meets each parameter. For a convolution the size of its output, q₁·q₂.

        For a norm, or another module that acts on each feature alone, elements of its output per parameter.
        """
        if is_affine(self.module):
            return self.positions_of(self.output)
        own = list(self.module.parameters(recurse=False))
        if not own or any(p.dim() > 1 for p in own):
            return 1
        return max(1, math.prod(self.output[1:]) // max(p.numel() for p in own))

    def positions_of(self, shape: torch.Size) -> int:
        """Pixels of an input or output of a convolution, tokens of those of a linear layer."""
        return math.prod(shape[-self._space :] if self._space else shape[1:-1])

    @property
    def _space(self) -> int:
        return len(getattr(self.module, "kernel_size", ()))


@dataclass(frozen=True)
class ForwardPass:
    """The calls on the way to the outputs, in the order in which they were made."""

    calls: list[Call]
    outputs: list[Tensor]

    @classmethod
    def of(cls, calls: Iterable[Call], outputs: Iterable[Tensor]) -> ForwardPass:
        """Without calls that no output depends on, among them those of an earlier pass that failed half-way."""
        outputs = [t for t in outputs if t.grad_fn is not None]
        reached = upstream([t.grad_fn for t in outputs], None)
        return cls([call for call in calls if call.nodes & reached], outputs)

    def chain(self) -> list[Call]:
        """The weighted layers from the first to the last, if they form a chain."""
        _check_no_sharing(self.calls)
        owner = {node: call for call in self.calls if is_affine(call.module) for node in call.nodes}
        order: list[Call] = []
        ends = [t.grad_fn for t in self.outputs]
        while met := self._first_met(ends, owner):
            if met in order:
                raise NotAChain(f"{met.name!r} uses more of the network than its own input. {CURE}")
            order.append(met)
            ends = [met.before]
        if not order:
            raise NotAChain(f"no linear or convolutional layer lies on the way to the output. {CURE}")
        for call in self.calls:
            if is_affine(call.module) and call not in order:
                raise NotAChain(f"{call.name!r} works inside another layer. {CURE}")
        return order[::-1]

    def _first_met(self, ends: Iterable[Node | None], owner: Mapping[Node, Call]) -> Call | None:
        """The one layer that all paths backward from the ends meet first; None if they meet none."""
        leads_to: dict[Node, set[Call]] = {}
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
                raise NotAChain(f"{_names(leads_to[node])} meet in {self._place(node)}. {CURE}")
        met = set().union(*(leads_to[node] for node in starts))
        if len(met) > 1:
            raise NotAChain(f"{_names(met)} lead to different outputs. {CURE}")
        return next(iter(met), None)

    def _place(self, join: Node) -> str:
        operation = re.sub(r"Backward\d*$", "", join.name()).lower()
        behind = (repr(c.name) for c in self.calls if is_affine(c.module) and join in upstream([c.before], None))
        return f"an operation {operation!r} before {next(behind, 'the output')}"

    def elements_of_output(self) -> int:
        """Elements of the network's output over the batch; a model that returns its loss ends at its last layer."""
        sizes = [t.numel() for t in self.outputs if t.dim()]
        return max(sizes, default=0) or next(c.output.numel() for c in reversed(self.calls) if is_affine(c.module))


def is_norm(module: nn.Module) -> bool:
    """Whether the module normalizes, by the name of its type."""
    return "norm" in type(module).__name__.lower()


def _names(calls: Iterable[Call]) -> str:
    return "the paths from " + " and ".join(repr(name) for name in sorted(call.name for call in calls))


def _check_no_sharing(calls: Iterable[Call]) -> None:
    holder: dict[Tensor, str] = {}
    for call in calls:
        for p in call.module.parameters(recurse=False):
            if p in holder:
                twice = f"{call.name!r} is called more than once in a forward pass"
                tied = f"{holder[p]!r} and {call.name!r} share a parameter"
                raise NotAChain(f"{twice if holder[p] == call.name else tied}. {CURE}")
        holder |= dict.fromkeys(call.module.parameters(recurse=False), call.name)
