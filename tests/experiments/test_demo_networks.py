"""The demo's two networks, small."""

from __future__ import annotations

import pytest
from suites import assert_progress_rises

from wellcond.experiments import demo_networks
from wellcond.results.quantities import FINAL_LOSS, STEPS, TEST_ACCURACY, TRAINED_LR, TRAINED_MAX_LR, TRAINING_LOSS


def test_both_networks_are_diagnosed_and_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_networks, "EXAMPLES", 64)
    monkeypatch.setattr(demo_networks, "STEPS", 5)
    monkeypatch.setattr(demo_networks, "LEARNING_RATES", (1e30, 0.1))  # one diverges, and is not the best
    heard: list[tuple[str, float]] = []
    compared = demo_networks.compare(3, 8, lambda *said: heard.append(said))
    assert_progress_rises(heard)
    assert 0.9 < heard[-1][1] <= 1
    assert list(compared) == ["plain", "batchnorm"]
    for network in compared.values():
        found = {row.quantity: row.value for row in network.rows() if row.layer == ""}
        assert {FINAL_LOSS, TEST_ACCURACY, TRAINED_MAX_LR} <= found.keys()
        assert (found[STEPS], found[TRAINED_LR]) == (5, 0.1)
        assert sum(row.quantity == TRAINING_LOSS for row in network.training) == 5
        assert network.density.grid.shape == network.density.density.shape
