"""Launchers by their names."""

from __future__ import annotations

from typing import Literal, get_args

from wellcond.errors import InvalidProblem
from wellcond.treatment.launching.launcher import InProcess, Launcher
from wellcond.treatment.launching.processes import Processes
from wellcond.treatment.launching.ray_launcher import Ray

LauncherName = Literal["in-process", "processes", "ray"]


def launcher_of(
    name: LauncherName, workers: int | None = None, *, address: str | None = None, gpus: float = 1.0
) -> Launcher:
    """A launcher by its name.

    Args:
        name: "in-process", "processes" or "ray".
        workers: Jobs that run at once; None for one per core.
        address: The address of a Ray cluster; None starts one here.
        gpus: The share of a GPU that a job gets, with Ray.
    """
    if name == "in-process":
        return InProcess()
    if name == "processes":
        return Processes(workers=workers)
    if name == "ray":
        return Ray(address=address, workers=workers, gpus=gpus)
    raise InvalidProblem(f"there is no launcher {name!r}; there are {', '.join(get_args(LauncherName))}.")
