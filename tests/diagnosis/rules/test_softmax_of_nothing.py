"""NaN that the model's own code makes of finite inputs: empty texts, windows that do not vary; and sound forms."""

from __future__ import annotations

import math

import pytest
import torch
from rule_cases import findings
from torch import Tensor, nn

LOSS = nn.CrossEntropyLoss()


class Pool(nn.Module):
    """A pooling by attention to words that are no padding."""

    def __init__(self, fill: float, *, is_inverted: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.score, self.out = nn.Embedding(10, 8), nn.Linear(8, 1), nn.Linear(8, 2)
        self.fill, self.is_inverted = fill, is_inverted

    def forward(self, x: Tensor) -> Tensor:
        h = self.table(x)
        hidden = (x != 0) if self.is_inverted else (x == 0)
        weights = self.score(h)[..., 0].masked_fill(hidden, self.fill).softmax(-1)
        out: Tensor = self.out((weights[..., None] * h).sum(1))
        return out


def texts(*, are_empty: bool) -> tuple[Tensor, Tensor]:
    """Padded ones, of which some may be padding alone."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(1, 10, (64, 6), generator=draw)
    x[torch.arange(6) >= torch.randint(2, 7, (64, 1), generator=draw)] = 0
    if are_empty:
        x[::8] = 0
    return x, torch.arange(64) % 2


def test_nan_of_empty_texts_names_the_attention() -> None:
    of_empty = findings(Pool(-math.inf), LOSS, texts(are_empty=True))
    assert (of_empty["non-finite"].layer, of_empty["non-finite"].severity) == ("score", "severe")
    assert "12% of the rows" in of_empty["non-finite"].summary
    assert "wrong-mask" not in of_empty


@pytest.mark.parametrize(("fill", "are_empty"), [(-1e9, True), (-math.inf, False)])
def test_empty_texts_that_make_no_nan(fill: float, are_empty: bool) -> None:
    assert not {"non-finite", "wrong-mask"} & set(findings(Pool(fill), LOSS, texts(are_empty=are_empty)))


def test_a_mask_that_hides_everything_is_wrong() -> None:
    x, y = texts(are_empty=False)
    of_all = findings(Pool(-math.inf, is_inverted=True), LOSS, (x.clamp(min=1), y))
    assert of_all["wrong-mask"].layer == "score"


class Scaled(nn.Module):
    """Divides each example by its own deviation."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.eps, self.body = eps, nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, x: Tensor) -> Tensor:
        scaled = (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + self.eps)
        out: Tensor = self.body(scaled)
        return out


def test_a_division_by_no_deviation_is_not_a_matter_of_scale() -> None:
    x = 20 + torch.randn(64, 12, generator=torch.Generator().manual_seed(0))
    x[::9] = 20.0
    data = x, torch.arange(64) % 2
    divided = findings(Scaled(0.0), LOSS, data)
    assert divided["non-finite"].layer == "body.0"
    assert "unscaled-input" not in divided
    assert "non-finite" not in findings(Scaled(1e-6), LOSS, data)


def test_inputs_that_overflow_in_the_layers_are_still_unscaled() -> None:
    torch.manual_seed(0)
    x = 1e30 * torch.randn(64, 12, generator=torch.Generator().manual_seed(0))
    overflows = findings(nn.Sequential(nn.Linear(12, 16), nn.Linear(16, 2)), lambda f, y: f.square().mean(), (x, x))
    assert overflows["unscaled-input"].severity == "severe"


class MeanPlace(nn.Module):
    """Heat maps whose mean place is the answer, by products with a grid that are added up."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.maps, self.dim = nn.Conv1d(1, 3, 5, padding=2), dim
        self.register_buffer("grid", torch.linspace(-1, 1, 24))

    def forward(self, x: Tensor) -> Tensor:
        return (self.maps(x).softmax(self.dim) * self.grid).sum(-1)


@pytest.mark.parametrize(("dim", "expected"), [(1, ["severe"]), (2, [])])
def test_places_that_are_weighed_by_a_softmax_over_the_maps(dim: int, expected: list[str]) -> None:
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(64, 1, 24, generator=draw), torch.rand(64, 3, generator=draw)
    by_rule = findings(MeanPlace(dim), nn.MSELoss(), (x, y))
    assert [f.severity for rule, f in by_rule.items() if rule == "wrong-softmax-dimension"] == expected
