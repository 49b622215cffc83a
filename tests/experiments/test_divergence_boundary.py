from __future__ import annotations

import pytest
import torch

from wellcond.experiments import divergence_boundary as boundary


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
    assert boundary.Line("mse", 1.0, 1.0, 1.0, [1.0, 4.0], [0.5, 0.4]).boundary != line.boundary


def test_the_loss_is_half_the_squared_distance_to_one_hot_targets() -> None:
    outputs, targets = torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.tensor([1, 0])
    assert float(boundary.half_squared(outputs, targets)) == pytest.approx((1 + 1 + 1) / 4)


def test_the_network_has_the_variances_of_the_theory() -> None:
    model = boundary.network(0.3, seed=0)
    assert float(model.fc2.weight.var()) == pytest.approx(2 / 1000, rel=0.02)
    assert float(model.fc2.bias.var()) == pytest.approx(0.5, rel=0.2)
    assert bool((model.bn1.weight == 0.3).all())
