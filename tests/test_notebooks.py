"""The notebooks of the examples: valid, with what they show, and their code runs and shows results of the same kind."""

from __future__ import annotations

import ast
import re
import warnings
from pathlib import Path
from typing import Any

import notebooks
import pytest

PATHS = {path.stem: path for path in notebooks.PATHS}
LIBRARIES = {"lightning": "lightning", "hugging_face": "transformers", "record_a_run": "pyarrow"}


def code_cells(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in notebooks.read(path) if cell["cell_type"] == "code"]


def forms(cell: dict[str, Any]) -> list[str]:
    """What a cell shows: printed text, HTML or plain text."""
    outputs = cell["outputs"]
    return ["stream" if each["output_type"] == "stream" else next(iter(each["data"])) for each in outputs]


@pytest.mark.parametrize("name", PATHS)
def test_a_notebook_is_valid_and_shows_results(name: str) -> None:
    nbformat = pytest.importorskip("nbformat")
    content = nbformat.read(PATHS[name], as_version=4)
    nbformat.validate(content)
    assert content.metadata.kernelspec.language == "python"
    assert content.cells[0].source.startswith("# ")
    assert "pip install" in content.cells[0].source
    cells = code_cells(PATHS[name])
    assert all(compile("".join(cell["source"]), name, "exec") for cell in cells)
    assert sum(bool(cell["outputs"]) for cell in cells) >= 2
    shown = [output for cell in cells for output in cell["outputs"]]
    assert {output["output_type"] for output in shown} <= {"stream", "display_data", "execute_result"}  # no error
    assert any(
        'class="wellcond"' in "".join(output["data"].get("text/html", "")) for output in shown if "data" in output
    )
    text = PATHS[name].read_text(encoding="utf-8")
    assert not re.search(r"/(home|root|tmp|work|Users)/|<script|Warning:", text)
    assert len(text) < 150_000


@pytest.mark.slow
@pytest.mark.parametrize("name", PATHS)
def test_a_notebook_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, capsys: Any
) -> None:
    """Cell by cell in this process; the value of a last line is shown as a notebook does it."""
    if name in ("lightning", "hugging_face"):
        request.getfixturevalue(LIBRARIES[name])
    pytest.importorskip(LIBRARIES.get(name, "torch"))
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("wellcond.treatment.conditions.LONGER", 2)  # ten times longer runs show no more of the code
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for cell in code_cells(PATHS[name]):
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(compile(tree, name, "exec"), namespace)
            value = eval(compile(ast.Expression(last.value), name, "eval"), namespace) if last is not None else None
        shown = ["stream"] if capsys.readouterr().out else []
        if hasattr(value, "_repr_html_"):
            assert value._repr_html_().startswith("<style>")
            shown.append("text/html")
        elif value is not None:
            shown.append("image/png" if hasattr(value, "_repr_png_") else "text/plain")
        assert sorted(set(shown)) == sorted(set(forms(cell))), "".join(cell["source"])


def test_the_pages_of_the_site_hold_every_cell() -> None:
    for path in PATHS.values():
        page = notebooks.page(path)
        for cell in notebooks.read(path):
            assert "".join(cell["source"]) in page
        assert page.count('<div class="cell-output">') == sum(len(cell["outputs"]) for cell in code_cells(path))
    index = notebooks.index()
    assert all(f"[Download]({path.name})" in index for path in PATHS.values())
