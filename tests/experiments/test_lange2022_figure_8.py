"""Figure 8 of lange2022, small: dead units, BNP's own preconditioner, and the bookkeeping."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from zoo import integers, normal

from wellcond.data import digits
from wellcond.experiments.lange2022_hessian import (
    OWN,
    SOURCE,
    Measured,
    Plan,
    compare,
    draw,
    numbers_of,
    table,
    train_and_measure,
)
from wellcond.experiments.lange2022_networks import Curves, Data, as_data, network
from wellcond.experiments.lange2022_unit import Preconditioner, conditioning, hessian_factor
from wellcond.optim.bnp import BNP

EXACT = {"rtol": 1e-12, "atol": 1e-14}
COMMITTED = Path(__file__).parents[2] / "docs" / "figures" / "lange2022_figure_8.json"
SMALL = Plan(batch=20, images=200, steps=20, evaluate_every=10, measure_every=5)


@pytest.fixture(scope="module")
def data() -> Data:
    return as_data(digits(train=True), digits(train=False), evaluated=300, dtype=torch.float64)


@pytest.fixture
def batch() -> tuple[nn.Sequential, Tensor, Tensor]:
    """A network with one dead unit in its last hidden layer, and 30 examples."""
    model = network("vanilla", [6, 9, 5, 4], seed=0).double()
    nn.init.constant_(model.fc2.bias, 0.3)
    model.fc2.bias.data[2] = -100.0
    return model, normal(30, 6), integers(4, 30)


def matrix(mean: Tensor, inverse: Tensor) -> Tensor:
    """P = U D, written out."""
    U = torch.eye(6).double()
    U[0, 1:] = -mean
    return U @ torch.diag(torch.cat([torch.ones(1).double(), inverse]))


def test_a_dead_unit_is_zero_in_d_and_not_in_its_condition_number(batch: tuple[nn.Sequential, Tensor, Tensor]) -> None:
    model, x, _ = batch
    h = model[:-1](x).detach()
    factor = hessian_factor(h, model(x).detach())
    preconditioner = Preconditioner.of(h)
    mu = h.mean(0)
    sigma = ((h - mu) ** 2).mean(0).sqrt()
    assert (sigma == 0).nonzero().tolist() == [[2]]
    inverse = torch.tensor([0.0 if value == 0 else 1 / value for value in sigma.tolist()], dtype=torch.float64)
    torch.testing.assert_close(preconditioner.applied_to(factor), factor @ matrix(mu, inverse), **EXACT)
    live = sigma[sigma > 0]
    expected = float(max(live.max(), 1.0) / min(live.min(), 1.0))
    assert preconditioner.condition_number() == pytest.approx(expected, rel=1e-12)


def test_bnps_preconditioner_is_the_one_its_step_applies(batch: tuple[nn.Sequential, Tensor, Tensor]) -> None:
    model, x, y = batch
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    bnp = BNP(model, optimizer, rho=0.9)
    for _ in range(2):
        foreseen = Preconditioner.of_next_step(bnp, "fc3", model[:-1](x).detach())
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        plain = torch.cat([model.fc3.bias.grad[:, None], model.fc3.weight.grad], 1)
        optimizer.step()
    P = matrix(foreseen.mean, 1 / foreseen.scale)
    applied = torch.cat([model.fc3.bias.grad[:, None], model.fc3.weight.grad], 1)
    torch.testing.assert_close(applied, plain @ P @ P.T, **EXACT)  # q² = max(5/30, 1) = 1


def test_the_condition_number_is_over_nonzero_singular_values() -> None:
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.linalg.qr(torch.randn(n, n, generator=generator).double()).Q for n in (4, 7))
    values = torch.tensor([1e3, 10.0, 1e-4, 0.0]).double()
    kappa, rank = conditioning(left @ torch.diag(values) @ right[:4])
    # AᵀA has a κ of 10¹⁴, which its own eigenvalues, exact to 10⁻¹⁶ of the largest, would give to two digits
    assert kappa == pytest.approx(1e14, rel=1e-6)
    assert rank == 3


def test_the_experiment_measures_on_both_sets_of_images_and_draws_it(data: Data) -> None:
    run, measured = train_and_measure("BNP", data, 0, SMALL)
    vanilla, nothing = train_and_measure("vanilla", data, 0, SMALL)
    assert run.steps == vanilla.steps == [0, 10, 20]
    assert run.losses[0] == vanilla.losses[0]
    assert nothing == []
    assert [(m.images, m.preconditioner) for m in measured] == [(n, name) for n in (20, 200) for name in (SOURCE, OWN)]
    for each in measured:
        assert each.step == [0, 5, 10, 15]
        # fewer images than weights bound the rank
        assert max(each.rank) <= 20 if each.images == 20 else min(each.rank) > 20
    assert len(draw({"vanilla": [vanilla], "BNP": [run]}, measured).axes) == 6


def test_measuring_leaves_training_alone(data: Data) -> None:
    often, seldom = (train_and_measure("BNP", data, 1, Plan(20, 200, 20, 10, every))[0] for every in (1, 1000))
    assert often == seldom


def test_the_comparison_is_of_medians() -> None:
    columns = {"rank": [50] * 3, "dead": [3] * 3, "hessian": [6, 7, 9], "preconditioned": [1, 4, 8], "D": [2, 2.5, 3]}
    [comparison] = compare([Measured(0, 60, SOURCE, [0, 1, 2], **columns)])
    medians = {"rank": 50, "dead": 3, "hessian": 7, "preconditioned": 4, "improvement": 3, "D_squared": 5}
    bounded = pytest.approx(2 / 3)  # 5 > 4, but 3 ≤ 5 and 1 ≤ 6
    assert comparison == {"images": 60, "preconditioner": SOURCE} | medians | {"bounded": bounded}
    assert table([comparison]).splitlines()[-1].endswith("67%")


def test_the_committed_comparison_follows_from_the_committed_measurements() -> None:
    content = json.loads(COMMITTED.read_text())
    runs: dict[str, list[Curves]] = {"vanilla": [], "BNP": []}
    for run in content["runs"]:
        runs[run["method"]].append(Curves(**{key: value for key, value in run.items() if key != "method"}))
    assert numbers_of(runs, [Measured(**each) for each in content["measurements"]]) == content
