"""The examples of the page on trainers run as they stand, each by itself, where its libraries are there."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "trainers.md"
BLOCKS = dict(
    re.findall(r"^## ([^\n]+)\n(?:(?!^## ).)*?^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)
)


def test_every_section_has_an_example() -> None:
    assert list(BLOCKS) == ["Lightning", "Transformers", "Accelerate and PEFT", "Loggers"]


@pytest.mark.slow
@pytest.mark.parametrize("title", BLOCKS)
def test_an_example_runs(
    title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if title in ("Lightning", "Transformers"):
        request.getfixturevalue(title.lower())
    pytest.importorskip({"Loggers": "tensorboard"}.get(title, "accelerate"))
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "page"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(BLOCKS[title], PAGE.name, "exec"), namespace)
    assert list((tmp_path / "runs").iterdir())
