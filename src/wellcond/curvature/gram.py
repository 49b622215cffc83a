"""The dual side of Jᵀ B J: its factor A with F = AᵀA, one row per (term, label), and the Gram matrix A Aᵀ.

A Aᵀ has the non-zero eigenvalues of F and a side of N·R, whatever the number of parameters. For layers that are
called once and read by a rule, an example's gradient is Σ_t g_t x_tᵀ, so R backward passes over the whole batch give
everything; with one position (a linear layer on vectors) the rows are never formed:

    (A_l A_lᵀ)[(n,r),(m,s)] = ⟨x_n, x_m⟩ ⟨g_nr, g_ms⟩.

Other parameters (norm scales, shared weights), and all of them where batch statistics couple the examples, take one
backward pass per row.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from wellcond.curvature.ggn import OutputCurvature, tensor_outputs
from wellcond.errors import InvalidProblem
from wellcond.network.layers import BlockRule, Rule, rule_for, weighted_layers
from wellcond.network.taps import tapped
from wellcond.problem.problem import Batch

CHUNK = 64
"""Rows differentiated together by one vectorised backward pass."""


class Factor:
    """A with Jᵀ B J = AᵀA, by parameters. Neither side is formed before it is asked for.

    Attributes:
        row_count: How many rows it has.

    Raises `InvalidProblem` where B has no known square root (an unknown loss).
    """

    def __init__(self, operator: OutputCurvature) -> None:
        self.operator = operator
        self.row_count = 0
        self._terms = 0.0
        self._layers = _readable_layers(operator)
        self._one_by_one: list[Tensor] = []
        with operator.problem.measuring(), contextlib.closing(operator.problem.data()) as data:
            for index, batch in data:
                self._add(index, batch)

    def gram(self) -> Tensor:
        """A Aᵀ, (rows, rows)."""
        rest = torch.cat(self._one_by_one)
        total = rest @ rest.T
        for layer in self._layers.values():
            for part in layer.names:
                total += layer.gram(part)
        return total.div_(self._terms)

    def matrix(self) -> Tensor:
        """A, (rows, P), its columns in the order of the operator's parameters."""
        read = {name: layer.rows(part) for layer in self._layers.values() for part, name in layer.names.items()}
        names = self._other_names()
        rest = torch.split(torch.cat(self._one_by_one), [self.operator.params[name].numel() for name in names], 1)
        read |= dict(zip(names, rest, strict=True))
        return torch.cat([read[name] for name in self.operator.names], 1).div_(math.sqrt(self._terms))

    def _other_names(self) -> list[str]:
        read = {name for layer in self._layers.values() for name in layer.names.values()}
        return [name for name in self.operator.names if name not in read]

    def _add(self, index: int, batch: Batch) -> None:
        passing = _Passing(self._layers)
        with tapped({name: layer.module for name, layer in self._layers.items()}, passing.on_call, passing.on_gradient):
            evaluation = self.operator.problem.evaluate(index, batch)
        outputs = tensor_outputs(evaluation)
        factor = self.operator.output_factor(evaluation, outputs.detach().requires_grad_())
        if factor is None:
            raise InvalidProblem("the loss was not recognised, so its curvature has no known square root.")
        count, examples = factor.shape[:2]
        if self.row_count == 0:
            self._keep_readable(outputs, passing)
        if self._layers:
            weights = [self.operator.params[name] for layer in self._layers.values() for name in layer.names.values()]
            for cotangent in factor:
                self.operator.problem.gradient(outputs, weights, cotangent, retain_graph=True, allow_unused=True)
        for name, layer in self._layers.items():
            layer.add(passing.inputs[name][0], torch.stack(passing.gradients[name]))
        passing.is_over = True
        self._one_by_one.append(self._rows_one_by_one(outputs, factor))
        self.row_count += count * examples
        self._terms += evaluation.terms

    def _keep_readable(self, outputs: Tensor, passing: _Passing) -> None:
        """Drop the layers whose gradients are not what their rule says; drop all if examples are coupled.

        Told by two backward passes. From the first example's outputs: nothing may reach the others. From all of them:
        the rows must add up to autograd's gradient. They do not for a layer that was called twice or never, that
        overrides `forward`, or whose weight is used elsewhere too.
        """
        wave = torch.arange(1.0, outputs.numel() + 1, device=outputs.device).sin().view_as(outputs).to(outputs)
        only_first = torch.zeros_like(wave)
        only_first[0] = wave[0]
        params = list(self.operator.params.values())
        self.operator.problem.gradient(outputs, params, only_first, retain_graph=True, allow_unused=True)
        once = {name for name in self._layers if passing.is_once(name, len(outputs))}
        is_coupled = any(bool(passing.gradients[name][0][1:].any()) for name in once)
        passing.forget_gradients()
        totals = self.operator.problem.gradient(outputs, params, wave, retain_graph=True, allow_unused=True)
        total_of = dict(zip(self.operator.names, totals, strict=True))
        for name, layer in list(self._layers.items()):
            if is_coupled or name not in once or not layer.explains(total_of, passing, name):
                del self._layers[name]
        passing.forget_gradients()

    def _rows_one_by_one(self, outputs: Tensor, factor: Tensor) -> Tensor:
        params = [self.operator.params[name] for name in self._other_names()]
        count, examples = factor.shape[:2]
        if not params or not outputs.requires_grad:
            return outputs.new_zeros(count * examples, sum(p.numel() for p in params))
        blocks = []
        for index in torch.split(torch.arange(count * examples, device=outputs.device), CHUNK):
            n, r = index // count, index % count
            cotangents = outputs.new_zeros(len(index), *outputs.shape)
            cotangents[torch.arange(len(index), device=outputs.device), n] = factor[r, n]
            for _ in index:
                self.operator.problem.count_backward()
            blocks.append(_pulled_back(outputs, params, cotangents))
        return torch.cat(blocks)


def _pulled_back(outputs: Tensor, params: list[nn.Parameter], cotangents: Tensor) -> Tensor:
    """Jᵀu for every cotangent u, as rows."""
    pull = functools.partial(torch.autograd.grad, outputs, params, retain_graph=True, allow_unused=True)
    gradients: Sequence[Tensor | None]
    try:
        gradients = pull(cotangents, is_grads_batched=True)
    except RuntimeError:  # an operation that cannot be batched, as gradient checkpointing
        each = zip(*(pull(u) for u in cotangents), strict=True)
        gradients = [torch.stack(g) if g[0] is not None else None for g in each]
    return torch.cat(
        [
            g.flatten(1) if g is not None else outputs.new_zeros(len(cotangents), p.numel())
            for g, p in zip(gradients, params, strict=True)
        ],
        1,
    )


class _Passing:
    """What passes the tapped layers of one batch: inputs, and output gradients, one for each call and backward pass."""

    def __init__(self, names: Iterable[str]) -> None:
        self.inputs: dict[str, list[Tensor]] = {name: [] for name in names}
        self.gradients: dict[str, list[Tensor]] = {name: [] for name in names}
        self.is_over = False

    def on_call(self, name: str, _module: nn.Module, x: Any, _output: Any) -> None:
        self.inputs[name].append(x.detach())

    def on_gradient(self, name: str, _module: nn.Module, gradient: Tensor) -> None:
        if not self.is_over:
            self.gradients[name].append(gradient.detach())

    def is_once(self, name: str, examples: int) -> bool:
        """Whether there was one call, with one gradient, both with a row for every example."""
        calls, gradients = self.inputs[name], self.gradients[name]
        return len(calls) == len(gradients) == 1 and len(calls[0]) == len(gradients[0]) == examples

    def forget_gradients(self) -> None:
        for gradients in self.gradients.values():
            gradients.clear()


@dataclass
class _ReadLayer:
    """One layer's inputs, and the gradients at its output for every factor, gathered over the batches.

    c group, n example, r factor, t position, i and o the two sides of the weight.
    """

    module: nn.Module
    rule: Rule
    names: dict[str, str]  # "weight", "bias" → the parameter's name
    x: list[Tensor] = field(default_factory=list)  # (c, n, t, i)
    g: list[Tensor] = field(default_factory=list)  # (c, n, r, t, o)
    g_bias: list[Tensor] = field(default_factory=list)  # (n·r, o)

    def add(self, x: Tensor, gradients: Tensor) -> None:
        """x: what the layer received; gradients: (r, n, *output)."""
        count, examples = gradients.shape[:2]
        rows = self.rule.input_rows(self.module, x, "patch")
        self.x.append(rows.reshape(len(rows), examples, -1, rows.shape[-1]))
        flat = gradients.flatten(0, 1)
        g = self.rule.gradient_rows(self.module, flat, "patch")
        self.g.append(g.reshape(len(g), count, examples, -1, g.shape[-1]).transpose(1, 2))
        bias = self.rule.gradient_rows(self.module, flat, "position")[0]
        bias = bias.reshape(count, examples, -1, bias.shape[-1]).sum(2).transpose(0, 1)
        self.g_bias.append(bias.reshape(examples * count, -1))

    def rows(self, part: str) -> Tensor:
        """(n·r, entries), in the order of the parameter's own entries."""
        if part == "bias":
            return torch.cat(self.g_bias)
        order = "cnti,cnrto->nrcio" if self.rule.weight_is_input_major else "cnti,cnrto->nrcoi"
        batches = [torch.einsum(order, x, g) for x, g in zip(self.x, self.g, strict=True)]
        return torch.cat([rows.flatten(0, 1).flatten(1) for rows in batches])

    def gram(self, part: str) -> Tensor:
        """The rows' inner products."""
        if part == "bias" or any(x.shape[0] > 1 or x.shape[2] > 1 for x in self.x):
            rows = self.rows(part)
            return rows @ rows.T
        x = torch.cat([x[0, :, 0] for x in self.x])
        g = torch.cat([g[0, :, :, 0].flatten(0, 1) for g in self.g])
        factors = torch.cat([torch.full((g.shape[1],), g.shape[2]) for g in self.g]).to(x.device)
        example = torch.arange(len(x), device=x.device).repeat_interleave(factors)
        return (g @ g.T).mul_((x @ x.T)[example[:, None], example])

    def explains(self, totals: Mapping[str, Tensor | None], passing: _Passing, name: str) -> bool:
        """Whether the rows add up to autograd's gradients of the same cotangent."""
        trial = _ReadLayer(self.module, self.rule, self.names)
        trial.add(passing.inputs[name][0], torch.stack(passing.gradients[name]))
        for part, full in self.names.items():
            rows, total = trial.rows(part), totals[full]
            tolerance = math.sqrt(torch.finfo(rows.dtype).eps) * rows.norm()
            if total is None or total.numel() != rows.shape[1] or (rows.sum(0) - total.flatten()).norm() > tolerance:
                return False
        return True


def _readable_layers(operator: OutputCurvature) -> dict[str, _ReadLayer]:
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
            layers[name] = _ReadLayer(module, rule, own)
    return layers
