"""The calls of a forward pass, with the values that each takes and gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from zoo import Written

from wellcond.network.recording import Call, Recording, record


def model_of(forward: Callable[[Any, Tensor], Any]) -> nn.Module:
    return Written(forward, a=nn.Linear(3, 3), inner=nn.Sequential(nn.Linear(3, 3), nn.Tanh()))


def recorded(forward: Callable[[Any, Tensor], Any], features: int = 3) -> Recording:
    return record(model_of(forward), torch.ones(2, features), lambda module: isinstance(module, nn.Linear))


def written(call: Call) -> str:
    """The call as code: positional arguments that are no tensors as they are, tensors as _."""
    return f"{call.name}({', '.join('_' if hasattr(a, 'tensor') else str(a) for a in call.args)})"


@pytest.mark.parametrize(("forward", "calls"), [
    (lambda m, x: m.a(x).relu_(), ["a(_)", "relu(_)"]),
    (lambda m, x: 1 / x - 2 * x, ["div(1, _)", "mul(_, 2)", "sub(_, _)"]),
    (lambda m, x: x.mT[:, 0], ["mT(_)", "getitem(_, (slice(None, None, None), 0))"]),
    (lambda m, x: x.view(x.shape[0], -1, x.size(1)), ["view(_, 2, -1, 3)"]),
    (lambda m, x: x * x.sum().item(), ["sum(_)", "item(_)", "mul(_, 6.0)"]),
    (lambda m, x: m.inner(x), ["inner.0(_)", "tanh(_)"]),
])  # fmt: skip
def test_functions_have_one_name_and_shapes_are_not_calls(forward: Any, calls: list[str]) -> None:
    assert [written(call) for call in recorded(forward).calls] == calls


def test_a_function_says_which_module_called_it() -> None:
    calls = recorded(lambda m, x: m.inner(m.a(x).relu())).calls
    assert [(call.name, call.inside) for call in calls] == [
        ("a", ""), ("relu", ""), ("inner.0", "inner"), ("tanh", "inner.1"),
    ]  # fmt: skip


def test_writing_in_place_gives_the_same_tensor_another_value() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        h = m.a(x)
        h += x
        h[:, 0] = 0
        return h

    first, added, set_to_0 = recorded(forward).calls
    values = [first.gives[0], added.gives[0], set_to_0.gives[0]]
    assert len({id(value.tensor) for value in values}) == 1
    assert len(set(values)) == 3
    assert (added.takes[0], set_to_0.takes[0]) == (values[0], values[1])


def test_only_calls_that_the_outputs_depend_on_are_needed() -> None:
    def forward(m: Any, x: Tensor) -> Any:
        m.inner(x)
        return {"out": [m.a(x).exp()]}

    recording = recorded(forward)
    assert [call.name for call in recording.needed_calls()] == ["a", "exp"]
    assert recording.outputs == list(recording.calls[-1].gives)
    assert recording.calls[0].takes == recording.inputs


def test_a_pass_that_fails_is_recorded_up_to_the_call_that_raised() -> None:
    recording = recorded(lambda m, x: m.a(m.a(x).repeat(1, 2)))
    assert [(call.name, len(call.gives)) for call in recording.needed_calls()] == [("a", 1), ("repeat", 1), ("a", 0)]
    assert recording.error is not None
    assert "layer 'a' (Linear)" in str(recording.error)
    assert recording.outputs == []


def test_the_model_and_its_inputs_stay_as_they_are() -> None:
    model, x = model_of(lambda m, x: m.a(x.mul_(2))), torch.ones(2, 3)
    record(model, x, lambda module: isinstance(module, nn.Linear))
    assert torch.equal(x, torch.ones(2, 3))
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())
    assert model.training
