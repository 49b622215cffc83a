"""non-finite: NaN or infinity, before training or after its first steps.

Wrong:
    loss = F.nll_loss(torch.log(logits.softmax(1)), labels)
Right:
    loss = F.cross_entropy(logits, labels)
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import nn
from torch.optim import Optimizer

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.inspection.inspection import Inspection
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.trial_result import FALLING
from wellcond.network.calling import dtype_name
from wellcond.problem.not_finite import LayerOutput, first_not_finite
from wellcond.results import number

OVERFLOW = "# keep weights and inputs in float32, and use torch.autocast: half precision ends at 65504"


@rule("non-finite")
def non_finite(evidence: Evidence) -> Iterator[Finding]:
    """NaN or infinity before any step, reported at its first place.

    That is the data, the weights, buffers such as running statistics or what the optimizer remembers, a layer's output,
    the loss, or a gradient. No threshold: one is enough. Where an attention has rows in which every entry is masked,
    such as those of empty texts, it is named. NaN in the data is how missing values are marked, and not reported where
    loss and gradients are finite all the same.
    """
    if evidence.inspection is None or evidence.inspection.is_finite:
        return
    places = (_in_data, _in_weights, _in_states, _in_layers, _in_loss, _in_gradients)
    yield from [finding for place in places if (finding := place(evidence)) is not None][:1]


@rule("non-finite")
def in_a_later_batch(evidence: Evidence) -> Iterator[Finding]:
    """A batch after the first ones whose loss is NaN or infinite in training mode.

    A copy sees batches of an epoch, as far as a second allows, that hold NaN or infinity, or a text of
    padding alone, or differ in shape from those before.
    """
    refused = None if evidence.inspection is None else evidence.inspection.refused
    if refused is None or refused.error:
        return
    which = f"the last batch, of {refused.examples} examples" if refused.index is None else f"batch {refused.index}"
    inside = f": it holds {refused.not_finite} values that are NaN or infinite" if refused.not_finite else ""
    yield _finding(
        "",
        f"the loss of {which} is not finite{inside}.",
        {"examples in the batch": float(refused.examples), "values that are not finite": float(refused.not_finite)},
        "# look at the inputs and targets of this batch, and leave out or fill in what is missing"
        if refused.not_finite
        else "# look at what the model and the loss divide by in this batch; drop_last=True leaves out a last one",
    )


def _finding(
    layer: str,
    summary: str,
    evidence: dict[str, float | str],
    remedy: str,
    treatment: str = "",
    begins_here: bool = False,
) -> Finding:
    return Finding(
        rule="non-finite",
        layer=layer,
        severity="severe",
        basis="proven",
        summary=summary,
        evidence=evidence,
        reason="One NaN in the loss makes every gradient NaN, and after the next step every weight.",
        treatment=treatment,
        remedy=remedy,
        begins_here=begins_here,
    )


def _in_data(evidence: Evidence) -> Finding | None:
    inspection = _of(evidence)
    facts = [(fact.name, fact.not_finite) for fact in (*inspection.inputs, *inspection.targets)]
    is_left_out = inspection.loss is not None and math.isfinite(inspection.loss) and _in_gradients(evidence) is None
    if is_left_out or (origin := first_not_finite(facts, [], [])) is None:
        return None
    remedy = f"# drop the rows of the {origin.name} that are not finite where the data set is made, or fill them in"
    return _finding("", origin.sentence, {"values": float(origin.amount)}, remedy, begins_here=True)


def _in_weights(evidence: Evidence) -> Finding | None:
    weights = _of(evidence).weights
    lost = [w for w in weights if w.not_finite]
    if not lost:
        return None
    first, values = lost[0], sum(w.not_finite for w in lost)
    if len(lost) == len(weights):
        summary = f"all {len(lost)} parameters hold NaN or infinity, {first.name!r} first: the run has diverged."
    else:
        others = f", and so do {len(lost) - 1} of the {len(weights) - 1} others" if len(lost) > 1 else ""
        is_one = first.not_finite == 1
        amount = "one value that is" if is_one else f"{first.not_finite} values that are"
        summary = f"parameter {first.name!r} holds {amount} NaN or infinite{others}."
    numbers: dict[str, float | str] = {"values": float(values), "parameters": float(len(lost))}
    return _finding(first.layer or first.name, summary, numbers, _back_to_a_checkpoint(evidence), begins_here=True)


def _in_states(evidence: Evidence) -> Finding | None:
    """NaN that is left when only the parameters were restored."""
    states = _of(evidence).nan_states
    if not states:
        return None
    first = states[0]
    others = f", and so do {len(states) - 1} other states" if len(states) > 1 else ""
    summary = f"{first.name} holds NaN ({first.values}){others}, although all parameters are finite."
    remedy = "# restore buffers and optimizer from the checkpoint too: load_state_dict(), or create both anew"
    numbers: dict[str, float | str] = {"values": float(first.values), "states": float(len(states))}
    return _finding(first.layer, summary, numbers, remedy, begins_here=True)


def _back_to_a_checkpoint(evidence: Evidence) -> str:
    rate = "at a tenth of the rate"
    if evidence.optimizer is not None:
        lr = max(float(group["lr"]) for group in evidence.optimizer.param_groups)
        rate = f"at a lower rate, {lr / 10:.2g} instead of {lr:.2g}"
    return (
        f"# restore model and optimizer from a checkpoint before the NaN, or create both anew, go on {rate}, and run "
        "wc.diagnose there"
    )


def _in_layers(evidence: Evidence) -> Finding | None:
    """In a layer's output, or the code before a layer."""
    inspection = _of(evidence)
    layers = [
        LayerOutput(signal.name, signal.kind, signal.not_finite, signal.has_finite_input)
        for signal in inspection.signals
        if not signal.is_nonlinearity
    ]
    if (origin := first_not_finite([], [], layers)) is None:
        return None
    if inspection.all_masked:
        where, share = inspection.all_masked[0]
        return _finding(
            where or origin.name,
            f"{origin.sentence.rstrip('.')}: in {share:.0%} of the rows of the attention in {where or 'the model'} "
            "every entry is masked, and a softmax over nothing is NaN.",
            {"share": float(origin.amount), "share of rows": share},
            "# leave out examples that are empty or open one entry of each row: masked_fill(mask & ~mask.all(-1, "
            "keepdim=True), float('-inf')); a mask that should be the other way round hides all of full rows",
        )
    is_half = any(weight.dtype.itemsize == 2 for weight in inspection.weights)
    remedy = OVERFLOW if is_half else "# add eps inside the root, the division or the logarithm"
    return _finding(origin.name, origin.sentence, {"share": float(origin.amount)}, remedy)


def _of(evidence: Evidence) -> Inspection:
    assert evidence.inspection is not None  # the rule has looked
    return evidence.inspection


def _in_loss(evidence: Evidence) -> Finding | None:
    inspection = _of(evidence)
    if inspection.loss is None or math.isfinite(inspection.loss):
        return None
    output = inspection.output
    numbers: dict[str, float | str] = {"loss": str(inspection.loss)}
    if output is not None and output.log_low is not None and output.log_low <= 0:
        numbers["smallest argument"] = output.log_low
        what = "0" if output.log_low == 0 else f"{number(output.log_low)}, which is negative"
        summary = f"the loss is {inspection.loss}: it takes the logarithm of {what}, although all outputs are finite."
        remedy = "# use a loss of logits, such as nn.CrossEntropyLoss, or clamp what goes into the logarithm"
        return _finding("", summary, numbers, remedy, "cross-entropy")
    summary = f"the loss is {inspection.loss} although all outputs are finite: it arises in the loss itself."
    return _finding(
        "", summary, numbers, "# look for a logarithm, a root, a division by 0 or a mean of nothing in the loss"
    )


def _in_gradients(evidence: Evidence) -> Finding | None:
    broken = [w for w in _of(evidence).weights if w.gradient_not_finite]
    if not broken:
        return None
    last = max(broken, key=lambda w: -1 if w.order is None else w.order)
    others = f", and so are those of {len(broken) - 1} other parameters" if len(broken) > 1 else ""
    summary = f"the gradient of {last.name} is NaN or infinite although the loss is finite{others}."
    remedy = "# sqrt(x) and x ** p have an infinite slope at 0, and where() passes NaN on: torch.sqrt(x + 1e-8)"
    return _finding(last.layer or last.name, summary, {"parameters": float(len(broken))}, remedy)


@rule("non-finite")
def not_finite_after_steps(evidence: Evidence) -> Iterator[Finding]:
    """The loss is NaN or infinite after the first steps at every rate, although it is finite before.

    In half precision Adam's ε below 6·10⁻⁸, the smallest number there, is zero, and 0/0 is NaN where a gradient is
    zero, after one step. Otherwise the finding names what the run reported as not finite.
    """
    trial, optimizer = evidence.trial, evidence.optimizer
    if trial is None or trial.own is None or optimizer is None or trial.own.run.diverged_at is None:
        return
    if any(trial.outcome(each) in FALLING for each in trial.others) or trial.uphill:
        return
    if all(each.has_raised for each in trial.attempts):
        return  # model-fails
    at = trial.own.run.diverged_at
    vanished = _vanished_epsilon(evidence.problem.params, optimizer)
    if vanished is not None:
        name, epsilon, dtype, least = vanished
        yield Finding(
            rule="non-finite",
            severity="severe",
            basis="tried",
            summary=f"the loss is NaN at step {at}: eps={epsilon:g} is zero in {dtype_name(dtype)}, whose smallest "
            f"number is {least:.1g}, so Adam divides 0 by 0 where a gradient is zero.",
            evidence={"eps": epsilon, "smallest number": least, "step": float(at), "first such parameter": name},
            reason="Adam divides by √v + ε in the precision of the parameter.",
            treatment="larger-eps",
            remedy='for group in optimizer.param_groups:\n    group["eps"] = 1e-4',
        )
        return
    lowest = min((each.lr for each in trial.attempts), default=trial.own.lr)
    cause = f": {trial.own.run.cause.rstrip('.')}" if trial.own.run.cause else ""
    yield Finding(
        rule="non-finite",
        severity="severe",
        basis="tried",
        summary=f"the loss is NaN or infinite at step {at}"
        + (f", and so it is at every rate down to {number(lowest)}" if lowest < trial.own.lr else "")
        + f"{cause}.",
        evidence={"loss before": trial.loss, "step": float(at), "lowest lr tried": lowest},
        reason="A loss that no rate keeps finite has a logarithm, a division or a root at the end of its range, or "
        "overflows.",
        remedy="# train under torch.autograd.set_detect_anomaly(True), which names the operation",
    )


def _vanished_epsilon(
    params: dict[str, nn.Parameter], optimizer: Optimizer
) -> tuple[str, float, torch.dtype, float] | None:
    """The first parameter in whose precision its group's ε is zero."""
    names = {id(p): name for name, p in params.items()}
    for group in optimizer.param_groups:
        epsilon = group.get("eps")
        for p in group["params"]:
            if epsilon is not None and p.is_floating_point() and not torch.tensor(float(epsilon)).to(p.dtype) > 0:
                return names.get(id(p), ""), float(epsilon), p.dtype, torch.finfo(p.dtype).smallest_normal / 1024
    return None
