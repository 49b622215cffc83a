"""Code, messages and pages say what an engineer would say to a colleague: a short list of words that nobody would use.

python tests/test_english.py src/wellcond/nn docs   # lists what is left in some files or folders
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FROZEN = re.compile(r"tests/(run_)?examination/2")
"""Cases whose checksums are stored with their first result."""
FOLDERS = ["src", "tests", "stress", "benchmarks", "examples", "docs", "README.md", "CONTRIBUTING.md", "CHANGELOG.md"]
NAMES = {"found", "given", "told", "said", "made", "kept", "wanted"}
"""Past participles that say nothing about what a variable holds."""
PHRASES = [
    r"so many", r"as many", r"is none of it", r"on (its|their) way", r"does as well", r"be had\b", r"that which",
    r"nobody had", r"(is|are|be) told\b", r"\bbehind\b", r"\bbeside\b", r"a matter of course", r"\bmade anew\b",
    r"by its side", r"has it that", r"\bof a kind\b",
]  # fmt: skip
BRITISH = [
    r"(normal|initial|standard|general|regular|optim|minim|maxim|orthogonal|recogn|synchron|penal|stabil|vector)is"
    r"(e|ed|es|er|ing|ation|ations)\b",
    r"colour", r"\bcentre", r"centred\b", r"behaviour", r"neighbour", r"\bcatalogue",
    r"\bgrey", r"\blabelled\b", r"\bjudgement",
]  # fmt: skip
FIXED_NAMES = re.compile(r"(symmetric|bad)[-_]initialisation|loader made anew|loader forgets to standardise")
"""Of rules, and of frozen cases that a page lists."""
WORDS = re.compile("|".join(f"(?:{phrase})" for phrase in (*PHRASES, *BRITISH)))
"""In lower case."""


def complaints(path: Path) -> Iterator[str]:
    text = path.read_text(encoding="utf-8")
    prose = _prose(text) if path.suffix == ".py" else _paragraphs(text)
    for line, words in prose if WORDS.search(text.lower()) else ():
        for match in WORDS.finditer(FIXED_NAMES.sub("", words.lower())):
            yield f"{path.relative_to(ROOT)}:{line}: {match.group(0)!r} in: {' '.join(words.split())[:100]}"
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            name = (
                node.id if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else getattr(node, "arg", "")
            )
            if isinstance(node, (ast.Name, ast.arg)) and name in NAMES:
                yield f"{path.relative_to(ROOT)}:{node.lineno}: a variable called {name!r}"


def _prose(code: str) -> Iterator[tuple[int, str]]:
    """Comments and strings; and names, for their spelling."""
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING, tokenize.NAME):
            yield token.start[0], token.string


def _paragraphs(page: str) -> Iterator[tuple[int, str]]:
    yield from enumerate(page.splitlines(), start=1)


def files(*folders: str) -> list[Path]:
    paths = [ROOT / folder for folder in folders]
    every = [path for top in paths for path in ([top] if top.is_file() else sorted(top.rglob("*")))]
    texts = [path for path in every if path.suffix in (".py", ".md") and path != Path(__file__).resolve()]
    return [path for path in texts if not FROZEN.search(path.as_posix())]


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS)
def test_every_page_is_in_plain_english(folder: str) -> None:
    assert [complaint for path in files(folder) for complaint in complaints(path)] == []


if __name__ == "__main__":
    print("\n".join(complaint for path in files(*sys.argv[1:]) for complaint in complaints(path)))
