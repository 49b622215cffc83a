"""Hooks and functions put into a network: what they do to the signal is read, or refused, and never passed over."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from zoo import normal

import wellcond as wc
from wellcond.learning_rate.meanfield import predict

X = normal(12, 30).float()


def network(scale: Callable[[Tensor], Tensor] = lambda h: h, factor: float = 1.0) -> nn.Module:
    """A network that multiplies the output of its first layer, in its own forward, by a factor."""

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.block, self.two = (
                nn.Linear(30, 40),
                nn.Sequential(nn.Linear(40, 40), nn.ReLU()),
                nn.Linear(40, 2),
            )

        def forward(self, x: Tensor) -> Tensor:
            return self.two(self.block(F.relu(factor * self.one(x))))

    torch.manual_seed(0)
    return Network()


def in_place(_module: nn.Module, _args: Any, output: Tensor) -> None:
    output.mul_(10)


HOOKED: dict[str, Callable[[Any], Any]] = {
    "forward hook": lambda m: m.one.register_forward_hook(lambda _m, _a, output: 10 * output),
    "in place": lambda m: m.one.register_forward_hook(in_place),
    "on a parent": lambda m: m.block.register_forward_pre_hook(lambda _m, args: (10 * args[0],)),
    "pre-hook": lambda m: m.block[0].register_forward_pre_hook(lambda _m, args: (10 * args[0],)),
    "named arguments": lambda m: m.block[0].register_forward_pre_hook(
        lambda _m, a, k: ((10 * a[0],), k), with_kwargs=True
    ),
}


@pytest.mark.parametrize("hook", HOOKED.values(), ids=HOOKED)
def test_a_hook_that_scales_is_as_if_the_network_scaled(hook: Callable[[Any], Any]) -> None:
    model = network()
    hook(model)
    assert predict(model, inputs=X).lambda_max == pytest.approx(
        predict(network(factor=10.0), inputs=X).lambda_max, rel=1e-9
    )


@pytest.mark.slow
def test_hooks_that_only_look_change_nothing() -> None:
    model, seen = network(), list[Tensor]()
    model.one.register_forward_hook(lambda _m, _a, output: seen.append(output.mean()))
    model.block.register_forward_pre_hook(lambda _m, args: seen.append(args[0].abs().max()))
    wc.BNP(model, torch.optim.SGD(model.parameters(), lr=0.1))
    plain = predict(network(), inputs=X)
    assert predict(model, inputs=X).lambda_max == plain.lambda_max
    assert predict(model, inputs=X).notes == plain.notes
    assert seen


class Scaled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 10 * super().forward(x)


def subclass(model: Any) -> None:
    model.one = Scaled(30, 40)


def replaced(model: Any) -> None:
    model.one.forward = types.MethodType(lambda self, x: 10 * F.linear(x, self.weight, self.bias), model.one)


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "replaced forward": (replaced, "'one'.*forward was replaced"),
    "subclass": (subclass, "'one' is a Scaled"),
    "hook that joins": (lambda m: m.one.register_forward_hook(lambda _m, _a, o: o * o), "mul.*'one'"),
    "hook that cuts": (lambda m: m.one.register_forward_hook(lambda _m, _a, o: o.clamp(max=0.1)), "clamp.*'one'"),
    "spectral norm": (lambda m: nn.utils.parametrizations.spectral_norm(m.one), "'one'.*other parameters"),
    "old spectral norm": (lambda m: nn.utils.spectral_norm(m.one), "'one'.*computed from"),
    "tied": (
        lambda m: setattr(m.block[0], "weight", m.block[0].weight) or setattr(m, "one", m.block[0]),
        "shape|called twice",
    ),
}


@pytest.mark.parametrize(("change", "message"), REFUSED.values(), ids=REFUSED)
def test_what_has_no_rule_is_refused_with_its_layer(change: Callable[[Any], Any], message: str) -> None:
    model = network()
    change(model)
    with pytest.raises(wc.WellcondError, match=message):
        predict(model, inputs=X)


@pytest.mark.parametrize("fill", [nn.init.eye_, nn.init.orthogonal_])
def test_weights_that_are_not_independent_are_noted(fill: Callable[[Tensor], Tensor]) -> None:
    model: Any = network()
    fill(model.block[0].weight)
    assert any("block.0" in note and "independent" in note for note in predict(model, inputs=X).notes)


def test_hooks_on_all_modules_are_noted() -> None:
    handle = nn.modules.module.register_module_forward_hook(
        lambda m, _a, output: 10 * output if isinstance(m, nn.Linear) else None
    )
    try:
        assert any("register_module_forward_hook" in note for note in predict(network(), inputs=X).notes)
    finally:
        handle.remove()
    assert not predict(network(), inputs=X).notes
