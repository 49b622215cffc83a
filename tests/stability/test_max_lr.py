"""Largest stable learning rates against dense Hessians and against what torch's own optimizers do on quadratics."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from references import dense_hessian, flat_parameters, network
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, Adamax, AdamW, NAdam, Optimizer, RMSprop
from torch.utils.data import DataLoader, TensorDataset
from zoo import ARCHITECTURES, Case, normal, split

import wellcond as wc
from wellcond.curvature.hessian import Hessian
from wellcond.errors import InvalidProblem, NonFinite
from wellcond.stability.limits import Limit
from wellcond.stability.max_lr import max_lr

EXACT = 1e-9
"""Relative error asked of λ_max where it is compared with a dense one."""
SIZES = (2, 3)
A = (lambda b: b @ b.T + 0.5 * torch.eye(5, dtype=torch.float64))(normal(5, 5, seed=1))
"""The Hessian of the quadratics; positive definite, so that only the learning rate decides on stability."""


class Parts(nn.Module):
    """Two parameters and nothing else, as one vector."""

    def __init__(self, theta: Tensor) -> None:
        super().__init__()
        first, second = theta.split(SIZES)
        self.first, self.second = nn.Parameter(first.clone()), nn.Parameter(second.clone())

    def forward(self, _inputs: Tensor) -> Tensor:
        return torch.cat([self.first, self.second]).unsqueeze(0)


def quadratic(matrix: Tensor = A, theta: Tensor | None = None) -> wc.Problem:
    """½ θᵀAθ."""
    model = Parts(normal(5, seed=2) if theta is None else theta)
    batch = (torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64))
    return wc.Problem(model, lambda f, _y: 0.5 * (f @ matrix.to(f) * f).sum(), batch)


def lambda_max(matrix: Tensor) -> float:
    return float(torch.linalg.eigvalsh(matrix)[-1])


def congruent(r: Tensor, matrix: Tensor) -> Tensor:
    """R^{½} M R^{½}."""
    return r.sqrt()[:, None] * matrix * r.sqrt()


# torch's own optimizers on the quadratic: what they call their momentum, and how their preconditioner is held

NEARLY_ONE, LATE = 1 - 1e-15, 1e18
SECOND = normal(5, seed=3).abs() + 0.1
"""A second moment that does not change: β₂ is nearly 1, and after so many steps bias corrections are 1."""


def held(key: str, buffer: str, **more: Tensor) -> Callable[[Optimizer], None]:
    """Give every parameter a state with this second moment and an empty buffer of momentum."""

    def prepare(optimizer: Optimizer) -> None:
        at = 0
        for group in optimizer.param_groups:
            for p in group["params"]:
                part = slice(at, at + p.numel())
                at += p.numel()
                state = {"step": torch.tensor(LATE), key: SECOND[part].clone(), buffer: torch.zeros_like(p)}
                optimizer.state[p] = state | {
                    name: (values[part] if values.dim() else values).clone() for name, values in more.items()
                }

    return prepare


def unprepared(_optimizer: Optimizer) -> None:
    pass


MU_PRODUCT = {"mu_product": torch.zeros(())}
BETAS = (0.9, NEARLY_ONE)
Made = tuple[Callable[[Any], Optimizer], Callable[[Optimizer], None], str]
OPTIMIZERS: dict[str, Made] = {
    "plain": (lambda p: SGD(p, 0.1), unprepared, "momentum_buffer"),
    "momentum": (lambda p: SGD(p, 0.1, momentum=0.9), unprepared, "momentum_buffer"),
    "nesterov": (lambda p: SGD(p, 0.1, momentum=0.8, nesterov=True), unprepared, "momentum_buffer"),
    "dampening": (lambda p: SGD(p, 0.1, momentum=0.7, dampening=0.6), unprepared, "momentum_buffer"),
    "dampening_without_momentum": (lambda p: SGD(p, 0.1, dampening=0.6), unprepared, "momentum_buffer"),
    "weight_decay": (lambda p: SGD(p, 0.1, momentum=0.5, weight_decay=2.0), unprepared, "momentum_buffer"),
    "adam": (lambda p: Adam(p, 0.1, BETAS, eps=0.3), held("exp_avg_sq", "exp_avg"), "exp_avg"),
    "adam_decay": (lambda p: Adam(p, 0.1, BETAS, weight_decay=2.0), held("exp_avg_sq", "exp_avg"), "exp_avg"),
    "adamw": (lambda p: AdamW(p, 0.1, BETAS, weight_decay=0.5), held("exp_avg_sq", "exp_avg"), "exp_avg"),
    "amsgrad": (
        lambda p: Adam(p, 0.1, BETAS, amsgrad=True),
        held("max_exp_avg_sq", "exp_avg", exp_avg_sq=SECOND / 9),
        "exp_avg",
    ),
    "nadam": (lambda p: NAdam(p, 0.1, BETAS), held("exp_avg_sq", "exp_avg", **MU_PRODUCT), "exp_avg"),
    "nadam_slow": (
        lambda p: NAdam(p, 0.1, BETAS, momentum_decay=0.0),
        held("exp_avg_sq", "exp_avg", **MU_PRODUCT),
        "exp_avg",
    ),
    "nadam_decoupled": (
        lambda p: NAdam(p, 0.1, BETAS, weight_decay=0.5, decoupled_weight_decay=True),
        held("exp_avg_sq", "exp_avg", **MU_PRODUCT),
        "exp_avg",
    ),
    "adamax": (lambda p: Adamax(p, 0.1, BETAS), held("exp_inf", "exp_avg"), "exp_avg"),
    "rmsprop": (lambda p: RMSprop(p, 0.1, alpha=1.0), held("square_avg", "momentum_buffer"), "momentum_buffer"),
    "rmsprop_momentum": (
        lambda p: RMSprop(p, 0.1, alpha=1.0, momentum=0.9, weight_decay=1.0),
        held("square_avg", "momentum_buffer"),
        "momentum_buffer",
    ),
    "rmsprop_centered": (
        lambda p: RMSprop(p, 0.1, alpha=1.0, centered=True, eps=0.2),
        held("square_avg", "momentum_buffer", grad_avg=SECOND.sqrt() / 2),
        "momentum_buffer",
    ),
    "groups_of_sgd": (
        lambda p: SGD(
            [
                {"params": p[:1], "lr": 0.3, "momentum": 0.9, "nesterov": True},
                {"params": p[1:], "lr": 0.1, "momentum": 0.5, "dampening": 0.2, "weight_decay": 1.0},
            ]
        ),
        unprepared,
        "momentum_buffer",
    ),
    "groups_of_adamw": (
        lambda p: AdamW(
            [
                {"params": p[:1], "lr": 0.1, "betas": (0.5, NEARLY_ONE), "weight_decay": 3.0},
                {"params": p[1:], "lr": 0.4, "eps": 0.1},
            ],
            betas=BETAS,
        ),
        held("exp_avg_sq", "exp_avg"),
        "exp_avg",
    ),
}
every_optimizer = pytest.mark.parametrize("made", OPTIMIZERS.values(), ids=OPTIMIZERS)
TINY = 1e-12
"""Gradients of this size leave a second moment of about 1 where it is, also in Adamax."""


def iteration_matrix(made: Made, factor: float) -> Tensor:
    """(θ, buffer) ↦ the same after one step of torch's optimizer with all lrs times `factor`, column by column."""
    build, prepare, buffer = made
    columns = []
    for unit in TINY * torch.eye(10, dtype=torch.float64):
        model = Parts(unit[:5])
        params = list(model.parameters())
        optimizer = build(params)
        prepare(optimizer)
        for p, part in zip(params, unit[5:].split(SIZES), strict=True):
            optimizer.state[p][buffer] = part.clone()
        for group in optimizer.param_groups:
            group["lr"] *= factor
        theta = flat_parameters(model)
        for p, g in zip(params, (A @ theta).split(SIZES), strict=True):
            p.grad = g.clone()
        optimizer.step()
        columns.append(torch.cat([flat_parameters(model), *(optimizer.state[p][buffer] for p in params)]) / TINY)
    matrix = torch.stack(columns, 1)
    # without momentum the buffer is neither read nor written
    return matrix[:5, :5] if torch.equal(matrix[:5, 5:], torch.zeros(5, 5, dtype=torch.float64)) else matrix


def spectral_radius(matrix: Tensor) -> float:
    return float(torch.linalg.eigvals(matrix).abs().max())


@every_optimizer
def test_at_the_limit_the_iteration_matrix_of_torchs_optimizer_has_radius_one_and_a_mode_that_flips(made: Made) -> None:
    problem = quadratic()
    optimizer = made[0](list(problem.model.parameters()))
    made[1](optimizer)
    limit = max_lr(problem, optimizer=optimizer, tol=EXACT)
    largest = max(group["lr"] for group in optimizer.param_groups)
    assert limit.factor == pytest.approx(limit.value / largest, rel=1e-12)
    modes = torch.linalg.eigvals(iteration_matrix(made, limit.factor))
    # TINY and the step's own rounding leave about ten digits
    assert float((modes + 1).abs().min()) < 1e-7
    assert float(modes.abs().max()) == pytest.approx(1, abs=1e-7)
    for below in (0.05, 0.5, 0.9, 0.999):
        assert spectral_radius(iteration_matrix(made, below * limit.factor)) < 1
    assert spectral_radius(iteration_matrix(made, 1.001 * limit.factor)) > 1


@every_optimizer
@pytest.mark.parametrize("factor", [0.98, 1.02])
def test_torchs_optimizer_converges_just_below_the_limit_and_diverges_just_above(made: Made, factor: float) -> None:
    problem = quadratic(theta=TINY * normal(5, seed=2))
    params = list(problem.model.parameters())
    optimizer = made[0](params)
    made[1](optimizer)
    ratio = factor * max_lr(problem, optimizer=optimizer, tol=1e-6).factor
    for group in optimizer.param_groups:
        group["lr"] *= ratio
    before = float(flat_parameters(problem.model).norm())
    for _ in range(300):
        for p, g in zip(params, (A @ flat_parameters(problem.model)).split(SIZES), strict=True):
            p.grad = g.clone()
        optimizer.step()
    after = float(flat_parameters(problem.model).norm())
    assert after < before / 5 if factor < 1 else after > 5 * before


def test_adam_has_38_over_the_preconditioned_sharpness_and_the_heavy_ball_2_and_2_mu() -> None:
    problem = quadratic()
    adam = OPTIMIZERS["adam"][0](list(problem.model.parameters()))
    OPTIMIZERS["adam"][1](adam)
    sharpness = lambda_max(congruent(1 / (SECOND.sqrt() + 0.3), A))
    limit = max_lr(problem, optimizer=adam, tol=EXACT)
    assert limit.value == pytest.approx(38 / sharpness, rel=1e-8)
    assert limit.lambda_max == pytest.approx(sharpness, rel=1e-8)
    assert (limit.momentum, limit.optimizer, limit.lr) == (0.9, "Adam", 0.1)
    heavy = max_lr(problem, 0.9, tol=EXACT)
    assert heavy.value == pytest.approx(3.8 / lambda_max(A), rel=1e-8)
    assert (heavy.momentum, heavy.optimizer, heavy.lr, heavy.factor, heavy.groups) == (0.9, None, None, None, ())
    sgd = max_lr(problem, optimizer=SGD(problem.model.parameters(), 0.2, momentum=0.9), tol=EXACT)
    assert sgd.value == pytest.approx(heavy.value, rel=1e-12)
    assert max_lr(problem, tol=EXACT).value == pytest.approx(2 / lambda_max(A), rel=1e-8)


def test_a_maximised_loss_is_bounded_by_its_most_negative_curvature() -> None:
    matrix = A - 4 * torch.eye(5, dtype=torch.float64)
    problem = quadratic(matrix)
    optimizer = SGD(problem.model.parameters(), 0.1, momentum=0.5, maximize=True, weight_decay=0.25)
    limit = max_lr(problem, optimizer=optimizer, tol=EXACT)
    assert limit.value == pytest.approx(3 / (0.25 + lambda_max(-matrix)), rel=1e-8)
    assert limit.matrix == "−H + weight decay"


def test_adagrad_slows_down_by_its_sum_and_its_lr_decay() -> None:
    problem = quadratic()
    optimizer = Adagrad(problem.model.parameters(), 0.1, lr_decay=0.5, eps=0.2)
    for p, part in zip(problem.model.parameters(), SECOND.split(SIZES), strict=True):
        optimizer.state[p]["sum"], optimizer.state[p]["step"] = part.clone(), torch.tensor(6.0)
    # the seventh step takes lr/(1 + 6·lr_decay)
    sharpness = lambda_max(congruent(1 / (SECOND.sqrt() + 0.2), A))
    assert max_lr(problem, optimizer=optimizer, tol=EXACT).value == pytest.approx(4 * 2 / sharpness, rel=1e-8)


def test_the_decay_of_adamw_is_decoupled_also_where_its_groups_do_not_say_so() -> None:
    """As in torch 2.6."""
    problem = quadratic()
    optimizer = AdamW(problem.model.parameters(), betas=(0.5, NEARLY_ONE), weight_decay=2.0, eps=0.0)
    held("exp_avg_sq", "exp_avg")(optimizer)
    optimizer.param_groups[0].pop("decoupled_weight_decay", None)
    sharpness = lambda_max(congruent(1 / SECOND.sqrt(), A))
    # 2(1+β)/((1−β)λ + (1+β)w)
    expected = 2 * 1.5 / (0.5 * sharpness + 1.5 * 2)
    assert max_lr(problem, optimizer=optimizer, tol=EXACT).value == pytest.approx(expected, rel=1e-8)


def test_bias_correction_of_the_second_moment_is_that_of_the_steps_taken() -> None:
    problem = quadratic()
    optimizer = Adam(problem.model.parameters(), betas=(0.0, 0.99), eps=0.0)
    held("exp_avg_sq", "exp_avg")(optimizer)
    for p in problem.model.parameters():
        optimizer.state[p]["step"] = torch.tensor(3.0)
    sharpness = lambda_max(congruent(1 / (SECOND / (1 - 0.99**3)).sqrt(), A))
    assert max_lr(problem, optimizer=optimizer, tol=EXACT).value == pytest.approx(2 / sharpness, rel=1e-8)


def test_the_momentum_of_nadam_is_that_of_its_next_step() -> None:
    problem = quadratic()
    optimizer = NAdam(problem.model.parameters(), betas=(0.9, NEARLY_ONE), momentum_decay=0.1, eps=0.0)
    held("exp_avg_sq", "exp_avg", **MU_PRODUCT)(optimizer)
    for p in problem.model.parameters():
        optimizer.state[p]["step"] = torch.tensor(6.0)
        optimizer.state[p]["exp_avg_sq"] *= 1 - NEARLY_ONE**6
    mu, mu_next = (0.9 * (1 - 0.5 * 0.96 ** (t * 0.1)) for t in (7, 8))
    sharpness = lambda_max(congruent(1 / SECOND.sqrt(), A))
    expected = 2 / ((1 - mu + mu_next * 0.1 / 1.9) * sharpness)
    assert max_lr(problem, optimizer=optimizer, tol=EXACT).value == pytest.approx(expected, rel=1e-8)


FIRST_STEPS: dict[str, Callable[[Any], Optimizer]] = {
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
def test_before_any_step_the_preconditioner_is_what_the_first_step_leaves(build: Callable[[Any], Optimizer]) -> None:
    case = ARCHITECTURES["mlp_tanh"]()
    new = build(case.model.parameters())
    foreseen = max_lr(case.problem(), optimizer=new, tol=EXACT)
    assert "has taken no step yet with 4 of 4 parameters" in foreseen.notes[0]

    optimizer = build(case.model.parameters())
    weights = [p.detach().clone() for p in case.model.parameters()]
    case.loss(case.model(case.batch[0]), case.batch[1]).backward()
    optimizer.step()
    for p, values in zip(case.model.parameters(), weights, strict=True):
        p.data.copy_(values)
    stepped = max_lr(case.problem(), optimizer=optimizer, tol=EXACT)
    assert foreseen.value == pytest.approx(stepped.value, rel=1e-7)
    assert stepped.notes == ()


# networks


def dense_mean(case: Case, batches: list[Any]) -> Tensor:
    """Batches count by their terms, the entries of the targets."""
    count = sum(y.numel() for _, y in batches)
    return sum(dense_hessian(case.model, case.loss, b, case.batchnorm) * b[1].numel() for b in batches) / count


NETWORKS = ["mlp_tanh", "cnn_batch", "cnn_running", "transformer"]
every_network = pytest.mark.parametrize("name", NETWORKS)


@every_network
@pytest.mark.parametrize("several", [False, True], ids=["one_batch", "uneven_batches"])
def test_the_limit_of_a_network_is_that_of_its_dense_hessian(name: str, several: bool) -> None:
    case = ARCHITECTURES[name]()
    batches = split(case.batch, [len(case.batch[1]) - 2, 2]) if several else [case.batch]
    exact = 2 * 1.9 / lambda_max(dense_mean(case, batches))
    problem = case.problem(batches=batches)
    assert max_lr(problem, 0.9, tol=EXACT).value == pytest.approx(exact, rel=1e-8)
    for seed in range(5):
        rough = max_lr(problem, 0.9, tol=0.1, seed=seed)
        assert rough.low <= exact <= rough.high
        assert rough.converged
        assert rough.error == rough.high - rough.value <= 0.12 * rough.value
    assert rough.batchnorm == case.batchnorm


@every_network
def test_the_limit_of_adam_in_training_is_that_of_its_own_preconditioner(name: str) -> None:
    case = ARCHITECTURES[name]()
    problem = case.problem()
    if case.batchnorm == "running":
        case.model.eval()
    optimizer = Adam(case.model.parameters(), 1e-2, (0.8, 0.95), eps=1e-4, weight_decay=0.01)
    for _ in range(5):
        optimizer.zero_grad()
        case.loss(case.model(case.batch[0]), case.batch[1]).backward()
        optimizer.step()
    v = torch.cat([optimizer.state[p]["exp_avg_sq"].reshape(-1) for p in case.model.parameters()])
    hessian = dense_hessian(case.model, case.loss, case.batch, case.batchnorm)
    decayed = hessian + 0.01 * torch.eye(len(v), dtype=torch.float64)
    sharpness = lambda_max(congruent(1 / ((v / (1 - 0.95**5)).sqrt() + 1e-4), decayed))
    exact = 2 * 1.8 / 0.2 / sharpness
    assert max_lr(problem, optimizer=optimizer, tol=EXACT).value == pytest.approx(exact, rel=1e-7)
    rough = max_lr(problem, optimizer=optimizer, tol=0.1)
    assert rough.low <= exact <= rough.high


def test_float32_finds_what_float64_does() -> None:
    case = ARCHITECTURES["cnn_batch"]()
    exact = 2 / lambda_max(dense_hessian(case.model, case.loss, case.batch))
    single = wc.Problem(copy.deepcopy(case.model).float(), case.loss, (case.batch[0].float(), case.batch[1]))
    limit = max_lr(single, tol=1e-3)
    assert limit.low <= exact <= limit.high
    optimizer = SGD(single.model.parameters(), 0.1, momentum=0.5)
    assert max_lr(single, optimizer=optimizer).value == pytest.approx(1.5 * exact, rel=1e-2)


# groups


def test_groups_keep_their_proportions_and_each_has_its_own_limit_alone() -> None:
    case = ARCHITECTURES["mlp_tanh"]()
    hidden, head = case.model[0], case.model[2]
    optimizer = SGD(
        [
            {"params": head.parameters(), "lr": 0.02, "momentum": 0.5},
            {"params": hidden.parameters(), "lr": 0.1, "weight_decay": 0.3, "nesterov": True},
        ],
        momentum=0.9,
    )
    hessian = dense_hessian(case.model, case.loss, case.batch)
    split_at = sum(p.numel() for p in hidden.parameters())
    response = torch.full((len(hessian),), 1 / 1.5, dtype=torch.float64)
    response[:split_at] = 2.8 / 1.9
    lr = torch.full_like(response, 0.02)
    lr[:split_at] = 0.1
    decayed = hessian.clone()
    decayed.diagonal()[:split_at] += 0.3
    factor = 2 / lambda_max(congruent(lr * response, decayed))

    limit = max_lr(case.problem(), optimizer=optimizer, tol=EXACT, each_group=True)
    assert limit.factor == pytest.approx(factor, rel=1e-8)
    assert (limit.lr, limit.momentum, limit.value) == (0.1, 0.9, pytest.approx(0.1 * factor, rel=1e-8))
    first, second = limit.groups
    assert [(g.index, g.lr, g.momentum, g.parameters) for g in limit.groups] == [
        (0, 0.02, 0.5, len(hessian) - split_at),
        (1, 0.1, 0.9, split_at),
    ]
    assert first.together == pytest.approx(0.02 * factor, rel=1e-8)
    assert second.together == pytest.approx(0.1 * factor, rel=1e-8)
    assert first.alone.value == pytest.approx(2 * 1.5 / lambda_max(hessian[split_at:, split_at:]), rel=1e-8)
    inside = lambda_max(decayed[:split_at, :split_at])
    assert second.alone.value == pytest.approx(2 * 1.9 / 2.8 / inside, rel=1e-8)
    assert second.alone.lambda_max == pytest.approx(inside, rel=1e-8)
    assert first.alone.value > first.together
    assert second.alone.value > second.together
    whole = max_lr(case.problem(), optimizer=optimizer, tol=EXACT)
    assert [g.alone for g in whole.groups] == [None, None]
    assert limit.matvecs == whole.matvecs + first.alone.matvecs + second.alone.matvecs


def test_of_one_group_the_limit_alone_is_not_measured_twice() -> None:
    problem = quadratic()
    optimizer = SGD(problem.model.parameters(), 0.1)
    limit = max_lr(problem, optimizer=optimizer, each_group=True)
    assert limit.matvecs == limit.limit.matvecs
    assert limit.groups[0].together == pytest.approx(limit.value, rel=1e-12)


def test_parameters_that_the_optimizer_does_not_move_do_not_count() -> None:
    problem = quadratic()
    first, second = problem.model.parameters()
    inside = 2 / lambda_max(A[2:, 2:])
    assert max_lr(problem, optimizer=SGD([second], 0.1), tol=EXACT).value == pytest.approx(inside, rel=1e-8)
    at_rest = SGD([{"params": [first], "lr": 0.0}, {"params": [second], "lr": 0.1}])
    limit = max_lr(problem, optimizer=at_rest, tol=EXACT)
    assert limit.value == pytest.approx(inside, rel=1e-8)
    assert [g.index for g in limit.groups] == [1]
    assert "lr is 0 in group 0" in limit.notes[0]


def test_where_every_lr_is_zero_as_before_a_warm_up_they_count_as_equal() -> None:
    problem = quadratic()
    groups = [{"params": [p]} for p in problem.model.parameters()]
    limit = max_lr(problem, optimizer=SGD(groups, 0.0), tol=EXACT)
    assert limit.value == pytest.approx(2 / lambda_max(A), rel=1e-8)
    assert (limit.lr, limit.factor, limit.groups[1].lr) == (0.0, math.inf, 0.0)
    assert limit.groups[1].together == limit.value
    assert "every lr is 0" in limit.notes[0]
    str(limit)


def test_a_parameter_without_a_gradient_is_not_even_decayed() -> None:
    """torch passes over it; decayed, its curvature of 50 would be the largest of all."""
    problem = quadratic(A / 1000)
    problem.model.unused = nn.Parameter(torch.ones(3, dtype=torch.float64))
    problem = wc.Problem(problem.model, problem.loss, problem.batches)
    groups = [{"params": [problem.model.first, problem.model.second]}, {"params": [problem.model.unused]}]
    for optimizer, expected in {
        SGD([groups[0], groups[1] | {"weight_decay": 50.0}], 0.1): 2 / lambda_max(A / 1000),
        Adam([groups[0], groups[1] | {"weight_decay": 50.0}], 0.1): None,
    }.items():
        limit = max_lr(problem, optimizer=optimizer, tol=EXACT)
        assert [g.index for g in limit.groups] == [0]
        assert expected is None or limit.value == pytest.approx(expected, rel=1e-8)
    with pytest.raises(InvalidProblem, match="depends on none of the parameters that SGD holds"):
        max_lr(problem, optimizer=SGD([problem.model.unused], 0.1))


def test_an_lr_may_be_a_tensor_and_a_parameter_a_scalar() -> None:
    model = nn.Module()
    model.w = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))
    model.forward = lambda x: model.w * x
    problem = wc.Problem(model, nn.MSELoss(), (normal(4), torch.zeros(4, dtype=torch.float64)))
    optimizer = Adam(model.parameters(), lr=torch.tensor(0.5), betas=(0.5, 0.9), eps=0.0)
    h = 2 * float(normal(4).square().mean())
    limit = max_lr(problem, optimizer=optimizer)
    assert limit.value == pytest.approx(2 * 1.5 / 0.5 / (h / (2 * h)), rel=1e-8)  # P = |g| = |h w|
    assert limit.factor == pytest.approx(2 * limit.value)
    assert "1 of 1 parameters" in limit.notes[0]


# batches


@pytest.mark.parametrize("name", ["mlp_tanh", "transformer"])
def test_every_batch_has_the_limit_of_its_own_hessian(name: str) -> None:
    case = ARCHITECTURES[name]()
    count = len(case.batch[1])
    batches = split(case.batch, [count - 2, 1, 1])
    expected = [2 * 1.9 / lambda_max(dense_hessian(case.model, case.loss, b)) for b in batches]
    limit = max_lr(case.problem(batches=batches), 0.9, tol=EXACT, each_batch=True)
    assert [b.value for b in limit.batches] == pytest.approx(expected, rel=1e-8)
    assert limit.smallest_of_batches == pytest.approx(min(expected), rel=1e-8)
    assert limit.median_of_batches == pytest.approx(sorted(expected)[1], rel=1e-8)
    alone = max_lr(case.problem(batches=batches), 0.9, tol=EXACT)
    assert (alone.value, alone.batches, alone.smallest_of_batches, alone.median_of_batches) == (
        limit.value,
        (),
        None,
        None,
    )
    assert limit.cost == 2 * (limit.limit.matvecs + sum(b.matvecs for b in limit.batches) / 3)


def test_a_batch_alone_has_the_dropout_masks_and_the_preconditioner_that_it_has_among_the_others() -> None:
    case = ARCHITECTURES["mlp_tanh"]()
    model = nn.Sequential(case.model[0], nn.Dropout(0.5), case.model[1], case.model[2])
    batches = split(case.batch, [3, 3])
    problem = wc.Problem(model, case.loss, batches, dropout=5)
    alone = [wc.Hessian(wc.Problem(model, case.loss, [b], dropout=5 + i)).dense() for i, b in enumerate(batches)]
    assert torch.allclose(wc.Hessian(problem).dense(), (alone[0] + alone[1]) / 2, atol=1e-12)
    optimizer = RMSprop(model.parameters(), alpha=1.0, eps=0.0)
    for p in model.parameters():
        optimizer.state[p] = {"step": torch.tensor(1.0), "square_avg": torch.full_like(p, 4.0)}
    limit = max_lr(problem, optimizer=optimizer, tol=EXACT, each_batch=True)
    assert [b.value for b in limit.batches] == pytest.approx([2 * 2 / lambda_max(h) for h in alone], rel=1e-8)


# no limit, and what is not known


def test_without_positive_curvature_there_is_no_limit() -> None:
    for matrix in (-A, torch.zeros(5, 5, dtype=torch.float64)):
        limit = max_lr(quadratic(matrix), 0.5)
        assert (limit.value, limit.high, float(limit)) == (math.inf, math.inf, math.inf)
        assert "the quadratic model sets no limit" in limit.notes[-1]
        assert "∞" in str(limit)
    assert max_lr(quadratic(-A)).low == math.inf
    assert max_lr(quadratic(-A)).error == 0.0


def test_an_eigenvalue_that_may_be_zero_bounds_the_limit_from_below_alone() -> None:
    limit = Limit(2.0, lambda_max=1.0, lambda_error=1.5, converged=False, matvecs=3)
    assert (limit.value, limit.low, limit.high, limit.error) == (2.0, 0.8, math.inf, math.inf)
    unknown = Limit(2.0, lambda_max=-1.0, lambda_error=1.5, converged=False, matvecs=3)
    assert (unknown.value, unknown.low, unknown.high, unknown.error) == (math.inf, 4.0, math.inf, math.inf)


def test_too_few_products_are_said_and_widen_the_interval() -> None:
    case = ARCHITECTURES["cnn_batch"]()
    exact = 2 / lambda_max(dense_hessian(case.model, case.loss, case.batch))
    limit = max_lr(case.problem(), tol=1e-3, max_matvecs=4)
    assert not limit.converged
    assert limit.matvecs == 4
    assert limit.low <= exact <= limit.high
    assert limit.high == math.inf or limit.error > 1e-3 * limit.value
    assert "not converged" in limit.notes[0]
    apart = max_lr(case.problem(batches=split(case.batch, [3, 2])), tol=1e-3, max_matvecs=4, each_batch=True)
    rough = sum(not b.converged for b in apart.batches)
    assert rough > 0
    assert f"{rough} of 2 limits of single groups or batches have not converged" in apart.notes[-1]


# nothing is disturbed


def everything(model: nn.Module, optimizer: Optimizer) -> list[Any]:
    state: list[Any] = [model.training, sorted(map(str, model.state_dict())), random.getstate(), torch.get_rng_state()]
    state += [np.random.get_state()[1].tobytes(), len(optimizer.state), len(optimizer._optimizer_step_pre_hooks)]
    for tensor in (*model.parameters(), *model.buffers()):
        state += [id(tensor), tensor.data_ptr(), tensor._version, tensor.detach().clone(), tensor.grad is None]
    for group in optimizer.param_groups:
        state += [[id(p) for p in group["params"]], {k: v for k, v in group.items() if k != "params"}]
        for p in group["params"]:
            for key, value in optimizer.state.get(p, {}).items():
                state += [key, id(value), value._version, value.clone()]
    return state


def assert_as_before(now: list[Any], before: list[Any]) -> None:
    assert len(now) == len(before)
    for a, b in zip(now, before, strict=True):
        assert torch.equal(a, b) if isinstance(a, Tensor) else a == b


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("stepped", [False, True])
def test_neither_model_nor_optimizer_is_disturbed(fails: bool, stepped: bool) -> None:
    case = ARCHITECTURES["cnn_batch"]()
    case.model.train()
    groups = [{"params": case.model[0].parameters()}, {"params": case.model[4].parameters(), "lr": 0.5}]
    optimizer = Adam(groups, amsgrad=True, weight_decay=0.1)
    if stepped:
        case.loss(case.model(case.batch[0]), case.batch[1]).backward()
        optimizer.step()
    # a loader draws a seed from torch's generator whenever it is iterated over
    problem = case.problem(batches=DataLoader(TensorDataset(*case.batch), batch_size=3))
    before = everything(case.model, optimizer)

    def progress(what: str, _share: float) -> None:
        if fails and what.startswith("batch 1"):
            raise KeyboardInterrupt

    try:
        max_lr(problem, optimizer=optimizer, each_group=True, each_batch=True, progress=progress)
        assert not fails
    except KeyboardInterrupt:
        assert fails
        assert_as_before(everything(case.model, optimizer), before)  # while the traceback holds every frame
    assert_as_before(everything(case.model, optimizer), before)


# refusals


class Halved(SGD):
    """Steps as it likes."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


class Renamed(SGD):
    """Steps as its parent does."""


def test_an_optimizer_whose_step_is_not_known_is_refused_by_name() -> None:
    problem = quadratic()
    params = list(problem.model.parameters())
    for optimizer in (torch.optim.LBFGS(params), torch.optim.Adadelta(params), wc.LARS(params, lr=0.1), Halved(params)):
        with pytest.raises(InvalidProblem, match=rf"{type(optimizer).__name__}.* not known(.|\n)*momentum=0\.9"):
            max_lr(problem, optimizer=optimizer)
    assert max_lr(problem, optimizer=Renamed(params, 0.1)).value == max_lr(problem).value
    with pytest.raises(TypeError, match="torch optimizer, not float"):
        max_lr(problem, optimizer=0.1)


def test_an_optimizer_that_cannot_be_stable_or_is_not_alone_is_refused() -> None:
    problem = quadratic()
    first, second = params = list(problem.model.parameters())
    for optimizer, message in [
        (SGD(params, 0.1, momentum=1.0), "momentum=1.0 is stable at no learning rate"),
        (RMSprop(params, 0.1, momentum=1.5), "momentum=1.5"),
        (SGD(params, 0.1, momentum=0.5, dampening=1.0), "dampening=1.0"),
        (SGD([{"params": [first]}, {"params": [second], "maximize": True}], 0.1), "others maximise"),
        (SGD([nn.Parameter(torch.ones(1))], 0.1), "holds none of the model's trainable parameters"),
    ]:
        with pytest.raises(InvalidProblem, match=message):
            max_lr(problem, optimizer=optimizer)
    hooked = SGD(params, 0.1)
    hooked.register_step_pre_hook(lambda *_: None)
    with pytest.raises(InvalidProblem, match="hooks that run before its step"):
        max_lr(problem, optimizer=hooked)


def test_a_preconditioner_that_is_zero_or_nan_is_named() -> None:
    problem = quadratic(theta=torch.zeros(5, dtype=torch.float64))
    with pytest.raises(NonFinite, match="Adam divides a gradient of 'first' is zero"):
        max_lr(problem, optimizer=Adam(problem.model.parameters(), eps=0.0))
    problem = quadratic()
    optimizer = Adam(problem.model.parameters())
    held("exp_avg_sq", "exp_avg")(optimizer)
    optimizer.state[problem.model.second]["exp_avg_sq"][1] = math.nan
    with pytest.raises(NonFinite, match="'second'"):
        max_lr(problem, optimizer=optimizer)


@pytest.mark.parametrize("momentum", [-0.1, 1.0, math.nan])
def test_momentum_outside_its_range_is_refused(momentum: float) -> None:
    with pytest.raises(ValueError, match="momentum is"):
        max_lr(quadratic(), momentum)


def test_momentum_and_an_optimizer_are_not_taken_together() -> None:
    problem = quadratic()
    with pytest.raises(ValueError, match=r"momentum is 0\.9, but the optimizer has its own"):
        max_lr(problem, 0.9, optimizer=SGD(problem.model.parameters(), 0.1))


# what is told


def test_products_and_cost_are_counted_as_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = []
    products = Hessian.block_products

    def counting(self: Hessian, jobs: Any) -> list[Tensor]:
        counted.extend(columns.shape[1] for _, columns in jobs)
        return products(self, jobs)

    monkeypatch.setattr(Hessian, "block_products", counting)
    problem = ARCHITECTURES["mlp_tanh"]().problem()
    groups = [{"params": [p]} for p in problem.model.parameters()]
    limit = max_lr(problem, optimizer=SGD(groups, 0.1), each_group=True)
    assert limit.matvecs == sum(counted) > 0
    assert limit.cost == 1 + 2 * sum(counted)
    assert max_lr(problem).cost == 2 * max_lr(problem).matvecs


def test_rows_and_text_tell_everything() -> None:
    case = ARCHITECTURES["mlp_tanh"]()
    optimizer = SGD([{"params": case.model[0].parameters()}, {"params": case.model[2].parameters(), "lr": 0.5}], 100.0)
    problem = case.problem(batches=split(case.batch, [4, 2]))
    limit = max_lr(problem, optimizer=optimizer, each_group=True, each_batch=True)
    rows = {row.quantity: row for row in limit.rows(step=7)}
    assert {row.step for row in rows.values()} == {7}
    values = {name: row.value for name, row in rows.items()}
    assert values["max_lr"] == float(limit) == limit.value
    assert (values["max_lr_low"], values["max_lr_high"]) == (limit.low, limit.high)
    assert (values["lr"], values["momentum"], values["lambda_max"]) == (100.0, 0.0, limit.lambda_max)
    assert values["max_lr_of_group[1]"] == limit.groups[1].together
    assert values["max_lr_of_group_alone[1]"] == limit.groups[1].alone.value
    assert values["max_lr_of_batch[1]"] == limit.batches[1].value
    assert values["max_lr_of_batches_min"] == min(b.value for b in limit.batches)
    assert values["max_lr_of_batches_median"] == sum(b.value for b in limit.batches) / 2
    assert (values["matvecs"], values["cost"]) == (limit.matvecs, limit.cost)
    assert (rows["max_lr"].unit, rows["cost"].unit) == ("lr", "u")
    text = str(limit)
    assert "SGD has lr 100, beyond the limit" in text
    assert "on single batches (2): " in text
    assert "limit, alone" in text
    assert f"{limit.matvecs} products" in text
    plain = str(max_lr(problem, 0.9))
    assert "3.8/λ_max with momentum 0.9; λ_max of H is" in plain
    assert "group" not in plain
    assert "within the limit" in str(max_lr(problem, optimizer=SGD(case.model.parameters(), 1e-3)))


def test_progress_grows_from_part_to_part_and_ends_with_the_work() -> None:
    case = ARCHITECTURES["mlp_tanh"]()
    told: list[tuple[str, float]] = []
    groups = [{"params": case.model[0].parameters()}, {"params": case.model[2].parameters()}]
    problem = case.problem(batches=split(case.batch, [4, 2]))
    max_lr(
        problem,
        optimizer=SGD(groups, 0.1),
        each_group=True,
        each_batch=True,
        progress=lambda what, share: told.append((what, share)),
    )
    shares = [share for _, share in told]
    assert shares == sorted(shares)
    assert 0 < shares[0] < 0.2
    assert 0.8 < shares[-1] <= 1
    parts = ["largest stable learning rate", "group 0 alone", "group 1 alone", "batch 0 alone", "batch 1 alone"]
    assert list(dict.fromkeys(what for what, _ in told)) == parts


def test_a_large_network_gets_as_many_products_as_its_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wellcond.stability.max_lr.BASIS_BYTES", 43 * 8 * 12)
    case = ARCHITECTURES["mlp_tanh"]()
    assert case.problem().size == 43
    assert max_lr(case.problem(), tol=1e-15).matvecs == 12
    assert max_lr(case.problem(), tol=1e-15, max_matvecs=20).matvecs == 20
    monkeypatch.setattr("wellcond.stability.max_lr.BASIS_BYTES", 0)
    assert max_lr(case.problem(), tol=1e-15).matvecs == 10


def test_network_is_evaluated_in_the_asked_meaning_of_batchnorm() -> None:
    """The two meanings of BatchNorm have different limits, so the agreement with dense Hessians is not by chance."""
    case = ARCHITECTURES["cnn_batch"]()
    theta = flat_parameters(case.model)
    assert not torch.allclose(network(case.model, case.batch[0], "batch")(theta), case.model.eval()(case.batch[0]))
    limits = [max_lr(case.problem(batchnorm=meaning)).value for meaning in ("batch", "running")]
    assert limits[0] != pytest.approx(limits[1], rel=0.05)
