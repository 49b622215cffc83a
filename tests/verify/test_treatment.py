"""What a treatment says of runs made by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import wellcond as wc
from wellcond.errors import OutputError
from wellcond.results.quantities import COST, FINAL_LOSS, STEPS, TRAINED_LR
from wellcond.training.run import Run
from wellcond.verify.treat import REMEDIES, treat
from wellcond.verify.treatment import Arm, Spread, Treatment

DIVERGED = Run([2.0, 9.0], diverged_at=3)


def stairs(*levels: float) -> Run:
    """20 steps whose loss goes down in stairs of equal length."""
    return Run([level for level in levels for _ in range(20 // len(levels))])


def arm(name: str, runs: Mapping[float, Any], refused: str | None = None) -> Arm:
    """By learning rate: one run, the final loss of one, or those of several seeds."""
    by_seed: dict[float, dict[int, Run]] = {}
    for lr, each in runs.items():
        finals = each if isinstance(each, list) else [each]
        by_seed[lr] = {seed: run if isinstance(run, Run) else stairs(run) for seed, run in enumerate(finals)}
    return Arm(name, by_seed, refused)


def treatment(*arms: Arm) -> Treatment:
    rates = tuple(sorted({lr for each in arms for lr in each.runs}))
    seeds = tuple(sorted({seed for each in arms for runs in each.runs.values() for seed in runs}))
    lines = {each.name: f"{each.name} with lr={{lr}}" for each in arms}
    return Treatment({each.name: each for each in arms}, rates, seeds, 20, lines, planned=9)


SGD = arm("sgd", {0.01: 2.0, 0.1: 0.41, 1.0: DIVERGED})
REFUSED = arm("bnp", {}, refused="no")
CASES: dict[str, tuple[list[Arm], str, str | None]] = {
    "a remedy helps": (
        [SGD, arm("bnp", {0.1: 0.5, 0.3: stairs(1.0, 0.4, 0.2, 0.125)}), arm("last-bn", {0.1: 0.3})],
        "bnp helps: sgd ends at 0.41 at lr 0.1, bnp at 0.125 at lr 0.3. "
        "It reaches the loss of sgd after 7 of 20 steps.",
        "bnp",
    ),
    "none helps": (
        [SGD, arm("bnp", {0.1: 0.5}), arm("last-bn", {0.3: 0.6})],
        "No remedy helps: sgd ends at 0.41 at lr 0.1, bnp at 0.5 at lr 0.1.",
        "sgd",
    ),
    "less than a hundredth is no help": (
        [SGD, arm("bnp", {0.1: 0.4069})],
        "No remedy helps: sgd ends at 0.41 at lr 0.1, bnp at 0.407 at lr 0.1.",
        "sgd",
    ),
    "losses may be negative": (
        [arm("sgd", {0.1: -1.0}), arm("bnp", {0.1: -2.0})],
        "bnp helps: sgd ends at -1 at lr 0.1, bnp at -2 at lr 0.1. It reaches the loss of sgd after 2 of 20 steps.",
        "bnp",
    ),
    "the untreated network wants other rates": (
        [arm("sgd", {0.1: 3.0, 1.0: 2.0}), arm("bnp", {0.1: 1.0})],
        "bnp helps: sgd ends at 2 at lr 1, bnp at 1 at lr 0.1. It reaches the loss of sgd after 2 of 20 steps. "
        "sgd does best at the largest rate tried: try larger ones too.",
        "bnp",
    ),
    "the remedy wants other rates": (
        [arm("sgd", {0.1: 1.0, 1.0: 2.0}), arm("bnp", {0.1: 3.0})],
        "No remedy helps: sgd ends at 1 at lr 0.1, bnp at 3 at lr 0.1. "
        "bnp does best at the smallest rate tried: try smaller ones too.",
        "sgd",
    ),
    "the untreated network diverges": (
        [arm("sgd", {1.0: DIVERGED}), arm("bnp", {0.1: 0.5})],
        "bnp ends lowest, at 0.5 at lr 0.1; sgd diverges at every rate.",
        "bnp",
    ),
    "alone": ([SGD, REFUSED], "sgd ends at 0.41 at lr 0.1; no remedy finished.", "sgd"),
    "all diverged": ([arm("sgd", {1.0: DIVERGED}), REFUSED], "No run finished; try lower learning rates.", None),
    "ranges over seeds that are apart": (
        [arm("sgd", {0.1: [0.9, 1.0, 1.2]}), arm("bnp", {0.1: [0.5, 0.8, 0.4]})],
        "bnp helps: sgd ends at 1 (0.9 to 1.2) at lr 0.1, bnp at 0.5 (0.4 to 0.8) at lr 0.1. "
        "It reaches the loss of sgd after 2 of 20 steps.",
        "bnp",
    ),
    "ranges over seeds that overlap": (
        [arm("sgd", {0.1: [0.7, 1.0, 1.2]}), arm("bnp", {0.1: [0.5, 0.8, 0.4]})],
        "No remedy clearly helps: sgd ends at 1 (0.7 to 1.2) at lr 0.1, bnp at 0.5 (0.4 to 0.8) at lr 0.1. "
        "Over 3 seeds their ranges overlap; more steps or seeds may tell.",
        "sgd",
    ),
}


@pytest.mark.parametrize(("arms", "said", "best"), CASES.values(), ids=CASES)
def test_the_verdict_and_the_best_arm(arms: list[Arm], said: str, best: str | None) -> None:
    result = treatment(*arms)
    assert result.verdict() == said
    assert (result.best.name if result.best else None) == best
    assert result.code == (f"{best} with lr={result.best.best_lr:g}" if result.best else "")


def test_a_rate_at_which_a_seed_diverges_is_never_the_best() -> None:
    mixed = arm("sgd", {0.1: [2.0, 3.0], 0.3: [0.1, DIVERGED]})
    assert (mixed.best_lr, mixed.best_final) == (0.1, Spread(2.5, 2.0, 3.0))
    assert mixed.final(0.3) is None
    assert [mixed.cell(lr) for lr in (0.1, 0.3, 1.0)] == ["2.5 (2 to 3)", "1 of 2 diverged", ""]


def test_it_prints_as_a_table_with_its_verdict() -> None:
    result = treatment(arm("sgd", {0.1: 0.41, 1.0: DIVERGED}), REFUSED)
    printed = str(result).splitlines()
    assert printed[0] == "Loss after 20 steps (mean of the last 2), by learning rate"
    assert [line.split() for line in printed[1:4]] == [
        ["lr", "sgd", "bnp"],
        ["0.1", "0.41", "–"],
        ["1", "diverged", "@", "3", "–"],
    ]
    assert printed[4:6] == ["bnp refused: no", result.verdict()]
    several = str(treatment(arm("sgd", {0.1: [1.0, 2.0, 4.0]})))
    assert "median (least to greatest) of 3 seeds" in several
    assert "2 (1 to 4)" in several


def test_rows_hold_the_best_arm_json_every_run_and_the_picture_needs_one(tmp_path: Path) -> None:
    result = treatment(SGD, arm("bnp", {0.1: [0.2, 0.1, 0.3]}))
    values = {row.quantity: row.value for row in result.rows(step=7)}
    assert values == {TRAINED_LR: 0.1, FINAL_LOSS: 0.2, STEPS: 20, COST: 0}
    assert {row.step for row in result.rows(step=7)} == {7}
    saved = json.loads(result.save(tmp_path / "t.json").read_text())["values"]["arms"]
    assert saved["bnp"]["runs"]["0.1"]["2"]["losses"] == [0.3] * 20
    assert saved["sgd"]["runs"]["1.0"]["0"]["diverged_at"] == 3
    assert len(result.figure().axes[0].lines) >= 2
    none = treatment(arm("sgd", {1.0: DIVERGED}))
    assert {row.quantity for row in none.rows()} == {STEPS, COST}
    with pytest.raises(OutputError, match="nothing to draw"):
        none.figure()


# the lines to write


def codes(optimizer: Any = None, **options: Any) -> dict[str, str]:
    model = nn.Sequential(nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4, affine=False), nn.Linear(4, 2, bias=False))
    problem = wc.Problem(model, nn.CrossEntropyLoss(), (torch.randn(6, 3), torch.arange(6) % 2))
    made = None if optimizer is None else optimizer(model)
    result = treat(problem, made, steps=1, seeds=[0], learning_rates=[0.5], **options)
    return {name: result.lines[name].format(lr="0.5") for name in result.arms}


def test_the_lines_build_what_was_run() -> None:
    for lines in (codes(momentum=0.9), codes(lambda model: torch.optim.SGD(model.parameters(), 0.1, momentum=0.9))):
        assert list(lines) == ["sgd", *REMEDIES]
        for name, code in lines.items():
            model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
            names = {"wc": wc, "torch": torch, "model": model, "inputs": torch.randn(6, 3)}
            names["optimizer"] = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
            exec(code, names)
            optimizer: Any = names["optimizer"]
            assert all((group["lr"], group["momentum"]) == (0.5, 0.9) for group in optimizer.param_groups), code
            assert isinstance(optimizer, wc.ScaleAmendedSGD) == (name == "scale-amended")
            assert len(optimizer._optimizer_step_pre_hooks) == (name == "bnp")
            assert len(list(names["model"].parameters())) == (6 if name == "last-bn" else 4)


def test_the_lines_keep_the_proportions_of_groups() -> None:
    def two_groups(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam([{"params": model[0].parameters(), "lr": 0.01}, {"params": model[2].parameters()}], 0.1)

    optimizer = two_groups(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    exec(codes(two_groups)["adam"], {"optimizer": optimizer})
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.05, 0.5])
