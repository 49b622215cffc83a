"""The base of all curvature matrices: a symmetric linear operator over a problem's flat parameter vector."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Self

import torch
from torch import Tensor

from wellcond.errors import NonFinite, TooLarge
from wellcond.problem import Evaluation, Problem

Product = Callable[[Sequence[Tensor]], Sequence[Tensor | None]]
"""Maps one tensor a parameter to one tensor a parameter (None for zero)."""

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
        self._sizes = [p.numel() for p in self.params.values()]
        self._kept: tuple[int, list[tuple[Product, float]]] | None = None

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
        size = sum(self._sizes)
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
        columns = v.to(self.device, self.dtype).reshape(self.shape[1], -1).T
        total, weight = torch.zeros_like(columns), 0.0
        for product, terms in self._products():
            for row, column in zip(total, columns, strict=True):
                row.add_(self.flatten(product(self.split(column))), alpha=terms)
            weight += terms
        self.matvecs += len(columns)
        total /= weight
        self._check_finite(total)
        return total.T.reshape(v.shape)

    def layer(self, *names: str) -> Self:
        """The diagonal block of some parameters, by their names or by those of modules that hold them."""
        return self._restricted([name for name in self.names if name in self.problem.select(names)])

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

    def flatten(self, tensors: Sequence[Tensor | None]) -> Tensor:
        """One tensor a parameter → (P,); None stands for zero."""
        parts = [
            t.reshape(-1) if t is not None else torch.zeros(size, dtype=self.dtype, device=self.device)
            for t, size in zip(tensors, self._sizes, strict=True)
        ]
        return torch.cat(parts)

    def split(self, vector: Tensor) -> list[Tensor]:
        """(P,) → one tensor a parameter."""
        parts = vector.split(self._sizes)
        return [part.view_as(p) for part, p in zip(parts, self.params.values(), strict=True)]

    # graphs

    def _products(self) -> Iterator[tuple[Product, float]]:
        if not self.problem.is_one_batch:
            for evaluation in self.problem.evaluations():
                yield self._linearize(evaluation, list(self.params.values())), evaluation.terms
            return
        version = self._version()
        if self._kept is None or self._kept[0] != version:
            self._kept = None  # free the old graph before building the new one
            params = list(self.params.values())
            graphs = [(self._linearize(e, params), e.terms) for e in self.problem.evaluations()]
            self._kept = version, graphs
        yield from self._kept[1]

    def _version(self) -> int:
        """Changes when any weight or buffer is written to, so that a kept graph is never stale."""
        model = self.problem.model
        return sum(t._version for t in (*model.parameters(), *model.buffers()))

    def _check_finite(self, products: Tensor) -> None:
        if bool(torch.isfinite(products).all()):
            return
        for column in products:
            for name, part in zip(self.names, self.split(column), strict=True):
                if not bool(torch.isfinite(part).all()):
                    raise NonFinite(
                        f"a product with {type(self).__name__} is NaN or inf at {name!r} although the loss is finite: "
                        "a second derivative does not exist there (a square root or norm at 0?), or it overflowed."
                    )
