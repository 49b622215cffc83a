"""ill-conditioned-input: inputs that lie along few directions, so that gradient descent is slow along the others.

Wrong:
    inputs = torch.stack([year, year**2, year**3], dim=1)  # 1990 to 2025
Right:
    years = (year - year.mean()) / year.std()
    inputs = torch.stack([years, years**2, years**3], dim=1)
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding, Severity
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.remedies.standardized_data import is_standardized
from wellcond.results import number
from wellcond.results.quantities import INPUT

ONE_DIRECTION = Threshold(
    "λ_max of Σx / its trace, of the first layer", 0.999, math.nan,
    origin="gradient descent moves along the other directions a thousand times more slowly (huang2020, section 3.1)",
)  # fmt: skip
FEW_FEATURES = Condition("features of the first layer", 4, origin="of two or three features one may well dominate")
SLOW = Threshold(
    "share of the targets' variance that only slow directions predict", 0.1, math.nan,
    origin="a tenth is what a network must gain on a constant to have learned",
)  # fmt: skip
NEARLY_ALL = Threshold(
    "the same, where the trial learns nothing at any rate", math.nan, 0.5,
    origin="most of what there is to learn is out of reach, and three rates or more have shown it",
)  # fmt: skip


@rule("ill-conditioned-input", quantity=INPUT.kappa[0.5])
def ill_conditioned_input(evidence: Evidence) -> Iterator[Finding]:
    """Inputs of the first layer that lie almost along one direction: λ_max of Σx is 0.999 of its trace.

    Gradient descent moves along the others a thousand times more slowly. Hidden layers of ReLU networks come close to
    it ordinarily, so only the first layer is judged. A warning; severe if the trial learns nothing at any rate, and
    slow directions predict more than half of the targets' variance.
    """
    table = evidence.conditioning
    first = None if table is None or not len(table) else next(iter(table.values()))
    if first is None or first.x is None or first.x.dimension < FEW_FEATURES.at or not first.x.trace:
        return
    share = first.x.lambda_max / first.x.trace
    if ONE_DIRECTION.is_warning(share):
        yield Finding(
            rule="ill-conditioned-input",
            layer=first.name,
            severity=_severity(evidence),
            basis="measured",
            summary=f"{share:.2%} of the inputs of {first.name} lie along one direction.",
            evidence={"λ_max(Σx)": first.x.lambda_max, "trace": first.x.trace, "dimension": float(first.x.dimension)},
            reason="The rate is limited by the largest eigenvalue of Σx, and progress by the others (huang2020, "
            "section 3.1).",
            treatment="scale-inputs" if _are_off_center(evidence) else "decorrelate-inputs",
            remedy="# subtract the mean of the training set from every feature where the data set is made",
        )


def _severity(evidence: Evidence) -> Severity:
    """Severe if slow directions hold most of what there is to learn, and nothing is learned at any rate."""
    trial = evidence.trial
    slow = None if trial is None or trial.relation is None else trial.relation.slow
    if trial is None or slow is None or not trial.learns_nothing:
        return "warning"
    return "severe" if NEARLY_ALL.is_severe(slow.rest) else "warning"


def _are_off_center(evidence: Evidence) -> bool:
    """Whether the one direction is that of the means, or of features that are larger than others."""
    facts = () if evidence.inspection is None else evidence.inspection.inputs
    return not all(is_standardized(fact.feature_mean, fact.feature_std) for fact in facts)


@rule("ill-conditioned-input", quantity=INPUT.kappa[0.5])
def collinear_features(evidence: Evidence) -> Iterator[Finding]:
    """Features so alike, or varying so little, that the directions which predict the targets are the slow ones.

    For a table of numbers with at least 8 examples per feature: directions of the features, standardized or as they
    are, whose eigenvalue is below a thousandth of the largest predict a tenth or more of the targets' variance, beyond
    chance. Among features of size 1 a year in thousands, 2.00 ± 0.01, is such a direction.
    Along them gradient descent takes λ_max/λ times the steps. Not reported if the trial learns half of it anyway; of
    classes reported only if it learns nothing at any rate. Severe if it learns nothing at any rate and the share is
    more than half.
    """
    inspection, trial = evidence.inspection, evidence.trial
    slow = None if trial is None or trial.relation is None else trial.relation.slow
    if inspection is None or trial is None or slow is None or slow.rest < SLOW.warn or not inspection.weighted():
        return
    is_regression = trial.relation is not None and trial.relation.is_regression
    left = None if trial.constant is None else (1 - slow.fast - slow.rest / 2) * trial.constant
    is_learned = left is not None and trial.own is not None and trial.own.loss < left
    if is_learned if is_regression else not trial.learns_nothing:
        return
    yield Finding(
        rule="ill-conditioned-input",
        layer=inspection.weighted()[0].name,
        severity=_severity(evidence),
        basis="measured",
        summary=f"{slow.rest:.0%} of the targets' variance is predicted only by directions of the inputs with less "
        f"than a thousandth of the largest eigenvalue, where gradient descent takes {number(slow.condition)} times "
        "the steps.",
        evidence={
            "predicted by fast directions": slow.fast,
            "predicted by slow directions": slow.rest,
            "λ_max / λ": slow.condition,
        },
        reason="Features that vary little around a large mean, or are nearly multiples of each other, such as powers, "
        "have a Σx of large condition number, and the error along an eigenvector shrinks by 1 − lr·λ per step "
        "(huang2020, section 3.1).",
        treatment="scale-inputs" if slow.is_of_scales else "decorrelate-inputs",
        remedy="# use differences of the features that are alike in their place, or their principal components",
    )
