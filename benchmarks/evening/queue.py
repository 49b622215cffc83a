"""`QUEUE`: what is run at the sources' own settings, in order of what it decides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from wellcond_papers.experiments import catalog
from wellcond_papers.experiments.experiment import Cell, Experiment, Settings
from wellcond_papers.experiments.scales import Scale


@dataclass(frozen=True)
class Entry:
    """Cells of one experiment that answer a question together.

    Attributes:
        name: The experiment.
        decides: The question, in a few words.
        minutes: The time of all its cells on one H200, about; the rows of finished cells say it better.
        which: Which cells of the scale belong to it, by their settings.
        scale: The scale.
        checkpoint: The size of a checkpoint in MiB; None if the cells write none.
        memory: A bound on the GPU memory of a cell, in GiB.
        alone: Whether its cells measure time, and nothing else may run beside them.
    """

    name: str
    decides: str
    minutes: float
    which: Callable[[Settings], bool] = lambda settings: True
    scale: Scale = "paper"
    checkpoint: float | None = None
    memory: float = 4.0
    alone: bool = False

    @property
    def experiment(self) -> Experiment:
        """The experiment of that name."""
        return catalog.experiment(self.name)

    def cells(self) -> list[Cell]:
        """The cells, in the order of the experiment."""
        return [cell for cell in self.experiment.cells(self.scale) if self.which(cell.settings)]

    def data(self) -> list[str]:
        """The data sets that its cells read."""
        return sorted({cell.settings["data"] for cell in self.cells() if cell.settings.get("data")})


def _first(settings: Settings) -> bool:
    return bool(settings["seed"] == 0)


def _has_data(name: str) -> Callable[[Settings], bool]:
    return lambda settings: _first(settings) and settings["data"] == name


def _has_batch(*batches: int) -> Callable[[Settings], bool]:
    return lambda settings: settings["batch"] in batches


def _trains(*depths: int) -> Callable[[Settings], bool]:
    """Networks of Table B that train: residual ones do not at He's initialization."""
    return lambda s: _first(s) and s["depth"] in depths and not s["arm"].startswith("ResNet")


QUEUE = (
    Entry("santurkar2018-fig6", "the angle of gradients at 15,000 steps", 8),
    Entry("santurkar2018-fig7", "accuracy with noise; 83 and 80 %", 5),
    Entry("santurkar2018-fig10", "loss, gradients and β over all of training", 4),
    Entry("santurkar2018-fig11", "the same with ℓ1 and ℓ∞ norms", 10),
    Entry("santurkar2018-fig13", "whether ℓp norms train as well as BN", 20),
    Entry("santurkar2018-fig14", "drift of the inputs of layers", 5),
    Entry("lange2022-fig3", "BNP against BN: inputs raw and standardized", 10, checkpoint=3),
    Entry("lange2022-fig5", "whether all end above vanilla", 5, _has_batch(128), checkpoint=2),
    Entry("lange2022-fig4", "small batches: Renorm, BNP, vanilla", 25, _has_batch(6), checkpoint=4),
    Entry("huang2020-fig6", "Σ∇h with BN at equal loss", 1, memory=8),
    Entry("huang2020-fig5", "magnitudes of layers with BN", 2, memory=8),
    Entry("huang2020-fig7", "the same with Adam", 1, memory=8),
    Entry("huang2020-fig13", "dying neurons over 80 epochs", 0.5, memory=8),
    Entry("huang2020-fig8", "layers of a VGG-style network", 6, checkpoint=3),
    Entry("huang2020-fig9", "layers of a residual network", 6, checkpoint=3),
    Entry("huang2020-fig1", "κ80 and λ_max of F from many images", 0.5, memory=18),
    Entry("huang2020-fig2", "the same for the second moment", 1, memory=18),
    Entry("huang2020-fig3", "the same for 24 units", 1, memory=18),
    Entry("huang2020-fig4", "the same for 36 units", 1, memory=18),
    Entry("lange2022-fig9", "whether BNP is faster at 256 and 512", 5, alone=True),
    Entry("zhang2018-fig1", "sign and size of the gap", 24, _first, checkpoint=76),
    Entry("zhang2018-table1", "ranking of the methods", 110, lambda s: _first(s) and s["depth"] < 16, checkpoint=76),
    Entry("lange2022-fig6", "BN, GN and BNP+GN at 110 layers", 80, _has_data("cifar10"), checkpoint=15),
    Entry("huang2020-fig12", "performance with frozen layers", 8, checkpoint=4),
    Entry("wei2019-fig4", "whether small γ is faster", 140, _first, checkpoint=118),
    Entry("wei2019-fig2", "the map at the paper's resolution", 60),
    Entry("huang2020-table-b", "the errors of 20 layers", 10, _trains(20), checkpoint=14),
    Entry("huang2020-table-b", "the errors of 44 and 56 layers", 40, _trains(44, 56), checkpoint=14),
    Entry("huang2020-fig11", "how large the gradients are", 1),
)
"""Earlier entries first; cells of later ones use what is left of the time."""
