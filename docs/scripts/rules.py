"""The page of all rules, written from the rules: what each looks for, thresholds, basis, effects, remedies."""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from wellcond.diagnosis import rules
from wellcond.diagnosis.causes import CAUSES, as_mermaid, kind_of
from wellcond.diagnosis.finding import BASES
from wellcond.diagnosis.judge import RULES
from wellcond.diagnosis.probes.behavior import FIRST_PASS, PROBES
from wellcond.diagnosis.rule import explanation
from wellcond.diagnosis.threshold import Condition, Threshold, thresholds_in
from wellcond.recording import rules as run_rules
from wellcond.recording.judging.course import RUN_RULES
from wellcond.recording.judging.run_rule import run_explanation
from wellcond.remedies import REMEDIES
from wellcond.results.quantities import title_of

INTRO = """# Rules

What `wc.diagnose` looks for. Every rule is one file, `wellcond/diagnosis/rules/<name>.py`, or a folder, with
thresholds and their origin at the top. The descriptions below are the rules' own, as `wellcond diagnose --explain RULE`
prints them.

A finding is *severe* if the network will not train as it should, a *warning* if it costs speed or accuracy, and a
*note* if it is worth knowing. How often the rules are right: [What a verdict is worth](verdicts.md). What each remedy
does: [What fixes it?](guides/fixing.md#all-remedies)

The basis of a finding is *proven* (it follows from the code or the data), *tried* (a run of a copy
showed it) or *measured* (a number is beyond a threshold). A rule is a *fault* in the code, the data or a setting; a
*scale* that is wrong by some factor; a *symptom* that networks which train well may have too, and which is severe only
if short runs of copies do not show that the network trains; or an *outcome* of training, whatever its cause."""
GRAPH = """## What causes what

`diagnose` lists first causes, each with the findings that it explains. An arrow goes from a cause to its effect; where
several arrows lead from one rule to another, only the detour is drawn. Of two findings in the box, the worse one is
taken for the cause."""
NATURAL_SIZE = '%%{init: {"flowchart": {"useMaxWidth": false}}}%%'  # wider than the page: it scrolls
PROBES_INTRO = """## What the probes ask

A network is judged by what it does and not by the names of its modules. Each probe changes one thing on the first
batch, passes it through again and compares. A cost is in training steps (forward and backward pass of one mini-batch)
and the most it can be; `diagnosis.evidence.behavior` holds what they showed."""
OF_RUNS = """## Rules of a run

What [`wc.Recorder`](guides/recording.md) looks for over the steps of a training, in files
`wellcond/recording/rules/<name>.py`. A rule that finds the same fault as one above has its name. The inspection of
`wc.diagnose`, with all of its rules, is repeated during a run too, as often as the budget pays for it."""
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


def page() -> str:
    """The page as markdown: a table of all rules, the causal graph, then each rule in full."""
    lines = ["| rule | kind | looks for |", "|---|---|---|"]
    for name in sorted(RULES):
        first = explanation(name).partition("\n\n")[0].replace("\n", " ")
        lines.append(f"| [`{name}`](#{name}) | {kind_of(name)} | {_cell(first)} |")
    graph = f"{GRAPH}\n\n```mermaid\n{NATURAL_SIZE}\n{as_mermaid()}\n```"
    of_runs = [OF_RUNS, *map(_run_entry, sorted(RUN_RULES))]
    return "\n\n".join([INTRO, "\n".join(lines), graph, _probes(), *map(_entry, sorted(RULES)), *of_runs, OWN]) + "\n"


def _probes() -> str:
    """The probes, what they ask and what they cost."""
    lines = [
        f"| `{name}` | {_cell(probe.what)} | {probe.cost:.1f}{f', where {probe.where}' if probe.where else ''} |"
        for name, probe in PROBES.items()
    ]
    always = FIRST_PASS + sum(probe.cost for probe in PROBES.values() if not probe.where)
    total = f"| all | with the pass that they start from | {always:.1f} |"
    return "\n".join([PROBES_INTRO, "", "| | asks | cost |", "|---|---|---|", *lines, total])


def _entry(name: str) -> str:
    """One rule: what it looks for, its thresholds, the basis of its findings, what it explains, and the remedies."""
    file = getattr(rules, name.replace("-", "_"))
    advised = advised_by(name, file)
    others = [other for other, remedy in REMEDIES.items() if name in remedy.rules and other not in advised]
    facts = [
        f"- **Kind**: {kind_of(name)}. **Basis** of its findings: {' or '.join(bases_in(file))}.",
        f"- **Explains**: {_links(sorted(CAUSES.get(name, ())))}.",
        f"- **Remedy** in the finding: {_codes(advised) or 'lines for the case at hand'}.",
        f"- `treat` also tries: {_codes(others) or 'nothing made for this rule'}.",
    ]
    return "\n\n".join([f"## {name}", explanation(name), *_table(file), "\n".join(facts)])


def _run_entry(name: str) -> str:
    """One rule of a run: what it looks for, the mistake, its thresholds, and the quantity it judges."""
    file = getattr(run_rules, name.replace("-", "_"))
    _, _, mistake = inspect.cleandoc(file.__doc__ or "").partition("\n\n")
    judged = dict.fromkeys(title_of(each.quantity) for each in RUN_RULES[name])
    effects = sorted(CAUSES.get(name, ()))
    facts = [
        f"- **Judges** over the steps: {', '.join(judged)}.",
        f"- **Explains**, if it began first: {_links(effects)}.",
    ]
    return "\n\n".join([f"### {name}, over a run", run_explanation(name), mistake, *_table(file), "\n".join(facts)])


def _links(names: list[str]) -> str:
    anchors = {name: name if name in RULES else f"{name}-over-a-run" for name in names}
    return ", ".join(f"[`{name}`](#{anchor})" for name, anchor in anchors.items()) or "no other rule"


def _codes(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def bases_in(file: ModuleType) -> list[str]:
    """Bases that the findings of a rule may have, the strongest first."""
    strings = set(_strings(ast.parse(_source(file))))
    return [basis for basis in BASES if basis in strings]


def advised_by(name: str, file: ModuleType) -> list[str]:
    """Remedies that the findings of a rule name: what its file passes as `treatment`, or a remedy for this rule."""
    tree = ast.parse(_source(file))
    passed = {
        text
        for node in ast.walk(tree)
        if isinstance(node, ast.keyword) and node.arg == "treatment"
        for text in _strings(node.value)
    }
    strings = set(_strings(tree))
    return [
        other for other, remedy in REMEDIES.items() if other in passed or (other in strings and name in remedy.rules)
    ]


def _source(file: ModuleType) -> str:
    """The source of a rule's file, or of all files of its folder."""
    folder = getattr(file, "__path__", None)
    paths = [Path(inspect.getsourcefile(file) or "")] if folder is None else sorted(Path(folder[0]).glob("[!_]*.py"))
    # one tree for all of them, for which each future import would have to be the first line
    lines = (path.read_text(encoding="utf-8").replace("from __future__ import annotations", "") for path in paths)
    return "\n".join(lines)


def _strings(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _table(file: ModuleType) -> list[str]:
    """The thresholds of a rule, if it has any."""
    thresholds = thresholds_in(file)
    rows = [f"| {_cell(each.quantity)} | {' | '.join(_ends(each))} | {_cell(_origin(each))} |" for each in thresholds]
    return ["\n".join(["| quantity | warning | severe | origin |", "|---|---|---|---|", *rows])] if rows else []


def _ends(each: Threshold | Condition) -> tuple[str, str]:
    if isinstance(each, Condition):
        return f"condition: {each.at:g}", ""
    sign = ">" if each.bad == "above" else "<"
    warn, severe = ("" if math.isnan(end) else f"{sign} {end:.3g}" for end in (each.warn, each.severe))
    return warn, severe


def _origin(each: Threshold | Condition) -> str:
    inside = "" if isinstance(each, Condition) else each.inside_healthy_because
    return f"{each.origin}. Inside the range of healthy networks, because {inside}" if inside else each.origin


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
