"""What changes from pass to pass is named; what only looks odd is measured."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from measuring import BATCH, loader, measure
from references import assert_same, dense_hessian
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from zoo import ARCHITECTURES, Written, mlp, normal, seeded

import wellcond as wc
from wellcond.errors import NotDeterministic


class Augmented(Dataset[Any]):
    """Examples that differ from pass to pass, by one of three sources of chance."""

    def __init__(self, source: str) -> None:
        self.source = source

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x = BATCH[0][index]
        if self.source == "flip":
            return (x.flip(0) if torch.rand(()) < 0.5 else x), BATCH[1][index]
        noise = {"torch": lambda: torch.rand(()).item(), "numpy": np.random.rand, "python": random.random}
        return x + noise[self.source](), BATCH[1][index]


def functional_dropout() -> nn.Module:
    """`training=True` is the default."""
    forward = lambda m, x: m.fc2(F.dropout(m.fc1(x), 0.5))  # noqa: E731
    return seeded(lambda: Written(forward, fc1=nn.Linear(4, 5), fc2=nn.Linear(5, 3)))


OTHER_DATA = "other data on its second pass, first in batch 0: a random aug"
MOVING: dict[str, tuple[Any, Any, str]] = {
    "shuffled": (mlp, loader(shuffle=True), r"shuffle=True.*list\(loader\)"),
    **{
        source: (mlp, DataLoader(Augmented(source), batch_size=3), OTHER_DATA)
        for source in ("torch", "numpy", "python", "flip")
    },
    "dropout": (
        functional_dropout, BATCH,
        r"layer 'fc2', or the code just before it, draws random numbers.*training=True",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("model", "batches", "message"), MOVING.values(), ids=MOVING)
def test_what_changes_from_pass_to_pass_is_named(model: Any, batches: Any, message: str) -> None:
    with pytest.raises(NotDeterministic, match=message):
        measure(model(), nn.CrossEntropyLoss(), batches)


# what looks odd and is right


def test_a_fixed_draw_of_an_augmented_loader_is_measured() -> None:
    drawn = list(DataLoader(Augmented("torch"), batch_size=3))
    assert torch.isfinite(measure(mlp(), nn.CrossEntropyLoss(), drawn)).all()


def test_float64_targets_of_a_float32_model_work() -> None:
    expected = dense_hessian(mlp(), nn.MSELoss(), (BATCH[0], normal(6, 3))) @ torch.ones(43, dtype=torch.float64)
    found = measure(mlp().float(), nn.MSELoss(), (BATCH[0].float(), normal(6, 3)))
    assert found.dtype == torch.float32
    assert_same(found, expected, 1e-5)


def test_dropout_with_a_seed_keeps_its_masks() -> None:
    case = ARCHITECTURES["mlp_tanh"]()
    model = nn.Sequential(case.model[0], nn.Dropout(0.5), case.model[1], case.model[2])
    case = replace(case, model=model)
    first, again, other, off = (wc.Hessian(case.problem(dropout=seed)).dense() for seed in (3, 3, 4, None))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert_same(off, dense_hessian(case.model, case.loss, case.batch))
    # the masks are those of the seed
    with torch.random.fork_rng():
        torch.manual_seed(3)
        mask = F.dropout(torch.ones(6, 5, dtype=torch.float64), 0.5)
    masked = nn.Sequential(case.model[0], Written(lambda _m, x: x * mask), case.model[2], case.model[3])
    assert_same(first, dense_hessian(masked, case.loss, case.batch))
    operator = wc.Hessian(case.problem(batches=loader(), dropout=3))  # and the same in every product over batches
    assert_same(operator.dense(), operator.dense(), 1e-15)
