"""Whether a step raises or lowers the odds of actions that its script says are rewarded."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from wellcond.diagnosis.probes.chosen import ChosenActions
from wellcond.diagnosis.probes.subject import Subject
from wellcond.network.calling import tensors_in
from wellcond.problem.training_step import TrainingStep

FEWEST_ACTIONS = 16
"""Actions below which a correlation may be chance."""
CONSTANT = 1e-3
"""Spread of slopes over their size below which they are one number: a likelihood, which no reward weighs."""
ROUNDING = 1e-6
"""Difference of two correlations that rounding may cause."""


@dataclass(frozen=True)
class LoweredOdds:
    """What the slope of the loss in the log-probabilities of actions follows.

    Attributes:
        name: What the script calls it; "" if it is where drawn actions equal what the batch holds.
        correlation: Correlation of the slopes with it: about −1 if a step makes rewarded actions more likely.
        slope: Mean slope of those with more of it than the median or the mean, over the mean size of all slopes: above
            zero if a step makes these less likely.
    """

    name: str
    correlation: float
    slope: float


def lowered_odds(subject: Subject) -> LoweredOdds | None:
    """Differentiate the loss of a step by the log-probabilities of actions, and look for the reward that they follow.

    A step that descends a positive slope makes an action less likely. A reward is what the script calls so (reward,
    advantage, return, payoff), or what says where drawn actions equal what the batch holds. Of several the one that
    slopes follow best is the one that they are multiplied with.

    Returns:
        None for other losses than a training step, if there is no such reward, if slopes follow a cost better, or if
        the log-probabilities of one step are treated in different ways, as by a preference.
    """
    if not isinstance(subject.problem.loss, TrainingStep):
        return None
    batch = (subject.inputs, subject.targets)
    seen = ChosenActions(tensors_in(batch))
    with torch.enable_grad(), seen:
        loss = subject.problem.training_loss(0, batch)
    scores = [t for t in seen.log_probabilities if t.requires_grad]
    if not loss.requires_grad or not scores:
        return None
    slopes = torch.autograd.grad(loss, scores, allow_unused=True)
    by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
    for slope in slopes:
        if slope is not None:
            by_shape[slope.shape].append(slope.detach().double())
    rewards, costs = ([*_tensors(seen.named(words))] for words in ("rewards", "costs"))
    rewards += [("", each.double()) for each in seen.are_right]
    every = [odds for same in by_shape.values() for odds in _matched(same, rewards)]
    least = max((odds.correlation for same in by_shape.values() for odds in _matched(same, costs)), default=-math.inf)
    best = max(every, key=lambda odds: abs(odds.correlation), default=None)
    return None if best is None or least >= best.correlation - ROUNDING else best


def _tensors(named: dict[str, list[Any]]) -> Iterator[tuple[str, Tensor]]:
    """What has a name as tensors; lists of numbers, or of tensors, of which there is one for each step, as one."""
    for name, values in named.items():
        for value in values:
            if isinstance(value, (list, tuple)) and value:
                is_numbers = all(isinstance(each, (int, float)) for each in value)
                is_tensors = all(isinstance(each, Tensor) and each.shape == value[0].shape for each in value)
                value = torch.tensor(value) if is_numbers else torch.stack([*value]) if is_tensors else None
            # what depends on the policy itself is no reward: it may be named so, as the logits of a preference are
            if isinstance(value, Tensor) and not value.requires_grad and not value.is_complex():
                yield name, value.detach().double()


def _matched(slopes: list[Tensor], quantities: list[tuple[str, Tensor]]) -> Iterator[LoweredOdds]:
    """How slopes of one shape follow each quantity of this shape, or of that of all of them, one after another."""
    steps = torch.stack(slopes)
    joint = [steps, steps.transpose(0, 1)] if len(slopes) > 1 and steps.dim() > 1 else [steps]
    for name, quantity in quantities:
        apart = [odds for slope in slopes if (odds := _followed(name, slope, quantity)) is not None]
        if len(apart) == len(slopes):
            yield min(apart, key=lambda odds: odds.correlation)  # a preference raises some and lowers others
        elif len(slopes) > 1:
            yield from (odds for each in joint if (odds := _followed(name, each, quantity)) is not None)


def _followed(name: str, slopes: Tensor, quantity: Tensor) -> LoweredOdds | None:
    """None if they have other shapes, or one of them does not vary."""
    quantity = _squeezed(quantity)
    slopes = _squeezed(slopes)
    if slopes.shape[: quantity.dim()] != quantity.shape or quantity.numel() < FEWEST_ACTIONS:
        return None
    slopes = slopes.flatten(quantity.dim()).sum(-1) if slopes.dim() > quantity.dim() else slopes  # parts of an action
    slopes, quantity = slopes.flatten(), quantity.flatten()
    size = float(slopes.abs().mean())
    if not float(slopes.std()) > CONSTANT * size:
        return None
    correlation = float(torch.corrcoef(torch.stack([slopes, quantity]))[0, 1])
    if not math.isfinite(correlation):
        return None
    # more than the median; where half of all have the most that there is, more than the mean
    more = quantity > quantity.median()
    more = more if bool(more.any()) else quantity > quantity.mean()
    return LoweredOdds(name, correlation, float(slopes[more].mean()) / size)


def _squeezed(tensor: Tensor) -> Tensor:
    while tensor.dim() > 1 and tensor.shape[-1] == 1:
        tensor = tensor[..., 0]
    return tensor
