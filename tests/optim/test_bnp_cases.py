"""The cases that break other preconditioners: each must give what one plain batch through the matrix form gives."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from bnp_reference import ReferenceBNP
from test_bnp import LR, assert_same, batches_of, loss, spread, train
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from zoo import CLASSES, integers, normal, seeded

import wellcond as wc


def dense() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, CLASSES))


def state(bnp: wc.BNP) -> list[Tensor]:
    return [t.clone() for layer in bnp.layers.values() for t in (layer.mean, layer.variance)]


def assert_untouched(bnp: wc.BNP, before: list[Tensor]) -> None:
    assert all(torch.equal(a, b) for a, b in zip(state(bnp), before, strict=True))


def assert_as_if_plain(
    backward: Callable[[nn.Module, Tensor, Tensor], None],
    build: Callable[[], nn.Module] = dense,
    shape: tuple[int, ...] = (6,),
    size: int = 5,
    tolerance: float = 1e-12,
) -> None:
    """However the gradients come about, the network trains as it does with one forward and backward pass a step."""
    model = seeded(build)
    plain = copy.deepcopy(model)
    batches = batches_of(shape, size)
    train(plain, batches)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    wc.BNP(model, optimizer)
    for x, y in batches:
        optimizer.zero_grad()
        backward(model, x, y)
        optimizer.step()
    assert_same(model, plain, tolerance)


# what the network is made of


def test_an_inplace_activation_changes_nothing() -> None:
    plain = seeded(dense)
    inplace = copy.deepcopy(plain)
    inplace[1], inplace[3] = nn.ReLU(inplace=True), nn.ReLU(inplace=True)
    batches = batches_of((6,), 5)
    train(plain, batches)
    train(inplace, batches)
    assert_same(inplace, plain, tolerance=0.0)


class Branches(nn.Module):
    """A layer that some batches do not use."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.sometimes, self.head = nn.Linear(6, 5), nn.Linear(5, 5), nn.Linear(5, CLASSES)
        self.use = True

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.always(x))
        return self.head(torch.tanh(self.sometimes(h)) if self.use else h)


@pytest.mark.parametrize("to_none", [True, False])
def test_a_layer_unused_in_a_step_keeps_its_weights_and_statistics(to_none: bool) -> None:
    model = seeded(Branches)
    reference = ReferenceBNP(model, LR)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    bnp = wc.BNP(model, optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a zeroed gradient that no pass led to is reported
        for step, (x, y) in enumerate(batches_of((6,), 5)):
            model.use = reference.model.use = step % 2 == 0
            optimizer.zero_grad(set_to_none=to_none)
            loss(model, x, y).backward()
            before = bnp.layers["sometimes"].mean.clone()
            optimizer.step()
            assert torch.equal(bnp.layers["sometimes"].mean, before) == (not model.use)
            reference.step(loss, x, y)
    assert_same(model, reference.model)


def test_a_frozen_weight_leaves_its_bias_scaled_by_q() -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(40, 5), nn.ReLU(), nn.Linear(5, CLASSES)))
    model[0].weight.requires_grad_(False)
    (x, y), *_ = batches_of((40,), 8)
    twin = copy.deepcopy(model)
    loss(twin, x, y).backward()
    bnp = train(model, [(x, y)])
    q2 = 40 / 8
    expected = twin[0].bias - LR * twin[0].bias.grad / q2
    torch.testing.assert_close(model[0].bias, expected, rtol=1e-12, atol=1e-14)
    assert torch.equal(model[0].weight, twin[0].weight)
    assert bnp.layers["0"].q2 == q2


def test_a_frozen_bias_is_as_if_there_were_none() -> None:
    model = seeded(dense)
    model[2].bias.requires_grad_(False)
    reference = ReferenceBNP(model, LR)
    batches = batches_of((6,), 5)
    train(model, batches)
    for x, y in batches:
        reference.step(loss, x, y)
    assert_same(model, reference.model)


def test_a_layer_without_bias_is_scaled_and_not_centred() -> None:
    """By hand: G_w/(q² σ̃²), whatever μ is."""
    layer = nn.Linear(2, 1, bias=False).double()
    x = torch.tensor([[3.0, 10.0], [5.0, 14.0], [7.0, 12.0]], dtype=torch.float64)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    wc.BNP(layer, optimizer, rho=0.0, eps1=0.0, eps2=0.0)
    layer(x).sum().backward()
    optimizer.step()
    torch.testing.assert_close(layer.weight.grad, x.sum(0, keepdim=True) / (8 / 3), rtol=1e-14, atol=0)


def test_a_layer_that_thaws_is_taken_up() -> None:
    model = seeded(dense)
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    bnp = wc.BNP(model, optimizer)
    (x, y), (x2, y2), *_ = batches_of((6,), 5)
    loss(model, x, y).backward()
    optimizer.step()
    assert torch.equal(bnp.layers["0"].mean, torch.zeros(6).double())
    for parameter in model[0].parameters():
        parameter.requires_grad_(True)
    twin = copy.deepcopy(model)
    optimizer.zero_grad()
    loss(model, x2, y2).backward()
    optimizer.step()
    reference = ReferenceBNP(twin, LR)
    reference.step(loss, x2, y2)
    torch.testing.assert_close(model[0].weight, reference.model[0].weight, rtol=1e-12, atol=1e-14)


class Twice(nn.Module):
    """One layer called twice in a pass."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.head = nn.Linear(6, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.fc(torch.tanh(self.fc(x)))))


def test_a_module_called_twice_has_the_rows_of_both_calls() -> None:
    model = seeded(Twice)
    reference = ReferenceBNP(model, LR)
    batches = batches_of((6,), 4)
    train(model, batches)
    for x, y in batches:
        reference.step(loss, x, y)
    assert_same(model, reference.model)


class Tied(nn.Module):
    """Two layers share a weight and have biases of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, CLASSES)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.b(torch.tanh(self.a(x)))))


def test_tied_weights_are_preconditioned_once_with_the_rows_of_both() -> None:
    """[b₁; b₂; W] ← (1/q²) P Pᵀ [·], where both biases carry μ."""
    model = seeded(Tied)
    twin = copy.deepcopy(model)
    x, y = spread(5, 6, seed=0), integers(CLASSES, 5)
    bnp = train(model, [(x, y)], rho=0.0)
    assert list(bnp.layers) == ["a", "head"]

    rows = torch.cat([x, torch.tanh(twin.a(x))]).detach()
    loss(twin, x, y).backward()
    mean, variance = rows.mean(0), rows.var(0, correction=0)
    damped = variance + 1e-2 * variance.max() + 1e-4
    U, D = torch.eye(8).double(), torch.diag(torch.cat([torch.ones(2).double(), damped.rsqrt()]))
    U[0, 2:] = U[1, 2:] = -mean
    P = U @ D
    new = P @ P.T @ torch.cat([twin.a.bias.grad[None], twin.b.bias.grad[None], twin.a.weight.grad.T])
    torch.testing.assert_close(model.a.bias, twin.a.bias - LR * new[0], rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(model.b.bias, twin.b.bias - LR * new[1], rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(model.a.weight, twin.a.weight - LR * new[2:].T, rtol=1e-12, atol=1e-14)


def test_an_example_without_a_batch_dimension_is_a_batch_of_one() -> None:
    batched = seeded(lambda: nn.Sequential(nn.Conv2d(2, 3, 2), nn.Tanh(), nn.Flatten(-3), nn.Linear(27, CLASSES)))
    single = copy.deepcopy(batched)
    x, y = normal(1, 2, 4, 4), integers(CLASSES, 1)
    train(batched, [(x, y)])
    train(single, [(x[0], y[0])])
    assert_same(single, batched)


def test_channels_last_weights_and_inputs_give_the_same() -> None:
    plain = seeded(lambda: nn.Sequential(nn.Conv2d(4, 6, 3, groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(54, CLASSES)))
    model = copy.deepcopy(plain).to(memory_format=torch.channels_last)
    batches = batches_of((4, 5, 5), 3)
    train(plain, batches)
    train(model, [(x.to(memory_format=torch.channels_last), y) for x, y in batches])
    assert_same(model, plain)


def test_any_memory_layout_of_a_weight_gives_the_same() -> None:
    for make in (lambda: nn.Conv2d(2, 4, (3, 2)), lambda: nn.ConvTranspose2d(2, 4, (3, 2), groups=2)):
        plain = seeded(lambda make=make: nn.Sequential(make(), nn.Flatten(), nn.LazyLinear(CLASSES)))
        (x, y), *_ = batches_of((2, 5, 5), 3)
        plain(x)
        model = copy.deepcopy(plain)
        with torch.no_grad():
            turned = model[0].weight.transpose(2, 3).contiguous().transpose(2, 3)
        model[0].weight = nn.Parameter(turned)
        train(plain, [(x, y)])
        train(model, [(x, y)])
        assert not model[0].weight.is_contiguous()
        assert_same(model, plain)


def test_rows_of_a_nested_tensor_are_examples() -> None:
    layer = nn.Linear(4, 3).double()
    optimizer = torch.optim.SGD(layer.parameters(), lr=LR)
    bnp = wc.BNP(layer, optimizer, rho=0.0)
    parts = [normal(2, 4, seed=1), normal(5, 4, seed=2)]
    layer(torch.nested.nested_tensor(parts, layout=torch.jagged)).values().square().sum().backward()
    optimizer.step()
    torch.testing.assert_close(bnp.layers[""].mean, torch.cat(parts).mean(0), rtol=1e-13, atol=1e-14)


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

    assert_as_if_plain(backward, build, shape, size=16)


def test_two_losses_through_one_pass_are_their_sum() -> None:
    model = seeded(dense)
    joint = copy.deepcopy(model)
    batches = batches_of((6,), 5)
    for net, separately in ((model, True), (joint, False)):
        optimizer = torch.optim.SGD(net.parameters(), lr=LR)
        wc.BNP(net, optimizer)
        for x, y in batches:
            optimizer.zero_grad()
            output = net(x)
            first, second = nn.functional.cross_entropy(output, y), output.square().mean()
            if separately:
                first.backward(retain_graph=True)
                second.backward()
            else:
                (first + second).backward()
            optimizer.step()
    assert_same(model, joint)


def test_a_gradient_penalty_counts_its_pass_once() -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, CLASSES)))
    x, y = spread(5, 6, seed=0), integers(CLASSES, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    bnp = wc.BNP(model, optimizer)
    value = loss(model, x, y)
    slopes = torch.autograd.grad(value, list(model.parameters()), create_graph=True)
    (value + sum(slope.square().sum() for slope in slopes)).backward()
    optimizer.step()
    assert bnp.layers["0"].q2 == 6 / 5


@pytest.mark.parametrize("to_none", [True, False])
def test_a_step_that_the_scaler_skips_leaves_no_trace_and_scaling_none_either(to_none: bool) -> None:
    scaled = seeded(dense)
    plain = copy.deepcopy(scaled)
    good = batches_of((6,), 5)
    train(plain, good)
    optimizer = torch.optim.SGD(scaled.parameters(), lr=LR)
    bnp = wc.BNP(scaled, optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)

    def step(x: Tensor, y: Tensor, spoil: float) -> None:
        optimizer.zero_grad(set_to_none=to_none)
        scaler.scale(loss(scaled, x, y) * spoil).backward()
        scaler.step(optimizer)
        scaler.update()

    for x, y in good:
        before, weights = state(bnp), copy.deepcopy(scaled.state_dict())
        step(3 * x + 1, y, float("inf"))
        assert_untouched(bnp, before)
        assert all(torch.equal(v, weights[k]) for k, v in scaled.state_dict().items())
        step(x, y, 1.0)
    assert_same(scaled, plain)


def test_a_fused_optimizer_that_skips_its_step_leaves_no_trace() -> None:
    model = seeded(dense).float()
    optimizer = torch.optim.Adam(model.parameters(), lr=LR, fused=True)
    bnp = wc.BNP(model, optimizer)
    before = state(bnp)
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(1.0), torch.tensor(1.0)
    loss(model, normal(5, 6).float(), integers(CLASSES, 5)).backward()
    optimizer.step()
    assert_untouched(bnp, before)


def test_gradient_checkpointing_counts_every_pass_once() -> None:
    class Checkpointed(nn.Module):
        def __init__(self, reentrant: bool | None) -> None:
            super().__init__()
            self.body, self.reentrant = dense(), reentrant

        def forward(self, x: Tensor) -> Tensor:
            if self.reentrant is None:
                return self.body(x)
            first = checkpoint(self.body[:3], x.requires_grad_(), use_reentrant=self.reentrant)
            return checkpoint(self.body[3:], first, use_reentrant=self.reentrant)

    plain = seeded(lambda: Checkpointed(None))
    batches = batches_of((6,), 4)
    models = [copy.deepcopy(plain), copy.deepcopy(plain)]
    train(plain, batches)
    for model, reentrant in zip(models, [True, False], strict=True):
        model.reentrant = reentrant
        train(model, [(x.clone(), y) for x, y in batches])
        assert_same(model, plain)


def test_a_compiled_model_is_trained_as_the_plain_one() -> None:
    for compile_first in (True, False):
        plain = seeded(dense)
        model = copy.deepcopy(plain)
        batches = batches_of((6,), 5)
        train(plain, batches)
        compiled = torch.compile(model, backend="aot_eager")
        if compile_first:
            compiled(batches[0][0])
        train(compiled, batches)
        assert_same(model, plain)
        torch.compiler.reset()


def test_bfloat16_autocast_takes_statistics_in_float32() -> None:
    model = seeded(dense).float()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    bnp = wc.BNP(model, optimizer, rho=0.0)
    x, y = spread(64, 6, seed=0).float(), integers(CLASSES, 64)
    seen: list[Tensor] = []
    model[2].register_forward_pre_hook(lambda _m, args: seen.append(args[0].detach()))
    with torch.autocast("cpu", torch.bfloat16):
        value = loss(model, x, y)
    value.backward()
    optimizer.step()
    assert seen[0].dtype == torch.bfloat16
    exact = seen[0].double()
    assert bnp.layers["2"].mean.dtype == torch.float32
    torch.testing.assert_close(bnp.layers["2"].mean.double(), exact.mean(0), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(bnp.layers["2"].variance.double(), exact.var(0, correction=0), rtol=1e-5, atol=1e-7)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_a_bfloat16_model_gets_bfloat16_gradients_of_the_float32_result() -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, CLASSES))).bfloat16()
    x, y = spread(16, 6, seed=0).bfloat16(), integers(CLASSES, 16)
    raw = copy.deepcopy(model)
    loss(raw, x, y).backward()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    wc.BNP(model, optimizer, rho=0.0)
    loss(model, x, y).backward()
    optimizer.step()
    rows, weight, bias = x.double(), raw[0].weight.grad.double(), raw[0].bias.grad.double()
    variance = rows.var(0, correction=0)
    new = (weight - bias[:, None] * rows.mean(0)) / (variance + 1e-2 * variance.max() + 1e-4)
    assert model[0].weight.grad.dtype == torch.bfloat16
    torch.testing.assert_close(model[0].weight.grad.double(), new, rtol=2**-8, atol=1e-5)
    torch.testing.assert_close(model[0].bias.grad.double(), bias - new @ rows.mean(0), rtol=2**-7, atol=1e-4)


def test_closures_are_preconditioned_after_they_have_run() -> None:
    plain, model = seeded(dense), seeded(dense)
    batches = batches_of((6,), 5)
    train(plain, batches)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    wc.BNP(model, optimizer)
    for x, y in batches:

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            value = loss(model, x, y)
            value.backward()
            return value

        assert optimizer.step(closure).isfinite()
    assert_same(model, plain)


class Own(torch.optim.Optimizer):
    """A user's own optimizer: sign descent."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.01})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p -= group["lr"] * p.grad.sign()


def test_a_users_own_optimizer_sees_the_preconditioned_gradient() -> None:
    model = seeded(dense)
    twin = copy.deepcopy(model)
    (x, y), *_ = batches_of((6,), 5)
    reference = ReferenceBNP(twin, lr=0.0)
    reference.step(loss, x, y)
    optimizer = Own(model.parameters())
    wc.BNP(model, optimizer)
    loss(model, x, y).backward()
    optimizer.step()
    for p, start, known in zip(model.parameters(), twin.parameters(), reference.model.parameters(), strict=True):
        torch.testing.assert_close(p, start - 0.01 * known.grad.sign(), rtol=1e-12, atol=1e-14)


def test_gradients_that_autograd_grad_gave_are_preconditioned_too() -> None:
    def by_hand(model: nn.Module, x: Tensor, y: Tensor) -> None:
        parameters = list(model.parameters())
        for p, gradient in zip(parameters, torch.autograd.grad(loss(model, x, y), parameters), strict=True):
            p.grad = gradient

    assert_as_if_plain(by_hand)


def test_many_micro_batches_take_the_memory_of_one() -> None:
    model = dense()
    bnp = wc.BNP(model, torch.optim.SGD(model.parameters(), lr=LR))
    for _ in range(50):
        model(torch.randn(2, 6)).sum().backward()
    held = [
        value
        for value in vars(bnp.layers["0"].collected).values()
        if isinstance(value, tuple) and hasattr(value, "rows")
    ]
    assert [statistics.rows for statistics in held] == [100]


# what leaves no trace


def watchers(model: nn.Module) -> Iterator[Any]:
    for module in model.modules():
        yield from module._forward_hooks.values()


def evaluate(model: nn.Module, x: Tensor, y: Tensor) -> None:
    model.eval()
    loss(model, x, y).backward()
    model.train()
    model.zero_grad()


def without_gradient(model: nn.Module, x: Tensor, y: Tensor) -> None:
    with torch.no_grad():
        loss(model, x, y)
    with torch.inference_mode():
        loss(model, x, y)


def never_differentiated(model: nn.Module, x: Tensor, y: Tensor) -> None:
    loss(model, x, y)


def for_the_input(model: nn.Module, x: Tensor, y: Tensor) -> None:
    x = x.clone().requires_grad_()
    torch.autograd.grad(loss(model, x, y), x)


def with_torch_func(model: nn.Module, x: Tensor, y: Tensor) -> None:
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def value(parameters: dict[str, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(torch.func.functional_call(model, parameters, (x,)), y)

    torch.func.grad(value)(parameters)
    torch.func.vmap(lambda row: model(row[None]).sum())(x)


@pytest.mark.parametrize("look", [evaluate, without_gradient, never_differentiated, for_the_input, with_torch_func])
def test_passes_that_train_nothing_leave_no_trace(look: Any) -> None:
    def backward(model: nn.Module, x: Tensor, y: Tensor) -> None:
        look(model, 5 * x + 3, y)
        loss(model, x, y).backward()
        if look is not evaluate:  # which clears the gradients behind itself
            look(model, 5 * x + 3, y)

    assert_as_if_plain(backward, tolerance=0.0)


def test_a_measurement_in_between_leaves_no_trace() -> None:
    model = seeded(dense)
    bnp = train(model, batches_of((6,), 5))
    before = state(bnp)
    x, y = normal(8, 6), integers(CLASSES, 8)
    problem = wc.Problem(model, nn.CrossEntropyLoss(), [(x, y)])
    wc.conditioning(problem)
    wc.Hessian(problem) @ torch.ones(sum(p.numel() for p in model.parameters())).double()
    model.zero_grad()
    bnp.precondition()
    assert_untouched(bnp, before)


def test_copies_of_the_model_are_not_watched() -> None:
    model = seeded(dense)
    bnp = train(model, batches_of((6,), 5))
    before = state(bnp)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        loss(twin, normal(5, 6), integers(CLASSES, 5)).backward()
    model.zero_grad()
    bnp.precondition()
    assert_untouched(bnp, before)


def test_removed_it_is_as_if_it_had_never_been() -> None:
    model = seeded(dense)
    plain = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    wc.BNP(model, optimizer).remove()
    assert not list(watchers(model))
    theirs = torch.optim.SGD(plain.parameters(), lr=LR)
    for x, y in batches_of((6,), 5):
        for net, opt in ((model, optimizer), (plain, theirs)):
            opt.zero_grad()
            loss(net, x, y).backward()
            opt.step()
    assert_same(model, plain, tolerance=0.0)


# resume


def test_resume_is_exact_and_needs_no_code_from_the_file() -> None:
    batches = batches_of((6,), 5, steps=6)
    straight = seeded(dense)
    train(straight, batches)

    model = seeded(dense)
    bnp = train(model, batches[:3])
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "bnp": bnp.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True, map_location={"cpu": "cpu", "cuda:0": "cpu"})

    resumed = dense().double()
    resumed.load_state_dict(saved["model"])
    optimizer = torch.optim.SGD(resumed.parameters(), lr=LR)
    wc.BNP(resumed, optimizer).load_state_dict(saved["bnp"])
    for x, y in batches[3:]:
        optimizer.zero_grad()
        loss(resumed, x, y).backward()
        optimizer.step()
    assert_same(resumed, straight, tolerance=0.0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a second device")
def test_a_run_saved_on_one_device_goes_on_on_another() -> None:
    batches = batches_of((6,), 5, steps=6)
    straight = seeded(dense)
    train(straight, batches)

    model = seeded(dense).cuda()
    bnp = train(model, [(x.cuda(), y.cuda()) for x, y in batches[:3]])
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "bnp": bnp.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True, map_location={"cuda:0": "cpu"})
    assert {moment.device.type for layer in saved["bnp"]["layers"].values() for moment in layer.values()} == {"cpu"}

    resumed = dense().double()
    resumed.load_state_dict(saved["model"])
    optimizer = torch.optim.SGD(resumed.parameters(), lr=LR)
    wc.BNP(resumed, optimizer).load_state_dict(saved["bnp"])
    for x, y in batches[3:]:
        optimizer.zero_grad()
        loss(resumed, x, y).backward()
        optimizer.step()
    assert_same(resumed, straight)


def test_a_saved_state_does_not_change_as_training_goes_on() -> None:
    model = seeded(dense)
    bnp = train(model, batches_of((6,), 5))
    saved = bnp.state_dict()
    before = saved["layers"]["0"]["mean"].clone()
    loss(model, normal(5, 6), integers(CLASSES, 5)).backward()
    bnp.precondition()
    assert torch.equal(saved["layers"]["0"]["mean"], before)


def test_statistics_follow_the_model_to_another_dtype() -> None:
    model = seeded(dense).float()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    wc.BNP(model, optimizer)
    model.double()
    reference = ReferenceBNP(model, LR)
    for x, y in batches_of((6,), 5):
        optimizer.zero_grad()
        loss(model, x, y).backward()
        optimizer.step()
        reference.step(loss, x, y)
    assert_same(model, reference.model)


def test_a_layer_that_moves_to_a_smaller_dtype_goes_on() -> None:
    model = seeded(dense)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    bnp = wc.BNP(model, optimizer)
    (x, y), (x2, y2), *_ = batches_of((6,), 5)
    loss(model, x, y).backward()
    optimizer.step()
    before = bnp.layers["0"].mean.clone()
    model.float()
    optimizer.zero_grad()
    loss(model, x2.float(), y2).backward()
    optimizer.step()
    expected = 0.99 * before + 0.01 * x2.mean(0)
    torch.testing.assert_close(bnp.layers["0"].mean.double(), expected, rtol=1e-5, atol=1e-6)
    assert all(p.isfinite().all() for p in model.parameters())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a second device")
def test_statistics_follow_the_model_to_another_device() -> None:
    model = seeded(dense)
    plain = copy.deepcopy(model)
    batches = batches_of((6,), 5)
    train(plain, batches)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    wc.BNP(model, optimizer)
    model.cuda()
    for x, y in batches:
        optimizer.zero_grad()
        loss(model, x.cuda(), y.cuda()).backward()
        optimizer.step()
    assert_same(model.cpu(), plain)


# what is refused, and what is said


def test_include_and_exclude_take_layers_and_the_modules_that_hold_them() -> None:
    model = nn.Sequential(dense(), dense())
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    everything = {"0.0", "0.2", "0.4", "1.0", "1.2", "1.4"}
    for options, expected in (
        ({}, everything),
        ({"layers": ["1"]}, {"1.0", "1.2", "1.4"}),
        ({"exclude": ["1", "0.4"]}, {"0.0", "0.2"}),
        ({"layers": ["0"], "exclude": ["0.2"]}, {"0.0", "0.4"}),
    ):
        bnp = wc.BNP(model, optimizer, **options)
        assert set(bnp.layers) == expected
        bnp.remove()
    bnp = wc.BNP(model, optimizer, exclude="1")
    assert set(bnp.layers) == {"0.0", "0.2", "0.4"}
    bnp.remove()
    with pytest.raises(wc.WellcondError, match=r"'0\.3x'"):
        wc.BNP(model, optimizer, exclude=["0.3x"])


def test_only_layers_of_this_optimizer_are_touched_and_added_groups_count_at_once() -> None:
    model = seeded(dense)
    optimizer = torch.optim.SGD(model[4].parameters(), lr=LR)
    wc.BNP(model, optimizer)
    (x, y), (x2, y2), *_ = batches_of((6,), 5)
    loss(model, x, y).backward()
    raw = model[0].weight.grad.clone()
    optimizer.step()
    assert torch.equal(model[0].weight.grad, raw)
    model.zero_grad()
    loss(model, x2, y2).backward()
    raw = model[0].weight.grad.clone()
    optimizer.add_param_group({"params": model[0].parameters()})
    optimizer.step()
    assert not torch.equal(model[0].weight.grad, raw)


def test_a_bias_of_another_optimizer_is_as_if_it_were_frozen() -> None:
    """So that it does not matter which of the two optimizers steps first."""
    model = seeded(dense)
    frozen = copy.deepcopy(model)
    for layer in (frozen[0], frozen[2], frozen[4]):
        layer.bias.requires_grad_(False)
    batches = batches_of((6,), 5)
    train(frozen, batches)
    weights = torch.optim.SGD([p for p in model.parameters() if p.dim() == 2], lr=LR)
    wc.BNP(model, weights)
    for x, y in batches:
        model.zero_grad()
        loss(model, x, y).backward()
        raw = model[0].bias.grad.clone()
        weights.step()
        assert torch.equal(model[0].bias.grad, raw)
    assert_same(model, frozen)


def test_a_second_bnp_on_the_same_layers_is_refused_until_the_first_is_removed() -> None:
    model = dense()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    first = wc.BNP(model, optimizer, layers=["0"])
    with pytest.raises(wc.WellcondError, match=r"'0' is preconditioned already.*remove\(\)"):
        wc.BNP(model, optimizer)
    wc.BNP(model, optimizer, exclude=["0"])
    first.remove()
    wc.BNP(model, optimizer, layers=["0"])


def test_a_compiled_part_that_has_run_already_is_seen() -> None:
    plain = seeded(dense)
    model = copy.deepcopy(plain)
    batches = batches_of((6,), 5)
    parts = nn.Sequential(torch.compile(model[:2], backend="aot_eager"), model[2:])
    parts(batches[0][0])
    train(parts, batches)
    train(plain, batches)
    torch.compiler.reset()
    assert_same(model, plain)


def test_copies_and_pickles_of_bnp_itself_are_refused_with_the_way_to_do_it() -> None:
    model = dense()
    bnp = wc.BNP(model, torch.optim.SGD(model.parameters(), lr=LR))
    for make in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match=r"bnp\.state_dict\(\)"):
            make(bnp)


def test_a_gradient_without_a_training_pass_is_reported_once() -> None:
    model = seeded(dense).eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    wc.BNP(model, optimizer)
    loss(model, normal(5, 6), integers(CLASSES, 5)).backward()
    with pytest.warns(UserWarning, match=r"model\.train\(\)"):
        optimizer.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda m, o: wc.BNP(m, o, rho=1.0), "rho"),
        (lambda m, o: wc.BNP(m, o, rho=float("nan")), "rho"),
        (lambda m, o: wc.BNP(m, o, eps1=-1.0), "eps1"),
        (lambda m, o: wc.BNP(m, o, means="pixel"), "means"),
        (lambda m, o: wc.BNP(nn.ReLU(), o), "nothing to precondition"),
        (lambda m, o: wc.BNP(nn.utils.parametrizations.weight_norm(nn.Linear(2, 3)), o), "ParametrizationList"),
        (lambda m, o: wc.BNP(m, o).load_state_dict({}), "no state of a BNP"),
        (lambda m, o: wc.BNP(nn.Linear(2, 3, dtype=torch.complex64), o), "complex64"),
        (lambda m, o: wc.BNP(dense(), o), "nothing to precondition"),
        (lambda m, o: wc.BNP(nn.Sequential(nn.LazyLinear(3)), o), "one batch"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(make: Any, message: str) -> None:
    model = dense()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    with pytest.raises(ValueError, match=message):
        make(model, optimizer)


def test_something_that_is_no_optimizer_is_refused() -> None:
    model = dense()
    with pytest.raises(TypeError, match=r"torch\.optim\.Optimizer"):
        wc.BNP(model, "sgd")
    with pytest.raises(TypeError, match=r"torch\.nn\.Module"):
        wc.BNP("model", torch.optim.SGD(model.parameters(), lr=LR))
    assert not list(watchers(model))


def test_a_state_of_another_network_is_refused_and_loads_nothing() -> None:
    small = train(seeded(dense), batches_of((6,), 5)).state_dict()
    other = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, CLASSES))
    bnp = wc.BNP(other, torch.optim.SGD(other.parameters(), lr=LR))
    with pytest.raises(wc.WellcondError, match="'4'"):
        bnp.load_state_dict(small)
    conv = nn.Conv2d(2, 3, 3)
    by_channel = wc.BNP(conv, torch.optim.SGD(conv.parameters(), lr=LR)).state_dict()
    by_kernel = wc.BNP(conv, torch.optim.SGD(conv.parameters(), lr=LR), means="kernel")
    before = state(by_kernel)
    with pytest.raises(wc.WellcondError, match="means='channel'"):
        by_kernel.load_state_dict(by_channel)
    assert_untouched(by_kernel, before)


def test_the_repr_says_which_layers_and_settings() -> None:
    model = nn.Sequential(nn.Conv2d(4, 8, 3, groups=2), nn.Flatten(), nn.Linear(8, 3), nn.LSTM(3, 2))
    text = repr(wc.BNP(model, torch.optim.SGD(model.parameters(), lr=LR)))
    assert "SGD" in text
    assert "rho=0.99" in text
    assert "0: Conv2d, 18 → 4 in each of 2 groups" in text
    assert "2: Linear, 8 → 3" in text
    assert "not preconditioned: 3 (LSTM)" in text
