"""`QUEUE`: what is run at the sources' own settings, in order of what it decides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from wellcond_papers.experiments import catalog
from wellcond_papers.experiments.experiment import Cell, Experiment, Settings
from wellcond_papers.experiments.scales import Scale

SHARING = 8
"""Cells that shared the GPU when the times in rows and queue were taken."""


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
        alone: Whether its cells measure time, and nothing else may run meanwhile.
        timed_with: How many cells shared the GPU when its minutes were measured; None if they are a guess, and rows of
            shorter runs say it better.
    """

    name: str
    decides: str
    minutes: float
    which: Callable[[Settings], bool] = lambda settings: True
    scale: Scale = "paper"
    checkpoint: float | None = None
    memory: float = 4.0
    alone: bool = False
    timed_with: int | None = None

    @property
    def sharing(self) -> int:
        """Cells that shared the GPU when its times were taken."""
        return 1 if self.alone else self.timed_with or SHARING

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


def _has(**values: object) -> Callable[[Settings], bool]:
    """Whether settings have these values, or one of several."""

    def has(settings: Settings) -> bool:
        return all(
            settings.get(name) in value if isinstance(value, tuple) else settings.get(name) == value
            for name, value in values.items()
        )

    return has


def _trains(settings: Settings) -> bool:
    """Networks of Table B that train: residual ones of more than 20 layers do not at He's initialization."""
    return not settings["arm"].startswith("ResNet") and settings["depth"] < 110 and settings["seed"] == 0


FIRST = _has(seed=0)
THREE = (0, 1, 2)
"""The first seeds."""
QUEUE = (
    Entry("santurkar2018-fig6", "the angle of gradients", 8),
    Entry("santurkar2018-fig7", "accuracy with noise; 83 and 80 %", 5),
    Entry("santurkar2018-fig10", "loss and gradients of both nets", 4, FIRST),
    Entry("santurkar2018-fig11", "the same with ℓ1 and ℓ∞ norms", 10),
    Entry("santurkar2018-fig13", "whether ℓp norms train like BN", 20, lambda s: "augmented" not in s["arm"]),
    Entry("santurkar2018-fig14", "drift of the inputs of layers", 5, FIRST),
    Entry("lange2022-fig3", "BNP and BN; raw or standardized", 3, _has(data="cifar10"), checkpoint=3),
    Entry("lange2022-fig3", "the same on MNIST", 3, _has(data="mnist"), checkpoint=3),
    Entry("lange2022-fig5", "whether all end above vanilla", 5, _has(batch=128), checkpoint=2),
    Entry("huang2020-fig14", "LastBN, without ImageNet", 1.5, scale="stand-in", checkpoint=190, memory=6),
    Entry("huang2020-table-a", "LastBN and regularization", 2, scale="stand-in", checkpoint=90),
    Entry("lange2022-fig7", "BNP+GN, without ImageNet", 1.5, scale="stand-in", checkpoint=90),
    Entry("huang2020-fig10", "layers, without ImageNet", 1, scale="stand-in", checkpoint=90, memory=8),
    Entry("huang2020-fig8", "layers of a VGG-style network", 6, checkpoint=3),
    Entry("huang2020-fig9", "layers of a residual network", 6, checkpoint=3),
    Entry("santurkar2018-fig13", "92 and 88 % with augmentation", 2, lambda s: "augmented" in s["arm"]),
    Entry("huang2020-fig6", "Σ∇h with BN at equal loss", 1, memory=8),
    Entry("huang2020-fig5", "magnitudes of layers with BN", 2, memory=8),
    Entry("huang2020-fig7", "the same with Adam", 1, memory=8),
    Entry("huang2020-fig13", "dying neurons over 80 epochs", 0.5, memory=8),
    Entry("lange2022-fig5", "small batches, all arms", 4, scale="gpu", checkpoint=2),
    Entry("lange2022-fig4", "Renorm, BNP, vanilla at batch 6", 15, _has(batch=6, seed=THREE), checkpoint=4),
    Entry("huang2020-fig1", "κ80 and λ_max of F", 0.5, memory=18),
    Entry("huang2020-fig2", "the same for the second moment", 1, memory=18),
    Entry("huang2020-fig3", "the same for 24 units", 1, memory=18),
    Entry("huang2020-fig4", "the same for 36 units", 1, memory=18),
    Entry("lange2022-fig9", "time of BNP at 16", 4.5, _has(batch=16), alone=True),
    Entry("lange2022-fig9", "time of BNP at 256 and 512", 0.5, _has(batch=(256, 512)), alone=True),
    Entry("lange2022-fig8", "κ of a unit's Hessian", 1),
    Entry("wei2019-fig1", "λ_max and η* at 40 γ", 1),
    Entry("wei2019-fig2", "the map at the paper's resolution", 6, FIRST, memory=16),
    Entry("wei2019-fig3", "the same without BatchNorm", 3, FIRST, memory=16),
    Entry("santurkar2018-fig10", "predictiveness, another seed", 1, _has(data="cifar10", seed=1)),
    Entry("santurkar2018-fig14", "drift of further units", 6, _has(seed=(1, 2))),
    Entry("zhang2018-fig1", "sign and size of the gap", 8.5, checkpoint=76, timed_with=4),
    Entry("zhang2018-fig2", "the gap over seeds", 8.5, _has(seed=(1, 2)), checkpoint=76, timed_with=4),
    Entry("zhang2018-table1", "ranking of the methods", 57, _has(seed=0, depth=(11, 13)), checkpoint=76),
    Entry("lange2022-fig6", "whether a bias helps BNP+GN", 8, scale="gpu", checkpoint=5),
    Entry("lange2022-fig6", "ResNet-110: BN, GN, BNP+GN", 95, _has(data="cifar10", seed=0), checkpoint=15),
    Entry("huang2020-fig12", "what frozen layers cost", 8, checkpoint=4),
    Entry("wei2019-fig4", "whether small γ is faster", 50, _has(seed=THREE), checkpoint=118),
    Entry("wei2019-fig2", "the map over seeds", 12, _has(seed=(1, 2)), memory=16),
    Entry("wei2019-fig3", "the same without BatchNorm", 6, _has(seed=(1, 2)), memory=16),
    Entry("huang2020-table-b", "errors of Table B to 56 layers", 50, _trains, checkpoint=14),
    Entry("huang2020-table-b", "110 layers, few epochs", 5, _has(depth=110), "gpu", checkpoint=14),
    Entry("huang2020-fig15", "110 layers with warm-up", 3, _has(depth=110), "gpu", checkpoint=14),
    Entry("huang2020-fig11", "whether gradients are small", 1.5, memory=8),
    Entry("lange2022-table2", "the best rates at batch 60", 6, _has(batch=60), checkpoint=3),
    Entry("lange2022-table3", "the best rates of the CNN", 5, _has(batch=128), checkpoint=2),
    Entry("lange2022-fig4", "batch 6, further seeds", 10, _has(batch=6, seed=(3, 4)), checkpoint=4),
)
"""Earlier entries first; cells of later ones use what is left of the time."""
