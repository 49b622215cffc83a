"""What a product holds at its peak, next to a gradient of the same batch."""

from __future__ import annotations

import pytest
import torch
from live_bytes import LiveBytes
from torch import nn
from zoo import integers, normal, seeded

import wellcond as wc


def deep(batches: int) -> wc.Problem:
    layers = [module for _ in range(6) for module in (nn.Linear(8, 8), nn.Tanh())]
    model = seeded(lambda: nn.Sequential(*layers))
    return wc.Problem(model, nn.CrossEntropyLoss(), [(normal(512, 8), integers(8, 512)) for _ in range(batches)])


@pytest.mark.parametrize("operator", [wc.Hessian, wc.GGN])
def test_over_several_batches_one_graph_lives_at_a_time(operator: type[wc.Hessian]) -> None:
    """And the last product with it frees each part of it, so that several batches take less than one that is kept."""
    peaks = []
    for count in (1, 3):
        of = deep(count)
        v = torch.ones(of.size)
        with LiveBytes() as held:
            operator(of) @ v
        peaks.append(held.peak)
    assert peaks[1] < 1.02 * peaks[0]
