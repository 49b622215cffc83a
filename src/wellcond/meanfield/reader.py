"""From a module to the stages of mean-field theory: its forward pass is traced, not run, and read call by call."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.passes.shape_prop import ShapeProp

from wellcond.isolation import isolated, unwrapped
from wellcond.meanfield.convolution import AveragePool, Convolution, GlobalPool
from wellcond.meanfield.field import Field
from wellcond.meanfield.gram import Gram
from wellcond.meanfield.module_rules import MODULES, Call, rule_of
from wellcond.meanfield.moments import Kernel, Moments
from wellcond.meanfield.signals import NotUnderstood, Signal, every
from wellcond.meanfield.stages import Affine, Nonlinearity, Residual, Stage

MOST_EXAMPLES = 1000
"""Of which the matrix of products is followed through the layers."""
SPELLINGS = {"iadd": "add", "imul": "mul", "itruediv": "truediv", "div": "truediv", "multiply": "mul"}
SHAPE_READERS = frozenset(("size", "dim", "numel", "getattr"))


@dataclass(frozen=True)
class Reading:
    """A network as mean-field theory sees it.

    stages: its layers, with σ_w² = fan_in · mean(w²), σ_b² = mean(b²) and γ = √mean(γ²) of its own parameters; those that
    are frozen have no term. outputs: C. input_moments: of the inputs that were given, as matrices of examples for dense
    networks and of positions for convolutional ones; else those of independent normalised inputs. notes: what theory and
    network do not agree on.
    """

    stages: list[Stage]
    outputs: int
    input_moments: Kernel
    notes: tuple[str, ...] = ()

    @property
    def has_batchnorm(self) -> bool:
        """Whether any layer is batch-normalised."""
        return any(isinstance(stage, Nonlinearity) and stage.norm == "batch" for stage in every(self.stages))


def read(module: nn.Module, inputs: Tensor | Sequence[int] | None = None) -> Reading:
    """Read the layers of a network, their order and variances, from the module itself.

    inputs: a batch (N, ...), N > 1, or the shape of one example; convolutions need either. Understood are linear layers,
    1d and 2d convolutions, batch, layer and RMS norms, activations, flattening and average pooling, and sums of two ways
    through the network, written as modules or as functions; anything else is refused by name. Nothing of the module is
    changed. Cost: with inputs, one forward pass of two examples.

    >>> layer = nn.Linear(4, 3, bias=False)
    >>> _ = nn.init.constant_(layer.weight, 0.5)
    >>> reading = read(nn.Sequential(layer, nn.ReLU(), nn.Linear(3, 2)))
    >>> float(reading.stages[0].sigma_w2), reading.outputs, reading.notes
    (1.0, 2, ('0: its weights have a mean of 0.5, which is taken as 0',))
    """
    module = unwrapped(module)
    if isinstance(module, tuple(MODULES)):
        module = nn.Sequential(module)
    examples = _examples(inputs)
    graph = _traced(module)
    if examples is not None:
        _note_shapes(module, graph, examples)
    notes: list[str] = []
    signal = _walked(module, graph, notes)
    outputs = _outputs(module, signal)
    start = _input_moments(signal.stages, examples, inputs if isinstance(inputs, Tensor) else None, notes)
    return Reading(list(signal.stages), outputs, start, tuple(notes))


def _examples(inputs: Tensor | Sequence[int] | None) -> Tensor | None:
    if inputs is None:
        return None
    if not isinstance(inputs, Tensor):
        if not all(isinstance(n, int) and n > 0 for n in inputs):
            raise ValueError(f"inputs={inputs!r}: it is a batch (N, ...) or the shape of one example.")
        return torch.zeros(2, *inputs)
    if inputs.dim() < 2 or len(inputs) < 2:
        raise ValueError(f"inputs is {tuple(inputs.shape)}: it must be a batch (N, ...) of two examples or more.")
    return inputs[:2]


# the graph


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, tuple(MODULES)) or super().is_leaf_module(m, module_qualified_name)

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        return super().call_module(m, m.forward, args, kwargs)  # a user's hooks could not do with what is traced


def _traced(module: nn.Module) -> fx.Graph:
    try:
        return _Tracer().trace(module)
    except Exception as error:  # whatever someone's forward raises on values that are not there yet
        raise NotUnderstood(
            type(module).__name__,
            "not a fixed sequence of calls",
            f"what its forward does depends on its data ({type(error).__name__}: {str(error).splitlines()[0]})",
        ) from error


def _note_shapes(module: nn.Module, graph: fx.Graph, examples: Tensor) -> None:
    parameter = next(module.parameters(), examples)
    if examples.is_floating_point():
        examples = examples.to(parameter.dtype)
    with isolated(module, parameter.device, batch_statistics=False, dropout=False), torch.no_grad():
        ShapeProp(fx.GraphModule(module, graph)).propagate(examples.to(parameter.device))


def _shape(node: Any) -> torch.Size | None:
    meta = node.meta.get("tensor_meta") if isinstance(node, fx.Node) else None
    return getattr(meta, "shape", None)


# the walk


def _walked(module: nn.Module, graph: fx.Graph, notes: list[str]) -> Signal:
    """What the network's output has gone through."""
    modules = dict(module.named_modules())
    convolutional = any(isinstance(modules.get(str(n.target)), (nn.Conv1d, nn.Conv2d)) for n in graph.nodes)
    signals: dict[fx.Node, Signal] = {}
    owners: dict[int, str] = {}
    for node in graph.nodes:
        taken = [n for n in node.all_input_nodes if n in signals]
        if node.op == "placeholder":
            if signals and node.users:
                raise NotUnderstood(node.name, "a second input", "mean-field theory here is of networks of one input")
            shape = _shape(node)
            size = (1, *shape[2:])[-2:] if convolutional and shape is not None else None
            signals.setdefault(node, Signal(size=size)) if node.users else None
        elif node.op == "output":
            if len(taken) != 1 or node.args[0] is not taken[0]:
                raise NotUnderstood("output", "not one tensor", "mean-field theory here is of networks of one output")
            return signals[taken[0]]
        elif taken:
            call = _call(node, taken[0], modules, notes)
            if call.what in SHAPE_READERS:
                continue
            if isinstance(call.what, nn.Module):
                _check_own(call, owners)
            signals[node] = (
                _summed(call, [signals[n] for n in taken], node) if call.what == "add" else _ruled(call, taken, signals)
            )
    raise AssertionError("a graph ends in its output")


def _call(node: fx.Node, signal: fx.Node, modules: dict[str, nn.Module], notes: list[str]) -> Call:
    if node.op == "call_module":
        name, what = str(node.target), modules[str(node.target)]
    else:
        target = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
        target = target.strip("_")
        name, what = node.name, SPELLINGS.get(target, target)
    arguments = tuple(a for a in node.args if a is not signal)
    return Call(name, what, arguments, dict(node.kwargs), _shape(signal), _shape(node), notes)


def _check_own(call: Call, owners: dict[int, str]) -> None:
    for parameter in call.what.parameters():
        if id(parameter) in owners:
            tied = f"it shares a parameter with {owners[id(parameter)]!r}"
            why = "it is called more than once" if owners[id(parameter)] == call.name else tied
            raise call.refused(f"{why}, and weights that are used twice are not independent")
    owners.update({id(parameter): call.name for parameter in call.what.parameters()})


def _ruled(call: Call, taken: list[fx.Node], signals: dict[fx.Node, Signal]) -> Signal:
    rule = rule_of(call)
    if len(taken) > 1:
        raise call.refused("it joins two signals otherwise than by their sum")
    return rule(call, signals[taken[0]])


def _summed(call: Call, terms: list[Signal], node: fx.Node) -> Signal:
    if len(terms) != 2 or node.kwargs.get("alpha", 1) != 1 or len(node.args) != 2:
        raise call.refused("it adds something else than two signals to each other")
    return terms[0].plus(terms[1], call.name)


# the ends


def _outputs(module: nn.Module, signal: Signal) -> int:
    layers = [stage for stage in every(signal.stages) if isinstance(stage, Affine)]
    last = signal.stages[-1] if signal.stages else None
    if not layers or not isinstance(last, (Affine, GlobalPool, Residual)) or signal.size is not None:
        name = last.name if isinstance(last, Nonlinearity) else type(last).__name__
        raise NotUnderstood(
            name, "at the end of the network", "the theory is of networks that end in weights",
            "Predict for the part up to the logits.",
        )  # fmt: skip
    layer: Any = module.get_submodule(layers[-1].name)
    return int(layer.weight.shape[0])


def _input_moments(stages: Sequence[Stage], examples: Tensor | None, batch: Tensor | None, notes: list[str]) -> Kernel:
    positions = list(_windows(stages))
    if batch is not None and len(batch) > MOST_EXAMPLES:
        notes.append(f"of {len(batch)} inputs the first {MOST_EXAMPLES} count")
        batch = batch[:MOST_EXAMPLES]
    if batch is not None:
        batch = batch.detach().double().cpu()
        if not positions:
            return Gram.of(batch)
        return Field.of(batch if batch.dim() == 4 else batch.unsqueeze(2))
    if examples is not None and any(sum(stage.window.padding) or isinstance(stage, AveragePool) for stage in positions):
        return Field.independent(math.prod(examples.shape[2:]))
    one = torch.ones((), dtype=torch.float64)
    return Moments(one, torch.zeros_like(one))


def _windows(stages: Sequence[Stage]) -> Iterator[Convolution | AveragePool]:
    for stage in every(stages):
        if isinstance(stage, (Convolution, AveragePool)):
            yield stage
