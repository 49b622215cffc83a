"""The page of a recorded run, one HTML file that opens offline: verdict, loss, findings, layers over steps, the model.

Every name and text that comes from a user is escaped here, or put into JSON that scripts show as text.
"""

from __future__ import annotations

import html

from wellcond.recording.run import Run
from wellcond.recording.settings import settings
from wellcond.report.html import cards
from wellcond.report.html.document import bare_document, json_text
from wellcond.report.html.run.data import PageData, page_data
from wellcond.report.manifests import modules, progress_text, run_name
from wellcond.results.rendering import renders

RUN_SCRIPTS = tuple(
    f"run/{name}.js" for name in ("chart", "line_chart", "heat_map", "timeline", "tree", "search", "run")
)
"""In the order in which they need each other."""
LOSS_SECTION = """<section aria-labelledby="h-loss"><h2 id="h-loss">Loss</h2>
<p class="note">Bars are findings, from the step at which each began to where it ended; choose one to read it.
<span class="with-mouse">Drag over steps to enlarge them in every chart; Escape shows all again.</span></p>
<div id="loss"></div></section>"""
RATE_SECTION = """<section aria-labelledby="h-rate"><h2 id="h-rate">Learning rate against its limit</h2>
<p class="note">The largest stable rate is 2(1 + μ)/λmax for SGD with momentum μ, and what corresponds to it for other
optimizers, as measured at the points; the band is its error. Shaded: the rate was above it.</p>
<div id="rate"></div></section>"""
MAPS_SECTION = """<section aria-labelledby="h-map"><h2 id="h-map">Layers over steps</h2>
<p class="note">One line per layer, in the order of the model; each cell is the largest value of its steps. Choose a
cell to open its layer.</p>
<div class="choice" id="map-choice" role="radiogroup" aria-label="Quantity of the heat map"></div>
<div id="map"></div>
<div class="map-foot"><span class="scale-key"><span id="map-low"></span><span id="map-scale"></span>
<span id="map-high"></span></span>
<span class="key"><i class="not-finite"></i>NaN or ∞</span><span class="key"><i class="zero"></i>zero</span>
<span class="rows"><span id="map-rows"></span><span id="map-zoom" hidden>
<button type="button" class="small" id="map-in" aria-label="Show fewer layers">+</button>
<button type="button" class="small" id="map-out" aria-label="Show more layers">−</button>
<button type="button" class="small" id="map-up" aria-label="Layers before these">▲</button>
<button type="button" class="small" id="map-down" aria-label="Layers after these">▼</button>
</span></span></div></section>"""
MODEL_SECTION = """<section aria-labelledby="h-model"><h2 id="h-model">The model</h2>
<p class="note">Arrow keys move through the tree, Enter opens a layer: its findings, and what was measured there.</p>
<div class="model"><div class="modules" id="tree" aria-label="Modules of the model"></div>
<div id="layer"><p class="note">Choose a layer.</p></div></div></section>"""
SEARCH_BAR = """<div class="bar-top" role="search"><input id="search" type="search" role="combobox" autocomplete="off"
spellcheck="false" placeholder="Search layers and findings  ( / )" aria-label="Search layers and findings"
aria-expanded="false" aria-controls="hits" aria-autocomplete="list">
<ul id="hits" role="listbox" aria-label="Hits" hidden></ul>
<button type="button" class="small" id="whole-run" hidden></button></div>"""
NETWORK_SECTION = """<section aria-labelledby="h-network"><h2 id="h-network">The whole network</h2>
<div class="small-charts" id="network"></div></section>"""
MANY = 40
"""Findings above which the browser lays a card out when it is scrolled to."""
TABLES = {
    "findings": "findings",
    "network": "series of the network",
    "layers": "last values of layers",
    "map": "heat map that is shown",
}
"""Tables that can be saved as CSV, and the words on their buttons."""


@renders("page", Run)
def run_page(run: Run) -> str:
    """The page of a run."""
    data = page_data(run.history, run.findings, modules(run), run.last_step)
    return bare_document(
        f"Run {run_name(run)}",
        f'<main class="run">{_body(run, data)}</main>',
        data=_data(data),
        styles=("run/run.css",),
        scripts=RUN_SCRIPTS,
    )


def _body(run: Run, data: PageData) -> str:
    content = data.content
    parts = [
        f"<header><h1>{html.escape(run_name(run))}</h1><p class=note>{html.escape(progress_text(run))}</p></header>",
        SEARCH_BAR,
        cards.verdict_card(run.verdict(), run.findings),
        LOSS_SECTION if content["loss"] else "",
        RATE_SECTION if content["rate"] else "",
        _findings(run),
        MAPS_SECTION if content["maps"] else "",
        MODEL_SECTION,
        NETWORK_SECTION if content["network"] else "",
        _settings(run),
        _tables(has_map=bool(content["maps"])),
    ]
    return "\n".join(part for part in parts if part)


def _data(data: PageData) -> str:
    grids = "\n".join(
        f'<script type="text/plain" id="grid-{name}">{codes}</script>' for name, codes in data.grids.items()
    )
    return f'<script type="application/json" id="run-data">{json_text(data.content)}</script>\n{grids}'


def _findings(run: Run) -> str:
    heading = '<h2 id="findings">Findings</h2>'
    if not run.findings:
        return f'<section>{heading}<p class="note">None.</p></section>'
    kind = ' class="many"' if len(run.findings) > MANY else ""
    return f"<section{kind}>{heading}{cards.finding_cards(run.findings)}</section>"


def _settings(run: Run) -> str:
    entries = "".join(f"<dt>{html.escape(t)}</dt><dd>{html.escape(d)}</dd>" for t, d in settings(run.manifest).items())
    return f"<section><h2>Settings</h2><dl>{entries}</dl></section>" if entries else ""


def _tables(*, has_map: bool) -> str:
    buttons = "".join(
        f'<button type="button" class="small" data-table="{name}">{words}</button>'
        for name, words in TABLES.items()
        if has_map or name != "map"
    )
    note = "Curves and heat maps are thinned to what a screen shows; every row is in the run directory."
    return f'<section><h2>Tables</h2><p class="note">{note}</p><p class="choice">{buttons}</p></section>'
