"""Largest stable learning rates against what torch's own optimizers do on a quadratic."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from quadratics import EXACT, SIZES, A, congruent, lambda_max, quadratic
from references import flat_parameters
from torch import Tensor
from torch.optim import SGD, Adagrad, Adam, Adamax, AdamW, NAdam, Optimizer, RMSprop
from zoo import ARCHITECTURES, normal

import wellcond as wc
from wellcond.errors import NonFinite
from wellcond.learning_rate.limits.limits import heavy_ball_limit

Build = Callable[[Any], Optimizer]

NEARLY_ONE, LATE = 1 - 1e-15, 1e18
BETAS = (0.9, NEARLY_ONE)
SECOND = normal(5, seed=3).abs() + 0.1
"""A second moment that does not change: β₂ is nearly 1, and after this many steps bias corrections are 1."""
KEYS = {Adam: "exp_avg_sq", AdamW: "exp_avg_sq", NAdam: "exp_avg_sq", Adamax: "exp_inf", RMSprop: "square_avg"}
"""Where an optimizer keeps it."""

OPTIMIZERS: dict[str, Build] = {
    "plain": lambda p: SGD(p, 0.1),
    "momentum": lambda p: SGD(p, 0.1, momentum=0.9),
    "nesterov": lambda p: SGD(p, 0.1, momentum=0.8, nesterov=True),
    "dampening": lambda p: SGD(p, 0.1, momentum=0.7, dampening=0.6),
    "dampening_without_momentum": lambda p: SGD(p, 0.1, dampening=0.6),
    "weight_decay": lambda p: SGD(p, 0.1, momentum=0.5, weight_decay=2.0),
    "adam": lambda p: Adam(p, 0.1, BETAS, eps=0.3),
    "adam_decay": lambda p: Adam(p, 0.1, BETAS, weight_decay=2.0),
    "adamw": lambda p: AdamW(p, 0.1, BETAS, weight_decay=0.5),
    "amsgrad": lambda p: Adam(p, 0.1, BETAS, amsgrad=True),
    "nadam": lambda p: NAdam(p, 0.1, BETAS),
    "nadam_slow": lambda p: NAdam(p, 0.1, BETAS, momentum_decay=0.0),
    "nadam_decoupled": lambda p: NAdam(p, 0.1, BETAS, weight_decay=0.5, decoupled_weight_decay=True),
    "adamax": lambda p: Adamax(p, 0.1, BETAS),
    "rmsprop": lambda p: RMSprop(p, 0.1, alpha=1.0),
    "rmsprop_momentum": lambda p: RMSprop(p, 0.1, alpha=1.0, momentum=0.9, weight_decay=1.0),
    "rmsprop_centered": lambda p: RMSprop(p, 0.1, alpha=1.0, centered=True, eps=0.2),
    "groups_of_sgd": lambda p: SGD(
        [
            {"params": p[:1], "lr": 0.3, "momentum": 0.9, "nesterov": True},
            {"params": p[1:], "lr": 0.1, "momentum": 0.5, "dampening": 0.2, "weight_decay": 1.0},
        ]
    ),
    "groups_of_adamw": lambda p: AdamW(
        [
            {"params": p[:1], "lr": 0.1, "betas": (0.5, NEARLY_ONE), "weight_decay": 3.0},
            {"params": p[1:], "lr": 0.4, "eps": 0.1},
        ],
        betas=BETAS,
    ),
}
every_optimizer = pytest.mark.parametrize("build", OPTIMIZERS.values(), ids=OPTIMIZERS)
TINY = 1e-12
"""Gradients of this size leave a second moment of about 1 where it is, also in Adamax."""


def buffer_of(optimizer: Optimizer) -> str:
    """What the optimizer calls its momentum."""
    return "exp_avg" if "betas" in optimizer.defaults else "momentum_buffer"


def held(optimizer: Optimizer) -> Optimizer:
    """The optimizer with a preconditioner that stays as it is, and an empty buffer of momentum."""
    if type(optimizer) not in KEYS:
        return optimizer
    key = KEYS[type(optimizer)]
    params = [p for group in optimizer.param_groups for p in group["params"]]
    for p, second in zip(params, SECOND.split(SIZES), strict=True):
        state = optimizer.state[p]
        state |= {"step": torch.tensor(LATE), key: second.clone(), buffer_of(optimizer): torch.zeros_like(p)}
        if optimizer.defaults.get("amsgrad"):
            state |= {"max_exp_avg_sq": second.clone(), "exp_avg_sq": second / 9}
        if optimizer.defaults.get("centered"):
            state["grad_avg"] = second.sqrt() / 2
        if isinstance(optimizer, NAdam):
            state["mu_product"] = torch.zeros(())
    return optimizer


def step_on_quadratic(optimizer: Optimizer, model: torch.nn.Module) -> None:
    params = list(model.parameters())
    for p, g in zip(params, (A @ flat_parameters(model)).split(SIZES), strict=True):
        p.grad = g.clone()
    optimizer.step()


def scale_lrs(optimizer: Optimizer, factor: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] *= factor


def iteration_matrix(build: Build, factor: float) -> Tensor:
    """(θ, buffer) ↦ the same after one step of torch's optimizer with all lrs times `factor`, column by column."""
    columns = []
    for unit in TINY * torch.eye(10, dtype=torch.float64):
        model = quadratic(theta=unit[:5]).model
        params = list(model.parameters())
        optimizer = held(build(params))
        buffer = buffer_of(optimizer)
        for p, part in zip(params, unit[5:].split(SIZES), strict=True):
            optimizer.state[p][buffer] = part.clone()
        scale_lrs(optimizer, factor)
        step_on_quadratic(optimizer, model)
        columns.append(torch.cat([flat_parameters(model), *(optimizer.state[p][buffer] for p in params)]) / TINY)
    matrix = torch.stack(columns, 1)
    # without momentum the buffer is neither read nor written
    return matrix[:5, :5] if torch.equal(matrix[:5, 5:], torch.zeros(5, 5, dtype=torch.float64)) else matrix


def spectral_radius(matrix: Tensor) -> float:
    return float(torch.linalg.eigvals(matrix).abs().max())


@every_optimizer
def test_at_the_limit_the_iteration_matrix_has_radius_one_and_flips(
    build: Build,
) -> None:
    problem = quadratic()
    optimizer = held(build(list(problem.model.parameters())))
    limit = wc.max_lr(problem, optimizer, tol=EXACT)
    largest = max(group["lr"] for group in optimizer.param_groups)
    assert limit.factor == pytest.approx(limit.value / largest, rel=1e-12)
    modes = torch.linalg.eigvals(iteration_matrix(build, limit.factor))
    # TINY and the step's own rounding leave about ten digits
    assert float((modes + 1).abs().min()) < 1e-7
    assert float(modes.abs().max()) == pytest.approx(1, abs=1e-7)
    for below in (0.05, 0.5, 0.9, 0.999):
        assert spectral_radius(iteration_matrix(build, below * limit.factor)) < 1
    assert spectral_radius(iteration_matrix(build, 1.001 * limit.factor)) > 1


@every_optimizer
@pytest.mark.parametrize("factor", [0.98, 1.02])
def test_optimizers_converge_just_below_the_limit_and_diverge_above(build: Build, factor: float) -> None:
    problem = quadratic(theta=TINY * normal(5, seed=2))
    optimizer = held(build(list(problem.model.parameters())))
    scale_lrs(optimizer, factor * wc.max_lr(problem, optimizer, tol=1e-6).factor)
    before = float(flat_parameters(problem.model).norm())
    for _ in range(300):
        step_on_quadratic(optimizer, problem.model)
    after = float(flat_parameters(problem.model).norm())
    assert after < before / 5 if factor < 1 else after > 5 * before


def test_adam_has_38_over_its_sharpness_and_the_heavy_ball_2_plus_2_mu() -> None:
    problem = quadratic()
    adam = held(OPTIMIZERS["adam"](list(problem.model.parameters())))
    sharpness = lambda_max(congruent(1 / (SECOND.sqrt() + 0.3), A))
    limit = wc.max_lr(problem, adam, tol=EXACT)
    assert limit.value == pytest.approx(38 / sharpness, rel=1e-8)
    assert limit.lambda_max == pytest.approx(sharpness, rel=1e-8)
    assert (limit.momentum, limit.optimizer, limit.lr) == (0.9, "Adam", 0.1)
    heavy = wc.max_lr(problem, momentum=0.9, tol=EXACT)
    assert heavy.value == pytest.approx(3.8 / lambda_max(A), rel=1e-8)
    assert heavy.value == heavy_ball_limit(heavy.lambda_max, 0.9)
    assert (heavy.momentum, heavy.optimizer, heavy.lr, heavy.factor, heavy.groups) == (0.9, None, None, None, ())
    assert wc.max_lr(problem, tol=EXACT).value == heavy.value  # momentum is 0.9 unless it is given
    sgd = wc.max_lr(problem, SGD(problem.model.parameters(), 0.2, momentum=0.9), tol=EXACT)
    assert sgd.value == pytest.approx(heavy.value, rel=1e-12)
    assert wc.max_lr(problem, momentum=0.0, tol=EXACT).value == pytest.approx(2 / lambda_max(A), rel=1e-8)


def test_the_heavy_ball_limit_is_infinite_without_positive_curvature() -> None:
    curvatures = torch.tensor([4.0, 0.0, -1.0, math.nan], dtype=torch.float64)
    expected = torch.tensor([0.75, math.inf, math.inf, math.nan], dtype=torch.float64)
    torch.testing.assert_close(heavy_ball_limit(curvatures, 0.5), expected, rtol=0, atol=0, equal_nan=True)
    assert [heavy_ball_limit(float(value), 0.5) for value in curvatures[:3]] == expected[:3].tolist()
    assert math.isnan(heavy_ball_limit(math.nan, 0.5))


def test_a_maximized_loss_is_bounded_by_its_most_negative_curvature() -> None:
    matrix = A - 4 * torch.eye(5, dtype=torch.float64)
    problem = quadratic(matrix)
    optimizer = SGD(problem.model.parameters(), 0.1, momentum=0.5, maximize=True, weight_decay=0.25)
    limit = wc.max_lr(problem, optimizer, tol=EXACT)
    assert limit.value == pytest.approx(3 / (0.25 + lambda_max(-matrix)), rel=1e-8)
    assert limit.matrix == "−H + weight decay"


# the preconditioner as it is now


def adagrad_after_six_steps(params: list[Any]) -> tuple[Optimizer, float]:
    """It slows down by its sum and its lr decay: the seventh step takes lr/(1 + 6·lr_decay)."""
    optimizer = Adagrad(params, 0.1, lr_decay=0.5, eps=0.2)
    for p, part in zip(params, SECOND.split(SIZES), strict=True):
        optimizer.state[p] |= {"sum": part.clone(), "step": torch.tensor(6.0)}
    return optimizer, 4 * 2 / lambda_max(congruent(1 / (SECOND.sqrt() + 0.2), A))


def adamw_of_torch_2_6(params: list[Any]) -> tuple[Optimizer, float]:
    """Its decay is decoupled though its groups do not say so: 2(1+β)/((1−β)λ + (1+β)w)."""
    optimizer = held(AdamW(params, betas=(0.5, NEARLY_ONE), weight_decay=2.0, eps=0.0))
    optimizer.param_groups[0].pop("decoupled_weight_decay", None)
    return optimizer, 2 * 1.5 / (0.5 * lambda_max(congruent(1 / SECOND.sqrt(), A)) + 1.5 * 2)


def adam_after_three_steps(params: list[Any]) -> tuple[Optimizer, float]:
    """Bias correction of the second moment is that of the steps taken."""
    optimizer = held(Adam(params, betas=(0.0, 0.99), eps=0.0))
    for p in params:
        optimizer.state[p]["step"] = torch.tensor(3.0)
    return optimizer, 2 / lambda_max(congruent(1 / (SECOND / (1 - 0.99**3)).sqrt(), A))


def nadam_after_six_steps(params: list[Any]) -> tuple[Optimizer, float]:
    """Its momentum is that of its next step."""
    optimizer = held(NAdam(params, betas=(0.9, NEARLY_ONE), momentum_decay=0.1, eps=0.0))
    for p in params:
        optimizer.state[p]["step"] = torch.tensor(6.0)
        optimizer.state[p]["exp_avg_sq"] *= 1 - NEARLY_ONE**6
    mu, mu_next = (0.9 * (1 - 0.5 * 0.96 ** (t * 0.1)) for t in (7, 8))
    return optimizer, 2 / ((1 - mu + mu_next * 0.1 / 1.9) * lambda_max(congruent(1 / SECOND.sqrt(), A)))


@pytest.mark.parametrize(
    "prepared", [adagrad_after_six_steps, adamw_of_torch_2_6, adam_after_three_steps, nadam_after_six_steps]
)
def test_the_state_of_an_optimizer_is_read_as_its_next_step_reads_it(
    prepared: Callable[[list[Any]], tuple[Optimizer, float]],
) -> None:
    problem = quadratic()
    optimizer, expected = prepared(list(problem.model.parameters()))
    assert wc.max_lr(problem, optimizer, tol=EXACT).value == pytest.approx(expected, rel=1e-8)


FIRST_STEPS: dict[str, Build] = {
    "adam": lambda p: Adam(p, weight_decay=0.1),
    "amsgrad": lambda p: Adam(p, amsgrad=True),
    "adamw": lambda p: AdamW(p, weight_decay=0.5),
    "nadam": lambda p: NAdam(p, momentum_decay=0.0),
    "adamax": lambda p: Adamax(p, weight_decay=0.2),
    "rmsprop": lambda p: RMSprop(p, alpha=0.9),
    "centered": lambda p: RMSprop(p, alpha=0.9, centered=True, momentum=0.5),
    "adagrad": lambda p: Adagrad(p, initial_accumulator_value=0.3),
    "maximize": lambda p: Adam(p, weight_decay=0.5, maximize=True),
}


@pytest.mark.parametrize("build", FIRST_STEPS.values(), ids=FIRST_STEPS)
def test_before_any_step_the_preconditioner_is_what_the_first_step_leaves(build: Build) -> None:
    case = ARCHITECTURES["mlp_tanh"]()
    foreseen = wc.max_lr(case.problem(), build(case.model.parameters()), tol=EXACT)
    assert "has taken no step yet with 4 of 4 parameters" in foreseen.notes[0]

    optimizer = build(case.model.parameters())
    weights = [p.detach().clone() for p in case.model.parameters()]
    case.loss(case.model(case.batch[0]), case.batch[1]).backward()
    optimizer.step()
    for p, values in zip(case.model.parameters(), weights, strict=True):
        p.data.copy_(values)
    stepped = wc.max_lr(case.problem(), optimizer, tol=EXACT)
    assert foreseen.value == pytest.approx(stepped.value, rel=1e-7)
    assert stepped.notes == ()


def test_an_lr_may_be_a_tensor_and_a_parameter_a_scalar() -> None:
    model = torch.nn.Module()
    model.w = torch.nn.Parameter(torch.tensor(2.0, dtype=torch.float64))
    model.forward = lambda x: model.w * x
    problem = wc.Problem(model, torch.nn.MSELoss(), (normal(4), torch.zeros(4, dtype=torch.float64)))
    optimizer = Adam(model.parameters(), lr=torch.tensor(0.5), betas=(0.5, 0.9), eps=0.0)
    h = 2 * float(normal(4).square().mean())
    limit = wc.max_lr(problem, optimizer)
    assert limit.value == pytest.approx(2 * 1.5 / 0.5 / (h / (2 * h)), rel=1e-8)  # P = |g| = |h w|
    assert limit.factor == pytest.approx(2 * limit.value)
    assert "1 of 1 parameters" in limit.notes[0]


def test_a_preconditioner_that_is_zero_or_nan_is_named() -> None:
    problem = quadratic(theta=torch.zeros(5, dtype=torch.float64))
    with pytest.raises(NonFinite, match="Adam divides a gradient of 'first' is zero"):
        wc.max_lr(problem, Adam(problem.model.parameters(), eps=0.0))
    problem = quadratic()
    optimizer = held(Adam(problem.model.parameters()))
    optimizer.state[problem.model.second]["exp_avg_sq"][1] = math.nan
    with pytest.raises(NonFinite, match="'second'"):
        wc.max_lr(problem, optimizer)
