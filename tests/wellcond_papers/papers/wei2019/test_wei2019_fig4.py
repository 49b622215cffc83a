"""Figure 4 of wei2019: networks that differ in nothing but their first γ."""

from __future__ import annotations

import pytest
import torch
from torch.nn.modules.batchnorm import _BatchNorm

from wellcond.results import Row
from wellcond.results.quantities import DIVERGED_AT, TRAINING_LOSS
from wellcond_papers.experiments.experiment import Job
from wellcond_papers.experiments.table import Record, Table
from wellcond_papers.papers.wei2019.fig4 import EXPERIMENT, GAMMAS, NETWORKS, WARMED, measure, network


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_differ_in_gamma_alone(name: str) -> None:
    small, usual = (dict(network(name, gamma, 4, seed=0).named_parameters()) for gamma in (0.1, 1.0))
    model = network(name, 0.1, 4, seed=0)
    gains = {f"{path}.weight" for path, module in model.named_modules() if isinstance(module, _BatchNorm)}
    assert gains
    for path, parameter in small.items():
        assert torch.equal(parameter, 0.1 * usual[path] if path in gains else usual[path])


def test_the_lower_curve_is_the_faster_one() -> None:
    def verdict(*losses: float) -> str:
        rows = {
            f"VGG-16, γ {gamma:g}": [Row(5, "", TRAINING_LOSS, loss, "")]
            for gamma, loss in zip(GAMMAS, losses, strict=True)
        }
        return EXPERIMENT.claims[0].check(Table([Record({"arm": arm}, own) for arm, own in rows.items()])).verdict

    assert verdict(1.0, 2.0, 3.0) == "holds"
    assert verdict(1.0, 1.0, 3.0) == "holds in part"
    assert verdict(3.0, 2.0, 1.0) == "does not hold"


def test_a_start_that_diverges_is_the_slower_one() -> None:
    good, bad = [Row(5, "", TRAINING_LOSS, 9.0, "")], [Row(2, "", DIVERGED_AT, 2.0, "")]
    starts = {"γ 0.1": good, "γ 0.5": good, WARMED: bad}
    table = Table([Record({"arm": f"VGG-16, {start}"}, rows) for start, rows in starts.items()])
    assert EXPERIMENT.claims[2].check(table).verdict == "holds"


def test_a_warm_up_reaches_the_full_rate_after_an_epoch() -> None:
    def losses(arm: str) -> dict[int, float]:
        settings = next(cell.settings for cell in EXPERIMENT.cells("smoke") if cell.settings["arm"] == arm)
        rows = measure(Job({**settings, "width": 2, "count": 16, "batch": 8, "looks": 2}))
        return {row.step or 0: row.value for row in rows if row.quantity == TRAINING_LOSS}

    cold, warm = losses("VGG-16, γ 1"), losses(f"VGG-16, {WARMED}")
    assert cold[1] == warm[1]  # before the first step
    assert cold[2] != warm[2]
