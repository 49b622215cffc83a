"""Models whose loss can be computed in training mode only are diagnosed in training mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import wellcond as wc
from wellcond.problem.working_mode import in_working_mode

X = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] + X[:, 1] > 0).long()


class Heads(nn.Module):
    """A second head, whose outputs are returned in training only, in a form of its own."""

    def __init__(self, returned: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.body, self.dropout = nn.Linear(6, 16), nn.Dropout(0.1)
        self.first, self.second = nn.Linear(16, 2), nn.Linear(16, 2)
        self.returned = returned

    def forward(self, x: Tensor) -> Any:
        h = self.dropout(F.relu(self.body(x)))
        return self.returned(self.first(h), self.second(h)) if self.training else self.first(h)


class OwnLoss(nn.Module):
    """Returns its loss in training and its answer otherwise, as detectors do."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, x: Tensor, y: Tensor) -> Any:
        logits = self.body(x)
        return {"loss": F.cross_entropy(logits, y)} if self.training else {"labels": logits.argmax(1)}


def both(first: Tensor, second: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(first, targets) + 0.3 * F.cross_entropy(second, targets)


def unpacked() -> wc.Problem:
    def loss(out: Any, y: Tensor) -> Tensor:
        first, second = out
        return both(first, second, y)

    return wc.Problem(Heads(lambda a, b: (a, b)), loss, (X, Y))


def in_a_dict() -> wc.Problem:
    return wc.Problem(Heads(lambda a, b: {"a": a, "b": b}), lambda out, y: both(out["a"], out["b"], y), (X, Y))


def computed_inside() -> wc.Problem:
    return wc.Problem.from_step(OwnLoss(), lambda model, batch: model(*batch)["loss"], [(X, Y)])


@pytest.mark.parametrize("build", [unpacked, in_a_dict, computed_inside])
def test_a_loss_of_what_is_returned_in_training_only_is_no_fault(build: Callable[[], wc.Problem]) -> None:
    torch.manual_seed(0)
    problem = build()
    modes = [module.training for module in problem.model.modules()]
    state = {name: value.clone() for name, value in problem.model.state_dict().items()}
    drawn = torch.get_rng_state()
    verdict = wc.diagnose(problem, torch.optim.Adam(problem.model.parameters(), 1e-2))
    assert [finding for finding in verdict.findings if finding.severity == "severe"] == []
    assert verdict.evidence.trial is not None
    assert verdict.evidence.trial.trains
    assert [module.training for module in problem.model.modules()] == modes
    assert all(torch.equal(value, state[name]) for name, value in problem.model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), drawn)


def test_the_mode_stays_where_the_loss_works_in_evaluation_or_in_neither() -> None:
    torch.manual_seed(0)
    plain = wc.Problem(nn.Linear(6, 2), nn.CrossEntropyLoss(), (X, Y))
    assert in_working_mode(plain) is plain
    broken = wc.Problem(nn.Linear(6, 3), nn.MSELoss(), (X, torch.zeros(64, 2)))
    assert in_working_mode(broken) is broken
    assert wc.diagnose(broken).findings[0].severity == "severe"
    assert in_working_mode(unpacked()).dropout is not None
