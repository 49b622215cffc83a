"""The local Hessian of a block (zhang2018): how well a gradient step can do what the network behind the block asks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from torch import Tensor

from wellcond.errors import InvalidProblem
from wellcond.local.block_call import BlockCall, record
from wellcond.local.blocks import find_block
from wellcond.local.closed_form_of import ClosedForm, closed_form_of, formula_of
from wellcond.local.curvature import LocalCurvature
from wellcond.problem.problem import Problem
from wellcond.results import Row, number


@dataclass(frozen=True, eq=False, repr=False)
class LocalHessian:
    """The back-matching loss ℓ_b of one block on one batch, and its second derivatives.

    It belongs to the parameters and the batch it was made with: what happens to the model later does not change it.

    is_loss: whether ℓ_b is the problem's loss (the last block) and not the squared distance to the target.
    """

    problem: Problem
    call: BlockCall
    is_loss: bool

    @property
    def name(self) -> str:
        return self.call.block.name

    @property
    def input_shape(self) -> tuple[int, ...] | None:
        """Of z_{b−1}, the whole batch's; None where the block receives no floating-point tensor."""
        return None if self.call.z is None else tuple(self.call.z.shape)

    @property
    def output_shape(self) -> tuple[int, ...]:
        return tuple(self.call.output.shape)

    @property
    def output_gradient(self) -> Tensor:
        """∂J/∂z_b, J the problem's mean loss."""
        return self.call.gradient

    @property
    def target(self) -> Tensor:
        """z_b^{k+½} = z_b − ∂J/∂z_b: what the network behind asks of the block. The loss of the last one needs none."""
        return self.call.output.detach() - self.output_gradient

    @property
    def loss(self) -> float:
        """ℓ_b = ½‖z_b^{k+½} − z_b‖², a sum over the batch; for the last block the mean loss J."""
        if self.is_loss:
            return float(self.call.evaluation.loss)
        return float(self.output_gradient.double().square().sum()) / 2

    @cached_property
    def z(self) -> LocalCurvature:
        """H_z = ∂²ℓ_b/∂z_{b−1}², over the whole batch's input, flattened."""
        if self.call.z is None:
            raise InvalidProblem(
                f"block {self.name!r} receives no floating-point tensor (an embedding takes integers), so its loss has "
                "no derivative in its input. Its .weight can be measured."
            )
        return LocalCurvature("H_z", self.call, {"z": self.call.z}, self.is_loss)

    @cached_property
    def weight(self) -> LocalCurvature:
        """H_W = ∂²ℓ_b/∂vec(W_b)², over the block's trainable parameters, flattened in the model's order."""
        if not self.call.params:
            raise InvalidProblem(f"block {self.name!r} has no trainable parameters. Its .z can be measured.")
        return LocalCurvature("H_W", self.call, self.call.params, self.is_loss)

    def closed_form(self, statistics: Literal["differentiated", "constant"] = "differentiated") -> ClosedForm:
        """The Gauss-Newton matrices from a formula: for linear, convolutional and batch normalization layers.

        A block is one of these, or a Sequential or range of a linear or convolutional one and its BatchNorm. A layer
        that computes its weight has none: a pruned one, one with spectral_norm or weight_norm.

        statistics: with batch statistics, `"differentiated"` follows the gradient through them, as `gauss_newton` does;
            `"constant"` holds them fixed, as eqs. 17 and 18 do. What that leaves out of an example's block of H_z is of
            order 1/batch; of H_w it is not small, however large the batch: a row of W is a null vector of its own H_w.
        """
        if statistics not in ("differentiated", "constant"):
            raise ValueError(f'statistics is {statistics!r}; write "differentiated" or "constant".')
        formula = None if self.is_loss else formula_of(self.call)
        if formula is None:
            why = "is judged by the loss itself" if self.is_loss else f"({self.call.block.kind}) has none"
            raise InvalidProblem(
                f"closed forms are known for linear, convolutional and BatchNorm layers under the squared loss; block "
                f"{self.name!r} {why}. Use .z.gauss_newton and .weight.gauss_newton."
            )
        batch_statistics = self.problem.batchnorm == "batch"
        return closed_form_of(self.call, formula, batch_statistics=batch_statistics, constant=statistics == "constant")

    def rows(self) -> list[Row]:
        change = float(self.output_gradient.norm() / self.call.output.detach().norm())
        inputs = 0 if self.call.z is None else self.call.z.numel()
        params = sum(p.numel() for p in self.call.params.values())
        return [
            Row(None, self.name, "back_matching_loss", self.loss, "loss"),
            Row(None, self.name, "target_change", change, "‖∂J/∂z‖/‖z‖"),
            Row(None, self.name, "input_entries", float(inputs), "entries"),
            Row(None, self.name, "parameters", float(params), "entries"),
        ]

    def __repr__(self) -> str:
        return f"LocalHessian({self.name!r}, {self.call.block.kind}, loss={number(self.loss)})"

    def __str__(self) -> str:
        z, params = self.call.z, self.call.params
        size = sum(p.numel() for p in params.values())
        names = (
            ", ".join(params)
            if len(params) <= 4
            else f"{len(params)}, {next(iter(params))} to {next(reversed(params))}"
        )
        data = "the batch" if self.problem.is_one_batch else "the first batch"
        squared = f"½‖z½ − z‖² = {number(self.loss)}, a sum over {data}"
        formula = None if self.is_loss else formula_of(self.call)
        lines = [
            f"local Hessian of block {self.name!r} ({self.call.block.kind})",
            f"loss        {f'the loss itself, {number(self.loss)}, the mean over {data}' if self.is_loss else squared}",
            f"input       {self.input_shape or 'no floating-point tensor'}"
            + ("" if z is None else f" → H_z of side {z.numel():,}"),
            "parameters  " + (f"{names} → H_W of side {size:,}" if params else "none trainable"),
            f"output      {self.output_shape}, {self.call.evaluation.examples} examples",
            f"batch norm  {self.problem.batchnorm} statistics",
            f"closed form {formula or 'none'}",
            "cost        1 u and a forward pass of the block; a product about 2 forward+backward passes of the block, "
            "4/3 for Gauss-Newton",
        ]
        if not self.call.is_used:
            lines.append("note        the loss does not depend on this output: the target is the output itself")
        if self.call.has_other_uses:
            lines.append(
                "note        the loss depends on other outputs of the block too: the target is the first's alone"
            )
        return "\n".join(lines)


def local_hessian(problem: Problem, block: str, *, last: Literal["loss", "squared"] = "loss") -> LocalHessian:
    """The second derivatives of a block's back-matching loss, in its input z and in its parameters W.

    A network z_b = F_b(W_b, z_{b−1}) passes back targets z_b^{k+½} = z_b − ∂ℓ_{b+1}/∂z_b, and each block minimises

        ℓ_b = ½‖z_b^{k+½} − F_b(W_b, z_{b−1})‖²,   for the last block ℓ_B = J, the loss.

    Back-propagation is one gradient step of size 1 in every z and of size μ in every W (`back_matching`), which gets as
    far as H_z = ∂²ℓ_b/∂z_{b−1}² and H_W = ∂²ℓ_b/∂W_b² are well conditioned. `.z` and `.weight` each have an `.exact`
    and a `.gauss_newton` operator, for `wc.eigenvalues`, `wc.spectrum`, `wc.density` and `wc.trace`; `.layer(name)` of
    an operator is the diagonal block of one parameter.

    block: a module's name (a residual block is the module that adds its skip connection; "" is the whole model), or a
        range of a Sequential, "features[3:7]", "[0:2]". It must be called once in a forward pass. z is the first
        floating-point tensor among its arguments, wherever it stands (`attention(x, x, x)`); other arguments are
        constants. Its output is the first tensor it returns.
    last: the last block is the one whose output the loss is computed from. Its loss is `"loss"`, as in the source, or
        `"squared"`, as all other blocks'.

    Takes the first batch: a back-matching loss belongs to one. Entries of `.z`: its examples × n_{b−1}. Costs one
    forward and backward pass of the model at most, and a forward pass of the block.

    >>> import torch, wellcond as wc
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 1, bias=False), torch.nn.Tanh(), torch.nn.Linear(1, 1))
    >>> model[0].weight.data = torch.tensor([[3.0, 4.0]])
    >>> x = torch.tensor([[1.0, 0.0], [1.0, 2.0]])
    >>> local = local_hessian(wc.Problem(model, torch.nn.MSELoss(), (x, torch.zeros(2, 1))), "0")
    >>> local.weight.exact.dense()                                # Σ_j z_j z_jᵀ
    tensor([[2., 2.],
            [2., 4.]])
    >>> wc.spectrum(local.z.gauss_newton).values.tolist()         # WᵀW for each of two examples
    [0.0, 0.0, 25.0, 25.0]
    """
    if last not in ("loss", "squared"):
        raise ValueError(f'last is {last!r}; write "loss" or "squared".')
    found = find_block(problem.model, block)
    with problem.measuring():
        call = record(problem, found)
    return LocalHessian(problem, call, call.is_last and last == "loss")
