"""Figure 9 of santurkar2018, short."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from wellcond.experiments import santurkar2018_deep_linear as deep_linear
from wellcond.experiments.output import output_files, write
from wellcond.models import mlp
from wellcond.results.quantities import BETA


@pytest.mark.parametrize("norm", ["none", "batch"])
def test_few_examples_with_the_same_moments_have_the_same_loss(norm: str) -> None:
    x = torch.randn(50, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    few = deep_linear.same_moments(x)
    assert few.shape == (5, 4)
    model = mlp([4, 4, 4], norm=norm, activation=torch.nn.Identity, bias=False, seed=0).double()
    losses = [float(deep_linear.squared_error(model(each), each).detach()) for each in (x, few)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-10)


def test_training_is_walked_over_and_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(deep_linear, "LAYERS", 3)
    runs = {name: deep_linear.walked_run(name, steps=20, walks=4, seed=0) for name in deep_linear.NETWORKS}
    for run in runs.values():
        assert [row.step for row in run.evaluations if row.quantity == BETA] == [0, 5, 10, 15, 20]
        assert len(run.losses) == 21
        assert run.losses[-1] < run.losses[0]
    figure = deep_linear.draw(runs)
    assert len(figure.axes) == 4
    picture, numbers = files = output_files(tmp_path / "new", "figure")
    write(files, figure, deep_linear.numbers_of(runs, 1.0, 0))
    assert picture.read_bytes().startswith(b"\x89PNG")
    content = json.loads(numbers.read_text())
    assert content["standard"]["training_loss"][0] == pytest.approx(runs["standard"].losses[0], rel=1e-4)
