"""Runs the Python on a page, and writes below each block what it printed or which files of the packages it called.

A block's result stands between `<!-- output -->` or `<!-- walk -->` and `<!-- end of … -->`;
`<!-- output: 12 lines -->` shows the first 12 lines only.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import pkgutil
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

import wellcond
import wellcond_papers

sys.path.insert(0, str(Path(__file__).parent))
import rooms

SOURCES = Path(wellcond.__file__).resolve().parents[1]
BLOCK = re.compile(
    r"^```python\n(?P<code>.*?)^```\n"
    r"(?:\n<!-- (?P<kind>output|walk)(?:: (?P<lines>\d+) lines)? -->\n.*?^<!-- end of (?P=kind) -->\n)?",
    flags=re.MULTILINE | re.DOTALL,
)
EVERYWHERE = {"errors", "results", ""}
"""Rooms that every call uses, which walks leave out: errors, results and the package itself."""
OPTIMIZED = 0x1  # flag of the code of functions; bodies of modules and classes lack it


def filled_in(markdown: str, page: str, namespace: dict[str, Any] | None = None) -> str:
    """The page with the result of each of its blocks as it is now; names that they define are in the namespace."""
    torch.set_num_threads(1)  # the same digits on every machine
    ordinary: list[CodeType] = []
    namespace = {"__name__": "page"} if namespace is None else namespace

    def run(block: re.Match[str]) -> str:
        code = compile(block["code"], page, "exec")
        if block["kind"] == "walk":
            return _with_result(block, _walk(ordinary, code))
        ordinary.append(code)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, namespace)
        return _with_result(block, _shown(printed.getvalue(), block["lines"])) if block["kind"] else block[0]

    with _scratch_folder(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return BLOCK.sub(run, markdown)


def _with_result(block: re.Match[str], result: str) -> str:
    kind = block["kind"]
    lines = f": {block['lines']} lines" if block["lines"] else ""
    return f"```python\n{block['code']}```\n\n<!-- {kind}{lines} -->\n\n{result}\n\n<!-- end of {kind} -->\n"


def _shown(printed: str, most: str | None) -> str:
    lines = [line.rstrip() for line in printed.rstrip().splitlines()]
    if most is not None and len(lines) > int(most):
        lines = [*lines[: int(most)], "…"]
    return "\n".join(["```text", *lines, "```"])


@contextlib.contextmanager
def _scratch_folder() -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        yield


def _walk(before: list[CodeType], code: CodeType) -> str:
    """Rooms and files that a block calls, after the blocks before it.

    It is traced when it runs for the second time, on fresh objects: nothing is imported or cached for the first time.
    """
    for package in (wellcond, wellcond_papers):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            with contextlib.suppress(ModuleNotFoundError):  # Triton is only there with a GPU
                importlib.import_module(module.name)
    files: list[Path] = []
    for is_traced in (False, True):
        namespace: dict[str, Any] = {"__name__": "page"}
        with _scratch_folder(), contextlib.redirect_stdout(io.StringIO()):
            for each in before:
                exec(each, namespace)
            with _visited(files) if is_traced else contextlib.nullcontext():
                exec(code, namespace)
    return _listed(files)


@contextlib.contextmanager
def _visited(files: list[Path]) -> Iterator[None]:
    """Collect the files whose functions are called, in the order of their first call."""
    seen: set[str] = set()
    packages = tuple(f"{SOURCES / package.__name__}/" for package in (wellcond, wellcond_papers))

    def on_call(frame: FrameType, event: str, arg: object) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name not in seen and frame.f_code.co_flags & OPTIMIZED:
            seen.add(name)
            if name.startswith(packages):
                files.append(Path(name).relative_to(SOURCES))

    sys.setprofile(on_call)
    try:
        yield
    finally:
        sys.setprofile(None)


def _listed(files: list[Path]) -> str:
    """Stays as a numbered list. A stay is a run of files of one room that are called for the first time."""
    counted = [file for file in files if _room(file).rpartition("/")[2] not in EVERYWHERE]
    stays = [(room, list(run)) for room, run in groupby(counted, _room)]
    count = len({room for room, _ in stays})
    lines = [f"{count} rooms, {len(stays)} stays, {len(counted)} files:", ""]
    for room, run in stays:
        names = dict.fromkeys(rooms.shown_name(SOURCES / file, SOURCES / room) for file in run)
        lines.append(f"1. **{room.removeprefix('wellcond/')}**: " + ", ".join(f"`{name}`" for name in names))
    return "\n".join(lines)


def _room(file: Path) -> str:
    return "/".join(file.parts[:2]) if len(file.parts) > 2 else f"{file.parts[0]}/"
