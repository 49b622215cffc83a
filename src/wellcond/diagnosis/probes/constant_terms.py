"""Whether a term of the loss moves with the weights, but has no gradient.

A derivative without create_graph, .data, .item() or a round trip through NumPy cuts a term off: it is added to the
loss, and trains nothing. A detach() inside a term, as of a target network or a baseline, is by design: what it is
multiplied or compared with still has a gradient, so no whole term is cut off.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from wellcond.diagnosis.probes.exchanged import rms
from wellcond.network.graph import leaves_of, plain
from wellcond.network.isolation.isolation import parameters_kept
from wellcond.problem.problem import Problem

DIRECTIONS = 2
"""Random directions in which the weights are moved: in one of them a lost slope may be small by chance."""
DISTANCES = (4e-3, 1e-3)
"""How far they are moved, over the RMS of each parameter; the difference of the two slopes is their error."""
FRESH = 0.01
"""RMS that a parameter of zeros is taken to have."""
MOVED = 1e-5
"""Relative change of a term from which on it depends on the weights."""
ROUNDINGS = 20.0
"""Rounding error of the loss over the precision of its dtype, at most."""
ADDING = ("Add", "Sub", "Stack", "Cat")
"""Operations with several terms."""
KEEPING = ("Sum", "Mean", "Neg", "View", "Squeeze", "Unsqueeze", "Select", "ToCopy", "Clone")
"""Operations of one input that keep terms apart: what is added before them is added to the loss."""
SCALING = ("Mul", "Div")
"""Operations that keep terms apart if one of their inputs is a number that does not depend on the weights. One for each
example may be a teacher's probability, p (log p − log q), where log p is added and has no gradient by design."""

Operand = tuple[Node | None, Tensor]
"""What is added: the operation that computed it, if it has a graph, and its value."""


class _Operands(TorchFunctionMode):
    """Records what is added or multiplied, by the operation that does it."""

    def __init__(self) -> None:
        super().__init__()
        self.operands: dict[Node, list[Operand]] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        passed = [each for each in tree_leaves(args) if isinstance(each, (Tensor, float, int))]
        before = [(each.grad_fn, each.detach()) if isinstance(each, Tensor) else (None, each) for each in passed]
        result = func(*args, **(kwargs or {}))
        node = result.grad_fn if isinstance(result, Tensor) else None
        if node is not None and plain(node) in (*ADDING, *SCALING):
            self.operands[node] = [(end, torch.as_tensor(value).clone()) for end, value in before]
        return result


def lost_slope(problem: Problem) -> float | None:
    """Compare slopes of the loss of the first batch with its gradient, if a term moves that has no gradient.

    Returns:
        ‖slopes − gradient‖/‖slopes‖ in random directions: the share of the loss's slope that no step sees. None if all
        terms that move with the weights have a gradient.

    Raises:
        NonFinite: The loss is not finite there.
    """
    params = list(problem.params.values())
    draw = torch.Generator().manual_seed(0)
    with problem.measuring(), parameters_kept(params), contextlib.closing(problem.data()) as data:
        index, batch = next(data)
        loss, constants = _evaluated(problem, index, batch)
        if not constants:
            return None
        gradients = problem.gradient(loss, params, allow_unused=True)
        rounding = ROUNDINGS * torch.finfo(problem.dtype).eps * abs(float(loss.detach())) / DISTANCES[1]
        starts = [p.data for p in params]
        slopes, differences = list[float](), list[float]()
        has_moved = False
        for _ in range(DIRECTIONS):
            direction = [(rms(p) or FRESH) * torch.randn(p.shape, generator=draw).to(p) for p in starts]
            expected = sum(float((g * d).sum()) for g, d in zip(gradients, direction, strict=True) if g is not None)
            at_both = []
            for step in DISTANCES:
                ends = []
                for signed in (step, -step):
                    for p, start, d in zip(params, starts, direction, strict=True):
                        p.data = start + signed * d
                    end, others = _evaluated(problem, index, batch)
                    has_moved = has_moved or _have_moved(constants, others)
                    ends.append(float(end.detach()))
                at_both.append((ends[0] - ends[1]) / (2 * step))
            far, near = at_both
            slopes.append(near)
            differences.append(max(0.0, abs(near - expected) - abs(far - near) - rounding))
    size = math.hypot(*slopes)
    return math.hypot(*differences) / size if has_moved and 0 < size < math.inf else None


def _evaluated(problem: Problem, index: int, batch: Any) -> tuple[Tensor, list[Tensor]]:
    """The loss of a batch, and what is added to it without a gradient."""
    with torch.enable_grad(), _Operands() as recorded:
        loss = problem.training_loss(index, batch)
    return loss, list(_constant_terms(loss.grad_fn, recorded.operands, set(problem.params.values())))


def _have_moved(before: list[Tensor], after: list[Tensor]) -> bool:
    if [each.shape for each in before] != [each.shape for each in after]:
        return False
    return any(rms(b.double() - a.double()) > MOVED * rms(a) for a, b in zip(before, after, strict=True))


def _constant_terms(end: Node | None, operands: Mapping[Node, list[Operand]], params: set[Tensor]) -> Iterator[Tensor]:
    """What is added to the loss, and from which no gradient reaches a parameter."""
    waiting = [end]
    while waiting:
        node = waiting.pop()
        if node is None:
            continue
        fixed = [value for above, value in operands.get(node, ()) if not _reaches(above, params)]
        if plain(node) in ADDING:
            yield from fixed
        if plain(node) in (*ADDING, *KEEPING) or (plain(node) in SCALING and [each.numel() for each in fixed] == [1]):
            waiting += [above for above, _ in node.next_functions if _reaches(above, params)]


def _reaches(node: Node | None, params: set[Tensor]) -> bool:
    return node is not None and not params.isdisjoint(leaves_of([node]))
