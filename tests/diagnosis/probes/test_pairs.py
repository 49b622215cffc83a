"""Which losses compare outputs with examples, and which outputs another network judges."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from zoo import normal

import wellcond as wc
from wellcond.diagnosis.probes.judges import is_judged_by_network
from wellcond.diagnosis.probes.paired import depends_on_pairs, paired


def ranked(margin: float) -> wc.Problem:
    """A model whose outputs are ranked: those of the first half of the inputs above those of the second half."""
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.ones_(model.weight)

    def step(model: nn.Module, batch: Any) -> Tensor:
        better, worse = batch
        return F.relu(margin - (model(better) - model(worse))).mean()

    x = normal(8, 1).abs()
    return wc.Problem.from_step(model, step, [(x + 2, -x - 2)])


def test_what_is_ranked_above_changes_places_with_what_is_ranked_below() -> None:
    """`better - worse` is at least 4 for all pairs, and at most -4 once the calls are exchanged."""
    problem = ranked(margin=1.0)
    result = paired(problem, next(iter(problem.loader)))
    assert result is not None
    assert result.loss == 0
    assert result.of_others >= 1 + 4


def test_outputs_go_to_other_examples_and_nobody_keeps_its_own() -> None:
    x = normal(9, 2)
    model = nn.Linear(2, 2, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.eye(2))
    problem = wc.Problem(model, lambda outputs, targets: (outputs - targets).abs().amin(0).sum(), (x, x))
    result = paired(problem, (x, x))
    assert result is not None
    assert result.loss == 0
    assert result.of_others > 0  # one output in its own place would make it zero


@pytest.mark.parametrize(("compares", "expected"), [(True, True), (False, False)])
def test_a_loss_of_the_outputs_alone_does_not_depend_on_pairs(compares: bool, expected: bool) -> None:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.mse_loss(outputs, targets) if compares else outputs.square().mean()

    x, y = normal(8, 3), normal(8, 2, seed=1)
    assert depends_on_pairs(wc.Problem(nn.Linear(3, 2).double(), loss, (x, y)), (x, y)) is expected


def test_a_critic_judges_and_a_distance_does_not() -> None:
    critic, generator = nn.Linear(2, 1).double(), nn.Linear(3, 2).double()
    x, y = normal(8, 3), normal(8, 2, seed=1)

    def by_critic(outputs: Tensor, targets: Tensor) -> Tensor:
        return -critic(outputs).mean()

    def with_features(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.mse_loss(outputs, critic(targets).detach().expand_as(outputs))  # it sees the targets only

    assert is_judged_by_network(wc.Problem(generator, by_critic, (x, y)))
    assert not is_judged_by_network(wc.Problem(generator, with_features, (x, y)))
    assert not is_judged_by_network(wc.Problem(generator, nn.MSELoss(), (x, y)))
