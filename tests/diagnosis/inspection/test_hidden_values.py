"""Masks that show only padding, and right ones, in attention of both kinds."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import wellcond as wc
from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.inspection.inspect import inspect
from wellcond.diagnosis.rules.wrong_mask import shows_nothing


class Pool(nn.Module):
    def __init__(self, *, is_inverted: bool, is_kernel: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 16, padding_idx=0)
        self.query = nn.Parameter(torch.randn(1, 1, 16))
        self.attend, self.out = nn.MultiheadAttention(16, 2, batch_first=True), nn.Linear(16, 2)
        self.is_inverted, self.is_kernel = is_inverted, is_kernel

    def forward(self, tokens: Tensor) -> Tensor:
        hidden, query = self.embed(tokens), self.query.expand(len(tokens), -1, -1)
        is_real = (tokens == 0) if self.is_inverted else (tokens != 0)
        if self.is_kernel:
            values = hidden.unsqueeze(1)
            pooled = F.scaled_dot_product_attention(query.unsqueeze(1), values, values, is_real[:, None, None])[:, 0]
        else:
            pooled = self.attend(query, hidden, hidden, key_padding_mask=~is_real)[0]
        result: Tensor = self.out(pooled[:, 0])
        return result


@pytest.mark.parametrize("is_kernel", [True, False])
@pytest.mark.parametrize("is_inverted", [True, False])
def test_a_mask_that_shows_padding_alone(is_inverted: bool, is_kernel: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, 20, (32, 12), generator=draw)
    tokens[torch.arange(12) >= torch.randint(4, 11, (32, 1), generator=draw)] = 0
    torch.manual_seed(0)
    model = Pool(is_inverted=is_inverted, is_kernel=is_kernel)
    problem = wc.Problem(model, nn.CrossEntropyLoss(), [(tokens, tokens[:, 0] % 2)])
    findings = [each.severity for each in shows_nothing(Evidence(problem, None, inspect(problem, None)))]
    assert findings == (["severe"] if is_inverted else [])


def test_values_that_do_not_differ_yet_are_no_mask() -> None:
    model = Pool(is_inverted=False, is_kernel=False)
    nn.init.zeros_(model.embed.weight)
    tokens = torch.tensor([[3, 4, 0, 0], [5, 6, 7, 0]])
    problem = wc.Problem(model, nn.CrossEntropyLoss(), [(tokens, torch.tensor([0, 1]))])
    assert not list(shows_nothing(Evidence(problem, None, inspect(problem, None))))
