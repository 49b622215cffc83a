"""What is refused before anything is measured, with the cure."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import wellcond as wc
from wellcond.errors import InvalidProblem
from wellcond.network.checks import not_finite_parameter


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (torch.ones(3, requires_grad=True), r"is a Tensor, and no nn\.Module\. Hold it in a module"),
        ([nn.Linear(2, 1)], r"is a list.*nn\.ModuleList\(\[…\]\)"),
        ({"a": nn.Linear(2, 1)}, r"is a dict.*nn\.ModuleDict\(\{…\}\)"),
        (lambda x: x, r"is a function.*Pass the nn\.Module that holds what is trained"),
    ],
    ids=["tensor", "list", "dict", "function"],
)
def test_what_is_no_module_is_refused_with_how_to_make_one(model: Any, words: str) -> None:
    with pytest.raises(InvalidProblem, match=words):
        wc.Problem(model, nn.MSELoss(), (torch.ones(4, 2), torch.ones(4, 1)))


def test_the_first_parameter_that_is_not_finite_is_named_also_a_frozen_one() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 2))
    assert not_finite_parameter(model) is None
    with torch.no_grad():
        model[2].weight[0, 0] = torch.nan
        model[1].bias[1] = -torch.inf
    assert not_finite_parameter(model) == "1.bias"
