"""loss-not-decreasing: a network that learns nothing at any rate, not even a handful of examples.

Wrong:
    features = self.encoder(x)
    return self.head(self.start.expand(len(x), -1))  # the features are never used
Right:
    features = self.encoder(x)
    return self.head(features)
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.handful import LEAST_GAIN, Handful
from wellcond.diagnosis.probes.paired import Paired
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.runs import run_rows
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.diagnosis.trial_result import FALLING, HARDLY_ANY_GAIN, NO_GAIN, RATES_TRIED, RISING, Attempt, Trial
from wellcond.results import number
from wellcond.results.quantities import TRAINING_LOSS

FIT = Threshold(
    "fall of the loss of eight examples / loss of a constant", math.nan, 0.05, bad="below",
    origin="healthy networks of the benchmarks reach 0.17 to 1.0 in 53 steps of Adam",
)  # fmt: skip
ABOVE = Condition(
    "loss after / loss of a constant, of the run with its own optimizer",
    0.97,
    origin="three per cent are the noise of a run",
)
PREDICTS = Threshold(
    "the best of three probes of the data, in standard deviations of shuffled targets", 8.0, math.nan,
    origin="chance exceeds 4 once in 30,000 probes; data sets of the benchmarks have 5 to 230",
)  # fmt: skip
PROPORTIONATE = Condition(
    "fall at the highest rate / largest fall at a lower one", 4.0,
    origin="10 for a tenfold rate where the loss falls in proportion to it; about 1 or less where nothing is learned",
)  # fmt: skip

HALVED = Condition("loss of eight examples after / before", 0.5, origin="it fell to a constant's, and may go on")
NEARLY_CONSTANT = Condition("the same", 0.01, origin="a squared error of a tenth of the size is left")
LEAVES = Condition("loss of eight examples after 160 steps / after 53", 0.95, origin="it goes on falling")
EXCHANGED = Condition(
    "(loss with the outputs of other examples − loss) / the larger, after its own run", 0.05,
    origin="0.1 to 1 in healthy networks; 0.01 in those that start slowly",
)  # fmt: skip
NOT_APART = Threshold(
    "the same of eight examples trained with Adam in training mode", math.nan, LEAST_GAIN, bad="below",
    origin="0.8 to 1 in healthy networks, also in those that start slowly, 0.35 in variational autoencoders; below "
    "0.1 where the code is all noise",
)  # fmt: skip


@rule("loss-not-decreasing", quantity=TRAINING_LOSS)
def does_not_decrease(evidence: Evidence) -> Iterator[Finding]:
    """The loss does not get below a constant prediction's, and neither does that of eight examples trained with Adam.

    Severe if Adam, at the better of two rates, gets eight examples in 160 steps no further than 5 % below a constant (a
    warning if there is no time for these and the loss fell to a constant's: it may stay there for a while), and the
    network's own run ends no lower than 3 % below a constant. Where no constant is known, as for a training step, no
    run may fall by more than chance: a loss against noise that is drawn anew has a floor. Severe, too, if its own run
    and those at all other rates that were tried, two at least, end no lower than 7 % below a constant (1 % where the
    own run has less than 50 steps, or 4 standard errors where its outputs are worth more to their own examples than to
    others, as for a ranking) although a probe of the data, by the nearest neighbor, a linear or a smooth fit, predicts
    the targets 8 standard deviations better than chance, and Adam cannot fit eight examples either: then neither the
    rate nor the labels are to blame. A warning if it can, or if there is no such probe: the network may only start
    slowly. A warning, too, if its own run alone stands still: it moves by less than 0.5 % and less than its standard
    error. A network that had learned before is not reported, nor a loss of exactly zero, as of triplets that keep their
    margins.
    """
    trial = evidence.trial
    if trial is None or trial.has_learned or trial.loss == 0:
        return
    own, few = trial.own, trial.few
    cannot_fit = _cannot_fit_few(trial)
    is_above = own is None or not own.loss < ABOVE.at * (trial.loss if trial.constant is None else trial.constant)
    does_fall = trial.constant is None and any(trial.outcome(each) in FALLING for each in trial.attempts)
    is_severe = (
        cannot_fit and is_above and not (does_fall or any(trial.outcome(each) == "learns" for each in trial.others))
    )
    is_short = cannot_fit and few is not None and few.later is None and few.after < HALVED.at * few.before
    if cannot_fit and few is not None and few.after < NEARLY_CONSTANT.at * few.before:
        return  # what is left are the small differences between targets that are nearly the same
    stands_still = own is not None and trial.trains is False and trial.outcome(own) not in RISING
    is_lost = _is_lost(trial)
    if trial.uphill or not (is_severe or stands_still or is_lost):
        return
    numbers: dict[str, float | str] = {"loss before": trial.loss}
    clauses = []
    if own is not None:
        steps = len(own.run.losses)
        numbers |= {"loss after": own.loss, "steps": float(steps)}
        clauses.append(f"the loss goes from {number(trial.loss)} to {number(own.loss)} in {steps} steps")
    if trial.constant is not None:
        numbers["loss of the best constant"] = trial.constant
    if few is not None:
        numbers |= {"handful, loss before": few.before, "handful, loss after": few.after}
        clauses.append(
            f"Adam {'cannot' if cannot_fit else 'can'} fit a handful of examples ({number(few.before)} to "
            f"{number(few.after)} in {len(few.run.losses)} steps)"
        )
    relation = trial.relation or trial.token_relation
    can_be_told = relation is not None and PREDICTS.is_warning(relation.best)
    may_start_slowly = is_lost and can_be_told and few is not None and not cannot_fit
    if is_lost:
        numbers |= {"rates": float(len(trial.attempts))}
        rates = [number(each.lr) for each in (trial.attempts[0], trial.attempts[-1])]
        although = ""
        if can_be_told and relation is not None:
            numbers |= {"best probe of the data, in σ": relation.best}
            although = ", although the inputs predict the targets"
        clauses.insert(1, f"at no rate from {rates[0]} to {rates[1]} is anything learned{although}")
    yield Finding(
        rule="loss-not-decreasing",
        severity="severe" if (is_severe or (is_lost and cannot_fit and can_be_told)) and not is_short else "warning",
        basis="tried",
        summary=f"{'; '.join(clauses)}.",
        evidence=numbers,
        reason="It fits a handful of examples, so it may only start slowly, as with a loss that has a plateau; or what "
        f"the inputs tell of the targets is lost between them and the loss. {_ruled_out(evidence)}"
        if may_start_slowly
        else f"What the inputs tell of the targets is lost between them and the loss. {_ruled_out(evidence)}"
        if is_lost and can_be_told
        else "Any sound network can fit eight examples; one that cannot gets no gradient that distinguishes them."
        if cannot_fit
        else "Its optimizer does not get the network to learn; whether it can learn was not tried."
        if few is None
        else "The network can learn, since it fits a handful of examples, but its optimizer does not get it to.",
        remedy="# train ten times as long; if the loss still stands there, compare the order of examples and "
        "dimensions after each layer, and what the loss compares with what"
        if may_start_slowly
        else "# compare the order of examples and dimensions after each layer, and what the loss compares with what"
        if is_lost and can_be_told
        else "# look at the model's forward, the loss and the labels: the rate is not what is wrong"
        if cannot_fit
        else "# race other learning rates with wc.suggest_lr, and Adam against this optimizer",
        rows=run_rows(trial, *(() if own is None else (own,))),
    )


@rule("loss-not-decreasing", quantity=TRAINING_LOSS)
def tells_nothing_apart(evidence: Evidence) -> Iterator[Finding]:
    """A loss that falls, but as much if every example has the outputs of another one.

    Severe if giving outputs to other examples changes the loss by less than 5 % after the network's own run, and by
    less than 2 % after 160 steps of Adam on eight examples (15 % where noise explains it): what falls is a penalty,
    such as a KL term or a decay, or a variance; of the examples nothing is learned. A loss that does not depend on
    which example outputs belong to, as that of a generator, is not judged; nor is one below zero, such as a value that
    a critic gives: one answer may be the best for all.
    """
    trial = evidence.trial
    if trial is None or (runs := without_learning(trial)) is None:
        return
    own, _, of_own, of_few = runs
    if min(trial.loss, own.loss) < 0:
        return
    yield Finding(
        rule="loss-not-decreasing",
        severity="severe",
        basis="tried",
        summary=f"the loss goes from {number(trial.loss)} to {number(own.loss)} in {len(own.run.losses)} steps, but "
        "nothing is learned of the examples: after them, that of the first batch is "
        f"{number(of_own.of_others)} with the outputs of others instead of {number(of_own.loss)}. Adam does not tell a "
        f"handful of them apart either ({number(of_few.of_others)} instead of {number(of_few.loss)}).",
        evidence={
            "loss before": trial.loss,
            "loss after": own.loss,
            "gain by the right outputs": of_own.gain,
            "the same of a handful": of_few.gain,
        },
        limits=NOT_APART.limits(),
        reason="A term that does not ask for the right answer outweighs the one that does, or cuts off what it needs: "
        "a KL term that is summed where the reconstruction is averaged, a penalty of the weights, a variance that pays "
        "for any error.",
        remedy="# print each term of the loss: weigh down the penalty (KL, decay, variance) that outweighs the fit, "
        "and look for what cuts off a gradient",
        rows=run_rows(trial, own),
    )


@rule("loss-not-decreasing", quantity=TRAINING_LOSS)
def no_better_than_one_answer(evidence: Evidence) -> Iterator[Finding]:
    """A step that learns to tell examples apart at no rate: its loss stays at that of one answer for all.

    Its own run ends no lower than 7 % below what the mean of its outputs would have for all examples (1 % where it has
    less than 50 steps), and two others at least no lower than 7 % below that run. A warning, and a note if it has
    come down to one answer in these steps, and fits a handful of examples or has less than 50: then it may only start
    slowly, as variational autoencoders and language models do. Not reported where the loss does not depend on which
    example outputs belong to, or follows the model.
    """
    trial = evidence.trial
    own, answer = (None, None) if trial is None else (trial.own, trial.one_answer)
    if trial is None or own is None or own.paired is None or answer is None or trial.constant is not None:
        return
    if not answer.is_compared or not answer.loss > 0 or len(trial.attempts) < RATES_TRIED:
        return
    least = NO_GAIN if trial.is_long else HARDLY_ANY_GAIN
    if own.paired.loss < least * answer.loss or any(each.loss < NO_GAIN * own.loss for each in trial.others):
        return
    rates = [number(each.lr) for each in (trial.attempts[0], trial.attempts[-1])]
    fits_few = trial.few is not None and trial.few.is_fitted
    yield Finding(
        rule="loss-not-decreasing",
        severity="note" if (fits_few or not trial.is_long) and own.loss < NO_GAIN * trial.loss else "warning",
        basis="tried",
        summary=f"after {len(own.run.losses)} steps the loss of the first batch is {number(own.paired.loss)}, and "
        f"{number(answer.loss)} if all examples have the mean of the outputs; at no rate from {rates[0]} to {rates[1]} "
        f"is it clearly lower: examples are not told apart{', though a handful is' if fits_few else ''}.",
        evidence={"loss": own.paired.loss, "loss of one answer": answer.loss, "rates": float(len(trial.attempts))},
        reason="It may only start slowly, since Adam fits a handful of examples."
        if fits_few
        else "What would tell the examples apart does not come to the outputs, or is not what the loss asks for.",
        remedy="# train ten times as long, and look whether the loss gets below that of one answer"
        if fits_few
        else "# try to fit eight examples with Adam; then compare what each layer makes of two of them",
        rows=run_rows(trial, own),
    )


def without_learning(trial: Trial) -> tuple[Attempt, Handful, Paired, Paired] | None:
    """The network's own run and that on a handful, with what outputs are worth, if they may be another example's."""
    own, few = trial.own, trial.few
    if trial.has_learned or own is None or few is None or own.paired is None or few.paired is None:
        return None
    if own.paired.gain >= EXCHANGED.at or not few.tells_nothing:
        return None
    return own, few, own.paired, few.paired


def _ruled_out(evidence: Evidence) -> str:
    """What else the probes show not to be the cause, in a sentence."""
    behavior = evidence.behavior
    sight, mixing = (None, None) if behavior is None else (behavior.sight, behavior.mixing)
    innocent = ["the rate", "the labels"]
    if sight is not None and not (sight.is_unpaired or sight.ignores_targets or sight.is_crossed or sight.is_even):
        innocent.append("the loss, which compares each output with its own target")
    if mixing is not None and not mixing.layer:
        innocent.append("other examples of the batch, which no output depends on")
    return f"Ruled out: {'; '.join(innocent)}."


def _is_lost(trial: Trial) -> bool:
    """Whether no rate that was tried learns anything, although the network's own is not only too low.

    If the highest rate falls, and far further than its own, rates at which something is learned are above all that were
    tried.
    """
    if not trial.learns_nothing:
        return False
    highest = trial.attempts[-1]
    is_fastest = trial.fall(highest, early=True)[0] > PROPORTIONATE.at * max(
        trial.fall(each, early=True)[0] for each in trial.attempts[:-1]
    )
    return not (is_fastest and trial.outcome(highest) in FALLING)


def _cannot_fit_few(trial: Trial) -> bool:
    """Whether Adam has tried to fit a handful of examples that had a loss, and could not.

    A handful may have none although others do: eight examples of one class, say, make no triplet.
    """
    few = trial.few
    if (
        few is None
        or abs(few.before) <= NEARLY_CONSTANT.at * abs(trial.loss)
        or (few.later is not None and few.later < LEAVES.at * few.after)
    ):
        return False
    return FIT.is_severe(few.fall)
