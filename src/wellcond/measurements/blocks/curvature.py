"""The second derivative of a block's back-matching loss, as linear operators over its input or its parameters."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from wellcond.curvature.ggn import loss_hessian
from wellcond.curvature.hessian import hessian_product, refuse_weight_norm
from wellcond.curvature.operator import TensorOperator, naming_missing_derivatives
from wellcond.curvature.read_layer import power_of_two
from wellcond.errors import UnknownLayer
from wellcond.measurements.blocks.block_call import BlockCall


@dataclass(frozen=True, eq=False, repr=False)
class LocalCurvature:
    """∂²ℓ_b with respect to some tensors of a block, as two operators; each is built on first use.

    Attributes:
        symbol: H_z or H_W.
        call: Call of the block that is differentiated.
        tensors: Variables of differentiation by name, in the order in which they are flattened.
        is_loss: Whether ℓ_b is the problem's loss.
    """

    symbol: str
    call: BlockCall
    tensors: Mapping[str, Tensor]
    is_loss: bool

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tensors."""
        return tuple(self.tensors)

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the matrix: entries × entries."""
        size = sum(t.numel() for t in self.tensors.values())
        return size, size

    @cached_property
    def exact(self) -> LocalOperator:
        """JᵀJ + Σ (∂J/∂z_b) ∂²F_b, J = ∂F_b: the second derivative at the current point, with the target held fixed.

        Symmetric and in general indefinite.
        """
        refuse_weight_norm(self.call.block.module, self.call.block.full_name, "Use .gauss_newton")
        return SecondDerivative(self)

    @cached_property
    def gauss_newton(self) -> LocalOperator:
        """JᵀJ alone, or Jᵀ(∇²ℓ)J if ℓ_b is the loss itself."""
        return LossGaussNewton(self) if self.is_loss else SquaredJacobian(self)


class LocalOperator(TensorOperator):
    """A symmetric matrix over some tensors of one block. Every product reuses the block's graph."""

    title: ClassVar[str]
    passes: ClassVar[float]
    """Cost of one product, in forward+backward passes of the block."""

    def __init__(self, curvature: LocalCurvature) -> None:
        self.curvature, self.call, self.tensors = curvature, curvature.call, curvature.tensors
        self.problem = self.call.problem
        with self.call.measuring():
            self._linearize(list(self.tensors.values()))

    # must define

    @abstractmethod
    def _linearize(self, tensors: Sequence[Tensor]) -> None:
        """Build the graph of the first derivative."""

    @abstractmethod
    def _product(self, v: Sequence[Tensor]) -> Sequence[Tensor | None]:
        """The product with one tensor for each of the operator's; None stands for zero."""

    # the operator

    def __repr__(self) -> str:
        title = f"{self.title}{self.curvature.symbol} of {self.call.block.name!r}"
        return f"{type(self).__name__}({title}, shape={self.shape})"

    def layer(self, *names: str) -> Self:
        selected = self.problem.select(names)
        within = {name: t for name, t in self.tensors.items() if name in selected}
        if not within:
            raise UnknownLayer(names[0], self.names)
        return type(self)(replace(self.curvature, tensors=within))

    def in_a_row(self) -> contextlib.AbstractContextManager[Any]:
        return self.problem.measuring()

    def _multiply(self, columns: Tensor) -> Tensor:
        with naming_missing_derivatives(), self.call.measuring():
            products = torch.zeros_like(columns.T)  # not earlier: in inference mode it could not be written to
            for row, column in zip(products, columns.T, strict=True):
                for place, part in zip(self.split(row), self._product(self.split(column)), strict=True):
                    if part is not None:
                        place.copy_(part)
        self._count(len(products), self.passes)
        self.check_finite(products, self.names)
        return products.T

    def _count(self, products: int, passes: float) -> None:
        self.problem.count_products(products, products * passes * self.call.share)


class SecondDerivative(LocalOperator):
    """∂²ℓ_b."""

    title, passes = "", 2.0

    def _linearize(self, tensors: Sequence[Tensor]) -> None:
        output = self.call.output
        if self.curvature.is_loss:
            loss = self.call.evaluation.loss_at(output, self.call.evaluation.targets)
        else:
            # ½‖F − (z_b − ∂J/∂z_b)‖² multiplied out, so that a small gradient is not lost in the rounding of z_b
            change = output - output.detach()
            loss = change.square().sum() / 2 + (self.call.gradient * change).sum()
        self._hessian = None
        if output.requires_grad:
            gradients = torch.autograd.grad(loss, tensors, create_graph=True, allow_unused=True)
            self._hessian = hessian_product(gradients, tensors)

    def _product(self, v: Sequence[Tensor]) -> Sequence[Tensor | None]:
        return [None] * len(v) if self._hessian is None else self._hessian(range(len(v)), v, True)


class JacobianOperator(LocalOperator):
    """A matrix made of J = ∂F_b. Products with J and Jᵀ are backward passes through one kept graph."""

    title, passes = "Gauss-Newton ", 4 / 3

    def _linearize(self, tensors: Sequence[Tensor]) -> None:
        output = self.call.output
        self._cotangent = torch.zeros_like(output, requires_grad=True)
        self._pulled_back: Sequence[Tensor | None] = [None] * len(tensors)
        if output.requires_grad:
            graph = {"create_graph": True, "allow_unused": True}
            self._pulled_back = torch.autograd.grad(output, tensors, self._cotangent, **graph)

    def _push(self, v: Sequence[Tensor | None]) -> Tensor:
        """v → Jv: the derivative of the linear map u ↦ Jᵀu, transposed."""
        pairs = zip(self._pulled_back, v, strict=True)
        used = [(root, vector) for root, vector in pairs if root is not None and root.requires_grad]
        if not used:
            return torch.zeros_like(self.call.output)
        roots, vectors = zip(*used, strict=True)
        return torch.autograd.grad(roots, self._cotangent, vectors, retain_graph=True)[0]

    def _pull(self, u: Tensor) -> Sequence[Tensor | None]:
        """u → Jᵀu."""
        tensors = list(self.tensors.values())
        if not self.call.output.requires_grad:
            return [None] * len(tensors)
        return torch.autograd.grad(self.call.output, tensors, u, retain_graph=True, allow_unused=True)


class LossGaussNewton(JacobianOperator):
    """JᵀBJ with B = ∇²ℓ."""

    def _linearize(self, tensors: Sequence[Tensor]) -> None:
        super()._linearize(tensors)
        self._output_curvature = loss_hessian(self.call.evaluation, self.call.output.detach().requires_grad_())

    def _product(self, v: Sequence[Tensor]) -> Sequence[Tensor | None]:
        # v → Jv → BJv → JᵀBJv
        return self._pull(self._output_curvature(self._push(v)))


class SquaredJacobian(JacobianOperator):
    """JᵀJ. It is its own factor: `spectrum` decomposes JᵀJ or JJᵀ, whichever is smaller."""

    def _product(self, v: Sequence[Tensor]) -> Sequence[Tensor | None]:
        return self._pull(self._push(v))

    @property
    def row_count(self) -> int:
        """Rows of J: the entries of the block's output."""
        return self.call.output.numel()

    def matrix(self) -> tuple[Tensor, float]:
        """(M, unit) with J = unit · M, (row_count, n), by one product per column."""
        self._count(self.shape[0], self.passes / 2)
        with self.call.measuring():
            units = torch.eye(self.shape[0], dtype=self.dtype, device=self.device)
            jacobian = torch.stack([self._push(self.split(unit)).flatten() for unit in units], 1)
        unit = power_of_two([jacobian], self.call.block.name)
        return jacobian.div_(unit), unit

    def gram(self) -> tuple[Tensor, float]:
        """(G, unit) with JJᵀ = unit · G, (row_count, row_count), by two products per column."""
        self._count(self.row_count, self.passes)
        name = self.call.block.name
        pulled_units, columns = [], []
        with self.call.measuring():
            for direction in torch.eye(self.row_count, dtype=self.dtype, device=self.device):
                row = self._pull(direction.view_as(self.call.output))
                unit = power_of_two([t for t in row if t is not None], name)
                pulled_units.append(unit)
                columns.append(self._push([None if t is None else t / unit for t in row]).flatten())
        largest, unit = max(pulled_units), power_of_two(columns, name)
        gram = torch.stack(columns, 1).div_(unit)
        return gram.mul_(gram.new_tensor([u / largest for u in pulled_units])), largest * unit
