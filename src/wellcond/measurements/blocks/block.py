"""What a block is: a module, or a range of a Sequential, with one input tensor z_{b−1} and one output tensor z_b."""

from __future__ import annotations

import copy
import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_map

from wellcond.errors import InvalidProblem, UnknownLayer
from wellcond.network.calling import tensors_in

RANGE = re.compile(r"(?P<container>.*)\[(?P<start>-?\d+)?:(?P<stop>-?\d+)?\]")


@dataclass(frozen=True, eq=False)
class Block:
    """A part of a model that is called as one.

    Attributes:
        name: Name as the caller wrote it.
        module: The part itself; a range becomes a Sequential of its own that holds the same modules.
        prefix: Prefix of its parameters' names in the model.
        line: Modules that are called one after the other; those from `start` to `stop` are the block.
    """

    name: str
    module: nn.Module
    prefix: str
    line: tuple[nn.Module, ...]
    start: int = 0
    stop: int = 1

    @property
    def parts(self) -> tuple[nn.Module, ...]:
        """The modules of the line that belong to the block."""
        return self.line[self.start : self.stop]

    @property
    def kind(self) -> str:
        """The type of the module, or of each module in the range."""
        return " → ".join(type(module).__name__ for module in self.parts)

    def full_name(self, name: str) -> str:
        """The name in the model of a parameter or module of the block."""
        return ".".join(filter(None, (self.prefix, name)))


def find_block(model: nn.Module, name: str) -> Block:
    """The block of a name: a module's ("layer1.0"; "" is the whole model), or a range, as "features[3:7]" or "[0:2]".

    Example:
        >>> find_block(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)), "[0:2]").kind
        'Linear → ReLU'
    """
    if not isinstance(name, str):
        raise ValueError(f'layer is {name!r}; write the name of a module, as "{name}", or a range, as "[0:2]".')
    modules = dict(model.named_modules(remove_duplicate=False))
    if name in modules:
        return Block(name, modules[name], name, (modules[name],))
    match = RANGE.fullmatch(name)
    container_name = match["container"] if match else ""
    if match is None or container_name not in modules:
        raise UnknownLayer(name, [full for full in modules if full])
    container = modules[container_name]
    if type(container).forward is not nn.Sequential.forward:
        raise InvalidProblem(
            f"block {name!r}: {container_name!r} is a {type(container).__name__}, which does not call its parts one "
            "after the other as nn.Sequential does. Pass the name of one module."
        )
    children = list(container._modules.items())
    start, stop = _bounds(name, match, len(children))
    part = nn.Sequential(OrderedDict((key, child) for key, child in children[start:stop] if child is not None))
    return Block(name, part, container_name, tuple(container), start, stop)


def _bounds(name: str, match: re.Match[str], size: int) -> tuple[int, int]:
    """Start and stop as Python reads them, except that numbers out of range are an error."""
    start, stop = (default if text is None else int(text) for text, default in ((match[2], 0), (match[3], size)))
    start, stop = (number + size if number < 0 else number for number in (start, stop))
    if not 0 <= start < stop <= size:
        raise InvalidProblem(
            f"the block is {name!r}, but {match['container'] or 'the model'} has {size} modules: "
            f"write [start:stop] with 0 ≤ start < stop ≤ {size}."
        )
    return start, stop


def floating(tree: Any) -> list[Tensor]:
    """The floating-point tensors among a call's arguments or outputs; parameters are neither."""
    return [t for t in tensors_in(tree) if t.is_floating_point() and not isinstance(t, nn.Parameter)]


def input_tensor(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """z_{b−1}: the first floating-point tensor among the arguments of a call."""
    return next(iter(floating((args, kwargs))), None)


def output_tensor(output: Any) -> Tensor | None:
    """z_b: the first floating-point tensor of an output, or its `.logits`."""
    logits = getattr(output, "logits", None)
    return logits if isinstance(logits, Tensor) else next(iter(floating(output)), None)


@dataclass(eq=False)
class OwnOutputs:
    """Gives block outputs memory of their own, so that their place in the graph survives in-place operations.

    A linear layer on tokens, (N, T, d), returns a view, and `ReLU(inplace=True)` after it makes autograd rewrite the
    view's history: no gradient arrives where the view was created any more. So an output that is a view, or that has no
    graph yet, is replaced by a copy, whose history stays.
    """

    _replaced: list[tuple[str, Tensor, int, Tensor]] = field(default_factory=list)

    def replace(self, name: str, output: Any) -> tuple[Any, Tensor | None]:
        """The output with which the network continues after the named block, and its tensor z_b, which has a graph."""
        tensor = output_tensor(output)
        if tensor is None or (tensor.requires_grad and not tensor._is_view()):
            return output, tensor
        with torch.enable_grad():  # where nothing so far is trainable, the graph begins here
            own = (tensor if tensor.requires_grad else tensor.detach().requires_grad_()).clone()
        self._replaced.append((name, tensor.detach(), tensor._version, own))
        return _exchanged(output, tensor, own), own

    def check(self, loss: Tensor, loss_without_copies: Callable[[], Tensor]) -> None:
        """Refuse a network in which another tensor shares a replaced output's memory and sees what is written to it.

        It repeats the pass without copies, but only if something was written in place.
        """
        written = [name for name, t, version, own in self._replaced if t._version != version or own._version]
        if not written:
            return
        with torch.no_grad():
            change = abs(float(loss_without_copies()) - float(loss.detach()))
        if change > torch.finfo(loss.dtype).eps ** 0.5 * abs(float(loss.detach())):
            raise InvalidProblem(
                f"the output of {written[0]!r} shares its memory with another tensor, and one of them is used after "
                "the other was written to in place, so the two cannot be separated. After it write inplace=False, or "
                "y = y + x for y += x; or measure a block that contains both."
            )


def _exchanged(output: Any, tensor: Tensor, own: Tensor) -> Any:
    """The output with `own` in place of its `output_tensor`."""
    if getattr(output, "logits", None) is tensor:
        changed = copy.copy(output)
        changed.logits = own
        return changed

    def exchanged(leaf: Any) -> Any:
        if isinstance(leaf, PackedSequence):
            return leaf._replace(data=exchanged(leaf.data))
        return own if leaf is tensor else leaf

    return tree_map(exchanged, output)
