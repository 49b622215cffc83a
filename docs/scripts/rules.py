"""The page of all rules, written from the rules themselves: what each looks for, its thresholds, what causes what."""

from __future__ import annotations

import math

from wellcond.diagnosis import rules
from wellcond.diagnosis.causes import CAUSES, as_mermaid, kind_of
from wellcond.diagnosis.judge import RULES
from wellcond.diagnosis.rule import explanation
from wellcond.diagnosis.threshold import Condition, Threshold, thresholds_in

INTRO = """# Rules

What `wc.diagnose` looks for. Every rule is one file, `wellcond/diagnosis/rules/<name>.py`, with its thresholds and
their origin at the top. The descriptions below are the rules' own, as `wellcond diagnose --explain RULE` prints them.

A finding is *severe* if the network will not train as it should, a *warning* if it costs speed or accuracy, and a
*note* if it is worth knowing. Its basis is *proven* (it follows from the code or the data), *tried* (a run of a copy
showed it) or *measured* (a number is beyond a threshold). A rule is a *fault* in the code, the data or a setting; a
*scale* that is wrong by some factor; a *symptom* that networks which train well may have too, and which is severe only
if short runs of copies do not show that the network trains; or an *outcome* of training, whatever its cause."""
GRAPH = """## What causes what

`diagnose` lists first causes, each with the findings that it explains. An arrow goes from a cause to its effect; where
several arrows lead from one rule to another, only the detour is drawn. Of two findings in the box, the worse one is
taken for the cause."""
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
    entries = []
    for name in sorted(RULES):
        text = explanation(name)
        first = text.partition("\n\n")[0].replace("\n", " ").replace("|", "\\|")
        lines.append(f"| [`{name}`](#{name}) | {kind_of(name)} | {first} |")
        effects = ", ".join(f"[`{other}`](#{other})" for other in sorted(CAUSES.get(name, ())))
        parts = [f"## {name}", text, *_table(name), *([f"Explains {effects}."] if effects else [])]
        entries.append("\n\n".join(parts))
    graph = f"{GRAPH}\n\n```mermaid\n{as_mermaid()}\n```"
    return "\n\n".join([INTRO, "\n".join(lines), graph, *entries, OWN]) + "\n"


def _table(name: str) -> list[str]:
    """The thresholds of a rule, if it has any."""
    thresholds = thresholds_in(getattr(rules, name.replace("-", "_")))
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
