"""One HTML file that opens offline: headlines, interactive plots, all layers, and what the numbers hold for."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path

from wellcond.errors import MissingExtra
from wellcond.report import sections
from wellcond.report.gallery import panels
from wellcond.report.pivot import Pivot
from wellcond.report.plots import Figure
from wellcond.report.subject import Subject
from wellcond.results import Row
from wellcond.results.files import check_writable, write_atomically

KEY = (
    "Σx is the second moment of what a layer receives, Σ∇h that of the gradient at its output. λmax, the largest "
    "eigenvalue, says how large they are; κ50, the largest over the median one, how uneven."
)


def save_page(
    subjects: Mapping[str, Subject],
    path: str | Path,
    *,
    title: str = "",
    more: Mapping[str, Sequence[Row]] | None = None,
) -> Path:
    """Write the page of one or several networks, side by side, and return where it is.

    subjects: diagnoses by name. more: further rows by the same names: those of a `Density` (its plot appears) and
    `training_loss` with a step (the loss curves appear).
    """
    check_writable(path)
    return write_atomically(path, page(subjects, title=title, more=more).encode())


def page(subjects: Mapping[str, Subject], *, title: str = "", more: Mapping[str, Sequence[Row]] | None = None) -> str:
    """The page as text."""
    series = {name: [*subject.rows(), *(more or {}).get(name, ())] for name, subject in subjects.items()}
    title = title or f"Diagnosis of {' and '.join(subjects)}"
    figures: dict[str, Figure] = {}
    body = [f"<h1>{html.escape(title)}</h1>", f'<p class="note">{KEY}</p>']
    body += [sections.failed_section(subjects), sections.facts_section(series)]
    for panel in panels(series):
        body.append(f"<h2>{panel.heading}</h2>")
        body.append(_plots(panel.figures, figures))
        body.append(f'<p class="note">{panel.note}</p>')
    body += [
        "<h2>All layers</h2>",
        '<p class="note">Click a heading to sort. Red is the worst of its column and network; – was not measured.</p>',
        sections.layers_section({name: Pivot.of(rows) for name, rows in series.items()}),
    ]
    if missing := sections.missing_section(subjects):
        body += ["<h2>Not covered</h2>", missing]
    body += ["<h2>What the numbers hold for</h2>", sections.about_section(subjects)]
    return _document(title, "\n".join(body), figures)


def _plots(drawn: Mapping[str, Figure], figures: dict[str, Figure]) -> str:
    """Places for some plots; the figures themselves are collected for the script at the end of the page."""
    places = []
    for caption, figure in drawn.items():
        name = f"figure-{len(figures)}"
        figures[name] = figure
        places.append(f'<div class="plot"><h3>{html.escape(caption)}</h3><div id="{name}"></div></div>')
    return f'<div class="plots">{"".join(places)}</div>'


def _document(title: str, body: str, figures: Mapping[str, Figure]) -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise MissingExtra("plotly", "report") from error
    here = files("wellcond.report")
    # "<" could end the script that holds the figures
    data = json.dumps(figures, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
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
