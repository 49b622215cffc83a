"""An HTML file that holds everything it needs: its style, its plots and the library that draws them."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from importlib.resources import files

from wellcond.errors import MissingExtra
from wellcond.report.html import cards
from wellcond.report.html.plots import Plot


def placed(drawn: Mapping[str, Plot], plots: dict[str, Plot]) -> str:
    """Places for some plots; the plots themselves are added to `plots`, for the script at the end of the page."""
    places = []
    for caption, plot in drawn.items():
        name = f"figure-{len(plots)}"
        plots[name] = plot
        places.append(f'<div class="plot"><h3>{html.escape(caption)}</h3><div id="{name}"></div></div>')
    return f'<div class="plots">{"".join(places)}</div>'


def document(title: str, body: str, plots: Mapping[str, Plot]) -> str:
    """The whole file, with everything it needs in it."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise MissingExtra("plotly", "report") from error
    here = files("wellcond.report.html")
    # "<" could end the script that holds the plots
    data = json.dumps(plots, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title>
<style>{(here / "page.css").read_text(encoding="utf-8")}{cards.style()}</style>
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
