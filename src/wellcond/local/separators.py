"""Which operations separate the autograd graph: whatever leads to one of them reaches the loss through it alone."""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import reduce

from torch.autograd.graph import Node

from wellcond.network.graph import inputs_of

Place = tuple[Node, int]
"""A tensor's place in the graph: the operation that made it, and which of its outputs it is."""


class Separators:
    """The separators among the operations before an end, found in one walk.

    v dominates w if every path from the end back to w leads through v. An operation that dominates all that leads to it
    is a separator. Leaves do not count: they are parameters, which any operation may use.

    >>> import torch
    >>> w = torch.ones(2, requires_grad=True)
    >>> stem = w.exp()
    >>> branch = stem.sin()
    >>> end = (stem + branch).sum()                        # a skip connection passes the branch by
    >>> separators = Separators(end.grad_fn)
    >>> [(t.grad_fn, 0) in separators for t in (stem, branch)]
    [True, False]
    """

    def __init__(self, end: Node) -> None:
        order = _consumers_first(end)
        consumers: dict[Node, list[Node]] = defaultdict(list)
        self._arrivals: dict[Node, set[int]] = defaultdict(set)
        for node in order:
            for above, output in node.next_functions:
                if above is not None and above.next_functions:
                    consumers[above].append(node)
                    self._arrivals[above].add(output)

        # the dominator tree: a node's parent is the last operation that all paths to it have in common
        parent: dict[Node, Node] = {}
        depth = {end: 0}

        def common(first: Node, second: Node) -> Node:
            while first is not second:
                if depth[first] < depth[second]:
                    first, second = second, first
                first = parent[first]
            return first

        # An edge from `node` back to `above` passes by all that dominate `node` but not `above`: those on the way up
        # from `node` to the parent of `above`. One more at its begin and one less at its end, added up over subtrees.
        passed_by: Counter[Node] = Counter()
        for node in order[1:]:
            parent[node] = reduce(common, consumers[node])
            depth[node] = depth[parent[node]] + 1
            passed_by.update(consumers[node])
            passed_by[parent[node]] -= len(consumers[node])

        self._size = dict.fromkeys(order, 1)
        for node in reversed(order[1:]):
            passed_by[parent[node]] += passed_by[node]
            self._size[parent[node]] += self._size[node]
        self._passed_by = passed_by

        # numbered so that what a node dominates follows it
        self._number, free = {end: 0}, {end: 1}
        for node in order[1:]:
            self._number[node] = free[parent[node]]
            free[parent[node]] += self._size[node]
            free[node] = self._number[node] + 1

    def __contains__(self, place: Place) -> bool:
        node, output = place
        return self._arrivals.get(node) == {output} and not self._passed_by[node]

    def leads(self, first: Node, second: Node) -> bool:
        """Whether what the first gives is used in the second, a separator."""
        return 0 <= self._number[first] - self._number[second] < self._size[second]


def _consumers_first(end: Node) -> list[Node]:
    """All operations that lead to the end, each behind those that use it; not the leaves."""
    finished: list[Node] = []
    seen = {end}
    waiting = [(end, iter(inputs_of(end)))]
    while waiting:
        node, above = waiting[-1]
        for candidate in above:
            if candidate not in seen and candidate.next_functions:
                seen.add(candidate)
                waiting.append((candidate, iter(inputs_of(candidate))))
                break
        else:
            waiting.pop()
            finished.append(node)
    return finished[::-1]
