"""All that is to say of a rule, in sections: `wellcond diagnose --explain`, its page in the documentation and SARIF."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType

from wellcond.diagnosis import rules
from wellcond.diagnosis.causes import CAUSES, MUTUAL, Kind, kind_of
from wellcond.diagnosis.finding import Basis, Finding
from wellcond.diagnosis.rule import RULES, Rule
from wellcond.diagnosis.threshold import Condition, Threshold, thresholds_in
from wellcond.recording import rules as run_rules
from wellcond.recording.judging.run_rule import RUN_RULES, RunRule
from wellcond.remedies import REMEDIES
from wellcond.report.rule_source import RuleSource

KIND_MEANINGS: dict[Kind, str] = {
    "fault": "A fault in the code, the data or a setting.",
    "scale": "A scale that is wrong by some factor: as severe as its worst effect.",
    "symptom": "A symptom, which networks that train well may have too: severe only if short runs of copies do not "
    "show that the network trains.",
    "outcome": "An outcome of training, whatever its cause.",
}
BASIS_MEANINGS: dict[Basis, str] = {
    "proven": "it follows from the code or the data",
    "tried": "a run of a copy showed it",
    "measured": "a number lies beyond a threshold",
}
"""What a finding's basis means."""
MISTAKES = "Wrong and right"
HEAD = ("quantity", "warning", "severe", "origin")


@dataclass(frozen=True)
class Section:
    """A part of what is to say of a rule; each of its forms may be empty.

    Attributes:
        title: Heading; "" for what comes first.
        text: Paragraphs.
        code: Lines of Python.
        items: Entries of a list.
        table: Rows of a table, below `HEAD`.
    """

    title: str
    text: str = ""
    code: str = ""
    items: tuple[str, ...] = ()
    table: tuple[tuple[str, ...], ...] = ()

    def markdown(self) -> str:
        """The section below a heading of the second level."""
        parts = [f"## {self.title}" if self.title else "", self.text]
        parts.append("\n".join(f"- {item}" for item in self.items))
        parts.append(f"```py\n{self.code}\n```" if self.code else "")
        if self.table:
            rows = [" | ".join(cell.replace("|", "\\|") for cell in row) for row in self.table]
            parts.append("\n".join(f"| {row} |" for row in [" | ".join(HEAD), "---|---|---|---", *rows]))
        return "\n\n".join(part for part in parts if part)


def sections(name: str) -> list[Section]:
    """What a rule looks for, in a diagnosis, in a recorded run or in both; why; what to do; and what else it may be.

    Args:
        name: Name of a rule. One that is not in a file of this package has its docstring and its effects only.
    """
    sources = list(_sources(name))
    reasons = dict.fromkeys(reason for source in sources for reason in source.reasons)
    parts = [_first(name, sources), _mistakes(sources), *_remedies(name, sources)]
    parts.append(Section("Why it matters", items=tuple(reasons)))
    if name in RULES:
        parts.append(_looked_for("What it looks for" if sources else "", RULES[name]))
        parts.append(_thresholds("Thresholds", getattr(rules, _file(name), None)))
    if name in RUN_RULES:
        parts.append(_looked_for("In a recorded run", RUN_RULES[name]))
        parts.append(_thresholds("Thresholds in a recorded run", getattr(run_rules, _file(name), None)))
    parts.append(_related(name))
    return [each for each in parts if each.text or each.code or each.items or each.table]


def has_page(name: str) -> bool:
    """Whether a rule is one of this package: one of the user's own is known only in the script that registers it."""
    return any(True for _ in _sources(name))


def page(name: str) -> str:
    """The sections of a rule as Markdown, below its name."""
    return "\n\n".join([f"# {name}", *(each.markdown() for each in sections(name))])


def _file(name: str) -> str:
    return name.replace("-", "_")


def _sources(name: str) -> Iterator[RuleSource]:
    for package, registry in ((rules, RULES), (run_rules, RUN_RULES)):
        if name in registry and hasattr(package, _file(name)):
            yield _source(name, getattr(package, _file(name)))


@cache
def _source(name: str, file: ModuleType) -> RuleSource:
    """Read once: the cards of a live display ask for it again and again."""
    return RuleSource(name, file)


def _first(name: str, sources: list[RuleSource]) -> Section:
    if not sources:
        return Section("")
    bases = dict.fromkeys(basis for source in sources for basis in source.bases)
    words = [f"{basis} ({BASIS_MEANINGS[basis]})" for basis in bases]
    basis = f" Its findings are {' or '.join(words)}." if words else ""
    return Section("", f"{sources[0].summary}\n\n{KIND_MEANINGS[kind_of(name)]}{basis}")


def _mistakes(sources: list[RuleSource]) -> Section:
    pairs = dict.fromkeys(pair for source in sources for pair in source.mistakes)
    return Section(MISTAKES, code="\n\n".join(f"# wrong\n{wrong}\n\n# right\n{right}" for wrong, right in pairs))


def _looked_for(title: str, functions: Sequence[Rule | RunRule]) -> Section:
    """What each function of a rule looks for: paragraphs of the only one, or an entry for each."""
    if len(functions) == 1:
        paragraphs = functions[0].explanation.split("\n\n")
        return Section(title, "\n\n".join(" ".join(each.split()) for each in paragraphs))
    return Section(title, items=tuple(" ".join(each.explanation.split()) for each in functions))


def _thresholds(title: str, file: ModuleType | None) -> Section:
    thresholds = thresholds_in(file) if file is not None else []
    return Section(title, table=tuple((each.quantity, *_ends(each), _origin(each)) for each in thresholds))


def _ends(each: Threshold | Condition) -> tuple[str, str]:
    if isinstance(each, Condition):
        return f"condition: {each.at:g}", ""
    sign = ">" if each.bad == "above" else "<"
    warn, severe = ("" if math.isnan(end) else f"{sign} {end:.3g}" for end in (each.warn, each.severe))
    return warn, severe


def _origin(each: Threshold | Condition) -> str:
    inside = "" if isinstance(each, Condition) else each.inside_healthy_because
    return f"{each.origin}. Inside the range of healthy networks, because {inside}" if inside else each.origin


def _remedies(name: str, sources: list[RuleSource]) -> Iterator[Section]:
    """What to look at and which remedies help, and lines of the rule's own."""
    own = dict.fromkeys(text for source in sources for text in source.own_remedies)
    advice = {text: Finding(rule=name, severity="note", summary="", remedy=text).advice for text in own}
    advised = list(dict.fromkeys(each for source in sources for each in source.advised))
    others = [each for each, remedy in REMEDIES.items() if name in remedy.rules and each not in advised]
    items = [text for text in advice.values() if text]
    items += [f"`{each}`: {' '.join(REMEDIES[each].why.partition(chr(10) * 2)[0].split())}" for each in advised]
    if others:
        also = " also" if advised else ""
        items.append(f"`wellcond treat`{also} tries {', '.join(f'`{each}`' for each in others)}.")
    yield Section("What to do", items=tuple(items))
    yield Section("Lines that it may print", code="\n\n".join(text for text in own if not advice[text]))


def _related(name: str) -> Section:
    """What it may be the consequence of, and the cause of."""
    causes = {cause for cause, effects in CAUSES.items() if name in effects}
    effects = set(CAUSES.get(name, ()))
    either = causes & effects & MUTUAL
    sentences = {
        "Look for these first, since each of them may be its cause": causes - either,
        "It may be the cause or the effect of these; the worse of the two is taken for the cause": either,
        "It explains": effects - either,
    }
    items = [
        f"{words}: {', '.join(f'`{each}`' for each in sorted(names))}." for words, names in sentences.items() if names
    ]
    return Section("Causes and effects", items=tuple(items))
