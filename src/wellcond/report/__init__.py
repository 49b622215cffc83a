"""Everything that draws or words results: plain text, terminal, HTML, matplotlib, SARIF. Nothing here computes.

Importing this package registers how each type of result is shown (`wellcond.results.rendering`).
"""

from wellcond.report import comparisons, races, run_text, sarif, text
from wellcond.report.figures import activations, curves, landscape, rates, runs, spectra
from wellcond.report.html import notebook, page
from wellcond.report.html.run import comparison_page
from wellcond.report.html.run import page as run_page

__all__ = [
    "activations",
    "comparison_page",
    "comparisons",
    "curves",
    "landscape",
    "notebook",
    "page",
    "races",
    "rates",
    "run_page",
    "run_text",
    "runs",
    "sarif",
    "spectra",
    "text",
]
