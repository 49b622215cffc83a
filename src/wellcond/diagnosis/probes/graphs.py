"""Whether the edges of several graphs in a batch all end in the first one."""

from __future__ import annotations

import torch
from torch import Tensor

from wellcond.diagnosis.probes.subject import Subject
from wellcond.network.calling import tensors_in
from wellcond.problem.loss.outputs import with_tensors

FEWEST_GRAPHS = 4
ENDS_OF_EDGE = 2
"""Nodes at the ends of an edge."""


def edges_of_first_alone(subject: Subject) -> bool | None:
    """Exchange the last quarter of the edges, which are those of the last graphs, for the first edge.

    Returns:
        Whether that changes the outputs of the first graph alone. None where there is no list of edges, (E, 2) or
        (2, E) with whole numbers, besides a table of more nodes than graphs, or where no output changes.
    """
    outputs, targets = subject.outputs, tensors_in(subject.targets)
    tensors = tensors_in(subject.inputs)
    if outputs is None or not outputs.dim() or len(targets) != 1 or not targets[0].dim():
        return None
    if len(outputs) != len(targets[0]) or subject.draws:
        return None
    graphs, nodes = len(outputs), max((len(t) for t in tensors if t.is_floating_point() and t.dim()), default=0)
    for edges in tensors:
        if (
            edges.is_floating_point()
            or edges.dtype == torch.bool
            or edges.dim() != 2
            or ENDS_OF_EDGE not in edges.shape
        ):
            continue
        count = edges.numel() // ENDS_OF_EDGE
        if not FEWEST_GRAPHS <= graphs < min(count, nodes):
            continue
        rows = edges.T.clone() if len(edges) == ENDS_OF_EDGE else edges.clone()
        rows[-(count // 4) :] = rows[:1]
        changed = rows.T.contiguous() if len(edges) == ENDS_OF_EDGE else rows
        after = subject.outputs_for(with_tensors(subject.inputs, {id(edges): changed}))
        if after is None or after.shape != outputs.shape:
            continue
        differs = _changes(outputs, after) > subject.tolerance * float(outputs.abs().max())
        if bool(differs.any()):
            return bool(differs[0]) and not bool(differs[1:].any())
    return None


def _changes(before: Tensor, after: Tensor) -> Tensor:
    """(graphs,), the largest change of an output of each."""
    return (after - before).abs().reshape(len(before), -1).amax(1)
