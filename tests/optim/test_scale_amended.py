"""The update of scale-amended SGD: algorithm 2 done by hand, and the invariance it is made for."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from zoo import integers, normal, seeded

from wellcond.optim.scale_amended import ScaleAmendedSGD
from wellcond.optim.scaled_sgd import norms


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


X, Y = normal(6, 2, 8, 8), integers(3, 6)

M_FC2 = 1.0
M_FC1 = M_FC2 * 3 / 5
M_CONV2 = M_FC1 * 5 / 16
M_CONV1 = M_CONV2 * 4 / (3 * 4)
BY_HAND = {"0": (M_CONV1, 64), "1": (M_CONV1, 64), "4": (M_CONV2, 4), "5": (M_CONV2, 4),
           "8": (M_FC1, 1), "9": (M_FC1, 1), "11": (M_FC2, 1)}  # fmt: skip
"""m and q of every module."""


def amended(name: str, weight: Tensor, gradient: Tensor) -> Tensor:
    """δ'W = δW/(m·m_W), m_W = q/‖W‖²_{2,μ}; parameters that are no weights: δ/(m·q)."""
    m, q = BY_HAND[name.partition(".")[0]]
    if weight.dim() == 1:
        return gradient / (m * q)
    mean_squared_row_norm = sum(float(row.flatten() @ row.flatten()) for row in weight) / len(weight)
    return gradient / (m * (q / mean_squared_row_norm))


def loss(model: nn.Module) -> Tensor:
    return F.cross_entropy(model(X), Y)


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "weight_decay": {"weight_decay": 0.01},
    "momentum": {"momentum": 0.9},
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "all": {"momentum": 0.8, "nesterov": True, "weight_decay": 0.02},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_steps_are_those_of_algorithm_2_by_hand_and_of_torchs_momentum(options: dict[str, Any]) -> None:
    model, reference = network(), network()
    optimizer = ScaleAmendedSGD(model, lr=0.01, inputs=X, **options)
    momentum = {key: value for key, value in options.items() if key != "weight_decay"}
    sgd = torch.optim.SGD(reference.parameters(), lr=0.01, **momentum)
    for _ in range(4):
        optimizer.zero_grad()
        loss(model).backward()
        optimizer.step()

        sgd.zero_grad()
        loss(reference).backward()
        for name, p in reference.named_parameters():
            decayed = p.grad + options.get("weight_decay", 0.0) * p.detach()
            p.grad = amended(name, p.detach(), decayed)
        sgd.step()
        for (name, p), expected in zip(model.named_parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(p, expected, rtol=1e-12, atol=1e-14, msg=name)


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
def test_the_scale_of_a_normalized_weight_does_not_change_what_the_network_learns(
    layer: str, alpha: float, momentum: dict[str, Any]
) -> None:
    def learn(rescale: bool, amend: bool) -> Tensor:
        model = network(affine=False, eps=1e-30)  # ε breaks the invariance, by its own size
        if rescale:
            with torch.no_grad():
                model.get_submodule(layer).weight.mul_(alpha)
                if layer == "0":
                    model.get_submodule(layer).bias.mul_(alpha)  # the norm behind it takes it away
        if amend:
            return trajectory(model, ScaleAmendedSGD(model, lr=0.05, inputs=X, **momentum))
        return trajectory(model, torch.optim.SGD(model.parameters(), lr=0.05, **momentum))

    torch.testing.assert_close(learn(True, amend=True), learn(False, amend=True), rtol=1e-9, atol=1e-9)
    assert (learn(True, amend=False) - learn(False, amend=False)).abs().max() > 1e-3


def test_the_scale_is_that_of_the_current_weight() -> None:
    model = network()
    optimizer = ScaleAmendedSGD(model, lr=1.0, inputs=X)
    weight = model[8].weight
    moved = []
    for factor in (1.0, 3.0):
        with torch.no_grad():
            weight.mul_(factor)
        before = weight.detach().clone()
        weight.grad = torch.full_like(weight, 1e-9)
        optimizer.step()
        moved.append((weight.detach() - before).abs().mean())
    assert float(moved[1] / moved[0]) == pytest.approx(9, rel=1e-5)


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


def test_a_saved_run_goes_on_without_seeing_a_forward_pass_first() -> None:
    model = network()
    optimizer = ScaleAmendedSGD(model, lr=0.02, momentum=0.9, inputs=X)
    trajectory(model, optimizer)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed = network()
    resumed.load_state_dict(saved["model"])
    going_on = ScaleAmendedSGD(resumed)
    going_on.load_state_dict(saved["optimizer"])
    assert going_on.factors == optimizer.factors
    for p, q in zip(model.parameters(), resumed.parameters(), strict=True):
        p.grad, q.grad = torch.ones_like(p), torch.ones_like(q)
    optimizer.step()
    going_on.step()
    assert torch.equal(trajectory(model, optimizer), trajectory(resumed, going_on))


def test_a_copy_of_a_traced_optimizer_has_its_factors() -> None:
    optimizer = ScaleAmendedSGD(network(), inputs=X)
    assert copy.deepcopy(optimizer).factors == optimizer.factors


def test_given_factors_scale_the_steps() -> None:
    model = network()
    weight = model[8].weight
    given = {"0": 2.0, "4": 2.0, "8": 0.25, "11": 1.0}
    optimizer = ScaleAmendedSGD(model, lr=1.0, inputs=X, factors=given)
    gradient = normal(5, 16)
    expected = weight.detach() - gradient * float(weight.detach().square().sum()) / 5 / 0.25
    weight.grad = gradient
    optimizer.step()
    torch.testing.assert_close(weight.detach(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_norms_of_half_precision_are_taken_in_single(dtype: torch.dtype) -> None:
    tensor = torch.full((100_000,), 100.0, dtype=dtype)
    (found,) = norms([tensor])
    assert float(found) == pytest.approx(100 * 100_000**0.5, rel=1e-5)
