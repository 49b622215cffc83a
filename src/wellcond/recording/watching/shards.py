"""Norms of tensors of which this process holds a part: the sum of squares over the parts of all processes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from wellcond.network.whole import is_sharded
from wellcond.problem.ranks.team import Team
from wellcond.recording.watching.layout import norms_of


def own_part(tensor: Any) -> Tensor:
    """The part of a sharded tensor that this process holds; any other tensor itself. Every process calls it."""
    if not is_sharded(tensor):
        whole: Tensor = tensor
        return whole
    if any(placement.is_partial() for placement in tensor.placements):  # each holds a summand of every entry
        from torch.distributed.tensor import Replicate

        tensor = tensor.redistribute(placements=[Replicate() if p.is_partial() else p for p in tensor.placements])
    part: Tensor = tensor.to_local()
    return part


def global_norms(tensors: Sequence[Any], team: Team | None) -> Tensor:
    """(n,), the norm of each tensor as a whole.

    Args:
        tensors: The same ones in all processes of the team, which all call it.
        team: The processes that hold parts of them; None if this one holds all.
    """
    return norms_of_parts([own_part(tensor) for tensor in tensors], tensors, team)


def norms_of_parts(parts: Sequence[Tensor], whole: Sequence[Any], team: Team | None) -> Tensor:
    """(n,), the norm of each tensor as a whole, from the parts that this process holds.

    Args:
        parts: What this process holds.
        whole: Tensors that are divided among the processes in the same way.
        team: As in `global_norms`.
    """
    norms = norms_of(parts)
    if team is None:
        return norms
    shares = torch.tensor([1 / _copies(tensor, team) for tensor in whole], dtype=torch.float64, device=norms.device)
    # squares of small and of large norms are no numbers of float32
    return team.add([norms.double().square() * shares], "norms")[0].sqrt().to(norms.dtype)


def _copies(tensor: Any, team: Team) -> int:
    """The number of processes that hold the same part."""
    if not is_sharded(tensor):
        return team.size
    sizes = zip(tensor.device_mesh.shape, tensor.placements, strict=True)
    parts: int = math.prod(size for size, each in sizes if not each.is_replicate() and not each.is_partial())
    return team.size // parts
