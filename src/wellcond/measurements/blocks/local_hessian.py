"""The local Hessian of a block (zhang2018): how far one gradient step can bring the block toward its target."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from torch import Tensor

from wellcond.errors import Unsupported
from wellcond.measurements.blocks.block import find_block
from wellcond.measurements.blocks.block_call import BlockCall, record
from wellcond.measurements.blocks.closed_forms import ClosedForm, closed_form_of, formula_of
from wellcond.measurements.blocks.curvature import LocalCurvature
from wellcond.network.isolation.arithmetic import own_arithmetic
from wellcond.problem.arguments import check_problem
from wellcond.problem.problem import Problem
from wellcond.results import Cost, Result, Row, number
from wellcond.results.quantities import BACK_MATCHING_LOSS, INPUT_ENTRIES, PARAMETERS, TARGET_CHANGE


@dataclass(frozen=True, eq=False, repr=False)
class LocalHessian(Result):
    """The back-matching loss ℓ_b of one block on one batch, and its second derivatives.

    It belongs to the parameters and the batch it was computed with: later changes to the model do not affect it.

    Attributes:
        problem: Problem that the block is a part of.
        call: Call of the block on the first batch.
        is_loss: Whether ℓ_b is the problem's loss (the last block) and not the squared distance to the target.
        cost: Passes of the model; products with the operators are not included.
    """

    problem: Problem = field(repr=False)
    call: BlockCall = field(repr=False)
    is_loss: bool
    cost: Cost

    @property
    def name(self) -> str:
        """The block's name."""
        return self.call.block.name

    @property
    def input_shape(self) -> tuple[int, ...] | None:
        """The shape of z_{b−1} for the whole batch; None if the block receives no floating-point tensor."""
        return None if self.call.z is None else tuple(self.call.z.shape)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of z_b."""
        return tuple(self.call.output.shape)

    @property
    def output_gradient(self) -> Tensor:
        """∂J/∂z_b, J the problem's mean loss."""
        return self.call.gradient

    @property
    def target(self) -> Tensor:
        """z_b^{k+½} = z_b − ∂J/∂z_b: the output that the rest of the network asks for; none for the loss itself."""
        return self.call.output.detach() - self.output_gradient

    @property
    def loss(self) -> float:
        """ℓ_b = ½‖z_b^{k+½} − z_b‖², a sum over the batch; for the last block the mean loss J."""
        if self.is_loss:
            return float(self.call.evaluation.loss)
        return float(self.output_gradient.double().square().sum()) / 2

    @cached_property
    def z(self) -> LocalCurvature:
        """H_z = ∂²ℓ_b/∂z_{b−1}², over the whole batch's input, flattened.

        Raises:
            Unsupported: The block receives no floating-point tensor.
        """
        if self.call.z is None:
            raise Unsupported(
                f"block {self.name!r} receives no floating-point tensor (an embedding takes integers), so its loss has "
                "no derivative with respect to its input. Its .weight can be measured."
            )
        return LocalCurvature("H_z", self.call, {"z": self.call.z}, self.is_loss)

    @cached_property
    def weight(self) -> LocalCurvature:
        """H_W = ∂²ℓ_b/∂vec(W_b)², over the block's trainable parameters, flattened in the model's order.

        Raises:
            Unsupported: The block has no trainable parameters.
        """
        if not self.call.params:
            raise Unsupported(f"block {self.name!r} has no trainable parameters. Its .z can be measured.")
        return LocalCurvature("H_W", self.call, self.call.params, self.is_loss)

    @own_arithmetic()
    def closed_form(self, variant: Literal["batch", "detached"] = "batch") -> ClosedForm:
        """The Gauss-Newton matrices from a formula: for linear, convolutional and batch normalization layers.

        A block is one of these, or a Sequential or range of a linear or convolutional layer and its BatchNorm. A layer
        that computes its weight has no closed form: a pruned one, or one with spectral_norm or weight_norm.

        Args:
            variant: For BatchNorm with batch statistics, whether the gradient goes through them: `"batch"` as in
                training and in `gauss_newton`, or `"detached"`, which holds them fixed as eqs. 17 and 18 do. The
                difference vanishes with the size of the batch in one example's block of H_z, but not in H_w.

        Returns:
            The matrices as blocks along a diagonal.

        Raises:
            ValueError: The variant is not known.
            Unsupported: The block has no closed form.
        """
        if variant not in ("batch", "detached"):
            raise ValueError(f'variant is {variant!r}; write "batch" or "detached".')
        if self._formula is None:
            why = "is measured by the loss itself" if self.is_loss else f"({self.call.block.kind}) has none"
            raise Unsupported(
                "closed forms are known for linear, convolutional and BatchNorm layers under the squared loss; block "
                f"{self.name!r} {why}. Use .z.gauss_newton and .weight.gauss_newton."
            )
        return closed_form_of(self.call, self._formula, is_detached=variant == "detached")

    def rows(self, step: int | None = None) -> list[Row]:
        change = float(self.output_gradient.double().norm() / self.call.output.detach().double().norm())
        inputs = 0 if self.call.z is None else self.call.z.numel()
        numbers = [
            (BACK_MATCHING_LOSS, self.loss, "loss"),
            (TARGET_CHANGE, change, ""),
            (INPUT_ENTRIES, float(inputs), "entries"),
            (PARAMETERS, float(self._parameter_count), "parameters"),
        ]
        return [Row(step, self.name, *entry) for entry in numbers]

    def __repr__(self) -> str:
        return f"LocalHessian({self.name!r}, {self.call.block.kind}, loss={number(self.loss)})"

    def __str__(self) -> str:
        z, params = self.call.z, list(self.call.params)
        names = ", ".join(params) if len(params) <= 4 else f"{len(params)}, {params[0]} to {params[-1]}"
        data = "the batch" if self.problem.is_one_batch else "the first batch"
        squared = f"½‖z½ − z‖² = {number(self.loss)}, a sum over {data}"
        lines = [
            f"local Hessian of block {self.name!r} ({self.call.block.kind})",
            f"loss        {f'the loss itself, {number(self.loss)}, the mean over {data}' if self.is_loss else squared}",
            f"input       {self.input_shape or 'no floating-point tensor'}"
            + ("" if z is None else f" → H_z of side {z.numel():,}"),
            "parameters  " + (f"{names} → H_W of side {self._parameter_count:,}" if params else "none trainable"),
            f"output      {self.output_shape}, {self.call.evaluation.examples} examples",
            f"batch norm  {self.problem.batchnorm} statistics",
            f"closed form {self._formula or 'none'}",
            "products    about 2 forward+backward passes of the block each, 4/3 for Gauss-Newton",
        ]
        if not self.call.is_used:
            lines.append("note        the loss does not depend on this output: the target is the output itself")
        if self.call.has_other_uses:
            lines.append("note        the loss also depends on other outputs of the block: the target is the first's")
        return "\n".join([*lines, str(self.cost)])

    @property
    def _formula(self) -> str | None:
        return None if self.is_loss else formula_of(self.call)

    @property
    def _parameter_count(self) -> int:
        return sum(p.numel() for p in self.call.params.values())


@own_arithmetic()
def local_hessian(problem: Problem, layer: str, *, last: Literal["loss", "squared"] = "loss") -> LocalHessian:
    """The second derivatives of a block's back-matching loss with respect to its input z and its parameters W.

    A network z_b = F_b(W_b, z_{b−1}) passes back targets z_b^{k+½} = z_b − ∂ℓ_{b+1}/∂z_b, and each block minimizes

        ℓ_b = ½‖z_b^{k+½} − F_b(W_b, z_{b−1})‖²,   for the last block ℓ_B = J, the loss.

    Back-propagation is one gradient step of size 1 in every z and of size μ in every W (`back_matching`). How far that
    gets depends on how well H_z = ∂²ℓ_b/∂z_{b−1}² and H_W = ∂²ℓ_b/∂W_b² are conditioned. `.z` and `.weight` each have
    an `.exact` and a `.gauss_newton` operator, for `wc.eigenvalues`, `wc.spectrum`, `wc.density` and `wc.trace`;
    `.layer(name)` of an operator is the diagonal block of one parameter.

    The first batch is used, since a back-matching loss belongs to one. It costs at most a forward and a backward pass
    of the model, and a forward pass of the block.

    Args:
        problem: The model, loss and data.
        layer: Name of the block: a module (a residual block is the module that adds its skip connection; "" is the
            whole model), or a range of a Sequential, "features[3:7]", "[0:2]". It must be called once in a forward
            pass. z is the first floating-point tensor among its arguments, wherever it occurs (`attention(x, x, x)`);
            other arguments are constants. Its output is the first tensor it returns.
        last: Loss of the last block, from whose output the loss is computed: `"loss"`, the loss itself as in the
            source, or `"squared"`, as for all other blocks.

    Returns:
        The local Hessian.

    Raises:
        ValueError: `layer` is not a string, or `last` is not known.
        UnknownLayer: There is no such block.
        InvalidProblem: The block is not called exactly once, or cannot be differentiated.
        NotDeterministic: The block gives another output when it is called again.

    Example:
        >>> import torch, wellcond as wc
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 1, bias=False), torch.nn.Tanh(), torch.nn.Linear(1, 1))
        >>> model[0].weight.data = torch.tensor([[3.0, 4.0]])
        >>> x = torch.tensor([[1.0, 0.0], [1.0, 2.0]])
        >>> local = local_hessian(wc.Problem(model, torch.nn.MSELoss(), (x, torch.zeros(2, 1))), "0")
        >>> local.weight.exact.dense()                            # Σ_j z_j z_jᵀ
        tensor([[2., 2.],
                [2., 4.]])
        >>> wc.spectrum(local.z.gauss_newton).values.tolist()     # WᵀW for each of two examples
        [0.0, 0.0, 25.0, 25.0]
    """
    check_problem(problem)
    if last not in ("loss", "squared"):
        raise ValueError(f'last is {last!r}; write "loss" or "squared".')
    block, before = find_block(problem.model, layer), problem.cost
    with problem.measuring():
        call = record(problem, block)
    return LocalHessian(problem, call, call.is_last and last == "loss", problem.cost - before)
