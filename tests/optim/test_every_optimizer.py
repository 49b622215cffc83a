"""What every optimizer honors. A new one needs a line in `OPTIMIZERS`."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves
from zoo import integers, normal

from wellcond.optim.bnp import BNP
from wellcond.optim.scale_amended import ScaleAmendedSGD
from wellcond.optim.scaled_sgd import LARS, LSALR
from wellcond_papers.models import mlp

SIZES = (4, 6, 3)
X, Y = normal(12, 4), integers(3, 12)


def groups(model: nn.Module) -> list[dict[str, Any]]:
    """The first layer and the rest."""
    first = list(model.fc1.parameters())
    return [{"params": first}, {"params": [p for p in model.parameters() if all(p is not q for q in first)]}]


def adams(options: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if key in ("lr", "weight_decay")}


def preconditioned(model: nn.Module, optimizer: Optimizer) -> Optimizer:
    """The optimizer as BNP leaves it: everything that holds of it without must hold with."""
    BNP(model, optimizer)
    return optimizer


OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "ScaleAmendedSGD": lambda model, **options: ScaleAmendedSGD(
        model, **{"inputs": X.to(model.fc1.weight.dtype)} | options
    ),
    "LARS": lambda model, **options: LARS(groups(model), **options),
    "LSALR": lambda model, **options: LSALR(groups(model), **options),
    "BNP over SGD": lambda model, **options: preconditioned(model, torch.optim.SGD(groups(model), **options)),
    "BNP over Adam": lambda model, **options: preconditioned(model, torch.optim.Adam(groups(model), **adams(options))),
}
"""Each made with at least two parameter groups, of which the first holds the first layer."""
SGDS = ["ScaleAmendedSGD", "LARS", "LSALR"]
"""Optimizers whose state is complete; BNP's state is saved in addition to its optimizer's."""
LR = {"LARS": 0.02}
"""Learning rates other than 0.05 that suit the problem."""
PLAIN = {"momentum": 0.0, "nesterov": False, "weight_decay": 0.0}
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": PLAIN,
    "decay": PLAIN | {"weight_decay": 0.01},
    "nesterov": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
}

pytestmark = pytest.mark.filterwarnings("ignore:'fc.' has a gradient, but no forward pass")
each_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)
each_sgd = pytest.mark.parametrize("name", SGDS)
each_setting = pytest.mark.parametrize("options", SETTINGS.values(), ids=SETTINGS)


def network(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    return mlp(SIZES, norm="batch", seed=0).to(dtype)


def made(name: str, model: nn.Module, **options: Any) -> Optimizer:
    return OPTIMIZERS[name](model, **({"lr": LR.get(name, 0.05)} | options))


def backward(model: nn.Module, optimizer: Optimizer) -> Tensor:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(X.to(model.fc1.weight.dtype)), Y)
    loss.backward()
    return loss.detach()


def train(model: nn.Module, optimizer: Optimizer, steps: int = 3) -> None:
    for _ in range(steps):
        backward(model, optimizer)
        optimizer.step()


def values(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def assert_equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    assert [name for name in first if not torch.equal(first[name], second[name])] == []


@each_optimizer
@each_setting
def test_it_lowers_a_simple_loss(name: str, options: dict[str, Any]) -> None:
    model = network()
    optimizer = made(name, model, **options)
    before = backward(model, optimizer)
    train(model, optimizer, 100)
    assert backward(model, optimizer) < 0.5 * before


@each_optimizer
def test_a_group_has_a_learning_rate_of_its_own(name: str) -> None:
    """Without momentum and decay a step is proportional to it."""
    moved = []
    for factor in (1.0, 2.0):
        model = network()
        optimizer = made(name, model, **PLAIN)
        optimizer.param_groups[0]["lr"] *= factor
        optimizer.param_groups[-1]["lr"] = 0.0
        before = values(model)
        train(model, optimizer, 1)
        moved.append({key: value - before[key] for key, value in values(model).items()})
    torch.testing.assert_close(moved[1]["fc1.weight"], 2 * moved[0]["fc1.weight"], rtol=1e-9, atol=1e-14)
    assert moved[0]["fc1.weight"].any()
    assert not moved[0]["fc2.weight"].any()


@each_optimizer
def test_a_closure_is_called_once_with_gradients_and_its_loss_returned(name: str) -> None:
    model = network()
    optimizer = made(name, model)
    losses = []

    def closure() -> Tensor:
        losses.append(backward(model, optimizer))
        return losses[0]

    before = values(model)
    with torch.no_grad():
        assert optimizer.step(closure) is losses[0]
    assert len(losses) == 1
    assert not torch.equal(values(model)["fc1.weight"], before["fc1.weight"])
    assert optimizer.step() is None


@each_sgd
def test_sparse_gradients_are_refused_before_anything_moves(name: str) -> None:
    model = network()
    optimizer = made(name, model)
    backward(model, optimizer)
    model.fc2.weight.grad = model.fc2.weight.grad.to_sparse()
    before = values(model)
    with pytest.raises(RuntimeError, match=r"takes no sparse gradients.*shape \(3, 6\).*sparse=False"):
        optimizer.step()
    assert_equal(values(model), before)


@each_optimizer
@each_setting
def test_a_parameter_without_a_gradient_stays(name: str, options: dict[str, Any]) -> None:
    model = network()
    model.bn1.weight.requires_grad_(False)
    optimizer = made(name, model, **options)
    before = values(model)
    optimizer.step()
    assert_equal(values(model), before)
    assert not optimizer.state
    backward(model, optimizer)
    model.fc1.weight.grad = None
    optimizer.step()
    after = values(model)
    still = {key for key in before if torch.equal(before[key], after[key])}
    assert {"fc1.weight", "bn1.weight"} <= still
    assert "fc2.weight" not in still
    assert model.fc1.weight not in optimizer.state


@each_optimizer
@each_setting
def test_zero_gradients_leave_finite_parameters(name: str, options: dict[str, Any]) -> None:
    model = network(torch.float32)
    nn.init.zeros_(model.bn1.weight)
    optimizer = made(name, model, **options)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    before = values(model)
    optimizer.step()
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())
    if not options["weight_decay"]:
        assert_equal(values(model), before)


@each_sgd
@each_setting
def test_a_saved_run_goes_on_as_if_it_had_not_stopped(name: str, options: dict[str, Any]) -> None:
    model = network()
    optimizer = made(name, model, **options)
    train(model, optimizer)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    state = torch.load(file, weights_only=True)

    resumed = network()
    resumed.load_state_dict(state["model"])
    # it needs no forward pass before its first step
    going_on = made(name, resumed, lr=1e-9, **{"inputs": None} if name == "ScaleAmendedSGD" else {})
    going_on.load_state_dict(state["optimizer"])
    for p, q in zip(model.parameters(), resumed.parameters(), strict=True):
        p.grad, q.grad = torch.ones_like(p), torch.ones_like(q)
    optimizer.step()
    going_on.step()
    train(model, optimizer)
    train(resumed, going_on)
    assert_equal(values(resumed), values(model))


@each_sgd
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_a_copy_of_model_and_optimizer_goes_on_like_the_original(name: str, copied: Callable[[Any], Any]) -> None:
    model = network()
    optimizer = made(name, model, **SETTINGS["nesterov"])
    train(model, optimizer)
    other, its_optimizer = copied((model, optimizer))
    train(model, optimizer)
    train(other, its_optimizer)
    assert_equal(values(other), values(model))


@each_optimizer
def test_parameters_can_be_added(name: str) -> None:
    model = network()
    optimizer = made(name, model, **PLAIN)
    new = nn.Parameter(torch.ones(3, dtype=torch.float64))
    optimizer.add_param_group({"params": [new], "lr": 0.5})
    new.grad = torch.ones(3, dtype=torch.float64)
    assert optimizer.param_groups[-1]["lr"] == 0.5
    optimizer.step()
    assert bool((new < 1).all())
    with pytest.raises(ValueError, match="more than one parameter group"):
        optimizer.add_param_group({"params": [new]})
    with pytest.raises(TypeError, match="must be a dict"):
        optimizer.add_param_group([new])  # type: ignore[arg-type]


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "negative_lr": ({"lr": -0.1}, r"lr must be ≥ 0, not -0\.1"),
    "nan_lr": ({"lr": float("nan")}, "lr must be ≥ 0, not nan"),
    "negative_decay": ({"weight_decay": -1e-4}, r"weight_decay must be ≥ 0, not -0\.0001"),
    "negative_momentum": ({"momentum": -0.5}, r"momentum must be ≥ 0 and < 1, not -0\.5"),
    "momentum_of_one": ({"momentum": 1.0}, r"momentum must be ≥ 0 and < 1, not 1\.0"),
    "nesterov_alone": ({"nesterov": True, "momentum": 0.0}, "nesterov=True needs a momentum > 0"),
}


@each_sgd
def test_wrong_options_are_refused_by_name_also_in_a_group(name: str) -> None:
    optimizer = made(name, network(), **PLAIN)
    for options, text in WRONG.values():
        with pytest.raises(ValueError, match=text):
            made(name, network(), **(PLAIN | options))
        with pytest.raises(ValueError, match=text):
            optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))], **options})
    with pytest.raises(TypeError, match="maximize"):
        made(name, network(), maximize=True)


@each_optimizer
@pytest.mark.parametrize("kind", [float, lambda lr: torch.tensor(lr, dtype=torch.float64)], ids=["number", "tensor"])
def test_a_learning_rate_may_be_a_tensor_and_a_scheduler_sets_it(name: str, kind: Any) -> None:
    model, reference = network(), network()
    optimizer, by_hand = made(name, model, lr=kind(LR.get(name, 0.05))), made(name, reference)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    for _ in range(3):
        train(model, optimizer, 1)
        scheduler.step()
        train(reference, by_hand, 1)
        for group in by_hand.param_groups:
            group["lr"] *= 0.5
    assert_equal(values(model), values(reference))
    assert {float(group["lr"]) for group in optimizer.param_groups} == {LR.get(name, 0.05) / 8}


@each_sgd
def test_one_cycle_turns_momentum_too(name: str) -> None:
    model = network()
    optimizer = made(name, model, momentum=0.9, nesterov=True)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=10)
    momenta = set()
    for _ in range(5):
        train(model, optimizer, 1)
        scheduler.step()
        momenta.add(optimizer.param_groups[0]["momentum"])
    assert len(momenta) == 5


@each_optimizer
@each_setting
def test_a_gradient_scaler_changes_nothing_but_skips_what_overflows(name: str, options: dict[str, Any]) -> None:
    model, reference = network(torch.float32), network(torch.float32)
    optimizer, unscaled = made(name, model, **options), made(name, reference, **options)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)  # a power of two: scaling is exact
    for _ in range(3):
        optimizer.zero_grad()
        scaler.scale(F.cross_entropy(model(X.float()), Y)).backward()
        scaler.step(optimizer)
        scaler.update()
    train(reference, unscaled)
    assert_equal(values(model), values(reference))

    before, state = values(model), copy.deepcopy(tree_leaves(optimizer.state_dict()["state"]))
    optimizer.zero_grad()
    scaler.scale(F.cross_entropy(model(X.float()), Y)).backward()
    model.fc2.weight.grad[0, 0] = float("inf")
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0**9
    assert_equal(values(model), before)
    assert all(map(torch.equal, tree_leaves(optimizer.state_dict()["state"]), state))


@each_optimizer
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_step_in_lower_precision_is_that_of_double_precision_rounded(name: str, dtype: torch.dtype) -> None:
    model, reference = network(dtype), network()
    reference.load_state_dict(model.state_dict())
    optimizer, exact = made(name, model), made(name, reference)
    for p, q in zip(model.parameters(), reference.parameters(), strict=True):
        p.grad = normal(*p.shape).to(dtype)
        q.grad = p.grad.double()
    optimizer.step()
    exact.step()
    for p, q in zip(model.parameters(), reference.parameters(), strict=True):
        assert p.dtype == dtype
        rounding = torch.finfo(dtype).eps
        torch.testing.assert_close(p.double(), q, rtol=8 * rounding, atol=8 * rounding)
