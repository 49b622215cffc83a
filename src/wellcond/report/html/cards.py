"""The verdict, the findings and the model tree as HTML. Every name and text that comes from a user is escaped."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from itertools import groupby

from wellcond.diagnosis.finding import SEVERITIES, Finding, Severity, flat
from wellcond.report.findings import worst
from wellcond.report.rule_sections import BASIS_MEANINGS, MISTAKES, Section, sections
from wellcond.report.strips import Strip, strips
from wellcond.report.text import headline, is_quoted, numbers
from wellcond.report.tree import Node, folded, is_short, run_text
from wellcond.results import number
from wellcond.results.text import named

SOUND = "sound"
"""CSS class of modules and networks without a finding."""
BAR, NARROWEST = 46, 180
"""Largest width of a bar with its gap, and smallest of a plot, in pixels."""
NAME_HEIGHT = 0.2
"""Height of the name of a limit, as a share of its plot's."""
MARKS = {"severe": "✗", "warning": "!", "note": "i", SOUND: "✓"}


def style() -> str:
    """The style sheet of everything here."""
    return (files("wellcond.report.html") / "cards.css").read_text(encoding="utf-8")


def verdict_card(
    verdict: str, findings: Sequence[Finding] = (), *, title: str = "", key: str = "", kind: str = ""
) -> str:
    """The verdict in its color, and how many findings there are of each severity.

    Args:
        verdict: Verdict in words.
        findings: Findings to count and link to.
        title: Name of the network, if there are several.
        key: Text that distinguishes its findings from those of other networks on the same page.
        kind: A severity or "sound"; "" for that of the findings.
    """
    if not kind:
        worst_severity = worst(findings)
        kind = SOUND if worst_severity in (None, "note") else str(worst_severity)
    places = {each: [i for i, f in enumerate(findings) if f.severity == each] for each in SEVERITIES}
    counts = [
        f'<a class="pill {severity}" href="#{anchor(indices[0], key)}">{len(indices)} {severity}</a>'
        for severity, indices in places.items()
        if indices
    ]
    heading = f"<h2>{escape(title)}</h2>" if title else ""
    pills = f'<p class="pills">{"".join(counts)}</p>' if counts else ""
    return (
        f'<section class="verdict {kind}"><span class="mark" aria-hidden="true">{MARKS[kind]}</span>'
        f"<div>{heading}<p>{escape(verdict)}</p>{pills}</div></section>"
    )


def finding_cards(findings: Sequence[Finding], key: str = "", *, is_below_verdict: bool = True) -> str:
    """One card per finding, worst first.

    Args:
        findings: Findings to show.
        key: As in `verdict_card`.
        is_below_verdict: Whether their verdict is just above, so that the summary it quotes is not said again.
    """
    return "\n".join(
        _card(finding, anchor(i, key), with_summary=not (is_below_verdict and is_quoted(finding, findings)))
        for i, finding in enumerate(findings)
    )


def anchor(index: int, key: str = "") -> str:
    """The id of a finding on a page."""
    return f"finding-{zlib.crc32(key.encode()):x}-{index + 1}" if key else f"finding-{index + 1}"


def _card(finding: Finding, identity: str, *, with_summary: bool) -> str:
    layer = f" <code>{escape(named(finding.layer))}</code>" if finding.layer else ""
    steps = f'<span class="when">{finding.when}</span>' if finding.when else ""
    parts = [
        f'<header><span class="pill {finding.severity}">{finding.severity}</span>'
        f"<h3>{escape(finding.rule)}{layer}</h3>{steps}"
        f'<small title="{BASIS_MEANINGS[finding.basis]}">{finding.basis}</small></header>',
        f'<p class="summary">{escape(finding.summary)}</p>' if with_summary else "",
        "".join(strip_plot(strip) for strip in strips(finding)),
        _numbers(finding),
    ]
    if finding.reason:
        parts.append(f'<p class="reason"><strong>Why</strong> {escape(finding.reason)}</p>')
    if finding.advice:
        parts.append(f'<p class="reason"><strong>To do</strong> {escape(finding.advice)}</p>')
    else:
        parts.append(code_block(finding.remedy))
    if finding.consequences:
        entries = "".join(
            f'<li><span class="pill {each.severity}">{each.severity}</span> <strong>{escape(headline(each))}</strong> '
            f"{escape(each.summary)}</li>"
            for each in finding.consequences
        )
        parts.append(f'<div class="explains"><strong>This explains</strong><ul>{entries}</ul></div>')
    parts.append(_about(finding.rule))
    return f'<article class="finding {finding.severity}" id="{identity}">{"".join(parts)}</article>'


def _about(rule: str) -> str:
    """The first words of a rule's page, folded: what is wrong, wrong and right code, and where to read the rest."""
    first, *others = sections(rule) or [Section("")]
    code = next((each.code for each in others if each.title == MISTAKES), "")
    if not code:
        return ""  # a rule of the user's own
    paragraphs = "".join(f"<p>{escape(each)}</p>" for each in first.text.split("\n\n"))
    more = f"<p>What it looks for, thresholds, causes: <code>wellcond diagnose --explain {escape(rule)}</code></p>"
    return (
        f'<details class="about"><summary>About {escape(rule)}</summary>{paragraphs}<pre>{escape(code)}</pre>{more}'
        "</details>"
    )


def _numbers(finding: Finding) -> str:
    # no <dl>, which notebooks lay out in their own way
    entries = "".join(
        f"<div><small>{escape(t)}</small><span>{escape(v)}</span></div>" for t, v in numbers(finding).items()
    )
    return f'<div class="numbers">{entries}</div>' if entries else ""


def code_block(code: str) -> str:
    """Lines of code with a button that copies them; empty if there are none."""
    code = code.strip("\n")
    if not code.strip():
        return ""
    button = '<button type="button" class="copy">copy</button>'
    return f'<div class="code">{button}<pre><code>{escape(code)}</code></pre></div>'


def strip_plot(strip: Strip) -> str:
    """Bars by layer, or a curve over training, with dashed lines at the limits; the layer to blame in color."""
    drawn = _curve(strip) if strip.is_curve else _bars(strip)
    scale = ", logarithmic" if strip.is_log else ""
    where = "step" if strip.is_curve else "layer"
    width = "" if strip.is_curve else f' style="max-width:{max(len(strip.values) * BAR, NARROWEST)}px"'
    ends = f"<span>{escape(strip.labels[0])}</span><span>{escape(strip.labels[-1])}</span>"
    return (
        f'<figure class="strip"><figcaption>{escape(strip.title)} by {where}{scale}: {escape(strip.caption())}'
        f'</figcaption><div{width}><div class="field">{drawn}{_limits(strip)}</div>'
        f'<div class="ends">{ends}</div></div></figure>'
    )


def _limits(strip: Strip) -> str:
    """Dashed lines with their names: above a line, or below it if the name of a higher line is there."""
    lines, lowest = "", math.inf
    for name, value in sorted(strip.limits, key=lambda limit: -strip.height(limit[1])):
        height = strip.height(value)
        is_under = height + NAME_HEIGHT > lowest
        lowest = height - NAME_HEIGHT if is_under else height
        place = ' class="under"' * is_under
        lines += f'<span class="limit" style="bottom:{100 * height:.1f}%"><em{place}>{escape(name)}</em></span>'
    return lines


def _bars(strip: Strip) -> str:
    bars = []
    for i, (label, value) in enumerate(zip(strip.labels, strip.values, strict=True)):
        kind = " ".join(["blamed"] * (i in strip.marked) + ["infinite"] * (not math.isfinite(value)))
        title = f"{escape(named(label))}: {number(value)}"
        bars.append(f'<i class="{kind}" style="height:{100 * strip.height(value):.1f}%" title="{title}"></i>')
    return f'<div class="bars">{"".join(bars)}</div>'


def _curve(strip: Strip) -> str:
    """Lines through the values, with gaps where they are not finite."""
    last = max(len(strip.values) - 1, 1)
    lines = ""
    for is_finite, stretch in groupby(enumerate(strip.values), key=lambda place: math.isfinite(place[1])):
        if is_finite:
            places = " ".join(f"{100 * i / last:.2f},{100 - 100 * strip.height(value):.2f}" for i, value in stretch)
            lines += f'<polyline points="{places}" fill="none" vector-effect="non-scaling-stroke"/>'
    return f'<svg viewBox="0 0 100 100" preserveAspectRatio="none" role="img" aria-label="curve">{lines}</svg>'


def tree_list(tree: Node, findings: Sequence[Finding], key: str = "") -> str:
    """The model tree as nested lists: a module in the color of its findings, with links to them."""
    places: dict[int, str] = {}
    for i, finding in enumerate(findings):
        places |= {id(each): anchor(i, key) for each in flat([finding])}
    return f'<ul class="tree"><li>{_node(tree, places, whole=is_short(tree))}</li></ul>'


def _node(node: Node, places: dict[int, str], *, whole: bool) -> str:
    links = "".join(
        f' <a class="pill {each.severity}" href="#{places[id(each)]}">{escape(each.rule)}</a>'
        for each in node.findings
        if id(each) in places
    )
    severity: Severity | None = node.severity
    kind = severity or ("inside" if node.worst_inside else SOUND)
    label = f'<span class="node {kind}">{escape(node.name or node.kind)}</span>'
    label += f"<small>{escape(node.kind)}</small>" * bool(node.name and node.kind) + links
    if not node.children:
        return label
    entries = []
    for each in folded(node, whole=whole):
        if isinstance(each, list):
            inner = "".join(f"<li>{_node(child, places, whole=False)}</li>" for child in each)
            entries.append(
                f'<li><details><summary class="fold">{escape(run_text(each))}</summary><ul>{inner}</ul></details></li>'
            )
        else:
            entries.append(f"<li>{_node(each, places, whole=whole)}</li>")
    is_open = " open" if whole or node.worst_inside or not node.path else ""
    return f"<details{is_open}><summary>{label}</summary><ul>{''.join(entries)}</ul></details>"
