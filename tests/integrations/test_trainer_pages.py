"""The code of every page on a trainer or on loggers runs as it stands, where its libraries are there."""

from __future__ import annotations

import re
import tomllib
import warnings
from pathlib import Path
from typing import Any

import pytest

import wellcond as wc

GUIDES = Path(__file__).resolve().parents[2] / "docs" / "guides"
EXTRAS = tomllib.loads((GUIDES.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "optional-dependencies"
]
PAGES = {
    "trainers": "torch",
    "lightning": "lightning",
    "transformers": "transformers",
    "accelerate": "accelerate",
    "peft": "peft",
    "ray-train": "ray.train",
    "loggers": "tensorboard",
}
"""The library that each page is about."""
CHANGES = {"ray-train": ("num_workers=1", "num_workers=0")}
"""A worker that is this process, which needs no cluster."""


def block(name: str) -> str:
    (code,) = re.findall(r"^```python\n(.*?)^```$", (GUIDES / f"{name}.md").read_text(encoding="utf-8"), re.M | re.S)
    return str(code)


def test_every_page_says_what_to_install_for_its_example() -> None:
    for name, library in PAGES.items():
        text, code = (GUIDES / f"{name}.md").read_text(encoding="utf-8"), block(name)
        (line, *_) = re.findall(r"`pip install ([^`]*)`", text)
        extras = re.search(r"wellcond\[([\w,]+)\]", line)
        named = {*line.replace('"', "").split(), *(extras[1].split(",") if extras else ())}
        assert library.partition(".")[0] in {re.sub(r"\[.*", "", each) for each in named} | {"torch"}, name
        assert "run_dir=" not in code or "record" in named, name


def test_every_logger_of_the_page_has_its_line_to_install_and_is_in_the_extra() -> None:
    text = (GUIDES / "loggers.md").read_text(encoding="utf-8")
    for library in ("tensorboard", "wandb", "trackio", "mlflow"):
        assert f"`pip install wellcond {library}`" in text
        assert [each for each in EXTRAS["integrations"] if re.split("[<>=]", each)[0] == library], library


def test_the_set_up_of_the_tests_has_every_integration() -> None:
    """So that none of these tests is skipped there for want of its library."""
    (ours,) = (each for each in EXTRAS["test"] if each.startswith("wellcond["))
    assert {"integrations", "ray"} <= set(re.split(r"[\[\],]", ours))


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
