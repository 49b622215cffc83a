"""Whether what a network has learned tells examples apart: the loss if each example had the outputs of another one."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor, nn

from wellcond.diagnosis.probes.terms import Operands, addends
from wellcond.network.calling import tensors_in
from wellcond.network.taps import bracketed
from wellcond.problem.batches import Batch, examples_in
from wellcond.problem.loss.outputs import with_tensors
from wellcond.problem.problem import Problem

Change = Callable[[int, Any], Any]
"""What a call returns instead of its output, by the number of the call; None: what it returned."""
EQUAL = 1e-4
"""Relative change of a term that may be rounding: one that changes less does not compare outputs with examples."""
REORDERED = 1e-6
"""Relative change of a loss that only takes its examples in another order."""


@dataclass(frozen=True)
class Paired:
    """The loss of a batch.

    Attributes:
        loss: As it is.
        of_others: With the outputs given to other examples.
        error: Standard error of their difference over draws of what the model draws at random; 0 for a single draw.
        compares_views: Whether the loss compares outputs of one call with each other, each of which then goes to other
            examples than the rest.
    """

    loss: float
    of_others: float
    error: float = 0.0
    compares_views: bool = False

    @property
    def gain(self) -> float:
        """What the right outputs are worth: the difference of the two over the larger one."""
        return (self.of_others - self.loss) / self._scale

    @property
    def noise(self) -> float:
        """The standard error of the gain."""
        return self.error / self._scale

    @property
    def _scale(self) -> float:
        return max(abs(self.loss), abs(self.of_others), 1e-12)


def depends_on_pairs(problem: Problem, batch: Batch) -> bool:
    """Whether the loss depends on which example outputs belong to: a generator's, or that of a density, does not.

    One of its terms is enough: that of the pairs may be a ten-thousandth of another one.
    """
    return any(terms_of_pairs(problem, batch))


def terms_of_pairs(problem: Problem, batch: Batch) -> list[bool]:
    """Which terms of the loss depend on which example outputs belong to; or on which belong together, as two views."""
    together = _terms_exchanged(problem, batch, apart=False)
    return together if any(together) else _terms_exchanged(problem, batch, apart=True)


def _terms_exchanged(problem: Problem, batch: Batch, *, apart: bool) -> list[bool]:
    """Which terms change if outputs go to other examples: all of a call to the same ones, or each to its own."""
    examples = examples_in(batch)

    def varied(t: Tensor) -> Tensor:
        if not t.is_floating_point():
            return t
        other = t + torch.randn(t.shape, generator=torch.Generator().manual_seed(1)).to(t)
        # a loss of probabilities refuses what is none
        return other.clamp(0, 1) if bool(((t >= 0) & (t <= 1)).all()) else other

    def in_place(output: Any) -> Any:
        return with_tensors(output, {id(t): varied(t) for t in _of_examples(output, examples)})

    def exchanged(output: Any) -> Any:
        tensors = _of_examples(output, examples)
        others = [_others(examples, 1 + apart * k).to(t.device) for k, t in enumerate(tensors)]
        return with_tensors(output, {id(t): varied(t)[which] for t, which in zip(tensors, others, strict=True)})

    own = _terms(problem, batch, lambda call, output: None if call else in_place(output))
    of_others = _terms(problem, batch, lambda call, output: None if call else exchanged(output))
    # not so if one is NaN
    return [abs(a - b) > EQUAL * max(abs(a), abs(b)) for a, b in zip(own, of_others, strict=True)]


def paired(problem: Problem, batch: Batch, draws: int = 1) -> Paired | None:
    """Exchange the outputs of a model between the examples of a batch, in two forward passes for each draw of noise.

    If a step calls the model several times, each call gets the outputs of the next one of the same form, and of other
    examples than that one: pairs are torn apart, and what is ranked above changes places with what is ranked below. If
    a loss compares what one call returns, as two views of each example, each of these goes to other examples.

    Returns:
        None if the model is not called as a whole.
    """
    examples = examples_in(batch)
    calls: list[list[Tensor]] = []
    weight = next(iter(problem.params.values()))
    apart = False

    def noted(_call: int, output: Any) -> None:
        calls.append([t.detach() for t in _of_examples(output, examples)])  # their graph would be held next to another

    def exchanged(call: int, output: Any) -> Any:
        own = _of_examples(output, examples)
        form = [t.shape for t in own]
        following = [*calls[call + 1 :], *calls[: call + 1]]
        other = next((each for each in following if [t.shape for t in each] == form), own)
        which = [_others(examples, call + 1 + apart * k).to(o.device) for k, o in enumerate(other)]
        exchanged = (_of_weight(weight, o[k]) for o, k in zip(other, which, strict=True))
        return with_tensors(output, {id(t): values for t, values in zip(own, exchanged, strict=True)})

    losses = []
    for draw in range(draws):
        calls.clear()
        own = _loss(problem, batch, noted, draw)
        of_others = _loss(problem, batch, exchanged, draw)
        if not apart and max(map(len, calls), default=0) > 1 and abs(of_others - own) <= REORDERED * abs(own):
            apart = True
            of_others = _loss(problem, batch, exchanged, draw)
        losses.append((own, of_others))
    own, of_others = map(fmean, zip(*losses, strict=True))
    if not math.isfinite(own + of_others):
        return None
    error = stdev(b - a for a, b in losses) / math.sqrt(draws) if draws > 1 else 0.0
    return Paired(own, of_others, error, apart)


def loss_of_one_point(problem: Problem, batch: Batch) -> float:
    """The loss if all calls gave all examples the same outputs; NaN if the model is not called as a whole."""
    examples = examples_in(batch)
    points: dict[torch.Size, Tensor] = {}

    def averaged(t: Tensor) -> Tensor:
        if not t.is_floating_point():
            return t
        return points.setdefault(t.shape[1:], t.mean(0, keepdim=True)).expand_as(t).contiguous()

    def at_one_point(_call: int, output: Any) -> Any:
        return with_tensors(output, {id(t): averaged(t) for t in _of_examples(output, examples)})

    return _loss(problem, batch, at_one_point)


def loss_of_one_number(problem: Problem, batch: Batch) -> float:
    """The loss if all outputs of all calls were one number, their mean; NaN if the model is not called as a whole.

    A vector in place of a number would hold what is scored above next to what is scored below it.
    """
    examples = examples_in(batch)
    seen: list[Tensor] = []

    def noted(_call: int, output: Any) -> None:
        seen.extend(t.detach().flatten() for t in _of_examples(output, examples) if t.is_floating_point())

    def leveled(_call: int, output: Any) -> Any:
        number = torch.cat(seen).mean()
        own = [t for t in _of_examples(output, examples) if t.is_floating_point()]
        return with_tensors(output, {id(t): 0 * t + number for t in own})

    _loss(problem, batch, noted)
    return _loss(problem, batch, leveled) if seen else math.nan


def _others(examples: int, places: int) -> Tensor:
    """For each example another one: that many places on, in a random order. Nobody keeps its own."""
    order = torch.randperm(examples, generator=torch.Generator().manual_seed(0))
    others = torch.empty_like(order)
    others[order] = order.roll(1 + (places - 1) % max(examples - 1, 1))
    return others


def _of_weight(weight: Tensor, values: Tensor) -> Tensor:
    """Values that depend on a weight as far as torch knows, as those of a loss must, and on no inputs.

    So a loss that differentiates outputs with respect to inputs raises, and is not judged.
    """
    return torch.where(torch.ones_like(values, dtype=torch.bool), values, weight.reshape(-1)[0].to(values))


def _of_examples(output: Any, examples: int) -> list[Tensor]:
    """The tensors in an output that have the examples in front."""
    return [t for t in tensors_in(output) if t.dim() and len(t) == examples]


def _loss(problem: Problem, batch: Batch, change: Change, draw: int = 0) -> float:
    """The loss if calls of the model return something else; NaN if there is no call."""
    with _changed(problem, change) as calls:
        value = float(problem.training_loss(draw, batch).detach())
    return value if calls else math.nan


def _terms(problem: Problem, batch: Batch, change: Change) -> list[float]:
    """The terms of the loss if calls of the model return something else; none if there is no call."""
    with _changed(problem, change) as calls, Operands() as recorded:
        terms = addends(problem.training_loss(0, batch), recorded.operands)
    return [float(each.detach()) for each in terms] if calls else []


@contextlib.contextmanager
def _changed(problem: Problem, change: Change) -> Iterator[list[int]]:
    """Let calls of the model return something else; gives the list of their numbers, which grows with each."""
    calls: list[int] = []

    def on_exit(_module: nn.Module, output: Any) -> Any:
        calls.append(len(calls))
        return change(calls[-1], output)

    # one term of a loss is known by its graph
    with problem.measuring(), torch.enable_grad(), bracketed([problem.model], lambda *_: None, on_exit):
        yield calls
