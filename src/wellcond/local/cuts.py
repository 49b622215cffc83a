"""Where a network can be cut into blocks: module outputs that all of its past passes through on the way to the loss.

A cut z_b separates the autograd graph: what the loss reaches without passing z_b, and what leads to z_b, share nothing
but leaves, which are parameters. A layer inside a residual block is passed by, and so no cut; the block's sum is one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from wellcond.errors import InvalidProblem, UnknownLayer
from wellcond.local.blocks import output_tensor
from wellcond.local.own_outputs import OwnOutputs
from wellcond.local.separators import Place, Separators


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a module that gave a tensor with a graph.

    began: how many calls had ended when this one began. edge: where the gradient of the output arrives, as it was
    before anything was written over it in place. value: a copy of the output, with its graph.
    """

    name: str
    began: int
    edge: GradientEdge
    value: Tensor

    @property
    def place(self) -> Place:
        return self.edge.node, self.edge.output_nr


@dataclass(eq=False)
class Calls:
    """The calls of all modules in a forward pass, in the order in which they end."""

    names: dict[nn.Module, str]
    ended: list[Call] = field(default_factory=list)
    outputs: OwnOutputs = field(default_factory=OwnOutputs)
    _running: list[int] = field(default_factory=list)
    _values: dict[Place, Tensor] = field(default_factory=dict)

    def on_entry(self, _module: nn.Module, _args: Any, _kwargs: Any) -> None:
        self._running.append(len(self.ended))

    def on_exit(self, module: nn.Module, output: Any) -> Any:
        began, name = self._running.pop(), self.names[module]
        first = output_tensor(output)
        if first is None or first.grad_fn is None:
            return None
        output, tensor = self.outputs.of(name, output)
        assert tensor is not None
        edge = get_gradient_edge(tensor)
        if (edge.node, edge.output_nr) not in self._values:
            self._values[edge.node, edge.output_nr] = tensor.clone()
        self.ended.append(Call(name, began, edge, self._values[edge.node, edge.output_nr]))
        return output


def all_cuts(calls: Calls, loss: Tensor) -> tuple[list[Call], str]:
    """The calls whose outputs are cuts, first to last, without the model's own; and the name of the block it ends."""
    separators = Separators(_end(loss))
    ends: dict[Place, list[tuple[int, Call]]] = defaultdict(list)
    for i, call in enumerate(calls.ended):
        ends[call.place].append((i, call))
    cuts: list[Call] = []
    previous = -1
    for place, same in ends.items():
        # several modules may end with one tensor; the first of them to end tells its place in the network
        first, innermost = same[0]
        if place in separators and (not cuts or separators.leads(cuts[-1].edge.node, place[0])):
            # the outermost of them that began after the cut before
            around = [call for _, call in same if previous < call.began <= first]
            cuts.append(around[-1] if around else innermost)
            previous = first
    seen: Counter[str] = Counter()
    for i, cut in enumerate(cuts):  # a module that ends several blocks
        if seen[cut.name]:
            cuts[i] = replace(cut, name=f"{cut.name}[{seen[cut.name]}]")
        seen[cut.name] += 1
    return _without_the_last(cuts, calls)


def chosen_cuts(calls: Calls, loss: Tensor, names: Sequence[str]) -> tuple[list[Call], str]:
    """As `all_cuts`, at the outputs of the named modules alone; an error if one of them is no cut."""
    times = Counter(call.name for call in calls.ended)
    for name in names:
        if name not in calls.names.values():
            raise UnknownLayer(name, [known for known in calls.names.values() if known])
        if times[name] != 1:
            raise InvalidProblem(
                f"{name!r} cannot end a block: its output had a gradient in {times[name]} calls of the forward pass. "
                "Name a module that is called once and takes or holds what can be differentiated."
            )
    separators = Separators(_end(loss))
    cuts: list[Call] = []
    for call in calls.ended:
        if call.name not in names:
            continue
        if call.place not in separators:
            raise InvalidProblem(
                f"{call.name!r} cannot end a block: part of what is computed before its output passes it by on the way "
                "to the loss (a skip connection, a second output), or the loss does not depend on it. Name a module "
                "that contains it."
            )
        if cuts and not separators.leads(cuts[-1].edge.node, call.edge.node):
            raise InvalidProblem(f"{cuts[-1].name!r} and {call.name!r} do not follow each other. Name one of them.")
        if not cuts or cuts[-1].place != call.place:
            cuts.append(call)
    return _without_the_last(cuts, calls)


def _without_the_last(cuts: list[Call], calls: Calls) -> tuple[list[Call], str]:
    """The last block ends with the loss, so the model's output is no cut but gives the block its name."""
    if cuts and calls.ended[-1].name == "" and cuts[-1].place == calls.ended[-1].place:
        return cuts[:-1], cuts[-1].name
    return cuts, ""


def _end(loss: Tensor) -> Node:
    assert loss.grad_fn is not None  # `Problem.evaluate` refuses a loss without a graph
    return loss.grad_fn
