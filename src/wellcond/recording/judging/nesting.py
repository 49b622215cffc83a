"""`nested`: the findings of a run as causes, each with everything that it explains."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from wellcond.diagnosis.causes import CAUSES, KINDS, kind_of
from wellcond.diagnosis.finding import SEVERITIES, Finding, flat
from wellcond.diagnosis.judge import explains
from wellcond.recording.judging.layer_changes import around

DAMAGE = ("dying-neurons", "saturated-activation")
"""What stays in a layer when its cause is over: some steps at a wrong rate, or one bad batch."""
OF_JUMPS, OF_SIGNALS = (
    ("learning-rate-too-high", "loss-spike", "data-changed", "optimizer-setting"),
    ("attention-saturation", "activation-drift", *DAMAGE),
)
"""What changes signals in the middle of a run, and what an inspection sees of that; in a diagnosis, the weights do."""


def nested(findings: Iterable[Finding]) -> list[Finding]:
    """First causes, worst first and those still there before those over, each with everything that it explains.

    A cause explains what the causal graph says, if it began no later. Where two explain each other, the earlier is the
    cause. Damage to a layer that outlasts its cause comes before it, and is as severe.
    """
    ordered = sorted(findings, key=_rank)
    # of equals the worse first, and what explains a rise of the loss before the rise
    by_time = sorted(ordered, key=lambda each: (each.step or 0, each.rule == "diverging"))
    by_time = [_with_its_cause(each, by_time) for each in by_time]
    cause_of: dict[int, int] = {}

    def root(index: int) -> int:
        return root(cause_of[index]) if index in cause_of else index

    for index, effect in reversed(list(enumerate(by_time))):
        for other, cause in enumerate(by_time):
            is_cause = other != index and root(other) != index and _is_cause(cause, effect)
            if is_cause and not _outlasts(effect, cause):
                cause_of[index] = other
                break
    roots = []
    for index, each in enumerate(by_time):
        if index not in cause_of:
            below = [other for place, other in enumerate(by_time) if place in cause_of and root(place) == index]
            worst = min((each, *below), key=lambda one: SEVERITIES.index(one.severity)).severity
            roots.append(replace(each, severity=worst, consequences=(*each.consequences, *below)))
    return sorted(roots, key=_rank)


def _with_its_cause(effect: Finding, findings: Iterable[Finding]) -> Finding:
    """Damage that outlasts its cause says what it was, and is as severe; any other finding is as it was."""
    causes = [each for each in findings if _outlasts(effect, each) and _is_cause(each, effect)]
    if not causes or "after" in effect.evidence:
        return effect
    cause = min(causes, key=_rank)
    worst = min(effect.severity, cause.severity, key=SEVERITIES.index)
    after = f"{cause.rule} at step {cause.step}"
    summary = f"{effect.summary.removesuffix('.')}. It came with {after}, which is over."
    return replace(effect, severity=worst, summary=summary, evidence=effect.evidence | {"after": after})


def _outlasts(effect: Finding, cause: Finding) -> bool:
    return effect.rule in DAMAGE and effect.until is None and cause.until is not None


def _is_cause(cause: Finding, effect: Finding) -> bool:
    return _began_before(cause, effect) and _explains(cause, effect)


def _explains(cause: Finding, effect: Finding) -> bool:
    """As in a diagnosis, and what only a run shows.

    What a loader, a thaw or stale statistics do to validation may be graver than they are themselves, and a loss that
    rises has not fallen.
    """
    rules = cause.rule, effect.rule
    of_a_jump = cause.rule in OF_JUMPS and effect.rule in OF_SIGNALS
    in_validation = (
        effect.rule == "overfitting" and effect.rule in CAUSES.get(cause.rule, ()) and cause.severity != "note"
    )
    return explains(cause, effect) or of_a_jump or in_validation or rules == ("diverging", "loss-not-decreasing")


def _began_before(cause: Finding, effect: Finding) -> bool:
    """Whether a cause was there when its effect began, or as good as that.

    What layers show may come before what the loss shows: units die of a rate before the loss rises.
    """
    began, ended, step = cause.step or 0, cause.until, effect.step or 0
    if effect.rule == "loss-not-decreasing":  # dated from the start, whenever its cause began
        return True
    early = step if kind_of(effect.rule) == "symptom" and not cause.layer else around(step)
    return began <= step + early and (ended is None or step <= ended + around(ended))


_PLACE = {name: place for place, name in enumerate(KINDS)}


def _rank(finding: Finding) -> tuple[int, int, int, int]:
    """By severity, then those still there, those of which something is, the earlier ones, and the order of `KINDS`."""
    return (
        SEVERITIES.index(finding.severity),
        (finding.until is not None) + all(each.until is not None for each in flat([finding])),
        finding.step or 0,
        _PLACE.get(finding.rule, len(_PLACE)),
    )
