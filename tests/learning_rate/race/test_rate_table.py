"""Rates by batch size and weight decay, and the gradient noise scale."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import LBFGS, SGD
from torch.utils.data import DataLoader, TensorDataset
from zoo import normal, seeded

import wellcond as wc
from wellcond.errors import InvalidProblem, Unsupported
from wellcond.learning_rate.race.gradient_noise import noise_scale
from wellcond.training.copy_trainer import CopyTrainer


def noisy_mean(noise: float, batch: int, count: int = 4096) -> wc.Problem:
    """½ |w − ξ|² with ξ of variance noise² in each of four directions: G = w, and tr Σ = 4 noise²."""
    xi = noise * normal(count, 4)
    model = nn.Linear(1, 4, bias=False).double()
    nn.init.ones_(model.weight)
    loader = DataLoader(TensorDataset(torch.ones(count, 1).double(), xi), batch, shuffle=True)
    return wc.Problem(model, lambda f, y: 0.5 * (f - y).square().sum(1).mean(), loader)


@pytest.mark.parametrize("noise", [0.5, 4.0])
def test_the_noise_scale_is_the_variance_of_gradients_over_their_square(noise: float) -> None:
    batch = 16
    scale = batch * noise_scale(CopyTrainer(noisy_mean(noise, batch)), lr=1e-9, steps=8)
    assert scale == pytest.approx(noise**2, rel=0.5)  # 4 noise² / |w|² with |w|² = 4


@pytest.mark.slow
@pytest.mark.parametrize("as_list", [False, True])
def test_a_table_has_a_race_for_each_and_changes_nothing(as_list: bool) -> None:
    x = normal(256, 6)
    y = (x[:, 0] > 0).long()
    model = seeded(lambda: nn.Linear(6, 2).double())
    generator = torch.Generator().manual_seed(3)
    loader = DataLoader(TensorDataset(x, y), 16, shuffle=True, generator=generator)
    optimizer = SGD(model.parameters(), lr=0.1, weight_decay=1e-3)
    before = generator.get_state(), str(optimizer.state_dict()), str(list(model.parameters()))
    batches = [(x[i : i + 16], y[i : i + 16]) for i in range(0, 256, 16)] if as_list else loader
    of = wc.Problem(model, nn.CrossEntropyLoss(), batches)
    table = wc.lr_table(of, optimizer, batch_sizes=(4, 64), weight_decays=(0.0, 0.1), steps=60, max_steps=120)
    assert list(table.by_batch_size) == [4, 16, 64]
    assert list(table.by_weight_decay) == [0.0, 0.1]
    assert table.noise_scale > 0
    assert table.scaled(16) == pytest.approx(table.by_batch_size[16].lr)
    assert "batch size" in str(table)
    assert "weight decay" in str(table)
    assert before[1:] == (str(optimizer.state_dict()), str(list(model.parameters())))
    assert torch.equal(before[0], generator.get_state())
    assert len(table.figure().axes) == 2
    with pytest.raises(InvalidProblem, match="too few"):
        wc.lr_table(of, optimizer, batch_sizes=(512,))


def test_what_cannot_be_changed_is_refused() -> None:
    model = seeded(lambda: nn.Linear(4, 2).double())

    class Stream:
        def __iter__(self):  # type: ignore[no-untyped-def]
            return iter([(normal(4, 4), normal(4, 2))])

    with pytest.raises(Unsupported, match="no other batch size"):
        wc.lr_table(wc.Problem(model, nn.MSELoss(), Stream()), SGD(model.parameters(), lr=0.1), batch_sizes=(2,))
    of = wc.Problem(model, nn.MSELoss(), [(normal(8, 4), normal(8, 2))])
    with pytest.raises(Unsupported, match="no weight decay"):
        wc.lr_table(of, LBFGS(model.parameters()), batch_sizes=(4,), weight_decays=(0.1,))
