"""What is read from a heat map of wei2019, and what becomes of its claims."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from zoo import normal

from wellcond.learning_rate.meanfield import Architecture
from wellcond.results import Row
from wellcond.results.quantities import MAX_LR, PREDICTED_MAX_LR, TEST_LOSS
from wellcond_papers.experiments.table import Record, Table
from wellcond_papers.papers.wei2019 import fig2, fig3
from wellcond_papers.papers.wei2019.heat_maps import LINES, HeatMap, height, square
from wellcond_papers.papers.wei2019.networks import half_squared, network

SETTINGS = {"arm": "", "seed": 0, "vary": "gamma", "values": [0.5, 2.0], "lrs": [0.01, 0.1, 1.0, 10.0], "epochs": 5}


def record(losses: list[list[float | None]], limits: list[float], arm: str = "", seed: int = 0) -> Record:
    """A map with these losses, one row per γ, None where it diverged, and these limits by every line."""
    rows = []
    for value, row, limit in zip(SETTINGS["values"], losses, limits, strict=True):
        for line in LINES:
            quantity = MAX_LR if line == "measured" else PREDICTED_MAX_LR
            rows.append(Row(0, f"{height(SETTINGS, value)}, {line}", quantity, limit, "lr"))
        for rate, loss in zip(SETTINGS["lrs"], row, strict=True):
            if loss is not None:
                rows.append(Row(9, square(SETTINGS, value, rate), TEST_LOSS, loss, ""))
    return Record(SETTINGS | {"arm": arm, "seed": seed}, rows)


def test_the_boundary_lies_between_the_last_good_and_the_first_bad_rate() -> None:
    heat_map = HeatMap(Table([record([[2.0, 1.0, None, 0.5], [2.0, 1.0, 0.5, 0.4]], [0.5, 3.0])]))
    assert heat_map.boundary(0.5) == (0.1, 1.0)
    assert heat_map.boundary(2.0) == (10.0, math.inf)
    assert heat_map.ratios("measured") == [pytest.approx(math.sqrt(0.1) / 0.5)]
    assert heat_map.best(2.0) == (0.4, 10.0)


def test_a_limit_separates_if_it_lies_between_both_up_to_a_factor_of_two() -> None:
    losses: list[list[float | None]] = [[2.0, 1.0, None, None], [2.0, 1.0, 0.5, 0.4]]

    def verdicts(limits: list[float]) -> list[bool | None]:
        heat_map = HeatMap(Table([record(losses, limits)]))
        return [heat_map.separates("as printed", value) for value in (0.5, 2.0)]

    # the second row never diverges: it speaks only of limits that were passed
    assert verdicts([0.3, 3.0]) == [True, False]
    assert verdicts([0.051, 6.0]) == [True, None]
    assert verdicts([0.049, 4.9]) == [False, False]
    assert verdicts([2.1, 5.1]) == [False, None]


def test_a_row_in_which_every_rate_diverges_speaks_only_against_limits_above_them() -> None:
    heat_map = HeatMap(Table([record([[None] * 4, [2.0, None, None, None]], [0.019, 0.019])]))
    assert [heat_map.separates("as printed", value) for value in (0.5, 2.0)] == [None, True]
    heat_map = HeatMap(Table([record([[None] * 4, [2.0, None, None, None]], [0.021, 0.21])]))
    assert [heat_map.separates("as printed", value) for value in (0.5, 2.0)] == [False, False]


def test_a_square_is_white_if_one_of_the_runs_diverged() -> None:
    first = record([[2.0, 1.0, 1.0, None], [2.0, 1.0, None, None]], [1.0, 1.0])
    second = record([[4.0, 1.0, None, None], [2.0, 1.0, None, None]], [3.0, 1.0], seed=1)
    heat_map = HeatMap(Table([first, second]))
    assert heat_map.losses[0.01, 0.5] == 3.0
    assert heat_map.losses[1.0, 0.5] is None
    assert heat_map.limit("measured", 0.5) == 2.0


def test_the_claims_of_figure_2_hold_and_fail_with_the_map() -> None:
    losses: dict[str, tuple[list[list[float | None]], list[float]]] = {
        "as claimed": ([[2.0, 0.4, 0.3, None], [2.0, 1.0, None, None]], [2.0, 0.3]),
        "otherwise": ([[2.0, 1.9, 1.8, 1.7], [0.1, 1.0, 2.0, 2.0]], [0.02, 0.002]),
    }

    def verdicts(arm: str) -> list[list[str]]:
        tables = [Table([record(*each, arm=arm)]) for each in losses.values()]
        return [[claim.check(table).verdict for table in tables] for claim in fig2.EXPERIMENT.claims]

    decided, untested = ["holds", "does not hold"], ["not tested", "not tested"]
    phases, line, cross_entropy, full, best, measured, of_cross_entropy, small = verdicts("FC, MNIST, squared error")
    assert [phases, line, best, measured, small] == [decided] * 5
    assert [cross_entropy, full, of_cross_entropy] == [untested] * 3
    phases, line, cross_entropy, full, best, measured, of_cross_entropy, small = verdicts("FC, MNIST")
    assert [cross_entropy, of_cross_entropy, small] == [decided] * 3
    assert [phases, line, full, best, measured] == [untested] * 5


def test_what_is_best_after_five_epochs_is_not_seen_after_one() -> None:
    early = record([[2.0, 0.4, 0.3, None], [2.0, 1.0, None, None]], [2.0, 0.3], arm="FC, MNIST, squared error")
    table = Table([Record({**early.settings, "epochs": 1}, early.rows)])
    verdicts = [claim.check(table).verdict for claim in fig2.EXPERIMENT.claims]
    assert [verdicts[k] for k in (0, 1)] == ["holds", "holds"]
    assert [verdicts[k] for k in (4, 5, 7)] == ["too short to tell"] * 3


def test_the_best_rate_is_about_half_the_limit_if_it_is_within_half_a_decade_of_it() -> None:
    def verdict(best: int) -> str:
        losses: list[list[float | None]] = [[0.3 if k == best else 2.0 for k in range(4)] for _ in range(2)]
        each = record(losses, [2.0, 2.0], arm="conv, CIFAR-10, squared error")
        return fig2.EXPERIMENT.claims[4].check(Table([each])).verdict

    assert [verdict(best) for best in (1, 2, 3)] == ["does not hold", "holds", "does not hold"]


def test_a_row_is_parted_if_every_rate_from_one_on_diverges() -> None:
    heat_map = HeatMap(Table([record([[2.0, None, 1.0, None], [2.0, 1.0, None, None]], [1.0, 1.0])]))
    assert [heat_map.is_parted(value) for value in (0.5, 2.0)] == [False, True]
    never = HeatMap(Table([record([[2.0, None, 1.0, 0.5], [2.0, 1.0, 1.0, 0.5]], [1.0, 1.0])]))
    assert not any(never.is_parted(value) for value in (0.5, 2.0))


def test_batchnorm_allows_larger_rates_if_they_are_ten_times_as_high() -> None:
    def verdict(normed: list[float | None]) -> str:
        vanilla: list[float | None] = [2.0, None, None, None]
        rows = {"mini-batches": vanilla, "BatchNorm, γ 0.1, mini-batches": normed}
        table = Table([record([row, row], [1.0, 1.0], arm=arm) for arm, row in rows.items()])
        return fig3.EXPERIMENT.claims[2].check(table).verdict

    assert [verdict(row) for row in ([2.0, 1.0, None, None], [2.0, None, None, None])] == ["holds", "does not hold"]


def test_ten_times_a_rate_of_the_grid_is_ten_times_as_high_although_rates_are_rounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lrs = fig3.EXPERIMENT.scales["paper"]["lrs"]
    first, higher = lrs[14], lrs[18]
    assert higher < 10 * first
    monkeypatch.setitem(SETTINGS, "lrs", [0.01, first, 1.0, higher])
    rows = {"mini-batches": [2.0, None, None, None], "BatchNorm, γ 0.1, mini-batches": [2.0, 1.0, 1.0, None]}
    table = Table([record([row, row], [1.0, 1.0], arm=arm) for arm, row in rows.items()])
    assert fig3.EXPERIMENT.claims[2].check(table).verdict == "holds"


def test_the_loss_is_half_the_squared_distance_to_one_hot_targets() -> None:
    outputs, targets = torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.tensor([1, 0])
    assert float(half_squared(outputs, targets)) == pytest.approx((1 + 1 + 1) / 4)


def test_a_network_has_the_widths_and_variances_of_its_architecture() -> None:
    model = network(Architecture.parse("fc 50-400-400-10 gamma=0.3"), seed=0).requires_grad_(False)
    assert model(normal(3, 50).float()).shape == (3, 10)
    assert float(model.fc2.weight.var()) == pytest.approx(2 / 400, rel=0.02)
    assert bool((model.bn1.weight == 0.3).all())
    vanilla = network(Architecture.parse("conv 1x16x16 4-6-8 k3 s2 10 vanilla"), seed=0)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in vanilla.modules())
    assert [module.out_channels for module in vanilla.modules() if isinstance(module, nn.Conv2d)] == [4, 6, 8]
