"""Local Hessians by formula (zhang2018, sections 3.1 to 3.3 and supplement C), for the blocks that have one.

All belong to ℓ = ½‖z^{k+½} − F(W, z)‖², a sum over the batch, and are Gauss-Newton matrices JᵀJ. For a layer that is
linear in the variable of differentiation, that is the Hessian itself.

Index legend: n example, t position of the output, o output, i inputs of a weight's row (with their kernel sites), d
entries of one example's input.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from wellcond.errors import InvalidProblem
from wellcond.measurements.blocks.block_call import BlockCall, is_same
from wellcond.network.layers import patches, with_batch

AFFINE = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
"""Types are compared exactly: a derived class may compute something else."""


@dataclass(frozen=True)
class BlockDiagonal:
    """A block-diagonal matrix.

    Attributes:
        blocks: Blocks along the diagonal, (k, d, d).
        copies: Number of times each of them is repeated in a row.
    """

    blocks: Tensor
    copies: int = 1

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the whole matrix."""
        side = self.copies * self.blocks.shape[0] * self.blocks.shape[1]
        return side, side

    def dense(self) -> Tensor:
        """The whole matrix."""
        return block_diagonal(self.blocks.repeat_interleave(self.copies, 0))


@dataclass(frozen=True)
class ClosedForm:
    """Gauss-Newton matrices of a block, from its formula.

    Attributes:
        formula: Formula, with its equations in the source.
        z: H_z, over the whole batch's input.
        weight: H_W, over the parameter `name`; None if it is not trainable.
        name: Name of the parameter in the model; "" if it is not trainable.
    """

    formula: str
    z: BlockDiagonal
    weight: BlockDiagonal | None
    name: str


def formula_of(call: BlockCall) -> str | None:
    """The formula of a linear, convolutional or BatchNorm layer, or of a layer and its BatchNorm; None for others."""
    affine, norm = _parts(call)
    if norm is not None:
        return "H_z = Σ_o (γ_o/s_o)² A_oᵀP_o²A_o, H_w = (γ_o/s_o)² ZᵀP_o²Z; eqs. 17 and 18 have P = I"
    if affine is not None:
        is_linear = isinstance(affine, nn.Linear)
        return "H_z = WᵀW, H_w = Σ zzᵀ; eqs. 8, 9" if is_linear else "H_a = W_aᵀW_a, H_W = Σ a_i2c a_i2cᵀ; eqs. 43, 41"
    return None


def closed_form_of(call: BlockCall, formula: str, *, is_detached: bool) -> ClosedForm:
    """The matrices of a block that has a formula; detached: with BatchNorm's statistics held fixed (P = I)."""
    affine, norm = _parts(call)
    with torch.no_grad():
        layer = _Affine.of(affine, call)
        output = h = layer.outputs()
        statistics = None if norm is None else _Statistics.of(norm, call, h, is_detached)
        if statistics is not None:
            gamma, beta = _value(call, norm, "weight"), _value(call, norm, "bias")
            output = statistics.normalized * (1 if gamma is None else gamma[:, None])
            output = output if beta is None else output + beta[:, None]
        if not is_same(output, call.output.detach().reshape(output.shape)):
            raise InvalidProblem(
                f"block {call.block.name!r} ({call.block.kind}) does not compute what its type says: do hooks "
                "change its input or output? Use .z.gauss_newton and .weight.gauss_newton."
            )
        z, weight = _in_z(layer, statistics), _in_weight(layer, statistics)
    parameter = _value(call, norm if affine is None else affine, "weight")
    name = next((full for full, p in call.params.items() if p is parameter), "")
    return ClosedForm(formula, z, weight if name else None, name)


@dataclass(frozen=True)
class _Affine:
    """h = A z + b of every example.

    Attributes:
        matrix: A, (o, t, d).
        examples: z, (n, d).
        inputs: Vectors that the rows of the weight are multiplied with, (groups, n·t, i); None if A is the identity.
        bias: b, (o,).
    """

    matrix: Tensor
    examples: Tensor
    inputs: Tensor | None
    bias: Tensor | None

    @classmethod
    def of(cls, module: Any, call: BlockCall) -> _Affine:
        z, weight, bias = call.z, _value(call, module, "weight"), _value(call, module, "bias")
        assert z is not None
        if weight is None:  # a norm alone
            entries = z[0].numel()
            matrix = torch.eye(entries, dtype=z.dtype, device=z.device).reshape(z.shape[1], -1, entries)
            return cls(matrix, z.flatten(1), None, None)
        if isinstance(module, nn.Linear):
            rows = z.reshape(-1, z.shape[-1])
            return cls(weight.unsqueeze(1), rows, rows.unsqueeze(0), bias)
        z = with_batch(module, z)
        inputs = _grouped_patches(module, z).flatten(1, 2)
        return cls(convolution_matrix(module, weight, z.shape[1:]), z.flatten(1), inputs, bias)

    def outputs(self) -> Tensor:
        """h, (n, o, t)."""
        h = torch.einsum("otd,nd->not", self.matrix, self.examples)
        return h if self.bias is None else h + self.bias[:, None]


@dataclass(frozen=True)
class _Statistics:
    """A BatchNorm of h: x̂ as (n, o, t), the scale γ/s as (o,), and whether P = I."""

    normalized: Tensor
    scale: Tensor
    is_fixed: bool

    @classmethod
    def of(cls, norm: Any, call: BlockCall, h: Tensor, is_detached: bool) -> _Statistics:
        mean, variance, is_fixed = _value(call, norm, "running_mean"), _value(call, norm, "running_var"), True
        if call.problem.batchnorm == "batch" or mean is None or variance is None:
            mean, variance, is_fixed = h.mean((0, 2)), h.var((0, 2), correction=0), is_detached
        s, gamma = (variance + norm.eps).sqrt(), _value(call, norm, "weight")
        return cls((h - mean[:, None]) / s[:, None], 1 / s if gamma is None else gamma / s, is_fixed)


def _in_z(layer: _Affine, statistics: _Statistics | None) -> BlockDiagonal:
    matrix, examples = layer.matrix, len(layer.examples)
    if statistics is None:  # WᵀW, eqs. 8 and 43
        return BlockDiagonal(_gram(matrix.flatten(0, 1))[None], examples)
    if statistics.is_fixed:  # eq. 17: exact for running statistics, without terms of order 1/m for those of the batch
        return BlockDiagonal(_gram((matrix * statistics.scale[:, None, None]).flatten(0, 1))[None], examples)
    total = matrix.new_zeros(examples * matrix.shape[-1], examples * matrix.shape[-1])
    for o, w in enumerate(matrix):
        # I_n ⊗ W_o: the derivatives of the m = n·t values of feature o
        derivatives = block_diagonal(w.expand(examples, *w.shape))
        total += statistics.scale[o] ** 2 * _gram(_through(derivatives, statistics.normalized[:, o].flatten()))
    return BlockDiagonal(total[None])


def _in_weight(layer: _Affine, statistics: _Statistics | None) -> BlockDiagonal | None:
    inputs = layer.inputs
    if inputs is None:  # the weight is γ, and ∂y/∂γ = x̂
        return None if statistics is None else BlockDiagonal((statistics.normalized**2).sum((0, 2))[:, None, None])
    rows = len(layer.matrix) // len(inputs)  # of W in each group
    if statistics is None:  # Σ z zᵀ for every row of W, eq. 9; eq. 41 writes E, and as in ℓ it is a sum over the batch
        return BlockDiagonal(_gram(inputs), rows)
    scale = statistics.scale[:, None, None] ** 2
    if statistics.is_fixed:  # eq. 18
        return BlockDiagonal(scale * _gram(inputs).repeat_interleave(rows, 0))
    features = statistics.normalized.transpose(0, 1).flatten(1)
    return BlockDiagonal(
        scale * torch.stack([_gram(_through(inputs[o // rows], x_hat)) for o, x_hat in enumerate(features)])
    )


def _gram(matrix: Tensor) -> Tensor:
    return matrix.mT @ matrix


def _through(rows: Tensor, normalized: Tensor) -> Tensor:
    """P A, P = I − 11ᵀ/m − x̂x̂ᵀ/m: P γ/s is the Jacobian of a feature's BatchNorm over its m values, A their rows."""
    return rows - rows.mean(0) - torch.outer(normalized, normalized @ rows) / len(normalized)


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


def convolution_matrix(conv: Any, weight: Tensor, shape: torch.Size) -> Tensor:
    """W_a, (o, t, d): the matrix that a convolution multiplies one flattened example of this shape with.

    Example:
        >>> conv = torch.nn.Conv1d(1, 1, 2, bias=False)
        >>> convolution_matrix(conv, torch.tensor([[[3.0, 5.0]]]), torch.Size([1, 3]))
        tensor([[[3., 5., 0.],
                 [0., 3., 5.]]])
    """
    basis = torch.eye(shape.numel(), dtype=weight.dtype, device=weight.device)
    rows = _grouped_patches(conv, basis.reshape(-1, *shape))  # (groups, d, t, i)
    kernels = weight.reshape(conv.groups, -1, rows.shape[-1])  # (groups, o in the group, i)
    return torch.einsum("cdti,coi->cotd", rows, kernels).flatten(0, 1)


def _grouped_patches(conv: Any, a: Tensor) -> Tensor:
    """a_i2c as (groups, n, t, i): what each kernel of a group is multiplied with at each position."""
    sites = patches(conv, a)  # (n, channels, kernel sites, t)
    n, _, _, t = sites.shape
    return sites.reshape(n, conv.groups, -1, t).permute(1, 0, 3, 2)


def _parts(call: BlockCall) -> tuple[nn.Module | None, nn.Module | None]:
    """The affine layer and the norm of a block; None and None for any other block."""
    module = call.block.module
    parts = list(module) if type(module) is nn.Sequential else [module]
    kinds = ["affine" if type(p) in AFFINE else "norm" if type(p) in NORMS else "" for p in parts]
    # pruning, spectral_norm and weight_norm as hooks compute the weight from other parameters
    if call.z is None or not all("weight" in part._parameters for part in parts):
        return None, None
    if kinds == ["affine"]:
        return parts[0], None
    if kinds == ["norm"]:
        return None, parts[0]
    # on tokens, (N, T, d), the norm would treat T as the features
    if kinds == ["affine", "norm"] and not (type(parts[0]) is nn.Linear and call.z.dim() != 2):
        return parts[0], parts[1]
    return None, None


def _value(call: BlockCall, module: nn.Module | None, part: str) -> Tensor | None:
    """A parameter or buffer of one module of the block, with its value at the call."""
    for name, candidate in call.block.module.named_modules():
        if candidate is module:
            return call.values.get(f"{name}.{part}" if name else part)
    return None
