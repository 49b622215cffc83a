"""Other initial weights: changed in the set-up at once, and drawn again for every copy that is trained."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from wellcond.network.forward_pass import read_forward_pass
from wellcond.network.isolation.copies import copied
from wellcond.network.isolation.isolation import rng_kept, seed_generators
from wellcond.network.layers import is_affine, rule_for, weighted_layers
from wellcond.remedies.rewired import own_name
from wellcond.remedies.setup import Setup

SIGNALS = ("vanishing-gradient", "exploding-gradient", "activation-drift", "rank-collapse")
STARTS = ("bad-initialisation", "symmetric-initialisation", *SIGNALS)
"""Rules whose findings other initial weights may treat."""
PLAIN_LAYERS = (nn.Linear, nn.modules.conv._ConvNd)


def affine_layers(model: nn.Module) -> dict[str, Any]:
    """Linear and convolutional layers that own their weight, by name; frozen ones hold what was learned before."""
    layers = {name: layer for name, layer in weighted_layers(model).items() if is_affine(layer)}
    return {name: layer for name, layer in layers.items() if _is_trained(layer._parameters.get("weight"))}


def _is_trained(weight: Any) -> bool:
    return isinstance(weight, Tensor) and weight.requires_grad


def last_layers(setup: Setup) -> list[str]:
    """Names of the linear and convolutional layers that no other one follows."""
    model = copied(setup.problem.model)
    return read_forward_pass(model, setup.inputs, training=False).last_layers(is_affine)


def with_normal_weights(setup: Setup, nonlinearity: Literal["relu", "linear"]) -> Setup | None:
    """With normal weights of variance 2/fan_in for ReLUs or 1/fan_in, and biases zero; None if there are no layers.

    What torch calls fan_out is the fan-in of a layer that stores its weight as (inputs, outputs).
    """

    def draw(module: Any) -> None:
        mode: Literal["fan_in", "fan_out"] = "fan_out" if stores_inputs_first(module) else "fan_in"
        nn.init.kaiming_normal_(module.weight, mode=mode, nonlinearity=nonlinearity)

    def line(is_input_major: bool) -> str:
        mode = 'mode="fan_out", ' if is_input_major else ""
        return f'nn.init.kaiming_normal_(module.weight, {mode}nonlinearity="{nonlinearity}")'

    return with_drawn_layers(setup, draw, line)


def with_drawn_layers(setup: Setup, draw: Callable[[Any], object], line: Callable[[bool], str]) -> Setup | None:
    """With weights of all linear and convolutional layers drawn anew, and biases zero; None if there are none.

    Args:
        setup: The set-up.
        draw: Fills the weight of a layer.
        line: The line that does so for `module`; called with whether the layer stores its weight as (inputs, outputs).
    """
    layers = affine_layers(setup.problem.model)
    if not layers:
        return None

    def change(model: nn.Module) -> None:
        for module in affine_layers(model).values():
            draw(module)
            if isinstance(module._parameters.get("bias"), Tensor):
                nn.init.zeros_(module.bias)

    return with_weights(setup, change, drawing_lines(setup.problem.model, layers, line))


def with_weights(setup: Setup, change: Callable[[nn.Module], None], *lines: str) -> Setup:
    """With changed weights: of the set-up with seed 0, so that its first loss is known, of a copy with its own seed."""

    def at_once(model: nn.Module) -> nn.Module:
        with _drawing(0, model):
            change(model)
        return model

    def for_run(model: nn.Module, optimizer: Optimizer, seed: int) -> None:
        with _drawing(seed, model):
            change(model)

    return setup.with_model(at_once, *lines, is_new=False).prepared(for_run)


def drawing_lines(model: nn.Module, layers: dict[str, Any], line: Callable[[bool], str]) -> str:
    """The loop over these layers, with a line for the weight of each; by name if the loop would draw others too."""
    plain = [module for module in model.modules() if isinstance(module, PLAIN_LAYERS)]
    kinds = {stores_inputs_first(module) for module in layers.values()}
    if kinds == {False} and set(plain) == set(layers.values()):
        return _loop("module in model.modules()", line(False), is_checked=True)
    loops = []
    for is_input_major in sorted(kinds):
        names = [own_name(name) for name, module in layers.items() if stores_inputs_first(module) is is_input_major]
        listed = ", ".join(f'"{name}"' for name in names)
        loops.append(_loop(f"module in map(model.get_submodule, [{listed}])", line(is_input_major), is_checked=False))
    return "\n".join(loops)


def stores_inputs_first(module: nn.Module) -> bool:
    """Whether a layer stores its weight as (inputs, outputs), as transposed convolutions do."""
    rule = rule_for(module)
    return rule is not None and rule.weight_is_input_major


def _loop(over: str, line: str, *, is_checked: bool) -> str:
    body = [line, "if module.bias is not None:", "    nn.init.zeros_(module.bias)"]
    if is_checked:
        body = ["if isinstance(module, (nn.Linear, nn.modules.conv._ConvNd)):", *(f"    {each}" for each in body)]
    return "\n".join([f"for {over}:", *(f"    {each}" for each in body)])


@contextlib.contextmanager
def _drawing(seed: int, model: nn.Module) -> Iterator[None]:
    device = next(model.parameters()).device
    with rng_kept(device), torch.no_grad():
        seed_generators(seed, device)
        yield
