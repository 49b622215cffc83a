"""lange2022's figures, small: training, the unit's Hessian on the way, times."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from wellcond.results import Row
from wellcond.results.quantities import HESSIAN, LOSS
from wellcond_papers.data.batches import Batches
from wellcond_papers.data.load import load
from wellcond_papers.experiments.experiment import Job
from wellcond_papers.experiments.table import Record, Table
from wellcond_papers.papers.lange2022 import fig8, fig9
from wellcond_papers.papers.lange2022.fig3 import EXPERIMENT as FIGURE_3
from wellcond_papers.papers.lange2022.fig6 import EXPERIMENT as FIGURE_6
from wellcond_papers.papers.lange2022.networks import FULLY_CONNECTED, network
from wellcond_papers.papers.lange2022.rates import TABLE_3
from wellcond_papers.papers.lange2022.training import measure, trained, trainee_of

SETTINGS: dict[str, Any] = {
    "network": FULLY_CONNECTED, "data": "digits", "hidden": [20, 20], "batch": 20, "steps": 20, "looks": 4,
    "evaluated": 300, "images": 200, "lr": 0.1, "seed": 0, "arm": "",
}  # fmt: skip


def job(**changes: Any) -> Job:
    return Job(SETTINGS | changes)


def losses(rows: list[Row]) -> list[float]:
    return [row.value for row in rows if row.quantity == LOSS]


@pytest.mark.parametrize("method", ["vanilla", "BN", "BNP", "Renorm", "LN"])
def test_every_method_learns_the_digits_as_its_seed_decides(method: str) -> None:
    first, again, other = (measure(job(method=method, steps=60, seed=seed)) for seed in (0, 0, 1))
    assert losses(first)[-1] < 0.9 * losses(first)[0]
    assert first == again
    assert first != other


def test_bnp_changes_the_run_and_nothing_before_it() -> None:
    plain, preconditioned = (losses(measure(job(method=method))) for method in ("vanilla", "BNP"))
    assert plain[0] == preconditioned[0]
    assert plain[1:] != preconditioned[1:]


def test_training_is_plain_sgd_on_the_batches_of_the_seed() -> None:
    trainee = trainee_of(job(method="vanilla", steps=5, looks=1, seed=3), torch.float64)
    trained(job(method="vanilla", steps=5, looks=1, seed=3), trainee, [])
    reference = network(SETTINGS | {"method": "vanilla", "seed": 3}, (1, 8, 8), 10).double()
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    batches = Batches(load("digits"), 20, seed=3, standardize=False, dtype=torch.float64)
    for step in range(5):
        x, y = batches(step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(reference(x), y).backward()
        optimizer.step()
    for parameter, expected in zip(trainee.model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected, rtol=1e-12, atol=1e-14)


def test_the_hessian_is_measured_on_both_sets_without_changing_training() -> None:
    rows = fig8.measure(job(method="BNP"))
    trainee = trainee_of(job(method="BNP"), torch.float64)
    plain = trained(job(method="BNP"), trainee, [fig8.loss_probe(trainee)])
    assert losses(rows) == losses(plain)
    record = Record({"arm": "BNP"}, rows)
    # fewer images than weights bound the rank
    assert max(record.series(HESSIAN.rank, fig8.BATCH).values()) <= 20
    assert list(record.series(fig8.PRECONDITIONED, f"{fig8.MANY}, {fig8.OWN}")) == [0, 5, 10, 15, 20]


def unit(kappa: float, better: float, D: float, step: int = 0) -> list[Row]:
    place = f"{fig8.BATCH}, {fig8.SOURCE}"
    return [
        Row(step, fig8.BATCH, fig8.PLAIN, kappa, ""), Row(step, fig8.BATCH, HESSIAN.rank, 60, ""),
        Row(step, place, fig8.PRECONDITIONED, better, ""), Row(step, place, fig8.SCALING, D, ""),
    ]  # fmt: skip


def test_the_improvement_is_compared_with_the_square_of_kappa_of_d() -> None:
    claim = fig8.by_about_scaling("", "", fig8.BATCH, fig8.SOURCE)
    about = Table([Record({"arm": "BNP"}, unit(1e6, 1e2, 10**2.2))])
    assert fig8.improvements(about, fig8.BATCH, fig8.SOURCE) == [(pytest.approx(4.0), pytest.approx(4.4))]
    assert claim.check(about).verdict == fig8.lowers.check(about).verdict == "holds"
    far = Table([Record({"arm": "BNP"}, unit(1e6, 1e2, 1e3))])
    assert claim.check(far).verdict == "does not hold"
    assert claim.check(far).measured == "10^4.0 where κ(D)² is 10^6.0; rank 60"
    two = Table([Record({"arm": "BNP"}, unit(1e6, 1e2, 1e3) + unit(1e6, 1e3, 1e2, step=1))])  # gains of 4 and 3 decades
    assert claim.check(two).measured == "10^3.5 where κ(D)² is 10^5.0, slope 0.50; rank 60"
    assert fig8.lowers.check(Table([Record({"arm": "BNP"}, unit(1e2, 1e3, 1e3))])).verdict == "does not hold"
    assert claim.check(Table([])).verdict == "not tested"


def timed(arm: str, bn: list[float], bnp: list[float]) -> Record:
    rows = [Row(k, m, fig9.SECONDS, v, "s") for m, own in (("BN", bn), ("BNP", bnp)) for k, v in enumerate(own, 1)]
    return Record({"arm": arm}, rows)


def test_times_are_medians_and_each_claim_can_fail() -> None:
    table = Table([timed("batch 16", [16, 16, 90], [17, 17, 95]), timed("batch 512", [10.0], [9.9])])
    assert fig9.times(table, ("batch 16", "batch 256")) == {"batch 16": (16, 17)}
    assert [claim.check(table).verdict for claim in fig9.EXPERIMENT.claims] == ["holds"] * 4
    other = Table([timed("batch 16", [16], [8]), timed("batch 512", [17], [30])])
    assert [claim.check(other).verdict for claim in fig9.EXPERIMENT.claims] == ["does not hold"] * 4
    tie = Table([timed("batch 16", [16, 17], [17, 16])])
    assert fig9.EXPERIMENT.claims[1].check(tie).verdict == "holds in part"


def test_the_rates_and_schedules_are_the_sources() -> None:
    rates = {arm: own["lr"] for arm, own in FIGURE_3.arms.items()}
    for panel in ("CIFAR-10", "CIFAR-10 standardized"):
        assert [rates[f"{panel}: {method}"] for method in ("vanilla", "BN", "BNP", "LN")] == [0.01, 0.5, 0.1, 0.5]
    for panel, data in (("CIFAR-10", "ResNet-110, CIFAR-10"), ("CIFAR-100", "PreResNet-110, CIFAR-100")):
        for method, rate in TABLE_3[data].items():
            assert FIGURE_6.arms[f"{panel}: {method}"]["lr"] == rate
    by_arm = {cell.settings["arm"]: cell.settings for cell in FIGURE_6.cells("paper")}
    ten, hundred = by_arm["CIFAR-10: BNP+GN"], by_arm["CIFAR-100: BNP+GN"]
    assert [share * ten["epochs"] for share in ten["decay_at"]] == [80, 120]
    assert [share * hundred["epochs"] for share in hundred["decay_at"]] == pytest.approx([150, 220])
    assert (ten["weight_decay"], hundred["weight_decay"]) == (1.5e-4, 2e-4)
    assert (ten["init_scale"], hundred["init_scale"]) == (0.1, 0.4)
