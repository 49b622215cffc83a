"""Shapes, parameters and FLOPs against counts by hand, and against the counter of torch as a second oracle."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import wellcond as wc
from wellcond.measurements.layers import sizes as module
from wellcond.measurements.layers.sizes import LayerSize, SizeTable, short

N, T, D, H = 4, 7, 8, 5
"""Examples, steps, features, hidden units."""


class Last(nn.Module):
    """A layer of sequences, and a head on its last step."""

    def __init__(self, layer: nn.Module, width: int) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        attends = isinstance(self.layer, nn.MultiheadAttention)
        outputs = self.layer(x, x, x) if attends else self.layer(x)
        return self.head((outputs[0] if isinstance(outputs, tuple) else outputs)[:, -1])


def measured(model: nn.Module, *shape: int) -> SizeTable:
    torch.manual_seed(0)
    return wc.sizes(wc.Problem(model, nn.CrossEntropyLoss(), (torch.randn(shape), torch.zeros(shape[0]).long())))


def recurrent(kind: type[nn.RNNBase], gates: int, layers: int = 1, directions: int = 1) -> Any:
    """A recurrent layer: in each step, gates · H rows of each layer and direction act on inputs and state."""
    inputs = [D] + [directions * H] * (layers - 1)
    products = sum(directions * gates * H * (width + H) for width in inputs)
    biases = layers * directions * 2 * gates * H
    layer = kind(D, H, layers, batch_first=True, bidirectional=directions == 2)
    return layer, (N, T, directions * H), products + biases, 2 * N * T * products


LAYERS: dict[str, Any] = {
    "linear": (nn.Linear(D, H), (N, T, H), D * H + H, 2 * N * T * D * H),
    "without a bias": (nn.Linear(D, H, bias=False), (N, T, H), D * H, 2 * N * T * D * H),
    "norm": (nn.LayerNorm(D), (N, T, D), 2 * D, 0),
    "rnn": recurrent(nn.RNN, 1),
    "gru": recurrent(nn.GRU, 3),
    "lstm": recurrent(nn.LSTM, 4),
    "deep lstm": recurrent(nn.LSTM, 4, layers=3),
    "lstm both ways": recurrent(nn.LSTM, 4, layers=2, directions=2),
    # projections in and out; scores, and their products with the values, of T × T pairs in all heads together
    "attention": (
        nn.MultiheadAttention(D, 2, batch_first=True),
        (N, T, D),
        4 * D * D + 4 * D,
        2 * N * T * 4 * D * D + 2 * 2 * N * T * T * D,
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_of_sequences(name: str) -> None:
    layer, shape, parameters, flops = LAYERS[name]
    table = measured(Last(layer, shape[-1]), N, T, D)
    assert table["layer"] == LayerSize("layer", type(layer).__name__, shape, parameters, parameters, flops)
    head = 2 * N * shape[-1] * 2
    assert table["head"].flops == head
    assert (table.flops, table.parameters, table.examples) == (flops + head, parameters + 2 * shape[-1] + 2, N)


CONVOLUTIONS: dict[str, Any] = {
    # outputs · (channels in / groups) · kernel, twice
    "plain": (nn.Conv2d(4, 6, 3), (2, 6, 8, 8), 6 * 4 * 9 + 6, 2 * (2 * 6 * 64) * 4 * 9),
    "strided": (nn.Conv2d(4, 6, 3, stride=2, padding=1), (2, 6, 5, 5), 6 * 4 * 9 + 6, 2 * (2 * 6 * 25) * 4 * 9),
    "grouped": (nn.Conv2d(4, 6, 3, groups=2), (2, 6, 8, 8), 6 * 2 * 9 + 6, 2 * (2 * 6 * 64) * 2 * 9),
    "depthwise": (nn.Conv2d(4, 4, (3, 1), groups=4), (2, 4, 8, 10), 4 * 3 + 4, 2 * (2 * 4 * 80) * 3),
    # every input goes to (channels out / groups) · kernel places
    "transposed": (nn.ConvTranspose2d(4, 6, 3, groups=2), (2, 6, 12, 12), 4 * 3 * 9 + 6, 2 * (2 * 4 * 100) * 3 * 9),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str) -> None:
    layer, shape, parameters, flops = CONVOLUTIONS[name]
    model = nn.Sequential(layer, nn.BatchNorm2d(shape[1]), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    table = measured(model, 2, 4, 10, 10)
    assert table["0"] == LayerSize("0", type(layer).__name__, shape, parameters, parameters, flops)
    assert (table["1"].parameters, table["1"].flops, table["2"].flops) == (2 * shape[1], 0, 0)
    assert table["4"].shape == shape[:2]
    assert table.flops == flops


def test_the_counter_of_torch_agrees_where_it_counts_all() -> None:
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(D, 2, 16, batch_first=True), 2, enable_nested_tensor=False
    )
    model = Last(encoder, D)
    table = measured(model, N, T, D)
    counter = FlopCounterMode(display=False)
    with counter:
        model(torch.randn(N, T, D))
    assert table.flops == counter.get_total_flops()
    assert table.flops == sum(each.flops for each in table.values())
    assert (
        table.parameters
        == sum(each.parameters for each in table.values())
        == sum(map(Tensor.numel, model.parameters()))
    )


def test_what_happens_between_layers_counts_for_the_model() -> None:
    class Scores(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.head = nn.Linear(D, 3 * D), nn.Linear(D, 2)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x).chunk(3, -1)
            return self.head(F.scaled_dot_product_attention(q, k, v)[:, 0])

    table = measured(Scores(), N, T, D)
    assert table.flops - sum(each.flops for each in table.values()) == 2 * 2 * N * T * T * D


def test_a_layer_that_is_called_twice_and_weights_that_are_shared() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(D, D), nn.Linear(D, D)
            self.last.weight = self.first.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.first(self.first(x)))

    table = measured(Tied(), N, D)
    one = 2 * N * D * D
    assert (table["first"].flops, table["last"].flops, table.flops) == (2 * one, one, 3 * one)
    assert (table["first"].parameters, table["last"].parameters, table.parameters) == (D * D + D, D, D * D + 2 * D)


def test_frozen_and_unused_layers() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head, self.unused = nn.Linear(D, H).requires_grad_(False), nn.Linear(H, 2), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.body(x))

    table = measured(Half(), N, D)
    assert list(table) == ["body", "head"]
    assert (table["body"].parameters, table["body"].trainable) == (D * H + H, 0)
    assert (table.parameters, table.trainable) == (45 + 12 + 12, 12 + 12)
    assert "45 frozen" in str(table)


def test_a_model_of_one_layer() -> None:
    table = measured(nn.Linear(D, 2), N, D)
    assert (table[""].flops, table.flops) == (2 * N * D * 2, 2 * N * D * 2)
    assert str(table).splitlines()[1].startswith("(model)")


def test_operations_of_a_gpu() -> None:
    """Which fuse all layers into one call, with its weights in a list."""
    size = torch.Size
    layer = nn.LSTM(D, H, 2, bidirectional=True)
    shapes = [each.shape for each in layer.parameters()]
    assert module._of_layers(size((T, N, D)), shapes) == LAYERS["lstm both ways"][3]


@pytest.mark.parametrize(("count", "text"), [(0, "0 "), (999, "999 "), (1000, "1 k"), (2.345e12, "2.35 T")])
def test_counts_are_short(count: float, text: str) -> None:
    assert short(count) == text


def test_rows_are_those_of_the_model_and_of_every_layer() -> None:
    rows = measured(nn.Sequential(nn.Linear(D, H), nn.ReLU()), N, D).rows(step=3)
    assert [(row.step, row.layer, row.quantity, row.value) for row in rows[:4]] == [
        (3, "", "parameters", 45.0),
        (3, "", "flops", 2.0 * N * D * H),
        (3, "0", "parameters", 45.0),
        (3, "0", "flops", 2.0 * N * D * H),
    ]
    assert len(rows) == 6
