"""Losses and outputs that do not fit, told by what they do: each is found however it is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from rule_cases import CLASSES, findings, perceptron, severe, table
from torch import Tensor, nn
from torch.nn import functional as F

import wellcond as wc

MISMATCH = "output-loss-mismatch"


class Ending(nn.Module):
    def __init__(self, end: Callable[[Tensor], Tensor], outputs: int = CLASSES) -> None:
        super().__init__()
        self.body, self.end = perceptron(outputs=outputs), end

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.body(x))


class Cosines(nn.Module):
    """Cosines of features and of a vector per class."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.body, self.scale = perceptron(outputs=32), scale
        self.vectors = nn.Parameter(0.1 * torch.randn(CLASSES, 32))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * F.normalize(self.body(x)) @ F.normalize(self.vectors).T


def hot(y: Tensor) -> Tensor:
    return F.one_hot(y, CLASSES).float()


BOUNDED: dict[str, Callable[[], nn.Module]] = {
    "normalize": lambda: Ending(F.normalize),
    "own norm": lambda: Ending(lambda f: f / (f * f).sum(1, keepdim=True).sqrt()),
    "clamp": lambda: Ending(lambda f: f.clamp(-1, 1)),
    "erf": lambda: Ending(torch.erf),
    "own softmax": lambda: Ending(lambda f: f.exp() / torch.einsum("nc->n", f.exp())[:, None]),
    "own sigmoid": lambda: Ending(lambda f: 1 / (1 + torch.exp(-f))),
    "LayerNorm": lambda: Ending(lambda f: 0.1 * F.layer_norm(f, (CLASSES,))),
    "between 0 and 1": lambda: Ending(lambda f: (f - f.amin(1, True)) / (f.amax(1, True) - f.amin(1, True) + 1e-6)),
    "cosines": lambda: Cosines(1.0),
}
UNBOUNDED: dict[str, Callable[[], nn.Module]] = {
    "logits": perceptron,
    "cosines times 16": lambda: Cosines(16.0),
    "capped at 30": lambda: Ending(lambda f: 30 * torch.tanh(f / 30)),
    "log-probabilities": lambda: Ending(lambda f: f.log_softmax(1)),
    "a norm with a scale": lambda: nn.Sequential(perceptron(), nn.LayerNorm(CLASSES)),
    "distances": lambda: Ending(lambda f: -f.square()),
}


@pytest.mark.parametrize("name", BOUNDED)
def test_outputs_that_cannot_be_large(name: str) -> None:
    assert severe(BOUNDED[name](), F.cross_entropy, table()) == [MISMATCH]


@pytest.mark.parametrize("name", UNBOUNDED)
def test_outputs_that_can(name: str) -> None:
    assert MISMATCH not in findings(UNBOUNDED[name](), F.cross_entropy, table())


SQUASHING: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "softmax": lambda f, y: F.cross_entropy(f.softmax(1), y),
    "own softmax": lambda f, y: F.cross_entropy(f.exp() / f.exp().sum(1, keepdim=True), y),
    "two softmaxes and a logarithm": lambda f, y: -f.softmax(1).softmax(1).gather(1, y[:, None]).log().mean(),
    "sigmoid": lambda f, y: F.binary_cross_entropy_with_logits(f.sigmoid(), hot(y)),
    "own sigmoid": lambda f, y: F.binary_cross_entropy_with_logits(1 / (1 + (-f).exp()), hot(y)),
    "log_softmax of a sigmoid": lambda f, y: F.nll_loss(f.sigmoid().log_softmax(1), y),
    "a norm": lambda f, y: F.cross_entropy(f / f.norm(dim=1, keepdim=True), y),
    "softsign": lambda f, y: F.cross_entropy(f / (1 + f.abs()), y),
    "a ReLU": lambda f, y: F.binary_cross_entropy_with_logits(f.relu(), hot(y)),
    "softmax over the examples": lambda f, y: F.nll_loss(f.log_softmax(0), y),
    "another order": lambda f, y: F.cross_entropy(f, y.flip(0)),
}
SOUND: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "smoothed labels": lambda f, y: F.cross_entropy(f, y, label_smoothing=0.2),
    "Brier": lambda f, y: F.mse_loss(f.softmax(1), hot(y)),
    "absolute error of probabilities": lambda f, y: (f.softmax(1) - hot(y)).abs().sum(1).mean(),
    "noisy labels": lambda f, y: F.nll_loss((f.softmax(1) @ (0.8 * torch.eye(CLASSES) + 0.2 / CLASSES)).log(), y),
    "negative distances": lambda f, y: F.cross_entropy(-f, y),
    "temperature": lambda f, y: F.cross_entropy(f / 4, y),
    "two right classes": lambda f, y: -(f.log_softmax(1) * (hot(y) + hot((y + 1) % CLASSES)) / 2).sum(1).mean(),
    "distillation": lambda f, y: F.kl_div((f / 3).log_softmax(1), (4 * hot(y) / 3).softmax(1), reduction="batchmean"),
    "margins": F.multi_margin_loss,
    "triplets": lambda f, y: F.relu(
        (torch.cdist(f, f) * (y[:, None] == y)).amax(1) - (torch.cdist(f, f) + 9.0 * (y[:, None] == y)).amin(1) + 1
    ).mean(),
}


@pytest.mark.parametrize("name", SQUASHING)
def test_a_loss_that_squashes_or_reorders_the_outputs(name: str) -> None:
    assert severe(perceptron(), SQUASHING[name], table()) == [MISMATCH]


@pytest.mark.parametrize("name", SOUND)
def test_a_loss_of_another_kind_is_sound(name: str) -> None:
    assert MISMATCH not in findings(perceptron(), SOUND[name], table())


@pytest.mark.parametrize("loss", [lambda f, y: F.mse_loss(f.abs(), y), lambda f, y: F.l1_loss(f * f, y)])
def test_a_loss_that_does_not_see_the_sign(loss: Callable[..., Any]) -> None:
    x, _ = table()
    finding = findings(perceptron(outputs=1), loss, (x, x[:, :1]))[MISMATCH]
    assert "change their sign" in finding.summary
    assert MISMATCH not in findings(perceptron(outputs=1), loss, (x, x[:, :1].abs()))


def diagnosed(loss: Callable[..., Any], x: Tensor, y: Tensor) -> dict[str, wc.Finding]:
    model = perceptron(outputs=1 if y.dim() > 1 else CLASSES)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    return {each.rule: each for each in wc.diagnose(wc.Problem(model, loss, (x, y)), optimizer).findings}


@pytest.mark.slow
@pytest.mark.parametrize(
    "loss",
    [
        lambda f, y: (f - y[:, 0]).square().mean(),
        lambda f, y: (f.mean() - y.mean()) ** 2,
        lambda f, y: F.mse_loss(f.mean(0, keepdim=True).expand_as(f), y),
        lambda f, y: torch.cdist(f, y).mean(),
    ],
)
def test_a_loss_that_gives_no_example_its_own_target(loss: Callable[..., Any]) -> None:
    x, _ = table()
    assert diagnosed(loss, x, x[:, :1])[MISMATCH].severity == "severe"


@pytest.mark.slow
def test_samples_of_a_generator_have_no_targets_of_their_own() -> None:
    def distance(f: Tensor, y: Tensor) -> Tensor:
        return 2 * torch.cdist(f, y).mean() - torch.cdist(f, f).mean() - torch.cdist(y, y).mean()

    x, _ = table()
    y = torch.randn(len(x), 1, generator=torch.Generator().manual_seed(5))
    assert MISMATCH not in diagnosed(distance, x, y)


def test_a_generator_before_a_frozen_critic_has_no_bound_that_a_few_changes_could_show() -> None:
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8), nn.Sigmoid())
    critic = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1)).requires_grad_(False)
    critic[2].bias.data.fill_(-8.0)
    noise = torch.randn(64, 4)
    assert "output-loss-mismatch" not in findings(
        nn.Sequential(generator, critic), nn.BCEWithLogitsLoss(), (noise, torch.ones(64, 1))
    )
