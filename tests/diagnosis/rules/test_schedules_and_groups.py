"""Schedules that rise for ever or hardly at all, a group with a rate of its own, and sound ones."""

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR, LambdaLR, OneCycleLR

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
    ],
    ids=["a factor above 1", "a warm-up of a million steps"],
)
def test_found(make, rule):
    assert scheduled(make)[0] == (rule, "severe")


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda o: ExponentialLR(o, 0.999),
        lambda o: LambdaLR(o, lambda k: min(1.0, (k + 1) / 100)),
        lambda o: OneCycleLR(o, 1e-2, total_steps=500),
    ],
    ids=["a slow decay", "a warm-up", "a cycle"],
)
def test_sound(make):
    assert scheduled(make) == []


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
