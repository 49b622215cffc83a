"""BNP in every kind of training loop: each must give what one plain forward and backward pass per step gives."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from bnp_reference import (
    LR,
    assert_same,
    backward_of_loss,
    batches_of,
    dense,
    loss,
    preconditioned,
    steps,
    train,
)
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from zoo import CLASSES, integers, normal, seeded

import wellcond as wc


def assert_as_if_plain(
    backward: Callable[[nn.Module, Tensor, Tensor], None] = backward_of_loss,
    change: Callable[[nn.Module], nn.Module] = lambda model: model,
    build: Callable[[], nn.Module] = dense,
    shape: tuple[int, ...] = (6,),
    size: int = 5,
    tolerance: float = 1e-12,
) -> nn.Module:
    """A copy that is changed in its form only, or gets its gradients in another way, trains like the plain network."""
    plain = seeded(build)
    model = change(copy.deepcopy(plain))
    batches = batches_of(shape, size)
    train(plain, batches)
    optimizer, _ = preconditioned(model)
    steps(model, optimizer, batches, backward)
    assert_same(model, plain, tolerance)
    return model


# what the network is made of


@pytest.mark.slow
def test_an_inplace_activation_changes_nothing() -> None:
    def inplace(model: nn.Module) -> nn.Module:
        model[1], model[3] = nn.ReLU(inplace=True), nn.ReLU(inplace=True)
        return model

    assert_as_if_plain(change=inplace, tolerance=0.0)


def test_an_example_without_a_batch_dimension_is_a_batch_of_one() -> None:
    def single(model: nn.Module, x: Tensor, y: Tensor) -> None:
        loss(model, x[0], y[0]).backward()

    build = lambda: nn.Sequential(nn.Conv2d(2, 3, 2), nn.Tanh(), nn.Flatten(-3), nn.Linear(27, CLASSES))  # noqa: E731
    assert_as_if_plain(single, build=build, shape=(2, 4, 4), size=1)


def test_channels_last_weights_and_inputs_give_the_same() -> None:
    def channels_last(model: nn.Module, x: Tensor, y: Tensor) -> None:
        loss(model, x.to(memory_format=torch.channels_last), y).backward()

    build = lambda: nn.Sequential(nn.Conv2d(4, 6, 3, groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(54, CLASSES))  # noqa: E731
    change = lambda model: model.to(memory_format=torch.channels_last)  # noqa: E731
    assert_as_if_plain(channels_last, change, build, (4, 5, 5), size=3)


@pytest.mark.parametrize(
    ("make", "features"),
    [(lambda: nn.Conv2d(2, 4, (3, 2)), 48), (lambda: nn.ConvTranspose2d(2, 4, (3, 2), groups=2), 168)],
)
def test_any_memory_layout_of_a_weight_gives_the_same(make: Callable[[], nn.Module], features: int) -> None:
    def turned(model: nn.Module) -> nn.Module:
        model[0].weight = nn.Parameter(model[0].weight.detach().transpose(2, 3).contiguous().transpose(2, 3))
        return model

    build = lambda: nn.Sequential(make(), nn.Flatten(), nn.Linear(features, CLASSES))  # noqa: E731
    assert not assert_as_if_plain(change=turned, build=build, shape=(2, 5, 5), size=3)[0].weight.is_contiguous()


def test_rows_of_a_nested_tensor_are_examples() -> None:
    layer = nn.Linear(4, 3).double()
    optimizer, bnp = preconditioned(layer, rho=0.0)
    parts = [normal(2, 4, seed=1), normal(5, 4, seed=2)]
    layer(torch.nested.nested_tensor(parts, layout=torch.jagged)).values().square().sum().backward()
    optimizer.step()
    torch.testing.assert_close(bnp.layers[""].mean, torch.cat(parts).mean(0), rtol=1e-13, atol=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after_a_call", "a_part"])
def test_a_compiled_model_is_trained_as_the_plain_one(when: str) -> None:
    def compiled(model: nn.Module) -> nn.Module:
        if when == "a_part":
            model = nn.Sequential(torch.compile(model[:2], backend="aot_eager"), model[2:])
        else:
            model = torch.compile(model, backend="aot_eager")
        if when != "before":
            model(batches_of()[0][0])
        return model

    assert_as_if_plain(change=compiled)


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_counts_every_pass_once(reentrant: bool) -> None:
    def checkpointed(model: nn.Module, x: Tensor, y: Tensor) -> None:
        first = checkpoint(model[:3], x.clone().requires_grad_(), use_reentrant=reentrant)
        F.cross_entropy(checkpoint(model[3:], first, use_reentrant=reentrant), y).backward()

    assert_as_if_plain(checkpointed)


# how the gradient comes about


def convolutional() -> nn.Sequential:
    return nn.Sequential(nn.Conv1d(1, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(15, CLASSES))


@pytest.mark.parametrize(("build", "shape"), [(dense, (6,)), (convolutional, (1, 6))])
@pytest.mark.parametrize("sizes", [[8, 8], [1, 5, 3, 7]])
def test_micro_batches_add_up_to_the_batch(
    build: Callable[[], nn.Module], shape: tuple[int, ...], sizes: list[int]
) -> None:
    def backward(model: nn.Module, x: Tensor, y: Tensor) -> None:
        for part_x, part_y in zip(x.split(sizes), y.split(sizes), strict=True):
            (loss(model, part_x, part_y) * len(part_x) / 16).backward()

    assert_as_if_plain(backward, build=build, shape=shape, size=16)


def test_two_losses_through_one_pass_are_their_sum() -> None:
    def backward(model: nn.Module, x: Tensor, y: Tensor) -> None:
        value = loss(model, x, y)
        (0.3 * value).backward(retain_graph=True)
        (0.7 * value).backward()

    assert_as_if_plain(backward)


def test_gradients_that_autograd_grad_gave_are_preconditioned_too() -> None:
    def by_hand(model: nn.Module, x: Tensor, y: Tensor) -> None:
        parameters = list(model.parameters())
        for p, gradient in zip(parameters, torch.autograd.grad(loss(model, x, y), parameters), strict=True):
            p.grad = gradient

    assert_as_if_plain(by_hand)


def test_closures_are_preconditioned_after_they_have_run() -> None:
    plain, model = seeded(dense), seeded(dense)
    train(plain, batches_of())
    optimizer, _ = preconditioned(model)
    for x, y in batches_of():

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            value = loss(model, x, y)
            value.backward()
            return value

        assert optimizer.step(closure).isfinite()
    assert_same(model, plain)


def test_a_gradient_penalty_counts_its_pass_once() -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, CLASSES)))
    optimizer, bnp = preconditioned(model)
    value = loss(model, *batches_of()[0])
    slopes = torch.autograd.grad(value, list(model.parameters()), create_graph=True)
    (value + sum(slope.square().sum() for slope in slopes)).backward()
    optimizer.step()
    assert bnp.layers["0"].q2 == 6 / 5


@pytest.mark.slow
def test_many_micro_batches_take_the_memory_of_one() -> None:
    model = dense()
    _, bnp = preconditioned(model)
    for _ in range(50):
        model(torch.randn(2, 6)).sum().backward()
    held = [value for value in vars(bnp.layers["0"].collected).values() if hasattr(value, "rows")]
    assert [statistics.rows for statistics in held] == [100]


# lower precision and scaled losses


@pytest.mark.parametrize("to_none", [True, False])
def test_scaling_and_a_step_that_the_scaler_skips_leave_no_trace(to_none: bool) -> None:
    scaled = seeded(dense)
    plain = copy.deepcopy(scaled)
    train(plain, batches_of())
    optimizer, bnp = preconditioned(scaled)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)

    def step(x: Tensor, y: Tensor, spoil: float) -> None:
        optimizer.zero_grad(set_to_none=to_none)
        scaler.scale(loss(scaled, x, y) * spoil).backward()
        scaler.step(optimizer)
        scaler.update()

    for x, y in batches_of():
        before = copy.deepcopy((bnp.state_dict()["layers"], scaled.state_dict()))
        step(3 * x + 1, y, float("inf"))
        torch.testing.assert_close((bnp.state_dict()["layers"], scaled.state_dict()), before, rtol=0, atol=0)
        step(x, y, 1.0)
    assert_same(scaled, plain)


def test_a_fused_optimizer_that_skips_its_step_leaves_no_trace() -> None:
    model = seeded(dense).float()
    optimizer = torch.optim.Adam(model.parameters(), lr=LR, fused=True)
    bnp = wc.BNP(model, optimizer)
    before = bnp.state_dict()["layers"]
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(1.0), torch.tensor(1.0)
    loss(model, normal(5, 6).float(), integers(CLASSES, 5)).backward()
    optimizer.step()
    torch.testing.assert_close(bnp.state_dict()["layers"], before, rtol=0, atol=0)


def test_bfloat16_autocast_takes_statistics_in_float32() -> None:
    model = seeded(dense).float()
    optimizer, bnp = preconditioned(model, lr=0.0, rho=0.0)
    [(x, y)] = batches_of(size=64, steps=1)
    seen: list[Tensor] = []
    model[2].register_forward_pre_hook(lambda _m, args: seen.append(args[0].detach()))
    with torch.autocast("cpu", torch.bfloat16):
        value = loss(model, x.float(), y)
    value.backward()
    optimizer.step()
    layer, exact = bnp.layers["2"], seen[0].double()
    assert (seen[0].dtype, layer.mean.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(layer.mean.double(), exact.mean(0), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(layer.variance.double(), exact.var(0, correction=0), rtol=1e-5, atol=1e-7)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_a_bfloat16_model_gets_bfloat16_gradients_of_the_float32_result() -> None:
    model: Any = seeded(lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, CLASSES))).bfloat16()
    [(x, y)] = batches_of(size=16, steps=1)
    x, raw = x.bfloat16(), copy.deepcopy(model)
    loss(raw, x, y).backward()
    optimizer, _ = preconditioned(model, lr=0.0, rho=0.0)
    loss(model, x, y).backward()
    optimizer.step()
    rows, weight, bias = x.double(), raw[0].weight.grad.double(), raw[0].bias.grad.double()
    variance = rows.var(0, correction=0)
    new = (weight - bias[:, None] * rows.mean(0)) / (variance + 1e-2 * variance.max() + 1e-4)
    assert model[0].weight.grad.dtype == torch.bfloat16
    torch.testing.assert_close(model[0].weight.grad.double(), new, rtol=2**-8, atol=1e-5)
    torch.testing.assert_close(model[0].bias.grad.double(), bias - new @ rows.mean(0), rtol=2**-7, atol=1e-4)
