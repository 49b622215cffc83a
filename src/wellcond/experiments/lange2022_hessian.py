"""Figure 8 of lange2022: the condition number of one output unit's Hessian, plain and preconditioned, as BNP trains.

Two hidden layers of 100, CIFAR-10 with pixels in [0, 1], mini-batches of 60, float64, three seeds; learning rates of
figure 3. Every tenth step, before it is taken, the Hessian of the loss with respect to the first output unit's [b, w]
is measured with the weights as they are, for two sets of images:

- the next mini-batch of 60, as in the source. 60 images give a 101×101 matrix a rank of 60 at most, and its κ is taken
  over the nonzero singular values (the source's definition); Theorem 4, which speaks of full column rank, says nothing;
- 1000 training images, for which the rank is 101 less the number of dead units, at 289 of 300 steps exactly.

and for two preconditioners: the source's P, whose μ and σ are those of the same images (dead units, with σ = 0, left
out), and the one that BNP applies in this step, whose running σ̃ has ε₁ and ε₂ in it.

    python -m wellcond.experiments.lange2022_hessian [--data DIR] [--out docs/figures]
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from wellcond.data import cifar10
from wellcond.experiments.lange2022_networks import SEEDS, Curves, Data, Probe, as_data, network, train_network
from wellcond.experiments.lange2022_unit import Preconditioner, conditioning, hessian_factor
from wellcond.experiments.output import json_by_line, output_files, parser
from wellcond.optim.bnp import BNP
from wellcond.report.style import COLOURS, Curve, bare_axes, draw_curves, new_figure, save_figure
from wellcond.results import text_table
from wellcond.results.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HIDDEN, LAST = [100, 100], "fc3"
RATES = {"vanilla": 0.01, "BNP": 0.1}
SOURCE, OWN = "source's P", "BNP's P"


@dataclass(frozen=True)
class Plan:
    """How long to train, and what to measure how often."""

    batch: int = 60
    images: int = 1000
    steps: int = 1000
    evaluate_every: int = 50
    measure_every: int = 10


@dataclass(frozen=True)
class Measurement:
    """The Hessian of one unit before a step, on so many images: its rank, and the units that are 0 for all of them.

    `hessian`, `preconditioned` and `D` are log₁₀ of κ(∇²L), κ(Pᵀ∇²L P) and κ(D), over the nonzero singular values.
    """

    seed: int
    images: int
    preconditioner: str
    step: int
    rank: int
    dead: int
    hessian: float
    preconditioned: float
    D: float

    @property
    def improvement(self) -> float:
        """log₁₀ κ(∇²L)/κ(Pᵀ∇²L P)."""
        return self.hessian - self.preconditioned


def train_vanilla(data: Data, seed: int, plan: Plan) -> Curves:
    """The curves of the plain network."""
    model = _network(data, seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATES["vanilla"])
    return _trained(model, optimizer, data, seed, plan)


def train_bnp(data: Data, seed: int, plan: Plan) -> tuple[Curves, list[Measurement]]:
    """The curves of the network under BNP, and what was measured on the way."""
    model = _network(data, seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATES["BNP"])
    bnp = BNP(model, optimizer)
    measurements = []

    @torch.no_grad()
    def before_step(step: int, x: Tensor) -> None:
        if step % plan.measure_every:
            return
        applied = Preconditioner.of_next_step(bnp, LAST, model[:-1](x))
        for images in (x, data.x[: plan.images]):
            h = model[:-1](images)
            factor = hessian_factor(h, model[-1](h))
            kappa, rank = conditioning(factor)
            dead = int((h == 0).all(0).sum())
            for name, preconditioner in {SOURCE: Preconditioner.of(h), OWN: applied}.items():
                kappas = kappa, conditioning(preconditioner.applied_to(factor))[0], preconditioner.condition_number()
                where = seed, len(images), name, step
                measurements.append(Measurement(*where, rank, dead, *(round(math.log10(k), 4) for k in kappas)))

    return _trained(model, optimizer, data, seed, plan, before_step), measurements


def _trained(
    model: nn.Module, optimizer: Optimizer, data: Data, seed: int, plan: Plan, before_step: Probe | None = None
) -> Curves:
    return train_network(
        model, optimizer, data, batch=plan.batch, steps=plan.steps, every=plan.evaluate_every, seed=seed,
        before_step=before_step,
    )  # fmt: skip


def _network(data: Data, seed: int) -> nn.Sequential:
    return network("vanilla", [data.x.shape[1], *HIDDEN, 10], seed).to(data.x.dtype)


@dataclass(frozen=True)
class Comparison:
    """Whether P improves κ by κ(D)²: medians over steps and seeds, log₁₀ of condition numbers.

    `bounded` is the share of the measurements in which the improvement is at most κ(D)².
    """

    images: int
    preconditioner: str
    rank: float
    dead: float
    hessian: float
    preconditioned: float
    improvement: float
    D_squared: float
    bounded: float


def compare(measurements: Sequence[Measurement]) -> list[Comparison]:
    """One comparison per set of images and preconditioner.

    Example:
        >>> [one] = compare([Measurement(0, 60, "P", step=0, rank=2, dead=0, hessian=6.0, preconditioned=2.0, D=3.0)])
        >>> one.improvement, one.D_squared, one.bounded
        (4.0, 6.0, 1.0)
    """
    return [
        Comparison(
            images, preconditioner,
            median(m.rank for m in own), median(m.dead for m in own),
            median(m.hessian for m in own), median(m.preconditioned for m in own),
            median(m.improvement for m in own), median(2 * m.D for m in own),
            sum(m.improvement <= 2 * m.D for m in own) / len(own),
        )
        for (images, preconditioner), own in _groups(measurements)
    ]  # fmt: skip


def _groups(measurements: Sequence[Measurement]) -> Iterator[tuple[tuple[int, str], list[Measurement]]]:
    """By images and preconditioner, in the order of appearance."""
    for key in dict.fromkeys((m.images, m.preconditioner) for m in measurements):
        yield key, [m for m in measurements if (m.images, m.preconditioner) == key]


def table(comparisons: Sequence[Comparison]) -> str:
    """One line per comparison."""
    header = ["", "images", "rank", "dead", "log κ(∇²L)", "log κ(Pᵀ∇²LP)", "improvement", "log κ(D)²", "at most κ(D)²"]
    body = [
        [c.preconditioner, str(c.images), f"{c.rank:g}", f"{c.dead:g}"]
        + [f"{value:.2f}" for value in (c.hessian, c.preconditioned, c.improvement, c.D_squared)]
        + [f"{c.bounded:.0%}"]
        for c in comparisons
    ]
    return text_table(header, body)


def as_json(runs: Mapping[str, Sequence[Curves]], measurements: Sequence[Measurement]) -> bytes:
    """The comparisons, then the measurements that they follow from, as columns, and the curves."""
    columns = ("step", "rank", "dead", "hessian", "preconditioned", "D")
    return json_by_line(
        {
            "comparisons": compare(measurements),
            "measurements": [
                {"seed": seed, "images": images, "preconditioner": name}
                | {column: [getattr(m, column) for m in own if m.seed == seed] for column in columns}
                for (images, name), own in _groups(measurements)
                for seed in dict.fromkeys(m.seed for m in own)
            ],
            "runs": [{"method": name} | asdict(run) for name, own in runs.items() for run in own],
        }
    )


def draw(runs: Mapping[str, Sequence[Curves]], measurements: Sequence[Measurement]) -> Figure:
    """Loss and accuracy; κ for both sets of images; κ(D); and the improvement against κ(D)²."""
    figure = new_figure(13, 7)
    (loss, *hessians), (accuracy, scale, gain) = figure.subplots(2, 3)
    draw_curves(loss, {name: [(run.steps, run.losses) for run in own] for name, own in runs.items()})
    draw_curves(accuracy, {name: [(run.steps, run.accuracies) for run in own] for name, own in runs.items()})
    groups = dict(_groups(measurements))
    sets = list(dict.fromkeys(images for images, _ in groups))
    for axes, images in zip(hessians, sets, strict=True):
        curves = {"∇²L": _curves(groups[images, SOURCE], "hessian")}
        curves |= {f"Pᵀ∇²L P, {name}": _curves(groups[images, name], "preconditioned") for name in (SOURCE, OWN)}
        draw_curves(axes, curves)
    scales = {f"{SOURCE}, {images} images": _curves(groups[images, SOURCE], "D") for images in sets}
    draw_curves(scale, scales | {OWN: _curves(groups[sets[0], OWN], "D")})
    for ((images, name), own), colour in zip(groups.items(), COLOURS, strict=False):
        places, heights = [2 * m.D for m in own], [m.improvement for m in own]
        gain.plot(places, heights, ".", color=colour, markersize=4, alpha=0.5, label=f"{name}, {images} images")
    gain.axline((0, 0), slope=1, color="#666666", linewidth=1, label="improvement by κ(D)²")
    gain.set_xlabel("log₁₀ κ(D)²")
    bare_axes(gain)
    titles = ["training loss", *(f"log₁₀ κ of the Hessian, {images} images" for images in sets)]
    titles += ["test accuracy", "log₁₀ κ(D)", "improvement: log₁₀ κ(∇²L)/κ(Pᵀ∇²L P)"]
    for axes, title in zip(figure.axes, titles, strict=True):
        axes.set_title(title, loc="left", fontsize=11)
        axes.margins(y=0.15)
        axes.legend(frameon=False, fontsize=9)
        if axes is not gain:
            axes.set_xlabel("steps")
    return figure


def _curves(measurements: Sequence[Measurement], quantity: str) -> list[Curve]:
    """One per seed."""
    by_seed: dict[int, list[Measurement]] = {}
    for measurement in measurements:
        by_seed.setdefault(measurement.seed, []).append(measurement)
    return [([m.step for m in own], [getattr(m, quantity) for m in own]) for own in by_seed.values()]


def main() -> None:
    """Run everything and write the picture and the numbers."""
    options = parser(__doc__, data="CIFAR-10").parse_args()
    picture, numbers = output_files(options.out, "lange2022_figure_8")
    torch.set_num_threads(1)
    data = as_data(cifar10(options.data), cifar10(options.data, train=False), dtype=torch.float64)
    runs: dict[str, list[Curves]] = {method: [] for method in RATES}
    measurements: list[Measurement] = []
    for seed in SEEDS:
        begin = time.perf_counter()
        run, found = train_bnp(data, seed, Plan())
        runs["BNP"].append(run)
        runs["vanilla"].append(train_vanilla(data, seed, Plan()))
        measurements += found
        print(f"seed {seed}, {seed + 1} of {len(SEEDS)}: {time.perf_counter() - begin:.0f} s", flush=True)
    write_atomically(numbers, as_json(runs, measurements))
    save_figure(draw(runs, measurements), picture)
    print(table(compare(measurements)))


if __name__ == "__main__":
    main()
