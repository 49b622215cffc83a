"""Arguments that are out of range, told as typer tells it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import typer

from wellcond.errors import WellcondError


@contextlib.contextmanager
def as_usage_errors() -> Iterator[None]:
    """What the library raises about an argument becomes a usage error; what is about the model stays what it is."""
    try:
        yield
    except WellcondError:
        raise
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
