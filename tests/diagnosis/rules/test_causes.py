"""Causes before what they make: networks that training shows to be ill, and their healthy twins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam

import wellcond as wc

N, FEATURES, CLASSES, BATCH, STEPS = 512, 20, 5, 64, 400
Case = tuple[nn.Module, Callable[..., Any], list[Any], torch.optim.Optimizer]
LOSS = nn.CrossEntropyLoss()


def rows(shift: float = 0.0) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(N, FEATURES, generator=draw)
    hidden = torch.relu(x @ torch.randn(FEATURES, 32, generator=draw) / FEATURES**0.5)
    scores = hidden @ torch.randn(32, CLASSES, generator=draw)
    return x + shift, (scores - scores.mean(0)).argmax(1)


def perceptron(*modules: nn.Module, act: type[nn.Module] = nn.ReLU, depth: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for k in range(depth):
        layers += [nn.Linear(64 if k else FEATURES, 64), *modules, act()]
    return nn.Sequential(*layers, nn.Linear(64, CLASSES))


def started(model: nn.Sequential, start: Callable[[nn.Linear], Any]) -> nn.Sequential:
    for module in model[:-1]:
        if isinstance(module, nn.Linear):
            with torch.no_grad():
                start(module)
    return model


def of(model: nn.Module, lr: float = 0.05, data: tuple[Tensor, Tensor] | None = None, batch: int = BATCH) -> Case:
    x, y = rows() if data is None else data
    return model, LOSS, list(zip(x.split(batch), y.split(batch), strict=True)), SGD(model.parameters(), lr)


class Series(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.out = nn.LSTM(3, 16, batch_first=True), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(x)[0][:, -1])


def series(scale: float) -> Case:
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(256, 12, 3, generator=draw).cumsum(1) / 3
    y = torch.bucketize(x[:, -4:, 0].mean(1), torch.tensor([-0.5, 0.5]))
    torch.manual_seed(0)
    model = Series()
    units = torch.tensor([1.0, 20.0, 500.0])
    x = x if scale == 1 else scale * (units * x + 5 * units)
    return model, LOSS, list(zip(x.split(32), y.split(32), strict=True)), Adam(model.parameters(), 5e-3)


def summed(lr: float) -> Case:
    model, _, batches, _ = of(perceptron())
    return model, nn.CrossEntropyLoss(reduction="sum"), batches, SGD(model.parameters(), lr, momentum=0.9)


def linear(*, is_linear_task: bool) -> Case:
    x, _ = rows()
    y = (x[:, 0] + x[:, 1] > 0).long() if is_linear_task else (x[:, 0] * x[:, 1] > 0).long()
    return of(nn.Sequential(*perceptron(act=nn.Identity)[:-1], nn.Linear(64, 2)), 0.1, (x, y))


ILL: dict[str, tuple[Callable[[], Case], str]] = {
    "weights of 0.001": (lambda: of(started(perceptron(), lambda m: nn.init.normal_(m.weight, std=1e-3))),
                         "bad-initialisation"),
    "weights from 0 to 1": (lambda: of(started(perceptron(), lambda m: nn.init.uniform_(m.weight)), 0.01),
                            "bad-initialisation"),
    "biases of 10": (lambda: of(started(perceptron(), lambda m: nn.init.constant_(m.bias, 10.0))),
                     "bad-initialisation"),
    "a series in raw units": (lambda: series(100.0), "unscaled-input"),
    "no nonlinearity on products": (lambda: linear(is_linear_task=False), "no-nonlinearity"),
    "dropout of 0.95": (lambda: of(perceptron(nn.Dropout(0.95)), 0.2), "dropout-too-strong"),
    "BatchNorm of two": (lambda: of(perceptron(nn.BatchNorm1d(64), depth=1), batch=2), "small-batch-batchnorm"),
    "a sum at the mean's rate": (lambda: summed(0.1), "learning-rate-too-high"),
}  # fmt: skip
WELL: dict[str, Callable[[], Case]] = {
    "weights as torch starts them": lambda: of(perceptron(), 0.2),
    "a series in standard units": lambda: series(1.0),
    "no nonlinearity on a linear task": lambda: linear(is_linear_task=True),
    "dropout of 0.2": lambda: of(perceptron(nn.Dropout(0.2), depth=2), 0.2),
    "a sum at its own rate": lambda: summed(5e-4),
}


def diagnosed(case: Case) -> wc.Diagnosis:
    model, loss, batches, optimizer = case
    return wc.diagnose(wc.Problem(model, loss, batches), optimizer)


def trained(case: Case) -> float:
    """The loss after some steps over that before."""
    model, loss, batches, optimizer = case
    before = sum(loss(model(x), y).item() for x, y in batches)
    before = min(before, len(batches) * 1.7 * (BATCH if getattr(loss, "reduction", "") == "sum" else 1))
    for k in range(STEPS):
        x, y = batches[k % len(batches)]
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
    after: float = sum(loss(model(x), y).item() for x, y in batches)
    return after / before


@pytest.mark.slow
@pytest.mark.parametrize("name", ILL)
def test_the_cause_is_first_and_as_severe_as_what_it_makes(name: str) -> None:
    make, rule = ILL[name]
    case = make()
    first = diagnosed(case).findings[0]
    assert (first.rule, first.severity) == (rule, "severe")
    assert not trained(case) < 0.75  # it hardly learns, or is NaN


@pytest.mark.slow
@pytest.mark.parametrize("name", WELL)
def test_healthy_twins_have_nothing_severe(name: str) -> None:
    case = WELL[name]()
    assert [str(each) for each in diagnosed(case).findings if each.severity != "note"] == []
    assert trained(case) < 0.65


@pytest.mark.slow
def test_statistics_over_a_batch_are_a_note() -> None:
    class Standardized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = perceptron(depth=1)

        def forward(self, x: Tensor) -> Tensor:
            return self.net((x - x.mean(0)) / (x.std(0) + 1e-5))

    severities = {each.rule: each.severity for each in diagnosed(of(Standardized(), 0.2)).findings}
    assert severities == {"mixed-examples": "note"}


@pytest.mark.slow
def test_running_statistics_that_never_leave_their_start_are_severe() -> None:
    slow, own = (perceptron(nn.BatchNorm1d(64, momentum=momentum), depth=1) for momentum in (1e-4, 0.1))
    data = rows(shift=3.0)
    assert [each.rule for each in diagnosed(of(slow, data=data)).findings if each.severity == "severe"] == [
        "batchnorm-mode-gap"
    ]
    assert "batchnorm-mode-gap" not in {each.rule for each in diagnosed(of(own, data=data)).findings}
    assert trained(of(slow, data=data)) < 0.65  # by the statistics of each batch
    losses = []
    for model in (slow, own):
        trained(of(model, data=data))
        losses.append(LOSS(model.eval()(data[0]), data[1]).item())
    assert losses[0] > 1.6 > 0.8 > losses[1]


@pytest.mark.slow
def test_a_rule_is_selected_by_name() -> None:
    model, loss, batches, optimizer = ILL["weights of 0.001"][0]()
    diagnosis = wc.diagnose(wc.Problem(model, loss, batches), optimizer, select=("vanishing-gradient",))
    assert {each.rule for each in diagnosis.findings} == {"vanishing-gradient"}


@pytest.mark.slow
def test_without_an_optimizer_the_trial_says_what_it_took() -> None:
    model, loss, batches, _ = ILL["weights of 0.001"][0]()
    first = wc.diagnose(wc.Problem(model, loss, batches)).findings[0]
    assert first.severity == "severe"
    assert first.evidence["tried with"] == "SGD at 0.01 with momentum, because no optimizer was passed"
