"""All rules applied to the evidence: one finding per fault, causes before what they cause, the worst first."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from torch.optim import Optimizer

from wellcond.diagnosis import rules as rules  # registers every rule
from wellcond.diagnosis.causes import CAUSES, KINDS, kind_of
from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import BASES, SEVERITIES, Finding
from wellcond.diagnosis.rule import RULES, Rule
from wellcond.diagnosis.runs import OTHER_LR
from wellcond.problem.problem import Problem
from wellcond.remedies import Setup, lines_for

OF_THE_COURSE = (
    "learning-rate-too-high", "learning-rate-too-low", "diverging", "loss-not-decreasing", "labels-unrelated",
)  # fmt: skip
"""Rules that judge by whether the loss falls in a trial."""
LinesByRemedy = Callable[[str, float | None], str]
"""The lines to write for the remedy of this name, at this learning rate."""


def judged(
    evidence: Evidence, ignore: Collection[str] = (), select: Collection[str] | None = None
) -> tuple[Finding, ...]:
    """The findings of all rules, worst first; what another finding explains is among its consequences.

    Args:
        evidence: What is known so far.
        ignore: Names of rules that are not applied.
        select: Names of the only rules that are applied; None for all.

    Raises:
        ValueError: There is no such rule.
    """
    check_known((*ignore, *(select or ())))
    findings: list[Finding] = []
    failures: list[Finding] = []
    for name, functions in RULES.items():
        if name in ignore or (select is not None and name not in select):
            continue
        by_function = []
        for each in functions:
            try:
                by_function.append(list(each.judge(evidence)))
            except Exception as error:  # a rule that fails must not take the findings of the others with it
                failures.append(_failure(each, error))
        findings += _merged(by_function)
    roots = _rooted(_confirmed([_excused(each, evidence) for each in findings], evidence))
    return (*sorted(roots, key=_rank), *failures)


def lines_by_remedy(problem: Problem, optimizer: Optimizer | None) -> LinesByRemedy:
    """The lines to write for a remedy at a rate. Each is asked for once: a remedy is applied to a copy of the model."""
    setup = functools.cache(lambda: Setup.of(problem, optimizer))
    return functools.cache(lambda name, lr: lines_for(name, setup(), lr))


def completed(findings: Collection[Finding], evidence: Evidence, lines_of: LinesByRemedy) -> tuple[Finding, ...]:
    """The findings, each with the lines to write and the rows to draw.

    The lines are those that its treatment gives for this set-up; without any, the rule's own advice stays. The rows are
    those of the quantity that its rule judges, unless the rule has given rows of its own.
    """
    rows_of = functools.cache(evidence.rows_of)

    def complete(finding: Finding) -> Finding:
        rate = finding.evidence.get(OTHER_LR)
        lr = rate if finding.treatment == "rate" and isinstance(rate, float) else None
        lines = lines_of(finding.treatment, lr) if finding.treatment else ""
        rows = finding.rows or rows_of(RULES[finding.rule][0].quantity)
        consequences = tuple(map(complete, finding.consequences))
        return replace(finding, remedy=lines or finding.remedy, rows=rows, consequences=consequences)

    return tuple(map(complete, findings))


def check_known(names: Collection[str]) -> None:
    """Refuse names of rules that do not exist."""
    if unknown := [name for name in names if name not in RULES]:
        close = difflib.get_close_matches(unknown[0], RULES, cutoff=0.4)
        raise ValueError(f"there is no rule {unknown[0]!r}. Closest: {', '.join(map(repr, close)) or 'none'}.")


def _failure(rule: Rule, error: Exception) -> Finding:
    """A note that a rule failed. It is listed last, explains nothing and is explained by nothing."""
    message = f"{type(error).__name__}: {error}".splitlines()[0]
    return Finding(
        rule=rule.name,
        severity="note",
        basis="proven",
        summary=f"the rule {rule.name} ({rule.judge.__qualname__}) failed and says nothing here: {message}",
        evidence={"error": message},
        reason="A rule that fails is a fault of the rule, not of the network.",
        remedy=f"# leave it out by ignore=('{rule.name}',) of wc.diagnose",
    )


def _merged(by_function: list[list[Finding]]) -> Iterable[Finding]:
    """One finding per rule: the worst, which counts its other layers, with what the rule's other functions found."""
    merged = sorted((_over_layers(findings) for findings in by_function if findings), key=_rank)
    if merged:
        worst, *others = merged
        yield replace(worst, consequences=(*worst.consequences, *others))


def _over_layers(findings: list[Finding]) -> Finding:
    """The worst of findings at several layers, or the first of equals, with the names of the others."""
    worst = min(findings, key=_rank)
    others = [each.layer for each in findings if each is not worst and each.layer]
    if not others:
        return worst
    rows = dict.fromkeys(row for each in findings for row in each.rows)
    also = ", ".join(others) if len(others) < 4 else f"{others[0]}, {others[1]} … {others[-1]}"
    return replace(
        worst, evidence=worst.evidence | {"layers": float(1 + len(others)), "also at": also}, rows=tuple(rows)
    )


def _excused(finding: Finding, evidence: Evidence) -> Finding:
    """A measured symptom or scale is no more than a warning if the trial shows that the network trains.

    Sharp attention is excused only once the network has learned: it may be sharp on purpose then, but not at the start.
    What the course of the loss shows is a note where the loss follows the model itself, unless it gets out of hand.
    """
    trial = evidence.trial
    if trial is not None and trial.follows_itself and finding.rule in OF_THE_COURSE and not trial.is_out_of_hand:
        return replace(finding, severity="note")
    if finding.severity != "severe" or trial is None:
        return finding
    if trial.own is not None and evidence.optimizer is None:
        tried = f"SGD at {trial.own.lr:g} with momentum, because no optimizer was passed"
        finding = replace(finding, evidence=finding.evidence | {"tried with": tried})
    is_excusable = kind_of(finding.rule) in ("symptom", "scale") and finding.basis == "measured"
    if not is_excusable or not trial.trains_well:
        return finding
    if finding.rule == "attention-saturation" and not trial.has_learned and not trial.halves:
        return finding
    return replace(finding, severity="warning")


def _confirmed(findings: list[Finding], evidence: Evidence) -> list[Finding]:
    """Where a trial learns nothing at three rates and no fault is severe, those that would explain it are.

    Only where a probe of the data predicts the targets: else there may be nothing to learn, and nothing to explain.
    """
    trial = evidence.trial
    faults = [each for each in findings if kind_of(each.rule) == "fault" and each.rule not in OF_THE_COURSE]
    if trial is None or not trial.learns_nothing or any(each.severity == "severe" for each in faults):
        return findings
    if not trial.is_predictable:
        return findings
    causes = [
        each for each in faults if each.severity == "warning" and "loss-not-decreasing" in CAUSES.get(each.rule, ())
    ]
    return [replace(each, severity="severe") if each in causes else each for each in findings]


def _rooted(findings: list[Finding]) -> Iterable[Finding]:
    """The first causes, each with everything it explains. Where two explain each other, the worse is the cause."""
    ordered = sorted(findings, key=_rank)
    cause_of: dict[str, str] = {}

    def root(name: str) -> str:
        return root(cause_of[name]) if name in cause_of else name

    for effect in reversed(ordered):
        causes = (each.rule for each in ordered if explains(each, effect) and root(each.rule) != effect.rule)
        if cause := next(causes, None):
            cause_of[effect.rule] = cause
    for each in ordered:
        if each.rule not in cause_of:
            below = [other for other in ordered if other.rule in cause_of and root(other.rule) == each.rule]
            worst = min((each, *below), key=lambda one: SEVERITIES.index(one.severity)).severity
            yield replace(each, severity=worst, consequences=(*each.consequences, *below))


def explains(cause: Finding, effect: Finding) -> bool:
    """Whether one finding is a consequence of another that is as severe, or of one that may be milder.

    That is a wrong scale, for what is measured of it; what is proven of a layer, for what is measured in it; and
    whatever is proven, tried, seen at a layer, or a symptom, for what says only that training fails. No course of the
    loss explains a fault that the code proves.
    """
    if effect.begins_here or cause.rule == effect.rule or effect.rule not in CAUSES.get(cause.rule, ()):
        return False
    if cause.rule in OF_THE_COURSE and effect.basis == "proven" and kind_of(effect.rule) == "fault":
        return False
    if SEVERITIES.index(cause.severity) <= SEVERITIES.index(effect.severity):
        return True
    if cause.severity == "note":
        return False
    if kind_of(cause.rule) == "scale":
        return kind_of(effect.rule) in ("symptom", "outcome")
    is_measured = effect.basis == "measured" or kind_of(effect.rule) == "symptom"
    if cause.basis == "proven" and is_measured and _is_within(effect.layer, cause.layer):
        return True
    is_specific = cause.basis != "measured" or cause.layer != "" or kind_of(cause.rule) == "symptom"
    return effect.rule == "loss-not-decreasing" and is_specific


def _is_within(layer: str, outer: str) -> bool:
    """Whether a layer is another one, or a part of it."""
    return outer != "" and (layer == outer or layer.startswith(f"{outer}."))


_PLACE = {name: place for place, name in enumerate(KINDS)}


def _rank(finding: Finding) -> tuple[int, bool, bool, int, int]:
    """By severity, then what nothing explains, what causes others before what does not, basis, and order of `KINDS`."""
    return (
        SEVERITIES.index(finding.severity),
        not finding.begins_here,
        not CAUSES.get(finding.rule),
        BASES.index(finding.basis),
        _PLACE.get(finding.rule, len(_PLACE)),
    )
