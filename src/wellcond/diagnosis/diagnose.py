"""`diagnose`: measure everything about a problem that a budget allows, and never fail as a whole."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from torch.optim.lr_scheduler import LRScheduler

from wellcond.diagnosis.budget import Budget, PartName, check_budget
from wellcond.diagnosis.curvature import with_curvature
from wellcond.diagnosis.diagnosis import ASSUMED_LR, Diagnosis, about
from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.inspection.failures import Failures
from wellcond.diagnosis.inspection.inspect import inspect
from wellcond.diagnosis.judge import check_known, completed, judged, lines_by_remedy
from wellcond.diagnosis.magnitudes import Gradients, gradients, weight_norms
from wellcond.diagnosis.mini_batches import first_batches, for_probes
from wellcond.diagnosis.nominal_step import nominal_step_seconds
from wellcond.diagnosis.on_gpu import on_gpu, with_fewer_examples
from wellcond.diagnosis.parts import Parts
from wellcond.diagnosis.probes.behavior import Behavior, behavior
from wellcond.diagnosis.trial import trial
from wellcond.diagnosis.trial_result import Trial
from wellcond.errors import NonFinite, NotDeterministic
from wellcond.measurements.layers.conditioning import conditioning
from wellcond.measurements.layers.layer_pass import LayerPass, layer_pass
from wellcond.measurements.layers.neurons import neurons
from wellcond.network.isolation.arithmetic import trained_in
from wellcond.network.layers import chosen_layers
from wellcond.problem.apart import taken_apart
from wellcond.problem.arguments import check_unchanged
from wellcond.problem.batches import examples_in
from wellcond.problem.loss.losses import sums_taken
from wellcond.problem.problem import Problem
from wellcond.problem.working_mode import in_working_mode
from wellcond.results import Cost, Progress
from wellcond.results.progress import shows_progress
from wellcond.training.leading import led
from wellcond.training.optimizers import DEFAULT_MOMENTUM, current_lr, held_groups
from wellcond.training.passed_optimizer import PassedOptimizer, optimizer_of, scheduled_lr
from wellcond.training.schedule import schedule_of, stepped
from wellcond.training.script_names import ScriptNames


@led
@shows_progress
def diagnose(
    problem: Problem,
    optimizer: PassedOptimizer | None = None,
    *,
    scheduler: LRScheduler | Mapping[str, Any] | None = None,
    budget: Literal["fast", "full"] | float = "fast",
    layers: str | Collection[str] | None = None,
    select: Collection[str] | None = None,
    ignore: Collection[str] = (),
    on_part: Callable[[Diagnosis], None] | None = None,
    progress: Progress | None = None,
) -> Diagnosis:
    """Find what is wrong with a network, in which layer, and what to write instead; at a cost that is known before.

    First an inspection: data, outputs compared with the loss, signals, gradients and weights, which are there after a
    few passes even where the loss is NaN. Then probes: what outputs and loss depend on. Then the layers: the loss,
    gradient and weight norms; conditioning of every layer's input and output gradient; dead and always-on ReLUs. Then a
    trial: a few steps of copies with the optimizer
    as it is (SGD at 0.01 with momentum 0.9 without one), at other rates, and on a handful of examples. Then the largest
    eigenvalue of the Hessian and the largest stable learning rate on these batches, for the optimizer as it is or for
    momentum 0.9. Then, with more than a fast budget, both ends of the Hessian's spectrum to 1 % with error bounds, and
    its trace to 10 % with an error bar. After each part all rules are applied to what is known so far.

    A part that fails is named in `.failed`, and the others go on. Ctrl-C ends the work and returns what was measured.
    Neither the model nor the optimizer is changed.

    Args:
        problem: What to measure.
        optimizer: Optimizer that trains the model, if there is one; or what `configure_optimizers` returns.
        scheduler: Schedule of its rates, in place of the optimizer or with it, which training steps after every step of
            the optimizer; `{"scheduler": scheduler, "interval": "epoch"}` is one that it steps once per epoch. A copy
            of it is stepped, to see which rates it comes to, and how soon they are gone.
        budget: `"fast"` takes at most 100 u, where u is one training step, or two seconds where that is longer: the
            layers of the first batches, and about 8 Hessian products, which stop at an estimated error of 1 % and have
            no certificate. On a GPU the clock counts as well: the time of 100 training steps, or five seconds. What
            does not fit is named in `.left_out`. `"full"` measures all batches, goes on until 1 % is certain and
            measures the trace too, in about 40 to 500 products. A number is seconds: as much of `"full"` as they allow.
        layers: Names of the layers, or of modules that hold them, to list; None for all. The curvature is always that
            of the whole network.
        select: Names of the rules to apply; None for all.
        ignore: Names of rules not to apply.
        on_part: Called after every part with the diagnosis so far.
        progress: Called as (what is being measured, share of all work done).

    Returns:
        Findings and all numbers, with what they hold for, what each part cost, and what is missing.

    Raises:
        ValueError: There is no such rule, budget or interval of a scheduler.
        InvalidProblem: The problem cannot be measured at all.
        NotDeterministic: Two passes over the problem do not see the same. Of a training step, which may train another
            network too, only the parts fail that need it.
        UnknownLayer: There is no such layer.

    Example:
        >>> import wellcond as wc
        >>> x = torch.tensor([[1.0], [2.0]])
        >>> problem = wc.Problem(torch.nn.Linear(1, 1, bias=False), torch.nn.MSELoss(), (x, x))
        >>> round(diagnose(problem).max_lr.value, 4)         # H is 2 · mean x² = 5, and 2 (1 + 0.9) / 5
        0.76
    """
    check_known((*ignore, *(select or ())))
    check_budget(budget)
    check_unchanged(problem)
    with trained_in(None):
        chosen = tuple(chosen_layers(problem.model, layers))
        passed = optimizer
        alone = stepped(scheduler) if passed is None else None
        optimizer = optimizer_of(problem, passed if alone is None else alone.scheduler)
        held = held_groups(problem, optimizer)
        lr = max(map(current_lr, held), default=None)
        timed = stepped(passed if scheduler is None else scheduler, optimizer)
        lines_of = lines_by_remedy(problem, optimizer)
        script = ScriptNames.of_caller(problem, optimizer, None if timed is None else timed.scheduler)
        asked, at_call = problem, problem.cost
        with asked.as_trained():
            problem = in_working_mode(taken_apart(asked))
        before = at_call if problem is asked else Cost()
        allowed = Budget(budget, problem, optimizer if held else None, _first_batch_size(problem), before)

        def so_far(evidence: Evidence) -> Diagnosis:
            cost = problem.cost - before
            looked = (part for part in (evidence.inspection, evidence.behavior, evidence.trial) if part is not None)
            unchecked = [failure for part in looked for failure in part.failures]
            findings = completed(judged(evidence, ignore, select), evidence, lines_of)
            return Diagnosis(
                findings=tuple(each.with_lines(script.lines) for each in findings),
                evidence=evidence,
                parameters=problem.size,
                lr=lr,
                about=about(evidence, cost) | ({} if allowed.on_gpu is None else {"GPU": str(allowed.on_gpu)}),
                failed=parts.failed | {failure.what: failure.error for failure in unchecked},
                cost=cost,
                parts=tuple(parts.done),
                modules={name: type(module).__name__ for name, module in problem.model.named_modules()},
            )

        parts = Parts(
            problem, allowed, progress, lambda evidence: None if on_part is None else on_part(so_far(evidence)), before
        )
        evidence = Evidence(
            problem,
            optimizer,
            weights=weight_norms(problem),
            only=None if layers is None else chosen,
            scheduled_lr=0.0 if timed is None else scheduled_lr(timed.scheduler),
            schedule=None
            if timed is None
            else schedule_of(timed.scheduler, is_by_epoch=timed.is_by_epoch, is_said=timed.is_said),
        )
        with problem.as_trained():
            evidence = _inspected(evidence, parts)
        is_summed = evidence.inspection is not None and evidence.inspection.is_summed
        with sums_taken() if is_summed else contextlib.nullcontext():
            with problem.as_trained():
                evidence = _probed(evidence, allowed, parts)
            evidence = _with_layers(evidence, layers, allowed, parts, so_far)
            with problem.as_trained():
                evidence = _tried(evidence, allowed, parts)
            evidence = with_curvature(evidence, allowed, parts)
        diagnosis = so_far(evidence)
        if problem is not asked:
            asked.count_copies(diagnosis.cost - (asked.cost - at_call))
        return diagnosis


def _step_seconds(problem: Problem) -> float:
    """What a training step takes on a CPU."""
    with problem.measuring(), contextlib.closing(problem.data()) as data:
        index, batch = next(data)
        began = time.thread_time()  # other work of the machine does not count
        loss = problem.training_loss(index, batch)
        gradients = problem.gradient(loss, [*problem.params.values()], allow_unused=True)
        float(sum(g.flatten()[0] for g in gradients if g is not None and g.numel()))
        return time.thread_time() - began


def _first_batch_size(problem: Problem) -> int:
    with problem.measuring(), contextlib.closing(problem.data()) as data:
        _, first = next(data)
    return examples_in(first)


def _inspected(evidence: Evidence, parts: Parts) -> Evidence:
    inspection = parts.measure(
        PartName.INSPECTION, lambda _: inspect(evidence.problem, evidence.optimizer), is_free=True
    )
    return parts.hand_over(replace(evidence, inspection=inspection))


def _probed(evidence: Evidence, budget: Budget, parts: Parts) -> Evidence:
    """What the network does; nothing if it cannot be called, or returns numbers that are not finite."""
    inspection = evidence.inspection
    if inspection is not None and (inspection.forward_error or not inspection.is_finite):
        return evidence

    def probed(_: Progress) -> Behavior:
        failures = Failures()
        if budget.is_fast and (inspection is None or inspection.can_step):
            with failures.recording("what a training step takes"):
                budget.extend(nominal_step_seconds(evidence.problem))
                budget.limit_on_gpu(on_gpu(evidence.problem))
                on_cpu = budget.on_gpu is None
                parts.announce(
                    budget.most, budget.most * _step_seconds(evidence.problem) if on_cpu else budget.promised
                )
        outputs = () if inspection is None else inspection.outputs
        some = for_probes(evidence.problem, [each.shape for each in outputs])
        shown = behavior(some)
        if some is not evidence.problem:
            evidence.problem.count_copies(some.cost)
        return replace(shown, failures=(*failures.recorded, *shown.failures))

    shown = parts.measure(PartName.BEHAVIOR, probed)
    return parts.hand_over(replace(evidence, behavior=shown))


def _is_explained(diagnosis: Diagnosis) -> bool:
    """Whether the inspection has something to report."""
    inspection = diagnosis.evidence.inspection
    has_loss = inspection is not None and inspection.loss is not None
    return has_loss or any(finding.severity == "severe" for finding in diagnosis.findings)


def _with_layers(
    evidence: Evidence,
    layers: str | Collection[str] | None,
    budget: Budget,
    parts: Parts,
    so_far: Callable[[Evidence], Diagnosis],
) -> Evidence:
    """Gradients, conditioning and neurons from one pass; if it fails, each by itself.

    A problem without a gradient cannot be measured at all: then the exception is the user's, unless the gradient is NaN
    or infinite, or the inspection has something to report.
    """
    problem = first_batches(evidence.problem, budget.layer_batches)
    if budget.on_gpu is not None:
        problem = with_fewer_examples(problem, budget.on_gpu.layer_examples)

    def in_one_pass(report: Progress) -> tuple[LayerPass, Gradients]:
        if not isinstance(problem.batches, (list, tuple)):
            problem.check()  # that another pass over a loader sees the same
        one_pass = layer_pass(problem, layers=layers, exact=budget.exact, progress=report)
        return one_pass, Gradients.of(problem, one_pass.loss, one_pass.gradients)

    try:
        both = parts.measure(PartName.LAYERS, in_one_pass, catch=(), of=problem)
    except NotDeterministic:
        raise
    except Exception:  # whatever it is, each of the three may still succeed
        catch = Exception if _is_explained(so_far(evidence)) else NonFinite
        measured = parts.measure(PartName.GRADIENTS, lambda _: gradients(problem), catch, of=problem)
        evidence = parts.hand_over(replace(evidence, gradients=measured))
        table = parts.measure(
            PartName.CONDITIONING, lambda r: conditioning(problem, layers=layers, progress=r), of=problem
        )
        evidence = parts.hand_over(replace(evidence, conditioning=table))
        units = parts.measure(PartName.NEURONS, lambda r: neurons(problem, layers=layers, progress=r), of=problem)
        return parts.hand_over(replace(evidence, neurons=units))
    if both is not None:
        one_pass, measured = both
        evidence = replace(evidence, gradients=measured, conditioning=one_pass.conditioning, neurons=one_pass.neurons)
    return parts.hand_over(evidence)


def _tried(evidence: Evidence, budget: Budget, parts: Parts) -> Evidence:
    problem, optimizer = evidence.problem, evidence.optimizer
    if optimizer is None:
        optimizer = torch.optim.SGD(problem.params.values(), ASSUMED_LR, DEFAULT_MOMENTUM)
    noise = None if evidence.behavior is None else evidence.behavior.noise
    dropped = () if noise is None else noise.training
    seconds = budget.seconds_of_trial()
    peak = 0.0 if evidence.schedule is None else evidence.schedule.highest
    most, spare = budget.left, budget.least_curvature

    def tried(report: Progress) -> Trial:
        return trial(
            problem, optimizer, dropped=dropped, peak=peak, most=most, spare=spare, seconds=seconds, progress=report
        )

    result = parts.measure(PartName.TRIAL, tried)
    return parts.hand_over(replace(evidence, trial=result))
