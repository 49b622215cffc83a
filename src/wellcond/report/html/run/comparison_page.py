"""Runs side by side as one HTML file that opens offline: their curves in the same charts, and tables of differences."""

from __future__ import annotations

import html
from typing import Any

from wellcond.recording.comparison import Comparison
from wellcond.report.comparisons import Table, tables
from wellcond.report.html import cards
from wellcond.report.html.document import bare_document, json_text
from wellcond.report.html.plots import SERIES_COLORS
from wellcond.report.html.run.curves import CLOSE_POINTS, ON_CHANGE, Line, line
from wellcond.report.thinning import thinned
from wellcond.results import quantities as q
from wellcond.results.quantities import title_of
from wellcond.results.rendering import renders

CURVES = (
    q.TRAINING_LOSS,
    q.VALIDATION_LOSS,
    q.LR,
    q.MAX_LR,
    q.GRADIENT_NORM,
    q.HESSIAN.lambda_max,
    q.GRADIENT_NOISE_SCALE,
    q.STEP_TIME,
)
"""Quantities of the whole network that are drawn, where they were recorded."""
DASHES: tuple[list[int] | None, ...] = (None, [6, 4], [2, 3], [10, 4, 2, 4], [1, 2], [14, 5])
"""One for each run, so that lines differ without color too."""
COMPARISON_SCRIPTS = ("run/chart.js", "run/line_chart.js", "run/comparison.js")
ZOOM = '<p><button type="button" class="small" id="whole-run" hidden></button></p>'
NOTE = '<p class="note with-mouse">Drag over steps to enlarge them in every chart; Escape shows all again.</p>'


@renders("page", Comparison)
def comparison_page(comparison: Comparison) -> str:
    """The page of a comparison."""
    charts = [{"name": title_of(name), "lines": _lines(comparison, name)} for name in CURVES]
    last = max((run.last_step for run in comparison.runs.values()), default=0)
    content: dict[str, Any] = {"steps": [1, max(last, 2)], "charts": [each for each in charts if each["lines"]]}
    title = " and ".join(comparison.runs)
    body = [
        f"<header><h1>{html.escape(title)}</h1></header>",
        cards.verdict_card(comparison.verdict(), kind="note"),
        f"{ZOOM}<section><h2>Curves</h2>{NOTE}<div id='charts'></div></section>",
        *(_section(table) for table in tables(comparison)),
    ]
    data = f'<script type="application/json" id="comparison-data">{json_text(content)}</script>'
    return bare_document(
        title,
        f'<main class="run">{"".join(body)}</main>',
        data=data,
        styles=("run/run.css",),
        scripts=COMPARISON_SCRIPTS,
    )


def _lines(comparison: Comparison, quantity: str) -> list[Line]:
    lines = [
        line(
            thinned(run.history.series(quantity), CLOSE_POINTS),
            name,
            f"series-{(i + 1) % SERIES_COLORS}",
            dash=DASHES[i % len(DASHES)],
            is_held=quantity in ON_CHANGE,
        )
        for i, (name, run) in enumerate(comparison.runs.items())
    ]
    return [each for each in lines if each["steps"]]


def _section(table: Table) -> str:
    heading = f"<h2>{html.escape(table.title)}</h2>"
    if not table.body:
        return f'<section>{heading}<p class="note">{html.escape(table.nothing)}</p></section>'
    head = "".join(f'<th scope="col">{html.escape(each)}</th>' for each in table.header)
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in each)}</tr>" for each in table.body)
    return (
        f'<section>{heading}<div class="scroll"><table class="differences"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div></section>"
    )
