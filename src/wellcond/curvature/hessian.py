"""The Hessian of the mean loss."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from wellcond.curvature.operator import Block, CurvatureOperator, Product
from wellcond.problem import Evaluation


class Hessian(CurvatureOperator):
    """∇²L, the Hessian of the mean loss. Symmetric and in general indefinite.

    One product costs about two forward+backward passes: a backward pass through the kept graph of the gradient.

    >>> import wellcond as wc
    >>> x = torch.tensor([[1.0], [2.0]])
    >>> H = wc.Hessian(wc.Problem(torch.nn.Linear(1, 1, bias=False), torch.nn.MSELoss(), (x, x)))
    >>> H.dense()                                        # 2 · mean x²
    tensor([[5.]])
    """

    def _linearize(self, evaluation: Evaluation, params: Sequence[Tensor]) -> Product:
        return hessian_product(evaluation.loss, params)


def hessian_product(loss: Tensor, params: Sequence[Tensor]) -> Product:
    """v ↦ ∇²loss · v through the graph of the gradient, which is built here, once."""
    gradients = torch.autograd.grad(loss, params, create_graph=True, allow_unused=True)

    def product(block: Block, v: Sequence[Tensor]) -> Sequence[Tensor | None]:
        pairs = [(gradients[i], vector) for i, vector in zip(block, v, strict=True)]
        curved = [(g, vector) for g, vector in pairs if g is not None and g.requires_grad]
        if not curved:
            return [None] * len(block)
        roots, cotangents = zip(*curved, strict=True)
        inputs = [params[i] for i in block]
        return torch.autograd.grad(roots, inputs, cotangents, retain_graph=True, allow_unused=True)

    return product
