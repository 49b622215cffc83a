"""A cheap start for the search of the largest eigenvalue: the direction that shifts all outputs of a network together.

The few eigenvalues far above all others, the outliers, belong to directions that move the outputs of all examples at
once. An eighth of a batch is enough to find about the first of them, before any product with the whole matrix.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from wellcond.network.calling import logits_of
from wellcond.problem.problem import Problem

SHARE, FEWEST_EXAMPLES = 8, 4
"""One example in eight is used, at least four. On the networks of the benchmark 1 in 16 gives the same direction."""
MOST_OUTPUT_PASSES = 5
"""Most backward passes, one per output, in passes of a whole batch: less than two products. An eighth allows 40."""
MOST_BYTES = 2**29
"""Most memory for one vector per output."""


def outlier_direction(problem: Problem, params: Sequence[Tensor], root: Tensor | None = None) -> Tensor | None:
    """About the first eigenvector of the Gauss-Newton matrix, (n,), for less than the price of a product.

    The few eigenvalues far above all others belong to directions that move the outputs of all examples together
    (Papyan 2019): to the span of j_c, the mean gradient of output c over the examples. With M the mean curvature of
    the loss in the outputs, the matrix is about Σ M_cd j_c j_dᵀ there, whose first eigenvector follows from the
    outputs × outputs matrix of the products of the j_c. At initialization these eigenvalues lie close together. The
    gradient is a mixture of their vectors, and takes many products to be resolved into them.

    Call it inside `measuring()`.

    Args:
        problem: Problem whose model has outputs (N, C), with small C.
        params: Parameters of the vector, in its order.
        root: (n,), the diagonal of D, for the first eigenvector of D G D; None for the first eigenvector of G.

    Returns:
        None if the outputs have another shape, or if the model does not accept a part of its batch.
    """
    try:
        pair = _mean_gradients(problem, params)
    except Exception:  # not every model or loss accepts a part of its batch
        return None
    if pair is None:
        return None
    directions, curvature = pair if root is None else (pair[0] * root, pair[1])
    largest = directions.abs().max()
    if not bool(torch.isfinite(largest)) or not bool(torch.isfinite(curvature).all()):
        return None
    directions = directions / largest.clamp_min(torch.finfo(directions.dtype).tiny)  # so that squares do not vanish
    # JᵀMJ has the eigenvectors JᵀM R y of RᵀMR y = λy, where R Rᵀ = J Jᵀ
    squares, basis = torch.linalg.eigh((directions @ directions.T).double())
    factor = basis * squares.clamp_min(0).sqrt()
    first = torch.linalg.eigh(factor.T @ curvature @ factor).eigenvectors[:, -1]
    start: Tensor = (curvature @ factor @ first).to(directions.dtype) @ directions
    return start


def _mean_gradients(problem: Problem, params: Sequence[Tensor]) -> tuple[Tensor, Tensor] | None:
    """J (C, n) and M (C, C) for the first examples of the first batch; None if there are too many outputs."""
    with contextlib.closing(problem.data()) as data:
        index, batch = next(data)
    (inputs, targets), share = _first_examples(batch)
    outputs = logits_of(problem.forward(index, inputs))
    if outputs is None or outputs.dim() != 2 or not outputs.requires_grad:
        return None
    count = outputs.shape[1]
    if share * count > MOST_OUTPUT_PASSES or count * sum(p.numel() * p.element_size() for p in params) > MOST_BYTES:
        return None
    detached = outputs.detach()
    curvature = _curvature(lambda shift: problem.loss_of_outputs(detached + shift, targets), count, detached)
    gradients = (torch.autograd.grad(m, params, retain_graph=True, allow_unused=True) for m in outputs.mean(0))
    directions = torch.stack([flattened(each, params) for each in gradients])
    problem.count_products(0, share * 2 / 3 * count)
    return directions, curvature


def _curvature(loss: Callable[[Tensor], Tensor], count: int, like: Tensor) -> Tensor:
    """∇²loss at zero, (count, count), in float64."""
    shift = like.new_zeros(count, requires_grad=True)
    (gradient,) = torch.autograd.grad(loss(shift), shift, create_graph=True)
    rows = [torch.autograd.grad(entry, shift, retain_graph=True, materialize_grads=True)[0] for entry in gradient]
    return torch.stack(rows).double()


def flattened(gradients: Sequence[Tensor | None], params: Sequence[Tensor]) -> Tensor:
    """All gradients in one vector; None stands for zero."""
    each = zip(gradients, params, strict=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).detach().reshape(-1) for g, p in each])


def _first_examples(batch: Any) -> tuple[Any, float]:
    """The first examples of a batch, and their share of it."""
    sizes = [leaf.shape[0] for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.dim()]
    size = sizes[0]  # that of the inputs
    part = min(size, max(size // SHARE, FEWEST_EXAMPLES))

    def first(leaf: Any) -> Any:
        is_of_examples = isinstance(leaf, Tensor) and leaf.dim() and leaf.shape[0] == size
        return leaf[:part] if is_of_examples else leaf

    return tree_map(first, batch), part / size
