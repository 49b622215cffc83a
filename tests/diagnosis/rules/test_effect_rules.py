"""Rules that judge what layers and blocks do, whatever they are called."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from rule_cases import CLASSES, FEATURES, N, findings, severe, table
from torch import Tensor, nn

LOSS = nn.CrossEntropyLoss()
Function = Callable[[Tensor], Tensor]


class Perceptron(nn.Module):
    """Three layers, with a function after each of the first two."""

    def __init__(self, function: Function, norm: bool = False, width: int = 16) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.third = nn.Linear(FEATURES, width), nn.Linear(width, width), nn.Linear(width, 4)
        self.function, self.norm = function, nn.BatchNorm1d(width) if norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.first, self.second):
            x = self.function(self.norm(layer(x)))
        return self.third(x)


def drops_its_result(h: Tensor) -> Tensor:
    F.relu(h)
    h.tanh()
    return h


class Own(nn.Module):
    """A layer of one's own."""

    def __init__(self, inputs: int, outputs: int, function: Function) -> None:
        super().__init__()
        self.kernel, self.function = nn.Parameter(torch.randn(inputs, outputs) / inputs**0.5), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(torch.einsum("ni,io->no", x, self.kernel))


def own_layers(function: Function) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Own(FEATURES, 16, function), Own(16, 16, function), Own(16, CLASSES, lambda h: h))


def tokens() -> tuple[Tensor, Tensor]:
    x = torch.randint(0, 9, (N, 6), generator=torch.Generator().manual_seed(0))
    return x, x.sum(1) % CLASSES


def bag(function: Function) -> nn.Module:
    torch.manual_seed(0)
    hidden, out = nn.Linear(48, 16), nn.Linear(16, CLASSES)
    return nn.Sequential(nn.Embedding(9, 8), nn.Flatten(), hidden, Lambda(function), out)


class Lambda(nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


NOTHING: dict[str, Function] = {
    "a result that is not used": drops_its_result,
    "a slope of one": nn.LeakyReLU(1.0),
    "a PReLU that starts at one": nn.PReLU(init=1.0),
    "a clamp far away": lambda h: h.clamp(-1e3, 1e3),
    "dropout only": nn.Dropout(0.3),
    "one's own that returns its argument": lambda h: h.view_as(h),
    "a softplus far up": lambda h: F.softplus(h + 40) - 40,
}
SOMETHING: dict[str, Function] = {
    "relu": torch.relu,
    "a slope of a fifth": nn.LeakyReLU(0.2),
    "tanh": torch.tanh,
    "by hand": lambda h: h * (h > 0),
    "a sine": torch.sin,
    "a softmax": lambda h: h.softmax(1),
    "a product": lambda h: h * h.flip(1),
    "max with zero": lambda h: torch.maximum(h, torch.zeros(())),
    "a norm": lambda h: F.layer_norm(h, h.shape[1:]),
    "small, and still bent": lambda h: torch.tanh(0.03 * h),
}


@pytest.mark.parametrize("name", NOTHING)
def test_activations_that_do_nothing(name: str) -> None:
    function = NOTHING[name]
    for model, batch in (
        (Perceptron(function), table()),
        (Perceptron(function, norm=True), table()),
        (own_layers(function), table()),
        (bag(function), tokens()),
    ):
        found = findings(model, LOSS, batch)["no-nonlinearity"]
        assert found.severity == "warning"  # one look does not tell more


@pytest.mark.parametrize("name", SOMETHING)
def test_activations_that_do_something(name: str) -> None:
    function = SOMETHING[name]
    for model, batch in (
        (Perceptron(function), table()),
        (Perceptron(function, norm=True), table()),
        (own_layers(function), table()),
        (bag(function), tokens()),
    ):
        assert "no-nonlinearity" not in findings(model, LOSS, batch)


class FeedForward(nn.Module):
    """A block of a transformer with an activation, or without."""

    def __init__(self, function: Function, hidden: int = 32) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, hidden), nn.Linear(hidden, 16)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.function(self.up(self.norm(x))))


def blocks(*functions: Function, hidden: int = 32) -> nn.Module:
    torch.manual_seed(0)
    each = [FeedForward(function, hidden) for function in functions]
    return nn.Sequential(nn.Linear(FEATURES, 16), *each, nn.Linear(16, CLASSES))


def test_an_activation_that_is_lost_in_one_block() -> None:
    found = findings(blocks(F.gelu, drops_its_result, F.gelu), LOSS, table())["no-nonlinearity"]
    assert (found.severity, found.layer) == ("warning", "2.up")
    assert "no-nonlinearity" not in findings(blocks(F.gelu, F.gelu, F.gelu), LOSS, table())
    low_rank = findings(blocks(F.gelu, nn.Identity(), hidden=4), LOSS, table())
    assert "no-nonlinearity" not in low_rank
    wide_enough = findings(blocks(F.gelu, nn.Identity(), hidden=16), LOSS, table())["no-nonlinearity"]
    assert wide_enough.severity == "note"


def test_attention_and_separable_convolutions_have_products_of_layers_by_design() -> None:
    torch.manual_seed(0)
    separable = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 16, 1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, CLASSES),
    )  # fmt: skip
    images = torch.randn(32, 3, 8, 8), table()[1][:32]
    assert "no-nonlinearity" not in findings(separable, LOSS, images)
    encoder = nn.Sequential(
        nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), nn.Flatten(), nn.Linear(64, CLASSES)
    )
    assert "no-nonlinearity" not in findings(encoder, LOSS, (torch.randn(32, 4, 16), table()[1][:32]))
    assert severe(encoder, LOSS, (torch.randn(32, 4, 16), table()[1][:32])) == []
