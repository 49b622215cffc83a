"""The code of every page on a trainer or on loggers runs as it stands, where its libraries are there."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest

import wellcond as wc

GUIDES = Path(__file__).resolve().parents[2] / "docs" / "guides"
PAGES = {
    "trainers": "torch",
    "lightning": "lightning",
    "transformers": "transformers",
    "accelerate": "accelerate",
    "ray-train": "ray.train",
    "loggers": "tensorboard",
}
"""The library that each page is about."""
CHANGES = {"ray-train": ("num_workers=1", "num_workers=0")}
"""A worker that is this process, which needs no cluster."""


def block(name: str) -> str:
    (code,) = re.findall(r"^```python\n(.*?)^```$", (GUIDES / f"{name}.md").read_text(encoding="utf-8"), re.M | re.S)
    return str(code)


def test_every_page_is_listed_in_the_first_and_has_an_example() -> None:
    first = (GUIDES / "trainers.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\]\(([\w-]+)\.md\)", first)) >= PAGES.keys() - {"trainers"}
    assert all(map(block, PAGES))


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_an_example_runs(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    if name in ("lightning", "transformers"):
        request.getfixturevalue(name)
    pytest.importorskip(PAGES[name])
    code = block(name)
    for before, after in [CHANGES[name]] if name in CHANGES else []:
        assert before in code
        code = code.replace(before, after)
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "page"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(code, name, "exec"), namespace)
    (run,) = (tmp_path / "runs").iterdir()
    if name == "loggers":
        assert (tmp_path / "run.jsonl").stat().st_size
        assert list(run.glob("events.out.tfevents.*"))
    else:
        assert len(wc.read_run(run).history.series("training_loss")) > 10
    printed = capsys.readouterr().out
    assert re.search(r"Nothing|nothing|Severe|Warning|Note|sound|trains", printed), printed
