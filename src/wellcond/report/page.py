"""One HTML file that opens offline: headlines, interactive plots, all layers, and what the numbers hold for.

Every name that comes from a user is escaped here.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Mapping, Sequence
from importlib.resources import files

from wellcond.errors import MissingExtra
from wellcond.report.facts import Subject, facts
from wellcond.report.plots import SERIES_COLOURS, Plot, panels
from wellcond.report.spectra import DensityCurve
from wellcond.report.table import ALL_COLUMNS, MOST_LINES, Pivot
from wellcond.results import Row, number
from wellcond.results.text import duration, grouped

KEY = (
    "Σx is the second moment of what a layer receives, Σ∇h that of the gradient at its output. λmax, the largest "
    "eigenvalue, says how large they are; κ50, the largest over the median one, how uneven."
)


def page(
    subjects: Mapping[str, Subject],
    *,
    title: str = "",
    rows: Mapping[str, Sequence[Row]] | None = None,
    densities: Mapping[str, DensityCurve] | None = None,
) -> str:
    """The page of one or several networks side by side.

    Args:
        subjects: Diagnoses by the name of the network.
        title: The heading; by default it names the networks.
        rows: Further rows by the same names, such as `training_loss` with steps, whose curves then appear.
        densities: Spectral densities of the Hessian by the same names.

    Returns:
        The text of the file.

    Raises:
        MissingExtra: plotly is not installed.
    """
    series = {name: [*subject.rows(), *(rows or {}).get(name, ())] for name, subject in subjects.items()}
    title = title or f"Diagnosis of {' and '.join(subjects)}"
    plots: dict[str, Plot] = {}
    body = [f"<h1>{html.escape(title)}</h1>", f'<p class="note">{KEY}</p>']
    body += [_failed(subjects), _facts(series)]
    for panel in panels(series, densities):
        body.append(f"<h2>{panel.heading}</h2>")
        body.append(_plots(panel.plots, plots))
        body.append(f'<p class="note">{panel.note}</p>')
    body += [
        "<h2>All layers</h2>",
        '<p class="note">Click a heading to sort. Red is the worst of its column and network; – was not measured.</p>',
        _layers({name: Pivot.of(each) for name, each in series.items()}),
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
    return _document(title, "\n".join(body), plots)


def _failed(subjects: Mapping[str, Subject]) -> str:
    """Measurements that failed, first thing on the page."""
    entries = _reasons({name: subject.failed for name, subject in subjects.items()})
    return f'<div class="failed"><strong>Could not be measured</strong>{_definitions(entries)}</div>' if entries else ""


def _facts(series: Mapping[str, Sequence[Row]]) -> str:
    """The headlines, one column per network."""
    body = []
    for line in facts(series):
        cells = "".join(
            f'<td data-network="{html.escape(name)}">{html.escape(text or "–")}</td>'
            for name, text in line.texts.items()
        )
        body.append(f'<tr><th scope="row">{line.title}<small>{html.escape(line.meaning)}</small></th>{cells}</tr>')
    head = "".join(f'<th scope="col">{_dotted(name, i)}</th>' for i, name in enumerate(series))
    thead = f"<thead><tr><td></td>{head}</tr></thead>" if len(series) > 1 else ""
    return f'<table class="facts">{thead}<tbody>{"".join(body)}</tbody></table>'


def _plots(drawn: Mapping[str, Plot], plots: dict[str, Plot]) -> str:
    """Places for some plots; the plots themselves are collected for the script at the end of the page."""
    places = []
    for caption, plot in drawn.items():
        name = f"figure-{len(plots)}"
        plots[name] = plot
        places.append(f'<div class="plot"><h3>{html.escape(caption)}</h3><div id="{name}"></div></div>')
    return f'<div class="plots">{"".join(places)}</div>'


def _layers(pivots: Mapping[str, Pivot]) -> str:
    """All layers of all networks, with the worst cell of each column and network marked."""
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
        worst = {c: c.worst_layers(pivot.layers) for c in columns}
        for position, (layer, line) in enumerate(pivot.layers.items()):
            cells = [f'<th scope="row" class="text" data-value="{position}">{html.escape(layer)}</th>']
            if many:
                cells.append(f'<td class="text" data-value="{i}">{_dotted(name, i)}</td>')
            for c in columns:
                mark = ' class="worst"' if layer in worst[c] else ""
                cells.append(f'<td{mark} data-value="{_sort_key(line.get(c.quantity))}">{c.text(line)}</td>')
            body.append(f"<tr>{''.join(cells)}</tr>")
    table = f'<table class="layers"><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table>'
    return f'<div class="scroll{" tall" if len(body) > MOST_LINES else ""}">{table}</div>'


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
    """A network's name behind a dot of its colour."""
    colour = f"--dot: var(--series-{index % SERIES_COLOURS})"
    return f'<span class="dot" style="{colour}"></span>{html.escape(name)}'


def _sort_key(value: float | None) -> str:
    """What JavaScript's Number() reads; empty for what is missing."""
    if value is None or math.isnan(value):
        return ""
    return repr(value).replace("inf", "Infinity")


def _document(title: str, body: str, plots: Mapping[str, Plot]) -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise MissingExtra("plotly", "report") from error
    here = files("wellcond.report")
    # "<" could end the script that holds the plots
    data = json.dumps(plots, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title>
<style>{(here / "page.css").read_text(encoding="utf-8")}</style>
</head>
<body>
{body}
<footer>Made by wellcond. This file is complete: it loads nothing from anywhere.</footer>
<script>{get_plotlyjs()}</script>
<script type="application/json" id="figures">{data}</script>
<script>{(here / "page.js").read_text(encoding="utf-8")}</script>
</body>
</html>
"""
