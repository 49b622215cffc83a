"""Dimensions that are taken for others: broadcast, turned by a view, or under the softmax."""

from __future__ import annotations

import math
from collections.abc import Iterator

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.reading import outputs_of
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.rules.output_loss_mismatch.mismatch import CALLS, mismatch, seen_by_loss
from wellcond.diagnosis.threshold import Condition
from wellcond.results import number

SAME_LOSS = Condition("relative difference of two losses", 1e-4, origin="float32's rounding of a mean over a batch")
BROADCAST = Condition(
    "loss of perfect outputs, broadcast, beyond that in one shape / loss", 1e-3, origin="beyond rounding in float16"
)

NOT_RIGHT = Condition(
    "loss of outputs that are sure of the right class / loss of zeros", 0.1,
    origin="0 if the loss compares classes; a softmax over N examples of C classes leaves log(N/C)/log N",
)  # fmt: skip


@rule("output-loss-mismatch")
def broadcast(evidence: Evidence) -> Iterator[Finding]:
    """Outputs [N, 1] with targets [N], or the reverse, which a loss broadcasts to [N, N].

    The loss itself proves it: with the outputs in the shape of the targets it has another value, and perfect outputs
    have a lower one.
    """
    if (both := outputs_of(evidence)) is None:
        return
    inspection, output = both
    if output.reshaped_loss is None or output.loss is None or output.loss_kind in ("cross-entropy", "nll"):
        return
    own, other = output.perfect_loss, output.reshaped_perfect_loss
    is_same = math.isclose(output.loss, output.reshaped_loss, rel_tol=SAME_LOSS.at, abs_tol=1e-12)
    if is_same or own is None or other is None or not own > other + BROADCAST.at * abs(output.loss):
        return
    yield mismatch(
        inspection,
        output,
        f"outputs of shape {list(output.shape)} meet targets of shape {list(output.target_shape or ())}, and the loss "
        f"broadcasts them: it is {number(output.loss)} instead of {number(output.reshaped_loss)}.",
        "Every output is compared with the targets of all examples, and the best output for that is their mean.",
        "# bring outputs and targets into one shape before the loss",
        treatment="match-shapes",
        layer="",
        loss_in_one_shape=output.reshaped_loss,
    )


@rule("output-loss-mismatch")
def broadcast_in_step(evidence: Evidence) -> Iterator[Finding]:
    """A training step that compares [N, 1] predictions with [N] numbers that depend on no weight, or the reverse.

    Seen are differences, products and torch's losses of differences while the step runs, with N the batch size. Those
    of two predictions, which a ranking takes of all pairs, are meant so.
    """
    inspection = evidence.inspection
    broadcasts = () if inspection is None else inspection.broadcasts
    first = next((each for each in broadcasts if inspection and not each.predicted[0] % inspection.batch_size), None)
    if first is None:
        return
    yield Finding(
        rule="output-loss-mismatch",
        severity="severe",
        basis="proven",
        summary=f"the step combines predictions of shape {list(first.predicted)} with {list(first.fixed)} "
        f"({first.function}), which gives {first.predicted[0]} × {first.predicted[0]} numbers: each prediction meets "
        "the targets, or rewards, of all examples.",
        evidence={"examples": float(first.predicted[0]), "function": first.function},
        reason="The best answer to all targets is their mean, whatever the inputs are.",
        remedy="# give both one shape: predictions.squeeze(1), or targets.unsqueeze(1)",
    )


@rule("output-loss-mismatch")
def wrong_dimension(evidence: Evidence) -> Iterator[Finding]:
    """A softmax over another dimension than that of the classes, or over a single unit; the graph shows which.

    Over the examples, the probabilities of one example depend on the others of its batch and do not add up to one. Over
    one unit they are 1, whatever the logit.
    """
    if (both := outputs_of(evidence)) is None:
        return
    inspection, output = both
    if output.classes == 1 and output.loss_kind == "cross-entropy":
        yield mismatch(
            inspection,
            output,
            "cross_entropy over one class is 0 whatever the output: there is nothing to learn from.",
            "The probability of the only class is 1.",
            "# use nn.BCEWithLogitsLoss with labels 0 and 1, or one output per class",
        )
        return
    if output.tail[:1] not in (("Softmax",), ("LogSoftmax",)) or output.tail_dim is None:
        return
    if output.tail_dim >= len(output.shape):
        return
    size, dim = output.shape[output.tail_dim], output.tail_dim
    expected = output.class_dim if output.class_dim is not None else len(output.shape) - 1
    call = CALLS[output.tail[0]]
    if size == 1:
        yield mismatch(
            inspection,
            output,
            f"the {call} goes over one unit, so every output is {'0' if call == 'log_softmax' else '1'}.",
            "e^x / e^x is 1 whatever x is, so its gradient is zero.",
            "# return the logit, and use nn.BCEWithLogitsLoss",
            treatment="sigmoid-output",
        )
    elif dim != expected and len(output.shape) > 1 and dim == 0:
        yield mismatch(
            inspection,
            output,
            f"the {call} goes over dimension {dim}, the {size} examples of the batch, instead of dimension {expected}.",
            "The probabilities of an example then depend on the others in its batch, and do not add up to one.",
            f"# take the {call} over dim={expected}, the classes",
            treatment="class-dimension",
            dimension=float(dim),
        )


@rule("output-loss-mismatch")
def normalized_over_examples(evidence: Evidence) -> Iterator[Finding]:
    """A loss of classes that does not see a number added to all examples, and sees one added to all classes.

    That is a softmax over the examples. Distances between embeddings do not see it either, but are lowest where
    embeddings are the classes.
    """
    if (known := seen_by_loss(evidence)) is None or known[2].shifts != (0,):
        return
    inspection, output, sight = known
    if not sight.at_labels > NOT_RIGHT.at * sight.at_zero or output.shape[0] == output.shape[1]:
        return
    yield mismatch(
        inspection,
        output,
        f"the loss normalizes over the {output.shape[0]} examples of the batch, instead of the {output.shape[1]} "
        "classes: it does not see a number that is added to all examples.",
        "The probabilities of an example then depend on the others in its batch, and do not add up to one.",
        "# take the softmax inside the loss over dim=1, the classes",
        layer="",
        loss_of_right_outputs=sight.at_labels,
    )


@rule("output-loss-mismatch")
def turned_by_a_view(evidence: Evidence) -> Iterator[Finding]:
    """A view or reshape instead of a transposition: (N, T, C) read as (N, C, T).

    Both shapes have the same dimensions in another order, so the numbers of one step are spread over several. Severe if
    the result is the outputs, whose dimensions the loss reads, or if a trial does not show that the network trains;
    elsewhere dimensions may be of one size by chance, and a network that trains is not reported.
    """
    inspection, trial = evidence.inspection, evidence.trial
    if inspection is None or not inspection.turned:
        return
    outputs = {fact.shape for fact in inspection.outputs}
    at_end = [pair for pair in inspection.turned if pair[1] in outputs]
    if not at_end and (trial is None or trial.trains):
        return
    before, after = (at_end or inspection.turned)[0]
    mixing = None if evidence.behavior is None else evidence.behavior.mixing
    if mixing is not None and mixing.layer and before[0] == inspection.batch_size != after[0]:
        return  # examples end up in others: mixed-examples
    layers = inspection.weighted()
    yield Finding(
        rule="output-loss-mismatch",
        layer=layers[-1].name if at_end and layers else "",
        severity="severe",
        basis="proven",
        summary=f"a view reads {list(before)} as {list(after)} without moving the numbers in memory: those of one "
        "position end up in several.",
        evidence={"shape before": str(list(before)), "shape after": str(list(after))},
        reason="view and reshape move no numbers; only transpose and permute reorder dimensions.",
        remedy=f"# write x.permute({', '.join(map(str, _order(before, after)))}) in place of "
        f"x.view({', '.join(map(str, after))})",
    )


@rule("output-loss-mismatch")
def turned_targets(evidence: Evidence) -> Iterator[Finding]:
    """One-hot targets that were reshaped where two dimensions should be exchanged: (N, H, W, C) read as (N, C, H, W).

    The targets themselves prove it: in the other shape every place has one class, and in their own shape none of the
    dimensions is that of the classes.
    """
    if (both := outputs_of(evidence)) is None or both[1].turned_codes is None:
        return
    inspection, output = both
    before, after = both[1].turned_codes, output.shape
    yield mismatch(
        inspection,
        output,
        f"the targets of shape {list(after)} are one-hot codes in the shape {list(before)}, but not in their own: a "
        "view or reshape has scattered the classes of one place over others.",
        "view and reshape move no numbers; only transpose and permute reorder dimensions.",
        f"# write targets.permute({', '.join(map(str, _order(before, after)))}) in place of a view or reshape",
        layer="",
    )


def _order(before: tuple[int, ...], after: tuple[int, ...]) -> list[int]:
    """Which dimension each one of the result is; those of one size stay in their order."""
    left = list(range(len(before)))
    order = []
    for size in after:
        order.append(next((d for d in left if before[d] == size), left[0] if left else 0))
        left = [d for d in left if d != order[-1]]
    return order
