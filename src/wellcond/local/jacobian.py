"""The Jacobian of a block's output, as products from both sides, and the matrix JᵀJ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from wellcond.curvature.operator import Block
from wellcond.local.block_call import BlockCall
from wellcond.local.operator import LocalOperator


class Jacobian:
    """J = ∂output/∂variables. Products are backward passes through one kept graph."""

    def __init__(self, output: Tensor, variables: Sequence[Tensor]) -> None:
        self.output, self.variables = output, variables
        self._cotangent = torch.zeros_like(output, requires_grad=True)
        self._pulled_back: Sequence[Tensor | None] = [None] * len(variables)
        if output.requires_grad:
            graph = {"create_graph": True, "allow_unused": True}
            self._pulled_back = torch.autograd.grad(output, variables, self._cotangent, **graph)

    def push(self, block: Block, v: Sequence[Tensor]) -> Tensor:
        """v → Jv: the derivative of the linear map u ↦ Jᵀu, transposed."""
        pairs = [(self._pulled_back[i], vector) for i, vector in zip(block, v, strict=True)]
        used = [(root, vector) for root, vector in pairs if root is not None and root.requires_grad]
        if not used:
            return torch.zeros_like(self.output)
        roots, vectors = zip(*used, strict=True)
        return torch.autograd.grad(roots, self._cotangent, vectors, retain_graph=True)[0]

    def pull(self, block: Block, u: Tensor) -> list[Tensor]:
        """u → Jᵀu."""
        inputs = [self.variables[i] for i in block]
        if not self.output.requires_grad:
            return [torch.zeros_like(t) for t in inputs]
        parts = torch.autograd.grad(self.output, inputs, u, retain_graph=True, allow_unused=True)
        return [torch.zeros_like(t) if part is None else part for part, t in zip(parts, inputs, strict=True)]


class SquaredJacobian(LocalOperator):
    """JᵀJ. It is its own factor: `spectrum` decomposes JᵀJ or JJᵀ, whichever is smaller."""

    def __init__(self, title: str, call: BlockCall, variables: Mapping[str, Tensor], jacobian: Jacobian) -> None:
        self.jacobian = jacobian
        super().__init__(title, call, variables, lambda block, v: jacobian.pull(block, jacobian.push(block, v)))

    @property
    def rows(self) -> int:
        """Entries of the block's output."""
        return self.jacobian.output.numel()

    def matrix(self) -> Tensor:
        """J, (rows, n), by a product for each column."""
        with self.call.measuring():
            units = torch.eye(self.shape[0], dtype=self.dtype, device=self.device)
            return torch.stack([self.jacobian.push(self._chosen, self.split(e)).flatten() for e in units], 1)

    def gram(self) -> Tensor:
        """JJᵀ, (rows, rows), by two products for each column."""
        push, pull, output = self.jacobian.push, self.jacobian.pull, self.jacobian.output
        with self.call.measuring():
            units = torch.eye(self.rows, dtype=self.dtype, device=self.device)
            columns = [push(self._chosen, pull(self._chosen, e.view_as(output))) for e in units]
        return torch.stack([column.flatten() for column in columns], 1)
