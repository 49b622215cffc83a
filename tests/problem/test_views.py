"""Outputs that are views and are written over in place: what is measured and trained is as without the writing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from references import assert_same
from torch import Tensor, nn
from zoo import CLASSES, Written, integers, normal, seeded

import wellcond as wc


def tokens(inplace: bool) -> nn.Module:
    """A linear layer on (N, T, d), which gives a view, and an activation over it."""
    layers = {"first": nn.Linear(4, 5), "act": nn.ReLU(inplace), "head": nn.Linear(5, CLASSES)}
    return Written(lambda m, x: m.head(m.act(m.first(x))).mean(1), **layers)


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


def recurrent(inplace: bool) -> nn.Module:
    """A recurrent layer with the batch first, whose output is a transposed view."""
    layers = {"cell": nn.GRU(4, 5, batch_first=True), "act": nn.ReLU(inplace), "head": nn.Linear(5, CLASSES)}
    return Written(lambda m, x: m.head(m.act(m.cell(x)[0]).mean(1)), **layers)


@pytest.mark.parametrize("network", [tokens, Attention, recurrent])
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
        model = seeded(lambda inplace=inplace: tokens(inplace)).train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        wc.BNP(model, optimizer)
        nn.functional.cross_entropy(model(normal(6, 3, 4)), integers(CLASSES, 6)).backward()
        optimizer.step()
        after.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert_same(after[1], after[0], 1e-14)
