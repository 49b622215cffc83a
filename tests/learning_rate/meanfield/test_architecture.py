"""Architectures from a line and back, and what is not an architecture."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from wellcond.learning_rate.meanfield import Architecture
from wellcond.learning_rate.meanfield.feature_maps import Convolution, Flatten, GlobalPool
from wellcond.learning_rate.meanfield.gaussian import PiecewiseLinear, Smooth
from wellcond.learning_rate.meanfield.moments import float64
from wellcond.learning_rate.meanfield.stages import Affine, Nonlinearity, Residual, Stage

LINES = [
    "fc 784-1000-1000-1000-10",
    "fc 20-1",
    "fc 784-300-300-10 vanilla tanh",
    "fc 64-64-64-10 ln residual gamma=0.5 sigma_w2=1.5 sigma_b2=0",
    "fc 8-4-2 leaky_relu(0.2)",
    "fc 8-4-2 linear",
    "conv 1x28x28 30-60-90 k3 s2 10",
    "conv 3x32x32 64-64-64 k3 p1 10 pool residual",
    "conv 3x32x32 16 k5 s2 p2 10 vanilla gelu sigma_b2=1e-05",
]


@pytest.mark.parametrize("line", LINES)
def test_a_line_is_given_back(line: str) -> None:
    assert str(Architecture.parse(line)) == line


def test_words_come_in_any_order_and_defaults_are_those_of_the_source() -> None:
    one = Architecture.parse("conv 1x28x28 30-60 k3 s2 p1 10 pool vanilla tanh gamma=2")
    assert Architecture.parse("conv  1x28x28 30-60  gamma=2 10 tanh s2 vanilla pool p1 k3 ") == one
    options: dict[str, Any] = {"kernel": 3, "stride": 2, "padding": 1, "head": "pool", "gamma": 2.0}
    assert one == Architecture((1, 28, 28), (30, 60), 10, "none", "tanh", **options)
    net = Architecture.parse("fc 784-1000-10")
    assert (net.norm, net.activation, net.gamma, net.sigma_w2, net.sigma_b2) == ("batch", "relu", 1.0, 2.0, 0.5)
    assert Architecture.parse("fc 784-1000-10 bn relu") == net


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "is not an architecture.*fc 784-1000-1000-1000-10"),
        ("fc", "is not an architecture"),
        ("fc 784", "is not an architecture"),
        ("mlp 784-10", "is not an architecture"),
        ("fc 784-10-", "is not an architecture"),
        ("fc 784-10 k3", "'k3' is not understood here"),
        ("fc 784-10 pool", "'pool' is not understood here"),
        ("fc 784-10 swish", "'swish' is not understood here.*fc 784-300-300-10 tanh"),
        ("fc 784-10 bn vanilla", "'vanilla' sets the norm a second time"),
        ("fc 784-10 gamma=", "'gamma=' is not understood"),
        ("conv 28x28 30 10", "is not an architecture.*conv 1x28x28 30-60-90 k3 s2 10"),
        ("conv 1x28x28 30-60 k3 s2", "does not say how many outputs"),
        ("conv 1x28x28 30-60 k3 max_pool 10", "no mean-field theory of max pooling"),
        ("conv 1x28x28 30-60 k3 MaxPool2 10", "no mean-field theory of max pooling"),
        ("conv 1x5x5 3-3-3 k3 10", r"convolution 3 leaves no position: \(1, 1\) becomes"),
        ("fc 784-100-200-10 residual", "residual.*one width"),
        ("conv 1x28x28 8-8-8 k3 10 residual", "residual.*one width and size"),
        ("fc 784-0-10", "hidden is 0; it must be 1 or above"),
        ("fc 784-10 gamma=0", "gamma is 0.0; it must be above 0"),
    ],
)
def test_what_is_wrong_is_said_with_the_right_spelling(line: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"(?s){message}"):
        Architecture.parse(line)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("gamma", -1.0),
        ("gamma", math.nan),
        ("gamma", torch.tensor([1.0, 0.0])),
        ("sigma_w2", 0.0),
        ("sigma_b2", -0.1),
        ("padding", -1),
        ("stride", 0),
        ("outputs", 0),
        ("norm", "group"),
        ("head", "max"),
        ("activation", "swish"),
        ("input", (3, 32)),
    ],
)
def test_numbers_out_of_range_are_refused_by_name(argument: str, value: Any) -> None:
    arguments: dict[str, Any] = {"input": (10,), "hidden": (5,), "outputs": 2}
    with pytest.raises(ValueError, match=argument):
        Architecture(**arguments | {argument: value})


def test_the_stages_of_a_dense_network() -> None:
    """A residual network adds from the second layer on."""
    first, nonlinearity, head = Architecture.parse("fc 7-5-3 tanh gamma=2").stages()
    assert (first, head) == tuple(
        Affine(name, float64(fan_in), float64(2.0), float64(0.5)) for name, fan_in in (("fc1", 7), ("head", 5))
    )
    assert isinstance(nonlinearity, Nonlinearity)
    assert isinstance(nonlinearity.activation, Smooth)
    assert (nonlinearity.norm, nonlinearity.gamma) == ("batch", 2.0)
    first, block, last, head = Architecture.parse("fc 7-5-5-3 residual").stages()
    assert isinstance(block, Residual)
    assert [type(stage) for stage in block.branch] == [Nonlinearity, Affine]
    assert [type(stage) for stage in (first, last, head)] == [Affine, Nonlinearity, Affine]
    assert block.shortcut == ()


@pytest.mark.parametrize(("word", "fan_in", "reduction"), [("flatten", 48, Flatten()), ("pool", 4, GlobalPool(12))])
def test_the_stages_of_a_convolutional_network(word: str, fan_in: int, reduction: Stage) -> None:
    conv, _, reduced, head = Architecture.parse(f"conv 2x10x8 4 k3 s2 10 {word}").stages("all")
    assert isinstance(conv, Convolution)
    assert isinstance(head, Affine)
    assert (conv.fan_in, conv.window.outputs, reduced, head.fan_in) == (2 * 9, (4, 3), reduction, fan_in)
    assert conv.trains_bias


def test_a_grid_is_all_of_its_networks_and_an_activation_may_be_ones_own() -> None:
    gamma, width = torch.tensor([[0.5], [1.0]]), torch.tensor([10.0, 20.0, 30.0])
    net = Architecture((4,), (width, width), 2, gamma=gamma)
    assert net.grid == (2, 3)
    networks = list(net.each())
    assert [(n.gamma, n.hidden[0]) for n in networks] == [(g, w) for g in (0.5, 1.0) for w in (10.0, 20.0, 30.0)]
    assert str(net) == "fc 4-10…30-10…30-2 gamma=0.5…1"
    assert Architecture.parse("fc 4-10-2").grid == ()
    own = Architecture((4,), (8,), 2, activation=PiecewiseLinear(0.3))
    assert str(own) == "fc 4-8-2 leaky_relu(0.3)"
