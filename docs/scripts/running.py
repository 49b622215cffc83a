"""Runs the Python on a page, and fills in what it printed and which files of the package it passed through."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import pkgutil
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import wellcond

PACKAGE = Path(wellcond.__file__).resolve().parent
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n<!-- (output|walk) -->\n)?", flags=re.MULTILINE | re.DOTALL)


def filled_in(markdown: str, page: str) -> str:
    """The page with each `<!-- output -->` and `<!-- walk -->` replaced by what the code above it printed or called."""
    namespace: dict[str, Any] = {"__name__": "page"}
    torch.set_num_threads(1)  # the same digits on every machine

    def run(found: re.Match[str]) -> str:
        code, marker = compile(found[1], page, "exec"), found[2]
        printed, files = io.StringIO(), list[Path]()
        with contextlib.redirect_stdout(printed), _visited(files) if marker == "walk" else contextlib.nullcontext():
            exec(code, namespace)
        block = f"```python\n{found[1]}```\n"
        if marker == "output":
            return f"{block}\n```text\n{printed.getvalue().rstrip()}\n```\n"
        return f"{block}\n{_walk(files)}\n" if marker == "walk" else block

    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        return BLOCK.sub(run, markdown)


@contextlib.contextmanager
def _visited(files: list[Path]) -> Iterator[None]:
    """Collect the package's files whose functions are called, in the order of their first call."""
    for module in pkgutil.walk_packages(wellcond.__path__, "wellcond."):
        with contextlib.suppress(ModuleNotFoundError):  # Triton is only there with a GPU
            importlib.import_module(module.name)  # what a call imports on its way is none of its files
    seen: set[str] = set()

    def on_call(frame: FrameType, event: str, arg: object) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name not in seen:
            seen.add(name)
            if name.startswith(f"{PACKAGE}{os.sep}"):
                files.append(Path(name).relative_to(PACKAGE))

    sys.setprofile(on_call)
    try:
        yield
    finally:
        sys.setprofile(None)


def _walk(files: list[Path]) -> str:
    """Rooms as a numbered list, each with its files."""
    rooms: dict[str, list[str]] = {}
    for file in files:
        rooms.setdefault(file.parts[0], []).append("/".join(file.parts[1:]))
    lines = [
        f"1. **{room}**: {', '.join(f'`{n}`' for n in names if n)}".removesuffix(": ") for room, names in rooms.items()
    ]
    return "\n".join(lines)
