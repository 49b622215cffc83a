"""Whether targets have anything to do with inputs: two probes of the data, against shuffled targets."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from wellcond.problem.problem import Problem

MOST_EXAMPLES = 1024
MOST_BATCHES = 64
SHUFFLES = 100
MOST_COLUMNS = 16
"""Of the targets: more classes or outputs are mixed at random to so many."""
MOST_OUTPUTS = 64
"""Numbers per target; images as targets are a matter of their own."""
RIDGE = 0.1
"""Of the mean eigenvalue of the features' second moment: enough to keep as many features as examples from fitting."""


@dataclass(frozen=True)
class Relation:
    """How well inputs tell targets, by leave-one-out predictions, in standard deviations of shuffled targets.

    Attributes:
        examples: How many were seen.
        neighbour: How far the nearest neighbour's target is better than that of a shuffled set.
        linear: The same of ridge regression.
        structure: λ_max of the inputs' correlation over the largest that independent features have by chance
            (Marchenko-Pastur). Above 1 inputs are alike in something, which probes can use; noise is not.
    """

    examples: int
    neighbour: float
    linear: float
    structure: float


def relation(problem: Problem) -> Relation | None:
    """Probe a problem's data; None where inputs are no features: tokens, several tensors, or targets of another form.

    Each example's target is predicted from the others: by its nearest neighbour, and by ridge regression. Both are
    compared with 100 shuffles of the targets. No pass through the model is made.

    Args:
        problem: Its loader is read, as far as 1024 examples.
    """
    pairs = list(islice(_read(problem), MOST_BATCHES))
    if not pairs or len({(x.shape[1:], y.shape[1:]) for x, y in pairs}) > 1:
        return None
    x = torch.cat([x for x, _ in pairs])[:MOST_EXAMPLES]
    y = _columns(torch.cat([y for _, y in pairs])[:MOST_EXAMPLES])
    x = x.flatten(1).double()
    x = x[:, x.std(0) > 0]
    if len(x) < 3 or not x.shape[1] or not bool(x.isfinite().all()) or not bool((y != y[0]).any()):
        return None
    x = (x - x.mean(0)) / x.std(0)
    generator = torch.Generator().manual_seed(0)
    orders = [torch.randperm(len(x), generator=generator) for _ in range(SHUFFLES)]
    return Relation(len(x), _neighbour(x, y, orders), _linear(x, y, orders), _structure(x))


def _read(problem: Problem) -> Iterator[tuple[Tensor, Tensor]]:
    """Features and targets of every batch, as long as they are one tensor each, with examples in front."""
    seen = 0
    with contextlib.closing(problem.data()) as data:
        for _, (inputs, targets) in data:
            x = [t for t in tree_leaves(inputs) if isinstance(t, Tensor)]
            y = [t for t in tree_leaves(targets) if isinstance(t, Tensor)]
            if len(x) != 1 or len(y) != 1 or not x[0].is_floating_point() or x[0].dim() < 2 or not y[0].dim():
                return
            is_index = not y[0].is_floating_point()
            if len(x[0]) != len(y[0]) or y[0][0].numel() > (1 if is_index else MOST_OUTPUTS) or x[0] is y[0]:
                return
            yield (
                x[0].detach().cpu(),
                y[0].detach().cpu().flatten(1) if y[0].dim() > 1 else y[0].detach().cpu()[:, None],
            )
            seen += len(x[0])
            if seen >= MOST_EXAMPLES:
                return


def _columns(y: Tensor) -> Tensor:
    """(n, c) of few columns: indicators of classes, or numbers as they are; many are mixed at random."""
    if not y.is_floating_point():
        _, index = torch.unique(y[:, 0], return_inverse=True)
        y = torch.nn.functional.one_hot(index)
    y = y.double()
    if y.shape[1] <= MOST_COLUMNS:
        return y
    mix = torch.randn(y.shape[1], MOST_COLUMNS, generator=torch.Generator().manual_seed(1), dtype=y.dtype)
    return y @ mix


def _neighbour(x: Tensor, y: Tensor, orders: list[Tensor]) -> float:
    distances = torch.cdist(x, x)
    distances.fill_diagonal_(math.inf)
    nearest = distances.argmin(1)
    return _deviations(lambda t: float((t - t[nearest]).square().sum()), y, orders)


def _linear(x: Tensor, y: Tensor, orders: list[Tensor]) -> float:
    n, d = x.shape
    gram = x @ x.T
    ridge = max(RIDGE * float(gram.trace()) / min(n, d), 1e-9)
    hat = torch.linalg.solve(gram + ridge * torch.eye(n, dtype=x.dtype), gram).T + 1 / n
    left_out = (1 - hat.diagonal()).clamp_min(1e-6)[:, None]

    def error(t: Tensor) -> float:
        centred = t - t.mean(0)
        return float(((centred - hat @ centred) / left_out).square().sum())

    return _deviations(error, y, orders)


def _deviations(error: Any, y: Tensor, orders: list[Tensor]) -> float:
    """By how many standard deviations of shuffled targets the error of the true ones is smaller."""
    shuffled = torch.tensor([error(y[order]) for order in orders])
    spread = float(shuffled.std())
    return (float(shuffled.mean()) - error(y)) / spread if spread > 0 else 0.0


def _structure(x: Tensor) -> float:
    n, d = x.shape
    spectrum = torch.linalg.eigvalsh(x.T @ x / n if d < n else x @ x.T / n)
    return float(spectrum[-1]) / (1 + math.sqrt(d / n)) ** 2
