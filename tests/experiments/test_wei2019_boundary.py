"""Figure 2 of wei2019, small."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from wellcond.experiments import wei2019_boundary as boundary


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> tuple[torch.Tensor, torch.Tensor]:
    monkeypatch.setattr(boundary, "SIZES", (20, 100, 100, 10))
    draw = torch.Generator().manual_seed(0)
    return torch.randn(60, 20, generator=draw), torch.randint(0, 10, (60,), generator=draw)


def test_squared_error_diverges_within_a_factor_of_the_measured_limit(small: tuple[torch.Tensor, torch.Tensor]) -> None:
    line = boundary.measure("half-squared", 1.0, *small, steps=40, seed=0)
    assert 0.5 < line.boundary / line.measured < 3
    assert line.predicted == pytest.approx(line.measured, rel=0.5)


def test_the_boundary_lies_between_the_last_good_rate_and_the_first_bad_one() -> None:
    line = boundary.Line("mse", 1.0, 1.0, 1.0, [1.0, 4.0, 16.0], [0.5, None, 0.4])
    assert line.boundary == pytest.approx(2.0)
    assert math.isnan(boundary.Line("mse", 1.0, 1.0, 1.0, [1.0, 4.0], [0.5, 0.4]).boundary)


def test_runs_are_full_batch_descent_with_momentum() -> None:
    """½ w² from w = 1: v ← 0.9 v + w, w ← w − η v; diverged if it ends above ½."""

    def final(rate: float) -> float | None:
        model = nn.Linear(1, 1, bias=False).double()
        nn.init.ones_(model.weight)
        x, y = torch.ones(1, 1).double(), torch.zeros(1, 1).double()
        return boundary._final_loss(model, lambda f, y: 0.5 * (f - y).square().mean(), x, y, rate, 3)

    w, v = 1.0, 0.0
    for _ in range(3):
        v = 0.9 * v + w
        w -= 0.1 * v
    assert final(0.1) == pytest.approx(w * w / 2, rel=1e-12)
    assert final(10.0) is None
    assert final(1e200) is None


def test_the_picture_has_a_panel_per_loss() -> None:
    lines = [boundary.Line(loss, 1.0, 1.0, 1.2, [0.1, 1.0, 10.0], [2.0, 0.5, None]) for loss in boundary.LOSSES]
    titles = [axes.get_title(loc="left") for axes in boundary.draw(lines).axes]
    assert [title for title in titles if title] == [
        f"{loss}: loss after training (empty: diverged)" for loss in boundary.LOSSES
    ]


def test_the_loss_is_half_the_squared_distance_to_one_hot_targets() -> None:
    outputs, targets = torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.tensor([1, 0])
    assert float(boundary.half_squared(outputs, targets)) == pytest.approx((1 + 1 + 1) / 4)


def test_the_network_has_the_variances_of_the_theory() -> None:
    model = boundary.network(0.3, seed=0).requires_grad_(False)
    assert float(model.fc2.weight.var()) == pytest.approx(2 / 1000, rel=0.02)
    assert float(model.fc2.bias.var()) == pytest.approx(0.5, rel=0.2)
    assert bool((model.bn1.weight == 0.3).all())
