"""`Course`: the findings of a run over its steps, each reported once, with the steps at which it began and ended."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from wellcond.diagnosis.causes import KINDS, kind_of
from wellcond.diagnosis.finding import SEVERITIES, Finding
from wellcond.diagnosis.judge import explains
from wellcond.recording import rules as rules  # registers every rule of a run
from wellcond.recording.layer_changes import around
from wellcond.recording.run_rule import RUN_RULES, RunEvidence


@dataclass
class _Episode:
    """A finding from its beginning to its end; at other layers too if they began with it."""

    finding: Finding
    seen: int
    """Last step at which a rule saw it."""
    layers: list[str]

    @property
    def is_open(self) -> bool:
        return self.finding.until is None

    def holds(self, other: Finding) -> bool:
        """Whether a finding of this rule and layer, or of a layer at which it began at the same time, is this one."""
        began, until, step = self.finding.step or 0, self.finding.until, other.step or 0
        if self.finding.rule != other.rule:
            return False
        if other.layer in self.layers:
            last = began if until is None else until
            return (self.is_open and other.until is None) or began - around(began) <= step <= last + around(last)
        return self.is_open and abs(step - began) <= around(max(step, began))

    def see(self, other: Finding, step: int) -> None:
        """Take over what is known now; the beginning stays, and the severity is the worst so far."""
        self.seen = step
        if other.layer not in self.layers:
            self.layers.append(other.layer)
        if other.layer != self.finding.layer or (other.until is not None and other.step != self.finding.step):
            return
        worst = min(self.finding.severity, other.severity, key=SEVERITIES.index)
        self.finding = replace(other, severity=worst, step=self.finding.step)

    def shown(self) -> Finding:
        others = [layer for layer in self.layers if layer and layer != self.finding.layer]
        if not others:
            return self.finding
        also = ", ".join(others) if len(others) < 4 else f"{others[0]}, {others[1]} … {others[-1]}"
        evidence = self.finding.evidence | {"layers": float(1 + len(others)), "also at": also}
        return replace(self.finding, evidence=evidence)


class Course:
    """What the rules say of a run, as it goes on.

    A finding has ended once it was not seen for a tenth of the run so far, 50 steps at least; what comes back earlier
    is the same finding. In the same way layers at which a rule sees something at about the same time share a finding.

    Args:
        ignore: Names of rules that are not applied.

    Example:
        >>> from wellcond.recording.history import History
        >>> from wellcond.results import Row
        >>> losses = [1.0] * 8 + [float("nan")] * 11
        >>> history = History(Row(step, "", "training_loss", loss, "") for step, loss in enumerate(losses, start=1))
        >>> course = Course()
        >>> began, ended = course.update(RunEvidence(history, step=19))
        >>> began[0].rule, began[0].step, ended
        ('non-finite', 9, [])
        >>> course.update(RunEvidence(history, step=19))
        ([], [])
    """

    def __init__(self, ignore: Collection[str] = ()) -> None:
        self._ignore = ignore
        self._episodes: list[_Episode] = []
        self._failures: dict[str, Finding] = {}

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All so far, worst first; what another one explains is among its consequences."""
        return (*nested([each.shown() for each in self._episodes]), *self._failures.values())

    def update(self, evidence: RunEvidence) -> tuple[list[Finding], list[Finding]]:
        """Judge the run as it is now.

        Args:
            evidence: Every number so far.

        Returns:
            What began and what ended since the last call. What is over by the time it is seen, as a spike, is in both.
        """
        before = list(self._episodes)
        was_open = [each for each in before if each.is_open]
        for finding in self._judged(evidence):
            episode = next((each for each in reversed(self._episodes) if each.holds(finding)), None)
            if episode is None:
                self._episodes.append(_Episode(finding, evidence.step, [finding.layer]))
            else:
                episode.see(finding, evidence.step)
        for each in self._episodes:
            if each.is_open and evidence.step - each.seen > around(evidence.step):
                each.finding = replace(each.finding, until=each.seen)
        began = [each for each in self._episodes if each not in before]
        ended = [each for each in (*was_open, *began) if not each.is_open]
        return [each.shown() for each in began], [each.shown() for each in ended]

    def _judged(self, evidence: RunEvidence) -> Iterable[Finding]:
        for name, functions in RUN_RULES.items():
            for each in functions if name not in self._ignore else ():
                try:
                    yield from list(each.judge(evidence))
                except Exception as error:  # a rule that fails must not take the findings of the others with it
                    self._failures.setdefault(name, _failure(name, error, evidence.step))
        yield from (each for each in _inspected(evidence) if each.rule not in self._ignore)


def nested(findings: Iterable[Finding]) -> list[Finding]:
    """First causes, worst first and those still there before those over, each with everything that it explains.

    A cause explains what the causal graph says, if it began no later. Where two explain each other, the earlier is the
    cause.
    """
    ordered = sorted(findings, key=_rank)
    by_time = sorted(ordered, key=lambda each: each.step or 0)  # stable: of equals the worse first
    cause_of: dict[int, int] = {}

    def root(index: int) -> int:
        return root(cause_of[index]) if index in cause_of else index

    for index, effect in reversed(list(enumerate(by_time))):
        for other, cause in enumerate(by_time):
            if other != index and root(other) != index and _began_before(cause, effect) and explains(cause, effect):
                cause_of[index] = other
                break
    roots = []
    for index, each in enumerate(by_time):
        if index not in cause_of:
            below = [other for place, other in enumerate(by_time) if place in cause_of and root(place) == index]
            worst = min((each, *below), key=lambda one: SEVERITIES.index(one.severity)).severity
            roots.append(replace(each, severity=worst, consequences=(*each.consequences, *below)))
    return sorted(roots, key=_rank)


def _began_before(cause: Finding, effect: Finding) -> bool:
    """Whether a cause was there when its effect began, or as good as that."""
    began, ended, step = cause.step or 0, cause.until, effect.step or 0
    return began <= step + around(step) and (ended is None or step <= ended + around(ended))


def _inspected(evidence: RunEvidence) -> Iterable[Finding]:
    """What the last inspection of the network says; where the loss falls, measured symptoms are worth a note only."""
    for each in evidence.inspected:
        is_symptom = each.basis == "measured" and kind_of(each.rule) in ("symptom", "scale")
        severity = "note" if is_symptom and evidence.loss.is_falling else each.severity
        yield replace(each, severity=severity, step=evidence.inspected_at)


_PLACE = {name: place for place, name in enumerate(KINDS)}


def _rank(finding: Finding) -> tuple[int, bool, int, int]:
    """By severity, then those still there, the earlier ones, and the order of `KINDS`."""
    return (
        SEVERITIES.index(finding.severity),
        finding.until is not None,
        finding.step or 0,
        _PLACE.get(finding.rule, len(_PLACE)),
    )


def _failure(name: str, error: Exception, step: int) -> Finding:
    message = f"{type(error).__name__}: {error}".splitlines()[0]
    return Finding(
        rule=name,
        severity="note",
        basis="proven",
        summary=f"the rule {name} failed and says nothing here: {message}",
        evidence={"error": message},
        reason="A rule that fails is a fault of the rule, not of the network.",
        remedy=f"# leave it out by ignore=('{name}',) of wc.Recorder",
        step=step,
    )
