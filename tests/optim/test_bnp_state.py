"""What BNP keeps: nothing of passes that do not train, everything over a resume, and what it refuses to touch."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from bnp_reference import LR, Batch, ReferenceBNP, assert_same, batches_of, dense, loss, preconditioned, steps, train
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.optim import SGD
from zoo import CLASSES, integers, normal, seeded

import wellcond as wc

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a second device")


def state(bnp: wc.BNP) -> list[Tensor]:
    return [t.clone() for layer in bnp.layers.values() for t in (layer.mean, layer.variance)]


def assert_untouched(bnp: wc.BNP, before: list[Tensor]) -> None:
    assert all(torch.equal(a, b) for a, b in zip(state(bnp), before, strict=True))


def hooks(model: nn.Module) -> list[Any]:
    return [hook for module in model.modules() for hook in module._forward_hooks.values()]


# passes that leave no trace


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


def for_the_input(model: nn.Module, x: Tensor, y: Tensor) -> None:
    x = x.clone().requires_grad_()
    torch.autograd.grad(loss(model, x, y), x)


def with_torch_func(model: nn.Module, x: Tensor, y: Tensor) -> None:
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def value(parameters: dict[str, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(torch.func.functional_call(model, parameters, (x,)), y)

    torch.func.grad(value)(parameters)
    torch.func.vmap(lambda row: model(row[None]).sum())(x)


def of_copies(model: nn.Module, x: Tensor, y: Tensor) -> None:
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        loss(twin, x, y).backward()


def measure(model: nn.Module, x: Tensor, y: Tensor) -> None:
    problem = wc.Problem(model, nn.CrossEntropyLoss(), [(x, y)])
    wc.conditioning(problem)
    wc.Hessian(problem) @ torch.ones(problem.size, dtype=torch.float64)


@pytest.mark.parametrize("look", [evaluate, without_gradient, loss, for_the_input, with_torch_func, of_copies, measure])
def test_passes_that_train_nothing_leave_no_trace(look: Any) -> None:
    def backward(model: nn.Module, x: Tensor, y: Tensor) -> None:
        look(model, 5 * x + 3, y)
        loss(model, x, y).backward()
        if look is not evaluate:  # which clears the gradients afterwards
            look(model, 5 * x + 3, y)

    plain = seeded(dense)
    model = copy.deepcopy(plain)
    train(plain, batches_of())
    optimizer, bnp = preconditioned(model)
    steps(model, optimizer, batches_of(), backward)
    assert_same(model, plain, tolerance=0.0)
    before = state(bnp)
    look(model, normal(5, 6), integers(CLASSES, 5))
    model.zero_grad()
    bnp.precondition()
    assert_untouched(bnp, before)


def test_removed_it_is_as_if_it_had_never_been() -> None:
    model = seeded(dense)
    plain = copy.deepcopy(model)
    optimizer, bnp = preconditioned(model)
    bnp.remove()
    assert not hooks(model)
    steps(model, optimizer, batches_of())
    steps(plain, SGD(plain.parameters(), lr=LR), batches_of())
    assert_same(model, plain, tolerance=0.0)


# resume and moves


def on(device: str, batches: list[Batch]) -> list[Batch]:
    return [(x.to(device), y.to(device)) for x, y in batches]


@pytest.mark.parametrize(("device", "tolerance"), [("cpu", 0.0), pytest.param("cuda", 1e-12, marks=needs_cuda)])
def test_resume_is_exact_and_needs_no_code_from_the_file(device: str, tolerance: float) -> None:
    batches = batches_of(steps=6)
    straight = seeded(dense)
    train(straight, batches)

    model = seeded(dense).to(device)
    bnp = train(model, on(device, batches[:3]))
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "bnp": bnp.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True, map_location="cpu")

    resumed = dense().double()
    resumed.load_state_dict(saved["model"])
    optimizer, bnp = preconditioned(resumed)
    bnp.load_state_dict(saved["bnp"])
    steps(resumed, optimizer, batches[3:])
    assert_same(resumed, straight, tolerance)


def test_a_saved_state_does_not_change_as_training_goes_on() -> None:
    model = seeded(dense)
    bnp = train(model, batches_of())
    saved = bnp.state_dict()
    before = saved["layers"]["0"]["mean"].clone()
    loss(model, normal(5, 6), integers(CLASSES, 5)).backward()
    bnp.precondition()
    assert torch.equal(saved["layers"]["0"]["mean"], before)


def test_statistics_follow_the_model_to_another_dtype() -> None:
    model = seeded(dense).float()
    optimizer, _ = preconditioned(model)
    reference = ReferenceBNP(model.double(), LR)
    steps(model, optimizer, batches_of())
    for x, y in batches_of():
        reference.step(loss, x, y)
    assert_same(model, reference.model)


def test_a_layer_that_moves_to_a_smaller_dtype_goes_on() -> None:
    model = seeded(dense)
    optimizer, bnp = preconditioned(model)
    (x, y), (x2, y2), *_ = batches_of()
    steps(model, optimizer, [(x, y)])
    before = bnp.layers["0"].mean.clone()
    model.float()
    steps(model, optimizer, [(x2.float(), y2)])
    expected = 0.99 * before + 0.01 * x2.mean(0)
    torch.testing.assert_close(bnp.layers["0"].mean.double(), expected, rtol=1e-5, atol=1e-6)
    assert all(p.isfinite().all() for p in model.parameters())


@needs_cuda
def test_statistics_follow_the_model_to_another_device() -> None:
    model = seeded(dense)
    plain = copy.deepcopy(model)
    train(plain, batches_of())
    optimizer, _ = preconditioned(model)
    steps(model.cuda(), optimizer, on("cuda", batches_of()))
    assert_same(model.cpu(), plain)


# which layers


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"0.0", "0.2", "0.4", "1.0", "1.2", "1.4"}),
        ({"layers": ["1"]}, {"1.0", "1.2", "1.4"}),
        ({"layers": "1.2"}, {"1.2"}),
        ({"exclude": ["1", "0.4"]}, {"0.0", "0.2"}),
        ({"exclude": "1"}, {"0.0", "0.2", "0.4"}),
        ({"layers": ["0"], "exclude": ["0.2"]}, {"0.0", "0.4"}),
    ],
)
def test_layers_are_chosen_by_name_or_by_the_modules_that_hold_them(options: Any, expected: set[str]) -> None:
    _, bnp = preconditioned(nn.Sequential(dense(), dense()), **options)
    assert set(bnp.layers) == expected


def test_only_layers_of_this_optimizer_change_and_added_groups_count() -> None:
    model = seeded(dense)
    optimizer = SGD(model[4].parameters(), lr=LR)
    wc.BNP(model, optimizer)
    for (x, y), is_held in zip(batches_of(steps=2), [False, True], strict=True):
        model.zero_grad()
        loss(model, x, y).backward()
        raw = model[0].weight.grad.clone()
        if is_held:
            optimizer.add_param_group({"params": model[0].parameters()})
        optimizer.step()
        assert torch.equal(model[0].weight.grad, raw) == (not is_held)


def test_a_bias_of_another_optimizer_is_treated_as_frozen() -> None:
    """So that it does not matter which of the two optimizers steps first."""
    model = seeded(dense)
    frozen = copy.deepcopy(model)
    for layer in (frozen[0], frozen[2], frozen[4]):
        layer.bias.requires_grad_(False)
    train(frozen, batches_of())
    weights = SGD([p for p in model.parameters() if p.dim() == 2], lr=LR)
    wc.BNP(model, weights)
    for x, y in batches_of():
        model.zero_grad()
        loss(model, x, y).backward()
        raw = model[0].bias.grad.clone()
        weights.step()
        assert torch.equal(model[0].bias.grad, raw)
    assert_same(model, frozen)


def test_a_second_bnp_is_refused_until_the_first_is_removed() -> None:
    model = dense()
    optimizer, first = preconditioned(model, layers=["0"])
    with pytest.raises(wc.WellcondError, match=r"'0' is preconditioned already.*remove\(\)"):
        wc.BNP(model, optimizer)
    wc.BNP(model, optimizer, exclude=["0"])
    first.remove()
    wc.BNP(model, optimizer, layers=["0"])


# what is refused, and what is said


def test_a_gradient_without_a_training_pass_is_reported_once() -> None:
    model = seeded(dense).eval()
    optimizer, _ = preconditioned(model)
    loss(model, normal(5, 6), integers(CLASSES, 5)).backward()
    with pytest.warns(UserWarning, match=r"model\.train\(\)"):
        optimizer.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()


REFUSED: dict[str, tuple[Callable[[nn.Module, SGD], Any], type[Exception], str]] = {
    "rho_of_1": (lambda m, o: wc.BNP(m, o, rho=1.0), ValueError, "rho"),
    "rho_nan": (lambda m, o: wc.BNP(m, o, rho=float("nan")), ValueError, "rho"),
    "negative_eps": (lambda m, o: wc.BNP(m, o, eps1=-1.0), ValueError, "eps1"),
    "unknown_means": (lambda m, o: wc.BNP(m, o, means="pixel"), ValueError, "means"),
    "unknown_layer": (lambda m, o: wc.BNP(m, o, exclude=["3x"]), wc.WellcondError, "'3x'"),
    "no_layer": (lambda m, o: wc.BNP(nn.ReLU(), o), ValueError, "nothing to precondition"),
    "other_model": (lambda m, o: wc.BNP(dense(), o), ValueError, "nothing to precondition"),
    "weight_norm": (lambda m, o: wc.BNP(weight_norm(nn.Linear(2, 3)), o), ValueError, "ParametrizationList"),
    "complex": (lambda m, o: wc.BNP(nn.Linear(2, 3, dtype=torch.complex64), o), ValueError, "complex64"),
    "lazy": (lambda m, o: wc.BNP(nn.Sequential(nn.LazyLinear(3)), o), ValueError, "one batch"),
    "no_state": (lambda m, o: wc.BNP(m, o).load_state_dict({}), ValueError, "not the state of a BNP"),
    "copied": (lambda m, o: copy.deepcopy(wc.BNP(m, o)), TypeError, r"bnp\.state_dict\(\)"),
    "pickled": (lambda m, o: pickle.dumps(wc.BNP(m, o)), TypeError, r"bnp\.state_dict\(\)"),
    "no_optimizer": (lambda m, o: wc.BNP(m, "sgd"), TypeError, r"torch\.optim\.Optimizer"),
    "no_model": (lambda m, o: wc.BNP("model", o), TypeError, r"torch\.nn\.Module"),
}


@pytest.mark.parametrize(("make", "kind", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_done_is_refused_by_name(make: Any, kind: type[Exception], message: str) -> None:
    model = dense()
    with pytest.raises(kind, match=message):
        make(model, SGD(model.parameters(), lr=LR))
    assert not hooks(model) or "state" in message


def test_a_state_of_another_network_is_refused_and_loads_nothing() -> None:
    small = train(seeded(dense), batches_of()).state_dict()
    _, bnp = preconditioned(nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, CLASSES)))
    with pytest.raises(wc.WellcondError, match="'4'"):
        bnp.load_state_dict(small)
    by_channel = preconditioned(nn.Conv2d(2, 3, 3))[1].state_dict()
    _, by_kernel = preconditioned(nn.Conv2d(2, 3, 3), means="kernel")
    before = state(by_kernel)
    with pytest.raises(wc.WellcondError, match="means='channel'"):
        by_kernel.load_state_dict(by_channel)
    assert_untouched(by_kernel, before)


def test_the_repr_says_which_layers_and_settings() -> None:
    model = nn.Sequential(nn.Conv2d(4, 8, 3, groups=2), nn.Flatten(), nn.Linear(8, 3), nn.LSTM(3, 2))
    assert repr(preconditioned(model)[1]).splitlines() == [
        "BNP over SGD (rho=0.99, eps1=0.01, eps2=0.0001, means='channel')",
        "  0: Conv2d, 18 → 4 in each of 2 groups",
        "  2: Linear, 8 → 3",
        "  not preconditioned: 3 (LSTM)",
    ]
