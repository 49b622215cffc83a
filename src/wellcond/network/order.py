"""The layers of a network in the order in which a forward pass starts them, and the parameters of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from torch import nn

from wellcond.network.layers import rule_for


@dataclass(frozen=True)
class Layer:
    """Some parameters, under the name of the module that runs with them.

    Attributes:
        name: Name of the module.
        params: Parameters by name.
        notes: Notes for readers of the layer's numbers.
    """

    name: str
    params: dict[str, nn.Parameter]
    notes: tuple[str, ...] = ()


def layers_in_order(
    model: nn.Module,
    params: Mapping[str, nn.Parameter],
    started: Sequence[str],
    used: AbstractSet[str],
    notes: Mapping[str, str],
) -> list[Layer]:
    """Every parameter in exactly one layer, and the layers in the order of the forward pass.

    A parameter belongs to the module that owns it, or to the weighted layer around that module (the projections inside
    a `MultiheadAttention`). If the owner itself is never called but its parameter has a gradient (a `ParameterList`),
    the parameter belongs to the closest module around it that is called. A container's own parameters (a position
    embedding) come where the container starts, before the layers inside it. A tied parameter counts once, with the
    first of its layers to start. Layers that are never called come last.

    Args:
        model: The model that was run.
        params: Parameters of interest, by name.
        started: Names of modules in the order in which they first started.
        used: Names of parameters that have a gradient.
        notes: Notes on parameters, by name; each becomes a note on its layer.
    """
    names: dict[nn.Module, str] = {module: name for name, module in model.named_modules()}
    modules: dict[str, nn.Module] = dict(model.named_modules(remove_duplicate=False))
    every = list(model.named_parameters(remove_duplicate=False))
    place = {name: i for i, name in enumerate(started)}
    never = len(place)

    def layer_of(full: str, is_used: bool) -> str:
        """The layer that runs with a parameter, by one of the parameter's names."""
        owner = full.rpartition(".")[0]
        around = ["", *(owner[:i] for i, c in enumerate(owner) if c == "."), owner] if owner else [""]
        inside_out = [names[modules[name]] for name in reversed(around)]
        weighted = [name for name in inside_out if rule_for(modules[name]) is not None]
        home = weighted[-1] if weighted else inside_out[0]
        called = [name for name in inside_out[inside_out.index(home) :] if name in place]
        return called[0] if is_used and called else home

    layers: dict[str, dict[str, nn.Parameter]] = {}
    layer_notes: dict[str, list[str]] = {}
    for name, p in params.items():
        aliases = [full for full, q in every if q is p]
        homes = {full: layer_of(full, name in used) for full in aliases}
        home = min(homes.values(), key=lambda layer: place.get(layer, never))
        layers.setdefault(home, {})[name] = p
        elsewhere = [full for full, layer in homes.items() if layer != home]
        if elsewhere:
            layer_notes.setdefault(home, []).append(f"{name} is also {', '.join(elsewhere)} and counts here")
        if name in notes:
            layer_notes.setdefault(home, []).append(notes[name].rstrip("."))
    for name, own in layers.items():
        if used.isdisjoint(own):
            why = "no gradient reaches it" if name in place else "it is never called"
            layer_notes.setdefault(name, []).append(why)
    order = sorted(layers, key=lambda name: place.get(name, never))
    return [Layer(name, layers[name], tuple(layer_notes.get(name, ()))) for name in order]
