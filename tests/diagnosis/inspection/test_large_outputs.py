"""Outputs that are very many numbers, as over a vocabulary: losses are compared at their first examples."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import wellcond as wc
from wellcond.diagnosis.inspection import data
from wellcond.diagnosis.inspection.inspect import inspect
from wellcond.problem.loss import output_batches

CLASSES, STEPS, EXAMPLES = 50, 6, 16
DRAW = torch.Generator().manual_seed(0)
X = torch.randn(EXAMPLES, STEPS, 8, generator=DRAW)
LABELS = torch.randint(0, CLASSES, (EXAMPLES, STEPS), generator=DRAW)
NUMBERS = torch.rand(EXAMPLES, STEPS, CLASSES, generator=DRAW)


def by_token(outputs: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(outputs.flatten(0, 1), labels.flatten(), ignore_index=3)


def counted(outputs: Tensor, labels: Tensor) -> Tensor:
    """Takes batches of one size only."""
    return F.cross_entropy(outputs.reshape(EXAMPLES * STEPS, CLASSES), labels.flatten())


def summed(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.mse_loss(outputs, targets, reduction="sum")


@pytest.mark.parametrize(
    ("loss", "targets"),
    [(by_token, LABELS), (counted, LABELS), (nn.MSELoss(), NUMBERS), (nn.BCEWithLogitsLoss(), NUMBERS),
     (nn.L1Loss(), NUMBERS), (summed, NUMBERS)],
)  # fmt: skip
def test_the_same_is_seen(loss: Callable[..., Any], targets: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, CLASSES)
    seen = []
    for most in (output_batches.MOST_COMPARED, 4 * STEPS * CLASSES):
        monkeypatch.setattr(output_batches, "MOST_COMPARED", most)
        problem = wc.Problem(model, loss, [(X, targets)])
        facts = inspect(problem)
        assert facts.output is not None
        out = facts.output
        seen.append(
            (
                type(problem.likelihood),
                getattr(problem.likelihood, "ignore_index", None),
                out.loss_kind,
                out.class_dim,
                out.tail,
                facts.is_summed,
                facts.failures,
            )
        )
    assert seen[0] == seen[1]
    assert out.shape[0] == (EXAMPLES if loss is counted else 4)


class Held(TorchDispatchMode):
    """The most bytes of tensors that are there at once."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[int, int] = {}
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for t in tree_leaves(result):
            if isinstance(t, Tensor) and (key := t.untyped_storage()._cdata) not in self.sizes:
                self.sizes[key] = t.untyped_storage().nbytes()
                weakref.finalize(t.untyped_storage(), self.sizes.pop, key, None)
        self.most = max(self.most, sum(self.sizes.values()))
        return result


def test_an_inspection_holds_no_more_than_twice_a_training_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits are nearly all that this network holds: as they are, it is compared in copies of float64."""
    torch.manual_seed(0)
    words, steps, examples = 4000, 16, 16
    model = nn.Sequential(nn.Embedding(words, 8), nn.Linear(8, words))
    tokens = torch.randint(0, words, (examples, steps), generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(output_batches, "MOST_COMPARED", 2 * words * steps)
    monkeypatch.setattr(data, "MOST_WIDE", 2 * words * steps)

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(outputs.flatten(0, 1), labels.flatten())

    with Held() as step:
        loss(model(tokens), tokens).backward()
    model.zero_grad()
    problem = wc.Problem(model, loss, [(tokens, tokens)])
    with Held() as inspected:
        assert inspect(problem).output is not None
    assert inspected.most < 2 * step.most
    monkeypatch.setattr(output_batches, "MOST_COMPARED", math.inf)
    monkeypatch.setattr(data, "MOST_WIDE", math.inf)
    with Held() as whole:
        inspect(wc.Problem(model, loss, [(tokens, tokens)]))
    assert whole.most > 3 * step.most
