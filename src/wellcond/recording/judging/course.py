"""`Course`: the findings of a run over its steps, each reported once, with the steps at which it began and ended."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

import numpy as np

from wellcond.diagnosis.causes import kind_of
from wellcond.diagnosis.finding import SEVERITIES, Finding
from wellcond.diagnosis.threshold import Condition
from wellcond.recording import rules as rules  # registers every rule of a run
from wellcond.recording.judging.held import unheld_layers
from wellcond.recording.judging.layer_changes import around
from wellcond.recording.judging.levels import finite, last_before
from wellcond.recording.judging.nesting import nested
from wellcond.recording.judging.run_rule import RUN_RULES, RunEvidence
from wellcond.recording.judging.stopped_statistics import stopped_at
from wellcond.results.quantities import MOMENTUM

OF_FRESH_WEIGHTS = ("bad-initialisation", "symmetric-initialisation")
"""Rules about the weights that a network begins with."""
LASTS_LONGER = Condition(
    "1/(1 - momentum) / at first", 3.0, origin="from 0.9 it is ten times at 0.99; schedules go to 0.95"
)
TINY = 1e-12


@dataclass
class _Episode:
    """A finding from its beginning to its end; at other layers too if they began with it."""

    finding: Finding
    seen: int
    """Last step at which a rule saw it."""
    layers: list[str]
    report: Finding | None = None
    """As it was when it was last reported, where it is known to be now."""

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
        is_one = self.is_open or other.until is not None
        return is_one and abs(step - began) <= around(max(step, began))

    def see(self, other: Finding, step: int) -> None:
        """Take over what is known now; the beginning is the earliest and the severity the worst that was ever seen."""
        self.seen = step
        if other.layer not in self.layers:
            self.layers.append(other.layer)
        is_same_place = other.layer == self.finding.layer or not self.finding.layer  # a place may be known later
        if not is_same_place or (other.until is not None and other.step != self.finding.step):
            return
        worst = min(self.finding.severity, other.severity, key=SEVERITIES.index)
        step = min(self.finding.step or 0, other.step or 0)  # what is known later may show that it began earlier
        self.finding = replace(_dated(other, step), severity=worst)

    def is_news(self) -> bool:
        """Whether it was not reported, or is worse than it was then."""
        before = self.report
        return before is None or SEVERITIES.index(self.finding.severity) < SEVERITIES.index(before.severity)

    def has_moved(self) -> bool:
        """Whether its layer, or where it began, is another one than was reported."""
        now, before = self.finding, self.report
        return before is not None and (before.layer, before.step) != (now.layer, now.step)

    def shown(self) -> Finding:
        """With the names of its other layers."""
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
        earlier: Findings of the same run before it was interrupted.

    Attributes:
        moved: Findings whose layer, or where they began, is known better since the last update: as they were
            reported, and as they are.

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

    def __init__(self, ignore: Collection[str] = (), earlier: Iterable[Finding] = ()) -> None:
        self._ignore = ignore
        self._episodes = [
            _Episode(replace(each, consequences=()), each.step or 0, [each.layer], each)
            for finding in earlier
            for each in (finding, *finding.consequences)
        ]
        self._failures: dict[str, Finding] = {}
        self.moved: list[tuple[Finding, Finding]] = []

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All so far, worst first; what another one explains is among its consequences."""
        return (*nested([each.shown() for each in self._episodes]), *self._failures.values())

    def update(self, evidence: RunEvidence) -> tuple[list[Finding], list[Finding]]:
        """Judge the run as it is now.

        Args:
            evidence: Every number so far.

        Returns:
            What began since the last call, or became worse than it was when it was reported; and what ended. What is
            over by the time it is seen, as a spike, is in both.
        """
        was_over = {id(each) for each in self._episodes if not each.is_open}
        for finding in self._judged(evidence):
            self._take(finding, evidence.step)
        for finding in _inspected(evidence):
            same = next((each for each in self._episodes if each.is_open and each.finding.rule == finding.rule), None)
            if same is not None and same.finding.layer != finding.layer:
                same.seen = evidence.step  # the rules of the run have seen it before, and where it began
            elif finding.rule not in self._ignore:
                self._take(finding, evidence.step)
        for each in self._episodes:
            if each.is_open and evidence.step - each.seen > around(evidence.step):
                each.finding = replace(each.finding, until=each.seen)
        self.moved = []
        for each in self._episodes:
            if each.report is not None and each.has_moved():
                self.moved.append((each.report, each.shown()))
                each.report = replace(each.report, layer=each.finding.layer, step=each.finding.step)
        began = [each for each in self._episodes if each.is_news()]
        ended = [each for each in self._episodes if not each.is_open and id(each) not in was_over]
        for each in began:
            each.report = each.finding
        return [each.shown() for each in began], [each.shown() for each in ended]

    def _take(self, finding: Finding, step: int) -> None:
        """Add a finding to what it is the same as, or begin with it."""
        episode = next((each for each in reversed(self._episodes) if each.holds(finding)), None)
        if episode is None:
            self._episodes.append(_Episode(finding, step, [finding.layer]))
        else:
            episode.see(finding, step)

    def _judged(self, evidence: RunEvidence) -> Iterable[Finding]:
        for name, functions in RUN_RULES.items():
            for each in functions if name not in self._ignore else ():
                try:
                    yield from list(each.judge(evidence))
                except Exception as error:  # a rule that fails must not take the findings of the others with it
                    self._failures.setdefault(name, _failure(name, error, evidence.step))


def _dated(finding: Finding, step: int) -> Finding:
    """A finding that began at this step, also in its own words."""
    own = re.compile(rf"\bstep {finding.step}\b")
    summary, remedy = (own.sub(f"step {step}", text) for text in (finding.summary, finding.remedy))
    return replace(finding, step=step, summary=summary, remedy=remedy)


def _inspected(evidence: RunEvidence) -> Iterable[Finding]:
    """What the last inspection of the network says; where it learns or has, measured symptoms are worth a note only.

    A layer that the optimizer does not hold is not moved by its steps: the rules of the run say that and since when.
    Weights of a network that had learned and has lost it are not those that it began with.
    """
    has_lost = evidence.loss.has_learned and (evidence.loss.rise is not None or not evidence.loss.trains)
    learns = evidence.loss.is_falling or evidence.loss.trains
    unheld = {each.layer for each in unheld_layers(evidence)}
    for each in evidence.inspected:
        if (each.rule == "lost-updates" and each.layer in unheld) or (each.rule in OF_FRESH_WEIGHTS and has_lost):
            continue
        is_symptom = each.basis == "measured" and kind_of(each.rule) in ("symptom", "scale")
        severity = "note" if is_symptom and learns else each.severity
        yield replace(each, severity=severity, step=_set_at(evidence, each) or evidence.inspected_at)


def _set_at(evidence: RunEvidence, finding: Finding) -> int | None:
    """When code set what an inspection finds wrong, if it did so in mid-run: momentum, or that of statistics."""
    if finding.rule == "batchnorm-mode-gap":
        stopped = stopped_at(evidence, finding.layer)
        return stopped.step if stopped is not None and stopped.is_at_once else None
    momenta = finite(evidence.history.series(MOMENTUM))
    if finding.rule != "optimizer-setting" or len(momenta) < 2:
        return None
    lasts = 1 / np.maximum(1 - momenta.values, TINY)  # steps for which a step goes on
    start = last_before(lasts > LASTS_LONGER.at * lasts[0])
    return int(momenta.steps[start]) if 0 < start < len(momenta) else None


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
