"""`CurvatureOperator`: a curvature matrix of the mean loss, over a problem's flat parameter vector."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from wellcond.curvature.likely_start import flattened, outlier_direction
from wellcond.curvature.operator import TensorOperator, naming_missing_derivatives
from wellcond.errors import UnknownLayer
from wellcond.network.isolation.copies import Fingerprint
from wellcond.network.isolation.snapshot import Snapshot
from wellcond.problem.arguments import check_problem
from wellcond.problem.evaluation import Evaluation
from wellcond.problem.problem import Problem
from wellcond.problem.ranks.orders import Member, order, shared_work

ParameterBlock = Sequence[int]
"""Positions of some parameters in the operator."""

Product = Callable[[ParameterBlock, Sequence[Tensor], bool], Sequence[Tensor | None]]
"""The product of a diagonal block with one tensor for each of its parameters, None standing for zero; and whether the
graph is kept for another one. The last product frees each part of the graph once it is done with it."""

Gradients = Sequence[Tensor | None]
"""Gradients of a batch's mean loss, by parameter; None stands for zero."""


@dataclass(frozen=True)
class Linearized:
    """The curvature of one batch's mean loss, on that batch's graph.

    Attributes:
        product: Product with the curvature.
        gradients: Gradients of the mean loss.
        weight: Weight of the batch in the mean over batches.
        terms: Number of terms in the batch's mean.
    """

    product: Product
    gradients: Callable[[], Gradients]
    weight: float
    terms: float


@dataclass
class Passed:
    """What a sum over batches has passed.

    Attributes:
        weight: The weight of all batches.
        terms: Number of terms in all of them.
        passes: Number of batches.
    """

    weight: float = 0.0
    terms: float = 0.0
    passes: int = 0


class CurvatureOperator(TensorOperator):
    """A curvature matrix of the mean loss over chosen parameters, flattened in the model's order.

    On one fixed batch the graph is built once and every product reuses it. Over several batches each product is a pass
    over the data, the same for all columns of a block.

    Args:
        problem: The model, loss and data.
        layers: Names of parameters or modules to restrict to; None takes all that are trainable.
    """

    product_passes: ClassVar[float]
    """Cost of one product with a kept graph, in forward+backward passes."""
    adds_up: ClassVar[bool] = False
    """Whether processes may add up the products of their own batches, since no random numbers depend on the place."""
    params: dict[str, nn.Parameter]

    def __init__(self, problem: Problem, *, layers: str | Sequence[str] | None = None) -> None:
        check_problem(problem)
        problem.check()
        self.problem = problem
        self.params = dict(problem.params) if layers is None else problem.select(layers)
        self.tensors = self.params
        self._kept: tuple[Fingerprint, list[Linearized]] | None = None

    # must define

    @abstractmethod
    def _linearize(self, evaluation: Evaluation, params: Sequence[Tensor]) -> tuple[Product, Callable[[], Gradients]]:
        """The product with the curvature of one batch's mean loss, and its gradients, reusing that batch's graph."""

    # may override

    def divisor(self, weight: float, terms: float) -> float:
        """Divisor that turns the weighted sum over batches into a mean, from the total weight and number of terms."""
        return weight

    def _restricted(self, names: Sequence[str]) -> Self:
        return type(self)(self.problem, layers=names)

    # the operator

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.problem!r}, shape={self.shape})"

    def layer(self, *names: str) -> Self:
        selected = self.problem.select(names)
        within = [name for name in self.names if name in selected]
        if not within:
            raise UnknownLayer(names[0], self.names)
        return self._restricted(within)

    def in_a_row(self) -> contextlib.AbstractContextManager[Any]:
        # over several batches every product is a new pass over the data, and each must begin with the same buffers
        return self.problem.measuring() if self.problem.is_one_batch else contextlib.nullcontext()

    def likely_start(self, root: Tensor | None = None) -> Tensor | None:
        """The direction that shifts all outputs together (`outlier_direction`), or else the gradient.

        Most of the gradient also lies in the span of the first few eigenvectors (Gur-Ari, Roberts and Dyer 2018). On
        one fixed batch it comes with the graph that the products need, otherwise it takes a pass over the data.

        Args:
            root: (n,), the diagonal of D, for a start with D A D; None for A itself.
        """
        params = list(self.params.values())
        with naming_missing_derivatives(), self.problem.measuring() as held:
            start = outlier_direction(self.problem, params, root)
            if start is None:
                if self.problem.is_one_batch:
                    (batch,) = self._by_batch(held)
                    gradients = batch.gradients()
                else:
                    gradients = list(self.problem.loss_and_gradients(self.params)[1].values())
                start = flattened(gradients, params)
                start = start if root is None else start * root
        return start if bool(torch.isfinite(start).all()) else None

    def _multiply(self, columns: Tensor) -> Tensor:
        return self._products_of([(range(len(self.params)), columns)])[0]

    def block_products(self, jobs: Sequence[tuple[ParameterBlock, Tensor]]) -> list[Tensor]:
        """Products of diagonal blocks, all in one pass over the data.

        A block's product only differentiates through the layers after its parameters: for the last layers of a
        network it costs almost nothing.

        Args:
            jobs: Blocks, each with the columns (entries of the block, k) to multiply it with.
        """
        self.matvecs += sum(columns.shape[1] for _, columns in jobs)
        return self._products_of(jobs)

    def _products_of(self, jobs: Sequence[tuple[ParameterBlock, Tensor]]) -> list[Tensor]:
        names = self.names
        member = self.problem.member if self.adds_up else None
        if member is None:
            totals, numbers = self.sums_of(jobs)
        else:
            blocks = [tuple(block) for block, _ in jobs]
            columns = [columns for _, columns in jobs]
            totals, numbers = self.problem.ask_all(
                member, add_products, type(self), tuple(names), blocks, tensors=columns
            )
        for total, (block, _) in zip(totals, jobs, strict=True):
            share = 1 - block[0] / len(names)  # a block's product ends at its first parameter
            self.problem.count_products(len(total), len(total) * share * self.product_passes * numbers.passes)
            divisor = self.divisor(numbers.weight, numbers.terms)
            self.check_finite(total.div_(divisor), [names[i] for i in block])
        return [total.T for total in totals]

    def sums_of(self, jobs: Sequence[tuple[ParameterBlock, Tensor]]) -> tuple[list[Tensor], Passed]:
        """Weighted sums over the batches of products with blocks, transposed, and what they are sums over."""
        passed = Passed()
        names = self.names
        # a kept graph needs the measured state too: gradient checkpointing runs the model again in the backward pass
        with (
            naming_missing_derivatives(),
            self.problem.measuring() as held,
            contextlib.closing(self._by_batch(held)) as batches,
        ):
            named = [[names[i] for i in block] for block, _ in jobs]
            totals = [torch.zeros_like(columns.T) for _, columns in jobs]
            for batch in batches:
                left = sum(map(len, totals))
                for total, chosen, (block, columns) in zip(totals, named, jobs, strict=True):
                    for row, column in zip(total, columns.T, strict=True):
                        left -= 1
                        is_kept = left > 0 or self.problem.is_one_batch
                        parts = batch.product(block, self.split(column, chosen), is_kept)
                        for place, part in zip(self.split(row, chosen), parts, strict=True):
                            if part is not None:
                                place.add_(part, alpha=batch.weight)
                passed.weight += batch.weight
                passed.terms += batch.terms
                passed.passes += 1
                del batch  # its graph would live until the next one is built
        return totals, passed

    # graphs

    def _by_batch(self, held: Snapshot) -> Generator[Linearized, None, None]:
        if self.problem.is_one_batch:
            if self._kept is None or not self._kept[0].is_same_as(self._state(held, is_passing=True)):
                self._kept = None  # free the old graph before building the new one
                graphs = list(self._linearized())
                self._kept = self._state(held), graphs  # after building: a function may count its calls in a closure
            yield from self._kept[1]
        else:
            yield from self._linearized()

    def _linearized(self) -> Generator[Linearized, None, None]:
        params = list(self.params.values())
        with contextlib.closing(self.problem.data()) as data:
            for index, batch in data:
                yield self._linearized_batch(self.problem.evaluate(index, batch), params)

    def _linearized_batch(self, evaluation: Evaluation, params: Sequence[Tensor]) -> Linearized:
        self.problem.count_backward()
        return Linearized(*self._linearize(evaluation, params), evaluation.weight, evaluation.terms)

    def _state(self, held: Snapshot, *, is_passing: bool = False) -> Fingerprint:
        """Fingerprint of everything that a kept graph depends on."""
        p = self.problem
        modules = list(p.model.modules())
        roots = [*map(type, modules), p.loss, p.batches, p.batchnorm, p.dropout]
        others = Snapshot(roots, known=modules, code=True)
        tensors = dict.fromkeys(t for each in (held, others) for t in (*each.parameters, *each.tensors))
        return Fingerprint([*held.values, *others.values], tensors, is_passing=is_passing)


@order
def add_products(
    member: Member,
    kind: type[CurvatureOperator],
    names: Sequence[str],
    blocks: Sequence[ParameterBlock],
    columns: Sequence[Tensor],
) -> tuple[list[Tensor], Passed]:
    """Sums of products over the batches of all processes; passes are those of this one, as they work side by side."""
    totals, passed = [torch.zeros_like(each.T) for each in columns], Passed()
    with shared_work(member.team):
        if member.has_data:
            key = kind, tuple(names)
            if key not in member.state:
                member.state[key] = kind(member.problem, layers=list(names))
            totals, passed = member.state[key].sums_of(list(zip(blocks, columns, strict=True)))
    totals = member.team.add(totals, "products")
    numbers = torch.tensor([passed.weight, passed.terms], dtype=torch.float64)
    weight, terms = member.team.add([numbers], "orders")[0].tolist()
    return totals, Passed(weight, terms, passed.passes)
