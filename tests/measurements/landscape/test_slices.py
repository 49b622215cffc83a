"""Slices of the loss against direct evaluation, with filter normalization written out filter by filter."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from by_hand import CALLS, Capped, capped, draws, gradient_of, loss_of
from references import assert_same, dense_hessian, flat_parameters
from torch import Tensor, nn
from zoo import ARCHITECTURES, CLASSES, Case, Mean, integers, normal, seeded, split

import wellcond as wc
from wellcond.errors import NonFinite, NotDeterministic
from wellcond.measurements.landscape.slices import loss_slice

GRID = [-1.0, -0.5, 0.0, 0.5, 1.0]


# filters by hand


def normalized(model: nn.Module, d: Tensor) -> Tensor:
    """d with every filter as long as that of the model, in loops over filters."""
    model = copy.deepcopy(model)
    owners = {id(p): m for m in model.modules() for p in m.parameters(recurse=False)}
    parts, start = [], 0
    for p in model.parameters():
        part = d[start : start + p.numel()].reshape(p.shape).clone()
        start += p.numel()
        if p.dim() == 1:
            part.zero_()
        elif isinstance(layer := owners[id(p)], nn.ConvTranspose2d):
            per_group = layer.in_channels // layer.groups
            for group in range(layer.groups):
                inputs = slice(group * per_group, (group + 1) * per_group)
                for output in range(layer.out_channels // layer.groups):
                    part[inputs, output] *= p[inputs, output].norm() / part[inputs, output].norm()
        else:
            for row in range(len(p)):
                part[row] *= p[row].norm() / part[row].norm()
        parts.append(part.reshape(-1))
    return torch.cat(parts).detach()


def image_case(*layers: nn.Module) -> Case:
    model = seeded(lambda: nn.Sequential(*layers, Mean(2, 3)))
    return Case(model, nn.CrossEntropyLoss(), (normal(4, 4, 5, 5), integers(CLASSES, 4)))


LAYERS: dict[str, Callable[[], Case]] = {
    "dense": ARCHITECTURES["mlp_tanh"],
    "convolution": lambda: image_case(nn.Conv2d(4, CLASSES, 3)),
    "grouped_convolution": lambda: image_case(nn.Conv2d(4, 6, 3, groups=2), nn.Tanh(), nn.Conv2d(6, CLASSES, 1)),
    "transposed_convolution": lambda: image_case(nn.ConvTranspose2d(4, CLASSES, 3)),
    "grouped_transposed_convolution": lambda: image_case(
        nn.ConvTranspose2d(4, 6, 2, groups=2), nn.BatchNorm2d(6), nn.Conv2d(6, CLASSES, 1)
    ),
    "embedding": ARCHITECTURES["transformer"],
}


@pytest.mark.parametrize("build", LAYERS.values(), ids=LAYERS)
def test_filters_are_scaled_to_those_of_the_weights(build: Callable[[], Case]) -> None:
    case = build()
    loss, theta = loss_of(case, [case.batch]), flat_parameters(case.model)
    d = normalized(case.model, draws(case.model, 5)[0])
    grid = loss_slice(case.problem(), points=5, seed=5)
    assert grid.coordinates.tolist() == GRID
    assert_same(grid.losses, torch.stack([loss(theta + alpha * d) for alpha in GRID]), 1e-10)


@pytest.mark.slow
def test_layers_that_store_inputs_first_have_their_filters_in_columns(transformers: Any) -> None:
    conv1d = transformers.pytorch_utils.Conv1D
    model = seeded(lambda: nn.Sequential(conv1d(CLASSES, 4)))
    case = Case(model, nn.CrossEntropyLoss(), (normal(6, 4), integers(CLASSES, 6)))
    weight, bias = model[0].weight.detach(), model[0].bias.detach()
    d = draws(model, 0)[0][: 4 * CLASSES].reshape(4, CLASSES)
    d = d * weight.norm(dim=0) / d.norm(dim=0)
    expected = [case.loss(case.batch[0] @ (weight + alpha * d) + bias, case.batch[1]) for alpha in GRID]
    assert_same(loss_slice(case.problem(), points=5).losses, torch.stack(expected), 1e-10)


def test_dead_filters_stay_where_they_are() -> None:
    """A filter of zeros has no length to scale to, and one along which d is zero nothing to scale."""
    case = ARCHITECTURES["mlp_tanh"]()
    case.model[0].weight.data[1] = 0.0
    d = normal(flat_parameters(case.model).numel())
    d[:4] = 0.0
    grid = loss_slice(case.problem(), [d], points=5)
    still = d.clone()
    still[4:8] = 0.0
    assert_same(grid.losses, loss_slice(case.problem(), [still], points=5).losses, 1e-12)


# grids


@pytest.mark.parametrize("build", ARCHITECTURES.values(), ids=ARCHITECTURES)
@pytest.mark.parametrize("several", [False, True], ids=["one_batch", "uneven_batches"])
def test_a_plane_is_the_loss_at_every_point_of_it(build: Callable[[], Case], several: bool) -> None:
    case = build()
    batches = split(case.batch, [len(case.batch[1]) - 1, 1]) if several else [case.batch]
    loss, theta = loss_of(case, batches), flat_parameters(case.model)
    first, second = draws(case.model, 2, 2)
    result = loss_slice(
        case.problem(batches=batches), ["random", "random"], extent=0.2, points=3, seed=2, filter_normalized=False
    )
    grid = [-0.2, 0.0, 0.2]
    expected = [[loss(theta + alpha * first + beta * second) for beta in grid] for alpha in grid]
    assert_same(result.losses, torch.tensor(expected, dtype=torch.float64), 1e-10)
    assert float(result.losses[1, 1]) == pytest.approx(float(loss(theta)), rel=1e-14)
    assert result.directions == ("random", "random")


@pytest.mark.parametrize("points", [3, 5, 21, 101])
@pytest.mark.parametrize("extent", [0.1, 1.0, 1 / 3])
def test_an_odd_number_of_points_has_the_parameters_in_the_middle(points: int, extent: float) -> None:
    problem = ARCHITECTURES["mlp_tanh"]().problem()
    grid = loss_slice(problem, extent=extent, points=points)
    assert float(grid.coordinates[points // 2]) == 0.0
    assert grid.coordinates[[0, -1]].tolist() == pytest.approx([-extent, extent], rel=1e-15)
    assert torch.equal(grid.coordinates, -grid.coordinates.flip(0))


def test_two_eigenvectors_are_the_first_and_the_second() -> None:
    case = ARCHITECTURES["mlp_tanh"]()
    values, vectors = torch.linalg.eigh(dense_hessian(case.model, case.loss, case.batch))
    gradient, h = gradient_of(loss_of(case, [case.batch]), flat_parameters(case.model)), 1e-3
    grid = loss_slice(case.problem(), ["eigenvector", "eigenvector"], extent=h, points=3, filter_normalized=False)
    # central differences of the loss along each axis
    curvatures = [float(line[0] - 2 * line[1] + line[2]) / h**2 for line in (grid.losses[:, 1], grid.losses[1])]
    assert curvatures == pytest.approx(values[[-1, -2]].tolist(), rel=1e-2)
    slopes = [abs(float(line[2] - line[0])) / (2 * h) for line in (grid.losses[:, 1], grid.losses[1])]
    assert slopes == pytest.approx((vectors[:, [-1, -2]].T @ gradient).abs().tolist(), rel=0.1, abs=1e-3)
    assert grid.cost.matvecs > 0


def test_the_gradient_and_a_given_vector_are_used_as_they_are() -> None:
    case = ARCHITECTURES["mlp_tanh"]()
    loss, theta, d = loss_of(case, [case.batch]), flat_parameters(case.model), normal(43, seed=9)
    gradient = gradient_of(loss, theta)
    grid = loss_slice(case.problem(), ["gradient", d], points=2, filter_normalized=False)
    expected = [[loss(theta + a * gradient + b * d) for b in (-1.0, 1.0)] for a in (-1.0, 1.0)]
    assert_same(grid.losses, torch.tensor(expected, dtype=torch.float64), 1e-10)
    assert grid.directions == ("gradient", "given")
    assert grid.cost.backwards == 1


# promises


@pytest.mark.parametrize(
    ("directions", "forwards"), [(["random"], 5), (["random", "random"], 25)], ids=["line", "plane"]
)
def test_a_slice_takes_forward_passes_alone(directions: Any, forwards: int) -> None:
    problem = capped()
    grid = loss_slice(problem, directions, points=5)
    assert len(CALLS) == grid.cost.forwards == forwards
    assert sum(CALLS) == grid.cost.backwards == 0
    assert f"u ({forwards} forward and 0 backward passes" in str(grid)
    assert f"{float(grid.losses[-1].max()):.6g}" in str(grid)  # enough digits to tell losses apart
    assert {row.quantity: (row.step, row.value) for row in grid.rows(7)} == {
        "loss_least": (7, float(grid.losses.min())),
        "loss_greatest": (7, float(grid.losses.max())),
        "cost": (7, pytest.approx(forwards / 3)),
    }


def test_losses_that_are_not_finite_have_their_place() -> None:
    problem = capped()
    grid = loss_slice(problem, [torch.ones(15)], extent=20.0, points=5, filter_normalized=False)
    assert [math.isnan(loss) for loss in grid.losses] == [True, True, False, True, True]
    (note,) = grid.notes
    assert "(-20)" in note
    # the middle, two passes at each of the others, of which the second looks for the layer, and one at θ
    assert len(CALLS) == grid.cost.forwards == 10


@pytest.mark.parametrize("points", [4, 5])
def test_a_loss_that_is_not_finite_at_the_parameters_is_raised(points: int) -> None:
    inputs = normal(6, 4)
    inputs[2, 1] = math.nan
    problem = capped((inputs, integers(CLASSES, 6)))
    with pytest.raises(NonFinite, match="inputs of batch 0"):
        loss_slice(problem, points=points)
    assert len(CALLS) <= 3


NORMS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "layer_norm": (nn.LayerNorm((2, 3, 3)), (2, 3, 3)),
    "rms_norm": (nn.RMSNorm((3, 3)), (3, 3)),
}


@pytest.mark.parametrize(("norm", "shape"), NORMS.values(), ids=NORMS)
def test_parameters_of_norms_stay_where_they_are_whatever_their_shape(norm: nn.Module, shape: tuple[int, ...]) -> None:
    model = seeded(lambda: nn.Sequential(nn.Conv2d(1, 2, 3), norm, nn.Flatten(), nn.Linear(18, CLASSES)))
    assert norm.weight.shape == shape
    problem = wc.Problem(model, nn.CrossEntropyLoss(), (normal(4, 1, 5, 5), integers(CLASSES, 4)))
    norms = torch.cat([torch.full_like(p, "1." in name).flatten() for name, p in model.named_parameters()])
    flat = loss_slice(problem, [norms], points=3)
    assert flat.losses.tolist() == [float(flat.losses[1])] * 3


def test_a_model_that_changes_is_refused_at_once() -> None:
    class Cooling(Capped):
        scale = 1.0

        def forward(self, x: Tensor) -> Tensor:
            self.scale *= 0.5
            return super().forward(x) * self.scale

    problem = wc.Problem(seeded(Cooling), nn.CrossEntropyLoss(), (normal(6, 4), integers(CLASSES, 6)))
    with pytest.raises(NotDeterministic):
        loss_slice(problem, points=101)
    assert len(CALLS) < 10


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"directions": "random"}, "directions"),
        ({"directions": []}, "directions"),
        ({"directions": ["random"] * 3}, "directions"),
        ({"directions": ["sideways"]}, "direction"),
        ({"directions": [torch.ones(2)]}, "direction"),
        ({"extent": 0.0}, "extent"),
        ({"extent": "wide"}, "extent"),
        ({"points": 1}, "points"),
        ({"points": 2.5}, "points"),
    ],
)
def test_invalid_arguments_are_named(arguments: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} "):
        loss_slice(capped(), **arguments)
