"""Moments and histograms of layers' outputs against NumPy on all outputs, stored."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from references import in_state
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence
from zoo import ARCHITECTURES, CLASSES, Mean, Written, integers, normal, seeded, split

import wellcond as wc
from wellcond.errors import InvalidProblem, UnknownLayer
from wellcond.measurements.layers import unit_statistics
from wellcond.measurements.layers.activations import Activations, activations

TOLERANCE = 1e-12
BATCH = (normal(6, 4), integers(CLASSES, 6))


def stored(model: nn.Module, layer: str, inputs: list[Any], batchnorm: str = "batch") -> list[np.ndarray]:
    """All outputs of one layer, batch by batch, as they are when it returns them."""
    model = in_state(model, batchnorm)
    outputs: list[np.ndarray] = []

    def hook(_module: nn.Module, _x: Any, y: Any) -> None:
        outputs.append((y[0] if isinstance(y, tuple) else y).detach().clone().numpy())

    dict(model.named_modules())[layer].register_forward_hook(hook)
    with torch.no_grad():
        for x in inputs:
            model(x)
    return outputs


def by_unit(outputs: list[np.ndarray], unit_axis: int) -> np.ndarray:
    """(units, samples)."""
    return np.concatenate([np.moveaxis(y, unit_axis, 0).reshape(y.shape[unit_axis], -1) for y in outputs], axis=1)


UNIT_AXES: dict[str, dict[str, int]] = {
    "mlp_relu": {"0": 1, "2": 1, "4": 1},
    "cnn_batch": {"0": 1, "1": 1, "4": 1, "7": 1},
    "cnn_running": {"0": 1, "1": 1, "4": 1, "7": 1},
    "resnet_batch": {"0.conv1": 1, "0.bn1": 1, "0.shortcut": 1, "0.conv2": 1, "0.bn2": 1, "2": 1},
    "transformer": {"embed": 2, "blocks.0.norm1": 2, "blocks.1.qkv": 2, "head": 2},
    "encoder_layer": {"0.self_attn": 2, "0.norm1": 2, "0.linear1": 2, "2": 1},
    "multihead_attention": {"attention": 2, "head": 1},
    "lstm": {"cell": 2, "head": 1},
}


@pytest.mark.parametrize("architecture", UNIT_AXES)
def test_moments_and_histograms_are_those_of_all_stored_outputs(architecture: str) -> None:
    case = ARCHITECTURES[architecture]()
    table = activations(case.problem())
    assert table.not_covered == {}
    for layer, axis in UNIT_AXES[architecture].items():
        values = by_unit(stored(case.model, layer, [case.batch[0]], case.batchnorm), axis)
        assert table[layer].mean.numpy() == pytest.approx(values.mean(1), rel=TOLERANCE, abs=TOLERANCE)
        assert table[layer].variance.numpy() == pytest.approx(values.var(1), rel=TOLERANCE, abs=TOLERANCE)
        assert (table[layer].units, table[layer].samples) == values.shape
        histogram = table[layer].histogram
        assert len(histogram.counts) == 50
        assert histogram.below == histogram.above == 0
        assert histogram.counts.tolist() == np.histogram(values, histogram.edges.numpy())[0].tolist()
        own = table[layer].unit_histogram(1)
        assert own.counts.tolist() == np.histogram(values[1], own.edges.numpy())[0].tolist()


@pytest.mark.parametrize("parts", ["batches", "blocks"])
def test_outputs_in_parts_equal_those_at_once(parts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = ARCHITECTURES["cnn_running"]()
    joined = activations(case.problem(), bounds=(-2.0, 2.0))
    if parts == "blocks":
        monkeypatch.setattr(unit_statistics, "BLOCK", 50)
    batches = split(case.batch, [1, 3, 1]) if parts == "batches" else [case.batch]
    table = activations(case.problem(batches=batches), bounds=(-2.0, 2.0))
    for name in joined:
        assert table[name].mean.numpy() == pytest.approx(joined[name].mean.numpy(), rel=TOLERANCE, abs=1e-14)
        assert table[name].variance.numpy() == pytest.approx(joined[name].variance.numpy(), rel=TOLERANCE, abs=1e-14)
        assert torch.equal(table[name].counts, joined[name].counts)
        assert table[name].samples == joined[name].samples


def unchanged(*batches: Tensor, **options: Any) -> Activations:
    """The statistics of the batches themselves, by a layer that passes them on."""
    model = nn.Linear(batches[0].shape[1], batches[0].shape[1], bias=False).to(batches[0].dtype)
    nn.init.eye_(model.weight)
    return activations(wc.Problem(model, nn.MSELoss(), [(x, x) for x in batches]), **options)


def test_moments_survive_a_mean_far_from_zero() -> None:
    """Σx² − (Σx)²/n would lose all digits of a variance of 1 next to a mean of 1e9; float32 is summed in double."""
    x = 1e9 + normal(40, 2)
    result = unchanged(x[:7], x[7:8], x[8:])[""]
    assert result.variance.numpy() == pytest.approx(x.numpy().var(0), rel=1e-7)  # the data themselves have 1e-7
    assert result.mean.numpy() == pytest.approx(x.numpy().mean(0), rel=1e-15)
    single = (100 + normal(4000, 1)).float()
    assert unchanged(single)[""].variance.numpy() == pytest.approx(single.double().numpy().var(0), rel=1e-12)


def test_edges_come_from_the_first_batch_and_what_lies_beyond_is_counted() -> None:
    first, second = torch.tensor([[0.0], [10.0]]).double(), torch.tensor([[-3.0], [5.0], [20.0], [30.0]]).double()
    histogram = unchanged(first, second, bins=6)[""].histogram
    assert histogram.edges.tolist() == pytest.approx([-1, 1, 3, 5, 7, 9, 11])
    assert histogram.counts.tolist() == [1, 0, 0, 1, 0, 1]
    assert (histogram.below, histogram.above) == (1, 2)
    assert float((histogram.density * histogram.edges.diff()).sum()) == pytest.approx(3 / 6)


@pytest.mark.parametrize("bounds", [(-0.3, 0.3), (-1.0, 2.0), (0.1, 0.7), (1e9, 1e9 + 0.6)])
@pytest.mark.parametrize("bins", [6, 7, 50])
def test_values_on_edges_lie_in_the_bin_that_the_edges_say(bounds: tuple[float, float], bins: int) -> None:
    """Outputs pile up at single values, as those of ReLU at 0: these must not fall on the wrong side of an edge."""
    edges = np.linspace(*bounds, bins + 1)
    x = torch.from_numpy(np.concatenate([edges, np.nextafter(edges, np.inf), np.nextafter(edges, -np.inf)]))[:, None]
    histogram = unchanged(x, bins=bins, bounds=bounds)[""].histogram
    inside = (x >= float(histogram.edges[0])) & (x <= float(histogram.edges[-1]))
    assert histogram.counts.tolist() == np.histogram(x[inside].numpy(), histogram.edges.numpy())[0].tolist()
    assert histogram.below + histogram.above == int((~inside).sum()) == 2


def test_constant_outputs_have_a_histogram_too() -> None:
    histogram = unchanged(torch.ones(3, 1).double(), bins=4)[""].histogram
    assert histogram.edges.tolist() == [0.5, 0.75, 1.0, 1.25, 1.5]
    assert histogram.counts.tolist() == [0, 0, 3, 0]
    assert int(unchanged(torch.full((3, 1), 1e20).double(), bins=4)[""].histogram.counts.sum()) == 3


def test_an_earlier_result_lends_its_layers_and_edges() -> None:
    case = ARCHITECTURES["mlp_relu"]()
    before = activations(case.problem(), layers=["2", "1"], bins=7)
    with torch.no_grad():
        case.model[0].weight.mul_(3.0)
    after = activations(case.problem(), like=before)
    assert list(after) == ["1", "2"]
    for name in after:
        assert torch.equal(after[name].edges, before[name].edges)
        values = by_unit(stored(case.model, name, [case.batch[0]]), 1)
        histogram = after[name].histogram
        assert histogram.counts.tolist() == np.histogram(values, histogram.edges.numpy())[0].tolist()
        assert histogram.above == (values > float(histogram.edges[-1])).sum() > 0


def test_the_change_between_two_steps_by_hand() -> None:
    case = ARCHITECTURES["cnn_batch"]()
    problem = case.problem()
    before = activations(problem)
    old = by_unit(stored(case.model, "4", [case.batch[0]]), 1)
    with torch.no_grad():
        case.model[4].weight.mul_(1.7)
        case.model[0].weight.add_(0.1)
    new = by_unit(stored(case.model, "4", [case.batch[0]]), 1)
    changes = activations(problem).change_from(before)
    mean, variance = (np.linalg.norm(f(new, 1) - f(old, 1)) for f in (np.mean, np.var))
    assert changes["4"].mean == pytest.approx(mean, rel=TOLERANCE)
    assert changes["4"].variance == pytest.approx(variance, rel=TOLERANCE)
    assert changes["4"].relative_mean == pytest.approx(mean / np.linalg.norm(old.mean(1)), rel=TOLERANCE)
    assert changes["4"].relative_variance == pytest.approx(variance / np.linalg.norm(old.var(1)), rel=TOLERANCE)
    assert list(changes) == ["0", "1", "4", "7"]
    rows = [row for row in changes.rows(step=3) if row.layer == "4"]
    result = changes["4"].mean, changes["4"].variance, changes["4"].relative_mean, changes["4"].relative_variance
    names = ("mean_change", "variance_change", "relative_mean_change", "relative_variance_change")
    assert [(row.step, row.quantity, row.value) for row in rows] == [
        (3, *pair) for pair in zip(names, result, strict=True)
    ]
    assert "‖Δσ²‖" in str(changes)
    from_zero = unchanged(torch.ones(3, 2)).change_from(unchanged(torch.zeros(3, 2)))[""]
    assert (from_zero.mean, from_zero.variance) == (pytest.approx(math.sqrt(2)), 0.0)
    assert math.isnan(from_zero.relative_mean)


def test_different_networks_are_not_compared() -> None:
    one, other = activations(ARCHITECTURES["mlp_tanh"]().problem()), activations(ARCHITECTURES["lstm"]().problem())
    with pytest.raises(UnknownLayer):
        one.change_from(other)
    wide = seeded(lambda: nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, CLASSES)))
    wider = activations(wc.Problem(wide, nn.CrossEntropyLoss(), (normal(6, 4), integers(CLASSES, 6))))
    with pytest.raises(ValueError, match="had 5 units at the earlier step, and has 7"):
        wider.change_from(one)


# which units


class Odd(nn.Module):
    """Layers of one dimension over positions, of tokens, packed sequences, unbatched images, and their activations."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 3, 3)
        self.act = nn.ReLU(inplace=True)
        self.flat = nn.Flatten(2)
        self.group = nn.GroupNorm(1, 3)
        self.tokens = nn.LayerNorm(3)
        self.gelu = nn.GELU()
        self.whole = nn.LayerNorm((5, 3))
        self.rnn = nn.GRU(3, 4, batch_first=True)
        self.head = nn.Linear(4, CLASSES)
        self.never = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.group(self.flat(self.act(self.conv(x))))
        h = self.whole(self.gelu(self.tokens(h.transpose(1, 2))))
        packed, _ = self.rnn(pack_sequence(list(h)))
        return self.head(packed.data[: len(x)])


def test_units_are_channels_of_convolutions_and_features_of_tokens() -> None:
    model = seeded(Odd)
    problem = wc.Problem(model, nn.CrossEntropyLoss(), (normal(4, 2, 7), integers(CLASSES, 4)))
    names = ["conv", "act", "flat", "group", "tokens", "gelu", "whole", "rnn", "head", "never", ""]
    table = activations(problem, layers=names)
    shapes = {name: (layer.units, layer.samples) for name, layer in table.items()}
    assert shapes == {
        "conv": (3, 20), "act": (3, 20), "flat": (3, 20), "group": (3, 20), "tokens": (3, 20), "gelu": (3, 20),
        "whole": (5, 12), "rnn": (4, 20), "head": (3, 4), "": (3, 4),
    }  # fmt: skip
    assert list(table.not_covered) == ["never"]
    assert "never: it was not called" in str(table)
    assert list(activations(problem)) == ["conv", "group", "tokens", "whole", "rnn", "head"]


def test_an_in_place_relu_after_a_layer_does_not_change_its_output() -> None:
    case = ARCHITECTURES["mlp_relu"]()
    table = activations(case.problem(), layers=["0", "1"])
    assert float(table["0"].edges[0]) < -0.1
    values = (case.batch[0] @ case.model[0].weight.T + case.model[0].bias).detach().numpy()
    assert table["0"].mean.numpy() == pytest.approx(values.mean(0), rel=TOLERANCE)
    assert table["1"].mean.numpy() == pytest.approx(values.clip(min=0).mean(0), rel=TOLERANCE)


def test_an_unbatched_image_is_one_example() -> None:
    model = seeded(lambda: nn.Sequential(nn.Conv2d(2, 3, 2), Mean(1, 2)))
    table = activations(wc.Problem(model, lambda y, _: y.mean(), (normal(2, 5, 6), torch.zeros(1))), layers=["0"])
    assert (table["0"].units, table["0"].samples) == (3, 20)


def test_a_module_that_is_called_twice_is_seen_twice() -> None:
    shared = nn.Linear(3, 3)
    model = seeded(lambda: nn.Sequential(shared, nn.Tanh(), shared))
    table = activations(wc.Problem(model, nn.MSELoss(), (normal(5, 3), normal(5, 3))), layers=["0"])
    assert table["0"].samples == 10
    assert table["0"].mean.numpy() == pytest.approx(by_unit(stored(model, "0", [normal(5, 3)]), 1).mean(1), rel=1e-12)


class Scales(nn.Module):
    """A custom module with parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


def test_what_owns_parameters_is_measured_or_named_with_the_reason() -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(4, 4), nn.PReLU(4), Scales(), nn.Tanh(), nn.Linear(4, CLASSES)))
    problem = wc.Problem(model, nn.CrossEntropyLoss(), (normal(6, 4), integers(CLASSES, 6)))
    table = activations(problem)
    assert list(table) == ["0", "4"]
    assert list(table.not_covered) == ["1", "2"]
    assert "1: it is not known which dimension of a PReLU's output counts units" in str(table)
    alone = activations(problem, layers="2")
    assert (list(alone), alone["2"].units, alone.not_covered) == (["2"], 4, {})
    table = activations(wc.Problem(model[2], nn.MSELoss(), (normal(6, 4), normal(6, 4))))
    assert (len(table), list(table.not_covered)) == (0, [""])
    assert "(model): it is not known which dimension of a Scales's output" in str(table)


class ChannelNorm(nn.Module):
    """Scales channels, which come second, by weights of the shape (channels, 1, 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


class Normalize(nn.Module):
    """Has nothing to say where units are, for all its name."""

    def forward(self, x: Tensor) -> Tensor:
        return x / 2


@pytest.mark.parametrize("layer", [nn.LocalResponseNorm(2), nn.InstanceNorm2d(3), ChannelNorm(), Normalize()])
def test_units_of_what_is_called_a_norm_are_channels(layer: nn.Module) -> None:
    model = seeded(lambda: nn.Sequential(nn.Conv2d(2, 3, 1), layer, Mean(2, 3)))
    problem = wc.Problem(model, nn.CrossEntropyLoss(), (normal(4, 2, 5, 6), integers(CLASSES, 4)))
    table = activations(problem, layers=["1"])["1"]
    values = by_unit(stored(model, "1", [normal(4, 2, 5, 6)]), 1)
    assert (table.units, table.samples) == (3, 120)
    assert table.mean.numpy() == pytest.approx(values.mean(1), rel=TOLERANCE, abs=TOLERANCE)


def test_units_that_change_in_number_are_refused() -> None:
    scale = nn.Parameter(torch.ones(()))
    model = Written(lambda m, x: m.inner(x * m.scale).mean(1), inner=nn.Identity(), scale=scale)
    batches = [(torch.ones(2, 3), torch.ones(2)), (torch.ones(2, 4), torch.ones(2))]
    with pytest.raises(InvalidProblem, match="'inner' gave 3 units and then 4"):
        activations(wc.Problem(model, nn.MSELoss(), batches), layers=["inner"])


# what is not a number, and what is refused


def test_nan_is_said_with_its_layer() -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)))
    with torch.no_grad():
        model[0].bias[1] = math.nan
        model[0].bias[2] = math.inf
    table = activations(wc.Problem(model, nn.MSELoss(), (normal(4, 2), normal(4, 1))))
    assert table["0"].not_finite == 8
    assert torch.isfinite(table["0"].mean).tolist() == [True, False, False]
    assert "0: 8 values are NaN or inf" in str(table)
    histogram = table["0"].histogram
    assert int(histogram.counts.sum()) == 4
    assert (histogram.below, histogram.above) == (0, 4)
    assert [row.value for row in table.rows() if row.quantity == "not_finite"] == [8.0, 4.0]


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"bins": 0}, ValueError, "bins is 0"),
        ({"bins": 2.5}, ValueError, r"bins is 2\.5"),
        ({"bounds": 0.5}, ValueError, "bounds is"),
        ({"bounds": (1.0, 1.0)}, ValueError, "bounds is"),
        ({"bounds": (0.0, math.inf)}, ValueError, "bounds is"),
        ({"bounds": (0.0, 1.0), "like": unchanged(torch.ones(3, 2))}, ValueError, "one of them"),
        ({"layers": ["first"]}, UnknownLayer, "'first'"),
    ],
)
def test_bad_arguments_are_refused(options: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        activations(ARCHITECTURES["mlp_tanh"]().problem(), **options)


def test_it_is_one_forward_pass() -> None:
    case = ARCHITECTURES["mlp_tanh"]()
    calls: list[Any] = []
    case.model.register_forward_hook(lambda *args: calls.append(args))
    table = activations(case.problem(batches=split(case.batch, [2, 4])))
    assert len(calls) == 2
    assert (table.cost.forwards, table.cost.backwards) == (2, 0)
    assert "counting the outputs takes about half a u more" in str(table)
    assert not any(call[2].requires_grad for call in calls)
    values = by_unit(stored(case.model, "0", [case.batch[0]]), 1)
    assert [tuple(row) for row in table.rows(step=2)[:2]] == [
        (2, "0", "activation_mean", pytest.approx(values.mean()), ""),
        (2, "0", "activation_variance", pytest.approx(values.var(1).mean()), ""),
    ]
    with pytest.raises(UnknownLayer, match="'0'"):
        table["1"]
    with pytest.raises(ValueError, match="unit is 5; '0' has units 0 to 4"):
        table["0"].unit_histogram(5)
