"""Runs the cases: writes what their code prints into the pages, and draws the pictures of their runs.

python docs/scripts/cases.py [nan …]

Recorders sample by the clock, so that a page differs a little from run to run; its code is tested, its output is not.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import running

from wellcond.report.figures.runs import loss_figure

DOCS = Path(__file__).resolve().parents[1]
PICTURES = DOCS / "figures" / "cases"


def render(page: Path) -> None:
    """Run the code of a page; draw its recorder's run, or all of its runs in one picture."""
    namespace: dict[str, object] = {"__name__": "page"}
    page.write_text(running.filled_in(page.read_text(encoding="utf-8"), page.name, namespace), encoding="utf-8")
    picture = PICTURES / f"{page.stem}.png"
    if "runs" in namespace:
        loss_figure(namespace["runs"]).savefig(picture, dpi=110)  # type: ignore[arg-type]
    else:
        namespace["rec"].run.figure().savefig(picture, dpi=110)  # type: ignore[attr-defined]


if __name__ == "__main__":
    PICTURES.mkdir(parents=True, exist_ok=True)
    for page in [DOCS / "cases" / f"{name}.md" for name in sys.argv[1:]] or sorted((DOCS / "cases").glob("*.md")):
        render(page)
