"""What the remedies buy on a network: short training runs of copies, with and without each."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Optimizer

from wellcond.errors import Unsupported, WellcondError
from wellcond.network.arithmetic import own_arithmetic
from wellcond.nn.last_batchnorm import with_last_batchnorm
from wellcond.nn.replace import copied
from wellcond.optim.bnp import BNP
from wellcond.optim.scale_amended import ScaleAmendedSGD
from wellcond.problem.arguments import check_problem
from wellcond.problem.problem import Problem
from wellcond.results import Progress
from wellcond.verify.copies import Copies, largest_lr
from wellcond.verify.treatment import Arm, Treatment

LEARNING_RATES = (0.01, 0.03, 0.1, 0.3, 1.0)
FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0)
"""Of the learning rate of an optimizer that is given."""
REMEDIES = {
    "bnp": "BNP over the same optimizer",
    "last-bn": "a BatchNorm before the last layer of the network",
    "scale-amended": "ScaleAmendedSGD, where the network is a chain of layers",
}
ONE_SEED = "the data are one batch and nothing is random, so every seed gives the same run; one was made."
NEEDS_SGD = "it is for SGD with one parameter group, and the optimizer is {found}; pass such an SGD, or none."


@torch.inference_mode(False)  # what is copied in inference mode cannot be trained
@own_arithmetic()
def treat(
    problem: Problem,
    optimizer: Optimizer | None = None,
    *,
    steps: int = 200,
    seeds: Iterable[int] = (0, 1, 2),
    learning_rates: Iterable[float] | None = None,
    remedies: Iterable[str] = tuple(REMEDIES),
    momentum: float = 0.0,
    progress: Progress | None = None,
    on_run: Callable[[Treatment], None] | None = None,
) -> Treatment:
    """Train copies of a problem's model with and without each remedy, and compare where they end.

    All runs start from the present weights, in training mode, and those of one seed see the same batches in the same
    order and the same dropout masks. A run's final loss is the mean of the last tenth of its steps. A remedy that the
    network does not allow is in `.refused` with the reason. Neither the model nor the optimizer is changed.

    Args:
        problem: A loader may shuffle or augment if it draws from the global random generators or its own.
        optimizer: What the network is trained with: copies of it, with its settings and state, take the steps of the
            untreated network and those under BNP. None: plain SGD. The other remedies are for SGD with one group.
        steps: The length of every run.
        seeds: One run per seed, remedy and learning rate. A seed decides dropout, the order of a loader that shuffles
            or augments, and the batch that training begins with: that of index `seed`, modulo their number. Where
            all seeds give the same run, one is made.
        learning_rates: None: 0.01, 0.03, 0.1, 0.3 and 1; with an optimizer 0.1, 0.3, 1, 3 and 10 times its own (the
            largest of its groups, the others in proportion).
        remedies: Some of `"bnp"` (BNP over the same optimizer), `"last-bn"` (a BatchNorm before the last layer) and
            `"scale-amended"` (ScaleAmendedSGD, where the network is a chain of layers).
        momentum: Of SGD, where no optimizer is given.
        progress: Called as (what is being done, share of all work done).
        on_run: Called after every run with the treatment so far, so that an interrupted one is not lost.

    Returns:
        The runs, the medians over seeds and their range, a verdict, and the lines to write.

    Raises:
        ValueError: A setting with which nothing could be trained.
        InvalidProblem: The plain network cannot be trained on the batches, or the loss reads the model's own weights.
        NonFinite: The data, or the loss before any step, are not finite.
        Unsupported: The model or the optimizer cannot be copied.

    Example:
        >>> layer = nn.Linear(1, 1, bias=False)
        >>> _ = nn.init.ones_(layer.weight)
        >>> problem = Problem(layer, nn.MSELoss(), (torch.ones(2, 1), torch.zeros(2, 1)))    # the loss is w²
        >>> treatment = treat(problem, steps=3, learning_rates=[0.25], remedies=[])          # w ← w − 2w/4
        >>> treatment.arms["sgd"].runs[0.25][0].losses
        [1.0, 0.25, 0.0625]
        >>> print(treatment.code)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    """
    check_problem(problem)
    remedies, seeds = list(dict.fromkeys(remedies)), tuple(dict.fromkeys(seeds))
    if learning_rates is None:
        own = None if optimizer is None else largest_lr(optimizer)
        learning_rates = LEARNING_RATES if own is None else [factor * own for factor in FACTORS]
    rates = tuple(sorted(set(learning_rates)))
    check_settings(remedies=remedies, learning_rates=rates, steps=steps, seeds=seeds, momentum=momentum)
    if optimizer is not None and momentum:
        raise ValueError(f"momentum is {momentum:g}, but the optimizer has its own: pass one of the two.")
    copies = Copies(problem, optimizer, momentum, steps, seeds)
    notes: tuple[str, ...] = ()
    if len(seeds) > 1 and not copies.depend_on_seed():
        seeds, notes = seeds[:1], (ONE_SEED,)
    untreated = "sgd" if optimizer is None else type(optimizer).__name__.lower()
    names = [untreated, *remedies]
    # all arms at one rate, and all rates with one seed: what there is after an interrupt can be compared
    planned = list(product(seeds, rates, names))
    arms, lines = {name: Arm(name) for name in names}, _lines(copies, untreated)
    treatment = Treatment(arms, rates, seeds, steps, lines, len(planned), copies.cost, notes)
    for i, (seed, lr, name) in enumerate(planned):
        if treatment.arms[name].refused is None:
            report = _part(progress, f"{name} at lr {lr:g}, seed {seed}", i, len(planned))
            report("", 0.0)
            arm = _with_run(treatment.arms[name], copies, lr, seed, report, may_refuse=name != untreated)
            treatment = replace(treatment, arms=treatment.arms | {name: arm}, cost=copies.cost)
            if on_run is not None:
                on_run(treatment)
    return treatment


def check_settings(
    *,
    remedies: Collection[str],
    learning_rates: Collection[float] | None,
    steps: int,
    seeds: Collection[int],
    momentum: float,
) -> None:
    """Raise `ValueError` for settings with which nothing could be trained."""
    for remedy in remedies:
        if remedy not in REMEDIES:
            raise ValueError(f"a remedy must be one of {', '.join(REMEDIES)}, not {remedy!r}")
    for lr in learning_rates or ():
        if not 0 < lr < math.inf:
            raise ValueError(f"a learning rate must be > 0 and finite, not {lr:g}")
    if not seeds or (learning_rates is not None and not learning_rates):
        raise ValueError("there must be at least one learning rate and one seed")
    if min(seeds) < 0:
        raise ValueError(f"a seed must be ≥ 0, not {min(seeds)}")
    if steps < 1:
        raise ValueError(f"steps must be ≥ 1, not {steps}")
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum must be ≥ 0 and < 1, not {momentum:g}")


def _with_run(arm: Arm, copies: Copies, lr: float, seed: int, progress: Progress, may_refuse: bool) -> Arm:
    """The arm with one more run, or as refused."""
    try:
        run = copies.run(*_start(copies, arm.name, lr), seed, progress)
    except WellcondError as error:
        if may_refuse:
            return Arm(arm.name, refused=str(error))
        raise
    return Arm(arm.name, arm.runs | {lr: arm.runs.get(lr, {}) | {seed: run}})


def _part(progress: Progress | None, what: str, i: int, parts: int) -> Progress:
    return lambda _what, share: None if progress is None else progress(what, (i + share) / parts)


def _start(copies: Copies, name: str, lr: float) -> tuple[nn.Module, Optimizer]:
    """A copy of the network as an arm has it, and its optimizer."""
    if name == "last-bn":
        settings = _sgd_settings(copies)
        model = with_last_batchnorm(copies.problem.model, copies.inputs)
        return model, SGD(model.parameters(), lr, **settings)
    if name == "scale-amended":
        settings = _sgd_settings(copies)
        model = copied(copies.problem.model)
        return model, ScaleAmendedSGD(model, lr, **settings, inputs=copies.inputs)
    model, optimizer = copies.start(lr)
    if name == "bnp":
        BNP(model, optimizer)
    return model, optimizer


def _sgd_settings(copies: Copies) -> dict[str, Any]:
    """Momentum, and what else both SGD and ScaleAmendedSGD know, where it is not the default."""
    if copies.optimizer is None:
        return {"momentum": copies.momentum} if copies.momentum else {}
    found, groups = type(copies.optimizer).__name__, copies.optimizer.param_groups
    if len(groups) > 1:
        raise Unsupported(NEEDS_SGD.format(found=f"{found} with {len(groups)} groups"))
    if type(copies.optimizer) is not SGD:
        raise Unsupported(NEEDS_SGD.format(found=found))
    if others := [name for name in ("dampening", "maximize") if groups[0][name]]:
        raise Unsupported(NEEDS_SGD.format(found=f"{found} with {' and '.join(others)}"))
    return {name: groups[0][name] for name in ("momentum", "nesterov", "weight_decay") if groups[0][name]}


def _lines(copies: Copies, untreated: str) -> dict[str, str]:
    """What to write for each arm, with `{lr}` in place of the learning rate."""
    try:
        settings = "".join(f", {name}={value}" for name, value in _sgd_settings(copies).items())
    except Unsupported:
        settings = ""
    plain = sgd = f"optimizer = torch.optim.SGD(model.parameters(), lr={{lr}}{settings})"
    if copies.optimizer is not None:
        own = largest_lr(copies.optimizer)
        plain = f'for group in optimizer.param_groups:\n    group["lr"] *= {{lr}} / {own:g}'
        if len(copies.optimizer.param_groups) == 1 or not own:
            plain = 'optimizer.param_groups[0]["lr"] = {lr}'
    return {
        untreated: plain,
        "bnp": f"{plain}\nwc.BNP(model, optimizer)",
        "last-bn": f"model = wc.nn.with_last_batchnorm(model, inputs)\n{sgd}",
        "scale-amended": f"optimizer = wc.ScaleAmendedSGD(model, lr={{lr}}{settings})",
    }
