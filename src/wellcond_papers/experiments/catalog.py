"""All experiments by name, read from the files under `papers/`."""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from wellcond.errors import InvalidProblem
from wellcond_papers.experiments.experiment import Experiment
from wellcond_papers.experiments.scales import Scale

PAPERS = Path(__file__).parents[1] / "papers"
IS_EXPERIMENT = re.compile(r"(fig|table)\w+")
ALL = "all"
"""The name that stands for every experiment."""


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
        InvalidProblem: No experiment has this name.
    """
    if name not in names():
        known = [*names(), *sources(), ALL]
        close = difflib.get_close_matches(name, known, n=3, cutoff=0.4) or names()[:3]
        raise InvalidProblem(f"there is no experiment {name!r}. Closest: {', '.join(close)}.")
    source, _, figure = name.partition("-")
    module = importlib.import_module(f"wellcond_papers.papers.{source}.{figure.replace('-', '_')}")
    result: Experiment = module.EXPERIMENT
    return result


def sources() -> tuple[str, ...]:
    """The papers."""
    return tuple(dict.fromkeys(name.partition("-")[0] for name in names()))


def chosen(requested: Iterable[str], scale: Scale) -> list[Experiment]:
    """The experiments with these names; a source, or "all", stands for those of its experiments that have the scale.

    Raises:
        InvalidProblem: A name is unknown, or an experiment has no such scale.
    """
    experiments: dict[str, Experiment] = {}
    for name in requested:
        if name == ALL or name in sources():
            own = [experiment(each) for each in names() if name in (ALL, each.partition("-")[0])]
            experiments |= {each.name: each for each in own if scale in each.scales}
        else:
            experiments[name] = with_scale(experiment(name), scale)
    return list(experiments.values())


def with_scale(experiment: Experiment, scale: Scale) -> Experiment:
    """The experiment, if it has the scale.

    Raises:
        InvalidProblem: It does not have the scale.
    """
    if scale not in experiment.scales:
        raise InvalidProblem(f"{experiment.name} has no scale {scale!r}; it has {', '.join(experiment.scales)}.")
    return experiment


def _place(path: Path) -> tuple[str, str, int]:
    """Sources by name, figures before tables and by their number."""
    digits = re.sub(r"\D", "", path.stem)
    return path.parent.name, re.sub(r"\d", "", path.stem), int(digits or 0)
