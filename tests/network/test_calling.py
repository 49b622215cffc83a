"""How a model is called with inputs of one, several or named arguments."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import wellcond as wc
from wellcond.network.calling import call, why_unfit

A, B = torch.ones(4, 3), torch.full((4, 3), 2.0)


class Both(nn.Module):
    def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        return pair[0] - pair[1]


class Two(nn.Module):
    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return first - second


class Many(nn.Module):
    def forward(self, *inputs: Tensor) -> Tensor:
        return inputs[0] - inputs[1]


class Optional(nn.Module):
    def forward(self, first: Tensor, second: Tensor | None = None) -> Tensor:
        return first if second is None else first - second


@pytest.mark.parametrize("model", [Both(), Two(), Many(), Optional()], ids=lambda model: type(model).__name__)
@pytest.mark.parametrize("kind", [tuple, list])
def test_a_tuple_is_one_argument_of_a_forward_that_takes_one(model: nn.Module, kind: Any) -> None:
    inputs = kind([A, B])
    assert why_unfit(model, inputs) == ""
    assert torch.equal(call(model, inputs), A - B)


def test_a_tuple_of_one_is_its_only_argument() -> None:
    assert torch.equal(call(nn.Identity(), (A,)), A)
    assert why_unfit(nn.Flatten(), (A,)) == ""
    assert "with 1 inputs" in why_unfit(Two(), (A,))
    assert "with 3 inputs" in why_unfit(Two(), (A, B, A))


def test_names_are_those_of_the_forward() -> None:
    assert torch.equal(call(Two(), {"second": B, "first": A}), A - B)
    assert "takes pair" in why_unfit(Both(), {"first": A, "second": B})


class Pair(nn.Module):
    """A linear layer of a pair."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 2)

    def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        out: Tensor = self.last(torch.cat([*pair], 1))
        return out


def test_a_problem_of_pairs_has_the_loss_by_hand() -> None:
    torch.manual_seed(0)
    model, targets = Pair().double(), torch.tensor([0, 1, 1, 0])
    pair = A.double(), B.double()
    problem = wc.Problem(model, nn.CrossEntropyLoss(), [(pair, targets)])
    by_hand = nn.CrossEntropyLoss()(model(pair), targets)
    assert float(problem.mean_loss()) == pytest.approx(by_hand.item(), rel=1e-12)
