"""What the loss sees of the outputs: their scale, their sign, and which target belongs to which example."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from wellcond.diagnosis.probes.exchanged import ExchangedOutputs, rms
from wellcond.diagnosis.probes.subject import Subject, relative_change
from wellcond.network.calling import tensors_in

FAR, FARTHER = 3.0, 10.0
"""Multiples of the best outputs, and of their opposite, at which the loss shows whether it has a bound."""
STEEP = 1e3
"""Rise of the loss far from the best outputs over that at zero, or over one if that is less, from which on it has no
bound: logits between 0 and 1 change a cross-entropy by one at most."""
NEARLY_FLAT = 0.25
"""Change of the loss between the two, over its range, below which it has a bound; without one it changes by twice the
range."""
FALLS = 0.05
"""Fall of the loss between the two, over its range, from which on it falls for ever."""
EQUAL = 1e-4
"""Change of the loss, relative to it, that may be rounding."""
NEAR = 0.1
"""Size of noise that is added to outputs, over their scale."""
UNSEEN = 0.01
"""Change by targets of other examples, over that by one target for all, that may be rounding: where a term without
targets outweighs the others, as an exponential does, both are small next to the loss."""
OF_ITS_OWN = 0.01
"""Relative change of the gradient by an example's outputs that other examples may cause, if it is its own."""
SURE = 20.0
"""Logit of the right class; the others are zero."""


@dataclass(frozen=True)
class Sight:
    """What the loss of a few examples sees.

    Attributes:
        least: Lowest loss that any outputs have; NaN if it falls for ever.
        at_zero: Loss of outputs that are all zero, or of random ones if it has none there.
        is_bounded: Whether it comes to rest both for ever better outputs and for ever worse ones.
        is_by_example: Whether the gradient by one example's outputs depends on no other's.
        has_penalty: Whether it depends on parameters in another way than through the outputs.
        is_unpaired: Whether it stays the same if the targets are given to other examples, though it uses them.
        ignores_targets: Whether it stays the same whatever the targets are.
        is_crossed: Whether the outputs of the first example are compared with another one's target, not with its own.
        is_scattered: Whether the class of one place is compared with outputs of several places.
        rewards_wrong: Whether it is bounded, and lower for outputs on the wrong side of binary targets; or for maps of
            probabilities that are the opposite of theirs.
        is_even: Whether it stays the same if all outputs change their sign.
        ignores_scale: Whether it stays the same if all outputs are multiplied by one number.
        ignores_negative: Whether it depends on no output below zero, but on others.
        shifts: Dimensions along which the same number may be added to all outputs: that of a softmax.
        at_labels: Loss of large outputs for the right classes; NaN if targets are not classes.
    """

    least: float
    at_zero: float
    is_bounded: bool
    is_by_example: bool
    has_penalty: bool
    is_unpaired: bool
    ignores_targets: bool
    is_crossed: bool
    is_scattered: bool
    rewards_wrong: bool
    is_even: bool
    ignores_scale: bool
    ignores_negative: bool
    shifts: tuple[int, ...]
    at_labels: float

    @property
    def floor(self) -> float:
        """Lowest loss over that of outputs that are all zero; NaN if either is not positive."""
        return self.least / self.at_zero if self.least >= 0 and self.at_zero > 0 else math.nan


def sight(subject: Subject) -> Sight | None:
    """Evaluate the loss at other outputs than the model's, without a pass through the model.

    Returns:
        None if the loss takes no other outputs.
    """
    exchanged = ExchangedOutputs.of(subject)
    lowest = None if exchanged is None else exchanged.lowest()
    if exchanged is None or lowest is None:
        return None
    draw = torch.Generator().manual_seed(0)
    outputs = _varied(exchanged, draw)
    value = exchanged.loss(outputs)
    tolerance = EQUAL * abs(value)

    def are_same(losses: list[float]) -> bool:
        return bool(losses) and all(abs(each - value) <= tolerance for each in losses)

    moved, same = list(_with_moved_targets(exchanged, outputs)), list(_with_one_target(exchanged, outputs))
    around_zero = outputs - outputs.mean()
    slopes = exchanged.gradient(around_zero)
    at_zero = exchanged.loss(torch.zeros_like(outputs))
    at_zero = at_zero if math.isfinite(at_zero) else value
    least, is_bounded = _ends(exchanged, *lowest, at_zero)
    with torch.enable_grad():
        has_penalty = exchanged.with_graph(exchanged.outputs).requires_grad
    labels = _sure(exchanged)
    is_by_example = _is_by_example(exchanged, outputs)
    is_unpaired = _is_unpaired(value, moved, same) and _is_unpaired_near(exchanged, draw)
    return Sight(
        least=least,
        at_zero=at_zero,
        is_bounded=is_bounded,
        is_by_example=is_by_example,
        has_penalty=has_penalty,
        is_unpaired=is_unpaired,
        ignores_targets=are_same(moved) and are_same(same) and not _sees_targets(exchanged),
        is_crossed=is_by_example and not is_unpaired and _is_crossed(exchanged, outputs),
        is_scattered=_is_scattered(exchanged, outputs),
        rewards_wrong=_rewards_wrong(exchanged, is_bounded),
        is_even=are_same([exchanged.loss(-outputs)]) and _stays(exchanged, -1),
        ignores_scale=are_same([exchanged.loss(FAR * outputs)]) and _stays(exchanged, FAR),
        ignores_negative=slopes is not None and _is_zero_below(around_zero, slopes),
        shifts=tuple(dim for dim, shifted in _shifted(outputs, draw) if are_same([exchanged.loss(shifted)])),
        at_labels=math.nan if labels is None else exchanged.loss(labels),
    )


def _varied(exchanged: ExchangedOutputs, draw: torch.Generator) -> Tensor:
    """Outputs that differ between all examples: random ones, or such near the model's own if the loss takes no others.

    They vary as targets that are numbers do, since the loss would not see much smaller or larger ones.
    """
    outputs, targets = exchanged.outputs, exchanged.targets
    noise = torch.randn(outputs.shape, generator=draw).to(outputs)
    if isinstance(targets, Tensor) and targets.is_floating_point() and targets.numel() == outputs.numel():
        varied = targets.mean() + max(float(targets.std()), 1e-6) * noise
    else:
        varied = exchanged.scale * noise
    near = outputs + NEAR * exchanged.scale * noise
    return next((each for each in (varied, near) if math.isfinite(exchanged.loss(each))), outputs)


def _ends(exchanged: ExchangedOutputs, best: Tensor, least: float, at_zero: float) -> tuple[float, bool]:
    """The lowest loss at the best outputs or far beyond, NaN if it falls for ever; and whether it has a bound."""
    ahead, opposite = ([exchanged.loss(sign * by * best) for by in (FAR, FARTHER)] for sign in (1, -1))
    rise = opposite[0] - least
    is_steep = not rise < STEEP * max(at_zero - least, 1.0)  # as an exponential, which ends where numbers do
    size = max(abs(at_zero - least), abs(rise), 1e-12)
    is_flat = (
        not is_steep
        and max(abs(ahead[1] - ahead[0]), abs(ahead[0] - least), abs(opposite[1] - opposite[0])) <= NEARLY_FLAT * size
    )
    return math.nan if ahead[1] < ahead[0] - FALLS * size else min(least, *ahead), is_flat


def _with_moved_targets(exchanged: ExchangedOutputs, outputs: Tensor) -> Iterator[float]:
    """The loss if every example has the target of another one; none where targets are all the same."""
    tensors = tensors_in(exchanged.targets)
    for by in sorted({1, len(outputs) // 3, len(outputs) // 2} - {0}):
        if any(bool((t != t.roll(by, 0)).any()) for t in tensors):
            yield exchanged.loss(outputs, exchanged.exchanged_targets(lambda t, by=by: t.roll(by, 0)))  # type: ignore[misc]


def _with_one_target(exchanged: ExchangedOutputs, outputs: Tensor) -> Iterator[float]:
    """The loss if all examples have the first target, that in the middle, or the last."""
    for index in (0, len(outputs) // 2, len(outputs) - 1):
        repeated = exchanged.exchanged_targets(lambda t, index=index: t[index : index + 1].expand_as(t).contiguous())  # type: ignore[misc]
        yield exchanged.loss(outputs, repeated)


def _is_unpaired(value: float, moved: list[float], same: list[float]) -> bool:
    """Whether targets of other examples leave the loss as it is, while one target for all does not."""
    by_other, by_one = ([abs(each - value) for each in losses] for losses in (moved, same))
    tolerance = EQUAL * abs(value)
    return bool(moved) and max(by_other) <= min(tolerance, UNSEEN * max(by_one)) and max(by_one) > tolerance


def _is_unpaired_near(exchanged: ExchangedOutputs, draw: torch.Generator) -> bool:
    """The same for outputs of the size that networks give at first, whatever the targets' size is.

    A step may standardize its targets itself, and a loss that is linear far from them sees only their mean there.
    """
    near = exchanged.outputs + torch.randn(exchanged.outputs.shape, generator=draw).to(exchanged.outputs)
    moved, same = list(_with_moved_targets(exchanged, near)), list(_with_one_target(exchanged, near))
    return _is_unpaired(exchanged.loss(near), moved, same)


def _stays(exchanged: ExchangedOutputs, factor: float) -> bool:
    """Whether the loss of the model's own outputs stays the same with a factor: much larger ones hide the targets."""
    value, other = exchanged.loss(), exchanged.loss(factor * exchanged.outputs)
    return abs(other - value) <= EQUAL * abs(value)


def _sees_targets(exchanged: ExchangedOutputs) -> bool:
    """Whether targets matter at the model's own outputs: at those of the size of counts, an exponential hides them."""
    value = exchanged.loss()
    return any(abs(each - value) > EQUAL * abs(value) for each in _with_one_target(exchanged, exchanged.outputs))


def _is_by_example(exchanged: ExchangedOutputs, outputs: Tensor) -> bool:
    half = len(outputs) // 2
    first, second = map(exchanged.gradient, (outputs, torch.cat([outputs[:half], -outputs[half:].flip(0)])))
    if first is None or second is None:
        return False
    return relative_change(first[:half], second[:half]) <= OF_ITS_OWN


def _is_crossed(exchanged: ExchangedOutputs, outputs: Tensor) -> bool:
    """Whether another target for the first example changes the gradients of others, but not its own."""
    targets = exchanged.targets
    if not isinstance(targets, Tensor) or targets.numel() != len(outputs):
        return False
    others = targets.clone()
    others[0] = next((target for target in targets if bool((target != targets[0]).any())), targets[0])
    before, after = exchanged.gradient(outputs), ExchangedOutputs(exchanged.problem, outputs, others).gradient(outputs)
    if before is None or after is None:
        return False
    change = (after - before).flatten(1).norm(dim=1) if outputs.dim() > 1 else (after - before).abs()
    return float(change[0]) <= EQUAL * float(change.max()) and bool(change.any())


def _is_scattered(exchanged: ExchangedOutputs, outputs: Tensor) -> bool:
    """Whether two places that exchange their classes change gradients at others, but at no more than each has classes.

    A softmax over the classes changes those of the two, each from its class to the other, and an overlap of whole
    images those of all places. An exchange leaves the sum of weights of classes as it is, which the loss may be divided
    by.
    """
    targets = exchanged.targets
    if not isinstance(targets, Tensor) or targets.dim() < 2 or bool((targets != targets.round()).any()):
        return False
    last, second = (*targets.shape, outputs.shape[-1]), (len(targets), *outputs.shape[1:2], *targets.shape[1:])
    dims = [dim for dim, shape in ((-1, last), (1, second)) if tuple(outputs.shape) == shape]
    before = exchanged.gradient(outputs) if dims else None
    if before is None:
        return False
    is_class = (targets >= 0) & (targets < min(outputs.shape[dim] for dim in dims))
    places = (before.movedim(dims[0], -1).any(-1) & is_class).flatten().nonzero().flatten()
    if not len(places):
        return False
    one, others = places[len(places) // 2], targets.flatten().clone()
    different = places[others[places] != others[one]]
    if not len(different):
        return False
    both = torch.stack([one, different[len(different) // 2]])
    others[both] = others[both.flip(0)]
    after = ExchangedOutputs(exchanged.problem, outputs, others.view_as(targets)).gradient(outputs)
    if after is None or torch.equal(after, before):
        return False
    change = after - before
    changed = change.abs() > EQUAL * change.abs().max()
    if not all(2 < int(changed.any(dim).sum()) <= 2 * outputs.shape[dim] for dim in dims):
        return False
    now, was = others[both].long(), targets.flatten()[both].long()
    # weights of places that depend on classes around them, as at borders, change gradients there too
    rows = [change.movedim(dim, -1).flatten(0, -2)[both] for dim in dims]
    here = torch.arange(2)
    return not any(bool((row[here, now] < 0).all() and (row[here, was] > 0).all()) for row in rows)


def _rewards_wrong(exchanged: ExchangedOutputs, is_bounded: bool) -> bool:
    """Whether logits that are sure of the opposite of binary targets have a clearly lower loss than right ones.

    Of maps between 0 and 1 the targets themselves are compared with their opposite. A single number in that range may
    be a distance, which is small where the target is 1.
    """
    outputs, targets = exchanged.outputs, exchanged.targets
    if not isinstance(targets, Tensor) or targets.shape != outputs.shape:
        return False
    if not bool(((targets == 0) | (targets == 1)).all()) or bool((targets == targets.reshape(-1)[0]).all()):
        return False
    right = targets.to(outputs)
    if outputs[0].numel() > 1 and bool(((outputs >= 0) & (outputs <= 1)).all()):
        opposite = 1 - right
    elif is_bounded:
        right = SURE * (2 * right - 1)
        opposite = -right
    else:
        return False
    best, worst = exchanged.loss(right), exchanged.loss(opposite)
    return best > worst + 0.5 * max(abs(best), abs(worst))


def _is_zero_below(outputs: Tensor, slopes: Tensor) -> bool:
    is_below = outputs < 0
    return bool(is_below.any()) and not bool(slopes[is_below].any()) and bool(slopes[~is_below].any())


def _shifted(outputs: Tensor, draw: torch.Generator) -> Iterator[tuple[int, Tensor]]:
    """For every dimension, outputs with a random number added to all along it."""
    for dim, size in enumerate(outputs.shape):
        shape = [1 if each == dim else other for each, other in enumerate(outputs.shape)]
        if size > 1:
            yield dim, outputs + rms(outputs) * torch.randn(shape, generator=draw).to(outputs)


def _sure(exchanged: ExchangedOutputs) -> Tensor | None:
    """Logits that are sure of the right class, if each example, or place of it, has one and an output for each."""
    outputs, targets = exchanged.outputs, exchanged.targets
    if not isinstance(targets, Tensor) or targets.is_floating_point() or targets.dtype == torch.bool:
        return None
    if outputs.dim() < 2 or targets.numel() != outputs[:, 0].numel() or len(targets) != len(outputs):
        return None
    index, classes = targets.reshape(outputs[:, 0].shape).long(), outputs.shape[1]
    if classes < 2 or bool(((index < 0) | (index >= classes)).any()):
        return None
    return SURE * torch.nn.functional.one_hot(index, classes).movedim(-1, 1).to(outputs)
