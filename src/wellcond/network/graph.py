"""The autograd graph, walked backward: which operations lead to a result, what they are, and which separate it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import reduce

from torch import Tensor
from torch.autograd.graph import Node

from wellcond.errors import InvalidProblem

Place = tuple[Node, int]
"""A tensor's place in the graph: the operation that made it, and which of its outputs it is."""
MOVES = (
    "View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze", "T", "Transpose", "Permute", "Alias", "ToCopy",
    "Clone", "Expand", "Slice", "Select", "Split", "Unbind", "Detach", "AsStrided", "Cat", "Stack", "NanToNum",
)  # fmt: skip
"""Operations that move values and change none."""
VIEWS = ("View", "UnsafeView", "ReshapeAlias")
"""Those that keep the order of the numbers in memory."""
AFFINE = (
    *MOVES, "Addmm", "Mm", "Bmm", "Mv", "Dot", "Linear", "MkldnnLinear", "Convolution", "MkldnnConvolution",
    "CudnnConvolution", "ConvolutionOverrideable", "Baddbmm", "Addbmm", "Add", "Sub", "Rsub", "Neg", "Sum", "Mean",
    "AvgPool1D", "AvgPool2D", "AvgPool3D", "AdaptiveAvgPool2D", "AdaptiveAvgPool3D", "ConstantPadNd",
    "Embedding", "EmbeddingBag", "Upsample", "UpsampleNearest2D", "UpsampleBilinear2D", "NativeBatchNorm",
    "CudnnBatchNorm", "MiopenBatchNorm", "Index", "IndexSelect", "Gather", "Repeat", "Flip",
)  # fmt: skip
"""Operations that are linear in what they receive, as long as only one of their inputs depends on the data. A BatchNorm
is one by its running statistics."""


def inputs_of(node: Node) -> list[Node]:
    """The operations that a node passes its gradients on to."""
    return [above for above, _ in node.next_functions if above is not None]


def upstream(ends: Iterable[Node | None], stop: Node | None) -> set[Node]:
    """All operations that lead to the ends.

    Args:
        ends: Where the walk begins; they are part of the result.
        stop: Where it turns back; neither this operation nor what is reached only through it is part of the result.

    Returns:
        The operations without the leaves, which are parameters and inputs that any pass may share.

    Example:
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


def refuse_reentrant_checkpoints(operations: Iterable[Node]) -> None:
    """Refuse `torch.utils.checkpoint(..., use_reentrant=True)`, which only `.backward()` can see through."""
    if any(node.name() == "CheckpointFunctionBackward" for node in operations):
        raise InvalidProblem(
            "the model uses torch.utils.checkpoint with use_reentrant=True, which has no derivatives with respect to "
            "single tensors and no second derivatives. Write checkpoint(..., use_reentrant=False)."
        )


def plain(node: Node) -> str:
    """`Softmax` for SoftmaxBackward0."""
    return node.name().partition("Backward")[0]


def turned_views(ends: Iterable[Node | None]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Views and reshapes whose result has the dimensions of what they read in another order: (before, after).

    They keep the order of the numbers in memory, so that (N, T, C) as (N, C, T) has numbers of several steps in the
    place of one step's classes; a transposition was meant. Dimensions of size 1 may stand anywhere.

    Example:
        >>> import torch
        >>> x = torch.ones(4, 5, 3, requires_grad=True)
        >>> turned_views([x.view(4, 3, 5).grad_fn]), turned_views([x.transpose(1, 2).grad_fn])
        ([((4, 5, 3), (4, 3, 5))], [])
    """
    found = []
    for node in upstream(ends, None):
        if plain(node) not in VIEWS:
            continue
        after = tuple(map(int, node._input_metadata[0].shape))
        above: Node | None = node
        while above is not None and plain(above) in VIEWS:  # one view after another is one
            before = tuple(map(int, above._saved_self_sym_sizes))  # type: ignore[attr-defined]
            few, as_few = ([size for size in shape if size != 1] for shape in (before, after))
            if few != as_few and sorted(few) == sorted(as_few):
                found.append((before, after))
            above = next(iter(inputs_of(above)), None)
    return found


def tail_of(node: Node | None) -> tuple[tuple[str, ...], int | None]:
    """The last operations that change values, up to a product, and the dimension of the last one."""
    found: list[str] = []
    dim: int | None = None
    while node is not None and len(found) < 4:
        name = plain(node)
        if name not in MOVES:
            if name in AFFINE or name in ("AccumulateGrad", "Mul", "Div"):
                break
            found.append(name)
            if len(found) == 1 and hasattr(node, "_saved_dim"):
                dim = int(node._saved_dim)
                dim = dim - 2**64 if dim >= 2**63 else dim
        above = inputs_of(node)
        node = above[0] if above else None
    return tuple(found), dim


def is_affine(end: Node | None) -> bool:
    """Whether everything before the tail is affine in the data. What torch cannot tell is not."""
    tail, _ = tail_of(end)
    node = end
    while node is not None and (plain(node) in tail or plain(node) in MOVES):
        above = inputs_of(node)
        node = above[0] if above else None
    if node is None:
        return False
    for operation in upstream([node], None):
        name = plain(operation)
        sides = [above for above in inputs_of(operation) if plain(above) != "AccumulateGrad"]
        is_scaling = name in ("Mul", "Div") and len(sides) < 2 and not _is_masked(operation)
        is_product_of_data = name in ("Mm", "Bmm", "Baddbmm", "Addbmm", "Dot") and len(_of_data(operation)) > 1
        if (name not in AFFINE and not is_scaling) or is_product_of_data:
            return False
    return True


def _is_masked(product: Node) -> bool:
    """Whether a signal is multiplied by numbers of many dimensions: `x * (x > 0)` is a ReLU."""
    kept = [getattr(product, f"_saved_{side}", None) for side in ("self", "other")]
    return any(isinstance(t, Tensor) and t.dim() > 1 and t.numel() > 1 for t in kept)


def _of_data(product: Node) -> list[Node]:
    """Inputs of a product that are more than a weight that was moved."""
    found = []
    for node in inputs_of(product):
        behind: Node | None = node
        while behind is not None and plain(behind) in MOVES:
            above = inputs_of(behind)
            behind = above[0] if above else None
        if behind is not None and plain(behind) != "AccumulateGrad":
            found.append(node)
    return found


def norms_of_sums(end: Node | None) -> int:
    """How many LayerNorms lie on a residual stream: a sum of two signals that goes nowhere but into the norm.

    In a pre-norm network only the last one does, since the sum also goes on to the next one.
    """
    operations = upstream([end], None)
    users = Counter(above for node in operations for above in inputs_of(node))
    found = 0
    for node in operations:
        above = inputs_of(node)
        if plain(node) == "NativeLayerNorm" and above and plain(above[0]) == "Add" and users[above[0]] == 1:
            found += len([side for side in inputs_of(above[0]) if side.next_functions]) == 2
    return found


def strays_in(end: Tensor, known: Iterable[Tensor]) -> tuple[tuple[int, ...], ...]:
    """Shapes of trainable tensors in a graph that are none of these."""
    ids = {id(p) for p in known}
    leaves: dict[int, tuple[int, ...]] = {}
    for node in upstream([end.grad_fn], None):
        for above in inputs_of(node):
            variable = getattr(above, "variable", None)
            if isinstance(variable, Tensor) and id(variable) not in ids:
                leaves[id(variable)] = tuple(variable.shape)
    return tuple(leaves.values())


class Separators:
    """The operations that separate the graph of an end: whatever leads to one reaches the end through it alone.

    An operation v dominates w if every path from the end back to w leads through v. A separator dominates everything
    that leads to it, except leaves: they are parameters, which any operation may use. All separators are found in
    one walk.

    Args:
        end: The operation that made the result, usually the loss.

    Example:
        >>> import torch
        >>> w = torch.ones(2, requires_grad=True)
        >>> stem = w.exp()
        >>> branch = stem.sin()
        >>> end = (stem + branch).sum()                    # a skip connection passes the branch by
        >>> separators = Separators(end.grad_fn)
        >>> [(t.grad_fn, 0) in separators for t in (stem, branch)]
        [True, False]
    """

    def __init__(self, end: Node) -> None:
        operations = upstream([end], None)
        consumers: dict[Node, list[Node]] = defaultdict(list)
        self._used_outputs: dict[Node, set[int]] = defaultdict(set)
        for node in operations:
            for above, output in node.next_functions:
                if above in operations:
                    consumers[above].append(node)
                    self._used_outputs[above].add(output)

        # each operation comes after all that use its result
        order, unseen = [end], {node: len(users) for node, users in consumers.items()}
        for node in order:
            for above in inputs_of(node):
                if above in operations:
                    unseen[above] -= 1
                    if unseen[above] == 0:
                        order.append(above)

        # the dominator tree: a node's parent is the last operation that all paths to it have in common
        parent: dict[Node, Node] = {}
        depth = {end: 0}

        def common(first: Node, second: Node) -> Node:
            while first is not second:
                if depth[first] < depth[second]:
                    first, second = second, first
                first = parent[first]
            return first

        # An edge from `node` back to `above` passes by all operations that dominate `node` but not `above`: those on
        # the way up from `node` to the parent of `above`. Count +1 where that way begins and −1 where it ends, and add
        # up over subtrees.
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

        # numbered so that what a node dominates directly follows it
        self._number, free = {end: 0}, {end: 1}
        for node in order[1:]:
            self._number[node] = free[parent[node]]
            free[parent[node]] += self._size[node]
            free[node] = self._number[node] + 1

    def __contains__(self, place: Place) -> bool:
        """Whether the tensor at this place separates the graph: no other output of its operation is used."""
        node, output = place
        return self._used_outputs.get(node) == {output} and not self._passed_by[node]

    def leads(self, first: Node, second: Node) -> bool:
        """Whether the second operation, a separator, uses what the first one computes."""
        return 0 <= self._number[first] - self._number[second] < self._size[second]
