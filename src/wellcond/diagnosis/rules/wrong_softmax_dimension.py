"""wrong-softmax-dimension: a softmax inside the network over another dimension than the one that is summed.

Wrong:
    attention = scores.softmax(dim=0)
Right:
    attention = scores.softmax(dim=-1)
"""

from __future__ import annotations

from collections.abc import Iterator

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.inspection.attention import OfOne
from wellcond.diagnosis.inspection.inspection import Inspection
from wellcond.diagnosis.rule import rule

TURNS = ("Transpose", "Permute", "T", "Clone", "UnsafeView")
"""Operations by which a loss moves the classes to the end before it flattens."""


@rule("wrong-softmax-dimension")
def wrong_softmax_dimension(evidence: Evidence) -> Iterator[Finding]:
    """A softmax over the examples of the batch, or attention weights that are summed over another dimension.

    A softmax that is written out as e/Σe counts too. Scores of all examples with each other, (N, N), may be normalized
    over either. Weights whose logits come from a layer, and not from queries and keys, may share out positions among
    clusters, and are then summed over the positions. They may not if what they weigh are constant coordinates, and the
    sum is not divided by that of the weights: a mean place under a map lies among its places.
    """
    inspection = evidence.inspection
    if inspection is None:
        return
    for seen in inspection.attention:
        is_last = inspection.output is not None and inspection.output.shape == seen.shape
        is_of_pairs = seen.shape == (inspection.batch_size, inspection.batch_size)
        over_examples = seen.dim == 0 and seen.ndim > 1 and seen.shape[0] == inspection.batch_size
        over_examples = over_examples and not is_last and not is_of_pairs
        is_elsewhere = seen.is_summed_elsewhere and (seen.compares or seen.is_of_places) and seen.ndim >= 3
        if over_examples or is_elsewhere:
            yield Finding(
                rule="wrong-softmax-dimension",
                layer=seen.name,
                severity="severe",
                basis="proven",
                summary=f"the softmax after {seen.name} goes over dimension {seen.dim} of {list(seen.shape)}, "
                + ("the examples of the batch." if over_examples else "but the product after it sums over another."),
                evidence={"dimension": float(seen.dim), "shape": str(list(seen.shape))},
                reason="The weights of what is added up then do not sum to one.",
                treatment="class-dimension" if over_examples else "",
                remedy="# take the softmax over the positions that are looked at, the last dimension of the scores",
            )


@rule("wrong-softmax-dimension")
def over_one(evidence: Evidence) -> Iterator[Finding]:
    """A softmax over a dimension of size one: it is 1 whatever it is given, and passes no gradient on.

    Severe, or a warning if a trial shows that the network trains all the same. Attention to a single key is not
    reported, nor sequences of one step; that of a single query is, and severe, if the weights are then summed over the
    keys.
    """
    inspection = evidence.inspection
    if inspection is None:
        return
    trains = evidence.trial is not None and evidence.trial.trains
    for seen in inspection.softmaxes_of_one:
        of_queries = seen.compares and seen.is_summed_elsewhere
        if of_queries or (not seen.compares and _is_inside(inspection, seen)):
            yield Finding(
                rule="wrong-softmax-dimension",
                layer=seen.name,
                severity="warning" if trains and not of_queries else "severe",
                basis="proven",
                summary=f"the softmax after {seen.name} goes over dimension {seen.dim} of {list(seen.shape)}, which "
                "has one entry: it is 1 whatever it is given, and what comes before it is never trained.",
                evidence={"dimension": float(seen.dim), "shape": str(list(seen.shape))},
                reason="exp(a)/exp(a) = 1 for any a, with slope 0.",
                remedy="# take the softmax over the dimension that the weights are summed over after it",
            )


def _is_inside(inspection: Inspection, seen: OfOne) -> bool:
    """Whether a softmax of one is not the output itself, and not over the only step of a sequence."""
    is_last = inspection.output is not None and inspection.output.shape == seen.shape
    has_one_step = any(1 in fact.shape[1:] for fact in inspection.inputs)
    return not is_last and (not has_one_step or max(seen.shape[1:], default=1) > 1)


@rule("wrong-softmax-dimension")
def not_over_the_classes_of_ctc(evidence: Evidence) -> Iterator[Finding]:
    """Logarithms for `ctc_loss` whose softmax goes over the steps or the examples, and not over the classes, the last.

    Severe, or a warning if a trial shows that the network trains all the same.
    """
    inspection = evidence.inspection
    arguments = () if inspection is None else inspection.log_arguments
    for seen in arguments:
        classes = len(seen.shape) - 1
        if seen.function != "ctc_loss" or not seen.normalized_dims or classes in seen.normalized_dims:
            continue
        if any(True for _ in not_over_the_classes(evidence)):
            return
        over = "steps" if min(seen.normalized_dims) == 0 else "examples"
        weighted = () if inspection is None else inspection.weighted()
        yield Finding(
            rule="wrong-softmax-dimension",
            layer=weighted[-1].name if weighted else "",
            severity="warning" if evidence.trial is not None and evidence.trial.trains else "severe",
            basis="proven",
            summary=f"what ctc_loss gets, {list(seen.shape)}, sums to one over the {over}, and not over the classes, "
            "the last dimension.",
            evidence={"dimension": float(min(seen.normalized_dims)), "dimension of the classes": float(classes)},
            reason="The probabilities of the classes then do not sum to one.",
            remedy="# take the log_softmax over the classes",
        )
        return


@rule("wrong-softmax-dimension")
def not_over_the_classes(evidence: Evidence) -> Iterator[Finding]:
    """Outputs that a softmax normalizes over another dimension than that of the classes.

    The classes are the only dimension that targets of classes do not have, or the one in which targets are one-hot
    codes, or the last one of a sequence's that the loss flattens without a transposition. Severe, or a warning if a
    trial shows that the network trains all the same; of a flattened sequence severe in any case, since a softmax over
    the steps sees those to come. Cross-entropies know their classes, and a softmax over the examples at the end is
    another rule's.
    """
    inspection = evidence.inspection
    output = None if inspection is None else inspection.output
    if inspection is None or output is None:
        return
    is_nll, is_torchs = output.loss_kind == "nll", output.tail[:1] in (("Softmax",), ("LogSoftmax",))
    if (is_nll and is_torchs and output.tail_dim == 0) or not (is_nll or output.class_dim is None):
        return
    classes = output.class_dim if is_nll and not is_torchs else output.coded_dim
    is_flattened = is_nll and len(output.shape) > 2 and output.loss_operations.isdisjoint(TURNS)
    is_flattened = is_flattened and "View" in output.loss_operations
    if is_flattened:
        classes = len(output.shape) - 1
    if classes is None:
        return
    if not output.normalized_dims or classes in output.normalized_dims:
        return
    weighted, dim = inspection.weighted(), min(output.normalized_dims)
    yield Finding(
        rule="wrong-softmax-dimension",
        layer=weighted[-1].name if weighted else "",
        severity="warning" if not is_flattened and evidence.trial is not None and evidence.trial.trains else "severe",
        basis="proven",
        summary=f"the softmax of the outputs goes over dimension {dim} of {list(output.shape)}, but the "
        f"classes are dimension {classes}.",
        evidence={"dimension": float(dim), "dimension of the classes": float(classes)},
        reason="The probabilities of the classes then do not sum to one.",
        remedy=f"# take the softmax over the classes: dim={classes}",
    )
