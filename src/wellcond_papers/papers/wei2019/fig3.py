"""Figure 3 of wei2019: the baseline of figure 2, networks without BatchNorm over the learning rate and σ_w."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from wellcond_papers.experiments.claims import Outcome, claim, judged
from wellcond_papers.experiments.experiment import Experiment
from wellcond_papers.experiments.table import Table
from wellcond_papers.papers.wei2019.fig2 import FEW, FULL_BATCH, RATES
from wellcond_papers.papers.wei2019.fig2 import SETTINGS as WITH_BATCHNORM
from wellcond_papers.papers.wei2019.heat_maps import draw, heat_maps, measure
from wellcond_papers.papers.wei2019.judging import NOT_NAMED, UP_TO_THE_GRID, divergence_of, separated, spread
from wellcond_papers.papers.wei2019.networks import FC, STANDARDIZED

NETWORK = {"network": FC.format(inputs=784) + " vanilla", "data": "mnist"}
PUBLISHED, SQUARED = "mini-batches", "mini-batches, squared error"
THEORY = "full batch, squared error"
ARMS: dict[str, dict[str, Any]] = {
    PUBLISHED: NETWORK | {"loss": "cross-entropy"},
    "full batch": NETWORK | {"loss": "cross-entropy", "batch": None},
    SQUARED: NETWORK | {"loss": "half-squared"},
    THEORY: NETWORK | {"loss": "half-squared", "batch": None},
}
VANILLA = list(ARMS)
NORMED = {f"BatchNorm, γ 0.1, {arm}": arm for arm in (PUBLISHED, SQUARED)}
"""The same with BatchNorm, for which figure 3 is the baseline, by the arm without it."""
ARMS |= {arm: ARMS[vanilla] | {"network": FC.format(inputs=784) + " gamma=0.1"} for arm, vanilla in NORMED.items()}
SETTINGS = WITH_BATCHNORM | {"vary": "sigma_w"}
NARROW = {"network": "fc 784-200-200-200-10 vanilla"}
TINY = {"network": "fc 64-20-20-20-10 vanilla", "data": "digits"}
SIGMAS = [0.5, 1.0, 1.5, 2.0, 2.5]


@claim(
    "with the squared error, of which the theory speaks, the predicted η* is where training begins to diverge, up to a "
    "factor of 2",
    paper="agreement is claimed for figure 2; this network is shown as a baseline",
    is_ours=True,
)
def _squared_line(table: Table) -> Outcome:
    maps = heat_maps(table, [SQUARED])
    return judged(separated(maps, "as printed"), divergence_of(maps))


@claim("so it is with cross-entropy", paper="likewise", is_ours=True)
def _cross_entropy_line(table: Table) -> Outcome:
    maps = heat_maps(table, [PUBLISHED])
    return judged(separated(maps, "as printed"), divergence_of(maps))


@claim(
    "BatchNorm with small γ allows much larger rates: the first that diverges is at least ten times as high",
    paper='"correctly predicts that adding BatchNorm with small γ allows … much larger learning rates"',
)
def _batchnorm_allows_more(table: Table) -> Outcome:
    """At every σ_w where the vanilla network diverges at all."""
    cases, words = [], []
    for normed, vanilla in NORMED.items():
        maps = heat_maps(table, [normed, vanilla])
        if len(maps) == 2:
            firsts = {arm: [each.boundary(value)[1] for value in each.values] for arm, each in maps.items()}
            pairs = [pair for pair in zip(firsts[normed], firsts[vanilla], strict=True) if math.isfinite(pair[1])]
            cases += [ours / theirs > 9.99 for ours, theirs in pairs]  # rates of the grid are rounded
            words += [f"{vanilla} {spread([ours / theirs for ours, theirs in pairs])} times"] if pairs else []
    return judged(cases, "the first rate that diverges is higher, " + "; ".join(words) if words else "")


@claim("gradient descent on all images begins to diverge at 2(1 + μ)/λ_max", paper="eq. 7, not tested", is_ours=True)
def _full_batch(table: Table) -> Outcome:
    maps = heat_maps(table, [THEORY])
    return judged(separated(maps, "measured"), divergence_of(maps, ("measured", "mean field")))


@claim(
    "larger initial weights need smaller rates",
    paper='"the relation between weight initialization variance and maximal learning rate is studied"',
    is_ours=True,
)
def _larger_weights(table: Table) -> Outcome:
    """In every map, by the first rate that diverges: that of the largest σ_w is lower than that of the smallest."""
    cases, words = [], []
    for arm, heat_map in heat_maps(table, VANILLA).items():
        first, last = (heat_map.boundary(heat_map.values[k])[1] for k in (0, -1))
        cases.append(last < first)
        words.append(f"{arm} {first:.2g} to {last:.2g}")
    return judged(cases, f"first rate that diverges, from the smallest σ_w to the largest: {'; '.join(words)}")


EXPERIMENT = Experiment(
    name="wei2019-fig3",
    title="Where training diverges without BatchNorm, over the learning rate and σ_w",
    says="The baseline: test loss after 5 epochs of a vanilla fully connected network on MNIST, over (log₁₀ η, σ_w).",
    arms=ARMS,
    scales={
        "smoke": SETTINGS
        | {"values": [0.7, 2.0], "lrs": [0.001, 0.1, 10.0], "epochs": 1, "limit_images": 100}
        | {
            "arms": {
                PUBLISHED: TINY,
                "full batch": TINY | FULL_BATCH | {"epochs": 20},
                THEORY: TINY | FULL_BATCH | {"epochs": 20},
                next(iter(NORMED)): TINY | {"network": "fc 64-20-20-20-10 gamma=0.1"},
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
            "arms": {arm: FULL_BATCH if "full batch" in arm else {} for arm in ARMS},
        },
    },
    measure=measure,
    claims=[
        _squared_line,
        _cross_entropy_line.because(
            "gpu",
            NOT_NAMED,
            "Even λ_max of the network itself is right in 1 of 5 rows only: cross-entropy has no sharp edge, and at "
            "large σ_w trains up to 40 times above the limit. With the squared error the printed η* is right in all.",
        )
        .because(
            "laptop",
            NOT_NAMED,
            "Even λ_max of the network itself is right in 1 of 5 rows only: cross-entropy has no sharp edge. With the "
            "squared error the printed η* is right in all.",
        )
        .because(
            "paper",
            NOT_NAMED,
            "Even λ_max of the network itself is right in none of 14 rows: training begins to diverge at 4 to 64 times "
            "the limit. With the squared error the printed η* is right in all 12 that can be decided.",
        ),
        _batchnorm_allows_more,
        _full_batch.because(
            "gpu",
            NOT_NAMED,
            "Eq. 7 is about λ_max at the optimum, which is taken at the start here. At σ_w = 1 a rate of 0.01 still "
            "trains, 2.4 times the limit; λ_max most likely falls in the first steps. The other four are right.",
        ).because(
            "paper",
            NOT_NAMED,
            "Eq. 7 is about λ_max at the optimum, which is taken at the start here. At σ_w = 2.4 a rate of 0.00018 "
            "still trains, 2.2 times the limit; λ_max most likely falls in the first steps. The other 11 are right.",
        ),
        _larger_weights,
    ],
    draw=partial(draw, y="σ_w"),
    minutes={"smoke": 0.02, "laptop": 1.5, "gpu": 0.3, "paper": 30},
    contrast=[("full batch", THEORY)],
    departures=(
        "As in figure 2: both losses, 128 images per batch; and gradient descent on 1000 images.",
        STANDARDIZED,
        UP_TO_THE_GRID,
        "The source claims nothing of this figure but what it is the baseline for (claim 3).",
        "Beyond the source: at `paper`, the same network with BatchNorm and γ = 0.1, for which this is the baseline.",
    ),
    silent=("values", "lrs", "batch", "limit_images", "loss"),
)
