"""The Hessian of the mean loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from wellcond.curvature.curvature_operator import CurvatureOperator, Gradients, ParameterBlock, Product
from wellcond.errors import InvalidProblem, Unsupported
from wellcond.network.graph import plain, upstream
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
        Unsupported: The loss contains a derivative through a BatchNorm or a LayerNorm, as a gradient penalty does.

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
        refuse_penalized_norms(evaluation.loss)
        gradients = torch.autograd.grad(evaluation.loss, params, create_graph=True, allow_unused=True)
        return hessian_product(gradients, params), lambda: gradients


def hessian_product(gradients: Gradients, params: Sequence[Tensor]) -> Product:
    """v ↦ ∇²loss · v through the graph of the gradient."""

    def product(block: ParameterBlock, v: Sequence[Tensor], is_kept: bool) -> Sequence[Tensor | None]:
        pairs = [(gradients[i], vector) for i, vector in zip(block, v, strict=True)]
        curved = [(g, vector) for g, vector in pairs if g is not None and g.requires_grad]
        if not curved:
            return [None] * len(block)
        roots, cotangents = zip(*curved, strict=True)
        inputs = [params[i] for i in block]
        return torch.autograd.grad(roots, inputs, cotangents, retain_graph=is_kept, allow_unused=True)

    return product


def refuse_penalized_norms(loss: Tensor) -> None:
    """Refuse a loss that contains a derivative through a norm: its Hessian needs the norm's third derivative.

    Torch 2.13 computes it as if the mean and the variance of the batch or of the features were constants. It is wrong
    by 40 % for a BatchNorm and by 3 % for a LayerNorm in the test of this; running statistics are constants.
    """
    for node in upstream([loss.grad_fn], None):
        is_derivative = "BackwardBackward" in node.name() and plain(node).endswith(("BatchNorm", "LayerNorm"))
        if is_derivative and getattr(node, "_saved_train", True):
            raise Unsupported(
                f"the loss contains a derivative through a {plain(node)[-9:]}, as a gradient penalty does: the Hessian "
                "needs its third derivative, which PyTorch computes wrongly. Measure a copy of the model without it."
            )


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
