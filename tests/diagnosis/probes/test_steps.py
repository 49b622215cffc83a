"""Probes of sequences, by closed forms."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from zoo import normal

from wellcond import Problem
from wellcond.diagnosis.probes.behavior import Behavior, behavior, price
from wellcond.diagnosis.probes.steps import Layout, padded

N, T, D = 12, 7, 3


def shown(model: nn.Module, loss: Any, batch: Any) -> Behavior:
    problem = Problem(model.double(), loss, batch)
    result = behavior(problem)
    assert result.failures == ()
    assert problem.cost.u <= price(problem) + 1e-9
    return result


class Weighted(nn.Module):
    """f_t = Σ_s W_ts x_s, for every step or the last one; a weight of x_s may be cut out of the graph."""

    def __init__(self, weights: Tensor, read: str = "each", cut: int = 0) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.register_buffer("weights", weights)
        self.read, self.cut = read, cut

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([x[:, : self.cut].detach(), x[:, self.cut :]], 1)
        every = self.scale * torch.einsum("ts,nsd->ntd", self.get_buffer("weights"), x)
        return every if self.read == "each" else every[:, -1]


def series() -> tuple[Tensor, Tensor]:
    x = normal(N, T + 1, D)
    return x[:, :-1], x[:, 1:]


def test_the_change_is_what_the_exchanged_inputs_have_in_the_output_before() -> None:
    weights = torch.eye(T).double()
    weights[T // 2, T // 2 + 1] = 0.5  # one step sees the next
    x, y = series()
    shift = shown(Weighted(weights), nn.MSELoss(), (x, y)).shift
    assert shift is not None
    assert (shift.steps, shift.of_loss, shift.share, shift.is_tokens) == (1, 0, 1.0, False)
    difference = 0.5 * (x.roll(1, 0) - x)[::2, T // 2 + 1]
    output = (x[:, T // 2] + 0.5 * x[:, T // 2 + 1])[::2]
    assert shift.future == pytest.approx(float(difference.norm() / output.norm()), rel=1e-9)


@pytest.mark.parametrize("steps", [-2, -1, 1, 2, 3])
@pytest.mark.parametrize("of_loss", [0, 1])
def test_shifts_of_data_and_loss_add_up(steps: int, of_loss: int) -> None:
    x = normal(N, T + 6, D)
    by_data = steps - of_loss

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs[:, : T - of_loss] - targets[:, of_loss:]).square().mean()

    shift = shown(Weighted(torch.eye(T).double()), loss, (x[:, 3 : 3 + T], x[:, 3 + by_data : 3 + by_data + T])).shift
    assert shift is not None
    assert (shift.steps, shift.of_loss, shift.future) == (steps, of_loss, 0.0)


def test_targets_of_their_own_are_no_inputs_of_another_step() -> None:
    assert shown(Weighted(torch.eye(T).double()), nn.MSELoss(), (normal(N, T, D), normal(N, T, D))).shift is None


@pytest.mark.parametrize("cut", [0, 1, T - 1])
def test_a_gradient_reaches_the_steps_after_the_cut(cut: int) -> None:
    model = Weighted(torch.ones(T, T).double(), "last", cut)
    memory = shown(model, nn.MSELoss(), (normal(N, T, D), normal(N, D))).memory
    assert memory is not None
    assert (memory.steps, memory.reached, memory.change > 1e-3) == (T, T - cut, cut > 0)


def test_steps_that_are_not_used_are_not_cut_off() -> None:
    weights = torch.ones(T, T).double()
    weights[:, :3] = 0.0
    memory = shown(Weighted(weights, "last"), nn.MSELoss(), (normal(N, T, D), normal(N, D))).memory
    assert memory is not None
    assert memory.change == 0.0


def ends() -> tuple[Tensor, Tensor]:
    x, lengths = normal(N, T, D), 2 + torch.arange(N) % (T - 2)
    is_real = torch.arange(T) < lengths[:, None]
    return x * is_real[..., None], is_real


def test_influence_of_padding_is_that_of_its_weight() -> None:
    x, is_real = ends()
    weights = torch.ones(T, T).double()
    padding = shown(Weighted(weights, "last"), nn.MSELoss(), (x, normal(N, D))).padding
    assert padding is not None
    assert padding.share == pytest.approx(float((~is_real).double().mean()))
    assert (padding.seen, padding.hidden, padding.is_masked) == (pytest.approx(1.0), None, False)
    assert padding.weight == pytest.approx(float((~is_real).sum() / is_real.sum()))


def test_padding_fills_one_end_and_occurs_nowhere_else() -> None:
    tokens = torch.tensor([[3, 1, 4, 0, 0], [2, 7, 0, 0, 0], [8, 2, 8, 1, 0]])
    assert torch.equal(padded(tokens), tokens == 0)  # type: ignore[arg-type]
    assert torch.equal(padded(tokens.flip(1)), tokens.flip(1) == 0)  # type: ignore[arg-type]
    inside = tokens.clone()
    inside[2, 1] = 0
    assert padded(inside) is None
    assert padded(torch.tensor([[3, 1, 4], [2, 7, 1], [8, 2, 8]])) is None
    assert padded(torch.tensor([[3, 0, 0], [2, 0, 0], [8, 0, 0]])) is None  # all of one length


def test_an_order_that_outputs_do_not_see() -> None:
    x = normal(N, T, D)
    one = Weighted(torch.ones(T, T).double(), "last")
    order = shown(one, nn.MSELoss(), (x, normal(N, D))).order
    assert order is not None
    assert order.change < 1e-12
    assert order.placed is not None
    placed = shown(
        Weighted(torch.ones(T, T).double().tril() * torch.arange(T), "last"), nn.MSELoss(), (x, normal(N, D))
    )
    assert placed.order is not None
    assert placed.order.change > 0.1
    assert placed.order.placed is None


@pytest.mark.parametrize("steps_first", [False, True])
def test_a_grid_has_examples_and_steps_in_front(steps_first: bool) -> None:
    grid = normal(N, T, D)
    layout = Layout(N, T, steps_first)
    as_it_is = grid.transpose(0, 1) if steps_first else grid
    for tensor in (as_it_is, as_it_is.flatten(0, 1)):
        assert torch.equal(next(layout.grids(tensor)), grid)
    if not steps_first:
        assert torch.equal(next(layout.grids(grid.transpose(1, 2))), grid)
    assert not [*layout.grids(normal(N, D))]


@pytest.mark.parametrize("kernel", [1, 3])
def test_the_order_of_steps_that_come_after_the_features(kernel: int) -> None:
    """As convolutions want them: a kernel of one step and a mean over the steps do not see their order."""
    model = nn.Sequential(nn.Conv1d(D, 5, kernel, padding="same"), nn.Tanh(), nn.AdaptiveAvgPool1d(1), nn.Flatten())
    order = shown(model.double(), nn.MSELoss(), (normal(N, D, T), normal(N, 5))).order
    assert order is not None
    assert (order.change < 1e-12) is (kernel == 1)
    assert (order.placed is not None) is (kernel == 1)
