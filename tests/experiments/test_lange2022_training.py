"""Figures 3 and 4 of lange2022, small; and the bookkeeping on curves made by hand."""

from __future__ import annotations

import json
import math
import os
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD

from wellcond.data import digits, mnist
from wellcond.experiments.lange2022_networks import Curves, Data, as_data, index_batches, network, train_network
from wellcond.experiments.lange2022_training import (
    SETTINGS,
    TUNED,
    Record,
    Setting,
    draw,
    one_run,
    records_of,
    spread,
    summary,
    table,
)

METHODS = ["vanilla", TUNED, "BN", "BNP", "Renorm", "LN"]
COMMITTED = Path(__file__).parents[2] / "docs" / "figures" / "lange2022_figures_3_4.json"
DATA = os.environ.get("WELLCOND_DATA")


@pytest.fixture(scope="module")
def data() -> Data:
    return as_data(digits(train=True), digits(train=False), evaluated=300)


def setting(**changes: Any) -> Setting:
    small: dict[str, Any] = {"data": "digits", "batch": 20, "steps": 60, "every": 20}
    return Setting(**small | {"rates": dict.fromkeys(METHODS, 0.1), "figure": "3"} | changes)


def records(**runs: list[Curves]) -> list[Record]:
    """By method, one run per seed."""
    return [
        Record("by hand", "3", method, 0.1, run.steps[-1], seed, run)
        for method, own in runs.items()
        for seed, run in enumerate(own)
    ]


def by_hand(*losses: float, diverged_at: int | None = None) -> Curves:
    """Evaluated every 100 steps; the accuracy is 1 − loss/10."""
    steps = [100 * i for i in range(len(losses))]
    return Curves(steps, list(losses), [1 - loss / 10 for loss in losses], diverged_at)


def test_a_loss_is_first_reached_between_two_evaluations_or_never() -> None:
    assert [by_hand(3, 2, 1).first_step_at(loss) for loss in (1.25, 2, 5, 0.5)] == [175, 100, 0, None]
    assert by_hand(3, 1, 3, 0).first_step_at(2) == 50


def test_the_summary_of_runs_made_by_hand() -> None:
    vanilla = [by_hand(3, 2.5, 2), by_hand(3, 2, 1), by_hand(3, 2, 1.5)]
    bnp = [by_hand(3, 1, 0.5), by_hand(3, 1, 1), by_hand(3, 1.5, 0)]
    plain, preconditioned = summary(records(vanilla=vanilla, BNP=bnp))
    assert plain["loss"] == {"mean": 1.5, "least": 1, "greatest": 2}
    assert plain["accuracy"] == {"mean": pytest.approx(0.85), "least": 0.8, "greatest": 0.9}
    assert plain["steps_to"] == {"vanilla": spread([200])}
    assert preconditioned["loss"] == {"mean": 0.5, "least": 0, "greatest": 1}
    # seed by seed: 3 → 1 passes 2 at step 50, reaches 1 at 100; 3 → 1.5 reaches 1.5 at 100
    assert preconditioned["steps_to"] == {"vanilla": {"mean": pytest.approx(250 / 3), "least": 50, "greatest": 100}}
    assert "83 (0.42)" in table([preconditioned])  # 250/3 of 200 steps


def test_what_one_seed_lacks_has_no_mean() -> None:
    found = records(vanilla=[by_hand(3, 1)] * 2, LN=[by_hand(3, 0), by_hand(3, 2)])  # one LN never reaches 1
    _, ln = summary(found)
    assert ln["steps_to"] == {"vanilla": None}
    assert table([ln]).splitlines()[-1].split()[-2:] == ["–", "–"]
    diverged = [by_hand(3, 2), by_hand(3, 2, diverged_at=200)]
    vanilla, bnp = summary(records(vanilla=diverged, BNP=[by_hand(3, 1)] * 2))
    assert (vanilla["diverged"], vanilla["loss"], vanilla["accuracy"]) == (1, None, None)
    assert "1 diverged" in table([vanilla])
    assert bnp["steps_to"] == {"vanilla": None}  # there is no final loss to reach


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_the_digits_as_its_seed_decides(method: str, data: Data) -> None:
    run, again, other = (one_run(setting(), method, seed, data) for seed in (0, 0, 1))
    assert run.steps == [0, 20, 40, 60]
    assert run.diverged_at is None
    assert run.losses[-1] < 0.9 * run.losses[0]
    assert run.accuracies[-1] > 0.3  # a tenth is chance
    assert run == again
    assert run != other
    if method == "BNP":  # it changes the run and nothing before it
        vanilla = one_run(setting(), "vanilla", 0, data)
        assert vanilla.losses[0] == run.losses[0]
        assert vanilla.losses[1:] != run.losses[1:]


def test_training_that_blows_up_ends_there(data: Data) -> None:
    run = one_run(setting(rates={"vanilla": 1e30}), "vanilla", 0, data)
    assert run.diverged_at is not None
    assert 1 < run.diverged_at < 20  # the step itself, before the next evaluation
    assert run.steps == [0]
    assert all(map(math.isfinite, run.losses))


def test_training_is_plain_sgd_on_the_batches_of_the_seed(data: Data) -> None:
    data = data._replace(x=data.x.double(), test_x=data.test_x.double())
    trained, reference = (network("vanilla", [64, 20, 10], 0).double() for _ in range(2))
    train_network(trained, SGD(trained.parameters(), lr=0.1), data, batch=30, steps=5, every=5, seed=3)
    optimizer = SGD(reference.parameters(), lr=0.1)
    for index in islice(index_batches(len(data.y), 30, seed=3), 5):
        optimizer.zero_grad()
        nn.functional.cross_entropy(reference(data.x[index]), data.y[index]).backward()
        optimizer.step()
    for parameter, expected in zip(trained.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected, rtol=1e-12, atol=1e-14)


def test_an_epoch_uses_every_image_once() -> None:
    batches = index_batches(10, 3, seed=0)
    first, second = ([next(batches) for _ in range(3)] for _ in range(2))
    for epoch in (first, second):
        assert [len(index) for index in epoch] == [3, 3, 3]
        assert len(set(torch.cat(epoch).tolist())) == 9
    assert not torch.equal(torch.cat(first), torch.cat(second))


@pytest.mark.parametrize("method", METHODS)
def test_all_methods_start_from_the_same_linear_layers(method: str) -> None:
    reference = network("vanilla", [12, 7, 5, 3], seed=4)
    model = network(method, [12, 7, 5, 3], seed=4)
    for name in ("fc1", "fc2", "fc3"):
        assert torch.equal(model.get_submodule(name).weight, reference.get_submodule(name).weight)
        assert not model.get_submodule(name).bias.any()


def test_batch_norms_stand_behind_the_activation() -> None:
    kinds = [type(module).__name__ for module in network("BN", [12, 7, 5, 3], seed=0)]
    assert kinds == ["Flatten", "Linear", "ReLU", "BatchNorm1d", "Linear", "ReLU", "BatchNorm1d", "Linear"]
    widths = [module.num_features for module in network("Renorm", [12, 7, 5, 3], 0) if hasattr(module, "num_features")]
    assert widths == [7, 5]


def test_the_picture_is_drawn_also_of_diverged_runs() -> None:
    whole = [by_hand(3, 2, 1)] * 2
    figure = draw(records(vanilla=whole, BNP=whole, BN=[by_hand(3, 2, 1), by_hand(3, diverged_at=100)]))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["vanilla", "BNP", "BN"]


@pytest.mark.skipif(DATA is None or not (Path(DATA) / "MNIST").exists(), reason="WELLCOND_DATA names no MNIST")
@pytest.mark.slow
def test_a_worker_process_gives_what_this_one_gives() -> None:
    short = Setting("MNIST", 60, 20, 10, {"BNP": 0.5})
    found = records_of([short], DATA, workers=1)
    assert [(r.method, r.seed) for r in found] == [("BNP", 0), ("BNP", 1), ("BNP", 2)]
    here = one_run(short, "BNP", 2, as_data(mnist(DATA), mnist(DATA, train=False)))
    assert found[2].run.losses == pytest.approx(here.losses, rel=1e-5)  # threads may add in another order


def test_the_committed_table_follows_from_the_committed_curves() -> None:
    content = json.loads(COMMITTED.read_text())
    committed = [Record(**fields | {"run": Curves(**fields["run"])}) for fields in content["runs"]]
    assert summary(committed) == content["summary"]
    assert [(r.setting, r.method, r.lr) for r in committed[::3]] == [
        (str(setting), method, lr) for setting in SETTINGS for method, lr in setting.rates.items()
    ]
