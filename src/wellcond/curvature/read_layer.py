"""A layer whose per-example gradients are read from its inputs and output gradients by its rule, Σ_t g_t x_tᵀ."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from wellcond.curvature.ggn import OutputCurvature
from wellcond.errors import NonFinite
from wellcond.network.layers import BlockRule, Rule, rule_for, weighted_layers


class Passing:
    """Inputs and output gradients of the tapped layers on one batch, one for each call and backward pass."""

    def __init__(self, names: Iterable[str]) -> None:
        self.inputs: dict[str, list[Tensor]] = {name: [] for name in names}
        self.gradients: dict[str, list[Tensor]] = {name: [] for name in names}
        self.entries = dict.fromkeys(self.inputs, 0)  # number of entries of a layer's outputs
        self.is_over = False

    def on_call(self, name: str, _module: nn.Module, x: Any, output: Any) -> None:
        self.inputs[name].append(x.detach())
        self.entries[name] += output.numel() if isinstance(output, Tensor) else 0

    def on_gradient(self, name: str, _module: nn.Module, _x: Any, gradient: Tensor) -> None:
        if not self.is_over:
            self.gradients[name].append(gradient.detach())

    def is_once(self, name: str, examples: int) -> bool:
        """Whether there was one call, with one gradient, both with a row for every example."""
        calls, gradients = self.inputs[name], self.gradients[name]
        return len(calls) == len(gradients) == 1 and len(calls[0]) == len(gradients[0]) == examples

    def take_gradients(self) -> dict[str, list[Tensor]]:
        """The gradients since they were last taken."""
        taken, self.gradients = self.gradients, {name: [] for name in self.gradients}
        return taken


@dataclass
class ReadLayer:
    """One layer's inputs, and the gradients at its output for every factor, gathered over the batches.

    c group, n example, r factor, t position, i and o the two sides of the weight. Squares of small and large numbers
    leave the range of float32, so rows and their products are stored in a unit, which is a power of two.
    """

    name: str
    module: nn.Module
    rule: Rule
    names: dict[str, str]  # "weight", "bias" → the parameter's name
    x: list[Tensor] = field(default_factory=list)  # (c, n, t, i)
    g: list[Tensor] = field(default_factory=list)  # (c, n, r, t, o)
    g_bias: list[Tensor] = field(default_factory=list)  # (n·r, o)

    def add(self, x: Tensor, gradients: Tensor) -> None:
        """Add a batch: x, the layer's input, and gradients, (r, n, *output)."""
        count, examples = gradients.shape[:2]
        rows = self.rule.input_rows(self.module, x, "patch")
        self.x.append(rows.reshape(len(rows), examples, -1, rows.shape[-1]))
        flat = gradients.flatten(0, 1)
        g = self.rule.gradient_rows(self.module, flat, "patch")
        self.g.append(g.reshape(len(g), count, examples, -1, g.shape[-1]).transpose(1, 2))
        bias = self.rule.gradient_rows(self.module, flat, "position")[0]
        bias = bias.reshape(count, examples, -1, bias.shape[-1]).sum(2).transpose(0, 1)
        self.g_bias.append(bias.reshape(examples * count, -1))

    def unit(self, part: str) -> float:
        """About the largest entry that the part's rows can have."""
        units = (power_of_two(values, self.name) for values in ((self.g_bias,) if part == "bias" else (self.x, self.g)))
        return math.prod(units)

    def rows(self, part: str) -> Tensor:
        """(n·r, entries) in the part's unit, in the order of the parameter's own entries."""
        if part == "bias":
            return torch.cat(self.g_bias) / self.unit(part)
        x_unit, g_unit = power_of_two(self.x, self.name), power_of_two(self.g, self.name)
        order = "cnti,cnrto->nrcio" if self.rule.weight_is_input_major else "cnti,cnrto->nrcoi"
        batches = [torch.einsum(order, x / x_unit, g / g_unit) for x, g in zip(self.x, self.g, strict=True)]
        return torch.cat([rows.flatten(0, 1).flatten(1) for rows in batches])

    def gram(self, part: str) -> Tensor:
        """The rows' inner products, in the square of the part's unit."""
        if part == "bias" or not self.has_one_position:
            rows = self.rows(part)
            return rows @ rows.T
        x = torch.cat([x[0, :, 0] for x in self.x]) / power_of_two(self.x, self.name)
        g = torch.cat([g[0, :, :, 0].flatten(0, 1) for g in self.g]) / power_of_two(self.g, self.name)
        factors = torch.cat([torch.full((g.shape[1],), g.shape[2], device=x.device) for g in self.g])
        example = torch.arange(len(x), device=x.device).repeat_interleave(factors)
        return (g @ g.T).mul_((x @ x.T)[example[:, None], example])

    @property
    def width(self) -> int:
        """Number of outputs at one position, if the weight has the shape that is usual for its type."""
        shape = getattr(getattr(self.module, "weight", None), "shape", (1, 1))
        return int(shape[1] if self.rule.weight_is_input_major else shape[0])

    def input_entries(self, outputs: int) -> int:
        """Number of entries of its patches if its outputs have `outputs` entries."""
        return outputs * sum(p.numel() for p in self.module.parameters(recurse=False)) // self.width**2

    @property
    def has_one_position(self) -> bool:
        """Whether the rows are single products g xᵀ, which need not be formed."""
        return all(x.shape[0] == x.shape[2] == 1 for x in self.x)

    def explains(self, totals: Mapping[str, Tensor | None], x: Tensor, gradient: Tensor) -> bool:
        """Whether the rows add up to autograd's gradients of the same cotangent."""
        trial = ReadLayer(self.name, self.module, self.rule, self.names)
        trial.add(x, gradient.unsqueeze(0))
        x_unit, g_unit = power_of_two(trial.x, self.name), power_of_two(trial.g, self.name)
        x, g = trial.x[0].flatten(1, 2) / x_unit, trial.g[0].flatten(1, 3) / g_unit
        bias, weight = trial.rows("bias"), x.mT @ g if self.rule.weight_is_input_major else g.mT @ x
        ours = {"bias": bias.sum(0), "weight": weight}
        sizes = {"bias": bias.norm(), "weight": (x.norm(dim=-1) * g.norm(dim=-1)).norm()}
        for part, full in self.names.items():
            total = totals[full]
            if total is None or total.numel() != ours[part].numel():
                return False
            off = ours[part].flatten() - total.flatten() / trial.unit(part)
            if not off.norm() <= math.sqrt(torch.finfo(off.dtype).eps) * sizes[part]:  # also false for NaN
                return False
        return True


def power_of_two(tensors: Sequence[Tensor], name: str) -> float:
    """The power of two just below the largest entry: division by it brings the entries to order one, exactly.

    >>> power_of_two([torch.tensor([0.1, -5.0])], "fc")
    4.0
    """
    tensors = [t for t in tensors if t.numel()]
    ends = [abs(float(end)) for t in tensors for end in t.aminmax()]
    if not all(map(math.isfinite, ends)):
        raise NonFinite(
            f"the gradients of {name or 'the model'!r} are NaN or inf although the loss is finite: they overflow, or a "
            "derivative does not exist there (a square root or norm at 0?). Use model.double() if they overflow."
        )
    largest = max(ends, default=0.0)
    if largest == 0:
        return 1.0
    # a GPU divides by multiplying with the inverse, which must not overflow
    return 2.0 ** max(math.frexp(largest)[1] - 1, int(math.log2(torch.finfo(tensors[0].dtype).tiny)) + 6)


def readable_layers(operator: OutputCurvature) -> dict[str, ReadLayer]:
    """Layers with a rule whose trainable parameters belong to them alone."""
    problem = operator.problem
    if problem.couples_examples:
        return {}
    owners = Counter(id(p) for m in problem.model.modules() for p in m.parameters(recurse=False))
    layers = {}
    for name, module in weighted_layers(problem.model).items():
        rule = rule_for(module)
        own = {part: f"{name}.{part}" if name else part for part in ("weight", "bias")}
        own = {part: full for part, full in own.items() if full in operator.params}
        shared = any(owners[id(operator.params[full])] > 1 for full in own.values())
        if rule is not None and own and not shared and not isinstance(rule, BlockRule):
            layers[name] = ReadLayer(name, module, rule, own)
    return layers
