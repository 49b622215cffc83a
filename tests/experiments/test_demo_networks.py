"""The demo's two networks, small."""

from __future__ import annotations

import pytest
from suites import assert_progress_rises
from torch import nn

from wellcond.experiments import demo_networks
from wellcond.results.quantities import FINAL_LOSS, STEPS, TEST_ACCURACY, TRAINED_LR, TRAINED_MAX_LR, TRAINING_LOSS
from wellcond.training.run import Run


def test_a_run_that_diverges_is_never_the_best() -> None:
    runs = {1.0: (Run([2.0], diverged_at=2), nn.Linear(1, 1)), 0.1: (Run([2.0, 1.9]), nn.Linear(1, 1))}
    assert demo_networks._best(runs) == 0.1


def test_both_networks_are_diagnosed_and_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_networks, "EXAMPLES", 64)
    monkeypatch.setattr(demo_networks, "STEPS", 5)
    heard: list[tuple[str, float]] = []
    compared = demo_networks.compare(3, 8, lambda *said: heard.append(said))
    assert_progress_rises(heard)
    assert 0.9 < heard[-1][1] <= 1
    assert list(compared) == ["plain", "batchnorm"]
    for network in compared.values():
        found = [row.quantity for row in network.training]
        assert found.count(TRAINING_LOSS) == 5
        assert {FINAL_LOSS, STEPS, TRAINED_LR, TEST_ACCURACY, TRAINED_MAX_LR} <= set(found)
        assert network.density.grid.shape == network.density.density.shape
