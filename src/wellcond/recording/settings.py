"""What a person chose for a run, as its manifest has it, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from wellcond.results import number

OTHERS = ("schema", "status", "model", "columns", "lives")
"""Entries of a manifest that are no settings."""


def optimizer_classes(manifest: Mapping[str, Any]) -> list[str]:
    """The class of each optimizer.

    Example:
        >>> optimizer_classes({"optimizer": {"class": "SGD", "groups": []}})
        ['SGD']
    """
    optimizers = manifest.get("optimizer", [])
    return [each["class"] for each in (optimizers if isinstance(optimizers, list) else [optimizers])]


def settings(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Everything that a person chose, by name, in words.

    Example:
        >>> settings({"schema": 1, "budget": 0.05, "optimizer": {"class": "SGD", "groups": [{"lr": 0.1}]}})
        {'budget': '0.05', 'optimizer': 'SGD', 'optimizer lr': '0.1'}
    """
    chosen = {name: value for name, value in manifest.items() if name not in OTHERS}
    if isinstance(chosen.get("created"), (int, float)):
        chosen["created"] = f"{datetime.fromtimestamp(chosen['created'], UTC):%Y-%m-%d %H:%M UTC}"
    return {" ".join(path): text for path, text in _flat(chosen, ())}


def _flat(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    """The leaves of nested entries. What there is one of needs neither a number nor, in a list, the list's name."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from _flat(each, path if name == "class" else (*path, str(name).replace("_", " ")))
    elif isinstance(value, (list, tuple)) and any(isinstance(each, Mapping) for each in value):
        for i, each in enumerate(value, start=1):
            yield from _flat(each, path[:-1] if len(value) == 1 else (*path[:-1], f"{path[-1].removesuffix('s')} {i}"))
    elif isinstance(value, float):
        yield path, number(value)
    elif value is not None:
        yield path, ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
