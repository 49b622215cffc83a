"""Figure 4 of wei2019: networks that differ in nothing but their first γ."""

from __future__ import annotations

import pytest
import torch
from torch.nn.modules.batchnorm import _BatchNorm

from wellcond.results import Row
from wellcond.results.quantities import TRAINING_LOSS
from wellcond_papers.experiments.table import Record, Table
from wellcond_papers.papers.wei2019.fig4 import EXPERIMENT, NETWORKS, network


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_differ_in_gamma_alone(name: str) -> None:
    small, usual = (dict(network(name, gamma, 4, seed=0).named_parameters()) for gamma in (0.1, 1.0))
    model = network(name, 0.1, 4, seed=0)
    gains = {f"{path}.weight" for path, module in model.named_modules() if isinstance(module, _BatchNorm)}
    assert gains
    for path, parameter in small.items():
        assert torch.equal(parameter, 0.1 * usual[path] if path in gains else usual[path])


def test_the_lower_curve_is_the_faster_one() -> None:
    def table(small: float, usual: float) -> Table:
        losses = {"VGG-16, γ 0.1": small, "VGG-16, γ 1": usual}
        return Table([Record({"arm": arm}, [Row(5, "", TRAINING_LOSS, loss, "")]) for arm, loss in losses.items()])

    claim = EXPERIMENT.claims[0]
    assert [claim.check(table(*pair)).verdict for pair in ((1.0, 2.0), (2.0, 1.0))] == ["holds", "does not hold"]
