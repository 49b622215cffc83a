"""`Experiment`: one figure or table of a paper: its settings at every scale, what is measured, claimed and drawn."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from wellcond.errors import InvalidProblem
from wellcond.results import Progress, Row
from wellcond_papers.experiments.claims import Claim
from wellcond_papers.experiments.scales import Scale
from wellcond_papers.experiments.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Settings = Mapping[str, Any]
"""Names and values that JSON can represent."""
TRAINING_IMAGES = {"mnist": 60_000, "cifar10": 50_000, "cifar100": 50_000, "imagenet": 1_281_167, "digits": 1437}
"""The sizes of the training sets."""
NOT_OF_A_CELL = ("arms", "seeds")
"""Settings of a scale that say which cells it has, and are not settings of a cell."""


@dataclass(frozen=True)
class Cell:
    """One run of an experiment: everything that decides its numbers.

    Attributes:
        experiment: The name of the experiment.
        settings: The settings of the scale and of the arm, with "arm" and "seed".
        version: The version of the experiment's code; numbers of another version are not reused.
    """

    experiment: str
    settings: Settings
    version: int = 1

    @property
    def key(self) -> str:
        """A hash of the content: equal cells have equal keys, on every machine.

        Example:
            >>> Cell("x", {"lr": 0.1, "seed": 0}).key == Cell("x", {"seed": 0, "lr": 0.1}).key
            True
        """
        content = json.dumps([self.experiment, self.version, self.settings], sort_keys=True, allow_nan=False)
        return hashlib.sha256(content.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Job:
    """A cell as it is run: its settings, and where.

    Attributes:
        settings: The settings of the cell; `job["lr"]` reads one.
        device: The device to train and measure on.
        data: The folder with the data sets; None means $WELLCOND_DATA, else `./data`.
        folder: The folder for checkpoints, from which a killed run continues; None writes none.
        progress: Called as (what is being done, share of this cell done).
    """

    settings: Settings
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    data: Path | None = None
    folder: Path | None = None
    progress: Progress = lambda what, share: None

    def __getitem__(self, name: str) -> Any:
        if name not in self.settings:
            raise KeyError(f"there is no setting {name!r}; there are {', '.join(self.settings)}")
        return self.settings[name]


@dataclass(frozen=True)
class Experiment:
    """A figure or table of a paper.

    A cell's settings are those of the scale, overridden by those of the arm, overridden by what the scale says about
    that arm; plus the arm's name as "arm" and a "seed" counted from 0.

    Attributes:
        name: The source and its figure, such as "santurkar2018-fig9".
        title: What it shows, in a few words.
        says: What the paper says it shows, in a sentence or two.
        arms: The settings of each network or method that is compared, by its name.
        scales: The settings of each scale. "seeds" says how many seeds are run (1 if it is left out); "arms" which
            arms (a list of names), or settings by arm (a mapping); all arms if it is left out. "data" names the data
            set, or None.
        measure: Runs one cell; returns its rows. The `layer` of a row may name another place that its number belongs
            to, such as a learning rate.
        claims: What the paper claims, as checks over the rows.
        draw: The picture, from the rows of all cells.
        minutes: The approximate time of each scale, on the machine that it is meant for.
        contrast: Pairs of arms whose exchange must turn a claim that holds into one that does not.
        departures: What differs from the paper at every scale, and why, in a sentence each.
        silent: The settings of the scale "paper" that the source does not state; their values are our choice.
        stand_in: What differs from the paper at the scale "stand-in", and what it can say about the paper.
        runs_of: The experiment whose runs it shows, if not its own: cells with the same settings are then the same
            cells, and are run once.
        version: Raised when a change of the code changes its numbers.
    """

    name: str
    title: str
    says: str
    arms: Mapping[str, Settings]
    scales: Mapping[Scale, Settings]
    measure: Callable[[Job], Iterable[Row]]
    claims: Sequence[Claim]
    draw: Callable[[Table], Figure]
    minutes: Mapping[Scale, float]
    contrast: Sequence[tuple[str, str]] = ()
    departures: Sequence[str] = ()
    silent: Collection[str] = ()
    stand_in: str = ""
    runs_of: str = ""
    version: int = 1

    def cell(self, settings: Settings) -> Cell:
        """The cell with these settings."""
        return Cell(self.runs_of or self.name, settings, self.version)

    def cells(self, scale: Scale) -> list[Cell]:
        """The cells of a scale, arm by arm and seed by seed.

        Raises:
            InvalidProblem: There are no cells, an arm is unknown, or JSON cannot represent a setting.
        """
        settings = self.scales[scale]
        chosen = settings.get("arms", list(self.arms))
        if unknown := [arm for arm in chosen if arm not in self.arms]:
            raise InvalidProblem(f"{self.name} has no arm {unknown[0]!r}; it has {', '.join(self.arms)}.")
        own: Mapping[str, Settings] = chosen if isinstance(chosen, Mapping) else {}
        common = {name: value for name, value in settings.items() if name not in NOT_OF_A_CELL}
        cells = [
            self.cell({**common, **self.arms[arm], **own.get(arm, {}), "arm": arm, "seed": seed})
            for arm in dict.fromkeys(chosen)
            for seed in range(settings.get("seeds", 1))
        ]
        if not cells:
            raise InvalidProblem(f"{self.name} has no cells at scale {scale!r}; it needs an arm and a seed.")
        for cell in cells:
            for name, value in cell.settings.items():
                try:
                    json.dumps(value, allow_nan=False)
                except (TypeError, ValueError) as error:
                    raise InvalidProblem(
                        f"the setting {name!r} of {self.name} cannot be {value!r}, which JSON cannot represent; write "
                        "finite numbers, text, or lists of them."
                    ) from error
        return cells

    def data(self, scale: Scale) -> list[str]:
        """The data sets that a scale reads."""
        return sorted({cell.settings["data"] for cell in self.cells(scale) if cell.settings.get("data")})

    def training_share(self, scale: Scale, arms: Collection[str]) -> float:
        """The least share of the source's training that these arms get at a scale; 1 if nothing is trained.

        1 on a stand-in too: how long the source trains on other data does not say how long a stand-in must be trained.
        """
        if scale == "stand-in" or "paper" not in self.scales:
            return 1.0
        own, source = ({cell.settings["arm"]: cell.settings for cell in self.cells(each)} for each in (scale, "paper"))
        lengths = [(epochs_of(own[arm]), epochs_of(source[arm])) for arm in arms if arm in own and arm in source]
        return min((ours / theirs for ours, theirs in lengths if theirs), default=1.0)


def epochs_of(settings: Settings) -> float:
    """The length of training in passes over the data; in steps if there is no data set, 0 without training."""
    if settings.get("epochs") is not None:
        return float(settings["epochs"])
    images = TRAINING_IMAGES.get(settings.get("data") or "", settings.get("batch", 1))
    return float((settings.get("steps") or 0) * settings.get("batch", 1) / images)
