"""mixed-examples: outputs of an example that depend on the other examples of its batch.

Wrong:
    self.lstm = nn.LSTM(8, 32)  # on inputs of shape (batch, time, features)
Right:
    self.lstm = nn.LSTM(8, 32, batch_first=True)

Wrong:
    z = F.normalize(z, dim=0)  # before a contrastive loss
Right:
    z = F.normalize(z, dim=-1)
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.threshold import Condition, Threshold

CHANGE = Threshold(
    "‖f − f'‖/‖f‖ of outputs alone and in a batch", 1e-3, 1e-3,
    origin="rounding in float32, over a hundred layers, is below 1e-4",
)  # fmt: skip

STATISTICS = Condition(
    "the same, where the order of the examples does not matter", 0.5,
    origin="0.2 to 0.4 for features that are standardized over eight examples instead of 32; about 1 for a norm over "
    "the batch, which grows with it",
)  # fmt: skip


@rule("mixed-examples")
def mixed_examples(evidence: Evidence) -> Iterator[Finding]:
    """Outputs of an example that depend on the others of its batch, without a BatchNorm.

    The last few examples are passed through once more, alone. Severe: outputs then belong to other examples, whatever
    the loss does, as after a recurrent or attention layer that is not `batch_first`, which takes the examples for steps
    of a sequence. If the order of the examples does not matter they are statistics over a batch, as a BatchNorm's: a
    note if outputs change by less than a half and the network trains, and a warning otherwise. Where the outputs are
    the same for all examples, as at a first token that they share, the layers without `batch_first` are compared.
    """
    mixing = None if evidence.behavior is None else evidence.behavior.mixing
    if mixing is None or mixing.difference < CHANGE.warn:
        return
    module = dict(evidence.problem.model.named_modules()).get(mixing.layer)
    is_turned = getattr(module, "batch_first", True) is False
    are_statistics = mixing.is_symmetric and not is_turned
    does_not_train = evidence.trial is not None and not evidence.trial.trains
    is_slight = are_statistics and mixing.difference < STATISTICS.at and not does_not_train
    yield Finding(
        rule="mixed-examples",
        layer=mixing.layer,
        severity="severe" if not are_statistics else "note" if is_slight else "warning",
        basis="proven",
        summary=(
            f"what {mixing.layer} gives for an example changes by {mixing.difference:.0%} with the others of its "
            "batch, and the outputs of the model are the same for all: it"
            if mixing.is_inside
            else f"the outputs of an example change by {mixing.difference:.0%} with the others of its batch, first at "
            f"{mixing.layer or 'the model'}"
        )
        + (
            "."
            if not is_turned
            else f"{' ' if mixing.is_inside else ', which '}takes the batch for the steps of a sequence "
            "(batch_first=False)."
        ),
        evidence={"relative change": mixing.difference},
        reason="Statistics over a batch differ in use, one example at a time, unless running ones are kept as in "
        "BatchNorm."
        if are_statistics
        else "The loss of example i must depend on input i alone: one dimension has been taken for another.",
        remedy="# use a BatchNorm for statistics over the batch: it keeps running ones for use"
        if are_statistics
        else _advice(evidence, mixing.layer, module if is_turned else None),
    )


def _advice(evidence: Evidence, layer: str, turned: nn.Module | None) -> str:
    """What to write: for a view that takes examples for something else, or a layer that takes them for steps."""
    inspection = evidence.inspection
    views = () if inspection is None else inspection.turned
    for before, after in views:
        if inspection is not None and before[0] == inspection.batch_size != after[0]:
            return f"# move the examples with transpose or permute: a view reads {list(before)} as {list(after)}"
    if isinstance(turned, (nn.RNNBase, nn.MultiheadAttention)):
        return f"model.get_submodule({layer!r}).batch_first = True"
    where = layer or "the model"
    return f"# look at what {where} takes: one of its dimensions counts the examples, and is used for another"


@rule("mixed-examples")
def edges_in_first_graph(evidence: Evidence) -> Iterator[Finding]:
    """Graphs that are put together into a batch, with a list of edges that change the outputs of the first one alone.

    The last quarter of the edges is exchanged for the first edge. Severe.
    """
    if evidence.behavior is None or not evidence.behavior.edges_of_first_alone:
        return
    yield Finding(
        rule="mixed-examples",
        severity="severe",
        basis="proven",
        summary="the last edges of a batch change the output of its first graph and of no other: all edges end among "
        "the nodes of the first graph.",
        reason="Nodes of a batch are counted on from graph to graph, and the ends of edges must be, too: the other "
        "graphs have none.",
        remedy="# add the number of nodes before a graph to the ends of its edges, where the batch is put together",
    )


@rule("mixed-examples")
def similarities_mixed(evidence: Evidence) -> Iterator[Finding]:
    """A contrastive loss whose similarity of two examples depends on a third one, other than by a BatchNorm.

    Half of the examples are exchanged, and the similarities of the others change by more than 0.1 %. A warning, and
    severe if the loss does not go down in a trial. Statistics over the batch, which a shift of all vectors leaves as
    they are, are intended and not reported.
    """
    change = None if evidence.behavior is None else evidence.behavior.mixed_similarities
    if change is None or not change >= CHANGE.warn:
        return
    yield Finding(
        rule="mixed-examples",
        severity="severe" if evidence.trial is not None and evidence.trial.trains is False else "warning",
        basis="proven",
        summary=f"the similarities that the loss compares change by {change:.1%} with examples that they are not of.",
        evidence={"relative change": change},
        reason="The similarity of two examples must be that of their own vectors: one dimension has been taken for "
        "another, as by a normalization over the examples instead of the features.",
        remedy="# normalize the vector of each example, F.normalize(z, dim=-1), and no feature over the batch",
    )
