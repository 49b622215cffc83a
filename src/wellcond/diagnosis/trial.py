"""A few steps of copies of a model: with its own optimizer and rate, with others, and on a handful of examples."""

from __future__ import annotations

import contextlib
import functools
import math
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from statistics import fmean

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import LBFGS, Adam, Optimizer
from torch.utils._pytree import tree_flatten, tree_unflatten

from wellcond.diagnosis.attempts import Allowance, Attempts, clamped, steps_of
from wellcond.diagnosis.inspection.failures import Failures
from wellcond.diagnosis.labels import relation
from wellcond.diagnosis.mini_batches import MOST_BATCHES, MOST_EXAMPLES, handful, mini_batches
from wellcond.diagnosis.probes.constant_terms import lost_slope
from wellcond.diagnosis.probes.cut_off import MOST_LAYERS, cut_off
from wellcond.diagnosis.probes.drawn import weighs_by_itself
from wellcond.diagnosis.probes.dropped import Dropped, Undropped
from wellcond.diagnosis.probes.goals import has_goals, moves_with_the_model
from wellcond.diagnosis.probes.judges import is_judged_by_network
from wellcond.diagnosis.probes.paired import Paired, loss_of_one_number, loss_of_one_point
from wellcond.diagnosis.shared_norms import NORMS_AT_PLACES, shared_norm
from wellcond.diagnosis.swamped import largest_alone, swamped
from wellcond.diagnosis.token_labels import token_relation
from wellcond.diagnosis.trial_result import (
    FALLING,
    HALF,
    Attempt,
    Handful,
    HeldOut,
    OneAnswer,
    SharedNorm,
    Swamped,
    Trial,
    plunges,
)
from wellcond.diagnosis.worth import is_suspect, sees_pairs, worth
from wellcond.errors import NonFinite, Unsupported
from wellcond.network.calling import logits_of
from wellcond.problem.apart import with_drawn_targets
from wellcond.problem.batches import Batch, examples_in, share_examples
from wellcond.problem.loss.constant import constant_loss
from wellcond.problem.problem import Problem
from wellcond.problem.training_step import TrainingStep
from wellcond.results import Cost, Progress
from wellcond.training.copy_run import CopyRun
from wellcond.training.copy_trainer import CopyTrainer
from wellcond.training.optimizers import unwrapped

HANDFUL_U, HANDFUL_STEPS = 5.0, (40, 80)
"""Passes over the problem that the handful may take, and its fewest and most steps."""
PLATEAU_STEPS = 160
"""Steps on a handful whose loss falls to a constant's and stays there. Attention that begins uniform leaves it after
some 100 steps of Adam; a network that sees nothing of its inputs never does."""
AT_CONSTANT = 0.95
"""Loss over that of a constant from which on nothing of the handful has been learned."""
FEWEST_ON_GPU = 24
"""Steps on a handful on a GPU where few steps are allowed: there each counts as a step on a whole mini-batch."""
FEW_STEPS, FEWER_BATCHES = 150.0, 4
"""Below this many steps allowed, the trial has this many mini-batches: each evaluation passes all of them."""
FEW = 8
"""Examples that any sound network can fit."""
PAIRS_U = 4.0 + MOST_LAYERS / 3
"""Cost of exchanging outputs, of giving one answer to all, and of moving layers that get no gradient."""
HARDLY_TOLD = 8.0
"""Standard deviations of shuffled targets: below it the inputs hardly predict the targets, and what a run learns may be
single examples."""
ROBUST_RATES = (1e-2, 1e-3)
"""Learning rates of Adam on a handful of examples."""


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
        seconds: No run but the first begins after this time; None: no limit.
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
        problem, sys.maxsize if isinstance(optimizer, LBFGS) else MOST_EXAMPLES, batches=_mini_batch_count(most)
    )
    failures = Failures()
    with _training(problem, batches, optimizer, in_pass) as trainer:
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
            follows_itself = moves_with_the_model(copy)
        known = Trial(before, _constant(problem, start, batches, fmean(before)))
        own: Attempt | None = None
        others: list[Attempt] = []
        variants: dict[str, Attempt] = {}
        crowded: Swamped | None = None
        norm: SharedNorm | None = None
        held_out: HeldOut | None = None
        related = relation(with_drawn_targets(problem) or problem), token_relation(problem)
        if optimizer is not None:
            attempts = Attempts(trainer, optimizer, in_pass, allowed, known, dropped, peak, report)
            own, others, variants = attempts.make()
            if own.run.diverged_at is None:
                look = functools.partial(shared_norm, trainer, attempts.trained, allowed)
                norm = failures.attempt(NORMS_AT_PLACES, look, None)
                tells_nothing = is_suspect(known, own)
                crowded = failures.attempt("the terms of the loss", lambda: swamped(attempts, tells_nothing), None)
            attempts.trained.release()  # of its optimizer's state, which is most of what a run holds
            probed = [each for each in related if each is not None]
            is_in_doubt = not probed or any(each.best < HARDLY_TOLD for each in probed)
            if (
                is_in_doubt
                and not known.has_learned
                and known.outcome(own) in FALLING
                and attempts.allows(attempts.long, "a test on other batches")
            ):
                held_out = _held_out(trainer, batches, attempts.long)
        report("a handful of examples", 0.8)
        trains = replace(known, own=own, others=tuple(others)).trains
        few = None
        on_gpu = problem.device.type == "cuda"
        count, modes_price = examples_in(batches[0]), 2 * len(batches) / 3  # both modes come last
        steps = _handful_steps(in_pass * max(count / FEW, 1.0), most, on_gpu)
        price = _handful_price(steps, count, on_gpu) + modes_price
        what = "a handful of examples"
        if allowed.has(price, what, keep=spare if trains else 0.0):
            with Undropped(dropped) if dropped else contextlib.nullcontext():
                fit = functools.partial(_few, problem, batches[0], in_pass, steps, failures, allowed, spare)
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
                again = _run_again_price(len(few.run.losses), count, on_gpu) + modes_price
                with start.counted() as copy:
                    of_one_point = loss_of_one_point(copy, batches[0])
                if allowed.has(again, "a handful of examples in training mode"):
                    paired = failures.attempt(
                        "a handful of examples in training mode",
                        functools.partial(_few_worth, problem, batches[0], in_pass, few),
                        None,
                    )
                    few = replace(few, paired=paired)
                what = "a handful of examples with one term of the loss"
                if optimizer is not None and few.tells_nothing and allowed.has(again, what):
                    with failures.recording(what):
                        alone = largest_alone(attempts.trained, trainer)
                        worth_alone = None if alone is None else _few_worth(alone, batches[0], in_pass, few)
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
    evaluated = 4 * min(batches * cuts, _mini_batch_count(most)) / 3  # before, and after each run
    size = math.ceil(batch_size / cuts)
    handful_steps = _handful_steps(batches * cuts * max(size / FEW, 1.0), most, on_gpu)
    return (own + 2 * other + evaluated + 2 + _handful_price(handful_steps, size, on_gpu)) / cuts


def _handful_steps(in_pass: float, most: float, on_gpu: bool) -> int:
    """Steps on a handful; a pass over the problem has `in_pass` of them."""
    if on_gpu and most < FEW_STEPS:
        return FEWEST_ON_GPU
    return HANDFUL_STEPS[0] if most < FEW_STEPS else clamped(HANDFUL_U * in_pass, HANDFUL_STEPS)


def _handful_price(steps: int, examples: int, on_gpu: bool) -> float:
    """The cost of a handful, also where it is trained uphill too, in steps of a mini-batch with `examples` examples."""
    return (5 * steps / 3 + 4) * (1.0 if on_gpu else min(FEW / examples, 1.0)) + 1


def _run_again_price(steps: int, examples: int, on_gpu: bool) -> float:
    """The cost of the same run in training mode, or with one term of the loss, and of what it has learned."""
    return (steps + 1) * (1.0 if on_gpu else min(FEW / examples, 1.0)) + 1


def _mini_batch_count(most: float) -> int:
    return FEWER_BATCHES if most < FEW_STEPS else MOST_BATCHES


@contextlib.contextmanager
def _training(
    problem: Problem, batches: Sequence[Batch], optimizer: Optimizer | None, in_pass: float
) -> Iterator[CopyTrainer]:
    """A trainer of copies on some mini-batches, whose cost is added to that of the problem in the end.

    Args:
        problem: The problem.
        batches: Mini-batches of it.
        optimizer: The optimizer to copy.
        in_pass: How many mini-batches like these a pass over the problem has.
    """
    trainer = CopyTrainer(Problem(problem.model, problem.loss, list(batches), dropout=problem.dropout), optimizer)
    try:
        yield trainer
    finally:
        share = problem.batch_count / in_pass  # a part of a batch counts as its share
        problem.count_copies(Cost(trainer.cost.forwards * share, trainer.cost.backwards * share))


def _few(
    problem: Problem, batch: Batch, in_pass: float, steps: int, failures: Failures, allowed: Allowance, spare: float
) -> Handful | None:
    """Whether a few examples can be fitted: at two rates for a while, then at the better one.

    Where it falls to about a constant's, it goes on for longer: some losses stay there for a while, as CTC does.
    """
    examples = handful(problem, batch, FEW)
    count = None if examples is batch else examples_in(examples)
    on_gpu = problem.device.type == "cuda"
    if problem.device.type == "cpu":  # on a GPU a step takes the same time for few examples
        in_pass *= examples_in(batch) / count if count else 1.0
    with _training(problem, [examples], _adam(problem), in_pass) as trainer:
        start = trainer.start(dropout=False)
        before = start.evaluate()[0]
        if not math.isfinite(before):
            return None
        runs: list[tuple[float, float, CopyRun]] = []
        for lr in ROBUST_RATES:
            run = trainer.start(lr, dropout=False)
            with contextlib.ExitStack() as stack:
                for _, _, other in runs:
                    stack.enter_context(other.parked())
                run.run(steps // 3)
            after = run.evaluate()[0]
            runs.append((after if math.isfinite(after) else math.inf, lr, run))
        _, lr, best = min(runs, key=lambda each: each[0])
        best.run(steps // 3)
        constant = _constant(problem, start, [examples], before)
        uphill = None
        is_judged = False
        if best.losses and plunges(best.losses):
            with failures.recording("whether another network judges the outputs"), start.counted() as copy:
                is_judged = is_judged_by_network(copy)
        if best.losses and plunges(best.losses) and not is_judged:
            opposite = trainer.start(lr, dropout=False, maximize=True)
            opposite.run(len(best.losses))
            uphill = opposite.evaluate()[0]
        lost = None
        with failures.recording("whether every term of the loss has a gradient"), best.counted() as copy:
            lost = lost_slope(copy)
        known = Handful(count, lr, before, best.evaluate()[0], constant, best.as_run, uphill, lost)
        longer, ratio = PLATEAU_STEPS - len(best.losses), 1.0 if on_gpu else min(FEW / examples_in(batch), 1.0)
        # what the handful has taken so far is not counted yet
        price = _handful_price(steps, examples_in(batch), on_gpu) + longer * ratio
        if not _is_at_constant(known) or not allowed.has(price, "a handful of examples for longer", keep=spare):
            return known
        best.run(longer)
        return replace(known, later=best.evaluate()[0])


def _held_out(trainer: CopyTrainer, batches: Sequence[Batch], steps: int) -> HeldOut | None:
    """Train on half of the batches and test on the others; None if there are fewer than two of each."""
    half, problem = len(batches) // 2, trainer.problem
    if half < 2:
        return None
    one_half = CopyTrainer(Problem(problem.model, problem.loss, list(batches[:half])), trainer.optimizer)
    run = one_half.start()

    def loss_of(some: Sequence[Batch]) -> float:
        problem = Problem(run.model, trainer.problem.loss, list(some))
        with problem.measuring(), torch.no_grad():
            loss = float(problem.mean_loss())
        trainer.cost += problem.cost
        return loss

    before = loss_of(batches[half:])
    run.run(steps)
    unseen, seen = loss_of(batches[half:]), fmean(run.evaluate())
    trainer.cost += one_half.cost
    pairs = None
    with contextlib.suppress(Exception):  # the user's loss may refuse other pairs
        pairs = loss_of([*map(_other_pairs, batches[:half])]), loss_of([*map(_other_pairs, batches[half:])])
    return HeldOut(seen, unseen, before, pairs)


def _one_answer(trained: Problem, batch: Batch, is_compared: bool) -> OneAnswer | None:
    """What one answer is worth; None if another network judges it, as a critic does: it may be right for all."""
    if is_judged_by_network(trained):
        return None
    loss = loss_of_one_point if is_compared else loss_of_one_number
    return OneAnswer(loss(trained, batch), is_compared, has_goals(trained))


def _other_pairs(batch: Batch) -> Batch:
    """A batch whose last tensor belongs to other examples: what was a pair is none."""
    leaves, form = tree_flatten(batch)
    count = examples_in(batch)
    place = max(i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.dim() and len(leaf) == count)
    leaves[place] = leaves[place].roll(1, 0)
    pairs: Batch = tree_unflatten(leaves, form)
    return pairs


def _is_at_constant(few: Handful) -> bool:
    """Whether the loss has fallen to about a constant's, and from far above it."""
    return few.constant is not None and AT_CONSTANT * min(few.before, few.constant) < few.after < HALF * few.before


def _few_worth(problem: Problem, batch: Batch, in_pass: float, few: Handful) -> Paired | None:
    """What the outputs on the same examples are worth after the same run in training mode, with all that is drawn.

    A model that adds noise in training, as a variational autoencoder does, may tell examples apart without it only.
    """
    examples = handful(problem, batch, FEW)
    if problem.device.type == "cpu":
        in_pass *= examples_in(batch) / examples_in(examples)
    with _training(problem, [examples], _adam(problem), in_pass) as trainer:
        run = trainer.start(few.lr)
        run.run(len(few.run.losses))
        return worth(run, examples)


def _modes(trainer: CopyTrainer, allowed: Allowance) -> tuple[float, float] | None:
    """The loss in training and in evaluation mode, both without dropout."""
    if not any(isinstance(m, _BatchNorm) and m.track_running_stats for m in trainer.problem.model.modules()):
        return None
    if not allowed.has(2 * trainer.batch_count / 3, "both modes of BatchNorm"):
        return None
    batch, running = trainer.start(dropout=False), trainer.start(dropout=False, batchnorm="running")
    return fmean(batch.evaluate()), fmean(running.evaluate())


def _constant(problem: Problem, start: CopyRun, batches: Sequence[Batch], loss: float) -> float | None:
    """The loss of the best constant prediction of these batches; None where it is not known."""
    outputs = [each if isinstance(each, Tensor) else logits_of(each) for each in start.outputs()]
    if any(each is None or not each.dim() for each in outputs):
        return None
    targets = [targets for _, targets in batches]
    least = constant_loss(start.problem.loss_of_outputs, problem.likelihood, outputs, targets)  # type: ignore[arg-type]
    # targets that are all the same, as a GAN's, are no yardstick: a constant gets them right
    return None if least is None or abs(least) < 1e-4 * min(abs(loss), 1.0) else least


def _adam(problem: Problem) -> Optimizer:
    """Adam over the model, of which copies are trained."""
    trainable = [p for p in problem.model.parameters() if p.requires_grad]
    is_half = any(p.dtype == torch.float16 for p in trainable)  # in which 1e-8 is zero
    return Adam(trainable, 1.0, eps=1e-4 if is_half else 1e-8)
