"""Figure 3 of wei2019: the baseline of figure 2, networks without BatchNorm over the learning rate and σ_w."""

from __future__ import annotations

from functools import partial

from wellcond_papers.experiments.claims import Outcome, claim, judged
from wellcond_papers.experiments.experiment import Experiment
from wellcond_papers.experiments.table import Table
from wellcond_papers.papers.wei2019.fig2 import FEW, FULL_BATCH, RATES, divergence_of, separated
from wellcond_papers.papers.wei2019.fig2 import SETTINGS as WITH_BATCHNORM
from wellcond_papers.papers.wei2019.heat_maps import draw, heat_maps, measure
from wellcond_papers.papers.wei2019.networks import FC

NETWORK = {"network": FC.format(inputs=784) + " vanilla", "data": "mnist"}
PUBLISHED, SQUARED = "mini-batches", "mini-batches, squared error"
THEORY = "full batch, squared error"
SETTINGS = WITH_BATCHNORM | {"vary": "sigma_w"}
NARROW = {"network": "fc 784-200-200-200-10 vanilla"}
TINY = {"network": "fc 64-20-20-20-10 vanilla", "data": "digits"}
SIGMAS = [0.5, 1.0, 1.5, 2.0, 2.5]


@claim("the predicted η* is where training begins to diverge", paper="a line over the map, as in figure 2")
def _printed_line(table: Table) -> Outcome:
    maps = heat_maps(table, [PUBLISHED, SQUARED])
    return judged(separated(maps, "as printed"), divergence_of(maps, ("as printed", "mean field", "measured")))


@claim("gradient descent on all images diverges at 2(1 + μ)/λ_max", paper="a necessary condition (eq. 7)")
def _full_batch(table: Table) -> Outcome:
    maps = heat_maps(table, [THEORY])
    return judged(separated(maps, "measured"), divergence_of(maps, ("measured", "mean field")))


@claim("larger initial weights need smaller rates", paper="the relation between σ_w and the largest rate is studied")
def _larger_weights(table: Table) -> Outcome:
    cases, words = [], []
    for arm, heat_map in heat_maps(table).items():
        rates = {value: heat_map.boundary(value)[1] for value in heat_map.values}
        cases.append(rates[heat_map.values[-1]] < rates[heat_map.values[0]])
        first, last = heat_map.values[0], heat_map.values[-1]
        words.append(f"{arm}: {rates[first]:.2g} (σ_w {first:g}), {rates[last]:.2g} (σ_w {last:g})")
    return judged(cases, "first rate that diverges, " + "; ".join(words))


EXPERIMENT = Experiment(
    name="wei2019-fig3",
    title="Where training diverges without BatchNorm, over the learning rate and σ_w",
    says="The baseline: test loss after 5 epochs of a vanilla fully connected network on MNIST, over (log₁₀ η, σ_w).",
    arms={
        PUBLISHED: NETWORK | {"loss": "cross-entropy"},
        "full batch": NETWORK | {"loss": "cross-entropy", "batch": None},
        SQUARED: NETWORK | {"loss": "half-squared"},
        THEORY: NETWORK | {"loss": "half-squared", "batch": None},
    },
    scales={
        "smoke": SETTINGS
        | {"values": [0.7, 2.0], "lrs": [0.001, 0.1, 10.0], "epochs": 1, "limit_images": 100}
        | {
            "arms": {
                PUBLISHED: TINY,
                "full batch": TINY | FULL_BATCH | {"epochs": 20},
                THEORY: TINY | FULL_BATCH | {"epochs": 20},
            },
        },
        "laptop": SETTINGS
        | {"values": SIGMAS, "lrs": RATES, "epochs": 0.5, "limit_images": 300, "test_images": 2000}
        | {
            "arms": {
                PUBLISHED: NARROW,
                "full batch": NARROW | FULL_BATCH | FEW,
                SQUARED: NARROW,
                THEORY: NARROW | FULL_BATCH | FEW,
            },
        },
        "gpu": SETTINGS
        | {"values": SIGMAS, "lrs": RATES, "epochs": 5, "seeds": 2}
        | {"arms": {PUBLISHED: {}, "full batch": FULL_BATCH, SQUARED: {"epochs": 1}, THEORY: FULL_BATCH}},
        "paper": SETTINGS
        | {
            "values": [round(0.2 * k, 1) for k in range(2, 16)],
            "lrs": [round(10 ** (k / 4), 6) for k in range(-16, 5)],
            "epochs": 5,
            "seeds": 5,
            "arms": {PUBLISHED: {}, "full batch": FULL_BATCH, SQUARED: {}, THEORY: FULL_BATCH},
        },
    },
    measure=measure,
    claims=[_printed_line, _full_batch, _larger_weights],
    draw=partial(draw, y="σ_w"),
    minutes={"smoke": 0.02, "laptop": 1.5, "gpu": 0.3, "paper": 30},
    contrast=[("full batch", THEORY)],
    departures=(
        "As in figure 2: both losses, 128 images per batch; and gradient descent on 1000 images.",
        "At the gpu scale, the map of the squared error shows one epoch. At the laptop scale, layers have 200 units, "
        "and gradient descent is on 300 images.",
    ),
)
