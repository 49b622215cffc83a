"""From a module to the stages of mean-field theory: its forward pass is traced and read call by call."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from wellcond.errors import InvalidProblem
from wellcond.meanfield.arguments import check_finite, shape_of_one
from wellcond.meanfield.calls import Call, two
from wellcond.meanfield.convolution import AveragePool, Convolution, GlobalPool
from wellcond.meanfield.field import Field
from wellcond.meanfield.gram import Gram
from wellcond.meanfield.means import with_means
from wellcond.meanfield.module_rules import MODULES, rule_of
from wellcond.meanfield.moments import Kernel, Moments
from wellcond.meanfield.signals import NotUnderstood, Signal, every
from wellcond.meanfield.stages import Affine, Nonlinearity, Residual, Stage
from wellcond.meanfield.tracing import traced
from wellcond.network.calling import unwrapped

MOST_EXAMPLES = 1000
"""Of which the matrix of products is followed through the layers."""
SPELLINGS = {"iadd": "add", "imul": "mul", "itruediv": "truediv", "div": "truediv", "multiply": "mul"}
SHAPE_READERS = frozenset(("size", "dim", "numel", "getattr"))


@dataclass(frozen=True)
class Reading:
    """A network as mean-field theory sees it.

    stages: its layers, with σ_w² = fan_in · mean(w²), σ_b² = mean(b²) and γ = √mean(γ²) of its own parameters; frozen
    ones have no term. outputs: C. input_moments: of the inputs that were given, as matrices of examples for dense
    networks and of positions for convolutional ones; else those of independent normalised inputs. notes: where theory
    and network do not agree.
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

    inputs: a batch (N, ...), N > 1, or the shape of one example; convolutions need either. Understood are linear
    layers, 1d and 2d convolutions, batch, layer and RMS norms, activations, flattening, average pooling, and sums of
    two ways through the network, written as modules or as functions; anything else is refused by name
    (`NotUnderstood`). Nothing of the module is changed. Cost: one forward pass of two examples.

    >>> layer = nn.Linear(4, 3, bias=False)
    >>> _ = nn.init.constant_(layer.weight, 0.5)
    >>> reading = read(nn.Sequential(layer, nn.ReLU(), nn.Linear(3, 2)))
    >>> float(reading.stages[0].sigma_w2), reading.outputs, reading.notes
    (1.0, 2, ('0: its weights have a mean of 0.5, which is taken as 0',))
    """
    module = unwrapped(module)
    if isinstance(module, tuple(MODULES)):
        module = nn.Sequential(module)
    for name, parameter in module.named_parameters():
        if parameter.is_meta:
            raise InvalidProblem(f"parameter {name!r} is on the meta device and has no values; initialise it first.")
    examples = _two_examples(inputs)
    walk = _Walk(module)
    signal = walk.along(traced(module, examples))
    outputs, notes = _outputs(module, signal), walk.notes()
    if isinstance(inputs, Tensor) and len(inputs) > MOST_EXAMPLES:
        notes.append(f"of {len(inputs)} inputs the first {MOST_EXAMPLES} count")
    start = _input_moments(signal.stages, examples, inputs if isinstance(inputs, Tensor) else None)
    return Reading(with_means(signal.stages, start), outputs, start, tuple(notes))


def _two_examples(inputs: Tensor | Sequence[int] | None) -> Tensor | None:
    if inputs is None:
        return None
    if not isinstance(inputs, Tensor):
        return torch.zeros(2, *shape_of_one(inputs))
    if inputs.dim() < 2 or len(inputs) < 2:
        raise ValueError(f"inputs is {tuple(inputs.shape)}; it must be a batch (N, ...) of two examples or more.")
    check_finite(inputs)
    return inputs[:2]


class _Walk:
    """Along the calls, from the network's input to its output."""

    def __init__(self, module: nn.Module) -> None:
        self.modules = dict(module.named_modules())
        self.remarks: dict[str, list[str]] = {}
        """What → the layers of which it is said."""
        self.signals: dict[fx.Node, Signal] = {}
        """By the node that gives them; what is not there depends on no value, as a size does."""
        self.owners: dict[nn.Parameter, str] = {}

    def along(self, graph: fx.Graph) -> Signal:
        """What the output has gone through."""
        called = [self.modules.get(str(node.target)) for node in graph.nodes if node.op == "call_module"]
        has_positions = any(isinstance(module, (nn.Conv1d, nn.Conv2d)) for module in called)
        for node in graph.nodes:
            taken = [n for n in node.all_input_nodes if n in self.signals]
            if node.op == "placeholder" and node.users:
                if self.signals:
                    raise NotUnderstood(node.name, "a second input", "mean-field theory here is of networks of one")
                shape = node.meta.get("shape")
                self.signals[node] = Signal(size=two(shape[2:]) if has_positions and shape is not None else None)
            elif node.op == "output":
                if node.args[0] not in self.signals:
                    raise NotUnderstood("output", "not one tensor", "mean-field theory here is of networks of one")
                return self.signals[node.args[0]]
            elif taken:
                call = self._call(node, taken[0])
                if call.kind not in SHAPE_READERS:
                    self.signals[node] = self._given(call, node, [self.signals[n] for n in taken])
        raise AssertionError("a graph ends in its output")

    def _call(self, node: fx.Node, signal: fx.Node) -> Call:
        if node.op == "call_module":
            name, what = str(node.target), self.modules[str(node.target)]
        else:
            target = getattr(node.target, "__name__", str(node.target)).strip("_")
            name, what = node.name, SPELLINGS.get(target, target)
        arguments = tuple(a for a in node.args if a is not signal)
        before, behind = (n.meta.get("shape") for n in (signal, node))
        return Call(name, what, arguments, dict(node.kwargs), before, behind)

    def _given(self, call: Call, node: fx.Node, signals: list[Signal]) -> Signal:
        if call.what == "add":
            if len(signals) != 2 or len(node.args) != 2 or node.kwargs.get("alpha", 1) != 1:
                raise call.refused("it adds something else than two different signals")
            return signals[0].plus(signals[1], call.name)
        rule = rule_of(call)
        if len(signals) > 1:
            raise call.refused("it joins signals otherwise than by their sum")
        if node.args and call.what != "mul" and node.args[0] not in self.signals:
            raise call.refused("the signal is not its first argument")
        if isinstance(call.what, nn.Module):
            self._check_own(call)
        given = rule(call, signals[0])
        for remark in call.remarks:
            self.remarks.setdefault(remark, []).append(call.name)
        return given

    def _check_own(self, call: Call) -> None:
        for parameter in call.what.parameters():
            if parameter in self.owners:
                owner = self.owners[parameter]
                twice = "it is called twice" if owner == call.name else f"it shares a parameter with {owner!r}"
                raise call.refused(f"{twice}, and weights that are used twice are not independent")
        self.owners |= dict.fromkeys(call.what.parameters(), call.name)

    def notes(self) -> list[str]:
        """One line for all layers of which the same is to be said."""
        return [
            f"{', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}: {remark}"
            for remark, names in self.remarks.items()
        ]


# the ends


def _outputs(module: nn.Module, signal: Signal) -> int:
    layers = [stage for stage in every(signal.stages) if isinstance(stage, Affine)]
    if not layers:
        raise InvalidProblem(f"the network {type(module).__name__} has neither a linear layer nor a convolution.")
    last = signal.stages[-1]
    if not isinstance(last, (Affine, GlobalPool, Residual)) or signal.size is not None:
        name = getattr(last, "name", type(last).__name__)
        why = "the theory is of networks that end in weights, or in the mean of what they give over positions"
        raise NotUnderstood(name, "at the end of the network", why, "Predict for the part up to the logits.")
    layer: Any = module.get_submodule(layers[-1].name)
    return int(layer.weight.shape[0])


def _input_moments(stages: Sequence[Stage], examples: Tensor | None, batch: Tensor | None) -> Kernel:
    windows = [stage for stage in every(stages) if isinstance(stage, (Convolution, AveragePool))]
    if batch is not None:
        batch = batch[:MOST_EXAMPLES].detach().double().cpu()
        if not windows:
            return Gram.of(batch)
        return Field.of(batch if batch.dim() == 4 else batch.unsqueeze(2))
    if examples is not None and any(any(w.window.padding) or isinstance(w, AveragePool) for w in windows):
        return Field.independent(math.prod(examples.shape[2:]))
    one = torch.ones((), dtype=torch.float64)
    return Moments(one, torch.zeros_like(one))
