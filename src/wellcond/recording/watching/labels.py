"""Labels of batches: whether all of a batch are alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from wellcond.problem.batches import LABELS
from wellcond.recording.watching.repeats import places_in
from wellcond.results import Row
from wellcond.results import quantities as q

FEWEST = 8
"""Labels of a batch; fewer may all be alike by chance."""


def labels_of(batch: Any) -> Tensor | None:
    """A few of a batch's class labels, spread over all of it; None if it has none.

    They are the last part of a tuple, or what is called so: whole numbers, one for each example.

    Example:
        >>> labels_of((torch.randn(8, 3), torch.full((8,), 2))).unique()
        tensor([2])
        >>> labels_of((torch.randn(8, 3), torch.randn(8)))
    """
    labels = None
    if isinstance(batch, Mapping):
        labels = next((batch[name] for name in LABELS if name in batch), None)
    elif isinstance(batch, (tuple, list)) and len(batch) > 1:
        labels = batch[-1]
    if not isinstance(labels, Tensor) or labels.layout is not torch.strided or labels.numel() < FEWEST:
        return None
    if labels.is_floating_point() or labels.is_complex() or labels.numel() != len(labels):
        return None
    return labels.detach().take(places_in(labels.numel(), labels.device))


class BatchLabels:
    """Says how alike the labels of batches are, and which is the commonest.

    Example:
        >>> [(row.quantity, row.value) for row in BatchLabels().rows(16, [3.0, 3.0, 1.0, 3.0])]
        [('batch_purity', 0.75), ('commonest_label', 3.0)]
    """

    def __init__(self) -> None:
        self._last: float | None = None

    def rows(self, step: int, labels: list[float]) -> list[Row]:
        """The share of the commonest of a few labels, and which that is if it is another one than before."""
        ((commonest, count),) = Counter(labels).most_common(1)
        is_new, self._last = commonest != self._last, commonest
        rows = [Row(step, "", q.BATCH_PURITY, count / len(labels), "")]
        return [*rows, Row(step, "", q.COMMONEST_LABEL, commonest, "")] if is_new else rows
