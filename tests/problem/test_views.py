"""Outputs that are views and are written over in place: what is measured and trained is as without the writing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from references import assert_same
from torch import Tensor, nn
from zoo import CLASSES, integers, normal, seeded

import wellcond as wc


class Tokens(nn.Module):
    """A linear layer on (N, T, d), which gives a view, and an activation over it."""

    def __init__(self, inplace: bool) -> None:
        super().__init__()
        self.first, self.act, self.head = nn.Linear(4, 5), nn.ReLU(inplace), nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.act(self.first(x))).mean(1)


class Attention(nn.Module):
    """Attention whose output the skip connection is added onto."""

    def __init__(self, inplace: bool) -> None:
        super().__init__()
        self.attention, self.inplace = nn.MultiheadAttention(4, 2, batch_first=True), inplace
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y = self.attention(x, x, x, need_weights=False)[0]
        if self.inplace:
            y += x
        else:
            y = y + x
        return self.head(y.mean(1))


class Recurrent(nn.Module):
    """A recurrent layer with the batch first, whose output is a transposed view."""

    def __init__(self, inplace: bool) -> None:
        super().__init__()
        self.cell, self.act, self.head = nn.GRU(4, 5, batch_first=True), nn.ReLU(inplace), nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.act(self.cell(x)[0]).mean(1))


@pytest.mark.parametrize("network", [Tokens, Attention, Recurrent])
def test_conditioning_sees_the_gradient_of_a_view_that_is_written_over(network: Callable[[bool], nn.Module]) -> None:
    batch = (normal(6, 3, 4), integers(CLASSES, 6))
    models = [seeded(lambda inplace=inplace: network(inplace)) for inplace in (False, True)]
    tables = [wc.conditioning(wc.Problem(model, nn.CrossEntropyLoss(), batch)) for model in models]
    for name in tables[0]:
        assert_same(tables[1][name].g.values, tables[0][name].g.values, 1e-10)
        assert_same(tables[1][name].x.values, tables[0][name].x.values, 1e-12)


def test_bnp_preconditions_a_layer_whose_output_is_written_over() -> None:
    after = []
    for inplace in (False, True):
        model = seeded(lambda inplace=inplace: Tokens(inplace)).train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        wc.BNP(model, optimizer)
        nn.functional.cross_entropy(model(normal(6, 3, 4)), integers(CLASSES, 6)).backward()
        optimizer.step()
        after.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert_same(after[1], after[0], 1e-14)
