"""One call of a block, seen in a pass over the whole network, and made again with its own graph."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.func import functional_call
from torch.utils._pytree import tree_map

from wellcond.errors import InvalidProblem, NotDeterministic
from wellcond.local.blocks import Block, input_tensor, output_tensor
from wellcond.problem import Evaluation, Problem
from wellcond.taps import bracketed


@dataclass(frozen=True, eq=False, repr=False)
class BlockCall:
    """z_b = F_b(W_b, z_{b−1}) on one batch, with the graph of this block alone.

    It stands on copies of everything, so what happens to the model afterwards does not touch it.

    z: z_{b−1}, a leaf; None where the block receives no floating-point tensor.
    values: the block's parameters and buffers, by their names in it. params: the trainable ones, by those in the model.
    output: z_b, with its graph. gradient: ∂J/∂z_b.
    is_used: whether the loss depends on z_b. is_last: whether z_b is what the loss is computed from.
    """

    block: Block
    z: Tensor | None
    values: dict[str, Tensor]
    params: dict[str, Tensor]
    output: Tensor
    gradient: Tensor
    is_used: bool
    is_last: bool
    evaluation: Evaluation


def record(problem: Problem, block: Block) -> BlockCall:
    """The block's call on the first batch; call it inside `measuring()`.

    One forward pass of the model, a backward pass as far as the block's output, and a forward pass of the block.
    """
    seen = _Seen(block, problem.device)
    with contextlib.closing(problem.data()) as data:
        index, batch = next(data)
        with bracketed(dict.fromkeys(block.line), seen.on_entry, seen.on_exit):
            evaluation = problem.evaluate(index, batch)
    entry, output, edge = seen.only_call()
    # the edge leads to the output as the block gave it, whatever was written over it in place behind the block
    (gradient,) = torch.autograd.grad(evaluation.loss, [edge], allow_unused=True)
    outputs = evaluation.outputs
    is_last = outputs is not None and outputs.requires_grad and get_gradient_edge(outputs)[:2] == edge[:2]

    values = {name: t.detach().clone() for name, t in block.module.named_buffers()}
    own = dict(block.module.named_parameters())
    values |= {name: p.detach().clone().requires_grad_(p.requires_grad) for name, p in own.items()}
    copies = {id(p): values[name] for name, p in own.items() if p.requires_grad}
    again = output_tensor(entry.repeat(block.module, values))
    if again is None or not _is_same(again, output):
        raise NotDeterministic(
            f"block {block.name!r}, called again with the same input and parameters, gave another output: it keeps a "
            "state between calls or draws random numbers from a generator of its own."
        )
    return BlockCall(
        block,
        z=input_tensor(entry.args, entry.kwargs),
        values=values,
        params={name: copies[id(p)] for name, p in problem.params.items() if id(p) in copies},
        output=again,
        gradient=torch.zeros_like(output) if gradient is None else gradient,
        is_used=gradient is not None,
        is_last=is_last,
        evaluation=replace(evaluation, outputs=None, loss=evaluation.loss.detach()),  # without the whole model's graph
    )


@dataclass(frozen=True, eq=False)
class _Entry:
    """What a call began with."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    restore_generators: Callable[[], None]

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device) -> _Entry:
        args, kwargs = _copied((args, kwargs), Tensor.detach)
        z = input_tensor(args, kwargs)
        if z is not None:
            z.requires_grad_()
        return cls(args, kwargs, _generators(device))

    def repeat(self, module: nn.Module, values: dict[str, Tensor]) -> Any:
        self.restore_generators()
        # once more copies: a block may write into its arguments, and a leaf must not be written to
        args, kwargs = _copied((self.args, self.kwargs), lambda t: t)
        return functional_call(module, values, args, kwargs)


@dataclass(eq=False)
class _Seen:
    """Follows the calls along a block's line. Modules that are called elsewhere too are told apart by their turn."""

    block: Block
    device: torch.device
    turn: int = 0
    entry: _Entry | None = None
    calls: list[tuple[_Entry, Tensor, Any]] = field(default_factory=list)

    def on_entry(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.turn == self.block.start and self.block.line[self.turn] is module:
            self.entry = _Entry.of(args, kwargs, self.device)

    def on_exit(self, module: nn.Module, output: Any) -> Any:
        if self.block.line[self.turn] is not module:
            return None
        is_end = self.turn + 1 == self.block.stop
        self.turn = (self.turn + 1) % len(self.block.line)
        if not is_end:
            return None
        tensor = output_tensor(output)
        if tensor is None:
            raise InvalidProblem(
                f"block {self.block.name!r} gives a {type(output).__name__} without a floating-point tensor, so it has "
                "no back-matching loss. Take a block that ends later."
            )
        if not tensor.requires_grad:  # nothing trainable so far: from here on, a graph of its own
            with torch.enable_grad():
                tracked = tensor.detach().requires_grad_().clone()
            output = tree_map(lambda leaf: tracked if leaf is tensor else leaf, output)
            tensor = tracked
        assert self.entry is not None
        self.calls.append((self.entry, tensor.detach().clone(), get_gradient_edge(tensor)))
        return output

    def only_call(self) -> tuple[_Entry, Tensor, Any]:
        name = self.block.name
        if not self.calls:
            raise InvalidProblem(
                f"block {name!r} was not called in the forward pass: it is unused, or what holds it computes with its "
                "weights or its parts without calling it. Take a block that contains it."
            )
        if len(self.calls) > 1:
            raise InvalidProblem(
                f"block {name!r} was called {len(self.calls)} times in the forward pass, and each call has a "
                "back-matching loss of its own. Take a block that contains all its calls."
            )
        return self.calls[0]


def _copied(tree: Any, prepare: Callable[[Tensor], Tensor]) -> Any:
    """The tree with copies of its tensors, but for parameters.

    What was the same tensor in several places is so again, as in `attention(x, x, x)`.
    """
    copies: dict[int, Tensor] = {}

    def copied(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or isinstance(leaf, nn.Parameter):
            return leaf
        if id(leaf) not in copies:
            copies[id(leaf)] = prepare(leaf).clone()
        return copies[id(leaf)]

    return tree_map(copied, tree)


def _generators(device: torch.device) -> Callable[[], None]:
    """Brings the random number generators back to where they are now, so that dropout draws the same masks."""
    of_python, of_numpy, of_cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    of_device = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def restore() -> None:
        random.setstate(of_python)
        np.random.set_state(of_numpy)
        torch.set_rng_state(of_cpu)
        if of_device is not None:
            torch.cuda.set_rng_state(of_device, device)

    return restore


def _is_same(again: Tensor, output: Tensor) -> bool:
    """To what kernels that add up in any order leave open."""
    tolerance = torch.finfo(output.dtype).eps ** 0.5 * float(output.norm())
    return again.shape == output.shape and float((again.detach() - output).norm()) <= tolerance
