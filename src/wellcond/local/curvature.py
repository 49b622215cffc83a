"""The second derivative of a block's back-matching loss, in its input or in its parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from wellcond.curvature.ggn import loss_hessian
from wellcond.curvature.hessian import hessian_product, refuse_weight_norm
from wellcond.curvature.operator import Block, Product
from wellcond.local.block_call import BlockCall
from wellcond.local.jacobian import Jacobian, SquaredJacobian
from wellcond.local.operator import LocalOperator


@dataclass(frozen=True, eq=False, repr=False)
class LocalCurvature:
    """∂²ℓ_b in some tensors of a block, as two operators; each is built when it is first asked for.

    exact: the second derivative at the present point with the target held fixed, JᵀJ + Σ (∂J/∂z_b) ∂²F_b, J = ∂F_b.
    Symmetric and in general indefinite.
    gauss_newton: JᵀJ alone, or Jᵀ(∇²ℓ)J where ℓ_b is the loss itself.
    """

    symbol: str
    call: BlockCall
    variables: Mapping[str, Tensor]
    is_loss: bool

    @property
    def names(self) -> tuple[str, ...]:
        """The tensors, in the order in which they are flattened."""
        return tuple(self.variables)

    @property
    def shape(self) -> tuple[int, int]:
        size = sum(t.numel() for t in self.variables.values())
        return size, size

    @cached_property
    def exact(self) -> LocalOperator:
        block = self.call.block
        refuse_weight_norm(block.module, block.full_name, "Use .gauss_newton")
        with self.call.measuring():
            product = self._second_derivative()
        return LocalOperator(f"{self.symbol} of {block.name!r}", self.call, self.variables, product)

    @cached_property
    def gauss_newton(self) -> LocalOperator:
        title = f"Gauss-Newton {self.symbol} of {self.call.block.name!r}"
        with self.call.measuring():
            jacobian = Jacobian(self.call.output, list(self.variables.values()))
            if not self.is_loss:
                return SquaredJacobian(title, self.call, self.variables, jacobian)
            curvature = loss_hessian(self.call.evaluation, self.call.output.detach().requires_grad_())

        def product(block: Block, v: Sequence[Tensor]) -> Sequence[Tensor]:
            # v → Jv → BJv → JᵀBJv
            return jacobian.pull(block, curvature(jacobian.push(block, v)))

        return LocalOperator(title, self.call, self.variables, product)

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
        return hessian_product(loss, list(self.variables.values()))
