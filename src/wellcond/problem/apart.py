"""A training step taken apart: the inputs that it calls the model with, and its loss as a function of the outputs.

Most steps are `loss(model(inputs), targets)` in other words. Then all that is known of outputs and targets is known of
the step too: whether they fit each other, whether the inputs predict the targets, which loss a constant has.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from wellcond.network.isolation.isolation import rng_kept, seed_generators
from wellcond.network.isolation.snapshot import Snapshot, kept
from wellcond.problem.batches import own_copies
from wellcond.problem.loss.outputs import own_loss
from wellcond.problem.problem import Problem
from wellcond.problem.training_step import NoTargets, Step, TrainingStep, as_inputs

MOST_APART: Final = 64
"""Batches that are taken apart."""
SEEDS: Final = (0, 1)
"""With either, the loss of the same outputs is the same: what a step draws goes into the inputs alone."""
DIRECTIONS: Final = 3
"""Directions in which a loss is asked whether it is convex."""
SAME: Final = 1e-5
"""Relative difference of two losses that are the same but for rounding."""


class _Called(Exception):
    """Ends a step where it calls the model."""


class InPlaceOfModel:
    """What a step is called with: it can be called, and put into training mode.

    Args:
        forward: What a call of it does.
        model: Has everything else; None if there is to be nothing else.
    """

    def __init__(self, forward: Callable[..., Any], model: nn.Module | None = None) -> None:
        self.forward = forward
        self.training = True
        self._model = model

    def __getattr__(self, name: str) -> Any:
        if self._model is None:
            raise AttributeError(f"a step taken apart asks for {name} of the model")
        return getattr(self._model, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)

    def train(self, mode: bool = True) -> InPlaceOfModel:
        return self


class StepLoss:
    """The loss of a step for given outputs of the model.

    Args:
        step: The training step, which has been run.
        batch: A batch, whose other tensors stand in where the loss is asked for other targets.
        targets: Places of the targets among its leaves.
        model: What a step takes from now and then: after some calls it may copy the weights to a target network.
    """

    def __init__(self, step: TrainingStep, batch: Any, targets: Sequence[int], model: nn.Module | None = None) -> None:
        self.function = step.function
        self._step = step
        self._model = model
        self._leaves, self._form = tree_flatten(batch)
        self._targets = tuple(targets)
        self.__name__ = step.__name__

    def __call__(self, outputs: Any, targets: Any) -> Any:
        """The loss. Examples may be fewer than in the batch: tensors that are no targets are cut to their number."""
        parts = targets if isinstance(targets, tuple) else (targets,)
        leaves = list(self._leaves)
        if any(len(part) != len(leaves[place]) for place, part in zip(self._targets, parts, strict=True)):
            leaves = [_first(leaf, len(parts[0])) for leaf in leaves]
        for place, target in zip(self._targets, parts, strict=True):
            leaves[place] = target
        calls = iter([outputs])
        with kept(Snapshot([self.function])):
            stand_in = InPlaceOfModel(lambda *_, **__: next(calls), self._model)
            return self._step.loss_in(self.function(stand_in, tree_unflatten(leaves, self._form)))

    def takes(self, inputs: Tensor) -> bool:
        """Whether inputs of the first batch are one of its tensors as it is, to which the step has done nothing."""
        return any(isinstance(leaf, Tensor) and torch.equal(leaf, inputs) for leaf in self._leaves)

    def targets_of(self, batch: Any) -> Any:
        """The targets in another batch: a tensor, or several in a tuple."""
        leaves = tree_flatten(batch)[0]
        targets = tuple(leaves[place] for place in self._targets)
        return targets if len(targets) > 1 else targets[0]


def taken_apart(problem: Problem) -> Problem:
    """The same problem as `loss(model(inputs), targets)`; the problem itself where it is none.

    It is one if the step calls the model once and takes nothing else from it; if its loss, for the outputs of this
    call, is the same whatever random numbers the step draws; and if that loss depends on tensors of the batch: these
    are the targets. Inputs are what the model is called with, with the noise that the step has added.
    """
    if not isinstance(problem.loss, TrainingStep):
        return problem
    function, before = problem.loss.function, problem.cost
    with contextlib.suppress(Exception), problem.measuring(), rng_kept(problem.device):
        with contextlib.closing(problem.data()) as data:
            batches = [batch for _, (batch, _) in islice(data, MOST_APART)]
        loss = _loss_of(problem, problem.loss, batches[0])
        if loss is None:
            return problem
        calls = [_call(problem, function, index, batch) for index, batch in enumerate(batches)]
        pairs = [(inputs, loss.targets_of(batch)) for (inputs, _), batch in zip(calls, batches, strict=True)]
        apart = Problem(problem.model, loss, pairs, problem.batchnorm, dropout=problem.dropout)
        apart.precision = replace(problem.precision, autocast=problem.precision.autocast or calls[0][1])
        apart.count_copies(problem.cost - before)
        return apart
    return problem


def with_drawn_targets(problem: Problem) -> Problem | None:
    """What a step calls the model with, next to what it asks of it, where the step draws that itself.

    It is −∂L/∂f at outputs f of zeros: the targets times a number for a squared error, and for other losses the
    direction in which they lie.

    Returns:
        None if what the step asks for is the same with other random numbers, if it calls the model more than once, or
        if its loss is not convex in the outputs, as that of an actor whose actions a critic judges.
    """
    if not isinstance(problem.loss, TrainingStep):
        return None
    function = problem.loss.function
    with contextlib.suppress(Exception), problem.measuring(), rng_kept(problem.device):
        with contextlib.closing(problem.data()) as data:
            batches = [batch for _, (batch, _) in islice(data, MOST_APART)]
        if not _is_convex(problem, function, batches[0]):
            return None
        pairs = [_asked(problem, function, batch, seed) for seed, batch in enumerate(batches)]
        is_drawn = not torch.equal(pairs[0][1], _asked(problem, function, batches[0], len(batches))[1])
        if is_drawn and all(bool(asked.isfinite().all()) for _, asked in pairs):
            return Problem(problem.model, nn.MSELoss(), pairs)
    return None


def _is_convex(problem: Problem, function: Step, batch: Any) -> bool:
    """Whether the gradient by every example's outputs grows along a few random directions."""
    at_zero = _asked(problem, function, batch, 0)[1]
    for direction in range(1, DIRECTIONS + 1):
        drawn = torch.randn(at_zero.shape, generator=torch.Generator().manual_seed(direction)).to(at_zero)
        there = _asked(problem, function, batch, 0, drawn)[1]
        growth = ((at_zero - there) * drawn).reshape(len(drawn), -1).sum(1)
        if bool((growth < -SAME * (at_zero * drawn).abs().reshape(len(drawn), -1).sum(1)).any()):
            return False
    return True


def _asked(
    problem: Problem, function: Step, batch: Any, seed: int, outputs: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The largest tensor that the model is called with, and −∂L/∂f at zero, or at other outputs."""
    calls: list[tuple[Tensor, Tensor]] = []

    def noted(*args: Any, **kwargs: Any) -> Tensor:
        with torch.no_grad():
            leaf = torch.zeros_like(problem.model(*args, **kwargs)) if outputs is None else outputs.clone()
        floating = [t for t in tree_flatten((args, kwargs))[0] if isinstance(t, Tensor) and t.is_floating_point()]
        calls.append((max(floating, key=Tensor.numel).detach().clone(), leaf.requires_grad_()))
        return leaf

    seed_generators(seed, problem.device)
    with kept(Snapshot([function], known=problem.model.modules())), torch.enable_grad():
        loss = own_loss(function(InPlaceOfModel(noted), own_copies(batch)))
    ((inputs, leaf),) = calls
    return inputs, -torch.autograd.grad(loss, [leaf])[0]


def _call(problem: Problem, function: Step, index: int, batch: Any) -> tuple[Any, torch.dtype | None]:
    """What the step calls the model with, and the dtype of an autocast that it has entered; None without one."""
    calls: list[tuple[Any, torch.dtype | None]] = []
    kind = problem.device.type

    def note(*args: Any, **kwargs: Any) -> Any:
        autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        calls.append((as_inputs(problem.model, args, kwargs), autocast))
        raise _Called

    seed_generators((problem.dropout or 0) + index, problem.device)
    with contextlib.suppress(_Called), kept(Snapshot([function])), torch.enable_grad():
        function(InPlaceOfModel(note), own_copies(batch))
    return calls[0]


def _loss_of(problem: Problem, step: TrainingStep, batch: Any) -> StepLoss | None:
    """The loss of the step; None if it is no function of the outputs of one call and of tensors of the batch.

    One of these has to be as long as the outputs or what the model is called with. Tensors of single examples, as the
    boxes in a list of dicts are, can neither be cut nor exchanged along the batch.
    """
    function = step.function
    whole = _value(problem.training_loss(0, (batch, NoTargets)))  # raises if the step trains the model itself
    returned: list[Any] = []
    lengths: set[int] = set()

    def noted(*args: Any, **kwargs: Any) -> Any:
        returned.append(problem.model(*args, **kwargs))
        lengths.update(
            len(t) for t in tree_flatten((args, kwargs, returned[-1]))[0] if isinstance(t, Tensor) and t.dim()
        )
        return returned[-1]

    seed_generators(problem.dropout or 0, problem.device)
    with kept(Snapshot([function], known=problem.model.modules())):
        value = _value(step.loss_in(function(InPlaceOfModel(noted), own_copies(batch))))
    if len(returned) != 1 or not _is_same(value, whole):
        return None
    leaves = tree_flatten(batch)[0]
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.dim()]

    def at(others: Sequence[Any], seed: int = 0) -> float:
        seed_generators(seed, problem.device)
        every = StepLoss(step, batch, places)
        try:
            return _value(every(returned[0], own_copies(tuple(others[place] for place in places))))
        except Exception:  # the user's loss may refuse other targets
            return math.nan

    if not all(_is_same(at(leaves, seed), whole) for seed in SEEDS):
        return None
    changed = {place: [*leaves[:place], _other(leaves[place]), *leaves[place + 1 :]] for place in places}
    targets = [place for place, others in changed.items() if not _is_same(at(others), whole)]
    of_examples = [place for place in targets if len(leaves[place]) in lengths]
    return StepLoss(step, batch, targets, problem.model) if of_examples else None


def _value(loss: Any) -> float:
    """A loss as a number; several terms are summed."""
    return sum(float(term.detach()) for term in (loss.values() if isinstance(loss, Mapping) else (loss,)))


def _is_same(value: float, other: float) -> bool:
    return abs(value - other) <= SAME * max(abs(value), abs(other), SAME)


def _other(tensor: Tensor) -> Tensor:
    """Other values of the same kind, also where all are the same: shares stay shares, and indices in their range."""
    if tensor.dtype == torch.bool:
        return ~tensor
    if tensor.is_floating_point():
        return 0.5 * tensor + 0.25
    low, high = int(tensor.min()), int(tensor.max())
    return high + low - tensor if high > low else tensor + (1 if low <= 0 else -1)


def _first(leaf: Any, count: int) -> Any:
    """The number of examples that is asked for; the first ones come again where there are too few."""
    if not isinstance(leaf, Tensor) or not leaf.dim():
        return leaf
    return leaf[torch.arange(count, device=leaf.device) % len(leaf)]
