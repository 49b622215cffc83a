"""Largest stable learning rates of networks against dense Hessians: of all parameters, of groups, of single batches."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from quadratics import EXACT, A, congruent, lambda_max, quadratic
from references import dense_hessian
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer, RMSprop
from zoo import ARCHITECTURES, Case, split

import wellcond as wc
from wellcond.curvature.hessian import Hessian
from wellcond.errors import InvalidProblem, Unsupported
from wellcond.learning_rate.limits.limits import RateLimit


def dense_mean(case: Case, batches: list[Any]) -> Tensor:
    """Batches count by their terms, the entries of the targets."""
    count = sum(y.numel() for _, y in batches)
    return sum(dense_hessian(case.model, case.loss, b, case.batchnorm) * b[1].numel() for b in batches) / count


NETWORKS = ["mlp_tanh", "cnn_batch", "cnn_running", "transformer"]


@pytest.mark.parametrize(
    ("name", "several"), [*((name, False) for name in NETWORKS), ("mlp_tanh", True), ("cnn_batch", True)]
)
def test_the_limit_of_a_network_is_that_of_its_dense_hessian(name: str, several: bool) -> None:
    case = ARCHITECTURES[name]()
    batches = split(case.batch, [len(case.batch[1]) - 2, 2]) if several else [case.batch]
    exact = 2 * 1.9 / lambda_max(dense_mean(case, batches))
    problem = case.problem(batches=batches)
    assert wc.max_lr(problem, momentum=0.9, tol=EXACT).value == pytest.approx(exact, rel=1e-8)
    for seed in range(5):
        rough = wc.max_lr(problem, momentum=0.9, tol=0.1, seed=seed)
        assert rough.low <= exact <= rough.high
        assert rough.converged
        assert rough.error == rough.high - rough.value <= 0.12 * rough.value
    assert rough.batchnorm == case.batchnorm
    if name == "cnn_batch":  # the other meaning has another limit, so the agreement is not by chance
        assert wc.max_lr(case.problem(batches=batches, batchnorm="running")).value != pytest.approx(exact, rel=0.05)


@pytest.mark.parametrize("name", NETWORKS)
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
    assert wc.max_lr(problem, optimizer, tol=EXACT).value == pytest.approx(exact, rel=1e-7)
    rough = wc.max_lr(problem, optimizer, tol=0.1)
    assert rough.low <= exact <= rough.high


def test_float32_finds_what_float64_does() -> None:
    case = ARCHITECTURES["cnn_batch"]()
    exact = 2 / lambda_max(dense_hessian(case.model, case.loss, case.batch))
    single = wc.Problem(copy.deepcopy(case.model).float(), case.loss, (case.batch[0].float(), case.batch[1]))
    limit = wc.max_lr(single, momentum=0.0, tol=1e-3)
    assert limit.low <= exact <= limit.high
    optimizer = SGD(single.model.parameters(), 0.1, momentum=0.5)
    assert wc.max_lr(single, optimizer).value == pytest.approx(1.5 * exact, rel=1e-2)


# groups


def test_groups_keep_their_proportions_and_each_has_a_limit_of_its_own() -> None:
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

    limit = wc.max_lr(case.problem(), optimizer, tol=EXACT, each_group=True)
    assert limit.factor == pytest.approx(factor, rel=1e-8)
    assert (limit.lr, limit.momentum, limit.value) == (0.1, 0.9, pytest.approx(0.1 * factor, rel=1e-8))
    first, second = limit.groups
    assert [(g.index, g.lr, g.momentum, g.parameters) for g in limit.groups] == [
        (0, 0.02, 0.5, len(hessian) - split_at),
        (1, 0.1, 0.9, split_at),
    ]
    assert first.proportional == pytest.approx(0.02 * factor, rel=1e-8)
    assert second.proportional == pytest.approx(0.1 * factor, rel=1e-8)
    assert first.separate.value == pytest.approx(2 * 1.5 / lambda_max(hessian[split_at:, split_at:]), rel=1e-8)
    inside = lambda_max(decayed[:split_at, :split_at])
    assert second.separate.value == pytest.approx(2 * 1.9 / 2.8 / inside, rel=1e-8)
    assert second.separate.lambda_max == pytest.approx(inside, rel=1e-8)
    assert first.separate.value > first.proportional
    assert second.separate.value > second.proportional
    whole = wc.max_lr(case.problem(), optimizer, tol=EXACT)
    assert [g.separate for g in whole.groups] == [None, None]
    assert limit.matvecs == whole.matvecs + first.separate.matvecs + second.separate.matvecs


def test_parameters_that_the_optimizer_does_not_move_do_not_count() -> None:
    problem = quadratic()
    first, second = problem.model.parameters()
    inside = 2 / lambda_max(A[2:, 2:])
    one_group = wc.max_lr(problem, SGD([second], 0.1), tol=EXACT, each_group=True)
    assert one_group.value == pytest.approx(inside, rel=1e-8)
    assert one_group.groups[0].proportional == pytest.approx(one_group.value, rel=1e-12)
    assert one_group.groups[0].separate is None  # not measured twice
    at_rest = SGD([{"params": [first], "lr": 0.0}, {"params": [second], "lr": 0.1}])
    limit = wc.max_lr(problem, at_rest, tol=EXACT)
    assert limit.value == pytest.approx(inside, rel=1e-8)
    assert [g.index for g in limit.groups] == [1]
    assert "lr is 0 in group 0" in limit.notes[0]


def test_where_every_lr_is_zero_as_before_a_warm_up_they_count_as_equal() -> None:
    problem = quadratic()
    groups = [{"params": [p]} for p in problem.model.parameters()]
    limit = wc.max_lr(problem, SGD(groups, 0.0), tol=EXACT)
    assert limit.value == pytest.approx(2 / lambda_max(A), rel=1e-8)
    assert (limit.lr, limit.factor, limit.groups[1].lr) == (0.0, math.inf, 0.0)
    assert limit.groups[1].proportional == limit.value
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
        limit = wc.max_lr(problem, optimizer, tol=EXACT)
        assert [g.index for g in limit.groups] == [0]
        assert expected is None or limit.value == pytest.approx(expected, rel=1e-8)
    with pytest.raises(Unsupported, match="depends on none of the parameters that SGD holds"):
        wc.max_lr(problem, SGD([problem.model.unused], 0.1))


# batches


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp_tanh", "encoder_layer"])
def test_every_batch_has_the_limit_of_its_own_hessian(name: str) -> None:
    case = ARCHITECTURES[name]()
    batches = split(case.batch, [len(case.batch[1]) - 2, 1, 1])
    expected = [2 * 1.9 / lambda_max(dense_hessian(case.model, case.loss, b)) for b in batches]
    limit = wc.max_lr(case.problem(batches=batches), momentum=0.9, tol=EXACT, each_batch=True)
    assert [b.value for b in limit.batches] == pytest.approx(expected, rel=1e-8)
    assert limit.smallest_of_batches == pytest.approx(min(expected), rel=1e-8)
    assert limit.median_of_batches == pytest.approx(sorted(expected)[1], rel=1e-8)
    without = wc.max_lr(case.problem(batches=batches), momentum=0.9, tol=EXACT)
    result = without.value, without.batches, without.smallest_of_batches, without.median_of_batches
    assert result == (limit.value, (), None, None)


def test_a_single_batch_has_the_same_dropout_masks_and_preconditioner() -> None:
    case = ARCHITECTURES["mlp_tanh"]()
    model = nn.Sequential(case.model[0], nn.Dropout(0.5), case.model[1], case.model[2])
    batches = split(case.batch, [3, 3])
    problem = wc.Problem(model, case.loss, batches, dropout=5)
    single = [wc.Hessian(wc.Problem(model, case.loss, [b], dropout=5 + i)).dense() for i, b in enumerate(batches)]
    assert torch.allclose(wc.Hessian(problem).dense(), (single[0] + single[1]) / 2, atol=1e-12)
    optimizer = RMSprop(model.parameters(), alpha=1.0, eps=0.0)
    for p in model.parameters():
        optimizer.state[p] = {"step": torch.tensor(1.0), "square_avg": torch.full_like(p, 4.0)}
    limit = wc.max_lr(problem, optimizer, tol=EXACT, each_batch=True)
    assert [b.value for b in limit.batches] == pytest.approx([2 * 2 / lambda_max(h) for h in single], rel=1e-8)


# an eigenvalue that is known already


class Renamed(SGD):
    """Steps as its parent does."""


STEPPING_ALIKE: dict[str, Callable[[list[Any]], Optimizer | None]] = {
    "no_optimizer": lambda _p: None,
    "plain": lambda p: SGD(p, 0.1),
    "inherited_step": lambda p: Renamed(p, 0.1),
    "momentum": lambda p: SGD(p, 0.1, momentum=0.9),
    "nesterov": lambda p: SGD(p, 0.1, momentum=0.9, nesterov=True),
    "dampening": lambda p: SGD(p, 0.1, momentum=0.5, dampening=0.3),
    "weight_decay": lambda p: SGD(p, 0.1, momentum=0.9, weight_decay=2.0),
    "equal_groups": lambda p: SGD([{"params": p[:1]}, {"params": p[1:]}], 0.1, weight_decay=0.5),
}
ANOTHER_MATRIX: dict[str, Callable[[list[Any]], Optimizer | None]] = {
    "adam": lambda p: Adam(p, 0.1),
    "other_lrs": lambda p: SGD([{"params": p[:1], "lr": 0.3}, {"params": p[1:]}], 0.1),
    "other_decays": lambda p: SGD([{"params": p[:1], "weight_decay": 3.0}, {"params": p[1:]}], 0.1),
    "maximized": lambda p: SGD(p, 0.1, maximize=True),
    "some_parameters": lambda p: SGD(p[1:], 0.1),
}


@pytest.mark.parametrize(
    ("build", "is_used"),
    [*((b, True) for b in STEPPING_ALIKE.values()), *((b, False) for b in ANOTHER_MATRIX.values())],
    ids=[*STEPPING_ALIKE, *ANOTHER_MATRIX],
)
def test_a_known_eigenvalue_saves_the_search_where_it_decides(
    build: Callable[[list[Any]], Optimizer | None], is_used: bool
) -> None:
    problem = ARCHITECTURES["mlp_tanh"]().problem()
    optimizer = build(list(problem.model.parameters()))
    known = wc.eigenvalues(wc.Hessian(problem), tol=EXACT)
    fresh, cheap = (wc.max_lr(problem, optimizer, tol=EXACT, known=k) for k in (None, known))
    assert cheap.value == pytest.approx(fresh.value, rel=1e-8)
    assert (cheap.matvecs == cheap.cost.matvecs == 0) == is_used
    assert (cheap.converged, cheap.notes) == (fresh.converged, fresh.notes)
    if is_used:
        assert cheap.lambda_error == float(known.errors[-1])
        assert cheap.cost.backwards == (optimizer is not None)


def test_what_a_known_eigenvalue_does_not_say_is_still_measured() -> None:
    case = ARCHITECTURES["mlp_tanh"]()
    problem = case.problem(batches=split(case.batch, [4, 2]))
    rough = wc.eigenvalues(wc.Hessian(problem), max_matvecs=3)
    limit = wc.max_lr(problem, known=rough, each_batch=True)
    assert (limit.converged, limit.matvecs, len(limit.batches)) == (False, 0, 2)
    assert "not converged" in limit.notes[0]
    assert limit.cost.matvecs == sum(b.matvecs for b in limit.batches) > 0


# no limit, and what is not known


def test_without_positive_curvature_there_is_no_limit() -> None:
    for matrix in (-A, torch.zeros(5, 5, dtype=torch.float64)):
        limit = wc.max_lr(quadratic(matrix), momentum=0.5)
        assert (limit.value, limit.high, float(limit)) == (math.inf, math.inf, math.inf)
        assert "the quadratic model sets no limit" in limit.notes[-1]
        assert "∞" in str(limit)
    assert wc.max_lr(quadratic(-A)).low == math.inf
    assert wc.max_lr(quadratic(-A)).error == 0.0


def test_an_eigenvalue_that_may_be_zero_bounds_the_limit_only_from_below() -> None:
    limit = RateLimit(2.0, lambda_max=1.0, lambda_error=1.5, converged=False, matvecs=3)
    assert (limit.value, limit.low, limit.high, limit.error) == (2.0, 0.8, math.inf, math.inf)
    unknown = RateLimit(2.0, lambda_max=-1.0, lambda_error=1.5, converged=False, matvecs=3)
    assert (unknown.value, unknown.low, unknown.high, unknown.error) == (math.inf, 4.0, math.inf, math.inf)


def test_too_few_products_are_said_and_widen_the_interval() -> None:
    case = ARCHITECTURES["cnn_batch"]()
    exact = 2 / lambda_max(dense_hessian(case.model, case.loss, case.batch))
    limit = wc.max_lr(case.problem(), momentum=0.0, tol=1e-3, max_matvecs=4)
    assert not limit.converged
    assert limit.matvecs == 4
    assert limit.low <= exact <= limit.high
    assert limit.high == math.inf or limit.error > 1e-3 * limit.value
    assert "not converged" in limit.notes[0]
    apart = wc.max_lr(case.problem(batches=split(case.batch, [3, 2])), tol=1e-3, max_matvecs=4, each_batch=True)
    rough = sum(not b.converged for b in apart.batches)
    assert rough > 0
    assert f"{rough} of 2 limits of single groups or batches have not converged" in apart.notes[-1]


# refusals


class Halved(SGD):
    """Steps as it likes."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


def hooked(params: list[Any]) -> Optimizer:
    optimizer = SGD(params, 0.1)
    optimizer.register_step_pre_hook(lambda *_: None)
    return optimizer


NOT_KNOWN = r"{}.* not known(.|\n)*momentum=0\.9"
REFUSED: dict[str, tuple[Callable[[list[Any]], Any], type[Exception], str]] = {
    "lbfgs": (torch.optim.LBFGS, Unsupported, NOT_KNOWN.format("LBFGS")),
    "adadelta": (torch.optim.Adadelta, Unsupported, NOT_KNOWN.format("Adadelta")),
    "lars": (lambda p: wc.LARS(p, lr=0.1), Unsupported, NOT_KNOWN.format("LARS")),
    "own_step": (Halved, Unsupported, NOT_KNOWN.format("Halved")),
    "number": (lambda _p: 0.1, TypeError, r"optimizer is the number 0\.1\. Write .*or name the argument"),
    "sgd": (lambda p: SGD(p, 0.1, momentum=1.0), Unsupported, "momentum=1.0 is stable at no learning rate"),
    "rmsprop": (lambda p: RMSprop(p, 0.1, momentum=1.5), Unsupported, "momentum=1.5"),
    "dampening": (lambda p: SGD(p, 0.1, momentum=0.5, dampening=1.0), Unsupported, "dampening=1.0"),
    "game": (lambda p: SGD([{"params": p[:1]}, {"params": p[1:], "maximize": True}]), Unsupported, "others maximize"),
    "hooked": (hooked, Unsupported, "hooks that run before its step"),
    "other_model": (lambda _p: SGD([nn.Parameter(torch.ones(1))]), InvalidProblem, "holds none of the model's"),
}


@pytest.mark.parametrize(("build", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_an_optimizer_without_a_known_limit_is_refused_by_name(
    build: Callable[[list[Any]], Any], error: type[Exception], message: str
) -> None:
    problem = quadratic()
    with pytest.raises(error, match=message):
        wc.max_lr(problem, build(list(problem.model.parameters())))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"momentum": -0.1}, "momentum is"),
        ({"momentum": 1.0}, "momentum is"),
        ({"momentum": math.nan}, "momentum is"),
        ({"momentum": 0.9, "optimizer": SGD([torch.ones(1)])}, r"momentum is 0\.9, but SGD has a momentum of its own"),
        ({"known": wc.eigenvalues(torch.eye(3))}, "known does not hold this problem's"),
        ({"known": wc.eigenvalues(torch.eye(5), which="smallest")}, "known does not hold this problem's largest"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wc.max_lr(quadratic(), **arguments)


# cost, rows and words


@pytest.mark.slow
def test_products_and_passes_are_counted_as_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    products = Hessian._products_of

    def counting(self: Hessian, jobs: Any) -> list[Tensor]:
        counted.extend(columns.shape[1] for _, columns in jobs)
        return products(self, jobs)

    monkeypatch.setattr(Hessian, "_products_of", counting)
    case = ARCHITECTURES["mlp_tanh"]()
    calls: list[Any] = []
    case.model.register_forward_hook(lambda *args: calls.append(args))
    groups = [{"params": [p]} for p in case.model.parameters()]
    problem = case.problem(batches=split(case.batch, [4, 2]))
    limit = wc.max_lr(problem, SGD(groups, 0.1), each_group=True)
    assert limit.matvecs == limit.cost.matvecs == sum(counted) > 0
    assert limit.cost == problem.cost
    assert limit.cost.forwards == len(calls)
    counted.clear()
    apart = wc.max_lr(problem, each_batch=True)
    assert apart.matvecs + sum(b.matvecs for b in apart.batches) == apart.cost.matvecs == sum(counted)
    # a product with the Hessian of one batch costs about two passes of that batch
    assert apart.cost.u > wc.max_lr(problem).cost.u + 2 * sum(b.matvecs for b in apart.batches)


@pytest.mark.slow
def test_rows_hold_the_scalars_and_the_text_everything() -> None:
    case = ARCHITECTURES["mlp_tanh"]()
    optimizer = SGD([{"params": case.model[0].parameters()}, {"params": case.model[2].parameters(), "lr": 0.5}], 100.0)
    problem = case.problem(batches=split(case.batch, [4, 2]))
    parts: list[str] = []
    options = {"each_group": True, "each_batch": True, "progress": lambda what, _share: parts.append(what)}
    limit = wc.max_lr(problem, optimizer, **options)
    rows = {row.quantity: row for row in limit.rows(step=7)}
    assert {row.step for row in rows.values()} == {7}
    assert {name: row.value for name, row in rows.items()} == {
        "max_lr": float(limit),
        "max_lr_low": limit.low,
        "max_lr_high": limit.high,
        "lr": 100.0,
        "batch_max_lr_least": min(b.value for b in limit.batches),
        "batch_max_lr_median": sum(b.value for b in limit.batches) / 2,
        "lambda_max": limit.lambda_max,
        "momentum": 0.0,
        "matvecs": limit.matvecs,
        "cost": limit.cost.u,
    }
    assert (rows["max_lr"].unit, rows["cost"].unit) == ("lr", "u")
    assert list(dict.fromkeys(parts)) == [
        "largest stable learning rate",
        *(f"group {i} by itself" for i in range(2)),
        *(f"batch {i} by itself" for i in range(2)),
    ]
    text = str(limit)
    assert "SGD has lr 100, beyond the limit" in text
    assert "on single batches (2): " in text
    assert "limit, others at rest" in text
    assert f"{limit.cost.matvecs} matrix-vector products" in text
    plain = str(wc.max_lr(problem, momentum=0.9))
    assert "3.8/λ_max with momentum 0.9; λ_max of H is" in plain
    assert "group" not in plain
    assert "within the limit" in str(wc.max_lr(problem, SGD(case.model.parameters(), 1e-3)))
    assert "38/λ_max with β₁ 0.9; λ_max of P^−½ H P^−½ is" in str(wc.max_lr(problem, Adam(case.model.parameters())))


@pytest.mark.parametrize("vectors", [0, 4, 9])
def test_a_large_network_is_measured_within_its_memory(vectors: int) -> None:
    case = ARCHITECTURES["mlp_tanh"]()
    gibibytes = vectors * case.problem().size * 8 / 2**30
    result, whole = (wc.max_lr(case.problem(), tol=1e-3, memory=memory) for memory in (gibibytes, 2.0))
    assert result.converged
    assert result.matvecs >= whole.matvecs  # what is not known to be orthogonal may hide more
    assert result.lambda_max == pytest.approx(whole.lambda_max, rel=1e-6)


def test_a_large_network_gets_few_products_and_an_interval_that_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    case = ARCHITECTURES["mlp_tanh"]()
    whole = wc.max_lr(case.problem(), tol=1e-9)
    monkeypatch.setattr("wellcond.learning_rate.limits.max_lr.LARGE", 10)
    limit = wc.max_lr(case.problem(), tol=1e-9)
    assert limit.matvecs == 11
    assert not limit.converged
    assert limit.low <= whole.value <= limit.high
    assert "stopped after 11 products" in limit.status
    assert wc.max_lr(case.problem(), tol=1e-9, max_matvecs=20).matvecs == 20
