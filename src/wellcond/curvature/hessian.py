"""The Hessian of the mean loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from wellcond.curvature.curvature_operator import CurvatureOperator, Gradients, ParameterBlock, Product
from wellcond.errors import InvalidProblem
from wellcond.problem.evaluation import Evaluation
from wellcond.problem.problem import Problem


class Hessian(CurvatureOperator):
    """∇²L, the Hessian of the mean loss. Symmetric and in general indefinite.

    One product costs about two forward+backward passes: a backward pass through the kept graph of the gradient.

    Args:
        problem: The model, loss and data.
        layers: Names of parameters or modules to restrict to; None takes all that are trainable.

    Raises:
        InvalidProblem: A layer uses `weight_norm`, whose second derivative is wrong in PyTorch.

    Example:
        >>> import wellcond as wc
        >>> x = torch.tensor([[1.0], [2.0]])
        >>> H = wc.Hessian(wc.Problem(torch.nn.Linear(1, 1, bias=False), torch.nn.MSELoss(), (x, x)))
        >>> H.dense()                                        # 2 · mean x²
        tensor([[5.]])
    """

    product_passes = 2.0
    adds_up = True

    def __init__(self, problem: Problem, *, layers: str | Sequence[str] | None = None) -> None:
        super().__init__(problem, layers=layers)
        refuse_weight_norm(problem.model)

    def _linearize(self, evaluation: Evaluation, params: Sequence[Tensor]) -> tuple[Product, Callable[[], Gradients]]:
        gradients = torch.autograd.grad(evaluation.loss, params, create_graph=True, allow_unused=True)
        return hessian_product(gradients, params), lambda: gradients


def hessian_product(gradients: Gradients, params: Sequence[Tensor]) -> Product:
    """v ↦ ∇²loss · v through the graph of the gradient."""

    def product(block: ParameterBlock, v: Sequence[Tensor]) -> Sequence[Tensor | None]:
        pairs = [(gradients[i], vector) for i, vector in zip(block, v, strict=True)]
        curved = [(g, vector) for g, vector in pairs if g is not None and g.requires_grad]
        if not curved:
            return [None] * len(block)
        roots, cotangents = zip(*curved, strict=True)
        inputs = [params[i] for i in block]
        return torch.autograd.grad(roots, inputs, cotangents, retain_graph=True, allow_unused=True)

    return product


def refuse_weight_norm(
    model: nn.Module, full_name: Callable[[str], str] = str, instead: str = "Use wc.GGN(problem)"
) -> None:
    """Refuse a model with `weight_norm`: its fused form has a wrong second derivative in torch 2.13.

    (`gradgradcheck` of `torch._weight_norm` fails.)

    Args:
        model: The module to check.
        full_name: Function from the name of a layer of `model` to its name in a larger model.
        instead: Advice on what to use in place of the Hessian.
    """
    for name, module in model.named_modules():
        hooks = module._forward_pre_hooks.values()  # the deprecated form
        if any(type(part).__name__ in ("WeightNorm", "_WeightNorm") for part in (module, *hooks)):
            layer = full_name(name.partition("parametrizations.")[0].rstrip(".")) or "the model"
            raise InvalidProblem(
                f"{layer!r} uses weight_norm, whose second derivative is wrong in PyTorch. {instead}, or "
                "measure a copy without it: torch.nn.utils.parametrize.remove_parametrizations(layer, 'weight')."
            )
