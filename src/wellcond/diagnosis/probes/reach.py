"""Which outputs a model can give: whether they are bounded whatever its weights are, and what loss that leaves."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from wellcond.diagnosis.probes.exchanged import ExchangedOutputs, Form
from wellcond.diagnosis.probes.subject import Subject
from wellcond.network.isolation import isolation
from wellcond.problem.problem import Problem

WEIGHT_CHANGES = ((3.0, 1.0, 0.3), (10.0, 3.0, 1.0), (100.0, 0.0, 0.1))
"""How weights are changed, one time after another: tensors times the first number, and with random
signs, since weights that start at one constant need not keep its sign; single numbers, such as a temperature or its
logarithm, plus the second, after they are multiplied by the third."""
OTHER_SIGNS = (1, 2, 3)
"""Seeds of further signs, where there seems to be a bound: with one choice of signs all outputs may lie on one side."""
STAYS = 2.5
"""Largest output after one change over that after the other, below which outputs have a bound; a linear layer's are
ten times as large, and the root of one's three times. Cosines of small random vectors differ twofold."""
CONSTANT = 1e-3
"""Relative spread of the norms, or sums, of outputs that are normalized."""
AT_THE_END = 1e-3
"""Distance from the end of the range, over its width, of an output that is at the bound."""
MANY = 0.1
"""Share of the outputs at a bound where the range that was seen is the whole of it."""
WIDER = 2.0
"""How much wider the range may be than was seen, where no output is at a bound: cosines of trained vectors are larger
than those of random ones."""

SMALL = 0.1
"""Size of the random numbers in place of weights that are all zero."""


@dataclass(frozen=True)
class Reach:
    """Outputs of a model whose weights are up to a hundred times as large.

    Attributes:
        low: Smallest output that can be reached.
        high: Largest one.
        is_normalized: Whether the norm or the sum of an example's outputs is always the same.
        least: Lowest loss of outputs that can be reached.
    """

    low: float
    high: float
    is_normalized: bool
    least: float


def reach(subject: Subject) -> Reach | None:
    """Pass the batch through the model with larger weights.

    Returns:
        None if the outputs grow with the weights to both sides or do not depend on them, if they are the same for all
        examples, or if the loss takes no other outputs; and where some weights are frozen: through a frozen critic, a
        few changes do not show all it can say.
    """
    exchanged = ExchangedOutputs.of(subject)
    is_frozen = any(not p.requires_grad for p in subject.problem.model.parameters())
    if exchanged is None or subject.outputs is None or is_frozen or subject.are_all_alike:
        return None
    changed = [_changed(subject, *change) for change in WEIGHT_CHANGES]
    seen = [each.double() for each in (subject.outputs, *changed) if each is not None and bool(each.isfinite().all())]
    if len(seen) < 2 or all(torch.equal(each, seen[0]) for each in seen):
        return None
    low, high = _range(*seen) if len(seen) > len(WEIGHT_CHANGES) else (-math.inf, math.inf)
    if low > -math.inf or high < math.inf:
        others = [_changed(subject, *WEIGHT_CHANGES[-1], signs) for signs in OTHER_SIGNS]
        low, high = _with(low, high, [each.double() for each in others if each is not None])
    normalized = _normalized(seen)
    if normalized is None and ((low, high) == (-math.inf, math.inf) or not low < high):
        return None
    lowest, free = exchanged.lowest(normalized or _between(low, high, exchanged.scale)), exchanged.lowest()
    if lowest is None or free is None:
        return None
    within = free[0].clamp(low, high) if normalized is None else normalized(free[0])
    least = min(lowest[1], exchanged.loss(within))
    return Reach(low, high, normalized is not None, least)


def _changed(subject: Subject, factor: float, added: float, of_single: float, signs: int = 0) -> Tensor | None:
    with larger_weights(subject.problem, factor, added, of_single, signs):
        return subject.outputs_for(subject.inputs)


@contextlib.contextmanager
def larger_weights(problem: Problem, factor: float, added: float, of_single: float, signs: int = 0) -> Iterator[None]:
    """The model with other weights, as in `WEIGHT_CHANGES`, while inside; `signs` is the seed of their signs."""
    params = list(problem.params.values())
    draw = torch.Generator(problem.device).manual_seed(signs)  # there: drawing for every weight elsewhere takes long
    with isolation.parameters_kept(params):
        for p in params:
            # a layer that starts at zero need not stay there
            data = p.data if bool(p.any()) else SMALL * torch.randn(p.shape, generator=draw, device=p.device).to(p)
            sign = torch.randint(2, p.shape, generator=draw, device=p.device).to(p) * 2 - 1
            p.data = factor * sign * data if p.numel() > 1 else of_single * p.data + added
        yield


def _normalized(seen: list[Tensor]) -> Form | None:
    """What makes outputs whose norm, or whose sum of shares, is that of all that were seen; None if these vary."""
    is_share = all(bool((each >= 0).all()) for each in seen)
    for dim in range(1, seen[0].dim()):
        if seen[0].shape[dim] < 2:
            continue
        norms, sums = (torch.cat([size(each).flatten() for each in seen]) for size in _sizes(dim))
        if is_share and _is_constant(sums):
            return lambda free, dim=dim: float(sums.mean()) * free.softmax(dim)  # type: ignore[misc]
        if _is_constant(norms):
            return lambda free, dim=dim: float(norms.mean()) * torch.nn.functional.normalize(free, dim=dim)  # type: ignore[misc]
    return None


def _sizes(dim: int) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    return lambda each: each.norm(dim=dim), lambda each: each.sum(dim)


def _is_constant(sizes: Tensor) -> bool:
    return float(sizes.std()) <= CONSTANT * float(sizes.mean())


def _range(*seen: Tensor) -> tuple[float, float]:
    """The smallest and the largest output that can be reached; infinite if they grow with the weights."""
    low, high = (float(end(torch.stack(seen))) for end in (torch.min, torch.max))
    larger, largest = seen[-2:]
    size = max(high - low, 1e-30)
    ends = [[float(end(each)) for each in (larger, largest)] for end in (torch.min, torch.max)]
    does_not_grow = max(map(abs, (*ends[0], *ends[1]))) <= STAYS * float(seen[0].abs().max())
    is_low, is_high = (does_not_grow or _stays(first, second, size) for first, second in ends)
    changed = torch.stack([larger, largest])
    if is_low and is_high:
        near = [float(((changed - end).abs() <= AT_THE_END * size).double().mean()) for end in (low, high)]
        wider = 0.0 if sum(near) >= MANY else (WIDER - 1) * size / 2
        return low - wider, high + wider
    return low if is_low else -math.inf, high if is_high else math.inf


def _with(low: float, high: float, others: list[Tensor]) -> tuple[float, float]:
    """The range with further outputs."""
    finite = [each for each in others if bool(each.isfinite().all())]
    return min([low, *(float(each.min()) for each in finite)]), max([high, *(float(each.max()) for each in finite)])


def _stays(first: float, second: float, size: float) -> bool:
    """Whether an end of the range is about the same after both changes."""
    if max(abs(first), abs(second)) <= AT_THE_END * size:
        return True
    return first * second > 0 and 1 / STAYS < first / second < STAYS


def _between(low: float, high: float, scale: float) -> Form:
    if high == math.inf:
        return lambda free: low + scale * torch.nn.functional.softplus(free)
    if low == -math.inf:
        return lambda free: high - scale * torch.nn.functional.softplus(free)
    return lambda free: low + (high - low) * free.sigmoid()
