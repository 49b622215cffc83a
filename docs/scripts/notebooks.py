"""The notebooks of `examples/notebooks`: executes them in place, and makes their pages for the site.

python docs/scripts/notebooks.py [does_not_train …]   # needs nbclient and ipykernel
"""

from __future__ import annotations

import html
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "notebooks"
PATHS = sorted(FOLDER.glob("*.ipynb"))
LONGEST = 300
"""Seconds that a cell may take."""
INDEX = """# Notebooks

Six to start from. Download one, put your own model, loss, loader and optimizer into its first cell, and run it in
Jupyter, VS Code or Colab. They are in `examples/notebooks`, and a test runs them.

| notebook | |
|---|---|"""


def execute(path: Path) -> None:
    """Run a notebook in a folder of its own, and keep what its cells show; progress and warnings are left out."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        NotebookClient(notebook, timeout=LONGEST, resources=resources, coalesce_streams=True).execute()
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = [each for each in map(_without_rest, cell.outputs) if each is not None]
    notebook.metadata = {"kernelspec": notebook.metadata["kernelspec"], "language_info": {"name": "python"}}
    path.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")


def _without_rest(output: Any) -> Any:
    """An output as HTML alone if it has that; None for warnings, and for progress that is over."""
    if output.output_type == "stream":
        return None if output.name == "stderr" else output
    shown = {kind: text for kind, text in output.data.items() if text}
    output.data = {"text/html": shown["text/html"]} if "text/html" in shown else shown
    return output if shown else None


def read(path: Path) -> list[dict[str, Any]]:
    """The cells of a notebook."""
    cells: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return cells


def title(path: Path) -> str:
    return _source(read(path)[0]).partition("\n")[0].removeprefix("# ")


def index() -> str:
    """The list of notebooks, with the first paragraph of each."""
    rows = []
    for path in PATHS:
        first = _source(read(path)[0]).split("\n\n")[1]
        rows.append(f"| [{title(path)}]({path.stem}.md) | {first} [Download]({path.name}) |")
    return "\n".join([INDEX, *rows]) + "\n"


def page(path: Path) -> str:
    """A notebook as a page: its text, its code, and below each cell what it showed."""
    first, *cells = read(path)
    parts = [_source(first), f"[Download this notebook]({path.name})"]
    for cell in cells:
        if cell["cell_type"] == "markdown":
            parts.append(_source(cell))
        else:
            parts += [f"```py\n{_source(cell)}\n```", *map(_shown, cell["outputs"])]
    return "\n\n".join(parts) + "\n"


def _source(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def _shown(output: dict[str, Any]) -> str:
    """An output in its richest form, as HTML without blank lines, which would end it in Markdown."""
    data = output.get("data", {})
    text = "".join(output.get("text", data.get("text/plain", ""))).rstrip()
    content = "".join(data["text/html"]) if "text/html" in data else f"<pre>{html.escape(text)}</pre>"
    content = re.sub(r"\n[ \t]*(?=\n)", "\n<!-- -->", content)
    return f'<div class="cell-output">\n{content}\n</div>'


if __name__ == "__main__":
    for path in [FOLDER / f"{name}.ipynb" for name in sys.argv[1:]] or PATHS:
        execute(path)
        print(path.name)
