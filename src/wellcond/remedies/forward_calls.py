"""Function calls of the forward pass, made by modules or by the model's code, and how to replace them."""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any

from torch import nn

from wellcond.network.isolation.copies import copied
from wellcond.network.recording import Call, record
from wellcond.nn.data_flow import RESHAPING
from wellcond.remedies.rewired import Rewired, own_name
from wellcond.remedies.setup import Setup

SQUASHING = ("softmax", "sigmoid", "relu", "tanh", "hardtanh", "softplus", "elu", "leaky_relu", "gelu", "silu")
"""Activations that keep outputs out of some range, as `record` names them."""
LOG_PROBABILITIES = ("log_softmax", "logsigmoid")
"""Activations whose outputs a loss takes as they are."""


def calls_of(setup: Setup) -> list[Call]:
    """The function calls that the outputs depend on, inside modules too; none if the model cannot be recorded."""
    recording = record(copied(setup.problem.model), setup.inputs, lambda _module: False)
    return [] if recording.error is not None else recording.needed_calls()


def last_call(calls: list[Call]) -> Call | None:
    """The last call that is not a reshape."""
    return next((call for call in reversed(calls) if call.name not in RESHAPING), None)


def last_activations(calls: list[Call]) -> list[Call]:
    """The activations that the model ends in, one directly after the other, the last one first."""
    activations: list[Call] = []
    end = last_call(calls)
    values = set() if end is None else set(end.gives)
    for call in reversed(calls):
        if values.isdisjoint(call.gives):
            continue  # a reshape at the end, or another branch
        if call.name in SQUASHING or call.name in LOG_PROBABILITIES:
            activations.append(call)
        elif call.name not in RESHAPING:
            break
        values = set(call.takes)
    return activations


def with_calls_replaced(setup: Setup, calls: list[Call], chosen: list[Call], activation: nn.Module) -> Setup:
    """With an activation in place of some calls.

    A call that is all that an activation module of torch does is replaced together with the module. The model's own
    code cannot be changed from outside: there a mode replaces the calls, and a comment says what to write.

    Args:
        setup: The set-up.
        calls: All calls of the forward pass.
        chosen: Those of them to replace.
        activation: A module without parameters, `nn.Identity()` to leave the calls out.
    """
    modules = dict(setup.problem.model.named_modules())
    by_module = [call for call in chosen if _is_all_of_its_module(call, calls, modules)]
    in_code = [call for call in chosen if not _is_all_of_its_module(call, calls, modules)]
    lines = []
    if names := [own_name(call.inside) for call in by_module]:
        lines.append(setting_lines(names, f"nn.{activation!r}"))
    lines += dict.fromkeys(_comment(modules[call.inside], call, activation) for call in in_code)

    def change(model: nn.Module) -> nn.Module:
        if not in_code:
            for call in by_module:
                model.set_submodule(call.inside, copy.deepcopy(activation))
            return model
        functions = {call.name for call in chosen}
        alike = [call for call in calls if call.name in functions]
        numbers = frozenset(i for i, call in enumerate(alike) if any(call is other for other in chosen))
        return Rewired(model, functions, lambda _function, x, *_, **__: activation(x), numbers)

    return setup.with_model(change, *lines, is_new=False)


def setting_lines(names: Collection[str], module: str) -> str:
    """The lines that put a new module in place of each of those named."""
    if len(names) == 1:
        return f'model.set_submodule("{next(iter(names))}", {module})'
    listed = ", ".join(f'"{name}"' for name in names)
    return f"for name in ({listed}):\n    model.set_submodule(name, {module})"


def argument(call: Call, place: int, name: str, default: Any = None) -> Any:
    """An argument of a call, given by place or by name."""
    return call.kwargs.get(name, call.args[place] if len(call.args) > place else default)


def _is_all_of_its_module(call: Call, calls: list[Call], modules: dict[str, nn.Module]) -> bool:
    is_activation = type(modules[call.inside]).__module__ == nn.ReLU.__module__
    return is_activation and call.inside != "" and sum(other.inside == call.inside for other in calls) == 1


def _comment(module: nn.Module, call: Call, activation: nn.Module) -> str:
    place = "forward" if isinstance(module, Rewired) else f"{type(module).__name__}.forward"
    if isinstance(activation, nn.Identity):
        return f"# in {place}: leave out the {call.name}, and use its argument"
    return f"# in {place}: nn.{activation!r} in place of {call.name}"
