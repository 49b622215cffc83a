"""Whether inputs predict targets: three probes of the data, compared with shuffled targets."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from wellcond.problem.problem import Problem

EXAMPLES_READ = 1024
BATCHES_READ = 64
PROBED_FEATURES = 2**14
"""Numbers of an example that are probed; of larger images every few pixels are."""
SHUFFLES = 100
MOST_COLUMNS = 16
"""Columns of the targets; more classes or outputs are projected at random to this number."""
MOST_OUTPUTS = 64
"""Numbers per target; larger targets, such as images, are not probed."""
SLOW = 1e-3
"""Share of the largest eigenvalue below which a direction is slow: gradient descent needs 1,000 times more steps."""
EVIDENT = 8.0
"""Standard deviations of shuffled targets from which on a relation is beyond doubt; chance exceeds 4 once in 30,000."""
RIDGE = 0.1
"""Ridge over the mean eigenvalue of the features' second moment; it prevents a fit when there are more features than
examples."""


@dataclass(frozen=True)
class Relation:
    """How well inputs predict targets, by leave-one-out predictions, in standard deviations of shuffled targets.

    Attributes:
        examples: Number of examples read.
        neighbor: Advantage of the nearest neighbor's target over a shuffled one.
        linear: Advantage of ridge regression.
        smooth: Advantage of kernel ridge regression, with a Gaussian as wide as the median distance.
        single: Advantage of the feature that is correlated most with a target; 0 if the others leave no doubt.
        structure: λ_max of the inputs' correlation over the largest that independent features have by chance
            (Marchenko-Pastur). Above 1 the inputs have structure that the probes can use; noise has none.
        features: Number of features that vary.
        is_regression: Whether the targets are numbers, and not classes or zeros and ones.
        effective: Twice the examples that are not of the commonest class, or all: a rare class says little.
        slow: What gradient descent on these features learns last; None if there are too few examples.
        linear_error: What ridge regression gets wrong, classes or the squares of numbers, over what a constant does.
        other_error: What the better of the other two probes gets wrong.
        is_of_whole: Whether a sequence of tokens has one label, which may depend on more than tokens and their places.
    """

    examples: int
    neighbor: float
    linear: float
    smooth: float
    single: float
    structure: float
    features: int
    is_regression: bool
    effective: int
    slow: Slow | None
    linear_error: float = math.nan
    other_error: float = math.nan
    is_of_whole: bool = False

    @property
    def best(self) -> float:
        """The advantage of the best probe."""
        return max(self.neighbor, self.linear, self.smooth, self.single)


@dataclass(frozen=True)
class Slow:
    """Variance of the targets that a linear fit explains, by the directions of the features that it uses.

    Attributes:
        fast: Share explained by directions with at least 1/1000 of the largest eigenvalue.
        rest: Share explained by the other directions, minus what they would explain by chance.
        condition: λ_max/λ of the most predictive slow direction, i.e. how many times more steps it needs.
        is_of_scales: Whether it is so for the features as they are, with their means, and less if standardized.
    """

    fast: float
    rest: float
    condition: float
    is_of_scales: bool = False


@dataclass(frozen=True)
class Prediction:
    """How well features predict targets linearly, each target from the other examples.

    Attributes:
        advantage: Over shuffled targets, in standard deviations of these.
        error: Squared error over the targets' variance.
    """

    advantage: float
    error: float


def left_out_prediction(features: Tensor, targets: Tensor) -> Prediction:
    """Predict targets (n,) or (n, k) by leave-one-out ridge regression on features (n, d), compared with shuffles."""
    y = columns(targets[:, None] if targets.dim() == 1 else targets)
    x = features.double()
    x = x[:, x.std(0) > 0]
    if len(x) < 3 or not x.shape[1] or not bool((y != y[0]).any()):
        return Prediction(0.0, 1.0)
    x = (x - x.mean(0)) / x.std(0)
    errors = _left_out(x @ x.T, min(x.shape), y, _orders(len(x)).to(x.device)).errors
    return Prediction(_deviations(errors), float(errors[0] / (y - y.mean(0)).square().sum()))


def relation(problem: Problem) -> Relation | None:
    """Probe a problem's data; None if inputs are not features (tokens, several tensors) or targets are not labels.

    Each example's target is predicted from the others: by its nearest neighbor, by ridge regression and by kernel
    ridge regression. All are compared with 100 shuffles of the targets. Numbers that are not evidently predicted are
    replaced by their ranks if that shows more: a few outliers outweigh all else in a squared error. No pass through the
    model is made.

    Args:
        problem: Problem whose loader is read, up to 1024 examples.
    """
    with problem.measuring():
        pairs = list(islice(_read(problem), BATCHES_READ))
    if not pairs or len({(x.shape[1:], y.shape[1:]) for x, y in pairs}) > 1:
        return None
    x = torch.cat([x for x, _ in pairs])[:EXAMPLES_READ]
    labels = torch.cat([y for _, y in pairs])[:EXAMPLES_READ]
    is_known = labels.isfinite().all(1)  # missing values may be marked by NaN
    x, labels = x[is_known], labels[is_known]
    is_regression = labels.is_floating_point() and not bool(((labels == 0) | (labels == 1)).all())
    x = x.flatten(1)
    x = x[:, :: math.ceil(x.shape[1] / PROBED_FEATURES)].double()
    of_values = related(x, columns(labels), is_regression)
    if of_values is None or not is_regression or of_values.best > EVIDENT:
        return of_values
    of_ranks = related(x, columns(ranks(labels)), is_regression)  # outliers hide a relation from squared errors
    return of_values if of_ranks is None or of_ranks.best <= of_values.best else of_ranks


def related(x: Tensor, y: Tensor, is_regression: bool) -> Relation | None:
    """Probes of features (n, d) and columns of targets (n, c); None if either does not vary."""
    x = x[:, x.std(0) > 0]
    if len(x) < 3 or not x.shape[1] or not bool(x.isfinite().all()) or not bool((y != y[0]).any()):
        return None
    slow = _slow(x, y)
    x = (x - x.mean(0)) / x.std(0)
    orders = _orders(len(x)).to(x.device)
    distances = torch.cdist(x, x)
    kernel = (-0.5 * (distances / distances.median()).square()).exp()
    nearest = distances.fill_diagonal_(math.inf).argmin(1)
    linear, smooth = (_left_out(*gram, y, orders) for gram in ((x @ x.T, min(x.shape)), (_centered(kernel), len(x))))
    others = [_wrong(y, each, is_regression=is_regression) for each in (y[nearest], smooth.predicted)]
    commonest = 0 if is_regression else int(torch.unique(y, dim=0, return_counts=True)[1].max())
    of_neighbors = (y[orders] - y[orders[:, nearest]]).square().sum((1, 2))
    known = [_deviations(errors) for errors in (of_neighbors, linear.errors, smooth.errors)]
    return Relation(
        examples=len(x),
        neighbor=known[0],
        linear=known[1],
        smooth=known[2],
        single=0.0 if max(known) > EVIDENT else _deviations(-_strongest(x, y, orders)),
        structure=_structure(x),
        features=x.shape[1],
        is_regression=is_regression,
        effective=min(len(x), 2 * (len(x) - commonest)),
        slow=slow,
        linear_error=_wrong(y, linear.predicted, is_regression=is_regression),
        other_error=min(others),
    )


def _strongest(x: Tensor, y: Tensor, orders: Tensor) -> Tensor:
    """The largest squared correlation of a standardized feature with a target, in every order of the targets."""
    y = y[:, y.std(0) > 0]
    y = (y - y.mean(0)) / y.std(0)
    correlations = x.float().T @ y[orders].movedim(0, 1).flatten(1).float() / len(x)
    return correlations.square().amax(0).view(len(orders), -1).amax(1)


def _wrong(y: Tensor, predicted: Tensor, *, is_regression: bool) -> float:
    """How many classes, given as indicators, are predicted wrongly, or squared errors, over those of a constant."""
    if is_regression or not bool(((y == 0) | (y == 1)).all()):
        return float((y - predicted).square().sum() / (y - y.mean(0)).square().sum())
    labels, guesses = (t.argmax(1) if t.shape[1] > 1 else (t[:, 0] > 0.5).long() for t in (y, predicted))
    return float((labels != guesses).sum() / (len(y) - labels.bincount().max()))


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
                x[0].detach(),
                y[0].detach().to(x[0].device).flatten(1) if y[0].dim() > 1 else y[0].detach().to(x[0].device)[:, None],
            )
            seen += len(x[0])
            if seen >= EXAMPLES_READ:
                return


def _orders(count: int) -> Tensor:
    """The order as it is, and shuffles of it."""
    generator = torch.Generator().manual_seed(0)
    return torch.stack([torch.arange(count), *(torch.randperm(count, generator=generator) for _ in range(SHUFFLES))])


def columns(y: Tensor) -> Tensor:
    """(n, c) of few columns: indicators of classes, or numbers as they are; many are mixed at random."""
    if not y.is_floating_point():
        _, index = torch.unique(y[:, 0], return_inverse=True)
        y = torch.nn.functional.one_hot(index)
    return mixed(y.double())


def ranks(y: Tensor) -> Tensor:
    """(n, c) with every number replaced by its rank in its column, the same for equal numbers, from 0 to 1."""
    ordered = [torch.unique(column, return_inverse=True)[1].double() for column in y.unbind(1)]
    return torch.stack([each / each.max().clamp_min(1) for each in ordered], 1)


def mixed(y: Tensor) -> Tensor:
    """(n, c) of few columns: many are projected at random."""
    if y.shape[1] <= MOST_COLUMNS:
        return y
    mix = torch.randn(y.shape[1], MOST_COLUMNS, generator=torch.Generator().manual_seed(1), dtype=y.dtype)
    return y @ mix.to(y.device)


class _LeftOut(NamedTuple):
    """Leave-one-out ridge predictions: their squared error in every order of the targets, and those of the first."""

    errors: Tensor
    predicted: Tensor


def _left_out(gram: Tensor, rank: int, y: Tensor, orders: Tensor) -> _LeftOut:
    n = len(gram)
    ridge = max(RIDGE * float(gram.trace()) / rank, 1e-9)
    hat = torch.linalg.solve(gram + ridge * torch.eye(n, dtype=gram.dtype, device=gram.device), gram).T + 1 / n
    targets = (y - y.mean(0))[orders].movedim(0, 1).flatten(1)
    errors = (targets - hat @ targets) / (1 - hat.diagonal()).clamp_min(1e-6)[:, None]
    return _LeftOut(errors.square().sum(0).view(len(orders), -1).sum(1), y - errors[:, : y.shape[1]])


def _centered(kernel: Tensor) -> Tensor:
    means = kernel.mean(0)
    return kernel - means - means[:, None] + means.mean()


def _deviations(errors: Tensor) -> float:
    """By how many standard deviations of shuffled targets the error of the true ones, the first, is smaller."""
    spread = float(errors[1:].std())
    return float(errors[1:].mean() - errors[0]) / spread if spread > 0 else 0.0


def _slow(x: Tensor, y: Tensor) -> Slow | None:
    """What is learned last of standardized features or, if that is more, of the features as they are."""
    n, d = x.shape
    if d < 2 or n < 8 * d:
        return None
    centered, y = x - x.mean(0), y - y.mean(0)
    standardized = _slow_along(centered / x.std(0), y)
    as_they_are = _slow_along(centered, y, largest=torch.linalg.matrix_norm(x, 2).square())
    return replace(as_they_are, is_of_scales=True) if as_they_are.rest > standardized.rest else standardized


def _slow_along(x: Tensor, y: Tensor, largest: Tensor | None = None) -> Slow:
    """By the directions of centered features; the largest eigenvalue may be that of their means."""
    u, s, _ = torch.linalg.svd(x, full_matrices=False)
    eigenvalues = s.square()
    largest = eigenvalues[0] if largest is None else largest
    explained = (u.T @ y).square().sum(1) / y.square().sum()
    is_slow = eigenvalues < SLOW * largest
    if not bool(is_slow.any()):
        return Slow(float(explained.sum()), 0.0, float(largest / eigenvalues[-1]))
    most = int(torch.where(is_slow, explained, -1.0).argmax())
    by_chance = float(is_slow.sum()) / len(x)
    rest = float(explained[is_slow].sum()) - by_chance
    return Slow(float(explained[~is_slow].sum()), rest, float(largest / eigenvalues[most]))


def _structure(x: Tensor) -> float:
    n, d = x.shape
    spectrum = torch.linalg.eigvalsh(x.T @ x / n if d < n else x @ x.T / n)
    return float(spectrum[-1]) / (1 + math.sqrt(d / n)) ** 2
