"""LARS, LSALR and scale-amended SGD against their formulas, what happens at zero, and the invariance of the last."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from zoo import integers, normal, seeded

from wellcond.optim.scale_amended import ScaleAmendedSGD
from wellcond.optim.scaled_sgd import LARS, LSALR, norms

X, Y = normal(6, 2, 8, 8), integers(3, 6)
M_FC2 = 1.0
M_FC1 = M_FC2 * 3 / 5
M_CONV2 = M_FC1 * 5 / 16
M_CONV1 = M_CONV2 * 4 / (3 * 4)
BY_HAND = {"0": (M_CONV1, 64), "1": (M_CONV1, 64), "4": (M_CONV2, 4), "5": (M_CONV2, 4),
           "8": (M_FC1, 1), "9": (M_FC1, 1), "11": (M_FC2, 1)}  # fmt: skip
"""m and q of every module of the network."""


def network(affine: bool = True, eps: float = 1e-5) -> nn.Sequential:
    """Convolutions with pooling and stride, a flattening head, dense layers: 2×8×8 → 3."""
    return seeded(
        lambda: nn.Sequential(
            nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3, eps, affine=affine), nn.ReLU(True), nn.MaxPool2d(2),
            nn.Conv2d(3, 4, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(4, eps, affine=affine), nn.ReLU(),
            nn.Flatten(), nn.Linear(16, 5, bias=False), nn.BatchNorm1d(5, eps, affine=affine), nn.Tanh(),
            nn.Linear(5, 3),
        )
    )  # fmt: skip


def loss(model: nn.Module) -> Tensor:
    return F.cross_entropy(model(X), Y)


def length(tensor: Tensor) -> float:
    return math.sqrt(sum(value * value for value in tensor.flatten().tolist()))


def lars(_name: str, weight: Tensor, gradient: Tensor) -> float:
    return length(weight) / length(gradient)


def lsalr(_name: str, _weight: Tensor, gradient: Tensor) -> float:
    return 1 + math.log(1 + 1 / length(gradient))


def amending(name: str, weight: Tensor, _gradient: Tensor) -> float:
    """1/(m·m_W), m_W = q/‖W‖²_{2,μ}; for parameters that are no weights 1/(m·q)."""
    m, q = BY_HAND[name.partition(".")[0]]
    mean_squared_row_norm = 1 if weight.dim() == 1 else sum(length(row) ** 2 for row in weight) / len(weight)
    return mean_squared_row_norm / (m * q)


OPTIMIZERS: dict[str, tuple[Callable[..., torch.optim.Optimizer], Callable[[str, Tensor, Tensor], float]]] = {
    "LARS": (lambda model, **options: LARS(model.parameters(), **options), lars),
    "LSALR": (lambda model, **options: LSALR(model.parameters(), **options), lsalr),
    "ScaleAmendedSGD": (lambda model, **options: ScaleAmendedSGD(model, inputs=X, **options), amending),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "weight_decay": {"weight_decay": 0.01},
    "momentum": {"momentum": 0.9},
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "all": {"momentum": 0.8, "nesterov": True, "weight_decay": 0.02},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize(("make", "scale"), OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_steps_are_those_of_sgd_with_gradients_scaled_by_the_formula(
    make: Callable[..., torch.optim.Optimizer], scale: Callable[[str, Tensor, Tensor], float], options: dict[str, Any]
) -> None:
    """Weight decay enters before the scale is taken, momentum after."""
    model, reference = network(), network()
    optimizer = make(model, lr=0.01, **options)
    momentum = {key: value for key, value in options.items() if key != "weight_decay"}
    sgd = torch.optim.SGD(reference.parameters(), lr=0.01, **momentum)
    for step in range(4):
        pairs = zip(model.parameters(), reference.named_parameters(), strict=True)
        for i, (p, (name, q)) in enumerate(pairs):
            p.grad = 10.0 ** (i % 3 - 1) * normal(*p.shape, seed=100 * step + i)
            decayed = p.grad + options.get("weight_decay", 0.0) * q.detach()
            q.grad = decayed * scale(name, q.detach(), decayed)
        optimizer.step()
        sgd.step()
        for (name, p), expected in zip(model.named_parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(p, expected, rtol=1e-12, atol=1e-14, msg=name)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_norms_of_half_precision_are_taken_in_single(dtype: torch.dtype) -> None:
    (result,) = norms([torch.full((100_000,), 100.0, dtype=dtype)])
    assert float(result) == pytest.approx(100 * 100_000**0.5, rel=1e-5)


# LARS and LSALR


def stepped(make: Callable[..., torch.optim.Optimizer], weight: Tensor, gradient: Tensor, **options: Any) -> Tensor:
    """The weight after one step."""
    parameter = nn.Parameter(weight.clone())
    parameter.grad = gradient
    make([parameter], **options).step()
    return parameter.detach()


@pytest.mark.parametrize("size", [1e-12, 1.0, 1e12])
def test_a_lars_step_moves_a_weight_by_a_share_of_its_norm(size: float) -> None:
    before = normal(4, 5)
    after = stepped(LARS, before, size * normal(4, 5, seed=1), lr=20.0, trust_coefficient=1e-3)
    assert length(after - before) == pytest.approx(20 * 1e-3 * length(before), rel=1e-12)


def test_lars_takes_sgd_steps_without_a_coefficient_and_from_zero() -> None:
    weight, bias, zero = (nn.Parameter(torch.tensor(values)) for values in ([3.0, 4.0], [6.0, 8.0], [0.0, 0.0]))
    groups = [{"params": [weight, zero]}, {"params": [bias], "trust_coefficient": None, "lr": 0.5}]
    weight.grad, bias.grad, zero.grad = torch.tensor([0.0, 7.0]), torch.tensor([1.0, 2.0]), torch.tensor([1.0, -2.0])
    LARS(groups, lr=0.1).step()
    torch.testing.assert_close(weight.detach(), torch.tensor([3.0, 3.5]))
    torch.testing.assert_close(bias.detach(), torch.tensor([5.5, 7.0]))
    torch.testing.assert_close(zero.detach(), torch.tensor([-0.1, 0.2]))


@pytest.mark.parametrize("make", [LARS, LSALR])
@pytest.mark.parametrize("size", [0.0, 1e-44, 1e-30, 1e-20, 1e30])
def test_vanishing_and_huge_gradients_give_finite_steps(make: Any, size: float) -> None:
    before = torch.full((3, 3), 100.0)
    after = stepped(make, before, torch.full((3, 3), size), lr=0.1)
    assert bool(torch.isfinite(after).all())
    assert size > 0 or torch.equal(after, before)


@pytest.mark.parametrize(("size", "log"), [(1e9, 1e-9), (1.0, math.log(2)), (1e-6, math.log(1_000_001))])
def test_lsalr_enlarges_the_steps_of_small_gradients_only(size: float, log: float) -> None:
    moved = stepped(LSALR, torch.zeros(1).double(), torch.tensor([size], dtype=torch.float64), lr=1.0)
    assert -float(moved) / size == pytest.approx(1 + log, rel=1e-12)


@pytest.mark.parametrize("wrong", [0.0, -1e-3, math.nan])
def test_a_trust_coefficient_must_be_positive(wrong: float) -> None:
    with pytest.raises(ValueError, match="trust_coefficient must be > 0, or None for plain SGD"):
        LARS([nn.Parameter(torch.ones(1))], trust_coefficient=wrong)


def test_the_learning_rates_are_those_of_zhang2018() -> None:
    weight = [nn.Parameter(torch.ones(1))]
    assert (LARS(weight).defaults["lr"], LSALR(weight).defaults["lr"]) == (2.0, 0.1)


# scale-amended SGD


@pytest.mark.parametrize("groups", [1, 2])
def test_rows_of_a_transposed_convolution_are_its_output_channels(groups: int) -> None:
    conv = nn.ConvTranspose2d(4, 6, 2, stride=2, bias=False, groups=groups).double()
    model = nn.Sequential(conv, nn.BatchNorm2d(6, affine=False), nn.Flatten(), nn.Linear(6 * 16, 2)).double()
    optimizer = ScaleAmendedSGD(model, lr=1.0, inputs=torch.zeros(1, 4, 2, 2).double())
    gradient = normal(*conv.weight.shape)
    rows = [
        conv.weight.detach()[4 // groups * (o // (6 // groups)) :][: 4 // groups, o % (6 // groups)] for o in range(6)
    ]
    scale = sum(float(row.square().sum()) for row in rows) / 6 / ((2 / 96) * 16)
    expected = conv.weight.detach() - scale * gradient
    conv.weight.grad = gradient
    optimizer.step()
    torch.testing.assert_close(conv.weight.detach(), expected, rtol=1e-12, atol=1e-12)


def trajectory(model: nn.Module, optimizer: torch.optim.Optimizer) -> Tensor:
    """What the network computes over training."""
    seen = []
    for _ in range(6):
        optimizer.zero_grad()
        outputs = model(X)
        seen.append(outputs.detach())
        F.cross_entropy(outputs, Y).backward()
        optimizer.step()
    return torch.stack(seen)


@pytest.mark.parametrize("momentum", [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}], ids=str)
@pytest.mark.parametrize("alpha", [0.01, 0.5, 30.0])
@pytest.mark.parametrize("layer", ["0", "4", "8"])
def test_the_scale_of_a_normalized_weight_does_not_change_training(
    layer: str, alpha: float, momentum: dict[str, Any]
) -> None:
    def learn(rescale: bool, amend: bool) -> Tensor:
        model = network(affine=False, eps=1e-30)  # ε breaks the invariance, by its own size
        if rescale:
            with torch.no_grad():
                for p in model.get_submodule(layer).parameters():  # the norm after it removes the bias
                    p.mul_(alpha)
        if amend:
            return trajectory(model, ScaleAmendedSGD(model, lr=0.05, inputs=X, **momentum))
        return trajectory(model, torch.optim.SGD(model.parameters(), lr=0.05, **momentum))

    torch.testing.assert_close(learn(True, amend=True), learn(False, amend=True), rtol=1e-9, atol=1e-9)
    assert (learn(True, amend=False) - learn(False, amend=False)).abs().max() > 1e-3


def test_parameters_that_are_added_take_plain_sgd_steps() -> None:
    model = network()
    optimizer = ScaleAmendedSGD(model, lr=0.1)
    temperature, scaled = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2, 2))
    optimizer.add_param_group({"params": [temperature]})
    optimizer.add_param_group({"params": [scaled], "m": 0.5, "lr": 0.2})
    loss(model).backward()  # the pass that is watched comes after
    temperature.grad = scaled.grad = torch.ones(2, 2)
    optimizer.step()
    assert torch.equal(temperature.detach(), torch.ones(2, 2) - 0.1)
    torch.testing.assert_close(scaled.detach(), torch.ones(2, 2) - 0.2 / 0.5)
    assert list(optimizer.factors) == list(BY_HAND)
    with pytest.raises(ValueError, match="m must be > 0, not 0"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))], "m": 0})
