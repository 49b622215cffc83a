"""The site builds without a warning, and works from disk, with its search, without a server or a network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from browser import Browser, browser

ROOT = Path(__file__).resolve().parents[1]
ASKED = {
    "NaN": "cases/nan.html",
    "learning rate": "cases/rate.html",
    "overfitting": "cases/overfitting.html",
    "dead neurons": "rules/dying-neurons.html",
    "FSDP": "guides/several-gpus.html",
}
"""What people type, and the page that should come first: a case, a guide or a rule before an entry of the API."""
OPENED = ["rules.html", "architecture.html", "guides/lightning.html", "reproduction/together.html", "errors.html"]
"""Pages with all that might ask for more: a map, pictures, tables."""
FOUND = """[...document.querySelectorAll('.md-search-result__item a')].map((link) => link.href)"""


def build(site: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(site)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr


def results(opened: Browser, site: Path, words: str) -> list[str]:
    """Addresses of the pages that the search lists, each once."""
    opened.open(site / "index.html")
    opened.run("document.querySelector('[data-md-component=search-query]').focus()")
    opened.press(*words)
    opened.wait("document.querySelectorAll('.md-search-result__item').length > 3")
    paths = [address.partition(f"{site.name}/")[2].partition("?")[0].partition("#")[0] for address in opened.run(FOUND)]
    return list(dict.fromkeys(paths))


def asked_elsewhere(opened: Browser) -> list[str]:
    """Addresses that are not on this disk, and complaints."""
    return [each for each in opened.requests if not each.startswith(("file:", "data:"))] + opened.complaints


@pytest.mark.slow
def test_the_site_builds_and_answers_from_disk(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings")
    site = tmp_path / "site"
    with browser(tmp_path) as opened:
        build(site)
        for words, page in ASKED.items():
            listed = results(opened, site, words)
            assert listed[0] == page, words
            assert all((site / path).exists() for path in listed)
            assert asked_elsewhere(opened) == []
        for page in OPENED:
            opened.open(site / page)
            assert asked_elsewhere(opened) == [], page
            assert opened.run("[...document.images].every((image) => image.naturalWidth > 0)"), page
