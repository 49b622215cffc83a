"""The terms that a loss adds up, what they are multiplied by, and which of these have a gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from wellcond.diagnosis.probes.exchanged import rms
from wellcond.network.graph import VIEWS, leaves_of, plain
from wellcond.problem.problem import Problem

MOVED = 1e-5
"""Relative change of a value from which on it depends on the weights."""
ADDING = ("Add", "Sub", "Stack", "Cat")
"""Operations with several terms."""
KEEPING = ("Sum", "Mean", "Neg", "View", "Squeeze", "Unsqueeze", "Select", "ToCopy", "Clone")
"""Operations of one input that keep terms apart: what is added before them is added to the loss."""
CHOOSING = ("Minimum", "Maximum")
"""Operations that are one of their inputs: a clipped objective is the smaller of two products."""
SCALING = ("Mul", "Div", "Dot")
"""Products. They keep terms apart if one of their inputs is a number that does not depend on the weights. One for each
example may be a teacher's probability, p (log p − log q), where log p is added and has no gradient by design."""

Operand = tuple[Node | None, Tensor]
"""What is added or multiplied: the operation that computed it, if it has a graph, and its value."""


class Fixed(NamedTuple):
    """Values in a loss from which no gradient reaches a parameter.

    Attributes:
        terms: What is added to the loss.
        factors: What its terms are multiplied by.
    """

    terms: list[Tensor]
    factors: list[Tensor]


def evaluated(problem: Problem, index: int, batch: Any) -> tuple[Tensor, Fixed]:
    """The loss of a batch, and its values without a gradient; call it inside `measuring()`."""
    with torch.enable_grad(), Operands() as recorded:
        loss = problem.training_loss(index, batch)
    params: set[Tensor] = set(problem.params.values())
    return loss, Fixed(
        list(_terms(loss.grad_fn, recorded.operands, params)), list(_factors(loss.grad_fn, recorded.operands, params))
    )


def have_moved(before: list[Tensor], after: list[Tensor]) -> bool:
    """Whether values of the same shapes differ."""
    if [each.shape for each in before] != [each.shape for each in after]:
        return False
    return any(rms(b.double() - a.double()) > MOVED * rms(a) for a, b in zip(before, after, strict=True))


def addends(loss: Tensor, operands: Mapping[Node, list[Operand]]) -> list[Tensor]:
    """The numbers that the last additions of a loss add up, each with its graph; the loss alone if it adds nothing."""
    node = loss.grad_fn
    while node is not None and plain(node) in VIEWS:
        node = node.next_functions[0][0]
    kind = "" if node is None else plain(node)
    passed = operands.get(node, []) if node is not None and kind in ("Add", "Sub") else []
    if len(passed) != 2 or any(value.numel() != 1 for _, value in passed):
        return [loss]
    (_, first), (_, second) = passed
    others = addends(second, operands)
    return [
        each
        for each in (*addends(first, operands), *(others if kind == "Add" else [-other for other in others]))
        if each.requires_grad
    ]


class Operands(TorchFunctionMode):
    """Records what is added or multiplied, by the operation that does it."""

    def __init__(self) -> None:
        super().__init__()
        self.operands: dict[Node, list[Operand]] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        passed = [each for each in tree_leaves(args) if isinstance(each, (Tensor, float, int))]
        tensors = [each if isinstance(each, Tensor) else torch.as_tensor(each) for each in passed]
        before = [(each.grad_fn, each) for each in tensors]
        result = func(*args, **(kwargs or {}))
        node = result.grad_fn if isinstance(result, Tensor) else None
        if node is not None and plain(node) in (*ADDING, *SCALING):
            # what has no graph may be overwritten later; a copy of all the rest would take as much memory as the graph
            self.operands[node] = [(end, each if end is not None else each.detach().clone()) for end, each in before]
        return result


def _terms(end: Node | None, operands: Mapping[Node, list[Operand]], params: set[Tensor]) -> Iterator[Tensor]:
    """What is added to the loss, and from which no gradient reaches a parameter."""
    waiting = [end]
    while waiting:
        node = waiting.pop()
        if node is None:
            continue
        fixed = _fixed(node, operands, params)
        if plain(node) in ADDING:
            yield from fixed
        if plain(node) in (*ADDING, *KEEPING) or (plain(node) in SCALING and [each.numel() for each in fixed] == [1]):
            waiting += _above(node, params)


def _factors(end: Node | None, operands: Mapping[Node, list[Operand]], params: set[Tensor]) -> Iterator[Tensor]:
    """What terms of the loss are multiplied by, and from which no gradient reaches a parameter."""
    waiting = [end]
    while waiting:
        node = waiting.pop()
        if node is None:
            continue
        fixed = _fixed(node, operands, params) if plain(node) in SCALING else []
        yield from fixed
        if fixed or plain(node) in (*ADDING, *KEEPING, *CHOOSING):
            waiting += _above(node, params)


def _fixed(node: Node, operands: Mapping[Node, list[Operand]], params: set[Tensor]) -> list[Tensor]:
    return [value.detach() for above, value in operands.get(node, ()) if not _reaches(above, params)]


def _above(node: Node, params: set[Tensor]) -> list[Node | None]:
    return [above for above, _ in node.next_functions if _reaches(above, params)]


def _reaches(node: Node | None, params: set[Tensor]) -> bool:
    return node is not None and not params.isdisjoint(leaves_of([node]))
