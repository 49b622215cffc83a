"""The dual side of Jᵀ B J: its factor A with F = AᵀA, one row a (term, label), and the Gram matrix A Aᵀ.

A Aᵀ has the non-zero eigenvalues of F and a side of N·R, whatever the number of parameters. For layers that are called
once and read by a rule, an example's gradient is Σ_t g_t x_tᵀ, so R backward passes over the whole batch give everything;
with one position (a linear layer on vectors) the rows are never formed:

    (A_l A_lᵀ)[(n,r),(m,s)] = ⟨x_n, x_m⟩ ⟨g_nr, g_ms⟩.

Other parameters (norm scales, shared weights), and all of them where batch statistics couple the examples, take one
backward pass a row.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from wellcond.curvature.ggn import OutputCurvature, tensor_outputs
from wellcond.errors import InvalidProblem
from wellcond.layers import BlockRule, Rule, rule_for, weighted_layers
from wellcond.problem import Batch
from wellcond.taps import tapped

CHUNK = 64
"""Rows differentiated together by one vectorised backward pass."""


class Factor:
    """A with Jᵀ B J = AᵀA, by parameters. `rows` counts its rows; neither side is formed before it is asked for.

    Raises `InvalidProblem` where B has no known square root (an unknown loss).
    """

    def __init__(self, operator: OutputCurvature) -> None:
        self.operator = operator
        self.rows = 0
        self._terms = 0.0
        self._layers = _readable_layers(operator)
        self._one_by_one: list[Tensor] = []
        problem = operator.problem
        with problem.measuring():
            for index, batch in problem.data():
                self._add(index, batch)

    def gram(self) -> Tensor:
        """A Aᵀ, (rows, rows)."""
        rest = torch.cat(self._one_by_one)
        total = rest @ rest.T
        for layer in self._layers.values():
            for part in layer.names:
                total += layer.gram(part)
        return total / self._terms

    def matrix(self) -> Tensor:
        """A, (rows, P), its columns in the order of the operator's parameters."""
        read = {name: layer.rows(part) for layer in self._layers.values() for part, name in layer.names.items()}
        names = self._other_names()
        rest = torch.cat(self._one_by_one).split([self.operator.params[name].numel() for name in names], 1)
        read |= dict(zip(names, rest, strict=True))
        return torch.cat([read[name] for name in self.operator.names], 1) / self._terms**0.5

    def _other_names(self) -> list[str]:
        read = {name for layer in self._layers.values() for name in layer.names.values()}
        return [name for name in self.operator.names if name not in read]

    def _add(self, index: int, batch: Batch) -> None:
        inputs: dict[str, list[Tensor]] = {name: [] for name in self._layers}
        gradients: dict[str, list[Tensor]] = {name: [] for name in self._layers}

        def on_call(name: str, _module: nn.Module, x: Any, _output: Any) -> None:
            inputs[name].append(x.detach())

        def on_gradient(name: str, _module: nn.Module, _x: Any, gradient: Tensor) -> None:
            gradients[name].append(gradient.detach())

        with tapped({name: layer.module for name, layer in self._layers.items()}, on_call, on_gradient):
            evaluation = self.operator.problem.evaluate(index, batch)
        outputs = tensor_outputs(evaluation)
        factor = self.operator.output_factor(evaluation, outputs.detach().requires_grad_())
        if factor is None:
            raise InvalidProblem("the loss was not recognised, so its curvature has no known square root.")
        count, examples = factor.shape[:2]
        if self.rows == 0:
            self._keep_independent(outputs, factor, inputs, gradients)
        weights = [self.operator.params[name] for layer in self._layers.values() for name in layer.names.values()]
        for cotangent in factor if weights else ():
            torch.autograd.grad(outputs, weights, cotangent, retain_graph=True, allow_unused=True)
        for name, layer in self._layers.items():
            layer.add(inputs[name][0], torch.stack(gradients[name]), count, examples)
        self._one_by_one.append(self._rows_one_by_one(outputs, factor))
        self.rows += count * examples
        self._terms += evaluation.terms

    def _keep_independent(
        self, outputs: Tensor, factor: Tensor, inputs: dict[str, list[Tensor]], gradients: dict[str, list[Tensor]]
    ) -> None:
        """Drop layers that were not called exactly once on the examples; drop all if examples are coupled."""
        examples = outputs.shape[0]
        params = list(self.operator.params.values())
        only_first = torch.zeros_like(outputs)
        only_first[0] = factor[0, 0] + 1.0
        torch.autograd.grad(outputs, params, only_first, retain_graph=True, allow_unused=True)
        for name in list(self._layers):
            seen, calls = gradients[name], inputs[name]
            once = len(calls) == 1 and len(seen) == 1 and len(seen[0]) == len(calls[0]) == examples
            if not once:
                del self._layers[name]
        if any(bool(gradients[name][0][1:].any()) for name in self._layers):
            self._layers.clear()
        for seen in gradients.values():
            seen.clear()

    def _rows_one_by_one(self, outputs: Tensor, factor: Tensor) -> Tensor:
        params = [self.operator.params[name] for name in self._other_names()]
        count, examples = factor.shape[:2]
        if not params or not outputs.requires_grad:
            return outputs.new_zeros(count * examples, sum(p.numel() for p in params))
        blocks = []
        for index in torch.arange(count * examples, device=outputs.device).split(CHUNK):
            n, r = index // count, index % count
            cotangents = outputs.new_zeros(len(index), *outputs.shape)
            cotangents[torch.arange(len(index), device=outputs.device), n] = factor[r, n]
            gradients = torch.autograd.grad(
                outputs, params, cotangents, retain_graph=True, allow_unused=True, is_grads_batched=True
            )
            blocks.append(
                torch.cat(
                    [
                        g.flatten(1) if g is not None else outputs.new_zeros(len(index), p.numel())
                        for g, p in zip(gradients, params, strict=True)
                    ],
                    1,
                )
            )
        return torch.cat(blocks)


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

    def add(self, x: Tensor, gradients: Tensor, count: int, examples: int) -> None:
        """x: what the layer received; gradients: (r, n, *output)."""
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
        x, g = torch.cat(self.x, 1), torch.cat(self.g, 1)
        if part == "bias" or x.shape[0] > 1 or x.shape[2] > 1:
            rows = self.rows(part)
            return rows @ rows.T
        x, g = x[0, :, 0], g[0, :, :, 0]
        count, flat = g.shape[1], g.flatten(0, 1)
        gram = (flat @ flat.T).unflatten(0, (-1, count)).unflatten(2, (-1, count))
        return (gram * (x @ x.T)[:, None, :, None]).flatten(2).flatten(0, 1)


def _readable_layers(operator: OutputCurvature) -> dict[str, _ReadLayer]:
    """Layers with a rule whose trainable parameters belong to them alone."""
    problem = operator.problem
    if problem.couples_examples:
        return {}
    owners = Counter(
        id(p) for m in problem.model.modules() for p in m.parameters(recurse=False)
    )
    layers = {}
    for name, module in weighted_layers(problem.model).items():
        rule = rule_for(module)
        own = {part: f"{name}.{part}" if name else part for part in ("weight", "bias")}
        own = {part: full for part, full in own.items() if full in operator.params}
        shared = any(owners[id(operator.params[full])] > 1 for full in own.values())
        if rule is not None and own and not shared and not isinstance(rule, BlockRule):
            layers[name] = _ReadLayer(module, rule, own)
    return layers
