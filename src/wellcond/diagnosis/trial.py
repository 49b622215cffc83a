"""A few steps of copies of a model: with its own optimizer and rate, with others, and on a handful of examples."""

from __future__ import annotations

import contextlib
import functools
import math
import sys
from collections.abc import Collection
from dataclasses import replace
from statistics import fmean

import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import LBFGS, Optimizer

from wellcond.diagnosis.after_runs import Bonus, HeldOut, OneAnswer, SharedNorm, Swamped
from wellcond.diagnosis.attempts import Allowance, Attempts, steps_of
from wellcond.diagnosis.bonus import bonus_of
from wellcond.diagnosis.few_examples import few_worth, fit_few
from wellcond.diagnosis.half_held_out import half_held_out
from wellcond.diagnosis.inspection.failures import Failures
from wellcond.diagnosis.labels import relation
from wellcond.diagnosis.lying_masks import lying
from wellcond.diagnosis.mini_batches import MOST_EXAMPLES, mini_batches
from wellcond.diagnosis.on_batches import best_constant, training
from wellcond.diagnosis.probes.cut_off import MOST_LAYERS, cut_off
from wellcond.diagnosis.probes.drawn import weighs_by_itself
from wellcond.diagnosis.probes.dropped import Dropped, Undropped
from wellcond.diagnosis.probes.goals import has_goals, is_played_against, moves_with_the_model
from wellcond.diagnosis.probes.judges import is_judged_by_network
from wellcond.diagnosis.probes.paired import loss_of_one_number, loss_of_one_point
from wellcond.diagnosis.shared_norms import NORMS_AT_PLACES, shared_norm
from wellcond.diagnosis.swamped import largest_alone, own_terms, swamped
from wellcond.diagnosis.token_labels import token_relation
from wellcond.diagnosis.trial_parts import FEW, handful_price, handful_steps, mini_batch_count, run_again_price
from wellcond.diagnosis.trial_result import FALLING, Attempt, Trial
from wellcond.diagnosis.worth import is_suspect, sees_pairs
from wellcond.errors import NonFinite, Unsupported
from wellcond.problem.apart import with_drawn_targets
from wellcond.problem.batches import Batch, examples_in, share_examples
from wellcond.problem.problem import Problem
from wellcond.problem.training_step import TrainingStep
from wellcond.results import Progress
from wellcond.training.copy_trainer import CopyTrainer
from wellcond.training.optimizers import unwrapped

PAIRS_U = 4.0 + MOST_LAYERS / 3
"""Cost of exchanging outputs, of giving one answer to all, and of moving layers that get no gradient."""
HARDLY_TOLD = 8.0
"""Standard deviations of shuffled targets: below it the inputs hardly predict the targets, and what a run learns may be
single examples."""


@torch.inference_mode(False)  # what is copied in inference mode cannot be trained
def trial(
    problem: Problem,
    optimizer: Optimizer | None = None,
    *,
    dropped: Collection[Dropped] = (),
    peak: float = 0.0,
    most: float = math.inf,
    spare: float = 0.0,
    seconds: float | None = None,
    progress: Progress | None = None,
) -> Trial:
    """Train copies for a few steps: at the optimizer's own rate, at others where they tell more, on few examples.

    The user's own optimizer takes the user's own mini-batches; large batches are cut. Lower rates are tried where the
    loss goes up, until it goes down; higher ones where it moves little; and runs without weight decay or dropout where
    these are strong. Then Adam tries to fit a handful of examples. It takes some 60 to 200 steps. Of those that do not
    fit into `most` the last are not tried, and `left_out` names them.

    Args:
        problem: What is trained; neither it nor the optimizer is changed.
        optimizer: What trains it; None: only the handful is tried.
        dropped: Calls of the model's own code that drop values at random.
        peak: The highest rate of a schedule that begins below it: where the loss moves little, it is tried, and rates
            above it. 0 or infinite if it is not known.
        most: Training steps that all of it may take, in u.
        spare: What of these the handful leaves for others where the network trains, so that it tells little.
        seconds: No run but the first begins that would end after this time; None: no limit.
        progress: Called as (what is being done, share of all work done).

    Raises:
        NonFinite: The loss is not finite before any step.
        InvalidProblem: Copies cannot be trained by this loss, or the optimizer belongs to another model.
        Unsupported: The model cannot be copied, hooks change the optimizer's step, or the loss weighs its terms by what
            the model draws, so that its course tells nothing.
        NotDeterministic: A training step gives other losses for the same batch and weights.
    """
    report = progress or (lambda _what, _share: None)
    at_call = problem.cost
    if isinstance(problem.loss, TrainingStep):
        problem.check()  # the losses of a step that trains another network too cannot be compared
    optimizer = None if optimizer is None else unwrapped(optimizer)
    # L-BFGS takes the change of a gradient for curvature, which it is only on one and the same batch
    batches, in_pass = mini_batches(
        problem, sys.maxsize if isinstance(optimizer, LBFGS) else MOST_EXAMPLES, batches=mini_batch_count(most)
    )
    failures = Failures()
    with training(problem, batches, optimizer, in_pass) as trainer:
        share = problem.batch_count / in_pass
        # other trainers, as those of a handful, have added to the cost of the problem what they took
        allowed = Allowance(lambda: (problem.cost - at_call).u + share * trainer.cost.u, share, most, seconds)
        start = trainer.start()
        before = tuple(start.evaluate())
        if not all(map(math.isfinite, before)):
            raise NonFinite("the loss is NaN or infinite before any step, so there is nothing to try.")
        is_drawn = False
        with failures.recording("whether the loss can be compared over time"), start.counted() as copy:
            is_drawn = weighs_by_itself(copy)
        if is_drawn:
            raise Unsupported(
                "the loss weighs its terms by what the model itself draws or decides, such as returns of its actions: "
                "it need not fall while the model gets better, so a few steps tell nothing."
            )
        follows_itself = False
        with failures.recording("whether the loss has fixed targets"), start.counted() as copy:
            follows_itself = is_played_against(copy) or moves_with_the_model(copy)
        known = Trial(before, best_constant(problem, start, batches, fmean(before)))
        own: Attempt | None = None
        others: list[Attempt] = []
        variants: dict[str, Attempt] = {}
        crowded: Swamped | None = None
        bonus: Bonus | None = None
        norm: SharedNorm | None = None
        held_out: HeldOut | None = None
        related = relation(with_drawn_targets(problem) or problem), token_relation(problem)
        masks = failures.attempt("how masks lie on images", lambda: lying(problem), None)
        if optimizer is not None:
            attempts = Attempts(problem, trainer, optimizer, in_pass, allowed, known, dropped, peak, report)
            own, others, variants = attempts.make()
            if own.run.diverged_at is None:
                look = functools.partial(shared_norm, trainer, attempts.trained, allowed)
                norm = failures.attempt(NORMS_AT_PLACES, look, None)
                tells_nothing = is_suspect(known, own)
                with failures.recording("the terms of the loss"):
                    terms = own_terms(attempts)
                    crowded = swamped(attempts, terms, tells_nothing)
                    bonus = bonus_of(attempts, terms)
            attempts.trained.release()  # of its optimizer's state, which is most of what a run holds
            probed = [each for each in related if each is not None]
            is_in_doubt = not probed or any(each.best < HARDLY_TOLD for each in probed)
            if (
                is_in_doubt
                and not known.has_learned
                and known.outcome(own) in FALLING
                and attempts.allows(attempts.long, "a test on other batches")
            ):
                held_out = half_held_out(trainer, batches, attempts.long)
        report("a handful of examples", 0.8)
        trains = replace(known, own=own, others=tuple(others)).trains
        few = None
        on_gpu = problem.device.type == "cuda"
        count, modes_price = examples_in(batches[0]), 2 * len(batches) / 3  # both modes come last
        steps = handful_steps(in_pass * max(count / FEW, 1.0), most, on_gpu)
        price = handful_price(steps, count, on_gpu) + modes_price
        what = "a handful of examples"
        if allowed.has(price, what, keep=spare if trains else 0.0):
            with Undropped(dropped) if dropped else contextlib.nullcontext():
                fit = functools.partial(fit_few, problem, batches[0], in_pass, steps, failures, allowed, spare)
                few = failures.attempt(what, fit, None)  # a step may raise, and the runs before have shown it
        of_one_point = None
        unreached: tuple[str, ...] = ()
        one_answer: OneAnswer | None = None
        what = "whether outputs tell examples apart"
        is_asked = is_suspect(known, own) and allowed.has(PAIRS_U, what)
        is_compared = is_asked and sees_pairs(start, batches[0])
        if is_asked and not follows_itself:
            with failures.recording("what one answer for all is worth"), attempts.trained.counted() as copy:
                one_answer = _one_answer(copy, batches[0], is_compared)
        if is_compared:
            with failures.recording("what outputs send no gradient to"), start.counted() as copy:
                unreached = cut_off(copy)
            if few is not None:
                again = run_again_price(count, on_gpu) + modes_price
                with start.counted() as copy:
                    of_one_point = loss_of_one_point(copy, batches[0])
                if allowed.has(again, "a handful of examples in training mode"):
                    paired = failures.attempt(
                        "a handful of examples in training mode",
                        functools.partial(few_worth, problem, batches[0], in_pass, few),
                        None,
                    )
                    few = replace(few, paired=paired)
                what = "a handful of examples with one term of the loss"
                if optimizer is not None and few.tells_nothing and allowed.has(again, what):
                    with failures.recording(what):
                        alone = largest_alone(attempts.trained, trainer)
                        worth_alone = None if alone is None else few_worth(alone, batches[0], in_pass, few)
                        few = replace(few, alone=worth_alone)
        report("what inputs tell of targets", 0.95)
        modes = _modes(trainer, allowed)
    size = examples_in(batches[0]) if share_examples(batches[0]) else None
    left_out = tuple(allowed.left_out)
    return Trial(
        before,
        known.constant,
        own,
        tuple(others),
        variants,
        few,
        modes,
        *related,
        size,
        left_out,
        failures.recorded,
        held_out,
        crowded,
        of_one_point,
        unreached,
        norm,
        follows_itself,
        one_answer,
        masks,
        bonus,
    )


def trial_price(
    batch_size: int, batches: int, most: float = math.inf, *, on_gpu: bool = False, evaluations: int = 1
) -> float:
    """An upper estimate of the training steps that the trial of a healthy network takes, in u.

    The trial of a network in trouble takes up to twice that, if `most` allows it.

    Args:
        batch_size: Examples in each of the problem's batches.
        batches: The number of batches.
        most: Steps allowed.
        on_gpu: Whether a step on few examples takes as long as one on many.
        evaluations: Most evaluations of the loss in a step of the optimizer.
    """
    cuts = 1 if evaluations > 1 else math.ceil(batch_size / MOST_EXAMPLES)  # as in `trial`: L-BFGS gets whole batches
    own, other = (evaluations * steps for steps in steps_of(batches * cuts, most))
    evaluated = 4 * min(batches * cuts, mini_batch_count(most)) / 3  # before, and after each run
    size = math.ceil(batch_size / cuts)
    of_handful = handful_steps(batches * cuts * max(size / FEW, 1.0), most, on_gpu)
    return (own + 2 * other + evaluated + 2 + handful_price(of_handful, size, on_gpu)) / cuts


def _one_answer(trained: Problem, batch: Batch, is_compared: bool) -> OneAnswer | None:
    """What one answer is worth; None if another network judges it, as a critic does: it may be right for all."""
    if is_judged_by_network(trained):
        return None
    loss = loss_of_one_point if is_compared else loss_of_one_number
    return OneAnswer(loss(trained, batch), is_compared, has_goals(trained))


def _modes(trainer: CopyTrainer, allowed: Allowance) -> tuple[float, float] | None:
    """The loss in training and in evaluation mode, both without dropout."""
    if not any(isinstance(m, _BatchNorm) and m.track_running_stats for m in trainer.problem.model.modules()):
        return None
    if not allowed.has(2 * trainer.batch_count / 3, "both modes of BatchNorm"):
        return None
    batch, running = trainer.start(dropout=False), trainer.start(dropout=False, batchnorm="running")
    return fmean(batch.evaluate()), fmean(running.evaluate())
