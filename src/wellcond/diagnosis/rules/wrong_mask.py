"""wrong-mask: padding that is seen in place of what is real, or next to it.

Wrong:
    hidden = encoder(x, src_key_padding_mask=is_real)
Right:
    hidden = encoder(x, src_key_padding_mask=~is_real)
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding, Severity
from wellcond.diagnosis.probes.padding import Padding
from wellcond.diagnosis.reading import only_recurrent
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.results import number

INFLUENCE = Threshold(
    "influence of a padded step / that of a real one", 0.5, math.nan,
    origin="exactly 0 with a mask; 0.2 to 0.5 for a bidirectional GRU that runs over padding, 0.6 to 1.8 for attention "
    "without a mask",
)  # fmt: skip
UNREAD = Threshold(
    "share of real steps that outputs do not depend on, where they depend on padding", math.nan, 0.5,
    origin="exactly 0 for every pooling but a maximum, which reads no padding in place of what is real",
)  # fmt: skip
ALL = Condition("share of rows in which everything is masked", 0.99, origin="the attention sees nothing at all")
WEIGHT = Threshold(
    "influence of all padding / of all that is real, in a network that does not train", 1.0, 100.0,
    origin="after ten padded steps a fresh LSTM has 56, a GRU 140; a mean over padding has its share, 1 to 10",
)  # fmt: skip


@rule("wrong-mask")
def inverted(evidence: Evidence) -> Iterator[Finding]:
    """A module in which real steps see padding, but no other real step: its mask says the opposite of what is meant.

    Gradients of its outputs at the first and the last real step are exactly zero at all other real steps, and not at
    padded ones. Severe.
    """
    padding = None if evidence.behavior is None else evidence.behavior.padding
    if padding is None or padding.hidden is None:
        return
    yield Finding(
        rule="wrong-mask",
        layer=padding.hidden,
        severity="severe",
        basis="proven",
        summary=f"in {padding.hidden or 'the model'} real steps see the padding, {padding.share:.0%} of all places, "
        "and no other real step: the mask is inverted.",
        evidence={"share of padding": padding.share, "influence of padding": padding.seen},
        reason="In torch's key_padding_mask True hides a place, in attention masks of other libraries it shows it.",
        remedy="# invert the mask: src_key_padding_mask=~mask, or masked_fill(~mask, float('-inf')) of the scores, "
        "where the mask is True for what is real",
    )


@rule("wrong-mask")
def pooled(evidence: Evidence) -> Iterator[Finding]:
    """Outputs that are read from padding, and do not depend on most of what is real.

    Gradients of the outputs are exactly zero at most real steps of padded examples, and not at padded ones: a mean over
    the padding, or a short window at its end. Severe.
    """
    padding = None if evidence.behavior is None else evidence.behavior.padding
    if padding is None or padding.hidden is not None or not UNREAD.is_severe(padding.unread):
        return
    yield Finding(
        rule="wrong-mask",
        layer=padding.pool,
        severity="severe",
        basis="proven",
        summary=f"the outputs depend on padding, {padding.share:.0%} of all places, and on {1 - padding.unread:.0%} of "
        "the real steps only: they are read from the padding.",
        evidence={"share of padding": padding.share, "share of real steps that are not read": padding.unread},
        limits=UNREAD.limits(),
        reason="A mask that is 1 where it should be 0 leaves the padding, which is the same in every example.",
        remedy="# invert the mask of the pooling: it is 1 for real steps, (hidden * mask).sum(1) / mask.sum(1)",
    )


@rule("wrong-mask")
def all_masked(evidence: Evidence) -> Iterator[Finding]:
    """Attention in all of whose rows everything is masked: a softmax of nothing.

    Severe. A part of the rows, such as those of empty texts, is `non-finite` if it makes NaN. Rows of padded queries,
    filled with a large negative number, are ordinary: they become an even mean, and nobody reads them.
    """
    inspection = evidence.inspection
    for layer, share in () if inspection is None else inspection.all_masked:
        if share >= ALL.at:
            yield Finding(
                rule="wrong-mask",
                layer=layer,
                severity="severe",
                basis="proven",
                summary=f"in {share:.0%} of the rows of the attention in {layer or 'the model'} every entry is masked.",
                evidence={"share of rows": share},
                reason="A softmax over nothing is NaN, or, with a large negative number in place of -inf, an even mean "
                "of all that should be hidden.",
                remedy="# look at the mask: is it inverted, and does every row leave at least one entry open",
            )


@rule("wrong-mask")
def shows_nothing(evidence: Evidence) -> Iterator[Finding]:
    """Attention to places whose values are all the same, while those that its mask hides differ: it is inverted.

    So are padded places that were set to zero, or hold one embedding. Severe.
    """
    inspection = evidence.inspection
    for layer in () if inspection is None else inspection.hides_all:
        yield Finding(
            rule="wrong-mask",
            layer=layer,
            severity="severe",
            basis="proven",
            summary=f"the attention in {layer or 'the model'} sees places whose values are all the same, and its mask "
            "hides all others: it is inverted.",
            reason="What it returns is the same for every example. In torch's key_padding_mask True hides a place.",
            remedy="# invert the mask: key_padding_mask=~mask where the mask is True for what is real",
        )


@rule("wrong-mask")
def padding_seen(evidence: Evidence) -> Iterator[Finding]:
    """Padding that moves outputs as real steps do, at half of their influence or more.

    A warning if the model gets a mask or lengths, which then have no effect, unless the trial shows that it trains
    well. If the trial does not show that it trains, a warning where all padding together moves the outputs more than
    what is real, and severe from a hundred times more on: a state that has run over many padded steps has forgotten the
    rest. Otherwise a note: convolutional and recurrent networks often read padding, and learn to ignore it.
    """
    padding = None if evidence.behavior is None else evidence.behavior.padding
    if padding is None or padding.hidden is not None or not INFLUENCE.is_warning(padding.seen):
        return
    in_vain = ", although the model gets a mask or lengths" if padding.is_masked else ""
    yield Finding(
        rule="wrong-mask",
        layer=padding.pool or only_recurrent(evidence.problem.model),
        severity=_severity(evidence, padding),
        basis="proven",
        summary=f"padding, {padding.share:.0%} of all places, moves the outputs {number(padding.seen)} times as much "
        f"as real steps do{in_vain}.",
        evidence={
            "share of padding": padding.share,
            "influence of padding": padding.seen,
            "influence of all padding": padding.weight,
        },
        reason="An answer that depends on how far a batch is padded differs from batch to batch; a state that runs "
        "over many padded steps forgets what was before.",
        remedy="# mask padded places wherever steps are combined: src_key_padding_mask in attention, a mean over real "
        "steps alone, pack_padded_sequence before a recurrent layer",
    )


def _severity(evidence: Evidence, padding: Padding) -> Severity:
    trial = evidence.trial
    if trial is not None and not trial.trains and WEIGHT.is_warning(padding.weight):
        return "severe" if WEIGHT.is_severe(padding.weight) else "warning"
    return "warning" if padding.is_masked and not (trial is not None and trial.trains_well) else "note"
