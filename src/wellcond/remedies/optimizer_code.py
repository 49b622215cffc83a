"""The code that makes an optimizer over `model`, and the code that sets its rate; `{lr}` stands for the rate."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from wellcond.optim.bnp import BNP
from wellcond.problem.problem import Problem
from wellcond.remedies.loss_code import name_of_loss
from wellcond.remedies.rewired import own_name
from wellcond.training.optimizers import configured_lr, largest_lr, peak_lr

FOLLOWED = """\
for new, old in zip(optimizer.param_groups, scheduler.optimizer.param_groups):
    new.update({name: value for name, value in old.items() if name == "lr" or name not in new})
for part in [scheduler, *getattr(scheduler, "_schedulers", [])]:
    part.optimizer = optimizer"""
"""The lines that put a new optimizer under the schedule of the old one, at the place that this has reached."""
RESCALED = """\
for group in optimizer.param_groups:
    for name in {"lr", "initial_lr", "max_lr", "min_lr"} & group.keys():
        group[name] *= factor
for part in [scheduler, *getattr(scheduler, "_schedulers", [])]:
    part.base_lrs = [factor * lr for lr in getattr(part, "base_lrs", [])]"""
"""The lines that multiply all rates of a schedule."""


def making(optimizer: Optimizer, model: nn.Module) -> str:
    """The lines that make such an optimizer over `model`, with its parameter groups and settings, and under BNP.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
        >>> print(making(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model))
        optimizer = torch.optim.SGD(model.parameters(), lr={lr}, momentum=0.9)
        >>> groups = [{"params": model[0].parameters()}, {"params": model[1].parameters(), "lr": 0.01}]
        >>> print(making(torch.optim.SGD(groups, lr=0.1), model))
        optimizer = torch.optim.SGD(
            [
                {"params": [p for name, p in model.named_parameters() if name.startswith("0.")]},
                {"params": [p for name, p in model.named_parameters() if name.startswith("1.")], "lr": 0.1 * {lr}},
            ],
            lr={lr},
        )
    """
    schedule = [FOLLOWED] if is_scheduled(optimizer) else []
    return "\n".join([_making(optimizer, model), *_bnp_lines(optimizer), *schedule])


def _making(optimizer: Optimizer, model: nn.Module) -> str:
    kind = type(optimizer)
    signature = inspect.signature(kind).parameters
    defaults = {name: p.default for name, p in signature.items() if name not in ("params", "lr")}
    groups: list[dict[str, Any]] = optimizer.param_groups
    takes_model = next(iter(signature)) == "model"  # and makes its groups itself
    common = {
        name: value
        for name, value in groups[0].items()
        if name in defaults and (takes_model or all(group[name] == value for group in groups))
    }
    settings = "".join(f", {name}={value!r}" for name, value in common.items() if value != defaults[name])
    name, imports = _name_of(kind)
    if takes_model or len(groups) == 1:
        first = "model" if takes_model else _members(model, groups[0]["params"])
        return f"{imports}optimizer = {name}({first}, lr={{lr}}{settings})"
    largest = largest_lr(optimizer)
    lines = []
    for group in groups:
        entries = [f'"params": {_members(model, group["params"])}']
        share = configured_lr(group) / largest if largest else 1.0
        entries += [f'"lr": {share:g} * {{lr}}'] if share != 1 else []
        entries += [f'"{key}": {group[key]!r}' for key in defaults if key in group and key not in common]
        lines.append(f"        {{{', '.join(entries)}}},\n")
    return f"{imports}optimizer = {name}(\n    [\n{''.join(lines)}    ],\n    lr={{lr}}{settings},\n)"


def making_sgd(momentum: float) -> str:
    """The line that makes plain SGD."""
    settings = f", momentum={momentum:g}" if momentum else ""
    return f"optimizer = torch.optim.SGD(model.parameters(), lr={{lr}}{settings})"


def is_scheduled(optimizer: Optimizer) -> bool:
    """Whether a scheduler was made for it: torch's write down the rate that they begin from."""
    return any("initial_lr" in group for group in optimizer.param_groups)


def setting_rate(optimizer: Optimizer) -> str:
    """The lines that set the largest rate; those of other groups, or of a schedule, stay in proportion to it."""
    if is_scheduled(optimizer):
        peak = max(map(peak_lr, optimizer.param_groups))
        return f"factor = {{lr}} / {peak:g}  # for all rates of the schedule\n{RESCALED}"
    largest = largest_lr(optimizer)
    if len(optimizer.param_groups) == 1 or not largest:
        return 'optimizer.param_groups[0]["lr"] = {lr}'
    return f'for group in optimizer.param_groups:\n    group["lr"] *= {{lr}} / {largest:g}'


def race_lr(problem: Problem, optimizer: Optimizer) -> str:
    """The lines that race rates and set the one that wins, where it is not known which rate is right."""
    race = f"rate = wc.suggest_lr(wc.Problem(model, {name_of_loss(problem)}, loader), optimizer).lr\n"
    return race + setting_rate(optimizer).replace("{lr}", "rate")


def with_own_rate(code: str, optimizer: Optimizer) -> str:
    """Code with the rate that the optimizer has."""
    return code.replace("{lr}", f"{largest_lr(optimizer):g}")


def _bnp_lines(optimizer: Optimizer) -> Iterator[str]:
    defaults = inspect.signature(BNP).parameters
    for hook in optimizer._optimizer_step_pre_hooks.values():
        if isinstance(bnp := getattr(hook, "__self__", None), BNP):
            values = {name: getattr(bnp, name) for name in ("rho", "eps1", "eps2", "means")}
            settings = [f", {name}={value!r}" for name, value in values.items() if value != defaults[name].default]
            yield f"wc.BNP(model, optimizer{''.join(settings)})"


def _name_of(kind: type[Optimizer]) -> tuple[str, str]:
    """The name of an optimizer's class in a script, and the import that it needs."""
    if getattr(torch.optim, kind.__name__, None) is kind:
        return f"torch.optim.{kind.__name__}", ""
    if kind.__module__.startswith("wellcond."):
        return f"wc.{kind.__name__}", ""
    is_own = kind.__module__ == "__main__"  # it is defined in the user's script
    return kind.__name__, "" if is_own else f"from {kind.__module__} import {kind.__name__}\n"


def _members(model: nn.Module, params: Iterable[Tensor]) -> str:
    """An expression for these parameters of `model`: all, those of some size, or those whose names begin so."""
    every: dict[str, Tensor] = {own_name(name): p for name, p in model.named_parameters()}
    held = set(params)
    if all(p in held or not p.requires_grad for p in every.values()):
        return "model.parameters()"
    for condition, is_matrix in (("p.dim() > 1", True), ("p.dim() <= 1", False)):
        if all((p in held) == ((p.dim() > 1) is is_matrix) for p in every.values()):
            return f"[p for p in model.parameters() if {condition}]"
    inside = _prefixes(every, held)
    outside = _prefixes(every, set(every.values()) - held)
    negation, prefixes = ("", inside) if len(inside) <= len(outside) else ("not ", outside)
    matches = f'"{prefixes[0]}"' if len(prefixes) == 1 else "(" + ", ".join(f'"{each}"' for each in prefixes) + ")"
    return f"[p for name, p in model.named_parameters() if {negation}name.startswith({matches})]"


def _prefixes(every: dict[str, Tensor], chosen: set[Tensor]) -> list[str]:
    """The shortest beginnings of names that only chosen parameters have: modules where all of one are chosen."""
    prefixes: list[str] = []
    others = [name for name, p in every.items() if p not in chosen]
    for name, p in every.items():
        if p in chosen and not name.startswith(tuple(prefixes)):
            ends = [i + 1 for i, letter in enumerate(name) if letter == "."]
            shortest = (name[:end] for end in (*ends, len(name)))
            prefixes.append(next((s for s in shortest if not any(o.startswith(s) for o in others)), name))
    return prefixes
