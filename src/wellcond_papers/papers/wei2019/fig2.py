"""Figure 2 of wei2019: where training diverges over the learning rate and γ, and what theory says about it."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from wellcond_papers.experiments.claims import Outcome, claim, judged
from wellcond_papers.experiments.experiment import Experiment
from wellcond_papers.experiments.table import Table
from wellcond_papers.papers.wei2019.heat_maps import SQUARED, HeatMap, draw, heat_maps, measure, spread
from wellcond_papers.papers.wei2019.networks import CONV, FC

NETWORKS: dict[str, dict[str, Any]] = {
    "FC, MNIST": {"network": FC.format(inputs=784), "data": "mnist"},
    "conv, MNIST": {"network": CONV.format(image="1x28x28"), "data": "mnist"},
    "FC, CIFAR-10": {"network": FC.format(inputs=3072), "data": "cifar10"},
    "conv, CIFAR-10": {"network": CONV.format(image="3x32x32"), "data": "cifar10"},
    "FC, MNIST, full batch": {"network": FC.format(inputs=784), "data": "mnist", "batch": None},
}
ARMS = {
    **{name: settings | {"loss": "cross-entropy"} for name, settings in NETWORKS.items()},
    **{name + SQUARED: settings | {"loss": "half-squared"} for name, settings in NETWORKS.items()},
}
PUBLISHED = list(NETWORKS)[:4]
"""The panels of the source."""
THEORY = "FC, MNIST, full batch" + SQUARED
"""What the theory is about: gradient descent on all images, and the squared error of a Gaussian model."""
FULL_BATCH = {"count": 1000, "limit_images": 1000, "epochs": 100}

SETTINGS = {"vary": "gamma", "batch": 128, "count": None, "limit_images": 500, "test_images": None}
GAMMAS = [0.1, 0.3, 1.0, 2.0, 3.0]
RATES = [round(10 ** (k / 2), 5) for k in range(-8, 3)]
"""Half a decade from one to the next, from 1e-4 to 10."""
NARROW_FC, FEW = {"network": "fc 784-200-200-200-10"}, {"count": 300, "limit_images": 300, "epochs": 60}
COARSE = {"values": [0.3, 1.0, 3.0], "lrs": RATES[2:10], "epochs": 0.2, "limit_images": 200, "test_images": 1000}
TINY_FC, TINY_CONV = {"network": "fc 64-20-20-20-10"}, {"network": "conv 1x16x16 4-6-8 k3 s2 10"}


def divergence_of(maps: dict[str, HeatMap], lines: tuple[str, ...]) -> str:
    """Where training begins to diverge: over the first limit in every panel, over the others in all of them."""
    if not maps:
        return ""
    ratios = {line: {arm: heat_map.ratios(line) for arm, heat_map in maps.items()} for line in lines}
    suffix = SQUARED if all(arm.endswith(SQUARED) for arm in maps) else ""
    each = [
        f"{arm.removesuffix(suffix)} {spread(values) if values else 'not reached'}"
        for arm, values in ratios[lines[0]].items()
    ]
    together = {line: [ratio for values in ratios[line].values() for ratio in values] for line in lines[1:]}
    rest = [f"over {line} {spread(values)}" for line, values in together.items() if values]
    return f"where training begins to diverge, over η* {lines[0]}: {'; '.join([*each, *rest])}"


def separated(maps: dict[str, HeatMap], line: str) -> list[bool]:
    """Whether a limit parts training from divergence, at each γ of each map where it can be decided."""
    cases = [heat_map.separates(line, value) for heat_map in maps.values() for value in heat_map.values]
    return [case for case in cases if case is not None]


@claim("the predicted η* is where training begins to diverge", paper="closely agrees, over three orders of magnitude")
def _printed_line(table: Table) -> Outcome:
    maps = heat_maps(table, PUBLISHED)
    return judged(separated(maps, "as printed"), divergence_of(maps, ("as printed", "mean field", "measured")))


@claim("so it is with the squared error, of which the theory speaks", paper="η* is derived for a Gaussian model")
def _printed_line_squared(table: Table) -> Outcome:
    maps = heat_maps(table, [name + SQUARED for name in PUBLISHED])
    return judged(separated(maps, "as printed"), divergence_of(maps, ("as printed", "mean field", "measured")))


@claim("gradient descent on all images diverges at 2(1 + μ)/λ_max", paper="a necessary condition (eq. 7)")
def _full_batch(table: Table) -> Outcome:
    maps = heat_maps(table, [THEORY])
    return judged(separated(maps, "measured"), divergence_of(maps, ("measured", "mean field")))


@claim("the best rate is about η*/2", paper="the dark band tracks η*/2")
def _best_rate(table: Table) -> Outcome:
    ratios = {
        arm: [heat_map.best(value)[1] / heat_map.limit("as printed", value) for value in heat_map.values]
        for arm, heat_map in heat_maps(table, PUBLISHED).items()
    }
    words = [f"{arm} {spread(values)}" for arm, values in ratios.items()]
    # the grid has half decades: a rate is about another if it is its neighbor
    cases = [abs(math.log10(2 * ratio)) <= 0.5 for values in ratios.values() for ratio in values]
    return judged(cases, "best rate over η*: " + "; ".join(words) if words else "")


@claim("smaller γ ends with a lower test loss", paper="a tendency in every panel")
def _small_gamma(table: Table) -> Outcome:
    cases, words = [], []
    for arm, heat_map in heat_maps(table, PUBLISHED).items():
        losses = [heat_map.best(value)[0] for value in heat_map.values]
        cases.append(losses[0] < losses[-1])
        ends = ", ".join(f"{losses[k]:.3g} (γ {heat_map.values[k]:g})" for k in (0, -1))
        words.append(f"{arm}: {ends}, best γ {heat_map.values[losses.index(min(losses))]:g}")
    return judged(cases, "least test loss, " + "; ".join(words) if words else "")


EXPERIMENT = Experiment(
    name="wei2019-fig2",
    title="Where training diverges, over the learning rate and γ",
    says="Test loss after 5 epochs over (log₁₀ η, γ): the predicted η* parts training from divergence, the best rate "
    "is about η*/2, and small γ ends lower.",
    arms=ARMS,
    scales={
        "smoke": SETTINGS
        | {"values": [0.3, 3.0], "lrs": [0.001, 0.1, 10.0], "epochs": 1, "limit_images": 100}
        | {
            "arms": {
                "FC, MNIST": {"data": "digits"} | TINY_FC,
                "conv, MNIST": {"data": "digits"} | TINY_CONV,
                "FC, MNIST, full batch": {"data": "digits"} | TINY_FC | FULL_BATCH | {"epochs": 20},
                THEORY: {"data": "digits"} | TINY_FC | FULL_BATCH | {"epochs": 20},
            },
        },
        "laptop": SETTINGS
        | {"values": GAMMAS, "lrs": RATES, "epochs": 0.5, "limit_images": 300, "test_images": 2000}
        | {
            "arms": {
                "FC, MNIST": NARROW_FC,
                "conv, MNIST": COARSE,
                "FC, MNIST, full batch": NARROW_FC | FULL_BATCH | FEW,
                "FC, MNIST" + SQUARED: NARROW_FC,
                "conv, MNIST" + SQUARED: COARSE,
                THEORY: NARROW_FC | FULL_BATCH | FEW,
            },
        },
        "gpu": SETTINGS
        | {"values": GAMMAS, "lrs": RATES, "epochs": 5, "seeds": 2}
        | {
            "arms": {
                **{name: {} for name in PUBLISHED},
                "FC, MNIST, full batch": FULL_BATCH,
                **{name + SQUARED: {"epochs": 1} for name in PUBLISHED},
                THEORY: FULL_BATCH,
            },
        },
        "paper": SETTINGS
        | {
            "values": [0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0],
            "lrs": [round(10 ** (k / 4), 6) for k in range(-16, 5)],
            "epochs": 5,
            "seeds": 5,
            "arms": {name: FULL_BATCH if "full batch" in name else {} for name in ARMS},
        },
    },
    measure=measure,
    claims=[_printed_line, _printed_line_squared, _full_batch, _best_rate, _small_gamma],
    draw=partial(draw, y="γ"),
    minutes={"smoke": 0.05, "laptop": 5.6, "gpu": 1.5, "paper": 40},
    contrast=[("FC, MNIST, full batch", THEORY)],
    departures=(
        "The source names neither the loss nor the batch size: both cross-entropy and squared error are shown, with "
        "128 images a batch.",
        "Beyond the source: gradient descent on 1000 images, for which the limit is exact.",
        "At the gpu scale, maps of the squared error show one epoch. At the laptop scale, fully connected layers have "
        "200 units, maps of the convolutional network are coarser, and gradient descent is on 300 images.",
    ),
)
