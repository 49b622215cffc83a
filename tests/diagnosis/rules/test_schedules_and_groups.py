"""Schedules that rise for ever or hardly at all, a group with a rate of its own, and sound ones."""

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    MultiStepLR,
    OneCycleLR,
    PolynomialLR,
    SequentialLR,
    StepLR,
)

import wellcond as wc

G = torch.Generator().manual_seed(0)
X = torch.randn(256, 8, generator=G)
LABELS = (torch.tanh(X @ torch.randn(8, 12, generator=G)) @ torch.randn(12, 3, generator=G)).argmax(1)
BATCHES = [(X[i : i + 32], LABELS[i : i + 32]) for i in range(0, 256, 32)]


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))


def scheduled(make):
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    findings = wc.diagnose(
        wc.Problem(model, nn.CrossEntropyLoss(), BATCHES), optimizer, scheduler=make(optimizer)
    ).findings
    return [(each.rule, each.severity) for each in findings if each.severity != "note"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda o: ExponentialLR(o, 1.1), "learning-rate-too-high"),
        (lambda o: LambdaLR(o, lambda k: min(1.0, (k + 1) / 1e6)), "learning-rate-too-low"),
        (lambda o: ExponentialLR(o, 0.8), "learning-rate-too-low"),
        (lambda o: MultiStepLR(o, [3, 6, 9], gamma=0.1), "learning-rate-too-low"),
        (lambda o: LambdaLR(o, lambda k: max(0.85**k, 1e-3)), "learning-rate-too-low"),
        (lambda o: LambdaLR(o, lambda k: 1e-4 * min((k + 1) / 50, (50 / (k + 1)) ** 0.5)), "learning-rate-too-low"),
    ],
    ids=[
        "a factor above 1",
        "a warm-up of a million steps",
        "a decay for epochs",
        "steps for epochs",
        "a decay to a floor",
        "a factor on top of a rate",
    ],
)
def test_found(make, rule):
    assert scheduled(lambda o: {"scheduler": make(o), "interval": "step"})[0] == (rule, "severe")


@pytest.mark.slow
def test_a_decay_that_may_be_stepped_once_per_epoch_is_no_more_than_a_warning():
    assert scheduled(lambda o: ExponentialLR(o, 0.8))[0] == ("learning-rate-too-low", "warning")


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda o: ExponentialLR(o, 0.999),
        lambda o: LambdaLR(o, lambda k: min(1.0, (k + 1) / 100)),
        lambda o: OneCycleLR(o, 1e-2, total_steps=500),
        lambda o: CosineAnnealingLR(o, 60),
        lambda o: PolynomialLR(o, 40),
        lambda o: StepLR(o, 100, gamma=0.1),
        lambda o: SequentialLR(o, [LinearLR(o, 0.01, total_iters=20), CosineAnnealingLR(o, 80)], [20]),
        lambda o: {"scheduler": ExponentialLR(o, 0.8), "interval": "epoch"},
        lambda o: {"scheduler": StepLR(o, 3), "interval": "epoch"},
    ],
    ids=[
        "a slow decay",
        "a warm-up",
        "a cycle",
        "a cosine",
        "a polynomial to zero",
        "a step that comes late",
        "a warm-up, then a cosine",
        "a decay once per epoch",
        "steps once per epoch",
    ],
)
def test_sound(make):
    assert scheduled(make) == []


@pytest.mark.slow
@pytest.mark.parametrize("interval", ["step", "epoch"])
@pytest.mark.parametrize(
    ("factor", "is_late"),
    [
        (lambda k: min(1, (k + 1) // 2000), True),
        (lambda k: float(k >= 995), True),
        (lambda k: 0.0, True),
        (lambda k: 1e-4 if k < 3000 else 1.0, True),
        (lambda k: min(1.0, k / 8000), False),
        (lambda k: 0.0 if k < 100 else 1.0, False),
    ],
    ids=[
        "whole numbers",
        "a jump at the end",
        "always zero",
        "waits at a tiny share",
        "a long warm-up",
        "waits for a hundred steps",
    ],
)
def test_a_rate_that_begins_after_an_ordinary_run(factor, is_late, interval):
    findings = scheduled(lambda o: {"scheduler": LambdaLR(o, factor), "interval": interval})
    assert (("learning-rate-too-low", "severe") in findings) == is_late


@pytest.mark.slow
def test_a_decay_that_is_gone_early_is_a_warning_and_says_how_to_pass_one_per_epoch():
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    problem = wc.Problem(model, nn.CrossEntropyLoss(), BATCHES)
    first = wc.diagnose(problem, optimizer, scheduler=StepLR(optimizer, 30, gamma=0.1)).findings[0]
    assert (first.rule, first.severity) == ("learning-rate-too-low", "warning")
    assert "in 60 batches" in first.summary
    assert '{"scheduler": scheduler, "interval": "epoch"}' in first.summary


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "expected"), [(4, ["warning"]), (8, [])])
def test_a_decay_to_zero_within_half_a_pass(steps, expected):
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    problem = wc.Problem(model, nn.CrossEntropyLoss(), BATCHES)
    findings = wc.diagnose(problem, scheduler=PolynomialLR(optimizer, steps)).findings
    assert [each.severity for each in findings if each.rule == "learning-rate-too-low"] == expected


@pytest.mark.slow
def test_what_configure_optimizers_returns_is_stepped_once_per_epoch():
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    problem = wc.Problem(model, nn.CrossEntropyLoss(), BATCHES)
    by_epoch = [optimizer], [ExponentialLR(optimizer, 0.8)]
    by_step = {"optimizer": optimizer, "lr_scheduler": {"scheduler": by_epoch[1][0], "interval": "step"}}
    findings = [wc.diagnose(problem, form).findings for form in (by_epoch, by_step)]
    assert [[each.severity for each in one if each.rule == "learning-rate-too-low"] for one in findings] == [
        [],
        ["severe"],
    ]


@pytest.mark.slow
def test_a_rate_that_one_group_alone_cannot_take():
    model = network()
    biases, weights = ([p for p in model.parameters() if (p.dim() == 1) == is_bias] for is_bias in (True, False))
    optimizer = torch.optim.SGD([{"params": biases, "lr": 300.0}, {"params": weights}], 0.1, momentum=0.9)
    first = wc.diagnose(wc.Problem(model, nn.CrossEntropyLoss(), BATCHES), optimizer).findings[0]
    assert (first.rule, first.severity) == ("learning-rate-too-high", "severe")


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "expected"), [(30.0, ["learning-rate-too-high"]), (6e-3, []), (1e-5, [])])
def test_a_group_with_a_rate_of_its_own(rate, expected):
    model = network()
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": rate}]
    findings = wc.diagnose(wc.Problem(model, nn.CrossEntropyLoss(), BATCHES), torch.optim.Adam(groups, 3e-3)).findings
    ill = [(each.rule, each.layer) for each in findings if each.severity == "severe"]
    assert ill == [(rule, "2") for rule in expected]
