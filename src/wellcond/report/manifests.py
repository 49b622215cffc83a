"""What the manifest of a run says about it: its name, how far it went, and the modules of the model."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from wellcond.recording.run import Run
from wellcond.recording.settings import optimizer_classes


@dataclass(frozen=True)
class Module:
    """A module of the model.

    Attributes:
        kind: Name of its class.
        parameters: How many parameters it holds, those of modules inside included.
    """

    kind: str = ""
    parameters: int = 0


def run_name(run: Run) -> str:
    """The end of a run's path, such as runs/a; or words if it is only in memory."""
    return "recorded run" if run.path is None else "/".join(run.path.parts[-2:])


def modules(run: Run) -> dict[str, Module]:
    """The modules that the manifest lists, in model order, and layers that it does not know.

    Example:
        >>> from wellcond.recording.history import History
        >>> model = [{"name": "", "type": "Net", "parameters": 0}, {"name": "fc", "type": "Linear", "parameters": 6}]
        >>> modules(Run.of(History(), [], {"model": model}))
        {'': Module(kind='Net', parameters=6), 'fc': Module(kind='Linear', parameters=6)}
    """
    entries = run.manifest.get("model", ())
    totals: Counter[str] = Counter()
    for each in entries:
        parts = each["name"].split(".") if each["name"] else []
        totals.update({".".join(parts[:depth]): each["parameters"] for depth in range(len(parts) + 1)})
    listed = {each["name"]: Module(each["type"], totals[each["name"]]) for each in entries}
    return listed | {layer: Module() for layer in run.layers if layer not in listed}


def progress_text(run: Run) -> str:
    """Whether it still runs, how far it went, and what is trained."""
    model = modules(run).get("", Module())
    parameters = f"{model.parameters:,} parameters" if model.parameters else ""
    optimizers = ", ".join(optimizer_classes(run.manifest))
    return " · ".join(
        part for part in (run.status, f"{run.last_step:,} steps", model.kind, parameters, optimizers) if part
    )
