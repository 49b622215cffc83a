"""The demo's network, small."""

from __future__ import annotations

import pytest
from suites import assert_progress_rises

from wellcond_papers.experiments import demo_networks


def test_the_network_is_diagnosed_and_treated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_networks, "STEPS", 5)
    monkeypatch.setattr(demo_networks, "SEEDS", (0,))
    monkeypatch.setattr(demo_networks, "REMEDIES", ("rate", "batchnorm"))
    heard: list[tuple[str, float]] = []
    diagnosis, treatment = demo_networks.diagnosed_and_treated(20, 16, lambda *said: heard.append(said))
    assert_progress_rises(heard)
    assert 0.9 < heard[-1][1] <= 1
    assert diagnosis.findings[0].severity == "severe"
    assert "batchnorm" in treatment.arms
    assert treatment.verdict()
