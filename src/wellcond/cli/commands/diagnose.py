"""`wellcond diagnose file.py:build`."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.text import Text

from wellcond.cli.output import INTERRUPTED, TARGET, AsJson, Out, Output, as_usage_errors
from wellcond.cli.rules import FailOn, exit_code, explanations, show_rule, show_rules
from wellcond.cli.target import source_of
from wellcond.diagnosis.diagnose import diagnose as measure
from wellcond.diagnosis.diagnosis import Diagnosis
from wellcond.diagnosis.judge import check_known
from wellcond.diagnosis.rule import RULES
from wellcond.report.findings_terminal import COLORS
from wellcond.report.listing import flat, place, read_baseline
from wellcond.report.sarif import sarif
from wellcond.report.terminal import new_console, show
from wellcond.report.words import headline

FIRST = "inspection"
"""The part after which the first findings are there."""


def diagnose(
    target: Annotated[str | None, TARGET] = None,
    budget: Annotated[
        str, typer.Option(metavar="fast|full|SECONDS", help="What it may take: fast is 60 passes at most.")
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
        FailOn, typer.Option(help="The mildest finding that is no success: severe exits with 4, a warning with 3.")
    ] = "severe",
    baseline: Annotated[
        Path | None,
        typer.Option(metavar="OLD.json", help="An earlier result: what it found does not count for the exit code."),
    ] = None,
    explain: Annotated[
        str | None, typer.Option(metavar="RULE", help="Print what a rule looks for and why, and stop.")
    ] = None,
    list_rules: Annotated[bool, typer.Option("--list-rules", help="Print all rules, and stop.")] = False,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """What is wrong with your network, in which layer, and what to write instead.

    FUNCTION takes no arguments and returns a [bold]wellcond.Problem[/bold], or a pair
    (problem, optimizer): only with the optimizer can its learning rate be
    judged. Nothing of yours is changed. First findings are printed as soon as
    they are there; Ctrl-C ends the rest and prints and saves what is known.
    --out takes .sarif too.

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
        if explain is not None:
            show_rule(explain, new_console())
            return
        check_known([*(select or ()), *(ignore or ())])
    if target is None:
        raise typer.BadParameter("name FILE.py:FUNCTION, as in train.py:build; --list-rules and --explain need none.")
    asked = _budget(budget)
    known = None if baseline is None else read_baseline(baseline)
    left_out = [name for name in RULES if name in (ignore or ()) or (select and name not in select)]
    output = Output(out, as_json, has_findings=True)
    with output.problem(target) as (problem, optimizer, progress):
        diagnosis = measure(
            problem,
            optimizer,
            budget=asked,
            layers=layers,
            ignore=left_out,
            on_part=_show_first,
            progress=progress,
        )
    about = diagnosis.about | {"model": f"{diagnosis.about['model']} of {target}"}
    diagnosis = replace(diagnosis, about=about)
    rules = {name: text for name, text in explanations().items() if name not in left_out}
    uri, line = source_of(target)
    as_sarif = functools.partial(sarif, diagnosis.findings, rules, uri, line=line, known=known)
    output.finish(diagnosis, lambda console: show(diagnosis, console), as_sarif)
    if known is not None:
        new = [headline(each) for each in flat(diagnosis.findings) if place(each) not in known]
        output.console.print(Text(f"new since {baseline}: {', '.join(new) or 'nothing'}"), soft_wrap=True)
    if diagnosis.is_interrupted:
        typer.secho("interrupted: this is what was known by then", err=True, fg="red", bold=True)
        raise typer.Exit(INTERRUPTED)
    raise typer.Exit(exit_code(diagnosis.findings, fail_on, known or ()))


def _show_first(diagnosis: Diagnosis) -> None:
    """Print the first findings in short, beside the result: on standard error."""
    if diagnosis.parts[-1].name == FIRST:
        console = new_console(stderr=True)
        for finding in diagnosis.findings:
            if finding.severity != "note":
                text = (f"{headline(finding)}: {finding.summary}", COLORS[finding.severity])
                console.print(Text.assemble(("first look  ", "dim"), text))


def _budget(text: str) -> Literal["fast", "full"] | float:
    named: dict[str, Literal["fast", "full"]] = {"fast": "fast", "full": "full"}
    try:
        return named.get(text) or float(text)
    except ValueError:
        raise typer.BadParameter(f"--budget is {text!r}; write fast, full or a number of seconds.") from None
