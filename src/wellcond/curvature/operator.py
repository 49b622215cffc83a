"""The base of all curvature matrices: a symmetric linear operator over a problem's flat parameter vector."""

from __future__ import annotations

import contextlib
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Self

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from wellcond.errors import InvalidProblem, NonFinite, TooLarge, UnknownLayer
from wellcond.problem.problem import Evaluation, Problem

Block = Sequence[int]
"""Some parameters, by their position in the operator."""

Product = Callable[[Block, Sequence[Tensor]], Sequence[Tensor | None]]
"""The product of a diagonal block with one tensor for each of its parameters (None stands for zero)."""

State = dict[tuple[torch.dtype, torch.device], Tensor]

DENSE_LIMIT = 10_000
"""Largest side of a dense matrix: 800 MB in float64."""


class CurvatureOperator(ABC):
    """A curvature matrix of the mean loss, never formed.

    `C @ v` for v of shape (P,) or (P, k); P counts the chosen parameters, flattened in the model's order.
    On one fixed batch the graph is built once and every product reuses it; over several batches each product is
    a pass over the data, the same for all columns of a block. `matvecs` counts the columns multiplied so far.

    params: names of parameters or modules to restrict to; None takes all that are trainable.
    """

    def __init__(self, problem: Problem, params: Sequence[str] | None = None) -> None:
        problem.check()
        self.problem = problem
        self.params = dict(problem.params) if params is None else problem.select(params)
        self.names = tuple(self.params)
        self.matvecs = 0
        self._kept: tuple[State, list[tuple[Product, float]]] | None = None

    # must define

    @abstractmethod
    def _linearize(self, evaluation: Evaluation, params: Sequence[Tensor]) -> Product:
        """The product with the curvature of one batch's mean loss, reusing that batch's graph."""

    # may override

    def _restricted(self, names: Sequence[str]) -> Self:
        return type(self)(self.problem, names)

    # the operator

    @property
    def shape(self) -> tuple[int, int]:
        size = sum(p.numel() for p in self.params.values())
        return size, size

    @property
    def dtype(self) -> torch.dtype:
        return self.problem.dtype

    @property
    def device(self) -> torch.device:
        return self.problem.device

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.problem!r}, shape={self.shape})"

    def __matmul__(self, v: Tensor) -> Tensor:
        if v.dim() not in (1, 2) or v.shape[0] != self.shape[1]:
            raise ValueError(
                f"cannot multiply {type(self).__name__} of shape {self.shape} with {tuple(v.shape)}; "
                f"v must be ({self.shape[1]},) or ({self.shape[1]}, k)."
            )
        columns = v.to(self.device, self.dtype).reshape(self.shape[1], -1)
        return self.block_products([(range(len(self.names)), columns)])[0].reshape(v.shape)

    def block_products(self, jobs: Sequence[tuple[Block, Tensor]]) -> list[Tensor]:
        """Products of diagonal blocks, each with its own (entries of the block, k), all in one pass over the data.

        A block's product only differentiates through what lies behind its parameters: for the last layers of a
        network it costs next to nothing.
        """
        weight = 0.0
        # a kept graph needs the measured state too: gradient checkpointing runs the model again in the backward pass
        with naming_what_is_missing(), self.problem.measuring(), contextlib.closing(self._products()) as products:
            totals = [torch.zeros_like(columns.T) for _, columns in jobs]
            for product, terms in products:
                for total, (block, columns) in zip(totals, jobs, strict=True):
                    for row, column in zip(total, columns.T, strict=True):
                        parts = product(block, self.split(column, block))
                        for place, part in zip(self.split(row, block), parts, strict=True):
                            if part is not None:
                                place.add_(part, alpha=terms)
                weight += terms
        for total, (block, _) in zip(totals, jobs, strict=True):
            self.matvecs += len(total)
            self._check_finite(total.div_(weight), block)
        return [total.T for total in totals]

    def layer(self, *names: str) -> Self:
        """The diagonal block of some parameters, by their names or by those of modules that hold them."""
        wanted = self.problem.select(names)
        within = [name for name in self.names if name in wanted]
        if not within:
            raise UnknownLayer(names[0], self.names)
        return self._restricted(within)

    def dense(self, limit: int = DENSE_LIMIT) -> Tensor:
        """The matrix itself, (P, P). Raises `TooLarge` when P is above `limit`."""
        size = self.shape[0]
        if size > limit:
            raise TooLarge(
                f"{type(self).__name__} has {size:,} rows, above the limit of {limit:,} for a dense matrix. "
                "Take .layer(name), wc.eigenvalues(...) for its ends, or raise dense(limit=...)."
            )
        matrix = self @ torch.eye(size, dtype=self.dtype, device=self.device)
        return (matrix + matrix.T) / 2

    # flat vectors

    def split(self, vector: Tensor, block: Block | None = None) -> list[Tensor]:
        """One vector → one tensor a parameter (of the block)."""
        params = list(self.params.values())
        chosen = params if block is None else [params[i] for i in block]
        parts = torch.split(vector, [p.numel() for p in chosen])
        return [part.view_as(p) for part, p in zip(parts, chosen, strict=True)]

    # graphs

    def _products(self) -> Generator[tuple[Product, float], None, None]:
        if self.problem.is_one_batch:
            state = self._state()
            if self._kept is None or not _is_same(self._kept[0], state):
                self._kept = None  # free the old graph before building the new one
                self._kept = state, list(self._linearized())
            yield from self._kept[1]
        else:
            yield from self._linearized()

    def _linearized(self) -> Generator[tuple[Product, float], None, None]:
        params = list(self.params.values())
        with contextlib.closing(self.problem.data()) as data:
            for index, batch in data:
                evaluation = self.problem.evaluate(index, batch)
                yield self._linearize(evaluation, params), evaluation.terms

    def _state(self) -> State:
        """A copy of all that a kept graph depends on: version counters do not see what is written to `.data`."""
        model = self.problem.model
        parts: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
        for t in (*model.parameters(), *model.buffers(), *tree_leaves(list(self.problem.batches))):
            if isinstance(t, Tensor):
                parts.setdefault((t.dtype, t.device), []).append(t.detach().reshape(-1))
        return {kind: torch.cat(tensors) for kind, tensors in parts.items()}

    def _check_finite(self, products: Tensor, block: Block) -> None:
        if math.isfinite(float(products.sum())) or bool(torch.isfinite(products).all()):
            return  # a sum is the cheaper look, though it may overflow by itself
        names = [self.names[i] for i in block]
        parts = zip(names, self.split(products.sum(0), block), strict=True)
        culprit = next((name for name, part in parts if not bool(torch.isfinite(part).all())), names[0])
        raise NonFinite(
            f"a product with {type(self).__name__} is NaN or inf at {culprit!r} although the loss is finite: "
            "a second derivative does not exist there (a square root or norm at 0?), or it overflowed."
        )


@contextlib.contextmanager
def naming_what_is_missing() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        found = re.search(r"derivative for '?(?:aten::)?(\w+?)(?:_backward)?'? is not implemented", str(error))
        if found is None:
            raise
        raise InvalidProblem(
            f"PyTorch has no second derivative of {found[1].strip('_')!r}, which the model or the loss uses. "
            "Measure a copy in which another function stands in its place."
        ) from error


def _is_same(first: State, second: State) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[kind], second[kind]) for kind in first)
