"""One call of a block, recorded in a pass through the whole network and repeated with its own graph."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import functional_call
from torch.utils._pytree import tree_map

from wellcond.errors import InvalidProblem, NotDeterministic
from wellcond.measurements.blocks.block import Block, OwnOutputs, floating, input_tensor, output_tensor
from wellcond.network.graph import refuse_reentrant_checkpoints, upstream
from wellcond.network.taps import bracketed
from wellcond.problem.evaluation import Evaluation
from wellcond.problem.problem import Problem


@dataclass(frozen=True, eq=False, repr=False)
class BlockCall:
    """z_b = F_b(W_b, z_{b−1}) on one batch, with the graph of this block alone.

    It works on copies of everything, so later changes to the model do not affect it.

    Attributes:
        problem: Problem that the block is a part of.
        block: The block.
        z: z_{b−1}, a leaf; None if the block receives no floating-point tensor.
        values: Parameters and buffers of the block, by their names in the block.
        params: Trainable parameters, by their names in the model.
        output: z_b, with its graph.
        gradient: ∂J/∂z_b.
        is_used: Whether the loss depends on z_b.
        is_last: Whether the loss is computed from z_b.
        has_other_uses: Whether the loss also depends on another output of the block.
        evaluation: The batch's evaluation, without the whole model's graph.
        share: Cost of a pass of the block relative to a pass of the model over one batch, by operations.
    """

    problem: Problem
    block: Block
    z: Tensor | None
    values: dict[str, Tensor]
    params: dict[str, Tensor]
    output: Tensor
    gradient: Tensor
    is_used: bool
    is_last: bool
    has_other_uses: bool
    evaluation: Evaluation
    share: float

    @contextlib.contextmanager
    def measuring(self) -> Iterator[None]:
        """The measured state with the block's own values: a checkpoint inside reruns it in every backward pass."""
        with self.problem.measuring(), _holding(self.block.module, self.values):
            yield


def record(problem: Problem, block: Block) -> BlockCall:
    """The block's call on the first batch; call it inside `measuring()`.

    It takes a forward pass of the model, a backward pass as far as the block's output, and a forward pass of the block.
    """
    seen = _SeenCalls(block, problem.device)
    with contextlib.closing(problem.data()) as data:
        index, batch = next(data)
        with bracketed(dict.fromkeys(block.line), seen.on_entry, seen.on_exit):
            evaluation = problem.evaluate(index, batch)
        entry, end = seen.only_call()
        seen.outputs.check(evaluation.loss, lambda: problem.loss_of(index, batch))
    operations = upstream([evaluation.loss.grad_fn], None)
    refuse_reentrant_checkpoints(operations)
    # the edge leads to the output as the block returned it, even if it was overwritten in place later
    (gradient,) = problem.gradient(evaluation.loss, [end.edge], allow_unused=True)
    outputs = evaluation.outputs
    is_last = outputs is not None and outputs.requires_grad and get_gradient_edge(outputs)[:2] == end.edge[:2]

    values = {name: t.detach().clone() for name, t in block.module.named_buffers()}
    own = dict(block.module.named_parameters())
    values |= {name: p.detach().clone().requires_grad_(p.requires_grad) for name, p in own.items()}
    copies = {id(p): values[name] for name, p in own.items() if p.requires_grad}
    repeated = output_tensor(entry.repeat(block.module, values))
    if repeated is None or not is_same(repeated, end.output):
        between = ", or something else happens between its parts" if len(block.parts) > 1 else ""
        raise NotDeterministic(
            f"block {block.name!r}, called again with the same input and parameters, gave another output: it keeps "
            f"state between calls or draws random numbers from a generator of its own{between}."
        )
    own_operations = upstream([repeated.grad_fn], None)
    refuse_reentrant_checkpoints(own_operations)
    return BlockCall(
        problem,
        block,
        z=input_tensor(entry.args, entry.kwargs),
        values=values,
        params={name: copies[id(p)] for name, p in problem.params.items() if id(p) in copies},
        output=repeated,
        gradient=torch.zeros_like(end.output) if gradient is None else gradient,
        is_used=gradient is not None,
        is_last=is_last,
        has_other_uses=end.has_other_uses(evaluation.loss),
        evaluation=replace(evaluation, outputs=None, loss=evaluation.loss.detach()),
        share=len(own_operations) / len(operations),
    )


@dataclass(frozen=True, eq=False)
class _Entry:
    """Arguments and generator state at the start of a call."""

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
        # copies once more: a block may write into its arguments, and a leaf must not be written to
        args, kwargs = _copied((self.args, self.kwargs), lambda t: t)
        return functional_call(module, values, args, kwargs)


@dataclass(frozen=True, eq=False)
class _End:
    """The end of a call: a copy of z_b, and where the gradients of z_b and of its other outputs arrive."""

    output: Tensor
    edge: GradientEdge
    others: list[GradientEdge]

    def has_other_uses(self, loss: Tensor) -> bool:
        later = upstream([loss.grad_fn], self.edge.node)
        arrivals = {place for node in later for place in node.next_functions}
        return any(other[:2] in arrivals for other in self.others if other[:2] != self.edge[:2])


@dataclass(eq=False)
class _SeenCalls:
    """Follows the calls of the modules on a block's line."""

    block: Block
    device: torch.device
    outputs: OwnOutputs = field(default_factory=OwnOutputs)
    called: list[nn.Module] = field(default_factory=list)
    entries: dict[int, _Entry] = field(default_factory=dict)
    ends: dict[int, _End] = field(default_factory=dict)

    def on_entry(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if module is self.block.parts[0]:
            self.entries[len(self.called)] = _Entry.of(args, kwargs, self.device)

    def on_exit(self, module: nn.Module, output: Any) -> Any:
        self.called.append(module)
        if module is not self.block.parts[-1]:
            return None
        output, tensor = self.outputs.replace(self.block.name, output)
        if tensor is None:
            raise InvalidProblem(
                f"block {self.block.name!r} returns a {type(output).__name__} without a floating-point tensor, so it "
                "has no back-matching loss. Take a block that ends later."
            )
        others = [get_gradient_edge(t) for t in floating(output) if t.requires_grad]
        self.ends[len(self.called)] = _End(tensor.detach().clone(), get_gradient_edge(tensor), others)
        return output

    def only_call(self) -> tuple[_Entry, _End]:
        name, parts = self.block.name, self.block.parts
        if tuple(self.called) == self.block.line:  # a module that occurs several times is identified by its position
            return self.entries[self.block.start], self.ends[self.block.stop]
        times = [self.called.count(module) for module in parts]
        if min(times) == 0:
            raise InvalidProblem(
                f"block {name!r} was not called in the forward pass: it is unused, or the module that holds it uses "
                "its weights or its parts without calling it. Take a block that contains it."
            )
        if max(times) > 1:
            raise InvalidProblem(
                f"block {name!r} was called {max(times)} times in the forward pass, and each call has a "
                "back-matching loss of its own. Take a block that contains all its calls."
            )
        start = self.called.index(parts[0])
        stop = start + len(parts)
        if tuple(self.called[start:stop]) != parts:
            raise InvalidProblem(
                f"the parts of block {name!r} are not called one after the other in the forward pass. Take one of them."
            )
        return self.entries[start], self.ends[stop]


@contextlib.contextmanager
def _holding(module: nn.Module, values: dict[str, Tensor]) -> Iterator[None]:
    """The module with these values; tensors are exchanged, not overwritten, since a graph refers to them."""
    own = {id(p): values[name] for name, p in module.named_parameters() if name in values}
    own |= {id(b): values[name].clone() for name, b in module.named_buffers() if name in values}
    held: list[tuple[dict[str, Any], dict[str, Any]]]
    held = [(members, dict(members)) for part in module.modules() for members in (part._parameters, part._buffers)]
    try:
        for members, before in held:
            members.update({name: own.get(id(t), t) for name, t in before.items()})
        yield
    finally:
        for members, before in held:
            members.update(before)


def _copied(tree: Any, prepare: Callable[[Tensor], Tensor]) -> Any:
    """The tree with copies of its tensors, except parameters; the same tensor, as in `f(x, x)`, is copied once."""
    copies: dict[int, Tensor] = {}

    def copied(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or isinstance(leaf, nn.Parameter):
            return leaf
        if id(leaf) not in copies:
            copies[id(leaf)] = prepare(leaf).clone()
        return copies[id(leaf)]

    return tree_map(copied, tree)


def _generators(device: torch.device) -> Callable[[], None]:
    """A function that resets the random number generators to their current state, for the same dropout masks."""
    of_python, of_numpy, of_cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    of_device = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def restore() -> None:
        random.setstate(of_python)
        np.random.set_state(of_numpy)
        torch.set_rng_state(of_cpu)
        if of_device is not None:
            torch.cuda.set_rng_state(of_device, device)

    return restore


def is_same(first: Tensor, second: Tensor) -> bool:
    """Whether two results agree up to the rounding of kernels that sum in any order."""
    tolerance = torch.finfo(second.dtype).eps ** 0.5 * float(second.double().norm())
    return first.shape == second.shape and float((first.detach() - second).double().norm()) <= tolerance
