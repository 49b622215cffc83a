"""Walking the autograd graph backward: which operations lead to a result."""

from __future__ import annotations

from collections.abc import Iterable

from torch.autograd.graph import Node


def inputs_of(node: Node) -> list[Node]:
    """The operations that a node hands its gradients to."""
    return [above for above, _ in node.next_functions if above is not None]


def upstream(ends: Iterable[Node | None], stop: Node | None) -> set[Node]:
    """All nodes before the ends (included) and after `stop`; not the leaves, which all passes share.

    >>> import torch
    >>> w = torch.ones(2, requires_grad=True)
    >>> middle = w.exp()
    >>> end = middle.sum().log()
    >>> sorted(node.name() for node in upstream([end.grad_fn], middle.grad_fn))
    ['LogBackward0', 'SumBackward0']
    """
    found: set[Node] = set()
    waiting = [node for node in ends if node is not None]
    while waiting:
        node = waiting.pop()
        if node is not stop and node not in found and node.next_functions:
            found.add(node)
            waiting += inputs_of(node)
    return found
