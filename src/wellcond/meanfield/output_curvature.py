"""How the loss curves in the outputs, over the curvature of ½‖f − y‖²."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from wellcond.errors import NonFinite
from wellcond.network.calling import unwrapped
from wellcond.network.isolation import isolated


def softmax_curvature(module: nn.Module, inputs: Tensor, *, batch_statistics: bool) -> float:
    """λ_max of E_x[diag(p) − p pᵀ], p(x) the probabilities that the network gives, (N, C); 1/C where all are equal.

    The gradients of all examples have one direction in common, and in it the Gauss-Newton matrix is F ⊗ this mean.
    It takes one forward pass, and changes nothing of the module.

    >>> layer = nn.Linear(1, 2, bias=False)
    >>> _ = nn.init.zeros_(layer.weight)
    >>> softmax_curvature(layer, torch.ones(3, 1), batch_statistics=True)
    0.5
    """
    module = unwrapped(module)
    first = next(module.parameters())
    with isolated(module, first.device, batch_statistics=batch_statistics, dropout=False), torch.no_grad():
        p = module(inputs.to(first.device, first.dtype)).double().softmax(1)
    if not bool(p.isfinite().all()):
        raise NonFinite("the network's outputs on these inputs are NaN or inf; look at their scale and at the weights.")
    mean = p.mean(0).diag() - p.T @ p / len(p)
    return float(torch.linalg.eigvalsh(mean)[-1])
