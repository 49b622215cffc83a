"""The formulas of local Hessians (zhang2018, sections 3.1 to 3.3 and supplement C), as functions of tensors.

All belong to ℓ = ½‖z^{k+½} − F(W, z)‖², a sum over the batch, and all but one are Gauss-Newton matrices JᵀJ. For a
layer that is linear in the variable of differentiation, that is the Hessian itself.

Index legend: n example, t position of the output, o output, i inputs of a weight's row (with their kernel sites), d
entries of one example's input.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from wellcond.network.layers import patches, with_batch


def linear_z(weight: Tensor) -> Tensor:
    """WᵀW, (d, d): H_z of h = W z for every example (eq. 8).

    Example:
        >>> linear_z(torch.tensor([[1.0, 2.0]]))
        tensor([[1., 2.],
                [2., 4.]])
    """
    return weight.T @ weight


def linear_w(z: Tensor) -> Tensor:
    """Σ_j z_j z_jᵀ, (i, i): H_w for every row of W (eq. 9), z of shape (…, i). A bias is one more input that is 1.

    Example:
        >>> linear_w(torch.tensor([[1.0, 0.0], [1.0, 2.0]]))
        tensor([[2., 2.],
                [2., 4.]])
    """
    rows = z.reshape(-1, z.shape[-1])
    return rows.T @ rows


def convolution_matrix(conv: Any, weight: Tensor, shape: torch.Size) -> Tensor:
    """W_a, (o, t, d): the matrix that a convolution multiplies one flattened example with.

    Args:
        conv: A Conv1d, 2d or 3d with any stride, padding, padding mode, dilation and groups.
        weight: Its weight.
        shape: The shape of one example, (channels, *space).

    Example:
        >>> conv = torch.nn.Conv1d(1, 1, 2, bias=False)
        >>> convolution_matrix(conv, torch.tensor([[[3.0, 5.0]]]), torch.Size([1, 3]))
        tensor([[[3., 5., 0.],
                 [0., 3., 5.]]])
    """
    basis = torch.eye(shape.numel(), dtype=weight.dtype, device=weight.device)
    rows = grouped_patches(conv, basis.reshape(-1, *shape))  # (groups, d, t, i)
    kernels = weight.reshape(conv.groups, -1, rows.shape[-1])  # (groups, o in the group, i)
    return torch.einsum("cdti,coi->cotd", rows, kernels).flatten(0, 1)


def convolution_z(matrix: Tensor) -> Tensor:
    """H_a = W_aᵀ W_a, (d, d), for every example (eq. 43); matrix: W_a as (o, t, d).

    Example:
        >>> convolution_z(torch.tensor([[[3.0, 5.0, 0.0], [0.0, 3.0, 5.0]]]))
        tensor([[ 9., 15.,  0.],
                [15., 34., 15.],
                [ 0., 15., 25.]])
    """
    return linear_z(matrix.flatten(0, 1))


def convolution_w(conv: Any, a: Tensor) -> Tensor:
    """H_W = Σ a_i2c a_i2cᵀ over examples and positions, (groups, i, i): for every kernel of a group.

    The source writes E (eq. 41); as in eq. 9, and as in ℓ, it is a sum over the batch here.

    Example:
        >>> convolution_w(torch.nn.Conv1d(1, 1, 2, bias=False), torch.tensor([[[1.0, 2.0, 3.0]]]))
        tensor([[[ 5.,  8.],
                 [ 8., 13.]]])
    """
    rows = grouped_patches(conv, with_batch(conv, a)).flatten(1, 2)
    return rows.mT @ rows


def grouped_patches(conv: Any, a: Tensor) -> Tensor:
    """a_i2c as (groups, n, t, i): what each kernel of a group is multiplied with at each position."""
    sites = patches(conv, a)  # (n, channels, kernel sites, t)
    n, _, _, t = sites.shape
    return sites.reshape(n, conv.groups, -1, t).permute(1, 0, 3, 2)


def block_diagonal(blocks: Tensor) -> Tensor:
    """(k, p, q) → (k·p, k·q), the blocks along the diagonal.

    Example:
        >>> block_diagonal(torch.tensor([[[1.0, 2.0]], [[3.0, 4.0]]]))
        tensor([[1., 2., 0., 0.],
                [0., 0., 3., 4.]])
    """
    k, p, q = blocks.shape
    matrix = blocks.new_zeros(k, p, k, q)
    matrix.diagonal(dim1=0, dim2=2).copy_(blocks.permute(1, 2, 0))
    return matrix.reshape(k * p, k * q)


# batch normalization: x̂ = (h − E h)/s with s² = Var h + ε, y = γ x̂ + β; `scale` is γ/s, (o,)


def normalized_z(matrix: Tensor, scale: Tensor) -> Tensor:
    """Σ_o scale_o² W_oᵀW_o, (d, d): H_z for every example, with the statistics held fixed (eq. 17).

    For batch statistics this leaves out terms of order 1/m; for running statistics it is exact.

    Args:
        matrix: W as (o, t, d); a linear layer has t = 1.
        scale: γ/s, (o,).

    Example:
        >>> normalized_z(torch.tensor([[[1.0, 2.0]]]), torch.tensor([0.5]))
        tensor([[0.2500, 0.5000],
                [0.5000, 1.0000]])
    """
    return linear_z((matrix * scale[:, None, None]).flatten(0, 1))


def normalized_w(moment: Tensor, scale: Tensor) -> Tensor:
    """scale_o² Σ_j z_j z_jᵀ, (o, i, i): H_w of every row of W, with the statistics held fixed (eq. 18).

    Args:
        moment: Σ z zᵀ of `linear_w` or `convolution_w`, (i, i) or (groups, i, i).
        scale: γ/s, (o,).

    Example:
        >>> normalized_w(torch.tensor([[4.0]]), torch.tensor([0.5, 2.0])).flatten()
        tensor([ 1., 16.])
    """
    moment = moment.reshape(-1, *moment.shape[-2:])
    return scale[:, None, None] ** 2 * moment.repeat_interleave(len(scale) // len(moment), 0)


def through_statistics(rows: Tensor, normalized: Tensor) -> Tensor:
    """P A with P = I − 11ᵀ/m − x̂x̂ᵀ/m: scale · P is the Jacobian of a feature's BatchNorm over its m values.

    Args:
        rows: A, (m, k), the derivatives of the m values.
        normalized: x̂, (m,).

    Example:
        >>> through_statistics(torch.tensor([[1.0], [3.0]]), torch.tensor([-1.0, 1.0]))
        tensor([[0.],
                [0.]])
    """
    m = len(normalized)
    return rows - rows.mean(0) - torch.outer(normalized, normalized @ rows) / m


def batchnorm_z(matrix: Tensor, normalized: Tensor, scale: Tensor) -> Tensor:
    """Σ_o scale_o² (P_o A_o)ᵀ(P_o A_o), (n·d, n·d): JᵀJ of the whole batch's input, through the batch statistics.

    A_o = I_n ⊗ W_o holds the derivatives of the m = n·t values of feature o.

    Args:
        matrix: W as (o, t, d).
        normalized: x̂ as (n, o, t).
        scale: γ/s, (o,).

    Example:
        With two examples and one feature, x̂ = (∓1, ±1) whatever the input, so nothing depends on it:

        >>> batchnorm_z(torch.tensor([[[1.0]]]), torch.tensor([[[-1.0]], [[1.0]]]), torch.tensor([3.0]))
        tensor([[0., 0.],
                [0., 0.]])
    """
    n = len(normalized)
    total = matrix.new_zeros(n * matrix.shape[-1], n * matrix.shape[-1])
    for o, w in enumerate(matrix):
        rows = through_statistics(block_diagonal(w.expand(n, *w.shape)), normalized[:, o].flatten())
        total += scale[o] ** 2 * linear_z(rows)
    return total


def batchnorm_w(inputs: Tensor, normalized: Tensor, scale: Tensor) -> Tensor:
    """scale_o² (P_o Z)ᵀ(P_o Z), (o, i, i): JᵀJ of every row of W, through the batch statistics.

    Args:
        inputs: Z as (groups, m, i), what the rows of W are multiplied with.
        normalized: x̂ as (n, o, t), with n·t = m.
        scale: γ/s, (o,).

    Example:
        >>> batchnorm_w(torch.tensor([[[1.0], [3.0]]]), torch.tensor([[[-1.0]], [[1.0]]]), torch.tensor([3.0]))
        tensor([[[0.]]])
    """
    share = len(scale) // len(inputs)
    rows = [through_statistics(inputs[o // share], normalized[:, o].flatten()) for o in range(len(scale))]
    return torch.stack([s**2 * linear_z(r) for s, r in zip(scale, rows, strict=True)])


def residual_z(jacobian: Tensor, curvature: Tensor | None = None) -> Tensor:
    """(I + J)ᵀ(I + J) of a block z + φ(z), J = ∂φ/∂z, (d, d): its Gauss-Newton matrix, the first part of eq. 13.

    Args:
        jacobian: J, (d, d).
        curvature: ∂/∂z (∂F/∂zᵀ · (z_b^{k+½} − z_b)) with the change held fixed; eq. 13 subtracts it, which gives H_z.

    Example:
        >>> residual_z(torch.tensor([[0.5]]), torch.tensor([[1.0]]))
        tensor([[1.2500]])
    """
    gauss_newton = linear_z(torch.eye(len(jacobian), dtype=jacobian.dtype, device=jacobian.device) + jacobian)
    return gauss_newton if curvature is None else gauss_newton - curvature
