"""future-seen: outputs that see the inputs they are asked for.

Wrong:
    hidden = encoder(x)  # and then the next token is predicted from it
Right:
    causal = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
    hidden = encoder(x, mask=causal, is_causal=True)
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.rules.wrong_softmax_dimension import not_over_the_classes
from wellcond.diagnosis.threshold import Threshold

CHANGE = Threshold(
    "‖f − f'‖/‖f‖ of the outputs before a step, with other inputs from this step on", 1e-3, 1e-3,
    origin="exactly 0 in causal networks; 0.03 with a mask that is one step off, in a fresh network of 16 steps",
)  # fmt: skip


@rule("future-seen")
def future_seen(evidence: Evidence) -> Iterator[Finding]:
    """Outputs at step t that are asked for the input at a later step, and depend on it.

    In half of the sequences, inputs from the middle on are exchanged between examples; outputs before them must not
    change if the targets are the inputs of a later step. Severe: training fits what it can read, and in use there is
    nothing to read. Taggers, masked language models and autoencoders, whose targets are no shifted inputs, are not
    asked.
    """
    shift = None if evidence.behavior is None else evidence.behavior.shift
    if shift is None or shift.steps < 1 or not CHANGE.is_severe(shift.future):
        return
    if any(True for _ in not_over_the_classes(evidence)):
        return  # a softmax over the steps is how they see each other
    module = dict(evidence.problem.model.named_modules()).get(shift.layer)
    where = shift.layer or "the model"
    yield Finding(
        rule="future-seen",
        layer=shift.layer,
        severity="severe",
        basis="proven",
        summary=f"the target of a step is the input {shift.steps} later, and the output sees it: with other inputs "
        f"from there on it changes by {shift.future:.1%}, first at {where}.",
        evidence={"relative change": shift.future, "shift": float(shift.steps), "share of targets": shift.share},
        reason="The network learns to read the answer from its input, where it will not be when the next step is to be "
        "predicted.",
        remedy=f"# {_advice(module, where)}",
    )


@rule("future-seen")
def pixel_seen(evidence: Evidence) -> Iterator[Finding]:
    """Images that are drawn pixel after pixel, by outputs that see the pixel that they are asked for.

    Outputs depend on pixels above and to the left, on none that follow, and on the pixel itself, which is the target.
    Severe. Autoencoders, whose outputs see all sides, and images of several channels are not asked.
    """
    pixels = None if evidence.behavior is None else evidence.behavior.pixels
    if pixels is None or not pixels.sees_itself:
        return
    where = pixels.layer or "the model"
    yield Finding(
        rule="future-seen",
        layer=pixels.layer,
        severity="severe",
        basis="proven",
        summary=f"the outputs depend on earlier pixels and on no later ones, but see the pixel that they are asked "
        f"for, first at {where}.",
        evidence={"first at": where},
        reason="The network learns to copy the pixel, which is not there yet when an image is drawn.",
        remedy=f"# set the weights of {where} at the center of its kernel to zero (a mask of type A), or shift its "
        "input by one pixel",
    )


@rule("future-seen")
def feature_seen(evidence: Evidence) -> Iterator[Finding]:
    """The same of features that are drawn one after another, in any order, as by an autoencoder with masked weights.

    The targets are the inputs, and of any two features exactly one sees the other. Severe if they see themselves, too.
    """
    if evidence.behavior is None or not evidence.behavior.sees_itself:
        return
    yield Finding(
        rule="future-seen",
        severity="severe",
        basis="proven",
        summary="of any two features the output for one sees the other, in one order, but outputs see the feature too "
        "that they are asked for.",
        reason="The network learns to copy the feature, which is not there yet when it is to be drawn.",
        remedy="# let each output see only what comes before its own feature: > in place of >= in the last mask",
    )


@rule("future-seen")
def answer_seen(evidence: Evidence) -> Iterator[Finding]:
    """Hidden places of the inputs that are not hidden: masked modeling, inpainting or imputation of what can be seen.

    The loss counts some places of a reconstruction only, others in each example, whatever the outputs are. There the
    inputs are what it asks for, and the outputs depend on them. Autoencoders, whose loss counts all places, and places
    that do not count because they are padding are not asked; BERT's masking, which leaves a tenth as it is, is sound.

    A warning: why places do not count is only known to the author. An autoencoder of measurements, whose loss leaves
    out what a flag calls unreliable, looks the same and is sound.
    """
    answers = None if evidence.behavior is None else evidence.behavior.answers
    if answers is None or not CHANGE.is_severe(answers.change):
        return
    yield Finding(
        rule="future-seen",
        severity="warning",
        basis="proven",
        summary=f"the loss counts {answers.counted:.0%} of the places of examples, and there the inputs are what it "
        f"asks for: with other inputs at these places the outputs there change by {answers.change:.1%}.",
        evidence={
            "relative change": answers.change,
            "share of places that count": answers.counted,
            "share of answers in the inputs": answers.share,
        },
        reason="If these places are to be hidden, as in masked modeling, the network learns to copy them, and in use "
        "they are not there.",
        remedy="# hide what the loss counts before the model is called: inputs = inputs.masked_fill(mask, 0)",
    )


def _advice(module: nn.Module | None, where: str) -> str:
    if isinstance(module, nn.RNNBase) and module.bidirectional:
        return f"make {where} with bidirectional=False: the second direction reads the sequence from its end"
    if isinstance(module, nn.Conv1d):
        return f"pad {where} on the left only, by F.pad(x, ({module.dilation[0] * (module.kernel_size[0] - 1)}, 0))"
    return (
        f"give {where} a causal mask, under which step t sees no later one: is_causal=True, or scores at "
        "torch.ones(T, T).triu(1).bool() filled with -inf"
    )
