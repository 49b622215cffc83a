"""What a block is: a module, or a range of a Sequential, with one input z_{b−1} and one output z_b."""

from __future__ import annotations

import copy
import re
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_leaves, tree_map

from wellcond.errors import InvalidProblem, UnknownLayer

RANGE = re.compile(r"(?P<container>.*)\[(?P<start>-?\d+)?:(?P<stop>-?\d+)?\]")


@dataclass(frozen=True, eq=False)
class Block:
    """A part of a model that is called as one.

    module: the part itself; a range is a Sequential of its own that holds the same modules.
    prefix: what the names of its parameters begin with in the model.
    line: the modules called one after the other, of which the block is those from `start` to `stop`.
    """

    name: str
    module: nn.Module
    prefix: str
    line: tuple[nn.Module, ...]
    start: int = 0
    stop: int = 1

    @property
    def part(self) -> tuple[nn.Module, ...]:
        """The modules of the line that are the block's."""
        return self.line[self.start : self.stop]

    @property
    def kind(self) -> str:
        """The type of the module, or of those in the range."""
        return " → ".join(type(module).__name__ for module in self.part)

    def full_name(self, name: str) -> str:
        """The name in the model of a parameter or module of the block."""
        return ".".join(filter(None, (self.prefix, name)))


def find_block(model: nn.Module, name: str) -> Block:
    """The block of a name: a module's ("layer1.0"; "" is the whole model), or a range, as "features[3:7]" or "[0:2]".

    >>> find_block(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)), "[0:2]").kind
    'Linear → ReLU'
    """
    if not isinstance(name, str):
        raise ValueError(f'block is {name!r}; write the name of a module, as "{name}", or a range, as "[0:2]".')
    modules = dict(model.named_modules(remove_duplicate=False))
    if name in modules:
        return Block(name, modules[name], name, (modules[name],))
    found = RANGE.fullmatch(name)
    container_name = found["container"] if found else ""
    if found is None or container_name not in modules:
        raise UnknownLayer(name, [full for full in modules if full])
    container = modules[container_name]
    if type(container).forward is not nn.Sequential.forward:
        raise InvalidProblem(
            f"block {name!r}: {container_name!r} is a {type(container).__name__}, which does not call its parts one "
            "after the other as nn.Sequential does. Give the name of one module."
        )
    children = list(container._modules.items())
    start, stop = _bounds(name, found, len(children))
    part = nn.Sequential(OrderedDict((key, child) for key, child in children[start:stop] if child is not None))
    return Block(name, part, container_name, tuple(container), start, stop)


def _bounds(name: str, found: re.Match[str], size: int) -> tuple[int, int]:
    """Python's meaning of the two numbers, but what lies outside is an error and not cut off."""
    start, stop = (default if text is None else int(text) for text, default in ((found[2], 0), (found[3], size)))
    start, stop = (number + size if number < 0 else number for number in (start, stop))
    if not 0 <= start < stop <= size:
        raise InvalidProblem(
            f"block is {name!r}, but {found['container'] or 'the model'} has {size} modules: "
            f"write [start:stop] with 0 ≤ start < stop ≤ {size}."
        )
    return start, stop


def input_tensor(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """z_{b−1}: the first floating-point tensor among the arguments of a call."""
    return next(floating((args, kwargs)), None)


def output_tensor(output: Any) -> Tensor | None:
    """z_b: the first floating-point tensor of an output, or its `.logits`."""
    logits = getattr(output, "logits", None)
    return logits if isinstance(logits, Tensor) else next(floating(output), None)


def with_output(output: Any, tensor: Tensor, other: Tensor) -> Any:
    """The output with another tensor in the place of `output_tensor`."""
    if getattr(output, "logits", None) is tensor:
        changed = copy.copy(output)
        changed.logits = other
        return changed

    def exchanged(leaf: Any) -> Any:
        if isinstance(leaf, PackedSequence):
            return leaf._replace(data=exchanged(leaf.data))
        return other if leaf is tensor else leaf

    return tree_map(exchanged, output)


def floating(tree: Any) -> Iterator[Tensor]:
    """Floating-point tensors, one after the other; parameters are none of a call's arguments and outputs."""
    for leaf in tree_leaves(tree):
        if isinstance(leaf, Tensor) and leaf.is_floating_point() and not isinstance(leaf, nn.Parameter):
            yield leaf
        elif isinstance(leaf, PackedSequence):
            yield leaf.data
