"""Spectral norms as hooks: their estimate of the largest singular value, which only passes in training mode improve."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.nn.utils.spectral_norm import SpectralNorm

ITERATIONS = 15
"""Power iterations, as torch.nn.utils.parametrizations.spectral_norm makes when it is created."""


def settle(modules: Iterable[nn.Module]) -> None:
    """Improve the estimates of `torch.nn.utils.spectral_norm`, in buffers that are restored afterwards.

    It begins with random vectors, and divides by an estimate that is far too small until passes in training mode have
    improved it: in evaluation mode a fresh layer of 32 units is six to a hundred times as large as it will be.
    """
    for module in modules:
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, SpectralNorm):
                for _ in range(ITERATIONS):
                    hook.compute_weight(module, do_power_iteration=True)
