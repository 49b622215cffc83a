"""Diagnoses and treatments in color: the answer first, then what it rests on, then the numbers."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from math import log10
from typing import Any

from wellcond.diagnosis.diagnosis import Diagnosis
from wellcond.diagnosis.finding import Finding, Severity
from wellcond.errors import MissingExtra
from wellcond.report.bars import bar
from wellcond.report.facts import facts
from wellcond.report.findings import by_layer, worst, worst_of
from wellcond.report.rule_sections import HEAD, Section
from wellcond.report.runs import is_helped, sparklines, treatment_curves
from wellcond.report.strips import strips
from wellcond.report.table import READING, Pivot, excerpt, shown_columns
from wellcond.report.text import clipped, evidence_text, headline, is_quoted, listed, numbers, took
from wellcond.report.tree import Node, folded, is_short, model_tree, run_text
from wellcond.results import Row
from wellcond.results.quantities import GRADIENT, INPUT
from wellcond.results.text import grouped, named, shortened
from wellcond.treatment.treatment import Treatment

try:
    from rich import box
    from rich.console import Console
    from rich.padding import Padding
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text
    from rich.tree import Tree
except ImportError as error:
    raise MissingExtra("rich", "report") from error

SEVERITY_COLORS: dict[Severity | None, str] = {"severe": "red", "warning": "yellow", "note": "cyan", None: "green"}
TERMINAL_MARKS: dict[Severity | None, str] = {"severe": "✗", "warning": "!", None: "✓"}
"""Sign before an answer; a network with nothing but notes is healthy."""
INDENT = 4
BAR_WIDTH = 8
ROOM_FOR_BARS = 100
"""A terminal with at least this many columns shows magnitudes as bars too."""
BAR_COLUMNS = (INPUT.lambda_max, GRADIENT.lambda_max)


def new_console(**options: Any) -> Console:
    """A console that prints text as it is: neither `[red]` nor `:smile:` in a layer's name means anything to it.

    Args:
        **options: Options of `rich.console.Console`.
    """
    return Console(emoji=False, markup=False, highlight=False, **options)


def new_table(**options: Any) -> Table:
    """A table with a line below its head, and no frame.

    Args:
        **options: Options of `rich.table.Table`.
    """
    return Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, **options)


def show_diagnosis(diagnosis: Diagnosis, console: Console) -> None:
    """Print the assessment, the findings, where they are in the model, and then the numbers."""
    show_findings(diagnosis.assessment(), diagnosis.findings, console)
    if any(by_layer(diagnosis.findings).keys() - {""}):
        show_tree(model_tree(diagnosis.modules, diagnosis.findings), console)
    show_numbers(diagnosis, console)


def show_findings(verdict: str, findings: Sequence[Finding], console: Console) -> None:
    """Print the verdict in a frame of its color, and every finding."""
    severity = worst(findings)
    _show_framed(verdict, None if severity == "note" else severity, console)
    for finding in findings:
        console.print()
        _show_finding(finding, console, with_summary=not is_quoted(finding, findings))


def show_code(code: str, console: Console) -> None:
    """Print lines of code; they are never wrapped, so that they can be pasted."""
    console.print(Text(textwrap.indent(code.strip("\n"), " " * 2 * INDENT), style="cyan"), soft_wrap=True)


def _show_finding(finding: Finding, console: Console, *, with_summary: bool) -> None:
    """What, where, on what basis; the evidence, the reason, what to write, and what it explains."""
    color = SEVERITY_COLORS[finding.severity]
    head = Text.assemble((f" {finding.severity.upper()} ", f"bold reverse {color}"), " ", (finding.rule, "bold"))
    if finding.layer:
        head.append(" at ").append(named(finding.layer), style=f"bold {color}")
    if finding.when:
        head.append(f", {finding.when}")
    console.print(head.append(f"  {finding.basis}", style="dim"))
    if with_summary:
        _show_indented(Text(clipped(finding.summary)), console)
    if finding.severity != "note":
        if numbers(finding):
            _show_indented(Text(evidence_text(finding), style="dim"), console)
        for strip in strips(finding):
            line = Text(f"{strip.title}  ", style="dim")
            for block, is_marked in strip.sparkline():
                line.append(block, style=f"bold {color}" if is_marked else "not dim blue")
            _show_indented(line.append(f"  {strip.caption()}"), console)
        if finding.reason:
            _show_indented(Text.assemble(("why  ", "bold"), finding.reason), console)
    if finding.advice:
        _show_indented(Text.assemble(("to do  ", "bold"), finding.advice), console)
    elif finding.remedy:
        show_code(finding.remedy, console)
    shown, more = listed(finding.consequences)
    for each in shown:
        mark = (f"↳ {headline(each)}", SEVERITY_COLORS[each.severity])
        _show_indented(Text.assemble(mark, (f"  {clipped(each.summary)}", "dim")), console)
    if more:
        _show_indented(Text(f"↳ {more}", style="dim"), console)


def _show_framed(text: str, severity: Severity | None, console: Console) -> None:
    color = SEVERITY_COLORS[severity]
    marked = Text(f"{TERMINAL_MARKS[severity]} {clipped(text)}", style=f"bold {color}")
    console.print(Panel(marked, box=box.ROUNDED, border_style=color, padding=(0, 1)))


def _show_indented(text: Text, console: Console) -> None:
    console.print(Padding(text, (0, 0, 0, INDENT)))


def show_treatment(treatment: Treatment, console: Console) -> None:
    """Print what remedies did: the verdict, the loss before and after, and the lines to write."""
    _show_framed(treatment.verdict(), None if is_helped(treatment) else "warning", console)
    lines = sparklines(treatment_curves(treatment, only_best=True))
    width = max(map(len, lines), default=0)
    for i, (name, line) in enumerate(lines.items()):
        _show_indented(Text.assemble(f"{name:<{width}}  ", (line, "red" if i == 0 else "green")), console)
    if is_helped(treatment):
        console.print()
        show_code(treatment.code, console)


def show_sections(name: str, parts: Sequence[Section], console: Console) -> None:
    """Print what is to say of a rule, section by section."""
    console.print(Text(name, style="bold"))
    for part in parts:
        if part.title:
            console.print(Text(f"\n{part.title}", style="bold"))
        if part.text:
            console.print(Text(part.text))
        for item in part.items:
            bullet = Table.grid(padding=(0, 1))
            bullet.add_row("-", Text(item))
            console.print(bullet)
        if part.code:
            show_code(part.code, console)
        if part.table:
            table = new_table()
            for head in HEAD:
                table.add_column(head)
            for row in part.table:
                table.add_row(*map(Text, row))
            console.print(table)


def show_tree(tree: Node, console: Console) -> None:
    """Print the model tree: a module in the color of its findings, long runs of sound modules in one line."""
    whole = is_short(tree)
    root = Tree(_label(tree), guide_style="dim")
    _grow(root, tree, whole)
    console.print()
    console.print(root)


def _grow(branch: Tree, node: Node, whole: bool) -> None:
    for each in folded(node, whole=whole):
        if isinstance(each, list):
            branch.add(Text(run_text(each), style="dim green"))
        else:
            below = branch.add(_label(each))
            if whole or each.worst_inside is not None:
                _grow(below, each, whole)


def _label(node: Node) -> Text:
    severity = node.severity
    is_sound = node.worst_inside is None
    style = f"bold {SEVERITY_COLORS[severity]}" if severity else "green" if is_sound else ""
    name = Text.assemble((node.name or node.kind, style))
    if node.name and node.kind:
        name.append(f"  {node.kind}", style="dim")
    for finding in {finding.rule: finding for finding in node.findings}.values():
        name.append(f"  ● {finding.rule}", style=SEVERITY_COLORS[finding.severity])
    return name


def show_numbers(diagnosis: Diagnosis, console: Console) -> None:
    """Print the table of layers, headlines, what is missing from them, and what it all took."""
    console.print(Text("\nNumbers", style="bold"))
    table = layer_table(diagnosis.rows(), console.width, diagnosis.findings)
    if table.row_count:
        console.print(table)
        console.print(Text(READING, style="dim"))
    headlines = facts_table({"": diagnosis.rows()})
    if headlines.row_count:
        console.print(headlines)
    show_failures(diagnosis, console)
    for title, reasons in (
        ("note", diagnosis.notes),
        ("not covered", diagnosis.not_covered),
        ("left out", diagnosis.left_out),
    ):
        for reason, names in grouped(reasons).items():
            console.print(Text(f"{title}: {names}: {reason}", style="dim"))
    if text := took(diagnosis.parts):
        console.print(Text(f"took {text}", style="dim"))


def show_failures(diagnosis: Diagnosis, console: Console, network: str = "") -> None:
    """Print what could not be measured, in red."""
    for reason, parts in grouped(diagnosis.failed).items():
        console.print(Text(f"{network}{': ' if network else ''}{parts} failed: {reason}", style="red"))


def facts_table(series: Mapping[str, Sequence[Row]]) -> Table:
    """The headlines, one column per network."""
    table = new_table(show_header=len(series) > 1)
    table.add_column("", style="bold", no_wrap=True)
    for name in series:
        table.add_column(Text(name), ratio=1)
    for line in facts(series):
        table.add_row(line.title, *(Text(text or "–") for text in line.texts.values()))
    return table


def layer_table(rows: Sequence[Row], width: int, findings: Sequence[Finding] = ()) -> Table:
    """One line per layer, in the color of its findings; magnitudes with a bar on a logarithmic scale."""
    pivot = Pivot.of(rows)
    columns, layers = shown_columns(pivot)
    names, rest = excerpt(columns, layers)
    findings_of = by_layer(findings)
    bars = {q: _bars(pivot.column(q)) for q in BAR_COLUMNS if width >= ROOM_FOR_BARS}
    table = new_table(caption=rest and f"{rest}; --out has all", caption_justify="left")
    table.add_column("layer", overflow="fold")  # names give way before numbers do
    for column in columns:
        table.add_column(column.title, justify="right", no_wrap=True)
        if column.quantity in bars:
            table.add_column("", width=BAR_WIDTH, style="cyan")
    for name in names:
        severity = worst_of(finding.severity for finding in findings_of.get(name, ()))
        cells = [Text(shortened(name), f"bold {SEVERITY_COLORS[severity]}" if severity else "")]
        for column in columns:
            cells.append(Text(column.text(layers[name])))
            if column.quantity in bars:
                cells.append(Text(bars[column.quantity].get(name, "")))
        table.add_row(*cells)
    return table


def _bars(column: Mapping[str, float]) -> dict[str, str]:
    """Bars that span the range of the positive values, on a logarithmic scale of a decade or more."""
    logs = {name: log10(value) for name, value in column.items() if 0 < value < float("inf")}
    if not logs:
        return {}
    low, high = min(logs.values()), max(logs.values())
    return {name: bar((value - low) / max(high - low, 1.0), BAR_WIDTH) for name, value in logs.items()}
