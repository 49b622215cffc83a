"""Surgery changes nothing of the old model, not when it succeeds and not when it fails half-way."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from unchanged import assert_unchanged, snapshot
from zoo import normal, seeded

from wellcond.errors import Unsupported
from wellcond.nn.ghost import GhostBatchNorm1d
from wellcond.nn.last_batchnorm import with_last_batchnorm
from wellcond.nn.merge import merge_batchnorm
from wellcond.nn.replace import replace_norm

FAIL = 99.0
"""An input with this value makes the model raise."""


class Everything(nn.Module):
    """Buffers and attributes that change in forward, dropout, in-place operations, tied and frozen weights."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(inplace=True), nn.Dropout(0.5))
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.tied = nn.Linear(6, 6)
        self.tied.weight = self.frozen.weight
        self.norm, self.head = nn.BatchNorm1d(6), nn.Linear(6, 3)
        self.register_buffer("calls", torch.zeros(()))
        self.count, self.seen = 0, []

    def forward(self, x: Tensor) -> Tensor:
        x.mul_(2)
        self.calls.add_(1)
        self.count += 1
        self.last = x.mean().item()
        random.random(), np.random.rand(), torch.rand(1)
        h = self.tied(self.frozen(self.body(x)))
        self.seen.append(h)  # with its graph: from now on the model cannot be copied
        if bool((x == 2 * FAIL).any()):
            raise RuntimeError("a marked input")
        return self.head(self.norm(h.tanh()))


def build() -> Everything:
    """A model in a mixed state, with gradients and hooks of its own."""
    model = seeded(Everything)
    model.train()
    model.norm.eval()
    model.body[0].weight.grad = torch.ones_like(model.body[0].weight)
    model.body[2].register_forward_hook(lambda *_: None)
    model.norm.register_full_backward_hook(lambda *_: None)
    return model


def fail(_: Any) -> nn.Module:
    raise RuntimeError("a marked factory")


SURGERY: dict[str, Callable[[nn.Module, Tensor], nn.Module]] = {
    "with_last_batchnorm": with_last_batchnorm,
    "with_last_batchnorm_of_made_up_inputs": lambda model, _: with_last_batchnorm(model),
    "with_last_batchnorm_by_name": lambda model, _: with_last_batchnorm(model, layer="tied"),
    "merge_batchnorm": merge_batchnorm,
    "replace_norm": lambda model, _: replace_norm(model, GhostBatchNorm1d),
}
FAILURES: dict[str, Callable[[nn.Module, Tensor], nn.Module]] = {
    "with_last_batchnorm": with_last_batchnorm,
    "merge_batchnorm": merge_batchnorm,
    "replace_norm": lambda model, _: replace_norm(model, fail),
}


@pytest.mark.parametrize("operate", FAILURES.values(), ids=FAILURES)
def test_failed_surgery_leaves_the_old_model_alone(operate: Callable[[nn.Module, Tensor], nn.Module]) -> None:
    model, x = build(), normal(5, 4).fill_(FAIL)
    before = snapshot(model, x)
    with pytest.raises(Unsupported, match="a marked"):
        operate(model, x)
    assert_unchanged(before, snapshot(model, x))


@pytest.mark.parametrize("operate", SURGERY.values(), ids=SURGERY)
def test_surgery_changes_neither_the_old_model_nor_the_rest_of_the_new(
    operate: Callable[[nn.Module, Tensor], nn.Module],
) -> None:
    model, x = build(), normal(5, 4)
    before = snapshot(model, x)
    new = operate(model, x)
    assert (new.count, new.seen, new.calls.item()) == (0, [], 0)
    assert not hasattr(new, "last")
    assert (new.training, new.norm.training) == (True, False)
    tied = new.tied if isinstance(new.tied, nn.Linear) else new.tied.linear
    assert tied.weight is new.frozen.weight
    assert not tied.weight.requires_grad
    assert torch.equal(tied.weight, model.tied.weight)
    assert len(new.body[2]._forward_hooks) == 1
    copy.deepcopy(new)  # the trial run leaves nothing in it
    with torch.no_grad():
        for value in [*new.parameters(), *new.buffers()]:
            value.fill_(1)  # nothing is shared with the old one
    assert_unchanged(before, snapshot(model, x))
