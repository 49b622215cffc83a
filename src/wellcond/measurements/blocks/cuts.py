"""Where a network can be cut into blocks: module outputs that everything before them passes through.

A cut z_b separates the autograd graph: the part that the loss reaches without passing z_b and the part that leads to
z_b share only leaves, which are parameters. The skip connection of a residual block passes the layers inside it by, so
their outputs are no cuts; the sum at the end of the block is one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from wellcond.errors import InvalidProblem, UnknownLayer
from wellcond.measurements.blocks.block import OwnOutputs, output_tensor
from wellcond.network.graph import Place, Separators


@dataclass(frozen=True, eq=False)
class Cut:
    """The output of one module call, where the network may be cut.

    Attributes:
        name: Name of the module.
        began: Number of calls that had ended when this one began.
        edge: Edge at which the gradient of the output arrives, from before anything was written to it in place.
        value: Copy of the output, with its graph.
    """

    name: str
    began: int
    edge: GradientEdge
    value: Tensor

    @property
    def place(self) -> Place:
        return self.edge.node, self.edge.output_nr


@dataclass(eq=False)
class Outputs:
    """The outputs of all module calls in a forward pass that have a graph, in the order in which the calls end."""

    names: dict[nn.Module, str]
    ended: list[Cut] = field(default_factory=list)
    own: OwnOutputs = field(default_factory=OwnOutputs)
    _running: list[int] = field(default_factory=list)
    _values: dict[Place, Tensor] = field(default_factory=dict)

    def on_entry(self, _module: nn.Module, _args: Any, _kwargs: Any) -> None:
        self._running.append(len(self.ended))

    def on_exit(self, module: nn.Module, output: Any) -> Any:
        began, name = self._running.pop(), self.names[module]
        first = output_tensor(output)
        if first is None or first.grad_fn is None:
            return None
        output, tensor = self.own.replace(name, output)
        assert tensor is not None
        edge = get_gradient_edge(tensor)
        place = edge.node, edge.output_nr
        if place not in self._values:
            self._values[place] = tensor.clone()
        self.ended.append(Cut(name, began, edge, self._values[place]))
        return output


def find_cuts(outputs: Outputs, loss: Tensor, names: Sequence[str] | None) -> tuple[list[Cut], str]:
    """All cuts from first to last, or those at the named modules, and the name of the last block."""
    assert loss.grad_fn is not None  # `Problem.evaluate` refuses a loss without a graph
    separators = Separators(loss.grad_fn)
    cuts = _all_cuts(outputs, separators) if names is None else _chosen_cuts(outputs, separators, names)
    # the last block ends with the loss, so the model's own output is no cut but gives the last block its name
    if cuts and outputs.ended[-1].name == "" and cuts[-1].place == outputs.ended[-1].place:
        return cuts[:-1], cuts[-1].name
    return cuts, ""


def _all_cuts(outputs: Outputs, separators: Separators) -> list[Cut]:
    by_place: dict[Place, list[tuple[int, Cut]]] = defaultdict(list)
    for i, cut in enumerate(outputs.ended):
        by_place[cut.place].append((i, cut))
    cuts: list[Cut] = []
    previous = -1
    for place, same in by_place.items():
        # several modules may end with the same tensor; the first of them to end gives its position in the network
        first, innermost = same[0]
        if place in separators and (not cuts or separators.leads(cuts[-1].edge.node, place[0])):
            # the outermost of them that began after the previous cut
            around = [cut for _, cut in same if previous < cut.began <= first]
            cuts.append(around[-1] if around else innermost)
            previous = first
    seen: Counter[str] = Counter()
    for i, cut in enumerate(cuts):  # a module that ends several blocks
        if seen[cut.name]:
            cuts[i] = replace(cut, name=f"{cut.name}[{seen[cut.name]}]")
        seen[cut.name] += 1
    return cuts


def _chosen_cuts(outputs: Outputs, separators: Separators, names: Sequence[str]) -> list[Cut]:
    times = Counter(cut.name for cut in outputs.ended)
    for name in names:
        if name not in outputs.names.values():
            raise UnknownLayer(name, [known for known in outputs.names.values() if known])
        if times[name] != 1:
            raise InvalidProblem(
                f"{name!r} cannot end a block: its output had a gradient in {times[name]} calls of the forward pass. "
                "Name a module that is called once and takes or holds something that can be differentiated."
            )
    cuts: list[Cut] = []
    for cut in outputs.ended:
        if cut.name not in names:
            continue
        if cut.place not in separators:
            raise InvalidProblem(
                f"{cut.name!r} cannot end a block: something computed before its output reaches the loss by another "
                "path (a skip connection, a second output), or the loss does not depend on it. Name a module that "
                "contains it."
            )
        if cuts and not separators.leads(cuts[-1].edge.node, cut.edge.node):
            raise InvalidProblem(f"{cuts[-1].name!r} and {cut.name!r} do not follow each other. Name one of them.")
        if not cuts or cuts[-1].place != cut.place:
            cuts.append(cut)
    return cuts
