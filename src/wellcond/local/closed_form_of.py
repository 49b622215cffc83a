"""Which closed form a block has, and the matrices that it gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from wellcond.errors import InvalidProblem
from wellcond.local import closed_forms as forms
from wellcond.local.block_call import BlockCall, is_same
from wellcond.network.layers import with_batch

AFFINE = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
"""Compared by exact type: a derived class may compute something else."""


@dataclass(frozen=True)
class BlockDiagonal:
    """A block-diagonal matrix.

    Attributes:
        blocks: The blocks, (k, d, d).
        copies: How many times each of them occurs in a row along the diagonal.
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
        return forms.block_diagonal(self.blocks.repeat_interleave(self.copies, 0))


@dataclass(frozen=True)
class ClosedForm:
    """Gauss-Newton matrices of a block, from its formula.

    Attributes:
        formula: The formula and its equations in the source.
        z: H_z, over the whole batch's input.
        weight: H_W, over the parameter `name`; None if it is not trainable.
        name: The parameter's name in the model; "" if it is not trainable.
    """

    formula: str
    z: BlockDiagonal
    weight: BlockDiagonal | None
    name: str


def formula_of(call: BlockCall) -> str | None:
    """The formula of a linear, convolutional or BatchNorm layer, or of one followed by a BatchNorm; None of others."""
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
        inputs: What the rows of the weight are multiplied with, (groups, n·t, i); None where A is the identity.
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
        inputs = forms.grouped_patches(module, z).flatten(1, 2)
        return cls(forms.convolution_matrix(module, weight, z.shape[1:]), z.flatten(1), inputs, bias)

    def outputs(self) -> Tensor:
        """h, (n, o, t)."""
        h = torch.einsum("otd,nd->not", self.matrix, self.examples)
        return h if self.bias is None else h + self.bias[:, None]


@dataclass(frozen=True)
class _Statistics:
    """What a BatchNorm makes of h: x̂ as (n, o, t), the scale γ/s as (o,), and whether P = I."""

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
    if statistics is None:
        return BlockDiagonal(forms.convolution_z(layer.matrix)[None], len(layer.examples))
    if statistics.is_fixed:
        return BlockDiagonal(forms.normalized_z(layer.matrix, statistics.scale)[None], len(layer.examples))
    return BlockDiagonal(forms.batchnorm_z(layer.matrix, statistics.normalized, statistics.scale)[None])


def _in_weight(layer: _Affine, statistics: _Statistics | None) -> BlockDiagonal | None:
    if layer.inputs is None:  # the weight is γ, and ∂y/∂γ = x̂
        return None if statistics is None else BlockDiagonal((statistics.normalized**2).sum((0, 2))[:, None, None])
    moment = layer.inputs.mT @ layer.inputs
    if statistics is None:
        return BlockDiagonal(moment, len(layer.matrix) // len(moment))
    if statistics.is_fixed:
        return BlockDiagonal(forms.normalized_w(moment, statistics.scale))
    return BlockDiagonal(forms.batchnorm_w(layer.inputs, statistics.normalized, statistics.scale))


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
    # on tokens, (N, T, d), the norm would take T for the features
    if kinds == ["affine", "norm"] and not (type(parts[0]) is nn.Linear and call.z.dim() != 2):
        return parts[0], parts[1]
    return None, None


def _value(call: BlockCall, module: nn.Module | None, part: str) -> Tensor | None:
    """A parameter or buffer of one module of the block, as it was at the call."""
    for name, candidate in call.block.module.named_modules():
        if candidate is module:
            return call.values.get(f"{name}.{part}" if name else part)
    return None
