"""The verdict, the findings and the model tree in color."""

from __future__ import annotations

from collections.abc import Sequence

from wellcond.diagnosis.finding import Finding, Severity
from wellcond.errors import MissingExtra
from wellcond.report.listing import worst
from wellcond.report.runs import Treated, helps, sparklines, treated_curves
from wellcond.report.strips import strips
from wellcond.report.tree import Node, folded, is_short, run_text
from wellcond.report.words import clipped, evidence_text, headline, listed, sureness
from wellcond.results.text import named

try:
    from rich import box
    from rich.console import Console
    from rich.padding import Padding
    from rich.panel import Panel
    from rich.text import Text
    from rich.tree import Tree
except ImportError as error:
    raise MissingExtra("rich", "report") from error

COLORS: dict[Severity | None, str] = {"severe": "red", "warning": "yellow", "note": "cyan", None: "green"}
MARKS: dict[Severity | None, str] = {"severe": "✗", "warning": "!", None: "✓"}
"""Before a verdict; a network with notes alone is healthy."""
INDENT = 4


def show_verdict(verdict: str, findings: Sequence[Finding], console: Console) -> None:
    """Print the verdict in a frame of its color."""
    severity = worst(findings)
    _framed(verdict, None if severity == "note" else severity, console)


def show_findings(findings: Sequence[Finding], console: Console) -> None:
    """Print every finding: what, where, how sure; the evidence, the reason, what to write, and what it explains."""
    for finding in findings:
        console.print()
        _show_finding(finding, console)


def _show_finding(finding: Finding, console: Console) -> None:
    color = COLORS[finding.severity]
    head = Text.assemble((f" {finding.severity.upper()} ", f"bold reverse {color}"), " ", (finding.rule, "bold"))
    if finding.layer:
        head.append(" at ").append(named(finding.layer), style=f"bold {color}")
    console.print(head.append(f"  {sureness(finding)}", style="dim"))
    _indented(Text(clipped(finding.summary)), console)
    if finding.severity != "note":
        if finding.evidence:
            _indented(Text(evidence_text(finding), style="dim"), console)
        for strip in strips(finding):
            line = Text(f"{strip.title}  ", style="dim")
            for block, is_marked in strip.sparkline():
                line.append(block, style=f"bold {color}" if is_marked else "not dim blue")
            _indented(line.append(f"  {strip.caption()}"), console)
        if finding.reason:
            _indented(Text.assemble(("why  ", "bold"), finding.reason), console)
    if finding.remedy:
        _indented(Text(finding.remedy.strip("\n"), style="cyan"), console, 2 * INDENT)
    shown, more = listed(finding.consequences)
    for each in shown:
        mark = (f"↳ {headline(each)}", COLORS[each.severity])
        _indented(Text.assemble(mark, (f"  {clipped(each.summary)}", "dim")), console)
    if more:
        _indented(Text(f"↳ {more}", style="dim"), console)


def _framed(text: str, severity: Severity | None, console: Console) -> None:
    color = COLORS[severity]
    marked = Text(f"{MARKS[severity]} {clipped(text)}", style=f"bold {color}")
    console.print(Panel(marked, box=box.ROUNDED, border_style=color, padding=(0, 1)))


def _indented(text: Text, console: Console, indent: int = INDENT) -> None:
    console.print(Padding(text, (0, 0, 0, indent)))


def show_treatment(treated: Treated, console: Console) -> None:
    """Print what remedies did: the verdict, the loss before and after, and the lines to write."""
    _framed(treated.verdict(), None if helps(treated) else "warning", console)
    lines = sparklines(treated_curves(treated, only_best=True))
    width = max(map(len, lines), default=0)
    for i, (name, line) in enumerate(lines.items()):
        _indented(Text.assemble(f"{name:<{width}}  ", (line, "red" if i == 0 else "green")), console)
    if treated.code:
        console.print()
        _indented(Text(treated.code, style="cyan"), console, 2 * INDENT)


def show_tree(tree: Node, console: Console) -> None:
    """Print the model tree: a module in the color of what was found in it, long runs of sound ones in one line."""
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
    style = f"bold {COLORS[severity]}" if severity else "green" if is_sound else ""
    name = Text.assemble((node.name or node.kind, style))
    if node.name and node.kind:
        name.append(f"  {node.kind}", style="dim")
    for finding in {finding.rule: finding for finding in node.findings}.values():
        name.append(f"  ● {finding.rule}", style=COLORS[finding.severity])
    return name
