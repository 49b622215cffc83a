"""Whether the inputs hold the answer: a network that is asked for hidden places of its inputs, and can see them.

Masked modeling, inpainting and imputation count only some places of a reconstruction, others in each example. There
the inputs must not be what is asked for, or the network learns to copy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from wellcond.diagnosis.probes.exchanged import MOST_VALUES, ExchangedOutputs
from wellcond.diagnosis.probes.subject import Subject, relative_change
from wellcond.problem.loss.outputs import named_tensors, with_tensors
from wellcond.problem.step_outputs import StepOutputs
from wellcond.problem.training_step import TrainingStep

COUNTED = (0.02, 0.9)
"""Share of the places that a loss counts, if some are hidden."""
PERFECT = 1e-4
"""Gradient of the loss at a copy of the inputs over that at those of other examples, if copying is right."""
ALWAYS = 0.95
"""Share of counted places at which copying is right. BERT leaves a tenth of what it asks for as it is."""
OF_PADDING = 0.05
"""Variance of the inputs at places that do not count, over that at all places, below which they are padding."""
COPIED = 30.0
"""Logit of the token that is copied."""
DEPENDS = 1e-3
"""Relative change of outputs from which on they depend on inputs: rounding is below 1e-4."""
FEWEST = 32
"""Fewest places that are compared."""


@dataclass(frozen=True)
class Answers:
    """Inputs that are what the loss asks for, at the places that it counts.

    Attributes:
        counted: Share of all places that the loss counts.
        share: Share of these at which the input is the answer.
        change: ‖f − f'‖/‖f‖ of the outputs there, if the inputs there are those of other examples; 0 if all of them are
            one number.
        constant: This number, or token; None if they vary.
    """

    counted: float
    share: float
    change: float
    constant: float | None = None


@dataclass(frozen=True)
class _Called:
    """A call of the model: its inputs, outputs, the gradient of the loss at any outputs, and those for other inputs."""

    inputs: Any
    outputs: Tensor
    gradient: Callable[[Tensor], Tensor | None]
    outputs_for: Callable[[Any], Tensor | None]


@dataclass(frozen=True)
class _Copy:
    """Outputs that copy a tensor of the inputs.

    Attributes:
        tensor: The tensor.
        view: What of it is copied, in the shape of the places.
        outputs: The outputs: these numbers, or logits that are sure of them.
        classes: Dimension of the classes, if each place has several outputs.
    """

    tensor: Tensor
    view: Callable[[Tensor], Tensor]
    outputs: Tensor
    classes: int | None

    def with_others(self, places: Tensor) -> Tensor:
        """The tensor with the values of other examples at some places."""
        changed = self.tensor.detach().clone(memory_format=torch.contiguous_format)
        part = self.view(changed)
        part.copy_(torch.where(places, part.roll(1, 0), part))
        return changed


def answers(subject: Subject) -> Answers | None:
    """Put the inputs in place of the outputs, and see whether the loss asks for anything else where it counts.

    It takes a forward pass with a step, and another one if copying is right.

    Returns:
        None unless the loss counts some places only, others in each example and the same for any outputs, whose answers
        are the inputs there; and those that it does not count are no padding.
    """
    call = _call_of(subject)
    if call is None or call.outputs.dim() < 2 or len(call.outputs) < 2:
        return None
    at_outputs = call.gradient(call.outputs)
    if at_outputs is None or not bool(at_outputs.isfinite().all()):
        return None
    for copy in _copies(call):
        at_copy = call.gradient(copy.outputs)
        if at_copy is None:
            continue
        pull, rest = (g.abs() if copy.classes is None else g.abs().sum(copy.classes) for g in (at_outputs, at_copy))
        share = _share(pull, rest, copy.view(copy.tensor))
        places = pull > 0
        # a loss may hide other places every time, and not those of this call, or count the largest errors only
        if share is None or not _count_always(call, copy, places):
            continue
        counted, there = float(places.double().mean()), copy.view(copy.tensor)[places]
        if bool((there == there[0]).all()):
            return Answers(counted, share, 0.0, float(there[0]))
        after = call.outputs_for(with_tensors(call.inputs, {id(copy.tensor): copy.with_others(places)}))
        if after is None or after.shape != call.outputs.shape:
            continue
        where = places if copy.classes is None else places.unsqueeze(copy.classes).expand_as(after)
        return Answers(counted, share, relative_change(call.outputs[where], after[where]))
    return None


def _count_always(call: _Called, copy: _Copy, places: Tensor) -> bool:
    """Whether the same places count for outputs between those of other examples and these examples' inputs."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand(copy.outputs.shape, generator=generator).to(call.outputs)
    gradient = call.gradient(torch.lerp(call.outputs.roll(1, 0), copy.outputs.to(call.outputs).roll(1, 0), weights))
    if gradient is None:
        return False
    return torch.equal(places, (gradient if copy.classes is None else gradient.abs().sum(copy.classes)) != 0)


def _share(pull: Tensor, rest: Tensor, values: Tensor) -> float | None:
    """The share of counted places that are right; None if these are not hidden places of a reconstruction.

    Args:
        pull: |∂L/∂f| at each place, at the model's own outputs.
        rest: The same at outputs that are the inputs.
        values: The inputs.
    """
    places = pull > 0
    count = float(places.double().mean())
    if not COUNTED[0] <= count <= COUNTED[1] or int(places.sum()) < FEWEST:
        return None
    by_example = places.flatten(1)
    if bool((by_example == by_example[:, :1]).all()):
        return None  # whole examples count or do not, as those that are right already
    if bool((places == places[:1]).all()) or _is_fixed(values.double(), ~places):
        return None
    share = float((rest[places] <= PERFECT * pull[places].median()).double().mean())
    return share if share >= ALWAYS else None


def _is_fixed(values: Tensor, places: Tensor) -> bool:
    """Whether the values at some places hardly differ between examples, as those of padding."""
    number = places.double().sum(0).clamp(min=1)
    mean = (values * places).sum(0) / number
    spread = ((values - mean).square() * places).sum() / places.sum().clamp(min=1)
    return bool(spread <= OF_PADDING * values.var(0, correction=0).mean())


def _call_of(subject: Subject) -> _Called | None:
    problem = subject.problem
    if isinstance(problem.loss, TrainingStep):
        with contextlib.suppress(Exception):  # a step may take more from the model than one call
            step = StepOutputs.of(problem, subject.inputs)
            return _Called(
                (step.args, step.kwargs), step.outputs, step.gradient, lambda inputs: step.outputs_for(*inputs)
            )
        return None
    outputs = subject.outputs
    if outputs is None or outputs.numel() > MOST_VALUES or ExchangedOutputs.of(subject) is None:
        return None
    every = ExchangedOutputs(problem, outputs.detach(), subject.targets)
    return _Called(subject.inputs, every.outputs, every.gradient, subject.outputs_for)


def _copies(call: _Called) -> Iterator[_Copy]:
    outputs = call.outputs
    for tensor in named_tensors(call.inputs).values():
        is_dense = tensor.layout is torch.strided
        if not is_dense or tensor.dim() < 2 or len(tensor) != len(outputs) or tensor.dtype == torch.bool:
            continue
        if not tensor.is_floating_point():
            for dim in {1, outputs.dim() - 1}:
                others, classes = outputs.shape[:dim] + outputs.shape[dim + 1 :], outputs.shape[dim]
                if tensor.shape == others and 0 <= int(tensor.min()) <= int(tensor.max()) < classes:
                    logits = COPIED * F.one_hot(tensor.long(), classes).movedim(-1, dim).to(outputs)
                    yield _Copy(tensor, lambda t: t, logits, dim)
            continue
        for view in _views(tensor, outputs.shape):
            part = view(tensor).to(outputs.dtype)
            yield _Copy(tensor, view, part, None)
            if bool(((part == 0) | (part == 1)).all()):
                yield _Copy(tensor, view, COPIED * (2 * part - 1), None)


def _views(tensor: Tensor, shape: torch.Size) -> Iterator[Callable[[Tensor], Tensor]]:
    """The tensor in the shape of the outputs, or those of its features or channels that have their number."""
    if tensor.numel() == shape.numel():
        yield lambda t: t.reshape(shape)
    for dim in range(1, tensor.dim()):
        if _without(tensor.shape, dim) == tuple(shape):  # a row and its mask, stacked
            for each in range(tensor.shape[dim]):
                yield lambda t, dim=dim, each=each: t.select(dim, each)  # type: ignore[misc]
    for dim, own in enumerate(shape) if tensor.dim() == len(shape) else ():
        if dim and tensor.shape[dim] > own and _without(tensor.shape, dim) == _without(shape, dim):
            for first in range(0, tensor.shape[dim] - own + 1, own):
                yield lambda t, dim=dim, first=first, own=own: t.narrow(dim, first, own)  # type: ignore[misc]


def _without(shape: torch.Size, dim: int) -> tuple[int, ...]:
    return (*shape[:dim], *shape[dim + 1 :])
