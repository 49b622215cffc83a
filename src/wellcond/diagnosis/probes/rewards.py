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
EXACT = 0.999
"""Correlation of what is the same but for small terms. Over several steps the reward of one may rise where returns, by
which its action is judged, fall, so that less says nothing."""


@dataclass(frozen=True)
class LoweredOdds:
    """What the slope of the loss in the log-probabilities of actions follows.

    Attributes:
        name: What the script calls it; "" if it is where drawn actions equal what the batch holds.
        correlation: Correlation of the slopes with it: about −1 if a step makes rewarded actions more likely.
        slope: Mean slope of those with more of it than the median or the mean, over the mean size of all slopes: above
            zero if a step makes these less likely. 1 if slopes are this quantity times a number above zero.
    """

    name: str
    correlation: float
    slope: float


def lowered_odds(subject: Subject) -> LoweredOdds | None:
    """Differentiate the loss of a step by the (log-)probabilities of actions, and look for the reward that they follow.

    A step that descends a positive slope makes an action less likely. A reward is what the script calls so (reward,
    advantage, return, payoff), or what says where drawn actions equal what the batch holds. Of several the one that
    slopes follow best is the one that they are multiplied with.

    Returns:
        None for other losses than a training step, if there is no such reward, if slopes follow a cost better, or the
        opposite of something without such a name, or if the probabilities of one step are treated in different ways,
        as by a preference.
    """
    if not isinstance(subject.problem.loss, TrainingStep):
        return None
    batch = (subject.inputs, subject.targets)
    seen = ChosenActions(tensors_in(batch))
    with torch.enable_grad(), seen:
        loss = subject.problem.training_loss(0, batch)
    watched = [(t, is_whole) for is_whole, every in ((False, seen.picked), (True, seen.whole)) for t in every]
    if not loss.requires_grad or not watched:
        return None
    slopes = torch.autograd.grad(loss, [t for t, _ in watched], allow_unused=True)
    alike: dict[tuple[torch.Size, bool], list[Tensor]] = defaultdict(list)
    for slope, (_, is_whole) in zip(slopes, watched, strict=True):
        if slope is not None:
            alike[slope.shape, is_whole].append(slope.detach().cpu().double())
    rewards, costs, others = (
        [odds for (_, is_whole), same in alike.items() for odds in _matched(same, is_whole, quantities)]
        for quantities in (
            [*_tensors(seen.named("rewards")), *(("", each.cpu().double()) for each in seen.are_right)],
            [*_tensors(seen.named("costs"))],
            [*_tensors(seen.named(""))],
        )
    )
    best = max(rewards, key=lambda odds: abs(odds.correlation), default=None)
    if best is None:
        return None
    is_cost = any(odds.correlation >= best.correlation - ROUNDING for odds in costs)
    is_other = any(-odds.correlation > abs(best.correlation) + ROUNDING for odds in others)
    return None if is_cost or is_other else best


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
                yield name, value.detach().cpu().double()


def _matched(slopes: list[Tensor], is_whole: bool, quantities: list[tuple[str, Tensor]]) -> Iterator[LoweredOdds]:
    """How slopes follow each quantity of their shape, or of that of all of them, one after another.

    Args:
        slopes: Slopes of one shape.
        is_whole: Whether they are those of the probabilities of all actions, and not of one that is picked.
        quantities: Numbers with their names.
    """
    steps = torch.stack(slopes)
    joint = [steps, steps.transpose(0, 1)] if steps.dim() > 1 else [steps]
    for name, quantity in quantities:
        apart = [odds for slope in slopes if (odds := _followed(name, slope, quantity, is_whole)) is not None]
        if len(apart) == len(slopes):
            yield min(apart, key=lambda odds: odds.correlation)  # a preference raises some and lowers others
        elif len(slopes) > 1:
            for each in joint:
                odds = _followed(name, each, quantity, is_whole)
                if odds is not None and abs(odds.correlation) >= EXACT:
                    yield odds


def _followed(name: str, slopes: Tensor, quantity: Tensor, is_whole: bool) -> LoweredOdds | None:
    """None if they have other shapes, or one of them does not vary."""
    slopes, quantity = _squeezed(slopes), _squeezed(quantity)
    are_alike = slopes.shape == quantity.shape or (not is_whole and slopes.shape[: quantity.dim()] == quantity.shape)
    if not are_alike or quantity.numel() < FEWEST_ACTIONS:
        return None
    is_of_steps = quantity.dim() > 1
    slopes = slopes.flatten(quantity.dim()).sum(-1) if slopes.dim() > quantity.dim() else slopes  # parts of an action
    slopes, quantity = slopes.flatten(), quantity.flatten()
    size = float(slopes.abs().mean())
    if not float(slopes.std()) > CONSTANT * size:
        return None
    correlation = float(torch.corrcoef(torch.stack([slopes, quantity]))[0, 1])
    if not math.isfinite(correlation) or (is_of_steps and abs(correlation) < EXACT):
        return None
    if float(slopes @ quantity) > EXACT * float(slopes.norm() * quantity.norm()):
        return LoweredOdds(name, correlation, 1.0)
    # more than the median; where half of all have the most that there is, more than the mean
    more = quantity > quantity.median()
    more = more if bool(more.any()) else quantity > quantity.mean()
    return LoweredOdds(name, correlation, float(slopes[more].mean()) / size)


def _squeezed(tensor: Tensor) -> Tensor:
    while tensor.dim() > 1 and tensor.shape[-1] == 1:
        tensor = tensor[..., 0]
    return tensor
