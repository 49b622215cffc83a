"""A user's script that lines are pasted into, and whether two networks and their optimizers are the same."""

from __future__ import annotations

import copy
from typing import Any

import torch
from setups import STEPS
from torch import Tensor, nn
from torch.optim import Optimizer

import wellcond as wc
from wellcond.remedies import Setup
from wellcond.remedies.setup import AFTER_STEP, BEFORE_STEP


class Script:
    """A user's script: the names that lines may assume, and a training loop."""

    def __init__(self, of: Setup) -> None:
        model = copy.deepcopy(of.problem.model)
        memo = {id(p): q for p, q in zip(of.problem.model.parameters(), model.parameters(), strict=True)}
        self.names: dict[str, Any] = {
            "model": model, "loss": of.problem.loss, "loader": list(of.problem.batches),
            "optimizer": copy.deepcopy(of.optimizer, memo), "torch": torch, "nn": nn, "wc": wc,
        }  # fmt: skip
        self.before_step = self.after_step = ""

    def paste(self, lines: str) -> None:
        """Run lines; those under a heading of the training loop are run in it."""
        once, _, self.after_step = lines.partition(AFTER_STEP)
        once, _, self.before_step = once.partition(BEFORE_STEP)
        torch.manual_seed(0)
        exec(once, self.names)

    def train(self) -> None:
        """A few steps on the loader's batches."""
        model, optimizer = self.names["model"].train(), self.names["optimizer"]
        for step in range(STEPS):
            x, y = self.names["loader"][step % len(self.names["loader"])]
            torch.manual_seed(step)
            optimizer.zero_grad()
            self.names["loss"](model(x), y).backward()
            exec(self.before_step, self.names)
            optimizer.step()
            exec(self.after_step, self.names)


def described(model: nn.Module, optimizer: Optimizer) -> list[dict[str, Any]]:
    """The settings of an optimizer, with names in place of parameters; without what a schedule keeps there."""
    names = {p: name for name, p in model.named_parameters()}
    return [
        {key: value for key, value in group.items() if key not in ("params", "initial_lr", "lr")}
        | {"lr": round(group["lr"], 12), "params": {names[p] for p in group["params"] if p.requires_grad}}
        for group in optimizer.param_groups
    ]


def assert_same(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    for name, value in first.items():
        torch.testing.assert_close(value, second[name], rtol=1e-7, atol=1e-12, msg=lambda m, name=name: f"{name}: {m}")
