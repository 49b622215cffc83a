"""How much each step of a sequence moves the outputs, by gradients, which leave masks and lengths as they are."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wellcond.diagnosis.probes.steps import (
    SPARE,
    Layout,
    Sequence,
    compared,
    has_steps_first,
    padded,
    sequences,
)
from wellcond.diagnosis.probes.subject import Subject, relative_change
from wellcond.network.calling import tensors_in
from wellcond.network.taps import WatchedFunctions, bracketed
from wellcond.problem.problem import Problem

LOOKUPS: dict[Any, str] = {F.embedding: "embedding", torch.embedding: "embedding", Tensor.__getitem__: "index"}
"""Functions by which tokens become numbers."""
FIRST_MODULES = 16
"""Modules among which the first that mixes steps is looked for: embedding, dropout, norm and projections are before."""

ADDED = 2
"""Steps that a model may add to a sequence: a class token, a beginning and an end."""


@dataclass(frozen=True)
class Watched:
    """A pass with a graph, in which every step of a sequence can be differentiated with respect to.

    Attributes:
        problem: What is probed.
        sequence: Sequence of the inputs.
        outputs: Outputs, with a graph.
        read: First step of each piece of the sequence as numbers, and the piece: (N, steps, …), or with the steps in
            front, or (N, d) of one step. Below zero if the model puts steps of its own before the sequence.
        calls: First inputs of the layers, by name, call after call.
        grids: Outputs of modules that count steps, with the name of the module, in the order of the pass.
        pools: Names of modules that take steps and return none, in the order of the pass.
    """

    problem: Problem
    sequence: Sequence
    outputs: Tensor
    read: list[tuple[int, Tensor]]
    calls: dict[str, list[Any]] = field(default_factory=dict)
    grids: list[tuple[str, Tensor]] = field(default_factory=list)
    pools: list[str] = field(default_factory=list)

    def influence(self, of: Tensor) -> Tensor:
        """(N, T), the norm of the gradient at each step of a random combination of some numbers."""
        weights = torch.randn(of.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(of)
        pieces = [piece for _, piece in self.read]
        gradients = torch.autograd.grad((weights * of).sum(), pieces, retain_graph=True, allow_unused=True)
        norms = torch.zeros(self.sequence.grid.shape[:2], dtype=torch.float64, device=of.device)
        for (first, piece), gradient in zip(self.read, gradients, strict=True):
            if gradient is None:
                continue
            whole = gradient.unsqueeze(1) if self.sequence.is_tokens and piece.dim() == 2 else gradient
            if self.sequence.is_tokens and piece.dim() > 2 and self.sequence.layout.steps_first:
                whole = whole.transpose(0, 1)
            own = _by_step(whole.double())[:, max(0, -first) :][:, : norms.shape[1] - max(0, first)]
            norms[:, max(0, first) : max(0, first) + own.shape[1]] += own
        return norms


def _by_step(gradient: Tensor) -> Tensor:
    return gradient.flatten(2).norm(dim=2) if gradient.dim() > 2 else gradient.abs()


def main_sequence(subject: Subject) -> Sequence | None:
    """The first tensor of the inputs that counts steps: tokens, or vectors of numbers, in any order of dimensions."""
    model = subject.problem.model
    every = [] if subject.outputs is None else sequences(subject)
    convolution = next((m for m in model.modules() if isinstance(m, nn.Conv1d)), None)
    steps_first = has_steps_first(model)
    for each in sorted(every, key=lambda one: one.layout.steps_first != steps_first):
        is_series = each.grid.dim() == (2 if each.is_tokens else 3)
        is_convolved = convolution is not None and each.shape[1:2] == (convolution.in_channels,)
        wants_steps_last = is_convolved and not each.is_tokens  # of tokens, it is their embedding that is convolved
        if is_series and each.has_steps_last == wants_steps_last and _fits(each.layout, subject.outputs, steps_first):
            return each
    return None


def _fits(layout: Layout, outputs: Tensor | None, steps_first: bool) -> bool:
    """Whether outputs count the examples of a layout, or its steps too; the steps in front only if that is known."""
    if outputs is None or not outputs.dim():
        return False
    if len(outputs) == layout.examples and (not layout.steps_first or layout.examples != layout.steps):
        return True
    is_known = steps_first or not layout.steps_first
    return is_known and any(True for _ in layout.grids(outputs, SPARE))


def watched(subject: Subject) -> Watched | None:
    """Pass the batch once more, with a graph."""
    sequence = subject.once(main_sequence)
    if sequence is None:
        return None
    read: list[tuple[int, Tensor]] = []
    tables: set[int] = set()
    calls: dict[str, list[Any]] = defaultdict(list)
    grids: list[tuple[str, Tensor]] = []
    pools: list[str] = []
    taking: list[bool] = []
    names = {module: name for name, module in subject.problem.model.named_modules() if name}

    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        taken = tensors_in((args, kwargs))
        calls[names[module]].append(next(iter(taken), None))
        taking.append(any(t.requires_grad and any(True for _ in sequence.layout.grids(t)) for t in taken))

    def leave(module: nn.Module, output: Any) -> None:
        tensor = next(iter(tensors_in(output)), None)
        grid = _grid_in(tensor, sequence.layout)
        takes_steps = taking.pop()
        if grid is not None:
            grids.append((names[module], grid))
        elif takes_steps and tensor is not None and tensor.requires_grad:
            pools.append(names[module])

    def look_up(_kind: str, args: tuple[Any, ...], _kwargs: dict[str, Any], output: Any) -> None:
        index = next((a for a in args if isinstance(a, Tensor) and not a.is_floating_point()), None)
        first = None if index is None or index.dtype == torch.bool else _first_step(sequence, index, len(read))
        if first is not None and isinstance(output, Tensor) and output.is_floating_point():
            read.append((first, output if output.requires_grad else output.requires_grad_()))
            if index is not None and index.dim() == 1:
                tables.update(id(a) for a in args if isinstance(a, Tensor) and a.is_floating_point())

    with torch.enable_grad(), bracketed(names, enter, leave):
        if sequence.is_tokens:
            with WatchedFunctions(LOOKUPS, look_up):
                raw = subject.problem.forward(0, sequence.inputs)
        else:
            leaf = sequence.grid.detach().clone().requires_grad_()
            read.append((0, leaf))
            raw = subject.problem.forward(0, sequence.with_grid(leaf))
    outputs = subject.outputs_in(raw)
    # columns of a table, each with an embedding of its own, are no steps
    if outputs is None or not outputs.requires_grad or not read or len(tables) > 1:
        return None
    seen = Watched(subject.problem, sequence, outputs, read, dict(calls), pools=pools)
    longer = [grid for each in calls.values() if (grid := _grid_in(each[0], sequence.layout)) is not None]
    front = next((_added_in_front(seen, grid) for grid in longer if grid.shape[1] > sequence.layout.steps), 0)
    steps = sequence.layout.steps
    own = [(name, grid[:, front : front + steps] if grid.shape[1] > steps else grid) for name, grid in grids]
    return replace(seen, grids=own)


def _grid_in(tensor: Any, layout: Layout) -> Tensor | None:
    """A tensor as a grid, which may have a few steps more than the sequence: a class token, a beginning."""
    if not isinstance(tensor, Tensor) or not tensor.requires_grad:
        return None
    layouts = (replace(layout, steps=layout.steps + more) for more in range(ADDED + 1))
    return next((grid for each in layouts for grid in each.grids(tensor)), None)


def _added_in_front(seen: Watched, longer: Tensor) -> int:
    """Steps that were put before a sequence: what is in the middle of the longer one depends on an earlier step."""
    middle = longer.shape[1] // 2
    steps = (seen.influence(longer[:, middle]) > 0).any(0).nonzero()[:, 0]
    return max(0, middle - int(steps[0])) if len(steps) == 1 else 0


def _first_step(sequence: Sequence, index: Tensor, call: int) -> int | None:
    """The step at which looked-up tokens begin: all of the sequence, without its end, or one step after another.

    A few tokens of the model's own may come before or after all of the sequence.
    """
    tokens = sequence.grid
    if index.dim() == 2:
        grid = index.transpose(0, 1) if sequence.layout.steps_first else index
        if len(grid) != len(tokens):
            return None
        added = grid.shape[1] - tokens.shape[1]
        if added <= 0:
            return 0 if torch.equal(grid, tokens[:, : grid.shape[1]]) else None
        fronts = range(added + 1 if added <= ADDED else 0)
        return next((-n for n in fronts if torch.equal(grid[:, n : n + tokens.shape[1]], tokens)), None)
    fits = index.dim() == 1 and call < tokens.shape[1] and len(index) == len(tokens)
    return call if fits and torch.equal(index, tokens[:, call]) else None


@dataclass(frozen=True)
class Reading:
    """What is read from a sequence: the outputs of its last real step, or all outputs if they are of no single step.

    Attributes:
        watched: The pass with a graph.
        is_by_step: Whether there is an output for each step.
        pads: (N, T), padded places.
        last: (N,), the last real step that has an output.
        influence: (N, T), gradient norms of what is read.
    """

    watched: Watched
    is_by_step: bool
    pads: Tensor
    last: Tensor
    influence: Tensor


def read_out(subject: Subject) -> Reading | None:
    """Differentiate what is read from a sequence with respect to each of its steps: a backward pass."""
    seen = subject.once(watched)
    if seen is None:
        return None
    grid = seen.sequence.grid
    pads = padded(grid)
    if pads is None:
        pads = torch.zeros(grid.shape[:2], dtype=torch.bool, device=grid.device)
    pair = subject.once(compared, seen.sequence.layout)
    last = (~pads).long().cumsum(1).argmax(1)
    read = seen.outputs
    if pair is not None:
        by_step = pair.grid(seen.outputs)
        last = last.clamp_max(by_step.shape[1] - 1)
        read = by_step[torch.arange(len(last)), last]
    seen.problem.count_backward()
    return Reading(seen, pair is not None, pads, last, seen.influence(read))


def repeats(subject: Subject) -> bool:
    """Whether a second pass gives the same outputs; a network that keeps a state between batches does not."""
    seen = subject.once(watched)
    again = subject.outputs_for(subject.inputs) if seen is None else seen.outputs.detach()
    if again is None or subject.outputs is None or again.shape != subject.outputs.shape:
        return False
    return relative_change(subject.outputs, again) <= subject.tolerance
