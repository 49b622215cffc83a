"""Hooks on gradients are part of training: copies are trained with them, and measurements are made without."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from zoo import integers, normal

import wellcond as wc
from wellcond.training.copy_trainer import CopyTrainer


def clipped(most: float) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3)).double()
    for p in model.parameters():
        p.register_hook(lambda g: g.clamp(-most, most))
    return model


def batches() -> list[tuple[Tensor, Tensor]]:
    x = normal(96, 4)
    return [(x[i : i + 32], integers(3, 96)[i : i + 32]) for i in (0, 32, 64)]


def test_a_copy_takes_the_steps_of_a_loop_by_hand() -> None:
    model = clipped(1e-3)
    by_hand = clipped(1e-3)
    optimizer = torch.optim.SGD(by_hand.parameters(), 0.5, momentum=0.9)
    for x, y in batches():
        optimizer.zero_grad()
        nn.functional.cross_entropy(by_hand(x), y).backward()
        optimizer.step()
    before = copy.deepcopy(model.state_dict())
    trainer = CopyTrainer(
        wc.Problem(model, nn.CrossEntropyLoss(), batches()), torch.optim.SGD(model.parameters(), 0.5, momentum=0.9)
    )
    run = trainer.start()
    run.run(3)
    for own, other in zip(run.model.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-12, atol=1e-14)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert all(len(p._backward_hooks or {}) == 1 for p in model.parameters())


def test_the_gradient_of_the_loss_is_measured_without_them() -> None:
    data = batches()
    assert wc.max_lr(wc.Problem(clipped(1e-3), nn.CrossEntropyLoss(), data)).value == pytest.approx(
        wc.max_lr(wc.Problem(clipped(1e3), nn.CrossEntropyLoss(), data)).value, rel=1e-9
    )


@pytest.mark.slow
def test_gradients_clipped_to_next_to_nothing_are_a_rate_that_is_too_low() -> None:
    model = clipped(1e-6).float()
    data = [(x.float(), (x[:, 0] > 0).long() + (x[:, 1] > 0).long()) for x, _ in batches()]
    findings = wc.diagnose(
        wc.Problem(model, nn.CrossEntropyLoss(), data), torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    ).findings
    assert [(each.rule, each.severity) for each in findings[:1]] == [("learning-rate-too-low", "severe")]
