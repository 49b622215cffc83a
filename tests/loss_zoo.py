"""Losses of every kind, each as a `Case` on a small network."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from references import Terms, bernoulli, categorical, gaussian
from torch import Tensor, nn
from zoo import CLASSES, Case, Transformer, flattened_cross_entropy, integers, mlp, normal, seeded


def soft(*shape: int) -> Tensor:
    return normal(*shape, seed=5).softmax(1)


def sequence(loss: Any, terms: Terms | None, targets: Tensor, classes_second: bool) -> Case:
    """A one-layer transformer on (3, T) tokens."""
    model = seeded(lambda: Transformer(layers=1, width=3, heads=1, classes_second=classes_second))
    return Case(
        model, loss, (integers(5, 3, targets.shape[-1] if classes_second else targets.shape[1]), targets), terms
    )


def regression(outputs: int, loss: Any, terms: Terms | None, targets: Tensor) -> Case:
    return Case(mlp(outputs), loss, (normal(len(targets), 4), targets), terms)


def ignoring(index: int, *shape: int) -> Tensor:
    """Class indices, of which about a third are `index`, unevenly spread."""
    targets = integers(CLASSES, *shape)
    targets.view(-1)[: targets.numel() // 3] = index
    return targets


def vector(model: nn.Module) -> nn.Module:
    return nn.Sequential(model, nn.Flatten(0))


def cross_entropy_ignoring_2(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, ignore_index=2)


LOSSES: dict[str, Callable[[], Case]] = {
    # cross-entropy
    "class_probabilities": lambda: regression(3, nn.CrossEntropyLoss(), categorical(), soft(6, 3)),
    "ignore_index": lambda: regression(3, nn.CrossEntropyLoss(), categorical(), ignoring(-100, 9)),
    "custom_ignore_index": lambda: regression(
        3, nn.CrossEntropyLoss(ignore_index=1), categorical(ignore_index=1), ignoring(1, 9)
    ),
    "partial_ignore_index": lambda: regression(
        3, functools.partial(F.cross_entropy, ignore_index=-1), categorical(ignore_index=-1), ignoring(-1, 9)
    ),
    "hidden_ignore_index": lambda: regression(
        3, cross_entropy_ignoring_2, categorical(ignore_index=2), ignoring(2, 9)
    ),
    "positions": lambda: sequence(nn.CrossEntropyLoss(), categorical(), integers(CLASSES, 3, 4), True),
    "positions_ignored": lambda: sequence(nn.CrossEntropyLoss(), categorical(), ignoring(-100, 3, 4), True),
    "as_many_positions_as_classes": lambda: sequence(nn.CrossEntropyLoss(), categorical(), integers(3, 3, 3), True),
    "positions_probabilities": lambda: sequence(nn.CrossEntropyLoss(), categorical(), soft(3, CLASSES, 4), True),
    "tokens": lambda: sequence(flattened_cross_entropy, categorical(-1), integers(CLASSES, 3, 4), False),
    "tokens_ignored": lambda: sequence(flattened_cross_entropy, categorical(-1), ignoring(-100, 3, 4), False),
    "as_many_tokens_as_classes": lambda: sequence(flattened_cross_entropy, categorical(-1), integers(3, 3, 3), False),
    "tokens_probabilities": lambda: sequence(
        lambda f, y: F.cross_entropy(f.flatten(0, 1), y.flatten(0, 1)), categorical(-1),
        soft(3, CLASSES, 4).transpose(1, 2), False,
    ),
    # squared error
    "mse": lambda: regression(3, nn.MSELoss(), gaussian(1 / 3), normal(5, 3)),
    "mse_one": lambda: regression(1, nn.MSELoss(), gaussian(1), normal(5, 1)),
    "mse_of_sums": lambda: regression(3, lambda f, y: ((f - y) ** 2).sum(1).mean(), gaussian(1), normal(5, 3)),
    "mse_halved": lambda: regression(2, lambda f, y: 0.5 * F.mse_loss(f, y), gaussian(1 / 4), normal(5, 2)),
    "mse_vector": lambda: Case(vector(mlp(1)), nn.MSELoss(), (normal(5, 4), normal(5)), gaussian(1)),
    "mse_tokens": lambda: Case(mlp(2), nn.MSELoss(), (normal(3, 2, 4), normal(3, 2, 2)), gaussian(1 / 4)),
    # binary cross-entropy
    "bce_one": lambda: regression(1, nn.BCEWithLogitsLoss(), bernoulli(1), integers(2, 5, 1).double()),
    "bce_vector": lambda: Case(
        vector(mlp(1)), nn.BCEWithLogitsLoss(), (normal(5, 4), integers(2, 5).double()), bernoulli(1)
    ),
    "bce_many": lambda: regression(3, nn.BCEWithLogitsLoss(), bernoulli(1 / 3), integers(2, 5, 3).double()),
    "bce_of_sums": lambda: regression(
        3, lambda f, y: F.binary_cross_entropy_with_logits(f, y, reduction="none").sum(1).mean(), bernoulli(1),
        integers(2, 5, 3).double(),
    ),
    "bce_soft": lambda: regression(2, nn.BCEWithLogitsLoss(), bernoulli(1 / 2), normal(5, 2).sigmoid()),
}  # fmt: skip
"""Losses that are the logarithm of a likelihood, on small networks."""

OTHER_LOSSES: dict[str, Callable[[], Case]] = {
    "log_cosh": lambda: regression(2, lambda f, y: (f - y).cosh().log().mean(), None, normal(5, 2)),
    "poisson": lambda: regression(2, nn.PoissonNLLLoss(), None, integers(4, 5, 2).double()),
    "label_smoothing": lambda: regression(3, nn.CrossEntropyLoss(label_smoothing=0.1), None, integers(3, 6)),
    "class_weights": lambda: regression(
        3, nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)), None, integers(3, 6)
    ),
    "focal": lambda: regression(
        3, lambda f, y: (-((1 - (p := f.log_softmax(1).gather(1, y[:, None])).exp()) ** 2) * p).mean(), None,
        integers(3, 6),
    ),
}  # fmt: skip
"""Losses without a likelihood: Hessian and GGN alone."""
