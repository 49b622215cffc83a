"""All experiments by name, read from the files under `papers/`."""

from __future__ import annotations

import difflib
import importlib
import re
from functools import cache
from pathlib import Path

from wellcond.errors import InvalidProblem
from wellcond.experiments.experiment import Experiment

PAPERS = Path(__file__).parent / "papers"
IS_EXPERIMENT = re.compile(r"(fig|table)\w+")


@cache
def names() -> tuple[str, ...]:
    """The names of all experiments, source by source and figure by figure.

    Example:
        >>> "santurkar2018-fig9" in names()
        True
    """
    files = [path for path in PAPERS.glob("*/*.py") if IS_EXPERIMENT.fullmatch(path.stem)]
    return tuple(f"{path.parent.name}-{path.stem.replace('_', '-')}" for path in sorted(files, key=_place))


def experiment(name: str) -> Experiment:
    """The experiment of that name.

    Raises:
        InvalidProblem: There is none.
    """
    if name not in names():
        close = difflib.get_close_matches(name, names(), n=3, cutoff=0.4) or names()[:3]
        raise InvalidProblem(f"there is no experiment {name!r}. Closest: {', '.join(close)}.")
    source, _, figure = name.partition("-")
    module = importlib.import_module(f"wellcond.experiments.papers.{source}.{figure.replace('-', '_')}")
    found: Experiment = module.EXPERIMENT
    return found


def _place(path: Path) -> tuple[str, str, int]:
    """Sources by name, figures before tables and by their number."""
    digits = re.sub(r"\D", "", path.stem)
    return path.parent.name, re.sub(r"\d", "", path.stem), int(digits or 0)
