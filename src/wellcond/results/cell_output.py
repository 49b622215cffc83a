"""What a cell of a notebook shows while it runs."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any


def is_notebook() -> bool:
    """Whether Python is the kernel of a notebook."""
    shell = sys.modules.get("IPython")
    kernel = None if shell is None else shell.get_ipython()
    return kernel is not None and hasattr(kernel, "kernel")


class CellOutput:
    """One output of a cell, which can be replaced."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, html: str, text: str) -> None:
        """Show this in place of what was there.

        Args:
            html: Content.
            text: The same for a front end without HTML.
        """
        content = {"text/html": html, "text/plain": text}
        if self._handle is None:
            self._handle = import_module("IPython.display").DisplayHandle()
            self._handle.display(content, raw=True)
        else:
            self._handle.update(content, raw=True)
