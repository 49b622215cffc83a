"""All rules applied to the evidence: one finding per fault, causes before what they cause, the worst first."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Collection, Iterable
from dataclasses import replace

from wellcond.diagnosis import rules
from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import SEVERITIES, Finding
from wellcond.diagnosis.rule import RULES, Rule

SYMPTOMS = frozenset(
    {
        "vanishing-gradient", "exploding-gradient", "dying-neurons", "full-neurons", "saturated-activation",
        "activation-drift", "ill-conditioned-input", "rank-collapse", "attention-saturation", "weight-domination",
        "bad-initialisation", "unscaled-input", "unscaled-target", "last-layer-drift",
    }
)  # fmt: skip
"""Measured properties that networks which train well have as well: severe only where a trial does not contradict it."""
SCALES = frozenset({"bad-initialisation", "unscaled-input", "unscaled-target", "weight-decay-dominates"})
"""Causes that are as severe as what they make: a scale is wrong by as much as its effects are."""
EFFECTS = SYMPTOMS - SCALES | {"saturated-output", "loss-not-decreasing"}
"""What a milder cause among those may explain. A programming fault is none of it, nor is a rate that was tried."""
SURE = 0.75
"""Confidence from which a cause may be milder than what it explains."""

for _module in pkgutil.iter_modules(rules.__path__):  # every file of this folder holds rules
    importlib.import_module(f"{rules.__name__}.{_module.name}")


def judged(
    evidence: Evidence, ignore: Collection[str] = (), select: Collection[str] | None = None
) -> tuple[Finding, ...]:
    """What all rules find, worst first; what another finding explains is among its consequences.

    Args:
        evidence: What is known so far.
        ignore: Names of rules that are not applied.
        select: Names of those that are; None: all.

    Raises:
        ValueError: There is no such rule.
    """
    check_known((*ignore, *(select or ())))
    found = [
        finding
        for name, functions in RULES.items()
        if name not in ignore and (select is None or name in select)
        for finding in _of_one_rule([_applied(each, evidence) for each in functions])
    ]
    return tuple(sorted(_rooted([_calibrated(each, evidence) for each in found]), key=_rank))


def check_known(names: Collection[str]) -> None:
    """Refuse the name of a rule that there is not."""
    if unknown := [name for name in names if name not in RULES]:
        close = difflib.get_close_matches(unknown[0], RULES, cutoff=0.4)
        raise ValueError(f"there is no rule {unknown[0]!r}. Closest: {', '.join(map(repr, close)) or 'none'}.")


def _applied(each: Rule, evidence: Evidence) -> list[Finding]:
    """What one function finds. One that fails must not take what the others found with it."""
    try:
        return list(each.judge(evidence))
    except Exception as error:
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        return [
            Finding(
                rule=each.name,
                layer="",
                severity="note",
                confidence=0.0,
                summary=f"the rule {each.name} ({each.judge.__qualname__}) failed and says nothing here: {what}",
                evidence={"error": what},
                reason="A rule that fails is a fault of the rule, not of the network.",
                remedy=f'wc.diagnose(problem, optimizer, ignore=("{each.name}",))',
            )
        ]


def _of_one_rule(by_function: list[list[Finding]]) -> Iterable[Finding]:
    """One finding: that at the worst layer, which counts the others; what the rule's other functions found is below."""
    merged = sorted((_over_layers(found) for found in by_function if found), key=_rank)
    if merged:
        worst, *others = merged
        yield replace(worst, consequences=(*worst.consequences, *others))


def _over_layers(found: list[Finding]) -> Finding:
    """Of findings at several layers the worst one, or the first of equals, with the names of the others."""
    worst = min(found, key=_rank)
    others = [each.layer for each in found if each is not worst and each.layer]
    if not others:
        return worst
    rows = dict.fromkeys(row for each in found for row in each.rows)
    also = ", ".join(others) if len(others) < 4 else f"{others[0]}, {others[1]} … {others[-1]}"
    return replace(
        worst, evidence=worst.evidence | {"layers": float(1 + len(others)), "also at": also}, rows=tuple(rows)
    )


def _calibrated(finding: Finding, evidence: Evidence) -> Finding:
    """A symptom is no more than a warning where the network is seen to train.

    Attention that is sharp on purpose has been learned: a network that has only begun to learn does not excuse it.
    """
    trial = evidence.trial
    if trial is not None and trial.own is not None and evidence.optimizer is None and finding.severity == "severe":
        tried = f"SGD at {trial.own.lr:g} with momentum, as no optimizer was given"
        finding = replace(finding, evidence=finding.evidence | {"tried with": tried})
    if finding.severity != "severe" or finding.rule not in SYMPTOMS or trial is None or not trial.trains_well:
        return finding
    if finding.rule == "attention-saturation" and not trial.is_learned and not trial.halves:
        return finding
    return replace(finding, severity="warning")


def _rooted(found: list[Finding]) -> Iterable[Finding]:
    """The first causes, each with all that it explains below. Where two explain each other, the worse is the cause."""
    ordered = sorted(found, key=_rank)
    cause_of: dict[str, str] = {}

    def root(name: str) -> str:
        return root(cause_of[name]) if name in cause_of else name

    for effect in reversed(ordered):
        causes = (each.rule for each in ordered if _explains(each, effect) and root(each.rule) != effect.rule)
        if cause := next(causes, None):
            cause_of[effect.rule] = cause
    for each in ordered:
        if each.rule not in cause_of:
            below = [other for other in ordered if other.rule in cause_of and root(other.rule) == each.rule]
            worst = min((each, *below), key=lambda one: SEVERITIES.index(one.severity)).severity
            yield replace(each, severity=worst, consequences=(*each.consequences, *below))


def _explains(cause: Finding, effect: Finding) -> bool:
    """Whether one finding is a consequence of another that is as severe, or of a scale that makes it so."""
    if cause.rule == effect.rule or not any(effect.rule in each.explains for each in RULES[cause.rule]):
        return False
    if SEVERITIES.index(cause.severity) <= SEVERITIES.index(effect.severity):
        return cause.confidence > 0
    takes_over = cause.rule in SCALES and effect.rule in EFFECTS and cause.severity != "note"
    return takes_over and cause.confidence >= SURE


def _rank(finding: Finding) -> tuple[int, bool, float]:
    """By severity, then what causes others before symptoms, then by confidence."""
    is_cause = any(each.explains for each in RULES.get(finding.rule, ()))
    return SEVERITIES.index(finding.severity), not is_cause, -finding.confidence
