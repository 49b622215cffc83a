"""`Behavior`: what the probes show of a network, and what each of them costs."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from wellcond.diagnosis.inspection.failures import Failures, InspectionFailure
from wellcond.diagnosis.probes.answers import Answers, answers
from wellcond.diagnosis.probes.beyond import PASSES as PASSES_BEYOND
from wellcond.diagnosis.probes.beyond import Beyond, beyond, is_step
from wellcond.diagnosis.probes.distances import Distances, distances
from wellcond.diagnosis.probes.examples import Mixing, mixing
from wellcond.diagnosis.probes.future import Shift, shift
from wellcond.diagnosis.probes.graphs import edges_of_first_alone
from wellcond.diagnosis.probes.heard import Heard, heard
from wellcond.diagnosis.probes.judges import judged_part
from wellcond.diagnosis.probes.linearity import Linearity, linearity
from wellcond.diagnosis.probes.memory import Memory, memory
from wellcond.diagnosis.probes.noise import Noise, noise
from wellcond.diagnosis.probes.noisy_inputs import NoisyInputs, noisy_inputs
from wellcond.diagnosis.probes.one_by_one import sees_itself
from wellcond.diagnosis.probes.order import Order, order
from wellcond.diagnosis.probes.padding import Padding, padding
from wellcond.diagnosis.probes.pixels import Pixels, pixels
from wellcond.diagnosis.probes.reach import Reach, reach
from wellcond.diagnosis.probes.rewards import LoweredOdds, lowered_odds
from wellcond.diagnosis.probes.sight import Sight, sight
from wellcond.diagnosis.probes.similarities import first_is_special, mixed_similarities, similarity_floor
from wellcond.diagnosis.probes.subject import Subject
from wellcond.diagnosis.probes.uneven_terms import MOST_TERMS, UnevenTerms, uneven_terms
from wellcond.diagnosis.probes.unmeasured import Marked, marked, unmeasured
from wellcond.diagnosis.probes.unused_targets import unused_targets
from wellcond.diagnosis.probes.zero_factors import MOST_STEPS, ZeroFactors, zero_factors, zeros_among
from wellcond.network.isolation.arithmetic import own_arithmetic
from wellcond.problem.problem import Problem
from wellcond.problem.training_step import TrainingStep
from wellcond.results import Row
from wellcond.results import quantities as q


@dataclass(frozen=True)
class Behavior:
    """What a network does. A field is None if the experiment does not apply to it or `failures` says why.

    Attributes:
        mixing: Whether an example's output depends on others of its batch; None where a BatchNorm makes it so.
        edges_of_first_alone: Whether the edges of all graphs of a batch end in the first; None without a list of edges.
        shift: Which step's input each output is asked for, and whether it sees it; None if targets are not the inputs.
        pixels: Whether outputs see the pixel they are asked for; None unless images are drawn pixel after pixel.
        sees_itself: Whether outputs see the feature they are asked for; None unless features are drawn in an order.
        answers: Inputs that are what the loss asks for at places that it counts; None if it counts all, or asks for
            something else.
        memory: How far back in time a gradient reaches; None if the inputs are no sequence.
        padding: What depends on padding; None if there is none.
        unmeasured: Share of the targets that a mask next to them hides, and that count; None without such a mask.
        marked: Targets of one number far from all others that count; None without any.
        order: Whether outputs depend on the order of steps, or of blocks of an image; None for other inputs.
        mixed_similarities: Relative change of the similarities of a contrastive loss with examples that they are not
            of; None for other losses.
        first_is_special: Whether a contrastive loss compares all examples with the first; None for other losses.
        similarity_floor: Lowest loss that bounded similarities of a contrastive loss leave, over that of equal ones.
            None for other losses.
        noisy_inputs: Whether random numbers change the inputs in evaluation mode; None if nothing is drawn.
        linearity: Which stretches between layers are affine on this data.
        noise: Which values are set to zero at random, in training and in evaluation mode.
        zero_factors: Which gradients stay zero in a model with parameters of zeros; None if none do.
        heard: Which examples the loss depends on; None if the model is not called as a whole.
        sight: What the loss sees of the outputs; None if it takes no other outputs than the model's.
        reach: Which outputs the model can give, and the lowest loss of these; None if they have no bound.
        beyond: Outputs that the loss of a step pulls beyond what the model can give; None if it does not.
        judged_part: The part of the model whose results alone decide on the loss of a step, as a generator before its
            discriminator; None if there is none.
        lowered_odds: What the slope of a step's loss in the log-probabilities of actions follows, a reward or where
            they are right; None for other losses.
        distances: Slopes of the loss in distances of what a batch holds, and of what its step draws; None for others.
        uneven_terms: How hard the terms of the loss pull at what they share; None if it is no sum.
        unused_targets: Whether the loss does not depend on the targets; None if there are none next to the inputs.
        failures: What could not be probed, and why.
    """

    mixing: Mixing | None = None
    edges_of_first_alone: bool | None = None
    shift: Shift | None = None
    pixels: Pixels | None = None
    sees_itself: bool | None = None
    answers: Answers | None = None
    memory: Memory | None = None
    padding: Padding | None = None
    unmeasured: float | None = None
    marked: Marked | None = None
    order: Order | None = None
    mixed_similarities: float | None = None
    first_is_special: bool | None = None
    similarity_floor: float | None = None
    noisy_inputs: NoisyInputs | None = None
    linearity: Linearity | None = None
    noise: Noise | None = None
    zero_factors: ZeroFactors | None = None
    heard: Heard | None = None
    sight: Sight | None = None
    reach: Reach | None = None
    beyond: Beyond | None = None
    judged_part: str | None = None
    lowered_odds: LoweredOdds | None = None
    distances: Distances | None = None
    uneven_terms: UnevenTerms | None = None
    unused_targets: bool | None = None
    failures: tuple[InspectionFailure, ...] = ()

    @property
    def is_known(self) -> bool:
        """Whether any experiment applied: none may, as with a training step of the user's own."""
        return any(getattr(self, name) is not None for name in PROBES)

    def rows(self, step: int | None = None) -> Iterator[Row]:
        """The numbers of the network and of its layers."""
        if self.mixing is not None:
            yield Row(step, "", q.MIXING, self.mixing.difference, "")
        if self.shift is not None:
            yield Row(step, "", q.TARGET_SHIFT, float(self.shift.steps), "steps")
            yield Row(step, "", q.FUTURE_CHANGE, self.shift.future, "")
        if self.memory is not None:
            yield Row(step, "", q.GRADIENT_REACH, float(self.memory.reached), "steps")
        if self.padding is not None:
            yield Row(step, "", q.PADDING_SHARE, self.padding.share, "")
            yield Row(step, "", q.PADDING_IN_LOSS, self.padding.in_loss, "")
            if math.isfinite(self.padding.seen):
                yield Row(step, "", q.PADDING_INFLUENCE, self.padding.seen, "")
        if self.order is not None:
            yield Row(step, "", q.ORDER_CHANGE, self.order.change, "")
        if self.mixed_similarities is not None:
            yield Row(step, "", q.MIXED_SIMILARITIES, self.mixed_similarities, "")
        if self.noise is not None:
            dropped = self.noise.training
            yield Row(step, "", q.DROPPED_SHARE, max((call.p for call in dropped), default=0.0), "")
            yield Row(step, "", q.EVALUATION_CHANGE, self.noise.change, "")
        if self.linearity is not None:
            for layer, curvature in self.linearity.before.items():
                if math.isfinite(curvature):
                    yield Row(step, layer, q.CURVATURE_BEFORE, curvature, "")
        if self.sight is not None:
            yield Row(step, "", q.LEAST_LOSS, self.sight.least, "")
            yield Row(step, "", q.ZERO_OUTPUT_LOSS, self.sight.at_zero, "")
        if self.reach is not None:
            yield Row(step, "", q.LEAST_REACHABLE_LOSS, self.reach.least, "")


class Probe(NamedTuple):
    """An experiment.

    Attributes:
        what: What it asks, as one reads it after "could not be checked".
        measure: Carries it out.
        cost: Its cost in u (forward and backward of one mini-batch, of which a forward pass is a third), at most.
        needs: Whether a problem has what it asks about; where it has not, it costs nothing.
        where: The same in words; "" for all problems.
    """

    what: str
    measure: Callable[[Subject], Any]
    cost: float
    needs: Callable[[Problem], bool] = lambda _problem: True
    where: str = ""


PROBES: dict[str, Probe] = {
    "mixing": Probe("whether examples of a batch influence each other", mixing, 5 / 3),
    "edges_of_first_alone": Probe("whether graphs have their own edges", edges_of_first_alone, 1 / 3),
    "shift": Probe("whether outputs see what they are asked for", shift, 2.0),
    "pixels": Probe("whether outputs see the pixel they are asked for", pixels, 3.0),
    "sees_itself": Probe("whether outputs see the feature they are asked for", sees_itself, 3.0),
    "answers": Probe("whether the inputs hold what is asked for", answers, 2 / 3),
    "memory": Probe("how far back in time gradients reach", memory, 4 / 3),
    "padding": Probe("what depends on padding", padding, 0.0),
    "unmeasured": Probe("whether targets count that are not there", unmeasured, 0.0),
    "marked": Probe("whether targets count that are marked as missing", marked, 0.0),
    "order": Probe("whether the order of steps matters", order, 5 / 3),
    "mixed_similarities": Probe("whether similarities of two examples depend on others", mixed_similarities, 1.0),
    "first_is_special": Probe("whether all examples are compared with the first", first_is_special, 2.0),
    "similarity_floor": Probe("how far similarities can differ", similarity_floor, 4 / 3),
    "noisy_inputs": Probe("whether inputs change in evaluation mode", noisy_inputs, 1.0),
    "linearity": Probe("whether stretches between layers are affine", linearity, 1.0),
    "noise": Probe("which values are dropped at random", noise, 1.0),
    "zero_factors": Probe(
        "whether zeros block each other",
        zero_factors,
        2.0 + MOST_STEPS,
        lambda problem: bool(zeros_among(problem.params)),
        "a weight is all zero",
    ),
    "heard": Probe("which examples the loss depends on", heard, 4 / 3),
    "sight": Probe("what the loss sees of the outputs", sight, 0.0),
    "reach": Probe("which outputs the model can give", reach, 1.0),
    "beyond": Probe(
        "whether the loss asks for outputs that the model cannot give",
        beyond,
        PASSES_BEYOND / 3,
        is_step,
        "a step of one's own",
    ),
    "judged_part": Probe(
        "whether a part of the model judges another",
        judged_part,
        2 / 3,
        lambda problem: isinstance(problem.loss, TrainingStep),
        "a step of one's own",
    ),
    "lowered_odds": Probe(
        "whether actions that are rewarded become more likely",
        lowered_odds,
        1.0,
        lambda problem: isinstance(problem.loss, TrainingStep),
        "a step of one's own",
    ),
    "distances": Probe(
        "whether what belongs together is moved apart",
        distances,
        1.0,
        lambda problem: isinstance(problem.loss, TrainingStep),
        "a step of one's own",
    ),
    "uneven_terms": Probe("how hard each term of the loss pulls", uneven_terms, (1 + 2 * MOST_TERMS) / 3),
    "unused_targets": Probe("whether the loss uses the targets", unused_targets, 0.0),
}
"""By the field of `Behavior` that holds the result. Those of sequences cost nothing where there is none, and padding is
read from the pass of the memory."""

FIRST_PASS = 1 / 3
"""Cost of the pass that all of them start from, in u."""


def price(problem: Problem) -> float:
    """Cost of all probes of a problem, in u, at most."""
    return FIRST_PASS + sum(probe.cost for probe in PROBES.values() if probe.needs(problem))


@own_arithmetic()
def behavior(problem: Problem) -> Behavior:
    """Probe a problem with its first batch. It never raises: `failures` says what could not be probed."""
    failures = Failures()
    results: dict[str, Any] = {}
    with failures.recording("what the outputs depend on"), problem.measuring():
        subject = Subject.of(problem)
        for field, probe in PROBES.items():
            results[field] = failures.attempt(probe.what, functools.partial(probe.measure, subject), None)
    return Behavior(**results, failures=failures.recorded)
