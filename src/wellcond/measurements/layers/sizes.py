"""Shapes, parameters and arithmetic of every layer, as it is called on the data."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from wellcond.network.calling import tensors_in
from wellcond.network.isolation.arithmetic import own_arithmetic
from wellcond.network.layers import called_modules
from wellcond.network.taps import without_graph
from wellcond.problem.arguments import check_problem
from wellcond.problem.problem import Problem
from wellcond.results import ByLayer, Cost, Row, quantities, text_table
from wellcond.results.text import WHOLE_MODEL
from wellcond.training.leading import led

POWERS = {12: "T", 9: "G", 6: "M", 3: "k"}


@dataclass(frozen=True)
class LayerSize:
    """One layer.

    Attributes:
        name: Name of the layer.
        kind: Type of the layer.
        shape: Shape of its last output with the batch, of several tensors that of the first; None if there is none.
        parameters: Number of its parameters; those that another layer before it has too are counted there.
        trainable: Those of them that are trained.
        flops: Floating-point operations of its forward passes over one batch, two for a multiplication and addition.
    """

    name: str
    kind: str
    shape: tuple[int, ...] | None
    parameters: int
    trainable: int
    flops: float


@dataclass(frozen=True)
class SizeTable(ByLayer[LayerSize]):
    """One entry per layer that was called, in that order.

    Attributes:
        layers: Entries by name.
        parameters: Parameters of the whole model.
        trainable: Those of them that are trained.
        flops: Of the forward pass of the first batch.
        examples: Examples of that batch.
        cost: What it took.
    """

    layers: dict[str, LayerSize]
    parameters: int
    trainable: int
    flops: float
    examples: int
    cost: Cost

    def rows(self, step: int | None = None) -> list[Row]:
        whole = [("", float(self.parameters), self.flops)]
        rows = []
        for name, parameters, flops in [
            *whole,
            *((e.name, float(e.parameters), e.flops) for e in self.layers.values()),
        ]:
            rows.append(Row(step, name, quantities.PARAMETERS, parameters, "parameters"))
            rows.append(Row(step, name, quantities.FLOPS, flops, "operations"))
        return rows

    def __str__(self) -> str:
        head = ["layer", "kind", "output", "parameters", "FLOPs"]
        body = [
            [
                each.name or WHOLE_MODEL,
                each.kind,
                "–" if each.shape is None else " × ".join(map(str, each.shape)),
                f"{each.parameters:,}" + (" frozen" if each.parameters and not each.trainable else ""),
                short(each.flops),
            ]
            for each in self.layers.values()
        ]
        total = f"{self.parameters:,} parameters, {self.trainable:,} of them trained; {short(self.flops)}FLOP"
        text = f"{total} forward for {self.examples} examples, about three times that for a training step"
        return f"{text_table(head, body)}\n{text}"


def short(count: float) -> str:
    """A large count with a letter for its power of ten.

    Example:
        >>> short(2_400_000_000), short(950), short(0)
        ('2.4 G', '950 ', '0 ')
    """
    for power, letter in POWERS.items():
        if count >= 10**power:
            return f"{count / 10**power:.3g} {letter}"
    return f"{count:.0f} "


def _of_layer(inputs: torch.Size, *weights: torch.Size, **_: Any) -> int:
    """One recurrent layer in one direction: both of its matrices act on every step of every sequence."""
    return 2 * inputs[:-1].numel() * sum(shape.numel() for shape in weights[:2])


def _of_layers(inputs: torch.Size, weights: Sequence[torch.Size], *_: Any, **__: Any) -> int:
    """All layers and directions, by their matrices; biases are vectors."""
    return 2 * inputs[:-1].numel() * sum(shape.numel() for shape in weights if len(shape) == 2)


FUSED = {
    torch.ops.aten.mkldnn_rnn_layer: _of_layer,
    torch.ops.aten._cudnn_rnn: _of_layers,
    torch.ops.aten.miopen_rnn: _of_layers,
}
"""Operations that the counter of torch does not know."""


@led
@own_arithmetic()
def sizes(problem: Problem) -> SizeTable:
    """Output shape, parameters and floating-point operations of every layer, in one forward pass of the first batch.

    Matrix products, convolutions and attention are counted, as `torch.utils.flop_counter` does it, and those of
    recurrent layers that run as one operation.

    Args:
        problem: The model, loss and data.

    Returns:
        One entry per layer that was called, in that order.

    Example:
        >>> import wellcond as wc
        >>> model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> table = sizes(wc.Problem(model, nn.CrossEntropyLoss(), (torch.ones(5, 3), torch.zeros(5).long())))
        >>> table["0"].shape, table["0"].parameters, table["0"].flops               # 2 · 5 · 3 · 4
        ((5, 4), 16, 120.0)
    """
    check_problem(problem)
    before, model = problem.cost, problem.model
    names = {module: name for name, module in called_modules(model).items()}
    called: dict[str, tuple[int, ...] | None] = {}

    def note(module: nn.Module, _: Any, output: Any) -> None:
        called.pop(names[module], None)
        called[names[module]] = next((tuple(each.shape) for each in tensors_in(output)), None)

    counter = FlopCounterMode(display=False, custom_mapping=FUSED)
    with problem.measuring(), torch.no_grad(), contextlib.closing(problem.data()) as data:
        index, batch = next(data)
        with without_graph(model), _hooked(names, note), counter:
            outputs = problem.forward(index, batch[0])
        examples = problem.evaluate_outputs(index, batch, outputs).examples
    flops = {path: float(sum(operations.values())) for path, operations in counter.get_flop_counts().items()}
    seen: set[Tensor] = set()
    entries = {}
    modules = {name: module for module, name in names.items()}
    for name, shape in called.items():
        own = [p for p in modules[name].parameters() if p not in seen]
        seen.update(own)
        entries[name] = LayerSize(
            name,
            type(modules[name]).__name__,
            shape,
            sum(p.numel() for p in own),
            sum(p.numel() for p in own if p.requires_grad),
            flops.get(f"{type(model).__name__}.{name}" if name else type(model).__name__, 0.0),
        )
    every = [*model.parameters()]
    return SizeTable(
        entries,
        sum(p.numel() for p in every),
        sum(p.numel() for p in every if p.requires_grad),
        flops.get("Global", 0.0),
        examples,
        problem.cost - before,
    )


@contextlib.contextmanager
def _hooked(modules: Any, hook: Any) -> Iterator[None]:
    """Hooks that are removed at the end."""
    handles = [module.register_forward_hook(hook) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
