"""One HTML file that opens offline: verdict, findings, model tree; then plots, all layers, and how they were measured.

Every name that comes from a user is escaped here.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Mapping, Sequence

from wellcond.curvature.spectra.density import Density
from wellcond.diagnosis.diagnosis import Diagnosis
from wellcond.report.facts import facts
from wellcond.report.findings import by_layer, worst_of
from wellcond.report.html import cards
from wellcond.report.html.document import document, placed
from wellcond.report.html.plots import SERIES_COLORS, Plot, panels, training_plot
from wellcond.report.runs import is_helped, treatment_curves, trial_curves
from wellcond.report.table import ALL_COLUMNS, READING, Pivot, shown_columns
from wellcond.report.tree import model_tree
from wellcond.results import Row, number
from wellcond.results.rendering import renders
from wellcond.results.text import duration, grouped
from wellcond.treatment.treatment import PRICES, Treatment

TALL = 40
"""Tables with more layers than this scroll."""


@renders("page", Diagnosis)
def diagnosis_page(diagnosis: Diagnosis) -> str:
    """The page of one network."""
    return page({diagnosis.about["model"]: diagnosis})


@renders("page", Treatment)
def treatment_page(treatment: Treatment) -> str:
    """The page of remedies alone."""
    plots: dict[str, Plot] = {}
    return document("What helps", f"<h1>What helps</h1>{_treatment(treatment, plots)}", plots)


def page(
    diagnoses: Mapping[str, Diagnosis],
    *,
    title: str = "",
    rows: Mapping[str, Sequence[Row]] | None = None,
    densities: Mapping[str, Density] | None = None,
    treatment: Treatment | None = None,
) -> str:
    """The page of one or several networks side by side.

    Args:
        diagnoses: Diagnoses by the name of the network.
        title: Heading; by default it names the networks.
        rows: Further rows by the same names, such as `training_loss` with steps, whose curves then appear.
        densities: Spectral densities of the Hessian by the same names.
        treatment: What remedies did, shown after the findings.

    Returns:
        The text of the file.
    """
    series = {name: [*diagnosis.rows(), *(rows or {}).get(name, ())] for name, diagnosis in diagnoses.items()}
    title = title or f"Diagnosis of {' and '.join(diagnoses)}"
    plots: dict[str, Plot] = {}
    body = [f"<h1>{html.escape(title)}</h1>", *_explained(diagnoses)]
    if treatment is not None:
        body += ["<h2>What helps</h2>", _treatment(treatment, plots)]
    body.append(_trials(diagnoses, plots))
    body += ["<h2>Numbers</h2>", _failed(diagnoses), _facts(series)]
    body.append('<details class="expert"><summary>Layer by layer<small>for those who know Σx and κ</small></summary>')
    body.append(f'<p class="note">{READING}</p>')
    for panel in panels(series, densities):
        body += [f"<h2>{panel.heading}</h2>", placed(panel.plots, plots), f'<p class="note">{panel.note}</p>']
    body += [
        "<h2>All layers</h2>",
        '<p class="note">Click a heading to sort; point at it for what it means. – was not measured.</p>',
        _layers({name: Pivot.of(each) for name, each in series.items()}, diagnoses),
    ]
    notes = _reasons({name: diagnosis.notes for name, diagnosis in diagnoses.items()})
    if notes:
        body += ["<h2>Notes on layers</h2>", _definitions(notes)]
    missing = _reasons({name: diagnosis.not_covered for name, diagnosis in diagnoses.items()})
    if missing:
        body += ["<h2>Not covered</h2>", _definitions(missing)]
    left_out = _reasons({name: diagnosis.left_out for name, diagnosis in diagnoses.items()})
    if left_out:
        body += ["<h2>Left out</h2>", _definitions(left_out)]
    body.append("</details>")
    body += ["<h2>How it was measured</h2>", _about(diagnoses), _prices(diagnoses)]
    return document(title, "\n".join(body), plots)


def _explained(diagnoses: Mapping[str, Diagnosis]) -> Iterator[str]:
    """Verdicts first; then the findings of each network, and where they are in it."""
    many = len(diagnoses) > 1
    for name, diagnosis in diagnoses.items():
        key = name if many else ""
        yield cards.verdict_card(diagnosis.assessment(), diagnosis.findings, title=key, key=key)
    for name, diagnosis in diagnoses.items():
        of, key = f" in {html.escape(name)}" if many else "", name if many else ""
        if diagnosis.findings:
            yield f"<h2>What was found{of}</h2>"
            yield cards.finding_cards(diagnosis.findings, key, is_below_verdict=not many)
        if diagnosis.modules:
            yield f"<h2>The model{of and f': {html.escape(name)}'}</h2>"
            yield '<p class="note">Each module in the color of its findings; green is sound.</p>'
            yield _tree(diagnosis, key)


def _tree(diagnosis: Diagnosis, key: str) -> str:
    return cards.tree_list(model_tree(diagnosis.modules, diagnosis.findings), diagnosis.findings, key)


def _treatment(treatment: Treatment, plots: dict[str, Plot]) -> str:
    """What remedies did: in words, the lines to write, the curves before and after, and every arm."""
    curves = treatment_curves(treatment)
    drawn = {"The loss before and after, running mean": training_plot(curves)} if curves else {}
    priced = treatment.prices()
    parts = [
        cards.verdict_card(treatment.verdict(), kind="sound" if is_helped(treatment) else "warning"),
        cards.code_block(treatment.code) if is_helped(treatment) else "",
        placed(drawn, plots),
        f'<p class="note">{html.escape(treatment.title)}</p>',
        _arms(*treatment.table()),
        *([f'<p class="note">{PRICES}</p>', _arms(*priced)] if priced[1] else []),
        *(f'<p class="note">{html.escape(note)}</p>' for note in treatment.notes),
    ]
    return "\n".join(part for part in parts if part)


def _arms(head: list[str], body: list[list[str]]) -> str:
    lines = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in line)}</tr>" for line in body)
    heads = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in head)
    table = f'<table class="arms"><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table>'
    return f'<div class="scroll">{table}</div>'


def _trials(diagnoses: Mapping[str, Diagnosis], plots: dict[str, Plot]) -> str:
    """What short runs of copies did."""
    curves = {
        name: trial_curves(diagnosis.trial) for name, diagnosis in diagnoses.items() if diagnosis.trial is not None
    }
    before = "" if len(diagnoses) == 1 else "{}: "
    drawn = {f"{before.format(name)}the loss": training_plot(each) for name, each in curves.items() if each}
    note = "The loss of every step of copies of the network; each learning rate that was tried is a curve."
    return f'<h2>Short runs</h2>{placed(drawn, plots)}<p class="note">{note}</p>' if drawn else ""


def _failed(diagnoses: Mapping[str, Diagnosis]) -> str:
    """Measurements that failed, first thing on the page."""
    entries = _reasons({name: diagnosis.failed for name, diagnosis in diagnoses.items()})
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


def _layers(pivots: Mapping[str, Pivot], diagnoses: Mapping[str, Diagnosis]) -> str:
    """All layers of all networks, each in the color of its findings."""
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
        findings_of = by_layer(diagnoses[name].findings)
        for position, (layer, line) in enumerate(shown_columns(pivot, columns)[1].items()):
            severity = worst_of(finding.severity for finding in findings_of.get(layer, ())) or ""
            cells = [f'<th scope="row" class="text {severity}" data-value="{position}">{html.escape(layer)}</th>']
            if many:
                cells.append(f'<td class="text" data-value="{i}">{_dotted(name, i)}</td>')
            cells += [f'<td data-value="{_sort_key(line.get(c.quantity))}">{c.text(line)}</td>' for c in columns]
            body.append(f"<tr>{''.join(cells)}</tr>")
    table = f'<table class="layers"><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table>'
    return f'<div class="scroll{" tall" if len(body) > TALL else ""}">{table}</div>'


def _about(diagnoses: Mapping[str, Diagnosis]) -> str:
    """How the numbers were measured; written once if all networks agree."""
    titles = dict.fromkeys(title for diagnosis in diagnoses.values() for title in diagnosis.about)
    entries = {}
    for title in titles:
        texts = {name: diagnosis.about[title] for name, diagnosis in diagnoses.items() if title in diagnosis.about}
        alike = len(set(texts.values())) == 1
        entries[title] = next(iter(texts.values())) if alike else "; ".join(f"{n}: {text}" for n, text in texts.items())
    return _definitions(entries)


def _prices(diagnoses: Mapping[str, Diagnosis]) -> str:
    """What every part was estimated to take, and what it took."""
    many = len(diagnoses) > 1
    body = [
        f'<tr><th scope="row" class="text">{html.escape(part.name)}</th>'
        + (f'<td class="text">{_dotted(name, i)}</td>' if many else "")
        + f"<td>{number(part.estimate)}</td><td>{number(part.cost.u)}</td><td>{duration(part.seconds)}</td></tr>"
        for i, (name, diagnosis) in enumerate(diagnoses.items())
        for part in diagnosis.parts
        if part.seconds
    ]
    if not body:
        return ""
    titles = ["part", *(["network"] if many else []), "planned, u", "took, u", "time"]
    head = "".join(f'<th scope="col"{" class=text" if t in titles[: 1 + many] else ""}>{t}</th>' for t in titles)
    table = f'<table class="prices"><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table>'
    note = (
        "u is one training step: a forward and a backward pass of one mini-batch. Passes are counted, time is "
        "measured. Short runs of a network in trouble may take what is planned for later parts."
    )
    return f'<h2>What it took</h2><p class="note">{note}</p>{table}'


def _reasons(networks: Mapping[str, dict[str, str]]) -> dict[str, str]:
    """Reasons by the names they hold for; with the network's name if there are several."""
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
    """A network's name after a dot of its color."""
    color = f"--dot: var(--series-{index % SERIES_COLORS})"
    return f'<span class="dot" style="{color}"></span>{html.escape(name)}'


def _sort_key(value: float | None) -> str:
    """What JavaScript's Number() reads; empty for what is missing."""
    if value is None or math.isnan(value):
        return ""
    return repr(value).replace("inf", "Infinity")
