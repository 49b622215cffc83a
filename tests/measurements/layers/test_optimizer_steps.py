"""The step of an optimizer, taken on copies: by every kind of optimizer, or given by its result; nothing is touched."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from shift_by_hand import (
    OPTIMIZERS,
    ORDERS,
    Build,
    after_step,
    assert_by_hand,
    case_of,
    counted,
    data_of,
    gradients,
    mean_loss,
    take_step,
    trained,
)
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import StepLR
from torch.optim.optimizer import register_optimizer_step_pre_hook
from unchanged import assert_unchanged, known, snapshot
from zoo import CLASSES, Case, classifier, integers, mlp, normal, seeded, split

import wellcond as wc
from wellcond.errors import InvalidProblem, UnknownLayer, Unsupported
from wellcond.measurements.layers.covariate_shift import covariate_shift


@pytest.mark.parametrize("build", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("steps", [0, 2], ids=["fresh", "mid_run"])
def test_every_optimizer_takes_the_step_it_would_take(build: Build, steps: int) -> None:
    case = case_of("mlp_relu")
    assert_replayed(case, trained(case, build, steps), "mlp_relu")


def assert_replayed(case: Case, optimizer: Optimizer, order: str) -> None:
    shifts = covariate_shift(case.problem(), optimizer)
    before = copy.deepcopy(case.model)
    take_step(case.model, optimizer, *data_of(case))  # the real one, after the measurement
    assert_by_hand(shifts, before, case.model, ORDERS[order], data_of(case))


def test_scale_amended_sgd_is_replayed() -> None:
    case = case_of("cnn_batch")
    optimizer = wc.ScaleAmendedSGD(case.model, lr=0.01, momentum=0.9, inputs=case.batch[0])
    take_step(case.model, optimizer, *data_of(case))
    assert_replayed(case, optimizer, "cnn_batch")


class SharpnessAware(Optimizer):
    """Needs its gradients before `step`, and asks for others at a point nearby; keeps what `state_dict` does not."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})
        self.inner = SGD(self.param_groups, lr=0.1, momentum=0.9)

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor]) -> None:
        params = [p for group in self.param_groups for p in group["params"]]
        moves = [0.05 * p.grad for p in params]
        for p, move in zip(params, moves, strict=True):
            p.add_(move)
        with torch.enable_grad():
            closure()
        for p, move in zip(params, moves, strict=True):
            p.sub_(move)
        self.inner.step()


class WithoutClosure(Optimizer):
    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p -= group["lr"] * p.grad.sign()


def test_optimizers_of_ones_own_are_replayed() -> None:
    case = case_of("mlp_relu")
    assert_replayed(case, SharpnessAware(list(case.model.parameters())), "mlp_relu")
    optimizer = WithoutClosure(list(case.model.parameters()))
    shifts = covariate_shift(case.problem(), optimizer)
    before = copy.deepcopy(case.model)
    optimizer.zero_grad()
    mean_loss(case.model, *data_of(case)).backward()
    optimizer.step()
    assert_by_hand(shifts, before, case.model, ORDERS["mlp_relu"], data_of(case))


# nothing of the user's changes


def everything_of(model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """Identity, version and value of all that the model and the optimizer hold."""
    counters = ("forwards", "backwards")  # of the layer that counts passes
    state = {key: value for key, value in snapshot(model).items() if not key.endswith(counters)}
    for name, p in model.named_parameters():
        state |= {f"{name} {key}": known(value) for key, value in optimizer.state.get(p, {}).items()}
    for i, group in enumerate(optimizer.param_groups):
        options = {key: value for key, value in group.items() if key != "params"}
        state[f"group {i}"] = (id(group), [id(p) for p in group["params"]], tuple(options), *options.values())
    state["attributes"] = {key: id(value) for key, value in vars(optimizer).items()}
    state["hooks"] = len(optimizer._optimizer_step_pre_hooks), len(optimizer._optimizer_step_post_hooks)
    state["step"] = getattr(optimizer, "_step_count", None), getattr(optimizer, "_opt_called", None)
    return state


MEASUREMENTS: dict[str, Callable[[wc.Problem, Optimizer], Any]] = {
    "covariate_shift": covariate_shift,
    "max_lr": lambda problem, optimizer: wc.max_lr(problem, optimizer, each_group=True, each_batch=True),
}
WITHOUT_A_LIMIT = ("lbfgs", "lbfgs_wolfe", "lars", "lsalr")
MEASURED = [
    (kind, name)
    for kind in MEASUREMENTS
    for name in OPTIMIZERS
    if kind == "covariate_shift" or name not in WITHOUT_A_LIMIT
]


@pytest.mark.parametrize(("kind", "name"), MEASURED)
@pytest.mark.parametrize("fail_at", [None, 1, 2, 4], ids=str)
def test_nothing_of_the_models_or_the_optimizers_changes(kind: str, name: str, fail_at: int | None) -> None:
    model, batch = counted(), (normal(6, 4), integers(CLASSES, 6))
    optimizer = OPTIMIZERS[name](list(model.parameters()))
    StepLR(optimizer, 10)  # wraps the optimizer's step
    problem = wc.Problem(model, nn.CrossEntropyLoss(), split(batch, [3, 3]))
    problem.check()
    take_step(model[:-1], optimizer, nn.CrossEntropyLoss(), [batch], "batch")
    model.train()
    model[-1].start_again(fail_at)
    before = everything_of(model, optimizer)
    if fail_at is None:
        MEASUREMENTS[kind](problem, optimizer)
    else:
        with pytest.raises(KeyboardInterrupt) as held:
            MEASUREMENTS[kind](problem, optimizer)
        assert held.tb is not None
    assert_unchanged(before, everything_of(model, optimizer))


def test_hooks_of_all_optimizers_do_not_see_the_step() -> None:
    seen: list[Any] = []
    handle = register_optimizer_step_pre_hook(lambda *args: seen.append(args))
    try:
        case = case_of("mlp_tanh")
        covariate_shift(case.problem(), SGD(case.model.parameters(), lr=0.1))
    finally:
        handle.remove()
    assert not seen


# the step given by its result


def test_a_mapping_of_values_equals_the_optimizer() -> None:
    case = case_of("cnn_batch")
    optimizer = trained(case, OPTIMIZERS["adam"])
    updated = after_step(case.model, optimizer, *data_of(case))
    from_optimizer = covariate_shift(case.problem(), optimizer)
    from_values = covariate_shift(case.problem(), updated.state_dict())  # with buffers
    for name, shift in from_optimizer.items():
        assert from_values[name].difference == pytest.approx(shift.difference, rel=1e-10)
        assert from_values[name].cosine == pytest.approx(shift.cosine, abs=1e-12)


@pytest.mark.parametrize("wrap", [torch.compile, nn.DataParallel, lambda m: torch.compile(nn.DataParallel(m))])
@pytest.mark.slow
def test_a_mapping_may_be_that_of_a_wrapped_model(wrap: Callable[[nn.Module], Any]) -> None:
    case = case_of("cnn_batch")
    updated = copy.deepcopy(case.model)
    with torch.no_grad():
        updated[0].weight.mul_(1.1)
    state = wrap(updated).state_dict()
    assert not any(name in updated.state_dict() for name in state)
    shifts = covariate_shift(wc.Problem(wrap(case.model), case.loss, case.batch), state)
    plain = covariate_shift(case.problem(), updated.state_dict())
    assert plain["4"].difference > 0
    assert list(shifts.values()) == list(plain.values())


class Wrapper(Optimizer):
    """Forwards to an optimizer inside, without ever having been made one itself, as Accelerate's."""

    def __init__(self, inside: Optimizer) -> None:
        self.optimizer = inside

    @property
    def param_groups(self) -> Any:
        return self.optimizer.param_groups

    def step(self, closure: Any = None) -> Any:
        return self.optimizer.step(closure)


def test_the_optimizer_inside_a_wrapper_takes_the_step() -> None:
    case = case_of("mlp_relu")
    inside = trained(case, OPTIMIZERS["adam"])
    assert dict(covariate_shift(case.problem(), Wrapper(inside))) == dict(covariate_shift(case.problem(), inside))
    inside.register_step_pre_hook(lambda *_: None)
    with pytest.raises(Unsupported, match="hooks on its step"):
        covariate_shift(case.problem(), Wrapper(inside))


@pytest.mark.slow
def test_the_step_of_bnp_given_by_its_result() -> None:
    case = classifier(lambda: mlp(activation=nn.ReLU), normal(6, 4), 6)
    optimizer = SGD(case.model.parameters(), lr=0.1, momentum=0.9)
    bnp = wc.BNP(case.model, optimizer)
    before = copy.deepcopy(case.model)
    case.loss(case.model.train()(case.batch[0]), case.batch[1]).backward()
    optimizer.step()
    plain = before[0].weight - 0.1 * gradients(copy.deepcopy(before), *data_of(case))["0.weight"]
    assert not torch.allclose(plain, case.model[0].weight)  # it was preconditioned
    problem = wc.Problem(before, case.loss, case.batch)
    shifts = covariate_shift(problem, case.model.state_dict())
    bnp.remove()
    assert_by_hand(shifts, before, case.model, ["0", "2"], data_of(case))


# what is refused


def uncopied(model: nn.Module) -> Optimizer:
    optimizer = SGD(model.parameters(), lr=0.1)
    optimizer.lines = (line for line in ())  # type: ignore[attr-defined]
    return optimizer


REFUSED: dict[str, tuple[Callable[[nn.Module], Any], type[Exception], str]] = {
    "other_model": (lambda m: SGD(copy.deepcopy(m).parameters()), InvalidProblem, "none of the model's"),
    "name": (lambda _m: "sgd", TypeError, "a str"),
    "unknown_parameter": (lambda m: {"0.weigh": m[0].weight}, UnknownLayer, r"0\.weight"),
    "unknown_wrapped": (lambda _m: {"module.nothing": torch.zeros(1)}, UnknownLayer, r"'module\.nothing'"),
    "other_shape": (lambda _m: {"0.weight": torch.zeros(3)}, ValueError, "shape"),
    "nothing": (lambda _m: {}, InvalidProblem, "nothing would move"),
    "cannot_be_copied": (uncopied, Unsupported, r"cannot be copied(.|\n)*state_dict"),
    "bnp": (lambda m: wc.BNP(m, SGD(m.parameters())).optimizer, Unsupported, r"BNP(.|\n)*model\.state_dict\(\)"),
}


@pytest.mark.parametrize(("step", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_steps_that_cannot_be_taken_are_refused(
    step: Callable[[nn.Module], Any], error: type[Exception], message: str
) -> None:
    case = case_of("mlp_tanh")
    with pytest.raises(error, match=message):
        covariate_shift(case.problem(), step(case.model))


def test_an_optimizer_of_sparse_gradients_is_refused_with_the_cure() -> None:
    model = seeded(lambda: nn.Sequential(nn.EmbeddingBag(5, 3, sparse=True), nn.Linear(3, CLASSES)))
    problem = wc.Problem(model, nn.CrossEntropyLoss(), (integers(5, 4, 3), integers(CLASSES, 4)))
    with pytest.raises(Unsupported, match=r"dense gradients(.|\n)*state_dict"):
        covariate_shift(problem, torch.optim.SparseAdam([model[0].weight]))
