"""dropout-in-eval: dropout that stays on in evaluation mode.

Wrong:
    h = F.dropout(h, 0.5)
Right:
    h = F.dropout(h, 0.5, training=self.training)
"""

from __future__ import annotations

from collections.abc import Iterator

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.probes.dropped import strongest
from wellcond.diagnosis.reading import and_more
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.threshold import Threshold
from wellcond.results.quantities import EVALUATION_CHANGE

CHANGE = Threshold(
    "‖f − f'‖/‖f‖ of outputs in evaluation mode with other random numbers", 1e-3, float("nan"),
    origin="rounding in float32, over a hundred layers, is below 1e-4",
)  # fmt: skip


@rule("dropout-in-eval", quantity=EVALUATION_CHANGE)
def dropout_in_eval(evidence: Evidence) -> Iterator[Finding]:
    """Values that random numbers set to zero in evaluation mode, so that predictions change from call to call.

    A warning where outputs change. Only zeros that are drawn count: noise that is added, as in a VAE or a diffusion
    model, is sampling by design. So is a mask without a factor, if it is of the inputs or may hide what the network is
    asked for: a masked autoencoder's is of its inputs, its tokens and its loss.
    """
    noise = None if evidence.behavior is None else evidence.behavior.noise
    if noise is None or not CHANGE.is_warning(noise.change):
        return
    calls = [call for call in strongest(noise.evaluation) if noise.is_dropout(call)]
    if not calls:
        return
    name, file = calls[0].module or calls[0].after, calls[0].site.file.rpartition("/")[2]
    yield Finding(
        rule="dropout-in-eval",
        layer=name,
        severity="warning",
        basis="proven",
        summary=f"{name or 'the model'}{and_more(len(calls))} drops {calls[0].p:.0%} of its inputs in evaluation mode "
        f"too ({file}, line {calls[0].site.line}): outputs of two passes differ by {noise.change:.0%}.",
        evidence={"p": round(calls[0].p, 2), "relative change": noise.change, "such calls": float(len(calls))},
        limits=CHANGE.limits(),
        reason="Dropout is noise for training; in use it makes predictions random and worse. A function does not know "
        "the mode of the module that calls it.",
        remedy=f"# in {file}, line {calls[0].site.line}: add training=self.training to the dropout, or use nn.Dropout",
    )


@rule("dropout-in-eval", quantity=EVALUATION_CHANGE)
def noisy_inputs(evidence: Evidence) -> Iterator[Finding]:
    """Inputs that random numbers change in evaluation mode: words that are dropped, pixels that are shifted or noised.

    A warning where outputs change. What the first layer takes differs between two passes, and depends on the inputs and
    on no parameter. Targets must be smaller than the inputs, since a network may be asked for what was hidden of them.
    """
    noisy = None if evidence.behavior is None else evidence.behavior.noisy_inputs
    if noisy is None or not CHANGE.is_warning(noisy.change) or any(True for _ in dropout_in_eval(evidence)):
        return
    name = noisy.layer or "the model"
    yield Finding(
        rule="dropout-in-eval",
        layer=noisy.layer,
        severity="warning",
        basis="proven",
        summary=f"{name} changes its inputs at random in evaluation mode, too: outputs of two passes differ by "
        f"{noisy.change:.0%}.",
        evidence={"relative change": noisy.change},
        limits=CHANGE.limits(),
        reason="Noise and augmentation are for training; in use they make predictions random and worse.",
        remedy=f"# write `if self.training:` before the random numbers of {name}",
    )
