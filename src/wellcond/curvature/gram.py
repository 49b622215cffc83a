"""The dual side of Jᵀ B J: its factor A with F = AᵀA, one row per (term, label), and the Gram matrix A Aᵀ.

A Aᵀ has the non-zero eigenvalues of F and a side of N·R, whatever the number of parameters. For layers that are
called once and read by a rule, an example's gradient is Σ_t g_t x_tᵀ, so R backward passes over the whole batch give
everything; with one position (a linear layer on vectors) the rows are never formed:

    (A_l A_lᵀ)[(n,r),(m,s)] = ⟨x_n, x_m⟩ ⟨g_nr, g_ms⟩.

Other parameters (norm scales, shared weights), and all of them where the examples of a batch are coupled, take one
backward pass per row.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from wellcond.curvature import coupling
from wellcond.curvature.ggn import OutputCurvature, tensor_outputs
from wellcond.curvature.operator import DENSE_LIMIT
from wellcond.curvature.read_layer import Passing, ReadLayer, power_of_two, readable_layers
from wellcond.errors import InvalidProblem, TooLarge
from wellcond.network.taps import tapped
from wellcond.problem.batches import Batch
from wellcond.problem.loss.likelihoods import Fields

CHUNK = 64
"""Rows differentiated together by one vectorized backward pass."""
CHUNK_ENTRIES = 2**25
"""Most entries that the cotangents of one such pass have together."""

CURE = (
    'Take fewer examples, .layer(name), wc.Fisher(problem, labels="sample"), which has fewer rows, '
    "wc.eigenvalues(...) for the largest alone, or raise spectrum(limit=...)."
)


class Factor:
    """A with Jᵀ B J = AᵀA, by parameters. Neither side is formed before it is needed.

    Args:
        operator: The matrix.
        limit: Largest side that may be decomposed.
        size: Number of columns that are decomposed at once; None for all.

    Attributes:
        row_count: Number of rows.
        names: Parameters whose columns it has.

    Raises:
        InvalidProblem: B has no known square root (an unknown loss).
        TooLarge: Both sides are above the limit, A does not fit into memory, or it takes more passes than F itself.
            No backward pass was made in that case.
    """

    def __init__(self, operator: OutputCurvature, limit: int = DENSE_LIMIT, size: int | None = None) -> None:
        self.operator = operator
        self.names = operator.names
        self.row_count = 0
        self._limit, self._size = limit, operator.shape[0] if size is None else size
        self._entries = 0
        self._weight = self._terms = 0.0
        self._layers = readable_layers(operator)
        self._one_by_one: dict[str, list[Tensor]] = {name: [] for name in operator.names if name not in self._read}
        with operator.problem.measuring(), contextlib.closing(operator.problem.data()) as data:
            for index, batch in data:
                self._add(index, batch)

    def of(self, names: Sequence[str]) -> Factor:
        """The same factor, with the columns of these parameters alone."""
        part = copy.copy(self)
        part.names = tuple(names)
        return part

    def gram(self) -> tuple[Tensor, float]:
        """(G, unit) with A Aᵀ = unit · G, (rows, rows)."""
        unit = max(map(self._unit, self.names))
        rest = self._rows([name for name in self.names if name in self._one_by_one], unit)
        total = rest @ rest.T
        for name, (layer, part) in self._read.items():
            if name in self.names:
                total += layer.gram(part).mul_((layer.unit(part) / unit) ** 2)
        return total, unit**2 / self._divisor

    def matrix(self) -> tuple[Tensor, float]:
        """(M, unit) with A = unit · M, (rows, P), its columns in the order of the parameters."""
        unit = max(map(self._unit, self.names))
        return self._rows(self.names, unit), unit / math.sqrt(self._divisor)

    def _unit(self, name: str) -> float:
        """About the largest entry of a parameter's columns."""
        if name in self._one_by_one:
            return power_of_two(self._one_by_one[name], name)
        layer, part = self._read[name]
        return layer.unit(part)

    def _rows(self, names: Sequence[str], unit: float) -> Tensor:
        """These parameters' columns, in a unit."""
        columns = [torch.zeros(self.row_count, 0, dtype=self.operator.dtype, device=self.operator.device)]
        for name in names:
            if name in self._one_by_one:
                columns.append(torch.cat(self._one_by_one[name]) / unit)
            else:
                layer, part = self._read[name]
                columns.append(layer.rows(part).mul_(layer.unit(part) / unit))
        return torch.cat(columns, 1)

    @property
    def _divisor(self) -> float:
        return self.operator.divisor(self._weight, self._terms)

    @property
    def _read(self) -> dict[str, tuple[ReadLayer, str]]:
        """The layer and the part of each parameter that is read by a rule."""
        return {name: (layer, part) for layer in self._layers.values() for part, name in layer.names.items()}

    # one batch

    def _add(self, index: int, batch: Batch) -> None:
        passing = Passing(self._layers)
        with tapped({name: layer.module for name, layer in self._layers.items()}, passing.on_call, passing.on_gradient):
            evaluation = self.operator.problem.evaluate(index, batch)
        outputs = tensor_outputs(evaluation)
        factor = self.operator.output_factor(evaluation, outputs.detach().requires_grad_())
        if factor is None:
            raise InvalidProblem("the loss was not recognized, so its curvature has no known square root.")
        self._check_sides(len(factor), len(outputs))
        if self._layers:
            self._keep_readable(outputs, passing)
        self._check_memory(len(factor), len(outputs), passing)
        if self._layers:
            weights = [self.operator.params[name] for name in self._read]
            for cotangent in factor:
                self.operator.problem.gradient(outputs, weights, cotangent, retain_graph=True, allow_unused=True)
        gradients = passing.take_gradients()
        for name, layer in self._layers.items():
            layer.add(passing.inputs[name][0], torch.stack(gradients[name]))
        passing.is_over = True
        for name, rows in self._rows_one_by_one(outputs, factor).items():
            self._one_by_one[name].append(rows)
        self.row_count += len(factor) * len(outputs)
        self._weight += evaluation.weight
        self._terms += evaluation.terms

    def _check_sides(self, count: int, examples: int) -> None:
        size, rows = self._size, self.row_count + count * examples
        if min(size, rows) > self._limit:
            raise TooLarge(f"{self._about(rows)}; both are above the limit of {self._limit:,}. {CURE}")
        if count > 2 * size:
            raise TooLarge(f"{self._about(rows)}: more backward passes than products with the matrix itself. {CURE}")

    def _check_memory(self, count: int, examples: int, passing: Passing) -> None:
        size, rows = self._size, self.row_count + count * examples
        formed = sum(self.operator.params[name].numel() for name in self._one_by_one)
        self._entries += count * examples * formed
        widest = 0
        for name, layer in self._layers.items():
            outputs = passing.entries[name]
            self._entries += count * outputs + layer.input_entries(outputs)
            if outputs > examples * layer.width:  # several positions
                widest = max(widest, *(self.operator.params[full].numel() for full in layer.names.values()))
        largest = rows * (size if size <= rows else max(rows, widest))
        gigabytes = (self._entries + largest) * self.operator.dtype.itemsize / 1e9
        allowed = 32 * max(self._limit, DENSE_LIMIT) ** 2 / 1e9
        if gigabytes > allowed:
            raise TooLarge(f"{self._about(rows)}, which take {gigabytes:.1f} GB, above {allowed:.1f} GB. {CURE}")

    def _about(self, rows: int) -> str:
        return f"{self.operator!r} has {self._size:,} columns and its factor {rows:,} rows or more (examples × labels)"

    def _keep_readable(self, outputs: Tensor, passing: Passing) -> None:
        """Drop the layers whose gradients do not follow their rule, and those after which examples are coupled.

        Two backward passes decide. They must differ in every example by its own factor, otherwise another example
        contributes to it. And the rows must add up to autograd's gradient, which they do not for a layer that was
        called twice or never, that overrides `forward`, or whose weight is also used elsewhere.
        """
        params = list(self.operator.params.values())
        wave, scales = coupling.probes(outputs)
        differentiate = functools.partial(self.operator.problem.gradient, retain_graph=True, allow_unused=True)
        totals = differentiate(outputs, params, wave)
        once = {name for name in self._layers if passing.is_once(name, len(outputs))}
        first = passing.take_gradients()
        differentiate(outputs, params, coupling.scaled(wave, scales))
        second = passing.take_gradients()
        total_of = dict(zip(self.operator.names, totals, strict=True))
        for name, layer in list(self._layers.items()):
            if (
                name not in once
                or not coupling.is_scaled(first[name][0], second[name][0], scales)
                or not layer.explains(total_of, passing.inputs[name][0], first[name][0])
            ):
                for part, full in layer.names.items():
                    self._one_by_one[full] = [layer.rows(part).mul_(layer.unit(part))] if self.row_count else []
                del self._layers[name]

    def _rows_one_by_one(self, outputs: Tensor, factor: Fields) -> dict[str, Tensor]:
        """(n·r, entries) for every parameter that no rule reads."""
        params = {name: self.operator.params[name] for name in self._one_by_one}
        count, examples = len(factor), len(outputs)
        rows_of = {name: outputs.new_zeros(examples, count, p.numel()) for name, p in params.items()}
        if not params or not outputs.requires_grad:
            return {name: rows.flatten(0, 1) for name, rows in rows_of.items()}
        together = max(1, min(CHUNK, CHUNK_ENTRIES // outputs.numel()))
        for index in torch.split(torch.arange(count * examples, device=outputs.device), together):
            r, n = index // examples, index % examples
            cotangents = outputs.new_zeros(len(index), *outputs.shape)
            for label in range(int(r[0]), int(r[-1]) + 1):
                of_label = torch.nonzero(r == label)[:, 0]
                cotangents[of_label, n[of_label]] = factor[label][n[of_label]]
            for _ in index:
                self.operator.problem.count_backward()
            for name, rows in zip(params, _pulled_back(outputs, list(params.values()), cotangents), strict=True):
                if rows is not None:
                    rows_of[name][n, r] = rows.reshape(len(rows), -1)
        return {name: rows.flatten(0, 1) for name, rows in rows_of.items()}


def _pulled_back(outputs: Tensor, params: list[nn.Parameter], cotangents: Tensor) -> Sequence[Tensor | None]:
    """Jᵀu for every cotangent u, by parameters."""
    pull = functools.partial(torch.autograd.grad, outputs, params, retain_graph=True, allow_unused=True)
    gradients: Sequence[Tensor | None]
    try:
        gradients = pull(cotangents, is_grads_batched=True)
    except RuntimeError:  # an operation that cannot be batched, such as gradient checkpointing
        each = zip(*(pull(u) for u in cotangents), strict=True)
        gradients = [torch.stack(g) if g[0] is not None else None for g in each]
    return gradients
