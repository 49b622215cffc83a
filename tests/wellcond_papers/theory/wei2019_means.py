"""Means over inputs and over pairs of different inputs, of which the order parameters of wei2019 are made."""

from __future__ import annotations

from torch import Tensor


def mean_square(x: Tensor) -> float:
    """(1/units) E_x ‖x‖²"""
    return float(x.square().mean())


def mean_product(x: Tensor) -> float:
    """(1/units) E_{x≠y} ⟨x, y⟩"""
    examples, units = x.shape
    return float(x.sum(0).square().sum() - x.square().sum()) / (examples * (examples - 1) * units)


def term(gram: Tensor) -> float:
    """f_l = E_{x≠y} ⟨∂f(x)/∂W^l, ∂f(y)/∂W^l⟩ of a Gram matrix that is divided by N."""
    return float(gram.sum() - gram.trace()) / (len(gram) - 1)
