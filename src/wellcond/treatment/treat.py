"""`treat`: remedies that findings propose, and others that apply, compared with the untreated network."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.optim import Optimizer

from wellcond.diagnosis.diagnose import diagnose
from wellcond.diagnosis.finding import Finding
from wellcond.errors import Interrupted, WellcondError
from wellcond.network.isolation.arithmetic import own_arithmetic
from wellcond.problem.problem import Problem
from wellcond.remedies import REMEDIES
from wellcond.results import Progress
from wellcond.results.progress import announce, shows_progress
from wellcond.training.leading import led
from wellcond.training.optimizers import DEFAULT_MOMENTUM
from wellcond.training.passed_optimizer import PassedOptimizer
from wellcond.training.script_names import ScriptNames
from wellcond.treatment.comparison import Comparison
from wellcond.treatment.conditions import conditions_of, first_steps, one_thread
from wellcond.treatment.launching.by_name import LauncherName, launcher_of
from wellcond.treatment.launching.launcher import Launcher
from wellcond.treatment.ranking import parts_of
from wellcond.treatment.treatment import Treatment

SHARE_OF_DIAGNOSIS = 0.1
"""Share of the progress bar."""


@led
@shows_progress
@torch.inference_mode(False)  # what is copied in inference mode cannot be trained
def treat(
    problem: Problem,
    optimizer: PassedOptimizer | None = None,
    *,
    steps: int = 200,
    seeds: Iterable[int] = (0, 1, 2, 3, 4),
    validation: Any = None,
    remedies: Iterable[str] | None = None,
    findings: Sequence[Finding] | None = None,
    momentum: float | None = None,
    launcher: LauncherName | Launcher = "in-process",
    progress: Progress | None = None,
) -> Treatment:
    """Try remedies on copies of a network, each with a learning rate of its own, and compare where training ends.

    About a fifth of the data is held out: it is never trained on, and all arms are judged by their loss on it, in
    evaluation mode and in the user's own units. First a screening: every remedy that applies, by a short race of
    learning rates, and combinations of the best. Then the untreated network, a better rate alone, the best three, all
    that the severe findings propose, and one remedy *drawn at random* are trained for all steps with every seed, after
    another race. All of these have the same number of steps; runs of one seed see the same batches in the same order
    and the same dropout masks. Every run is judged where one would stop it. The winner and the untreated network are
    then trained ten times longer, up to 2000 steps: a remedy that is only faster at first does not help.
    Where nothing wins, the lowest arm gets these longer runs: a gain within noise that is real often grows.

    A remedy helps if the interval of its differences to the untreated network lies below zero, and if it gains more
    than a hundredth of the loss. Both seeds and held-out batches count as samples (`Change`), and the intervals of all
    arms hold together with 95 % (Bonferroni). That is enough although the best of some forty arms are compared: they
    are chosen by other held-out batches and another seed than those that they are judged by.

    On a CPU everything is computed in one thread, so that the number of threads changes nothing; to use several cores,
    pass `launcher="processes"`. A remedy that the network does not allow, or that does not fit into memory, is in
    `.refused` with the reason. Neither the model nor the optimizer is changed. Ctrl-C raises `Interrupted` with the
    partial result as its `.result`.

    Args:
        problem: A loader may shuffle or augment if it draws from the global random generators or its own.
        optimizer: What the network is trained with. Copies of it, with its settings and state, take the steps; the
            untreated network has its configured learning rate too. None: SGD, at the rate that a race finds.
        steps: The length of every run.
        seeds: One run per seed and arm. A seed decides dropout, the order of a loader that shuffles or augments,
            weights that are drawn anew, and the batch that training begins with.
        validation: Batches that are not trained on, in any form that `Problem` takes; all of `problem` is then trained
            on. None: a part of the data of `problem` is held out (`held_out`). Pass it where examples are related, such
            as several pictures of one person.
        remedies: Names of those to try, `"a + b"` for two together, without screening and control; None: all that
            apply.
        findings: Findings of `diagnose`, which propose remedies. None: the network is diagnosed first, unless remedies
            are named.
        momentum: Momentum of SGD where no optimizer is given; None: 0.9.
        launcher: Where runs are made: "in-process", "processes", "ray" or a `Launcher`. Other processes get model, loss
            and data by pickle, so their classes and functions must be at the top level of a module.
        progress: Called as (what is being done, share of all work done).

    Returns:
        The runs, differences from the untreated network with intervals, a verdict, and the lines to write.

    Raises:
        ValueError: A setting with which nothing could be trained.
        NonFinite: A parameter is NaN or infinite.
        InvalidProblem: The plain network cannot be trained on the batches, or the loss reads the model's own weights.
        Unsupported: The model or the optimizer cannot be copied.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Linear(2, 1)
        >>> x = torch.randn(256, 2) * torch.tensor([1.0, 100.0])
        >>> problem = Problem(model, torch.nn.MSELoss(), (x, x[:, :1]))
        >>> treatment = treat(problem, steps=50, seeds=[0], remedies=["scale-inputs"], momentum=0.0)
        >>> treatment.best.name
        'scale-inputs'
        >>> print(treatment.code.splitlines()[0])
        model = wc.nn.with_standardized_inputs(model, loader)
    """
    chosen = None if remedies is None else tuple(dict.fromkeys(remedies))
    seeds = tuple(dict.fromkeys(seeds))
    check_settings(remedies=chosen or (), steps=steps, seeds=seeds, momentum=momentum)
    if optimizer is not None and momentum is not None:
        raise ValueError(f"momentum is {momentum:g}, but the optimizer has its own: pass one of the two.")
    momentum = DEFAULT_MOMENTUM if momentum is None else momentum
    report = progress or (lambda _what, _share: None)
    begin = SHARE_OF_DIAGNOSIS if findings is None and chosen is None else 0.0
    later: Progress = lambda what, share: report(what, begin + (1 - begin) * share)  # noqa: E731
    with one_thread():
        conditions = conditions_of(problem, optimizer, momentum, steps, seeds, validation)
        script = ScriptNames.of_caller(problem, conditions.optimizer)
        first = first_steps(conditions)

    def in_script(treatment: Treatment) -> Treatment:
        arms = {name: replace(arm, code=script.lines(arm.code)) for name, arm in treatment.arms.items()}
        return replace(treatment, arms=arms)

    launcher = launcher if isinstance(launcher, Launcher) else launcher_of(launcher)
    with own_arithmetic(), launcher.open():
        comparison = Comparison(conditions, seeds, None if chosen is None else len(chosen), launcher, later)
        if precision := problem.says_precision("all arms are trained", "curvature and conditioning are"):
            comparison.notes.append(precision)
        seconds = comparison.plan(first)
        if math.isfinite(seconds):
            announce(report, comparison.planned, seconds)
        try:
            if begin:
                with one_thread():
                    of_diagnosis: Progress = lambda what, share: report(what, begin * share)  # noqa: E731
                    findings = _diagnosed(problem, conditions.optimizer, comparison, of_diagnosis)
            comparison.train_untreated()
            if chosen is None:
                comparison.screen(findings or ())
                comparison.train_finalists()
            else:
                comparison.train_named(chosen, findings or ())
            comparison.confirm()
        except KeyboardInterrupt:
            if not comparison.arms:
                raise
            raise Interrupted(in_script(comparison.treatment(is_complete=False))) from None
        report("done", 1.0)  # races end early where little is left to try
        return in_script(comparison.treatment())


def check_settings(*, remedies: Collection[str], steps: int, seeds: Collection[int], momentum: float | None) -> None:
    """Raise `ValueError` for settings with which nothing could be trained."""
    for remedy in (part for name in remedies for part in parts_of(name)):
        if remedy not in REMEDIES:
            raise ValueError(f"a remedy must be one of {', '.join(REMEDIES)}, not {remedy!r}")
    if not seeds:
        raise ValueError("there must be at least one seed")
    if min(seeds) < 0:
        raise ValueError(f"a seed must be ≥ 0, not {min(seeds)}")
    if steps < 1:
        raise ValueError(f"steps must be ≥ 1, not {steps}")
    if momentum is not None and not 0 <= momentum < 1:
        raise ValueError(f"momentum must be ≥ 0 and < 1, not {momentum:g}")


def _diagnosed(
    problem: Problem, optimizer: Optimizer | None, comparison: Comparison, progress: Progress
) -> Sequence[Finding]:
    """The findings of a diagnosis; if it fails, remedies are tried all the same."""
    try:
        diagnosis = diagnose(problem, optimizer, progress=progress)
    except WellcondError as error:
        comparison.notes.append(f"no findings: {error}")
        return ()
    comparison.cost += diagnosis.cost
    return diagnosis.findings
