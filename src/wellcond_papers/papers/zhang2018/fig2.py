"""Figure 2 of zhang2018: figure 1 on CIFAR-100, run several times."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wellcond.report.figures.style import legend_below, look_of
from wellcond.results.quantities import TEST_ACCURACY, TRAINING_LOSS
from wellcond_papers.experiments.claims import END, Outcome, claim, judged
from wellcond_papers.experiments.experiment import Experiment
from wellcond_papers.experiments.pictures import panels
from wellcond_papers.experiments.table import Table
from wellcond_papers.papers.zhang2018 import fig1
from wellcond_papers.papers.zhang2018.training import AMENDED, DEPARTURES, SILENT, measure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SGD, OURS = (f"CIFAR-100, {method}" for method in ("SGD", AMENDED))
SHOWN = [SGD, OURS]


@claim(
    "every run of scale-amended SGD ends with a lower test error than SGD", paper='"to verify the stability"', needs=END
)
def _in_every_run(table: Table) -> Outcome:
    """Seed by seed: both methods start from the same weights and see the same batches."""
    ends = [
        {record.settings["seed"]: 100 * (1 - record.last(TEST_ACCURACY)) for record in table.arm(arm)} for arm in SHOWN
    ]
    seeds = sorted(ends[0].keys() & ends[1].keys())
    words = [f"{ends[1][seed]:.1f} against {ends[0][seed]:.1f} %" for seed in seeds]
    return judged([ends[1][seed] < ends[0][seed] for seed in seeds], "; ".join(words))


def draw(table: Table) -> Figure:
    """Every run as a thin line, and the average of each method."""
    shown = {"training loss": TRAINING_LOSS, "test accuracy": TEST_ACCURACY}
    figure, axes = panels(list(shown))
    for title, quantity in shown.items():
        for place, arm in enumerate(arm for arm in SHOWN if arm in table.arms):
            for record in table.arm(arm):
                series = record.series(quantity)
                axes[title].plot(list(series), list(series.values()), **look_of(place), linewidth=0.7, alpha=0.6)
            mean = table.arm(arm).mean_series(quantity)
            axes[title].plot(list(mean), list(mean.values()), **look_of(place), linewidth=2, label=f"{arm}, average")
        axes[title].set_xlabel("training step")
    legend_below(figure, next(iter(axes.values())))
    return figure


EXPERIMENT = Experiment(
    name="zhang2018-fig2",
    title="Figure 1 on CIFAR-100, run several times",
    says="Multiple runs of Figure 1 and their average on CIFAR-100, to verify the stability of scale-amended SGD.",
    arms=fig1.ARMS,
    scales={
        "smoke": {**fig1.EXPERIMENT.scales["smoke"], "seeds": 2, "arms": {arm: {"data": "digits"} for arm in SHOWN}},
        "gpu": fig1.GPU | {"arms": SHOWN},
        "paper": fig1.PAPER | {"seeds": 3, "arms": SHOWN},
    },
    measure=measure,
    claims=[fig1.lower_loss, fig1.lower_error, _in_every_run],
    draw=draw,
    minutes={"smoke": 0.05, "gpu": 0.5, "paper": 36},
    contrast=[(SGD, OURS)],
    departures=(*DEPARTURES, "The source does not say how many runs it shows: three at `paper`."),
    silent=SILENT,
    runs_of="zhang2018-fig1",
)
