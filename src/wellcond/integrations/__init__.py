"""Trainers and loggers of other libraries: thin adapters over `Problem` and `Recorder`, which know nothing of them.

What a trainer has flows in, as does what a recorder has written down; a verdict or a recorder flows out, and numbers in
the logger that is already there. Each library is imported with the file that is about it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wellcond.integrations import lightning as lightning
    from wellcond.integrations import transformers as transformers
    from wellcond.integrations.loggers import latest, log_to

__all__ = ["latest", "log_to"]
TRAINERS = ("lightning", "transformers")
"""Files that import a trainer."""


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("wellcond.integrations.loggers"), name)
    if name not in TRAINERS:
        raise AttributeError(f"module 'wellcond.integrations' has no attribute {name!r}")
    return import_module(f"wellcond.integrations.{name}")


def __dir__() -> list[str]:
    return [*__all__, *TRAINERS]
