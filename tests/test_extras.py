"""A library that is missing is named with the command that installs it, and the extra of that command has it."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "optional-dependencies"
]
LIBRARIES = (
    "rich", "typer", "matplotlib", "pandas", "scipy", "pyarrow", "ray", "lightning", "pytorch_lightning",
    "transformers", "PIL", "sklearn", "IPython", "tensorboard", "wandb", "mlflow",
)  # fmt: skip


def required(extra: str) -> Iterator[str]:
    """Libraries that an extra installs, in lower case."""
    for requirement in EXTRAS[extra]:
        own = re.fullmatch(r"wellcond\[(.*)\]", requirement)
        if own is None:
            yield re.split(r"[\[<>=~ ]", requirement)[0].lower()
        else:
            for each in own[1].split(","):
                yield from required(each)


def raised() -> Iterator[tuple[str, str, str]]:
    """File, library and extra of every place that misses a library."""
    for path in sorted((ROOT / "src").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "MissingExtra(" in text else ():
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "MissingExtra":
                library, extra = (ast.literal_eval(each) for each in node.args)
                yield path.name, library, extra


def test_every_extra_that_is_named_installs_its_library() -> None:
    places = list(raised())
    assert len(places) > 8
    assert [each for each in places if each[1].lower() not in set(required(each[2]))] == []


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_what_the_first_page_installs_is_enough_for_its_recorder_and_its_commands(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    (extras, *_) = re.findall(r'^pip install "wellcond\[([\w,]+)\]"', text, re.M)
    assert "run_dir=" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert {"rich", "typer", "pyarrow"} <= {library for each in extras.split(",") for library in required(each)}


CALLS = {
    "pandas": "table.to_pandas()",
    "scipy": "wc.Hessian(problem).to_scipy()",
    "plots": "table.save('a.png')",
    "record": "wc.Recorder(model, optimizer, loss, run_dir='runs/a')",
    "lightning": "wc.integrations.lightning.RecorderCallback",
    "transformers": "wc.integrations.transformers.RecorderCallback",
    "report": "import wellcond.report.terminal",
    "cli": "import wellcond.cli.app",
}
WITHOUT = ("str(table)", "table.save('a.html')", "table.save('a.json')", "table._repr_html_()", "diagnosis.page()")
CODE = """
import json, sys, warnings
for library in {libraries}:
    sys.modules[library] = None
import torch
import wellcond as wc
warnings.simplefilter("ignore")
model, loss = torch.nn.Sequential(torch.nn.Linear(3, 2)), torch.nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
problem = wc.Problem(model, loss, (torch.randn(8, 3), torch.arange(8) % 2))
table, diagnosis = wc.conditioning(problem), wc.diagnose(problem, optimizer)
assert "wellcond.report" not in sys.modules
assert "largest stable lr" in str(diagnosis)
messages = {{}}
for extra, call in {calls}.items():
    try:
        exec(call)
    except wc.errors.MissingExtra as error:
        messages[extra] = str(error)
for call in {without}:
    exec(call)
print(json.dumps(messages))
"""


@pytest.mark.slow
def test_what_needs_a_library_says_how_to_get_it_and_all_else_works(tmp_path: Path) -> None:
    code = CODE.format(libraries=LIBRARIES, calls=CALLS, without=WITHOUT)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    messages = json.loads(done.stdout)
    assert messages.keys() == CALLS.keys()
    for extra, message in messages.items():
        assert f'pip install "wellcond[{extra}]"' in message
