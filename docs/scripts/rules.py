"""The pages of the rules, written from the rules' files: an index with what causes what, and a page for each."""

from __future__ import annotations

import re
from collections.abc import Iterable

import rule_record

from wellcond.diagnosis.causes import KINDS, MUTUAL, as_mermaid, kind_of
from wellcond.diagnosis.judge import RULES
from wellcond.diagnosis.probes.behavior import FIRST_PASS, PROBES
from wellcond.recording.judging.course import RUN_RULES
from wellcond.report.rule_sections import sections

INTRO = """# Rules

What [`wc.diagnose`](guides/measuring.md) and [`wc.Recorder`](guides/recording.md) look for. Every rule has a page:
wrong and right code, what to do, why, thresholds with their origin, and how often it was right.
`wellcond diagnose --explain RULE` prints the same.

A finding is *severe* if the network will not train as it should, a *warning* if it costs speed or accuracy, and a
*note* if it is worth knowing. How often the rules are right: [What a verdict is worth](verdicts.md). What each remedy
does: [What fixes it?](guides/fixing.md#all-remedies)

The basis of a finding is *proven* (it follows from the code or the data), *tried* (a run of a copy
showed it) or *measured* (a number is beyond a threshold). A rule is a *fault* in the code, the data or a setting; a
*scale* that is wrong by some factor; a *symptom* that networks which train well may have too, and which is severe only
if short runs of copies do not show that the network trains; or an *outcome* of training, whatever its cause."""
OF_RUNS = """## Rules of a run

What only [`wc.Recorder`](guides/recording.md) sees, over the steps of a training. It also applies those rules above
whose pages have a section "In a recorded run", and repeats the inspection of `wc.diagnose` with all of its rules as
often as its budget pays for."""
GRAPH = """## What causes what

`diagnose` lists first causes, each with the findings that it explains. What a cause explains through another rule is
left out here, and so are those that explain nothing. The page of a rule has all of its causes and effects."""
MUTUAL_GROUP = "Of these, any may explain any other, and the worse one is taken for the cause:"
PROBES_INTRO = """## What the probes ask

A network is judged by what it does and not by the names of its modules. Each probe changes one thing on the first
batch, passes it through again and compares. A cost is in training steps (forward and backward pass of one mini-batch)
and the most it can be; `diagnosis.evidence.behavior` holds what they showed."""
OWN = """## A rule of your own

```python
import wellcond as wc


@wc.rule("many-parameters", explains=("learning-rate-too-low",))
def many_parameters(evidence):
    \"\"\"More parameters than fit the device we ship to.\"\"\"
    size = evidence.problem.size
    if size > 5_000_000:
        yield wc.Finding(
            rule="many-parameters",
            severity="warning",
            basis="proven",
            summary=f"{size:,} parameters.",
            evidence={"parameters": float(size)},
            reason="The device holds 20 MB.",
            remedy="model = smaller()",
        )
```

From then on `wc.diagnose` applies it. `ignore=("many-parameters",)`, or `--ignore`, leaves it out."""


def names() -> list[str]:
    """All rules that have a page."""
    return sorted(KINDS)


def index() -> str:
    """Tables of all rules, the causal graph and the probes."""
    of_runs = sorted(RUN_RULES.keys() - RULES.keys())
    return "\n\n".join([INTRO, _table(sorted(RULES)), OF_RUNS, _table(of_runs), _graph(), _probes(), OWN]) + "\n"


def page(name: str) -> str:
    """The page of a rule: what `--explain` prints, then how often it was right, and lines that repaired a fault."""
    parts = [f"# {name}"]
    for each in sections(name):
        text = each.markdown()
        parts.append(text if each.code else _linked(text, name))
    if example := rule_record.example(name):
        parts.append(f"## An example\n\n{example}")
    parts.append(f"## How often it is right\n\n{rule_record.record(name)}")
    parts.append(f"In a terminal: `wellcond diagnose --explain {name}`. All rules: [Rules](../rules.md).")
    return "\n\n".join(parts) + "\n"


def _linked(text: str, own: str) -> str:
    """Names of other rules as links to their pages."""
    known = set(names()) - {own}
    return re.sub(r"`([a-z-]+)`", lambda code: f"[{code[0]}]({code[1]}.md)" if code[1] in known else code[0], text)


def _table(rules: Iterable[str]) -> str:
    lines = ["| rule | kind | what is wrong |", "|---|---|---|"]
    for name in rules:
        summary = sections(name)[0].text.partition("\n\n")[0].replace("|", "\\|")
        lines.append(f"| [`{name}`](rules/{name}.md) | {kind_of(name)} | {summary} |")
    return "\n".join(lines)


def _graph() -> str:
    """The causal graph as a table, which needs no script to be drawn."""
    arrows = [line.strip().split(" --> ") for line in as_mermaid().splitlines() if " --> " in line]
    effects: dict[str, list[str]] = {}
    for cause, effect in arrows:
        effects.setdefault(cause, []).append(effect)

    def links(names: Iterable[str]) -> str:
        return ", ".join(f"[{name}](rules/{name}.md)" for name in names)

    rows = [f"| {links([cause])} | {links(effects[cause])} |" for cause in sorted(effects)]
    mutual = f"{MUTUAL_GROUP} {links(sorted(MUTUAL))}."
    return "\n\n".join([GRAPH, mutual, "\n".join(["| cause | may explain |", "|---|---|", *rows])])


def _probes() -> str:
    """The probes, what they ask and what they cost."""
    lines = [
        f"| `{name}` | {probe.what} | {probe.cost:.1f}{f', where {probe.where}' if probe.where else ''} |"
        for name, probe in PROBES.items()
    ]
    always = FIRST_PASS + sum(probe.cost for probe in PROBES.values() if not probe.where)
    total = f"| all | with the pass that they start from | {always:.1f} |"
    return "\n".join([PROBES_INTRO, "", "| | asks | cost |", "|---|---|---|", *lines, total])
