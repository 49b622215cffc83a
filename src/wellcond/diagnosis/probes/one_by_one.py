"""Whether a network that draws features one after another sees the one that it is asked for."""

from __future__ import annotations

import torch
from torch import Tensor

from wellcond.diagnosis.probes.subject import Subject

FEWEST, MOST = 4, 8
"""Features that are looked at, at least and at most."""


def sees_itself(subject: Subject) -> bool | None:
    """Differentiate outputs for a few features, spread over all of them, with respect to these features.

    Returns:
        None unless the targets are the inputs (N, D), and of any two features exactly one sees the other: then they are
        drawn in some order. Outputs of an autoencoder see each other.
    """
    x, outputs, target = subject.inputs, subject.outputs, subject.targets
    if not isinstance(x, Tensor) or not isinstance(target, Tensor) or outputs is None or x.dim() != 2:
        return None
    if not x.is_floating_point() or x.shape[1] < FEWEST or target.shape != x.shape or not torch.equal(target.to(x), x):
        return None
    count = x.shape[1]
    dims = [dim for dim in range(1, outputs.dim()) if outputs.shape[dim] == count]
    if len(dims) != 1 or len(outputs) != len(x):
        return None
    leaf = x.detach().clone().requires_grad_()
    with torch.enable_grad():
        now = subject.outputs_in(subject.problem.forward(0, leaf))
    if now is None or not now.requires_grad:
        return None
    subject.problem.count_backward()
    places = torch.unique(torch.linspace(0, count - 1, min(MOST, count)).long())
    sees = torch.stack([_influence(now.select(dims[0], int(place)), leaf)[places] for place in places])
    apart = ~torch.eye(len(places), dtype=torch.bool, device=sees.device)
    if not bool((sees ^ sees.T)[apart].all()):
        return None
    return bool(sees.diagonal().any())


def _influence(of: Tensor, leaf: Tensor) -> Tensor:
    """(features,), whether something depends on each of them, in any example."""
    weights = torch.randn(of.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(of)
    (gradient,) = torch.autograd.grad((weights * of).sum(), [leaf], retain_graph=True, allow_unused=True)
    return leaf.new_zeros(leaf.shape[1], dtype=torch.bool) if gradient is None else gradient.any(0)
