"""The second derivative of a block's back-matching loss, as linear operators over its input or its parameters."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from wellcond.curvature.ggn import loss_hessian
from wellcond.curvature.hessian import hessian_product, refuse_weight_norm
from wellcond.curvature.operator import TensorOperator, naming_missing_derivatives
from wellcond.curvature.over_parameters import Block, Product
from wellcond.errors import UnknownLayer
from wellcond.local.block_call import BlockCall

EXACT_PASSES, GAUSS_NEWTON_PASSES = 2.0, 4 / 3
"""What one product costs, in forward+backward passes of the block."""


@dataclass(frozen=True, eq=False, repr=False)
class LocalCurvature:
    """∂²ℓ_b with respect to some tensors of a block, as two operators; each is built when it is first asked for.

    Attributes:
        symbol: H_z or H_W.
        call: The block's call that is differentiated.
        tensors: What it is differentiated with respect to, by name, in the order in which they are flattened.
        is_loss: Whether ℓ_b is the problem's loss.
    """

    symbol: str
    call: BlockCall
    tensors: Mapping[str, Tensor]
    is_loss: bool

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tensors."""
        return tuple(self.tensors)

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the matrix: entries × entries."""
        size = sum(t.numel() for t in self.tensors.values())
        return size, size

    @cached_property
    def exact(self) -> LocalOperator:
        """JᵀJ + Σ (∂J/∂z_b) ∂²F_b, J = ∂F_b: the second derivative at the present point, with the target held fixed.

        Symmetric and in general indefinite.
        """
        block = self.call.block
        refuse_weight_norm(block.module, block.full_name, "Use .gauss_newton")
        with self.call.measuring():
            product = self._second_derivative()
        return LocalOperator(f"{self.symbol} of {block.name!r}", self.call, self.tensors, product, EXACT_PASSES)

    @cached_property
    def gauss_newton(self) -> LocalOperator:
        """JᵀJ alone, or Jᵀ(∇²ℓ)J where ℓ_b is the loss itself."""
        title = f"Gauss-Newton {self.symbol} of {self.call.block.name!r}"
        with self.call.measuring():
            jacobian = Jacobian(self.call.output, list(self.tensors.values()))
            if not self.is_loss:
                return SquaredJacobian(title, self.call, self.tensors, jacobian)
            curvature = loss_hessian(self.call.evaluation, self.call.output.detach().requires_grad_())

        def product(block: Block, v: Sequence[Tensor]) -> Sequence[Tensor]:
            # v → Jv → BJv → JᵀBJv
            return jacobian.pull(block, curvature(jacobian.push(block, v)))

        return LocalOperator(title, self.call, self.tensors, product, GAUSS_NEWTON_PASSES)

    def _second_derivative(self) -> Product:
        output, gradient = self.call.output, self.call.gradient
        if not output.requires_grad:
            return lambda block, v: [None] * len(block)
        if self.is_loss:
            loss = self.call.evaluation.loss_at(output, self.call.evaluation.targets)
        else:
            # ½‖F − (z_b − ∂J/∂z_b)‖² multiplied out, so that a small gradient is not lost in the rounding of z_b
            change = output - output.detach()
            loss = change.square().sum() / 2 + (gradient * change).sum()
        return hessian_product(loss, list(self.tensors.values()))


class LocalOperator(TensorOperator):
    """A symmetric matrix over some tensors of one block. Every product reuses the block's graph."""

    def __init__(
        self, title: str, call: BlockCall, tensors: Mapping[str, Tensor], product: Product, passes: float
    ) -> None:
        self.title, self.call, self.problem = title, call, call.problem
        self.tensors = tensors
        self._positions: Block = range(len(tensors))
        self._product, self._passes = product, passes

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.title}, shape={self.shape})"

    def layer(self, *names: str) -> Self:
        wanted = self.problem.select(names)
        positions = {name: i for name, i in zip(self.names, self._positions, strict=True) if name in wanted}
        if not positions:
            raise UnknownLayer(names[0], self.names)
        part = copy.copy(self)
        part.tensors = {name: self.tensors[name] for name in positions}
        part._positions, part.matvecs = list(positions.values()), 0
        return part

    def _multiply(self, columns: Tensor) -> Tensor:
        with naming_missing_derivatives(), self.call.measuring():
            products = torch.zeros_like(columns.T)  # not before: in inference mode it could not be written to
            for row, column in zip(products, columns.T, strict=True):
                parts = self._product(self._positions, self.split(column))
                for place, part in zip(self.split(row), parts, strict=True):
                    if part is not None:
                        place.copy_(part)
        self._count(len(products), self._passes)
        self.check_finite(products, self.names)
        return products.T

    def _count(self, products: int, passes: float) -> None:
        self.problem.count_products(products, products * passes * self.call.share)


class Jacobian:
    """J = ∂output/∂inputs, by products from both sides. They are backward passes through one kept graph."""

    def __init__(self, output: Tensor, inputs: Sequence[Tensor]) -> None:
        self.output, self.inputs = output, inputs
        self._cotangent = torch.zeros_like(output, requires_grad=True)
        self._pulled_back: Sequence[Tensor | None] = [None] * len(inputs)
        if output.requires_grad:
            graph = {"create_graph": True, "allow_unused": True}
            self._pulled_back = torch.autograd.grad(output, inputs, self._cotangent, **graph)

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
        inputs = [self.inputs[i] for i in block]
        if not self.output.requires_grad:
            return [torch.zeros_like(t) for t in inputs]
        parts = torch.autograd.grad(self.output, inputs, u, retain_graph=True, allow_unused=True)
        return [torch.zeros_like(t) if part is None else part for part, t in zip(parts, inputs, strict=True)]


class SquaredJacobian(LocalOperator):
    """JᵀJ. It is its own factor: `spectrum` decomposes JᵀJ or JJᵀ, whichever is smaller."""

    def __init__(self, title: str, call: BlockCall, tensors: Mapping[str, Tensor], jacobian: Jacobian) -> None:
        self.jacobian = jacobian
        product: Product = lambda block, v: jacobian.pull(block, jacobian.push(block, v))  # noqa: E731
        super().__init__(title, call, tensors, product, GAUSS_NEWTON_PASSES)

    @property
    def row_count(self) -> int:
        """Rows of J: the entries of the block's output."""
        return self.jacobian.output.numel()

    def matrix(self) -> Tensor:
        """J, (row_count, n), by one product per column."""
        self._count(self.shape[0], GAUSS_NEWTON_PASSES / 2)
        with self.call.measuring():
            units = torch.eye(self.shape[0], dtype=self.dtype, device=self.device)
            return torch.stack([self.jacobian.push(self._positions, self.split(e)).flatten() for e in units], 1)

    def gram(self) -> Tensor:
        """JJᵀ, (row_count, row_count), by two products per column."""
        push, pull, output = self.jacobian.push, self.jacobian.pull, self.jacobian.output
        self._count(self.row_count, GAUSS_NEWTON_PASSES)
        with self.call.measuring():
            units = torch.eye(self.row_count, dtype=self.dtype, device=self.device)
            columns = [push(self._positions, pull(self._positions, e.view_as(output))) for e in units]
        return torch.stack([column.flatten() for column in columns], 1)
