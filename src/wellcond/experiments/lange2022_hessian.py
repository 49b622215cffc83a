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
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from wellcond.data import cifar10
from wellcond.experiments.lange2022_networks import SEEDS, Curves, Data, as_data, draw_training, network, train_network
from wellcond.experiments.lange2022_unit import Preconditioner, conditioning, hessian_factor
from wellcond.experiments.output import output_files, parser, write
from wellcond.optim.bnp import BNP
from wellcond.report.style import COLOURS, Curve, bare_axes, draw_curves, new_figure
from wellcond.results import text_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HIDDEN, LAST = [100, 100], "fc3"
RATES = {"vanilla": 0.01, "BNP": 0.1}
SOURCE, OWN = "source's P", "BNP's P"
QUANTITIES = ("rank", "dead", "hessian", "preconditioned", "improvement", "D_squared")


@dataclass(frozen=True)
class Plan:
    """How long to train, and what to measure how often."""

    batch: int = 60
    images: int = 1000
    steps: int = 1000
    evaluate_every: int = 50
    measure_every: int = 10


@dataclass(frozen=True)
class Measured:
    """The Hessian of one unit for one seed, so many images and one preconditioner: one entry per measured step.

    `dead` counts the units that are 0 for all images. `hessian`, `preconditioned` and `D` are log₁₀ of κ(∇²L),
    κ(Pᵀ∇²L P) and κ(D), over the nonzero singular values.
    """

    seed: int
    images: int
    preconditioner: str
    step: list[int] = field(default_factory=list)
    rank: list[int] = field(default_factory=list)
    dead: list[int] = field(default_factory=list)
    hessian: list[float] = field(default_factory=list)
    preconditioned: list[float] = field(default_factory=list)
    D: list[float] = field(default_factory=list)

    @property
    def improvement(self) -> list[float]:
        """log₁₀ κ(∇²L)/κ(Pᵀ∇²L P)."""
        return [plain - better for plain, better in zip(self.hessian, self.preconditioned, strict=True)]

    @property
    def D_squared(self) -> list[float]:
        """log₁₀ κ(D)²."""
        return [2 * value for value in self.D]


def train_and_measure(method: str, data: Data, seed: int, plan: Plan) -> tuple[Curves, list[Measured]]:
    """The curves of the network, and what was measured on the way if it trains under BNP."""
    model = network("vanilla", [data.x.shape[1], *HIDDEN, 10], seed).to(data.x.dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATES[method])
    bnp = BNP(model, optimizer) if method == "BNP" else None
    measured: dict[tuple[int, str], Measured] = {}

    @torch.no_grad()
    def before_step(step: int, x: Tensor) -> None:
        if bnp is None or step % plan.measure_every:
            return
        applied = Preconditioner.of_next_step(bnp, LAST, model[:-1](x))
        for images in (x, data.x[: plan.images]):
            h = model[:-1](images)
            factor = hessian_factor(h, model[-1](h))
            kappa, rank = conditioning(factor)
            for name, preconditioner in {SOURCE: Preconditioner.of(h), OWN: applied}.items():
                own = measured.setdefault((len(images), name), Measured(seed, len(images), name))
                own.step.append(step)
                own.rank.append(rank)
                own.dead.append(int((h == 0).all(0).sum()))
                own.hessian.append(round(math.log10(kappa), 4))
                own.preconditioned.append(round(math.log10(conditioning(preconditioner.applied_to(factor))[0]), 4))
                own.D.append(round(math.log10(preconditioner.condition_number()), 4))

    curves = train_network(
        model, optimizer, data, batch=plan.batch, steps=plan.steps, every=plan.evaluate_every, seed=seed,
        before_step=before_step,
    )  # fmt: skip
    return curves, list(measured.values())


def compare(measured: Sequence[Measured]) -> list[dict[str, Any]]:
    """Whether P improves κ by κ(D)²: medians over steps and seeds, one record per set of images and preconditioner.

    `bounded` is the share of the measurements in which the improvement is at most κ(D)².

    Example:
        >>> measured = Measured(0, 60, "P", [0], rank=[2], dead=[0], hessian=[6.0], preconditioned=[2.0], D=[3.0])
        >>> [one] = compare([measured])
        >>> one["improvement"], one["D_squared"], one["bounded"]
        (4.0, 6.0, 1.0)
    """
    comparisons = []
    for (images, name), own in _groups(measured).items():
        columns = {q: [value for m in own for value in getattr(m, q)] for q in QUANTITIES}
        pairs = zip(columns["improvement"], columns["D_squared"], strict=True)
        comparison = {"images": images, "preconditioner": name} | {q: median(columns[q]) for q in QUANTITIES}
        comparisons.append(comparison | {"bounded": fmean(gain <= bound for gain, bound in pairs)})
    return comparisons


def _groups(measured: Sequence[Measured]) -> dict[tuple[int, str], list[Measured]]:
    """All seeds by images and preconditioner, in the order of appearance."""
    groups: dict[tuple[int, str], list[Measured]] = {}
    for each in measured:
        groups.setdefault((each.images, each.preconditioner), []).append(each)
    return groups


def table(comparisons: Sequence[Mapping[str, Any]]) -> str:
    """One line per comparison."""
    header = ["", "images", "rank", "dead", "log κ(∇²L)", "log κ(Pᵀ∇²LP)", "improvement", "log κ(D)²", "at most κ(D)²"]
    body = [
        [c["preconditioner"], *(f"{c[q]:g}" for q in ("images", "rank", "dead"))]
        + [f"{c[q]:.2f}" for q in QUANTITIES[2:]]
        + [f"{c['bounded']:.0%}"]
        for c in comparisons
    ]
    return text_table(header, body)


def numbers_of(runs: Mapping[str, Sequence[Curves]], measured: Sequence[Measured]) -> dict[str, Any]:
    """The comparisons, then the measurements that they follow from, and the curves."""
    curves = [{"method": name} | asdict(run) for name, own in runs.items() for run in own]
    return {"comparisons": compare(measured), "measurements": [asdict(each) for each in measured], "runs": curves}


def draw(runs: Mapping[str, Sequence[Curves]], measured: Sequence[Measured]) -> Figure:
    """Loss and accuracy; κ for both sets of images; κ(D); and the improvement against κ(D)²."""
    figure = new_figure(13, 7)
    (loss, *hessians), (accuracy, scale, gain) = figure.subplots(2, 3)
    draw_training(loss, accuracy, runs, order=list(runs))
    groups = _groups(measured)
    sets = list(dict.fromkeys(images for images, _ in groups))
    for axes, images in zip(hessians, sets, strict=True):
        curves = {"∇²L": _curves(groups[images, SOURCE], "hessian")}
        curves |= {f"Pᵀ∇²L P, {name}": _curves(groups[images, name], "preconditioned") for name in (SOURCE, OWN)}
        draw_curves(axes, curves)
    scales = {f"{SOURCE}, {images} images": _curves(groups[images, SOURCE], "D") for images in sets}
    draw_curves(scale, scales | {OWN: _curves(groups[sets[0], OWN], "D")})
    for ((images, name), own), colour in zip(groups.items(), COLOURS, strict=False):
        for each, label in zip(own, [f"{name}, {images} images", *[None] * len(own)], strict=False):
            gain.plot(each.D_squared, each.improvement, ".", color=colour, markersize=4, alpha=0.5, label=label)
    gain.axline((0, 0), slope=1, color="#666666", linewidth=1, label="improvement by κ(D)²")
    titles = ["training loss", *(f"log₁₀ κ of the Hessian, {images} images" for images in sets)]
    titles += ["test accuracy", "log₁₀ κ(D)", "improvement: log₁₀ κ(∇²L)/κ(Pᵀ∇²L P)"]
    for axes, title in zip(figure.axes, titles, strict=True):
        bare_axes(axes, title=title, x="log₁₀ κ(D)²" if axes is gain else "steps")
        axes.margins(y=0.15)
        axes.legend(frameon=False, fontsize=9)
    return figure


def _curves(measured: Sequence[Measured], quantity: str) -> list[Curve]:
    """One per seed."""
    return [(each.step, getattr(each, quantity)) for each in measured]


def main() -> None:
    """Run everything and write the picture and the numbers."""
    options = parser(__doc__, data="CIFAR-10").parse_args()
    files = output_files(options.out, "lange2022_figure_8")
    torch.set_num_threads(1)
    data = as_data(cifar10(options.data), cifar10(options.data, train=False), dtype=torch.float64)
    runs: dict[str, list[Curves]] = {method: [] for method in RATES}
    measured: list[Measured] = []
    for seed in SEEDS:
        begin = time.perf_counter()
        for method in RATES:
            run, found = train_and_measure(method, data, seed, Plan())
            runs[method].append(run)
            measured += found
        print(f"seed {seed}, {seed + 1} of {len(SEEDS)}: {time.perf_counter() - begin:.0f} s", flush=True)
    write(files, draw(runs, measured), numbers_of(runs, measured))
    print(table(compare(measured)))


if __name__ == "__main__":
    main()
