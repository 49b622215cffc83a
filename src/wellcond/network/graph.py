"""The autograd graph, read backward: which operations lead to a result, their kinds, and which separate the graph."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from functools import reduce

from torch import Tensor, nn
from torch.autograd.graph import Node

from wellcond.errors import InvalidProblem

Place = tuple[Node, int]
"""A tensor's place in the graph: the operation that computed it, and the index among its outputs."""
MOVES = (
    "View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze", "T", "Transpose", "Permute", "Alias", "ToCopy",
    "Clone", "Expand", "Slice", "Select", "Split", "Unbind", "Detach", "AsStrided", "Cat", "Stack", "NanToNum",
)  # fmt: skip
"""Operations that move values and change none."""
VIEWS = ("View", "UnsafeView", "ReshapeAlias")
"""Operations that keep the order of the numbers in memory."""
AFFINE = (
    *MOVES, "Addmm", "Mm", "Bmm", "Mv", "Dot", "Linear", "MkldnnLinear", "Convolution", "MkldnnConvolution",
    "CudnnConvolution", "ConvolutionOverrideable", "Baddbmm", "Addbmm", "Add", "Sub", "Rsub", "Neg", "Sum", "Mean",
    "AvgPool1D", "AvgPool2D", "AvgPool3D", "AdaptiveAvgPool2D", "AdaptiveAvgPool3D", "ConstantPadNd",
    "Embedding", "EmbeddingBag", "Upsample", "UpsampleNearest2D", "UpsampleBilinear2D", "NativeBatchNorm",
    "CudnnBatchNorm", "MiopenBatchNorm", "Index", "IndexSelect", "Gather", "Repeat", "Flip",
)  # fmt: skip
"""Operations that are linear in their input, as long as only one of their inputs depends on the data. A BatchNorm
is one by its running statistics."""


def inputs_of(node: Node) -> list[Node]:
    """The operations that a node passes its gradients on to."""
    return [above for above, _ in node.next_functions if above is not None]


def upstream(ends: Iterable[Node | None], stop: Node | None) -> set[Node]:
    """All operations that lead to the ends.

    Args:
        ends: Operations to start from; they are part of the result.
        stop: Operation to stop at; neither it nor what is reached only through it is part of the result.

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
    operations: set[Node] = set()
    waiting = [node for node in ends if node is not None]
    while waiting:
        node = waiting.pop()
        if node is not stop and node not in operations and node.next_functions:
            operations.add(node)
            waiting += inputs_of(node)
    return operations


def nearest_before(nodes: Mapping[str, Collection[Node]]) -> dict[str, tuple[str, ...]]:
    """For every name, those whose operations are the first on the way back from its own.

    Args:
        nodes: Operations that computed the outputs of a layer, by its name.

    Example:
        >>> import torch
        >>> stem = torch.ones(2, requires_grad=True).exp()
        >>> branch = stem.sin()
        >>> end = (stem + branch).log()                    # a skip connection bypasses the branch
        >>> nearest_before({"stem": [stem.grad_fn], "branch": [branch.grad_fn], "end": [end.grad_fn]})
        {'stem': (), 'branch': ('stem',), 'end': ('stem', 'branch')}
    """
    name_of = {node: name for name, of_name in nodes.items() for node in of_name}
    before: dict[str, tuple[str, ...]] = {}
    for name, of_name in nodes.items():
        seen, met = set(of_name), set[str]()
        waiting = [above for node in of_name for above in inputs_of(node)]
        while waiting:
            node = waiting.pop()
            if node in name_of:
                met.add(name_of[node])
            elif node not in seen:
                seen.add(node)
                waiting += inputs_of(node)
        before[name] = tuple(other for other in nodes if other in met - {name})
    return before


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
    """Views and reshapes whose result has the dimensions of their input in another order: (before, after).

    They keep the order of the numbers in memory, so that (N, T, C) viewed as (N, C, T) mixes numbers of several steps
    into the classes of one; a transposition was meant. Dimensions of size 1 do not count.

    Example:
        >>> import torch
        >>> x = torch.ones(4, 5, 3, requires_grad=True)
        >>> turned_views([x.view(4, 3, 5).grad_fn]), turned_views([x.transpose(1, 2).grad_fn])
        ([((4, 5, 3), (4, 3, 5))], [])
    """
    turned = []
    for node in upstream(ends, None):
        if plain(node) not in VIEWS:
            continue
        after = tuple(map(int, node._input_metadata[0].shape))
        above: Node | None = node
        while above is not None and plain(above) in VIEWS:  # one view after another is one
            before = tuple(map(int, above._saved_self_sym_sizes))  # type: ignore[attr-defined]
            sizes, new_sizes = ([size for size in shape if size != 1] for shape in (before, after))
            if sizes != new_sizes and sorted(sizes) == sorted(new_sizes):
                turned.append((before, after))
            above = next(iter(inputs_of(above)), None)
    return turned


def normalizes_twice(ends: Iterable[Node | None]) -> bool:
    """Whether the logarithm of a softmax is taken of numbers that a softmax has made already.

    `Categorical(logits=…)` subtracts a log-sum-exp, as `log_softmax` does.

    Example:
        >>> import torch
        >>> x = torch.ones(2, 3, requires_grad=True)
        >>> normalizes_twice([x.softmax(1).log_softmax(1).grad_fn]), normalizes_twice([x.log_softmax(1).grad_fn])
        (True, False)
    """
    outer = [node for node in upstream(ends, None) if plain(node) in ("LogSoftmax", "Logsumexp")]
    return any(tail_of(above)[0][:1] == ("Softmax",) for node in outer for above in inputs_of(node))


def tail_of(node: Node | None) -> tuple[tuple[str, ...], int | None]:
    """The last operations that change values, up to a product, and the dimension of the last one."""
    names: list[str] = []
    dim: int | None = None
    while node is not None and len(names) < 4:
        name = plain(node)
        if name not in MOVES:
            if name in AFFINE or name in ("AccumulateGrad", "Mul", "Div"):
                break
            names.append(name)
            if len(names) == 1 and hasattr(node, "_saved_dim"):
                dim = int(node._saved_dim)
                dim = dim - 2**64 if dim >= 2**63 else dim
        above = inputs_of(node)
        node = above[0] if above else None
    return tuple(names), dim


NEVER_NEGATIVE = ("Relu", "Softplus", "Exp", "Sigmoid", "HardSigmoid", "Softmax")
"""Operations whose results are never below zero."""
SUMS = (*MOVES, "Index", "IndexSelect", "Gather", "Sum", "Mean")
"""Operations whose results are never below zero if none of what they take is."""


def never_negative(end: Node | None) -> bool:
    """Whether a result is never below zero because it is a sum of products of numbers that are not.

    Example:
        >>> import torch
        >>> z = torch.ones(3, 2, requires_grad=True).relu()
        >>> never_negative((z @ z.T).grad_fn), never_negative((z @ z.T - 1).grad_fn)
        (True, False)
    """
    waiting, seen = [end], set[Node | None]()
    while waiting:
        node = waiting.pop()
        name = "" if node is None else plain(node)
        if node in seen or name in NEVER_NEGATIVE:
            continue
        seen.add(node)
        if node is None or not node.next_functions or name not in (*SUMS, "Mul", "Mm", "Bmm"):
            return False
        above = [each for each, _ in node.next_functions]
        # without a gradient, a factor or an index is unknown
        waiting += above[:1] if name in ("Index", "IndexSelect", "Gather") else above
    return True


def reaches_end_by_itself(leaves: Collection[Tensor], end: Node | None) -> bool:
    """Whether what is computed of the leaves meets other tensors that have a gradient in the last sums alone.

    A layer that takes the leaves multiplies them by its weights, and a bias is added before a loss is computed; terms
    of a loss are added after that.

    Example:
        >>> import torch
        >>> z, w = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
        >>> reaches_end_by_itself([z], (z.exp().sum() + w.exp().sum()).grad_fn)
        True
        >>> reaches_end_by_itself([z], (z * w).sum().grad_fn), reaches_end_by_itself([z], (z + w).exp().sum().grad_fn)
        (False, False)
    """
    users: dict[Node, list[Node]] = defaultdict(list)
    for node in upstream([end], None):
        for above in inputs_of(node):
            users[above].append(node)

    def after(nodes: Iterable[Node]) -> set[Node]:
        waiting = list(nodes)
        reached = set(waiting)
        while waiting:
            new = set(users[waiting.pop()]) - reached
            reached |= new
            waiting += new
        return reached

    of_leaves = after([node for node in users if any(getattr(node, "variable", None) is leaf for leaf in leaves)])
    merging = [node for node in of_leaves if any(above not in of_leaves for above in inputs_of(node))]
    are_sums = all(plain(node) in ("Add", "Sub", "Rsub", "Cat", "Stack") for node in merging)
    return are_sums and all(plain(node) in (*AFFINE, "Mul", "Div") for node in after(merging))


def is_affine(end: Node | None) -> bool:
    """Whether everything before the tail is affine in the data; False for operations that are not known."""
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
        is_product_of_data = name in ("Mm", "Bmm", "Baddbmm", "Addbmm", "Dot") and len(of_data(operation)) > 1
        if (name not in AFFINE and not is_scaling) or is_product_of_data:
            return False
    return True


def _is_masked(product: Node) -> bool:
    """Whether a signal is multiplied by numbers of many dimensions: `x * (x > 0)` is a ReLU."""
    factors = [getattr(product, f"_saved_{side}", None) for side in ("self", "other")]
    return any(isinstance(t, Tensor) and t.dim() > 1 and t.numel() > 1 for t in factors)


def of_data(product: Node) -> list[Node]:
    """Inputs of a product that depend on data, other than a weight that is only reshaped or moved."""
    data = []
    for node in inputs_of(product):
        source: Node | None = node
        while source is not None and plain(source) in MOVES:
            above = inputs_of(source)
            source = above[0] if above else None
        if source is not None and not isinstance(getattr(source, "variable", None), nn.Parameter):
            data.append(node)
    return data


def norms_of_sums(end: Node | None) -> int:
    """Number of LayerNorms on a residual stream: after a sum of two signals that goes nowhere but into the norm.

    In a pre-norm network only the last one is, since the sum also goes on to the next block.
    """
    operations = upstream([end], None)
    users = Counter(above for node in operations for above in inputs_of(node))
    count = 0
    for node in operations:
        above = inputs_of(node)
        if plain(node) == "NativeLayerNorm" and above and plain(above[0]) == "Add" and users[above[0]] == 1:
            count += len([side for side in inputs_of(above[0]) if side.next_functions]) == 2
    return count


def leaves_of(ends: Iterable[Node | None]) -> list[Tensor]:
    """The tensors that a backward pass from the ends gives gradients to, each once."""
    leaves = {above: None for node in upstream(ends, None) for above in inputs_of(node) if not above.next_functions}
    return [leaf.variable for leaf in leaves if hasattr(leaf, "variable")]


class Separators:
    """The operations that separate the graph of an end: everything that leads to one reaches the end only through it.

    An operation v dominates w if every path from the end back to w leads through v. A separator dominates everything
    that leads to it, except leaves: they are parameters, which any operation may use. One walk finds all separators.

    Args:
        end: The operation that computed the result, usually the loss.

    Example:
        >>> import torch
        >>> w = torch.ones(2, requires_grad=True)
        >>> stem = w.exp()
        >>> branch = stem.sin()
        >>> end = (stem + branch).sum()                    # a skip connection bypasses the branch
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
