"""Curvature of a back-matching loss as linear operators, over a block's input or over its parameters."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Self

import torch
from torch import Tensor

from wellcond.curvature.operator import DENSE_LIMIT, Block, Product, naming_what_is_missing
from wellcond.errors import NonFinite, TooLarge, UnknownLayer
from wellcond.local.block_call import BlockCall


class LocalOperator:
    """A symmetric matrix over some tensors of one block, never formed.

    `A @ v` for v of shape (n,) or (n, k); n counts the entries of the tensors, flattened one after the other. Every
    product reuses the block's graph. `matvecs` counts the columns multiplied so far.
    """

    def __init__(self, title: str, call: BlockCall, variables: Mapping[str, Tensor], product: Product) -> None:
        self.title = title
        self.call = call
        self.problem = call.problem
        self.variables = dict(variables)
        self.matvecs = 0
        self._product = product
        self._chosen: Block = range(len(self.variables))

    @property
    def names(self) -> tuple[str, ...]:
        every = list(self.variables)
        return tuple(every[i] for i in self._chosen)

    @property
    def shape(self) -> tuple[int, int]:
        size = sum(self.variables[name].numel() for name in self.names)
        return size, size

    @property
    def dtype(self) -> torch.dtype:
        return next(iter(self.variables.values())).dtype

    @property
    def device(self) -> torch.device:
        return self.problem.device

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.title}, shape={self.shape})"

    def __matmul__(self, v: Tensor) -> Tensor:
        if v.dim() not in (1, 2) or v.shape[0] != self.shape[1]:
            raise ValueError(
                f"cannot multiply {self.title} of shape {self.shape} with {tuple(v.shape)}; "
                f"v must be ({self.shape[1]},) or ({self.shape[1]}, k)."
            )
        with naming_what_is_missing(), self.call.measuring():
            columns = v.to(self.device, self.dtype).reshape(self.shape[1], -1)
            products = torch.zeros_like(columns.T)
            for row, column in zip(products, columns.T, strict=True):
                parts = self._product(self._chosen, self.split(column))
                for place, part in zip(self.split(row), parts, strict=True):
                    if part is not None:
                        place.copy_(part)
        self.matvecs += len(products)
        if not bool(torch.isfinite(products).all()):
            raise NonFinite(
                f"a product with {self.title} is NaN or inf although the loss is finite: a second derivative does not "
                "exist there (a square root or norm at 0?), or it overflowed."
            )
        return products.T.reshape(v.shape)

    def split(self, vector: Tensor) -> list[Tensor]:
        """One vector → one tensor a variable."""
        chosen = [self.variables[name] for name in self.names]
        parts = torch.split(vector, [t.numel() for t in chosen])
        return [part.view_as(t) for part, t in zip(parts, chosen, strict=True)]

    def layer(self, *names: str) -> Self:
        """The diagonal block of some parameters, by their names or by those of modules that hold them."""
        wanted = self.problem.select(names)
        within = [i for i, name in enumerate(self.variables) if name in wanted and i in self._chosen]
        if not within:
            raise UnknownLayer(names[0], self.names)
        part = copy.copy(self)
        part._chosen, part.matvecs = within, 0
        return part

    def dense(self, limit: int = DENSE_LIMIT) -> Tensor:
        """The matrix itself, (n, n). Raises `TooLarge` when n is above `limit`."""
        size = self.shape[0]
        if size > limit:
            raise TooLarge(
                f"{self.title} has {size:,} rows, above the limit of {limit:,} for a dense matrix. Take fewer examples "
                "or a smaller block, wc.eigenvalues(...) for its ends, or raise dense(limit=...)."
            )
        matrix = self @ torch.eye(size, dtype=self.dtype, device=self.device)
        return (matrix + matrix.T) / 2
