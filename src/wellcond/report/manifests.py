"""What the manifest of a run says, in words: which model, trained with which settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from wellcond.recording.run import Run
from wellcond.results import number

OTHERS = ("schema", "status", "model", "columns", "lives", "layers")
"""Entries of a manifest that are no settings."""


@dataclass(frozen=True)
class Module:
    """A module of the model.

    Attributes:
        kind: Name of its class.
        parameters: How many parameters it holds.
    """

    kind: str = ""
    parameters: int = 0


def run_name(run: Run) -> str:
    """The end of a run's path, such as runs/a; or words if it is only in memory."""
    return "recorded run" if run.path is None else "/".join(run.path.parts[-2:])


def modules(run: Run) -> dict[str, Module]:
    """The modules that the manifest lists, in model order, and layers that it does not know."""
    listed = {each["name"]: Module(each["type"], each["parameters"]) for each in run.manifest.get("model", ())}
    return listed | {layer: Module() for layer in run.layers if layer not in listed}


def settings(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Everything that a person chose, by name, in words.

    Example:
        >>> settings({"schema": 1, "budget": 0.05, "optimizer": {"class": "SGD", "groups": [{"lr": 0.1}]}})
        {'budget': '0.05', 'optimizer class': 'SGD', 'optimizer groups lr': '0.1'}
    """
    chosen = {name: value for name, value in manifest.items() if name not in OTHERS}
    if isinstance(chosen.get("created"), (int, float)):
        chosen["created"] = f"{datetime.fromtimestamp(chosen['created'], UTC):%Y-%m-%d %H:%M UTC}"
    return {" ".join(path): text for path, text in _flat(chosen, ())}


def state(run: Run) -> str:
    """Whether it still runs, how far it went, and what is trained."""
    model = modules(run).get("", Module())
    optimizer = run.manifest.get("optimizer", "")
    kind = optimizer if isinstance(optimizer, str) else str(optimizer.get("class", ""))
    parameters = f"{model.parameters:,} parameters" if model.parameters else ""
    return " · ".join(part for part in (run.status, f"{run.last_step:,} steps", model.kind, parameters, kind) if part)


def _flat(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    """The leaves of nested entries; an entry of a list of several has its place in its path."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from _flat(each, (*path, str(name).replace("_", " ")))
    elif isinstance(value, (list, tuple)) and any(isinstance(each, Mapping) for each in value):
        for i, each in enumerate(value, start=1):
            yield from _flat(each, path if len(value) == 1 else (*path, str(i)))
    elif isinstance(value, float):
        yield path, number(value)
    elif value is not None:
        yield path, ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
