"""`wellcond diagnose file.py:build`."""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.text import Text

from wellcond.cli.output import INTERRUPTED, TARGET, AsJson, Output, OutWithSarif, as_usage_errors
from wellcond.cli.target import source_of
from wellcond.diagnosis.diagnose import diagnose as measure
from wellcond.diagnosis.diagnosis import Diagnosis
from wellcond.diagnosis.finding import Finding, flat
from wellcond.diagnosis.judge import check_known
from wellcond.diagnosis.rule import RULES, explanation
from wellcond.recording import rules as run_rules  # noqa: F401  registers them
from wellcond.recording.judging.run_rule import RUN_RULES
from wellcond.report.findings import Place, place, read_baseline, worst_of
from wellcond.report.rule_sections import has_page, sections
from wellcond.report.sarif import sarif
from wellcond.report.terminal import SEVERITY_COLORS, new_console, new_table, show_diagnosis, show_sections
from wellcond.report.text import headline

FIRST = "inspection"
"""Part after which there are first findings."""
FailOn = Literal["severe", "warning", "never"]
EXIT_CODES = {"severe": 4, "warning": 3}
"""Exit codes of a diagnosis, by its worst finding."""


def diagnose(
    target: Annotated[str | None, TARGET] = None,
    budget: Annotated[
        str, typer.Option(metavar="fast|full|SECONDS", help="How much may be measured: fast leaves the slow parts out.")
    ] = "fast",
    layers: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="List this layer, or those of this module; repeat it.", show_default="all"),
    ] = None,
    select: Annotated[
        list[str] | None,
        typer.Option(metavar="RULE", help="Apply this rule alone; repeat it for several.", show_default="all"),
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option(metavar="RULE", help="Leave this rule out; repeat it for several.")
    ] = None,
    fail_on: Annotated[
        FailOn, typer.Option(help="Mildest finding that fails the command: severe exits with 4, a warning with 3.")
    ] = "severe",
    baseline: Annotated[
        Path | None,
        typer.Option(metavar="OLD.json", help="Earlier result, whose findings do not count for the exit code."),
    ] = None,
    explain: Annotated[
        str | None,
        typer.Option(metavar="RULE", help="Print the page of a rule: wrong and right code, what to do, why; and stop."),
    ] = None,
    list_rules: Annotated[bool, typer.Option("--list-rules", help="Print all rules, and stop.")] = False,
    out: OutWithSarif = None,
    as_json: AsJson = False,
) -> None:
    """What is wrong with your network, in which layer, and what to write instead.

    FUNCTION takes no arguments and returns a [bold]wellcond.Problem[/bold], or a pair
    (problem, optimizer): only with the optimizer can its learning rate be
    judged. Nothing of yours is changed. First findings are printed as soon as
    they are there; Ctrl-C ends the rest and prints and saves what is known.

    [bold]Example[/bold], in train.py:

    [cyan]import torch, wellcond as wc[/cyan]

    [cyan]def build():[/cyan]
    [cyan]    model = torch.nn.Linear(784, 10)[/cyan]
    [cyan]    images, labels = torch.rand(256, 784), torch.randint(10, (256,))[/cyan]
    [cyan]    return wc.Problem(model, torch.nn.CrossEntropyLoss(), (images, labels))[/cyan]

    and then:

    [cyan]wellcond diagnose train.py:build[/cyan]
    [cyan]wellcond diagnose train.py:build --out report.html --out rows.csv[/cyan]
    [cyan]wellcond diagnose train.py:build --fail-on warning --out findings.sarif[/cyan]
    [cyan]wellcond diagnose --explain vanishing-gradient[/cyan]
    """
    if list_rules:
        show_rules(new_console())
        return
    with as_usage_errors():
        check_known([*(select or ()), *(ignore or ()), *([] if explain is None or explain in RUN_RULES else [explain])])
    if explain is not None:
        show_sections(explain, sections(explain), new_console())
        return
    if target is None:
        raise typer.BadParameter("name FILE.py:FUNCTION, as in train.py:build; --list-rules and --explain need none.")
    chosen_budget = _budget(budget)
    known = None if baseline is None else read_baseline(baseline)
    left_out = [name for name in RULES if name in (ignore or ()) or (select and name not in select)]
    output = Output(out, as_json, has_findings=True)
    with output.problem(target) as (problem, optimizer, progress):
        diagnosis = measure(
            problem,
            optimizer,
            budget=chosen_budget,
            layers=layers,
            ignore=left_out,
            on_part=_show_first,
            progress=progress,
        )
    about = diagnosis.about | {"model": f"{diagnosis.about['model']} of {target}"}
    diagnosis = replace(diagnosis, about=about)
    rules = {name: explanation(name) for name in sorted(RULES) if name not in left_out}
    uri, line = source_of(target)
    as_sarif = functools.partial(
        sarif, diagnosis.findings, rules, uri, line=line, known=known, unchecked=diagnosis.failed
    )
    output.finish(diagnosis, lambda console: show_diagnosis(diagnosis, console), as_sarif)
    explained = next((each.rule for each in diagnosis.findings if has_page(each.rule)), None)
    if explained is not None:
        output.console.print(Text(f"all about a finding: wellcond diagnose --explain {explained}", "dim"))
    if known is not None:
        new = [headline(each) for each in flat(diagnosis.findings) if place(each) not in known]
        output.console.print(Text(f"new since {baseline}: {', '.join(new) or 'nothing'}"), soft_wrap=True)
    if diagnosis.is_interrupted:
        typer.secho("interrupted: this is what was known by then", err=True, fg="red", bold=True)
        raise typer.Exit(INTERRUPTED)
    raise typer.Exit(exit_code(diagnosis.findings, fail_on, known or ()))


def _show_first(diagnosis: Diagnosis) -> None:
    """Print the first findings in short, on standard error, which leaves standard output to the result."""
    if diagnosis.parts[-1].name == FIRST:
        console = new_console(stderr=True)
        for finding in diagnosis.findings:
            if finding.severity != "note":
                text = (f"{headline(finding)}: {finding.summary}", SEVERITY_COLORS[finding.severity])
                console.print(Text.assemble(("at first  ", "dim"), text))


def _budget(text: str) -> Literal["fast", "full"] | float:
    named: dict[str, Literal["fast", "full"]] = {"fast": "fast", "full": "full"}
    try:
        return named.get(text) or float(text)
    except ValueError:
        raise typer.BadParameter(f"--budget is {text!r}; write fast, full or a number of seconds.") from None


def show_rules(console: Console) -> None:
    """Print all rules with a sentence each."""
    table = new_table(show_header=False)
    table.add_column("", style="bold", no_wrap=True)
    table.add_column("", ratio=1)
    for name in sorted(RULES | RUN_RULES):
        where = "" if name in RULES else "In a recorded run: "
        table.add_row(name, Text(where + sections(name)[0].text.partition("\n\n")[0].replace("\n", " ")))
    console.print(table)


def exit_code(findings: Sequence[Finding], fail_on: FailOn, known: Collection[Place] = ()) -> int:
    """4 if a finding is severe, 3 for a warning if it is to fail on those, and else 0.

    Args:
        findings: Findings of the diagnosis.
        fail_on: Mildest severity that counts.
        known: Places of an earlier diagnosis' findings, which do not count.
    """
    worst = worst_of(each.severity for each in flat(findings) if place(each) not in known)
    if fail_on == "never" or worst is None or worst == "note" or (worst == "warning" and fail_on == "severe"):
        return 0
    return EXIT_CODES[worst]
