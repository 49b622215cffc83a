"""An HTML file that holds everything it needs: its style, its data, and the scripts that draw them."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from wellcond.report.html.plots import Plot

STYLES = ("page.css", "cards.css")
"""Style sheets of every page."""


def placed(drawn: Mapping[str, Plot], plots: dict[str, Plot]) -> str:
    """Places for some plots; the plots themselves are added to `plots`, for the script at the end of the page."""
    places = []
    for caption, plot in drawn.items():
        name = f"figure-{len(plots)}"
        plots[name] = plot
        places.append(f'<div class="plot"><h3>{html.escape(caption)}</h3><div id="{name}"></div></div>')
    return f'<div class="plots">{"".join(places)}</div>'


def document(title: str, body: str, plots: Mapping[str, Plot]) -> str:
    """The whole file, with its plots and the script that draws them."""
    data = f'<script type="application/json" id="figures">{json_text(plots)}</script>'
    return bare_document(title, body, data=data, scripts=("plot.js", "page.js"))


def bare_document(
    title: str, body: str, *, data: str = "", styles: tuple[str, ...] = (), scripts: tuple[str, ...] = ()
) -> str:
    """A file with only the parts that it names.

    Args:
        title: Title of the window.
        body: HTML.
        data: Elements that hold what the scripts draw.
        styles: Further style sheets, as files of this folder.
        scripts: Files of this folder, in the order in which they need each other.
    """
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title>
<style>{"".join(map(_file, (*STYLES, *styles)))}</style>
</head>
<body>
{body}
<footer>Made by wellcond. This file is complete: it loads nothing from anywhere.</footer>
{data}
<script>{"".join(map(_file, (*scripts, "copy.js")))}</script>
</body>
</html>
"""


def json_text(content: Any) -> str:
    """JSON for a script element, which "<" could end."""
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _file(name: str) -> str:
    return (files("wellcond.report.html") / name).read_text(encoding="utf-8")
