"""One HTML file that opens offline: verdict, findings, model tree; then plots, all layers, what the numbers hold for.

Every name that comes from a user is escaped here.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Mapping, Sequence

from wellcond.report.facts import Subject, facts, numbers_text
from wellcond.report.figures.curves import DensityCurve
from wellcond.report.html import cards
from wellcond.report.html.document import document, placed
from wellcond.report.html.plots import SERIES_COLORS, Plot, panels, training_plot
from wellcond.report.listing import by_layer, worst_of
from wellcond.report.runs import Treated, helps, treated_curves, trial_curves
from wellcond.report.table import ALL_COLUMNS, READING, Pivot
from wellcond.report.tree import model_tree
from wellcond.results import Row, number
from wellcond.results.text import duration, grouped

TALL = 40
"""Layers of a table from which on it scrolls."""


def treatment_page(treated: Treated) -> str:
    """The page of remedies alone; needs plotly."""
    plots: dict[str, Plot] = {}
    return document("What helps", f"<h1>What helps</h1>{_treated(treated, plots)}", plots)


def page(
    subjects: Mapping[str, Subject],
    *,
    title: str = "",
    rows: Mapping[str, Sequence[Row]] | None = None,
    densities: Mapping[str, DensityCurve] | None = None,
    treated: Treated | None = None,
) -> str:
    """The page of one or several networks side by side.

    Args:
        subjects: Diagnoses by the name of the network.
        title: The heading; by default it names the networks.
        rows: Further rows by the same names, such as `training_loss` with steps, whose curves then appear.
        densities: Spectral densities of the Hessian by the same names.
        treated: What remedies did, shown after the findings.

    Returns:
        The text of the file.

    Raises:
        MissingExtra: plotly is not installed.
    """
    series = {name: [*subject.rows(), *(rows or {}).get(name, ())] for name, subject in subjects.items()}
    title = title or f"Diagnosis of {' and '.join(subjects)}"
    plots: dict[str, Plot] = {}
    body = [f"<h1>{html.escape(title)}</h1>", *_explained(subjects)]
    if treated is not None:
        body += ["<h2>What helps</h2>", _treated(treated, plots)]
    body.append(_trials(subjects, plots))
    body += ["<h2>Numbers</h2>", f'<p class="note">{READING}</p>', _failed(subjects), _facts(series)]
    for panel in panels(series, densities):
        body += [f"<h2>{panel.heading}</h2>", placed(panel.plots, plots), f'<p class="note">{panel.note}</p>']
    body += [
        "<h2>All layers</h2>",
        '<p class="note">Click a heading to sort; point at it for what it means. – was not measured.</p>',
        _layers({name: Pivot.of(each) for name, each in series.items()}, subjects),
    ]
    notes = _reasons({name: subject.notes for name, subject in subjects.items()})
    if notes:
        body += ["<h2>Notes on layers</h2>", _definitions(notes)]
    missing = _reasons({name: subject.not_covered for name, subject in subjects.items()})
    if missing:
        body += ["<h2>Not covered</h2>", _definitions(missing)]
    left_out = _reasons({name: subject.left_out for name, subject in subjects.items()})
    if left_out:
        body += ["<h2>Left out</h2>", _definitions(left_out)]
    body += ["<h2>What the numbers hold for</h2>", _about(subjects), _prices(subjects)]
    return document(title, "\n".join(body), plots)


def fragment(subject: Subject) -> str:
    """What a notebook shows: the same order, with the numbers folded away and no script."""
    key = subject.verdict()
    parts = [cards.verdict_card(key, subject.findings, key=key), cards.finding_cards(subject.findings, key)]
    if subject.findings:
        parts.append(_tree(subject, key))
    parts.append(f"<details><summary>Numbers</summary><pre>{html.escape(numbers_text(subject))}</pre></details>")
    # nested, so that nothing else in the notebook looks different
    own = "color-scheme: light dark; background: Canvas; color: CanvasText; padding: .5rem; .copy { display: none; }"
    style = f"<style>.wellcond {{ {own} {cards.style()} }}</style>"
    return f'{style}<div class="wellcond">{"".join(parts)}</div>'


def _explained(subjects: Mapping[str, Subject]) -> Iterator[str]:
    """Verdicts first; then the findings of each network, and where they are in it."""
    many = len(subjects) > 1
    for name, subject in subjects.items():
        key = name if many else ""
        yield cards.verdict_card(subject.verdict(), subject.findings, title=key, key=key)
    for name, subject in subjects.items():
        of, key = f" in {html.escape(name)}" if many else "", name if many else ""
        if subject.findings:
            yield f"<h2>What was found{of}</h2>"
            yield cards.finding_cards(subject.findings, key)
        if subject.modules:
            yield f"<h2>The model{of and f': {html.escape(name)}'}</h2>"
            yield '<p class="note">Each module in the color of what was found in it; green is sound.</p>'
            yield _tree(subject, key)


def _tree(subject: Subject, key: str) -> str:
    return cards.tree_list(model_tree(subject.modules, subject.findings), subject.findings, key)


def _treated(treated: Treated, plots: dict[str, Plot]) -> str:
    """What came of the remedies: in words, the code, the curves before and after, and every arm."""
    curves = treated_curves(treated)
    drawn = {"The loss before and after, by running mean": training_plot(curves)} if curves else {}
    head, body = treated.table()
    lines = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in line)}</tr>" for line in body)
    heads = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in head)
    table = f'<table class="arms"><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table>'
    parts = [
        cards.verdict_card(treated.verdict(), kind="sound" if helps(treated) else "warning"),
        cards.code_block(treated.code),
        placed(drawn, plots),
        f'<p class="note">{html.escape(treated.title)}</p>',
        f'<div class="scroll">{table}</div>',
        *(f'<p class="note">{html.escape(note)}</p>' for note in treated.notes),
    ]
    return "\n".join(part for part in parts if part)


def _trials(subjects: Mapping[str, Subject], plots: dict[str, Plot]) -> str:
    """What short runs of copies did."""
    curves = {name: trial_curves(subject.trial) for name, subject in subjects.items() if subject.trial is not None}
    before = "" if len(subjects) == 1 else "{}: "
    drawn = {f"{before.format(name)}the loss": training_plot(each) for name, each in curves.items() if each}
    note = "The loss of every step of copies of the network; where several rates were tried, each is a curve."
    return f'<h2>Short runs</h2>{placed(drawn, plots)}<p class="note">{note}</p>' if drawn else ""


def _failed(subjects: Mapping[str, Subject]) -> str:
    """Measurements that failed, first thing on the page."""
    entries = _reasons({name: subject.failed for name, subject in subjects.items()})
    return f'<div class="failed"><strong>Could not be measured</strong>{_definitions(entries)}</div>' if entries else ""


def _facts(series: Mapping[str, Sequence[Row]]) -> str:
    """The headlines, one column per network."""
    body = []
    for line in facts(series):
        cells = "".join(
            f'<td data-network="{html.escape(name) if len(series) > 1 else ""}">{html.escape(text or "–")}</td>'
            for name, text in line.texts.items()
        )
        body.append(f'<tr><th scope="row">{line.title}<small>{html.escape(line.meaning)}</small></th>{cells}</tr>')
    head = "".join(f'<th scope="col">{_dotted(name, i)}</th>' for i, name in enumerate(series))
    thead = f"<thead><tr><td></td>{head}</tr></thead>" if len(series) > 1 else ""
    return f'<table class="facts">{thead}<tbody>{"".join(body)}</tbody></table>'


def _layers(pivots: Mapping[str, Pivot], subjects: Mapping[str, Subject]) -> str:
    """All layers of all networks, each in the color of what was found there."""
    columns = [c for c in ALL_COLUMNS if any(pivot.column(c.quantity) for pivot in pivots.values())]
    many = len(pivots) > 1
    heads = [("layer", "name, in the order of the network", "text")] + ([("network", "", "text")] if many else [])
    heads += [(c.title, c.meaning, "") for c in columns]
    head = "".join(
        f'<th scope="col" class="{kind}" title="{html.escape(meaning)}"><button>{html.escape(title)}</button></th>'
        for title, meaning, kind in heads
    )
    body = []
    for i, (name, pivot) in enumerate(pivots.items()):
        found = by_layer(subjects[name].findings)
        for position, (layer, line) in enumerate(pivot.layers.items()):
            severity = worst_of(finding.severity for finding in found.get(layer, ())) or ""
            cells = [f'<th scope="row" class="text {severity}" data-value="{position}">{html.escape(layer)}</th>']
            if many:
                cells.append(f'<td class="text" data-value="{i}">{_dotted(name, i)}</td>')
            cells += [f'<td data-value="{_sort_key(line.get(c.quantity))}">{c.text(line)}</td>' for c in columns]
            body.append(f"<tr>{''.join(cells)}</tr>")
    table = f'<table class="layers"><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table>'
    return f'<div class="scroll{" tall" if len(body) > TALL else ""}">{table}</div>'


def _about(subjects: Mapping[str, Subject]) -> str:
    """What the numbers hold for; said once where all networks agree."""
    titles = dict.fromkeys(title for subject in subjects.values() for title in subject.about)
    entries = {}
    for title in titles:
        said = {name: subject.about[title] for name, subject in subjects.items() if title in subject.about}
        alike = len(set(said.values())) == 1
        entries[title] = next(iter(said.values())) if alike else "; ".join(f"{n}: {text}" for n, text in said.items())
    return _definitions(entries)


def _prices(subjects: Mapping[str, Subject]) -> str:
    """What every part was to cost, and what it took."""
    many = len(subjects) > 1
    body = [
        f'<tr><th scope="row" class="text">{html.escape(part.name)}</th>'
        + (f'<td class="text">{_dotted(name, i)}</td>' if many else "")
        + f"<td>{number(part.estimate)}</td><td>{number(part.cost.u)}</td><td>{duration(part.seconds)}</td></tr>"
        for i, (name, subject) in enumerate(subjects.items())
        for part in subject.parts
        if part.seconds
    ]
    if not body:
        return ""
    titles = ["part", *(["network"] if many else []), "estimated at most, u", "took, u", "time"]
    head = "".join(f'<th scope="col"{" class=text" if t in titles[: 1 + many] else ""}>{t}</th>' for t in titles)
    table = f'<table class="prices"><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table>'
    note = "u is one forward and backward pass over the same batches; passes are counted, and the time is measured."
    return f'<h2>What it took</h2><p class="note">{note}</p>{table}'


def _reasons(networks: Mapping[str, dict[str, str]]) -> dict[str, str]:
    """Names → why, of every network; the network is named where there are several."""
    return {
        f"{network}: {names}" if len(networks) > 1 else names: why
        for network, reasons in networks.items()
        for why, names in grouped(reasons).items()
    }


def _definitions(entries: Mapping[str, str]) -> str:
    if not entries:
        return ""
    return f"<dl>{''.join(f'<dt>{html.escape(t)}</dt><dd>{html.escape(d)}</dd>' for t, d in entries.items())}</dl>"


def _dotted(name: str, index: int) -> str:
    """A network's name behind a dot of its color."""
    color = f"--dot: var(--series-{index % SERIES_COLORS})"
    return f'<span class="dot" style="{color}"></span>{html.escape(name)}'


def _sort_key(value: float | None) -> str:
    """What JavaScript's Number() reads; empty for what is missing."""
    if value is None or math.isnan(value):
        return ""
    return repr(value).replace("inf", "Infinity")
