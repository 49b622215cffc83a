"""What changes from pass to pass is named; what only looks odd is measured."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from measuring import BATCH, loader, measure
from references import assert_same, dense_hessian
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from zoo import ARCHITECTURES, Case, mlp, normal, seeded

import wellcond as wc
from wellcond.errors import NotDeterministic

# what changes from pass to pass


def test_a_shuffling_loader() -> None:
    with pytest.raises(NotDeterministic, match=r"shuffle=True.*list\(loader\)"):
        measure(mlp(), nn.CrossEntropyLoss(), loader(shuffle=True))


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


@pytest.mark.parametrize("source", ["torch", "numpy", "python", "flip"])
def test_a_random_augmentation(source: str) -> None:
    with pytest.raises(NotDeterministic, match="other data on its second pass, first in batch 0: a random aug"):
        measure(mlp(), nn.CrossEntropyLoss(), DataLoader(Augmented(source), batch_size=3))


def test_a_fixed_draw_of_an_augmented_loader_is_measured() -> None:
    assert torch.isfinite(
        measure(mlp(), nn.CrossEntropyLoss(), list(DataLoader(Augmented("torch"), batch_size=3)))
    ).all()


class FunctionalDropout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.dropout(self.fc1(x), 0.5))  # training=True is the default


def test_functional_dropout_that_never_stops() -> None:
    with pytest.raises(
        NotDeterministic, match=r"layer 'fc2', or the code just before it, draws random numbers.*training=True"
    ):
        measure(seeded(FunctionalDropout), nn.CrossEntropyLoss(), BATCH)


# what looks odd and is right


def test_integer_inputs_work() -> None:
    case = ARCHITECTURES["transformer"]()
    assert case.batch[0].dtype == torch.int64
    assert torch.isfinite(wc.GGN(case.problem()) @ torch.ones(case.problem().size)).all()


def dropout_case() -> Case:
    case = ARCHITECTURES["mlp_tanh"]()
    model = nn.Sequential(case.model[0], nn.Dropout(0.5), case.model[1], case.model[2])
    return Case(model, case.loss, case.batch, case.terms)


def test_float64_targets_of_a_float32_model_work() -> None:
    expected = dense_hessian(mlp(), nn.MSELoss(), (BATCH[0], normal(6, 3))) @ torch.ones(43, dtype=torch.float64)
    found = measure(mlp().float(), nn.MSELoss(), (BATCH[0].float(), normal(6, 3)))
    assert found.dtype == torch.float32
    assert_same(found, expected, 1e-5)


def test_dropout_with_a_seed_keeps_its_masks() -> None:
    case = dropout_case()
    first, again, other, off = (wc.Hessian(case.problem(dropout=seed)).dense() for seed in (3, 3, 4, None))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert_same(off, dense_hessian(case.model, case.loss, case.batch))
    # the masks are those of the seed
    with torch.random.fork_rng():
        torch.manual_seed(3)
        mask = F.dropout(torch.ones(6, 5, dtype=torch.float64), 0.5)

    class Masked(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * mask

    masked = nn.Sequential(case.model[0], Masked(), case.model[2], case.model[3])
    assert_same(first, dense_hessian(masked, case.loss, case.batch))


def test_dropout_is_on_in_the_same_way_in_every_product_over_batches() -> None:
    case = dropout_case()
    operator = wc.Hessian(case.problem(batches=loader(), dropout=3))
    assert_same(operator.dense(), operator.dense(), 1e-15)
