"""Models that have been used, and whether two of them are the same function."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from wellcond.nn.merge import merge_batchnorm

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


def used(model: nn.Module, *inputs: Any, **named: Any) -> nn.Module:
    """The model in float64, with random γ and β and the running statistics of three training batches."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model.double().train()
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.affine:
                nn.init.uniform_(module.weight, 0.5, 1.5)
                nn.init.normal_(module.bias)
        with torch.no_grad():
            for _ in range(3):
                model(*inputs, **named)
    return model


def norms(model: nn.Module) -> list[str]:
    kinds = nn.modules.batchnorm._BatchNorm
    return [name for name, module in model.named_modules() if isinstance(module, kinds)]


def outputs(model: nn.Module, *inputs: Any, **named: Any) -> Tensor:
    with torch.no_grad():
        result = copy.deepcopy(model).eval()(*inputs, **named)
    return result if isinstance(result, Tensor) else result.logits


def assert_same_function(old: nn.Module, new: nn.Module, *inputs: Any, **named: Any) -> None:
    expected, result = outputs(old, *inputs, **named), outputs(new, *inputs, **named)
    error = (result - expected).abs().max() / expected.abs().max()
    assert error <= TOLERANCE[expected.dtype]
    assert expected.std() > 0  # or any function would do


def merged_without_rest(model: nn.Module, inputs: Any = None) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        merged = merge_batchnorm(model, inputs)
    assert norms(merged) == []
    return merged
