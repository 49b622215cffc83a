"""The generalized Gauss-Newton matrix."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from wellcond.curvature.curvature_operator import CurvatureOperator, Gradients, ParameterBlock, Product
from wellcond.errors import InvalidProblem
from wellcond.problem.evaluation import Evaluation
from wellcond.problem.loss.likelihoods import Fields
from wellcond.problem.training_step import ONLY_A_LOSS, WRITE_APART

OutputProduct = Callable[[Tensor], Tensor]
"""u ↦ B u in the space of a batch's outputs."""


class OutputCurvature(CurvatureOperator):
    """Jᵀ B J: the curvature B of the loss in the outputs, pulled back by the network's Jacobian J.

    One product costs about 4/3 of a forward+backward pass: v → Jv by a backward pass through the graph of Jᵀ,
    Jv → BJv, BJv → JᵀBJv by a backward pass through the network.
    """

    product_passes = 4 / 3

    # must define

    @abstractmethod
    def _output_product(self, evaluation: Evaluation, outputs: Tensor) -> OutputProduct:
        """u ↦ B u for one batch's mean loss; `outputs` is a leaf."""

    # may override

    def output_factor(self, evaluation: Evaluation, outputs: Tensor) -> Fields | None:
        """R fields f with B = Σ_r f_rn f_rnᵀ / weight for each example n, or None if they are not known."""
        return None

    def _linearize(self, evaluation: Evaluation, params: Sequence[Tensor]) -> tuple[Product, Callable[[], Gradients]]:
        def gradients() -> Gradients:
            return self.problem.gradient(evaluation.loss, params, retain_graph=True, allow_unused=True)

        outputs = tensor_outputs(evaluation)
        curvature = self._output_product(evaluation, outputs.detach().requires_grad_())
        if not outputs.requires_grad:
            return lambda block, v, is_kept: [None] * len(block), lambda: [None] * len(params)
        cotangent = torch.zeros_like(outputs, requires_grad=True)
        pulled_back = torch.autograd.grad(outputs, params, cotangent, create_graph=True, allow_unused=True)

        def product(block: ParameterBlock, v: Sequence[Tensor], is_kept: bool) -> Sequence[Tensor | None]:
            pairs = [(pulled_back[i], vector) for i, vector in zip(block, v, strict=True)]
            used = [(root, vector) for root, vector in pairs if root is not None]
            if not used:
                return [None] * len(block)
            roots, vectors = zip(*used, strict=True)
            # v → Jv: the derivative of the linear map u ↦ Jᵀu, transposed
            (jv,) = torch.autograd.grad(roots, cotangent, vectors, retain_graph=True)
            # Jv → BJv → JᵀBJv
            inputs = [params[i] for i in block]
            return torch.autograd.grad(outputs, inputs, curvature(jv), retain_graph=is_kept, allow_unused=True)

        return product, gradients


class GGN(OutputCurvature):
    """Jᵀ (∇²ℓ) J, the generalized Gauss-Newton matrix: the Hessian without the curvature of the network.

    Positive semi-definite for a loss that is convex in the outputs. It takes any loss with a second derivative.

    Args:
        problem: The model, loss and data.
        layers: Names of parameters or modules to restrict to; None takes all that are trainable.

    Example:
        >>> import wellcond as wc
        >>> x = torch.tensor([[1.0], [2.0]])
        >>> G = wc.GGN(wc.Problem(torch.nn.Linear(1, 1, bias=False), torch.nn.MSELoss(), (x, x)))
        >>> G.dense()                                        # 2 · mean x²: a linear model's GGN is its Hessian
        tensor([[5.]])
    """

    adds_up = True

    def _output_product(self, evaluation: Evaluation, outputs: Tensor) -> OutputProduct:
        return loss_hessian(evaluation, outputs)

    def output_factor(self, evaluation: Evaluation, outputs: Tensor) -> Fields | None:
        likelihood = self.problem.likelihood
        if likelihood is None:
            return None
        return likelihood.fisher_factor(outputs, evaluation.targets) / math.sqrt(likelihood.fisher_over_ggn)


def loss_hessian(evaluation: Evaluation, outputs: Tensor) -> OutputProduct:
    """u ↦ ∇²ℓ(outputs) u, by differentiating the loss twice."""
    gradient = output_gradient(evaluation, outputs, evaluation.targets, create_graph=True)
    if not gradient.requires_grad:  # a loss that is linear in the outputs
        return torch.zeros_like

    def product(u: Tensor) -> Tensor:
        return torch.autograd.grad(gradient, outputs, u, retain_graph=True)[0]

    return product


def output_gradient(evaluation: Evaluation, outputs: Tensor, targets: Any, *, create_graph: bool = False) -> Tensor:
    """∂loss/∂outputs of one batch's mean loss, with these labels."""
    loss = evaluation.loss_at(outputs, targets)
    (gradient,) = torch.autograd.grad(loss, outputs, create_graph=create_graph, allow_unused=True)
    if gradient is None:
        raise InvalidProblem(
            "the loss does not use the outputs that are passed to it (is it computed inside the model?), so it has no "
            "curvature in them. Write loss=lambda outputs, targets: … of the outputs; the Hessian works as it is."
        )
    return gradient


def tensor_outputs(evaluation: Evaluation) -> Tensor:
    """The outputs as the one tensor in which the loss has its curvature."""
    if evaluation.outputs is None:
        wrap = "Wrap the model in a module that returns the tensor the loss compares; the Hessian works as it is."
        raise InvalidProblem(
            f"{evaluation.why_no_outputs}, so there is no Jacobian of its outputs. "
            f"{WRITE_APART if evaluation.why_no_outputs == ONLY_A_LOSS else wrap}"
        )
    return evaluation.outputs
