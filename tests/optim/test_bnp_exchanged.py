"""Parameters, layers and groups that are exchanged under BNP: it follows them, or says that it cannot."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from bnp_reference import assert_close, assert_same, batches_of, dense, loss, preconditioned, steps, train
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch.optim import SGD
from zoo import seeded

import wellcond as wc


def repoint(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups[0]["params"] = list(model.parameters())


def assign(model: nn.Sequential, optimizer: SGD) -> None:
    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)
    repoint(model, optimizer)


def assign_and_write_into_the_list(model: nn.Sequential, optimizer: SGD) -> None:
    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)
    optimizer.param_groups[0]["params"][:] = list(model.parameters())


def one_weight(model: nn.Sequential, optimizer: SGD) -> None:
    model[2].weight = nn.Parameter(model[2].weight.detach().clone())
    repoint(model, optimizer)


def one_bias(model: nn.Sequential, optimizer: SGD) -> None:
    model[2].bias = nn.Parameter(model[2].bias.detach().clone())
    repoint(model, optimizer)


def into_several_groups(model: nn.Sequential, optimizer: SGD) -> None:
    assign(model, optimizer)
    first, *others = optimizer.param_groups[0]["params"]
    optimizer.param_groups[0]["params"] = [first]
    optimizer.add_param_group({"params": others})


def swapped_by_conversion(model: nn.Sequential, optimizer: SGD) -> None:
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        model.float().double()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def overwritten_by_conversion(model: nn.Sequential, optimizer: SGD) -> None:
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        model.float().double()
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)
    repoint(model, optimizer)


EXCHANGES = [
    assign, assign_and_write_into_the_list, one_weight, one_bias, into_several_groups, swapped_by_conversion,
    overwritten_by_conversion,
]  # fmt: skip


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_exchanged_parameters_are_followed(exchange: Callable[[nn.Sequential, SGD], None]) -> None:
    straight = seeded(dense)
    with torch.no_grad():  # single precision, so that a conversion forth and back changes nothing
        straight.float().double()
    model, batches = copy.deepcopy(straight), batches_of(steps=2)
    optimizer, bnp = preconditioned(model)
    exchange(model, optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        steps(model, optimizer, batches)
    expected = train(straight, batches)
    assert_same(model, straight)
    for name, layer in bnp.layers.items():
        assert_close(layer.variance, expected.layers[name].variance)


def test_parameters_of_torch_func_count_only_if_the_optimizer_has_them() -> None:
    model, (x, y) = seeded(dense), batches_of(steps=1)[0]
    _, bnp = preconditioned(model)
    others = {name: nn.Parameter(p.detach().clone()) for name, p in model.named_parameters()}
    torch.nn.functional.cross_entropy(torch.func.functional_call(model, others, (x,)), y).backward()
    assert bnp.layers["0"].weight is model[0].weight


# what cannot be followed is said


def new_layer(model: nn.Sequential, optimizer: SGD) -> None:
    model[2] = nn.Linear(5, 4).double()
    repoint(model, optimizer)


def new_layer_without_the_optimizer(model: nn.Sequential, optimizer: SGD) -> None:
    model[2] = nn.Linear(5, 4).double()


def added_layer(model: nn.Sequential, optimizer: SGD) -> None:
    model.append(nn.Linear(3, 3).double())
    optimizer.add_param_group({"params": model[5].parameters()})


def assigned_without_the_optimizer(model: nn.Sequential, optimizer: SGD) -> None:
    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)


def spectral(model: nn.Sequential, optimizer: SGD) -> None:
    spectral_norm(model[2])


def weight_normed(model: nn.Sequential, optimizer: SGD) -> None:
    weight_norm(model[2])
    repoint(model, optimizer)


SAID: dict[str, tuple[Callable[[nn.Sequential, SGD], None], str]] = {
    "new_layer": (new_layer, "'2' was added to the model"),
    "new_layer_unheld": (new_layer_without_the_optimizer, "'2'.*another module in its place"),
    "added_layer": (added_layer, "'5' was added to the model"),
    "assigned_unheld": (assigned_without_the_optimizer, "'0'.*the optimizer holds the old ones"),
    "spectral_norm": (spectral, "'2'.*computed from others now"),
    "weight_norm": (weight_normed, "'2'.*computed from others now"),
}


@pytest.mark.parametrize(("exchange", "message"), SAID.values(), ids=SAID)
def test_what_cannot_be_followed_is_said_once(exchange: Any, message: str) -> None:
    model = seeded(dense)
    optimizer, _ = preconditioned(model)
    exchange(model, optimizer)
    with warnings.catch_warnings(record=True) as messages:
        warnings.simplefilter("always")
        steps(model, optimizer, batches_of(steps=3))
    texts = [" ".join(str(warning.message).split()) for warning in messages]
    assert len(texts) == len(set(texts)), texts
    assert any(re.search(message, text) for text in texts), texts


def test_a_weight_of_another_shape_and_a_broken_tie_are_refused() -> None:
    model = seeded(dense)
    optimizer, _ = preconditioned(model)
    model[0].weight = nn.Parameter(torch.zeros(5, 8).double())
    repoint(model, optimizer)
    with pytest.raises(wc.WellcondError, match=r"(?s)weight of 0.*another shape.*remove\(\)"):
        optimizer.step()

    tied = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6)).double()
    tied[1].weight = tied[0].weight
    optimizer, _ = preconditioned(tied)
    tied[1].weight = nn.Parameter(tied[0].weight.detach().clone())
    repoint(tied, optimizer)
    with pytest.raises(wc.WellcondError, match=r"0 = 1.*no longer shared"):
        steps(tied, optimizer, batches_of(steps=1))


def test_a_layer_thawed_later_and_a_group_removed_say_nothing() -> None:
    model = seeded(dense)
    model[0].requires_grad_(False)
    optimizer, _ = preconditioned(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        steps(model, optimizer, batches_of(steps=1))
        model[0].requires_grad_(True)
        steps(model, optimizer, batches_of(steps=1))
        optimizer.param_groups[0]["params"] = list(model[2:].parameters())
        steps(model, optimizer, batches_of(steps=1))


# the user's settings are not BNP's


@pytest.fixture
def elsewhere() -> Any:
    """No tensor made without a device or dtype is of any use here."""
    torch.set_default_device("meta")
    torch.set_default_dtype(torch.bfloat16)
    yield
    torch.set_default_device(None)
    torch.set_default_dtype(torch.float32)


def test_statistics_have_the_device_and_dtype_of_the_layers(request: pytest.FixtureRequest) -> None:
    batches = batches_of((2, 4, 4), steps=2)
    make = lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3))  # noqa: E731
    straight = seeded(make)
    model = copy.deepcopy(straight)

    def accumulated(model: nn.Module, x: Tensor, y: Tensor) -> None:
        for half in (slice(0, 2), slice(2, None)):
            loss(model, x[half], y[half]).backward()

    optimizer, _ = preconditioned(straight)
    steps(straight, optimizer, batches, accumulated)
    request.getfixturevalue("elsewhere")
    optimizer, bnp = preconditioned(model)
    steps(model, optimizer, batches, accumulated)
    assert_same(model, straight, tolerance=0.0)
    bnp.load_state_dict(bnp.state_dict())


@pytest.mark.parametrize("means", ["channel", "kernel"])
def test_autocast_around_the_whole_step_changes_only_the_layers_inputs(means: Any) -> None:
    make = lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3))  # noqa: E731
    plain = seeded(make).float()
    model = copy.deepcopy(plain)
    (x, y), *_ = batches_of((2, 4, 4), steps=1)
    x = x.float()
    (first, ours), (second, theirs) = preconditioned(model, means=means), preconditioned(plain, means=means)
    with torch.autocast("cpu", torch.bfloat16):
        steps(model, first, [(x, y)])
    steps(plain, second, [(x, y)])
    assert torch.equal(ours.layers["0"].mean, theirs.layers["0"].mean)
    assert torch.equal(ours.layers["0"].variance, theirs.layers["0"].variance)
    assert ours.layers["3"].variance.dtype == torch.float32
    torch.testing.assert_close(ours.layers["3"].variance, theirs.layers["3"].variance, rtol=2e-2, atol=1e-4)
    for mine, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=0.05, atol=0.02 * float(other.grad.abs().max()))


def test_gradients_are_preconditioned_alike_with_and_without_autocast() -> None:
    model = seeded(dense).float()
    (x, y), *_ = batches_of(steps=1)
    grads = []
    for context in (torch.autocast("cpu", torch.bfloat16, enabled=False), torch.autocast("cpu", torch.bfloat16)):
        twin = copy.deepcopy(model)
        optimizer, _ = preconditioned(twin)
        loss(twin, x.float(), y).backward()
        with context:
            optimizer.step()
        grads.append([p.grad for p in twin.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))
