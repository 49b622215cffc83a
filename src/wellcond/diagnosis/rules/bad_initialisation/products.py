"""Similarities, and products of embeddings, that are far too large."""

from __future__ import annotations

import math
from collections.abc import Iterator

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.reading import outputs_of
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.rules.bad_initialisation.sizes import LOSS_RATIO, recovers
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.results import number

OF_EQUAL = Threshold(
    "contrastive loss at the start / (200 + n log n)", math.nan, 10.0,
    origin="1 for a summed loss of equal similarities; cosines times 100 add 200 at most in the mean",
)  # fmt: skip
CLIPPED = 200.0
"""The most that cosines times 100 add to the loss of equal similarities, in the mean."""
SCALE = Condition("a factor of similarities", 100.0, origin="where CLIP clips it (Radford et al. 2021)")
TOO_FAR = Threshold(
    "standard deviation of products of embeddings / that of the targets", 5.0, math.nan,
    origin="√d for d factors from N(0, 1) and standardized targets: 2.8 for 8, 11 for 128; below 1 where small",
)  # fmt: skip
AS_DRAWN = Condition(
    "standard deviation of outputs / √d·product of the tables' RMS", 0.5, origin="1 for rows that are drawn apart"
)


@rule("bad-initialisation")
def large_similarities(evidence: Evidence) -> Iterator[Finding]:
    """A contrastive loss that starts at ten times 200 + n·log n or more, for n examples.

    Equal similarities have log n, and n·log n if the loss is summed. Cosines times a temperature of 100 are at most 200
    above that in the mean; what is higher comes from a scale that is far too large, such as e^14 where 14 was meant.
    Severe. The parameter of one number that is largest, itself or as a logarithm, is named.
    """
    inspection, behavior = evidence.inspection, evidence.behavior
    loss = None if inspection is None else inspection.loss
    if inspection is None or loss is None or behavior is None or behavior.mixed_similarities is None:
        return
    n = inspection.examples or 0
    if n < 2 or not OF_EQUAL.is_severe(loss / (CLIPPED + n * math.log(n))):
        return
    name, scale = _largest_scale(evidence)
    through = f"; {name} makes a factor of {number(scale)}" if name else ""
    yield Finding(
        rule="bad-initialisation",
        layer=name,
        severity="severe",
        basis="proven",
        summary=f"the contrastive loss of {n} examples starts at {number(loss)}, and that of equal similarities is "
        f"{number(math.log(n))}: the similarities are far too large{through}.",
        evidence={"loss": loss, "loss of equal similarities": math.log(n)},
        limits=OF_EQUAL.limits(CLIPPED + n * math.log(n)),
        reason="A softmax of such numbers is 0 or 1, right or wrong, so that a few examples decide on every step.",
        remedy="# if the model takes the exponential of its scale, let that start at its logarithm: "
        "nn.Parameter(torch.tensor(math.log(1 / 0.07)))",
    )


def _largest_scale(evidence: Evidence) -> tuple[str, float]:
    """The parameter of one number with the largest value or exponential, and that; "" if there is none above 100."""
    single = {name: float(p.detach()) for name, p in evidence.problem.params.items() if p.numel() == 1}
    scales = {name: math.exp(min(abs(value), 700.0)) for name, value in single.items()}
    name = max(scales, key=lambda each: scales[each], default="")
    return (name, scales[name]) if name and scales[name] > SCALE.at else ("", math.nan)


@rule("bad-initialisation")
def large_products(evidence: Evidence) -> Iterator[Finding]:
    """Products of embeddings that vary five times as much as the numbers they are to predict, at three times the loss.

    A model of tables alone, as a factorization, whose outputs are about √d times the RMS of its two largest tables: d
    factors from `nn.Embedding`'s N(0, 1) add up to √d. Severe unless the trial shows that the network trains, or gets
    within 1.5 times a constant's loss.
    """
    if (both := outputs_of(evidence)) is None:
        return
    inspection, output, trial = *both, evidence.trial
    called = [w for w in inspection.weights if w.order is not None and w.rms > 0]
    tables = sorted((w for w in called if w.role == "embedding" and len(w.shape) == 2), key=lambda w: -w.rms)
    numbers = [fact for fact in inspection.targets if not fact.is_index and not fact.is_binary]
    if len(tables) < 2 or any(w.role in ("weight", "recurrent") for w in called) or len(inspection.targets) != 1:
        return
    first, second = tables[:2]
    best, loss = output.best_constant, inspection.loss
    if not numbers or first.shape[1] != second.shape[1] or best is None or loss is None or not best > 0:
        return
    expected = math.sqrt(first.shape[1]) * first.rms * second.rms
    ratio = output.std / max(numbers[0].std, 1e-12)
    if not TOO_FAR.is_warning(ratio) or not LOSS_RATIO.is_severe(loss / best) or output.std < AS_DRAWN.at * expected:
        return
    yield Finding(
        rule="bad-initialisation",
        layer=first.layer,
        severity="warning" if trial is None or recovers(trial, best) else "severe",
        basis="measured",
        summary=f"the products of {first.name} and {second.name} have a standard deviation of {number(output.std)}, "
        f"the targets one of {number(numbers[0].std)}: the loss is {number(loss)}, that of a constant {number(best)}.",
        evidence={
            "std of outputs": output.std,
            "std of targets": numbers[0].std,
            "RMS of the first table": first.rms,
            "RMS of the second table": second.rms,
        },
        limits=TOO_FAR.limits(numbers[0].std),
        reason="A product of d pairs of numbers from N(0, 1) has a standard deviation of √d. What such rows give for "
        "pairs that no example has stays as it is drawn.",
        remedy=f"for name in [{first.name!r}, {second.name!r}]:\n"
        f"    torch.nn.init.normal_(model.get_parameter(name), std={0.3 / first.shape[1] ** 0.25:.2g})",
    )
