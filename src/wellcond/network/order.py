"""The layers of a network in the order in which a forward pass starts them, and the parameters of each."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from torch import nn

from wellcond.network.layers import rule_for
from wellcond.problem.arguments import shared_memory
from wellcond.problem.problem import Problem


@dataclass(frozen=True)
class Layer:
    """Trainable parameters by their names in the problem, under the name of the module that runs with them.

    notes: what a reader of its numbers must know, if anything.
    """

    name: str
    params: dict[str, nn.Parameter]
    notes: tuple[str, ...] = ()


def layers_in_order(problem: Problem, started: Sequence[str], used: AbstractSet[str]) -> list[Layer]:
    """Every trainable parameter in exactly one layer.

    A parameter belongs to the module that owns it, or to the weighted layer around that module (the projections inside
    a `MultiheadAttention`). Where the owner itself is never called but its parameter has a gradient (a
    `ParameterList`), it belongs to the closest module around it that is. A container's own parameters (a position
    embedding) come where the container starts, before the layers inside it. A tied parameter counts once, with the
    first of its layers to start. What is never called comes last.

    started: names of modules in the order of their first start. used: names of parameters that have a gradient.
    """
    names: dict[nn.Module, str] = {module: name for name, module in problem.model.named_modules()}
    modules: dict[str, nn.Module] = dict(problem.model.named_modules(remove_duplicate=False))
    every = list(problem.model.named_parameters(remove_duplicate=False))
    place = {name: i for i, name in enumerate(started)}
    never = len(place)

    def layer_of(full: str, is_used: bool) -> str:
        """The layer that runs with a parameter, if it is looked at under this one of its names."""
        owner = full.rpartition(".")[0]
        around = ["", *(owner[:i] for i, c in enumerate(owner) if c == "."), owner] if owner else [""]
        inside_out = [names[modules[name]] for name in reversed(around)]
        weighted = [name for name in inside_out if rule_for(modules[name]) is not None]
        home = weighted[-1] if weighted else inside_out[0]
        called = [name for name in inside_out[inside_out.index(home) :] if name in place]
        return called[0] if is_used and called else home

    layers: dict[str, dict[str, nn.Parameter]] = {}
    notes: dict[str, list[str]] = {}
    shared = shared_memory(problem)
    for name, p in problem.params.items():
        aliases = [full for full, q in every if q is p]
        homes = {full: layer_of(full, name in used) for full in aliases}
        home = min(homes.values(), key=lambda layer: place.get(layer, never))
        layers.setdefault(home, {})[name] = p
        elsewhere = [full for full, layer in homes.items() if layer != home]
        if elsewhere:
            notes.setdefault(home, []).append(f"{name} is also {', '.join(elsewhere)} and counts here")
        if name in shared:
            notes.setdefault(home, []).append(shared[name].rstrip("."))
    for name, params in layers.items():
        if used.isdisjoint(params):
            why = "no gradient reaches it" if name in place else "it is never called"
            notes.setdefault(name, []).append(why)
    order = sorted(layers, key=lambda name: place.get(name, never))
    return [Layer(name, layers[name], tuple(notes.get(name, ()))) for name in order]
