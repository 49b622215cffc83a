"""Walks along a line against gradients taken by hand, closed forms of quadratics, and what goes wrong on the way."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from by_hand import CALLS, Capped, capped, draws, gradient_of, loss_of
from references import assert_same, dense_hessian, flat_parameters
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from zoo import ARCHITECTURES, CLASSES, Case, Written, integers, normal, seeded, split

import wellcond as wc
from wellcond.errors import NonFinite, NotDeterministic
from wellcond.measurements.landscape.landscape import Landscape, landscape

LR, SPAN, STEPS = 0.3, (0.5, 4.0), 4
BATCH = (normal(6, 4), integers(CLASSES, 6))

every_architecture = pytest.mark.parametrize("build", ARCHITECTURES.values(), ids=ARCHITECTURES)


def walked_by_hand(loss: Callable[[Tensor], Tensor], theta: Tensor, d: Tensor) -> dict[str, Tensor]:
    lengths = [LR * (SPAN[0] + (SPAN[1] - SPAN[0]) * i / (STEPS - 1)) for i in range(STEPS)]
    start = gradient_of(loss, theta)
    places = [theta - a * d for a in lengths]
    return {
        "step_lengths": torch.tensor(lengths, dtype=torch.float64),
        "losses": torch.stack([loss(there).detach() for there in places]),
        "gradient_changes": torch.stack([(start - gradient_of(loss, there)).norm() for there in places]),
        "distances": torch.stack([(there - theta).norm() for there in places]),
    }


def assert_walked(walk: Landscape, expected: dict[str, Tensor]) -> None:
    for name, values in expected.items():
        assert_same(getattr(walk, name), values, 1e-10)
    ratios = expected["gradient_changes"] / expected["distances"]
    assert walk.beta == pytest.approx(float(ratios.max()), rel=1e-10)
    ranges = {"losses": walk.loss_range, "gradient_changes": walk.gradient_change_range}
    for name, result in ranges.items():
        assert result == pytest.approx((float(expected[name].min()), float(expected[name].max())))


# against gradients by hand


@every_architecture
@pytest.mark.parametrize("direction", ["gradient", "random", "eigenvector", "given"])
@pytest.mark.parametrize("several", [False, True], ids=["one_batch", "uneven_batches"])
def test_a_walk_is_what_steps_by_hand_find(build: Callable[[], Case], direction: str, several: bool) -> None:
    case = build()
    batches = split(case.batch, [len(case.batch[1]) - 1, 1]) if several else [case.batch]
    problem = case.problem(batches=batches)
    loss, theta = loss_of(case, batches), flat_parameters(case.model)
    gradient = gradient_of(loss, theta)
    if direction == "gradient":
        d = gradient
    elif direction == "random":
        (d,) = draws(case.model, seed=3)
        d *= gradient.norm() / d.norm()
    elif direction == "eigenvector":
        d = wc.eigenvalues(wc.Hessian(problem), seed=3).vectors[:, 0]
        d = d * gradient.norm() / d.norm() * (d @ gradient).sign()
    else:
        d = normal(len(theta), seed=7)
    expected: Any = d if direction == "given" else direction
    walk = landscape(problem, LR, SPAN, STEPS, direction=expected, seed=3)
    assert_walked(walk, walked_by_hand(loss, theta, d))
    assert (walk.direction, walk.batchnorm) == (direction, case.batchnorm)
    if direction == "random":
        assert not torch.allclose(landscape(problem, LR, SPAN, STEPS, direction="random", seed=4).losses, walk.losses)
    assert walk.loss == pytest.approx(float(loss(theta)), rel=1e-10)
    assert walk.gradient_norm == pytest.approx(float(gradient.norm()), rel=1e-10)


def test_the_eigenvector_of_the_largest_eigenvalue_points_uphill() -> None:
    case = ARCHITECTURES["mlp_tanh"]()
    loss, theta = loss_of(case, [case.batch]), flat_parameters(case.model)
    gradient = gradient_of(loss, theta)
    values, vectors = torch.linalg.eigh(dense_hessian(case.model, case.loss, case.batch))
    top, exact = vectors[:, -1], float(values[-1])
    d = top * (top @ gradient).sign() * gradient.norm()
    walk = landscape(case.problem(), LR, SPAN, STEPS, direction="eigenvector")
    # the eigenvalue is known to 1e-3, its vector to the square root of that at worst
    assert_same(walk.losses, walked_by_hand(loss, theta, d)["losses"], 3e-2)
    assert walk.losses[0] < walk.loss
    assert walk.cost.matvecs > 0
    (note,) = walk.notes
    value, error = (float(part) for part in note.removesuffix(".").split()[-3::2])
    assert abs(value - exact) <= error + 5e-4 * exact  # the value is printed with four digits


# closed forms


def quadratic(a: Tensor, theta: Tensor) -> wc.Problem:
    """½ θᵀAθ."""
    batch = (torch.zeros(1, dtype=a.dtype), torch.zeros(1, dtype=a.dtype))
    model = Written(lambda m, _x: m.theta.unsqueeze(0), theta=nn.Parameter(theta))
    return wc.Problem(model, lambda f, _y: 0.5 * (f @ a * f).sum(), batch)


def symmetric(n: int) -> Tensor:
    a = normal(n, n, seed=5)
    return a + a.T


@pytest.mark.parametrize("lr", [1e-3, 0.1, 10.0])
@pytest.mark.parametrize("span", [(0.5, 4.0), (0.01, 30.0), (2.0, 2.0)])
@pytest.mark.parametrize("steps", [1, 5])
def test_beta_of_a_quadratic_is_its_closed_form(lr: float, span: tuple[float, float], steps: int) -> None:
    """∇L(θ) − ∇L(θ − a d) = a A d: β is ‖A d‖/‖d‖, whatever the steps, and whether or not θ has a gradient."""
    a, theta, d = symmetric(6), normal(6, seed=1), normal(6, seed=2)
    g = a @ theta
    along_gradient = landscape(quadratic(a, theta), lr, span, steps)
    assert_same(along_gradient.smoothness, ((a @ g).norm() / g.norm()).expand(steps), 1e-10)
    for start in (theta, torch.zeros_like(theta)):
        walk = landscape(quadratic(a, start), lr, span, steps, direction=d)
        assert walk.beta == pytest.approx(float((a @ d).norm() / d.norm()), rel=1e-10)
        assert_same(walk.gradient_changes, walk.step_lengths * (a @ d).norm(), 1e-10)
        there = start - walk.step_lengths[:, None] * d
        assert_same(walk.losses, 0.5 * ((there @ a) * there).sum(1), 1e-12)
    basis = torch.linalg.qr(a).Q
    known = basis @ torch.diag(torch.tensor([7.0, 1, 1, 1, 1, 1]).double()) @ basis.T
    assert landscape(quadratic(known, theta), lr, span, steps, direction="eigenvector").beta == pytest.approx(
        7.0, rel=1e-10
    )


# precision


def test_distances_are_those_walked_and_not_those_meant() -> None:
    """Near 1000, float32 has steps of 6e-5: a step of 1e-4 is rounded, and β must be of the rounded one.

    Of ½‖θ‖² the gradient is θ, without any rounding of its own: β is 1.
    """
    theta = 1000 + torch.arange(8.0)
    walk = landscape(quadratic(torch.eye(8), theta), 1e-4, (1.0, 1.4), 3, direction=torch.ones(8))
    for length, distance in zip(walk.step_lengths.tolist(), walk.distances.tolist(), strict=True):
        written = (theta - torch.full((8,), length)).double()
        assert distance == pytest.approx(float((written - theta.double()).norm()), rel=1e-6)
    meant = walk.step_lengths * math.sqrt(8)
    assert float((walk.distances / meant - 1).abs().max()) > 0.05
    assert_same(walk.smoothness, torch.ones(3), 1e-6)


def test_vanished_gradients_keep_their_digits_in_float32() -> None:
    """Their squares are below the smallest float32."""
    a = torch.diag(torch.tensor([1e-25, 2e-25]))
    walk = landscape(quadratic(a, torch.tensor([1.0, 1.0])), lr=1e24)
    assert walk.gradient_norm == pytest.approx(math.sqrt(5) * 1e-25, rel=1e-5, abs=0)
    assert walk.beta == pytest.approx(math.sqrt(17 / 5) * 1e-25, rel=1e-5, abs=0)


def test_float32_agrees_with_float64_and_says_when_beta_is_rounding() -> None:
    case = ARCHITECTURES["cnn_batch"]()
    in_double = landscape(case.problem())
    single = wc.Problem(case.model.float(), case.loss, (case.batch[0].float(), case.batch[1]))
    in_single = landscape(single)
    assert in_single.losses.dtype == torch.float64
    assert_same(in_single.losses, in_double.losses, 1e-5)
    assert_same(in_single.distances, in_double.distances, 1e-4)
    assert in_single.notes == ()
    (note,) = landscape(single, lr=1e-7).notes
    assert "float32" in note
    assert "rounding" in note


# any model


class Tied(nn.Module):
    """An embedding that is also the last layer, a frozen layer, an unused one, and inputs in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(CLASSES, 4, sparse=True)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.unused = nn.Linear(2, 2)
        self.head = nn.Linear(4, CLASSES, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor, shift: Tensor) -> Tensor:
        return self.head(torch.tanh(self.frozen(self.embed(tokens) + shift)))


def test_tied_frozen_and_unused_layers_and_dict_inputs() -> None:
    inputs = {"tokens": integers(CLASSES, 6), "shift": normal(6, 4)}
    case = Case(seeded(Tied), nn.CrossEntropyLoss(), (inputs, integers(CLASSES, 6, seed=1)))
    theta, named = flat_parameters(case.model), dict(case.model.named_parameters())
    assert theta.numel() == named["embed.weight"].numel() + 6

    def loss(values: Tensor) -> Tensor:
        table = values[: CLASSES * 4].view(CLASSES, 4)
        hidden = table[inputs["tokens"]] + inputs["shift"]
        hidden = torch.tanh(hidden @ named["frozen.weight"].T + named["frozen.bias"])
        return F.cross_entropy(hidden @ table.T, case.batch[1])

    walk = landscape(case.problem(), LR, SPAN, STEPS)
    assert_walked(walk, walked_by_hand(loss, theta, gradient_of(loss, theta)))


def test_gradients_that_share_memory_are_left_alone() -> None:
    """The gradients of a + b with respect to a and to b are one tensor, expanded from one number."""

    model = Written(
        lambda m, _x: (m.a + m.b).sum().reshape(1, 1), a=nn.Parameter(normal(3)), b=nn.Parameter(normal(3, seed=1))
    )
    walk = landscape(wc.Problem(model, lambda f, _y: f.mean(), (torch.zeros(1), torch.zeros(1))))
    assert walk.gradient_changes.tolist() == [0.0] * 8
    assert walk.gradient_norm == pytest.approx(math.sqrt(6), rel=1e-12)
    assert walk.beta == 0.0


# cost


@pytest.mark.parametrize("steps", [1, 8])
def test_a_walk_takes_one_pass_and_one_more_for_every_step(steps: int) -> None:
    problem = capped()
    walk = landscape(problem, steps=steps)
    assert len(CALLS) == sum(CALLS) == walk.cost.forwards == walk.cost.backwards == 1 + steps
    assert f"cost: {1 + steps} u" in str(walk)


def test_passes_that_fail_are_counted_and_named_once() -> None:
    problem = capped()
    walk = landscape(problem, 1.0, (1.0, 40.0), 4, direction=torch.arange(1, 16) / 15.0)  # a = 1, 14, 27, 40
    assert walk.losses.isnan().tolist() == [False, True, True, True]
    # each of the three that fail takes a second pass, which looks for the layer
    assert (walk.cost.forwards, walk.cost.backwards) == (2 + 6, 2)
    assert len(CALLS) == walk.cost.forwards
    (note,) = walk.notes
    assert note.startswith("from step length 14 on, layer ''")
    assert walk.rows()[-1].value == pytest.approx(2 + 6 / 3)
    problem, huge = capped(), torch.zeros(15, dtype=torch.float64)
    huge[0] = 1e308  # a parameter that overflows needs no search
    walk = landscape(problem, 10.0, (1.0, 1.0), 1, direction=huge)
    assert (walk.cost.forwards, walk.cost.backwards, len(CALLS)) == (2, 1, 2)


def test_a_loader_takes_no_more_passes_than_a_list() -> None:
    walk = landscape(capped(DataLoader(TensorDataset(*BATCH), batch_size=6)), steps=2)
    assert len(CALLS) == walk.cost.forwards == 3
    assert_same(walk.losses, landscape(capped(), steps=2).losses, 1e-10)


# what goes wrong


def root(w: float) -> wc.Problem:
    """L = √w, which ends at 0: there the gradient is infinite, and beyond it the loss is NaN."""
    model = Written(lambda m, x: x * m.w.sqrt(), w=nn.Parameter(torch.tensor([w], dtype=torch.float64)))
    return wc.Problem(model, lambda f, _y: f.mean(), (torch.ones(2, 1).double(), torch.zeros(2, 1)))


def test_what_is_not_finite_at_a_far_step_is_recorded_and_named() -> None:
    walk = landscape(root(1.0), 1.0, (1.0, 3.0), 3)  # w = 1/2, 0, −1/2
    assert walk.losses[:2].tolist() == pytest.approx([math.sqrt(0.5), 0.0])
    assert math.isnan(walk.losses[2])
    assert math.isinf(walk.gradient_changes[1])
    assert math.isnan(walk.gradient_changes[2])
    assert walk.distances.tolist() == pytest.approx([0.5, 1.0, 1.5])
    assert walk.beta == pytest.approx((1 / math.sqrt(2) - 0.5) / 0.5)
    assert walk.loss_range == pytest.approx((0.0, math.sqrt(0.5)))
    assert len(walk.notes) == 2
    assert "step length 2," in walk.notes[0]
    assert "step length 3," in walk.notes[1]
    assert all(note in str(walk) for note in walk.notes)
    for start, named in ((-1.0, None), (0.0, "'w'")):  # at the start it is raised
        with pytest.raises(NonFinite, match=named):
            landscape(root(start))


ZERO, EYE = torch.zeros(3).double(), torch.eye(3).double()
WITHOUT_BETA: dict[str, tuple[Callable[[], Landscape], str]] = {
    "no_gradient": (lambda: landscape(quadratic(symmetric(3), ZERO)), "the gradient is zero"),
    "no_scale": (lambda: landscape(quadratic(symmetric(3), ZERO), direction="random"), "the gradient is zero"),
    "no_direction": (lambda: landscape(quadratic(EYE, normal(3)), direction=ZERO), "the direction is zero"),
    "too_short": (lambda: landscape(quadratic(EYE.float(), torch.ones(3)), lr=1e-12), "rounds to θ in float32"),
    "not_finite": (lambda: landscape(root(1.0), 1.0, (3.0, 4.0), 2), "from step length 3 on, layer ''"),
}


@pytest.mark.parametrize(("walk", "note"), WITHOUT_BETA.values(), ids=WITHOUT_BETA)
def test_a_walk_without_a_beta_says_why(walk: Callable[[], Landscape], note: str) -> None:
    result = walk()
    assert math.isnan(result.beta)
    assert len(result.notes) == 1
    assert note in result.notes[0]
    if "layer" in note:
        assert all(math.isnan(bound) for bound in (*result.loss_range, *result.gradient_change_range))


def test_parameters_that_share_memory_are_noted() -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    model[1].weight.data = model[0].weight.data
    (note,) = landscape(wc.Problem(model, nn.MSELoss(), (normal(6, 4), normal(6, 4, seed=1)))).notes
    assert note.startswith("'0.weight' and '1.weight' share their memory")


class Noisy(nn.Linear):
    """Draws noise whatever its mode, or changes a buffer that its output depends on."""

    def __init__(self, kind: str) -> None:
        super().__init__(4, CLASSES)
        self.kind = kind
        self.generator = torch.Generator().manual_seed(1)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "counts":
            self.calls += 1
            return super().forward(x) * self.calls
        noise = torch.rand((), generator=self.generator if self.kind == "draws from its own" else None)
        return super().forward(x) * noise if self.kind.startswith("draws") else super().forward(x)


def test_fixed_noise_is_the_same_at_every_point() -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, CLASSES)))
    still = landscape(wc.Problem(model, nn.CrossEntropyLoss(), BATCH, dropout=3), 1e-9)
    assert still.gradient_change_range[1] < 1e-6 * still.gradient_norm


class Alternating:
    """Batches that change without a random number."""

    passes = 0

    def __iter__(self) -> Iterator[Any]:
        self.passes += 1
        yield normal(6, 4, seed=self.passes), integers(CLASSES, 6)


DATA = TensorDataset(*BATCH)
MOVING: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "draws": (lambda: Noisy("draws"), BATCH),
    "draws_from_its_own": (lambda: Noisy("draws from its own"), BATCH),
    "shuffles": (Capped, DataLoader(DATA, batch_size=2, shuffle=True)),
    "alternates": (Capped, Alternating()),
}


@pytest.mark.parametrize(("model", "batches"), MOVING.values(), ids=MOVING)
def test_what_would_differ_between_passes_is_fixed(model: Callable[[], nn.Module], batches: Any) -> None:
    still = landscape(wc.Problem(seeded(model), nn.CrossEntropyLoss(), batches), 1e-9)
    assert still.gradient_change_range[1] < 1e-6 * still.gradient_norm


def test_a_model_that_changes_what_its_outputs_depend_on_is_refused() -> None:
    with pytest.raises(NotDeterministic, match="attribute that it changes"):
        landscape(wc.Problem(seeded(lambda: Noisy("counts")), nn.CrossEntropyLoss(), BATCH))
    assert landscape(wc.Problem(Noisy("ignores its draw").double(), nn.CrossEntropyLoss(), BATCH)).beta > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lr": 0.0}, "lr"),
        ({"lr": math.inf}, "lr"),
        ({"lr": "a"}, "lr"),
        ({"lr": None}, "lr"),
        ({"span": 0.5}, "span"),
        ({"span": (0.5, "b")}, "span"),
        ({"span": (0.0, 1.0)}, "span"),
        ({"span": (2.0, 1.0)}, "span"),
        ({"span": (1.0, math.nan)}, "span"),
        ({"steps": 2.5}, "steps"),
        ({"steps": 0}, "steps"),
        ({"direction": "downhill"}, "direction"),
        ({"direction": torch.ones(3)}, r"direction has shape \(3,\)"),
        ({"direction": torch.full((15,), math.nan)}, "direction holds NaN"),
    ],
)
def test_invalid_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        landscape(capped(), **arguments)


def test_what_is_no_problem_is_refused() -> None:
    with pytest.raises(TypeError, match=r"pass a wc\.Problem\(model, loss, batches\)"):
        landscape(nn.Linear(2, 2), 0.1)  # type: ignore[arg-type]


def test_rows_carry_the_step_and_the_scalars_of_the_walk() -> None:
    walk = landscape(ARCHITECTURES["mlp_tanh"]().problem(), steps=2)
    assert {row.step for row in walk.rows(40)} == {40}
    assert {row.quantity: row.value for row in walk.rows()} == {
        "loss": walk.loss,
        "gradient_norm": walk.gradient_norm,
        "beta": walk.beta,
        "loss_least": walk.loss_range[0],
        "loss_greatest": walk.loss_range[1],
        "gradient_change_least": walk.gradient_change_range[0],
        "gradient_change_greatest": walk.gradient_change_range[1],
        "cost": 3.0,
    }
