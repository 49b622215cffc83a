"""The page of all rules, written from the rules themselves: what each looks for, why, and its threshold."""

from __future__ import annotations

import inspect

from wellcond.diagnosis.judge import RULES, SYMPTOMS

INTRO = """# Rules

What `wc.diagnose` looks for. One rule is one function of the evidence, with its threshold and the reason for it beside
it; what stands here are their own words, as `wellcond diagnose --explain RULE` prints them. A finding is *severe* if
the network will not train as it should, a *warning* if it costs speed or accuracy, and a *note* if it is worth knowing.
A rule marked *symptom* is severe only where short runs of copies do not show that the network trains."""
OWN = """## A rule of your own

```python
import wellcond as wc


@wc.rule("many-parameters")
def many_parameters(evidence):
    \"\"\"More parameters than fit the device we ship to.\"\"\"
    size = evidence.problem.size
    if size > 5_000_000:
        yield wc.Finding("many-parameters", "", "warning", 1.0, f"{size:,} parameters.", {"parameters": float(size)},
                      "The device holds 20 MB.", "model = smaller()")
```

From then on `wc.diagnose` applies it. `ignore=("many-parameters",)`, or `--ignore`, leaves it out."""


def page() -> str:
    """The page as markdown: a table of all rules, then each in full."""
    lines = ["| rule | looks for |", "|---|---|"]
    entries = []
    for name, functions in sorted(RULES.items()):
        texts = [inspect.cleandoc(each.judge.__doc__ or name) for each in functions]
        first = texts[0].partition("\n\n")[0].replace("\n", " ").replace("|", "\\|")
        lines.append(f"| [`{name}`](#{name}) | {first} |")
        explains = sorted({other for each in functions for other in each.explains})
        marks = ["*Symptom.*"] if name in SYMPTOMS else []
        marks += [f"Explains {', '.join(f'[`{other}`](#{other})' for other in explains)}."] if explains else []
        entries.append("\n\n".join([f"## {name}", *texts, *([" ".join(marks)] if marks else [])]))
    return "\n\n".join([INTRO, "\n".join(lines), *entries, OWN]) + "\n"
