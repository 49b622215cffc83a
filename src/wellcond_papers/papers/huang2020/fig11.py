"""Figure XI of huang2020: gradients of deep networks with BN explode at the start, and are small after one step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import SGD

from wellcond.report.figures.style import LogScale
from wellcond.results import Row, number
from wellcond.results.quantities import KRONECKER, WEIGHT_NORM
from wellcond_papers.data.batches import Batches
from wellcond_papers.data.load import load
from wellcond_papers.experiments.claims import Claim, Outcome, claim, judged
from wellcond_papers.experiments.experiment import Experiment, Job
from wellcond_papers.experiments.pictures import panels
from wellcond_papers.experiments.table import Table
from wellcond_papers.models import mlp, resnet
from wellcond_papers.papers.huang2020.conditioning import MAGNITUDES, layer_rows
from wellcond_papers.papers.huang2020.deep_mlp import draw_looks, looks_of
from wellcond_papers.training.classifier import train_classifier

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ITERATIONS = range(8)
LARGE = 10.0
"""Times smaller after a step, or times greater weights, that count."""
MLP: dict[str, Any] = {"network": "MLP", "norm": "batch"}
NETWORKS: dict[str, dict[str, Any]] = {
    "BN MLP": MLP,
    "plain MLP": MLP | {"norm": "none"},
    "BN VGG-style": {"network": "VGG-style", "norm": "batch"},
}
LR = 0.1


def at_rate(arm: str, rate: float) -> str:
    """What a network at some rate is called."""
    return arm if rate == LR else f"{arm}, lr {rate:g}"


MNIST: dict[str, Any] = {"data": "mnist", "depth": 100, "width": 256, "batch": 1024, "measured": 1024, "lr": LR}
CIFAR: dict[str, Any] = {"data": "cifar10", "depth": 110, "width": 16, "batch": 128, "measured": 256, "lr": LR}
SMALL: dict[str, Any] = {"data": "digits", "depth": 30, "width": 16, "batch": 100, "measured": 64, "lr": LR}
FULL = {"BN MLP": MNIST, "plain MLP": MNIST, "BN VGG-style": CIFAR}
RATES = (0.001, 0.01, 0.1, 1.0)
OTHER_RATES = {
    at_rate(arm, rate): settings | {"lr": rate}
    for arm, settings in FULL.items()
    if arm != "plain MLP"
    for rate in RATES
    if rate != LR
}
"""The source gives no rate; these are tried next to that of the arms above."""


def build(job: Job) -> nn.Module:
    """A deep MLP, or a residual network without its shortcuts."""
    image = load(job["data"], job.data).images[0]
    if job["network"] == "MLP":
        sizes = [image.numel(), *[job["width"]] * (job["depth"] - 1), 10]
        model = mlp(sizes, norm=job["norm"], init="he", bias=False, seed=job["seed"])
    else:
        model = resnet(job["depth"], 10, norm=job["norm"], shortcuts=False, width=job["width"], seed=job["seed"])
    return model.to(job.device)


def measure(job: Job) -> Iterable[Row]:
    """Seven steps, each after a look at all layers."""
    channels = 3 if job["network"] == "VGG-style" else None
    data = load(job["data"], job.data, channels=channels)
    model, is_flat = build(job), job["network"] == "MLP"
    batches = Batches(data, job["batch"], seed=job["seed"], device=job.device, flatten=is_flat)
    images, labels = (tensor.to(job.device) for tensor in data.tensors(flatten=is_flat, count=job["measured"]))

    def look(step: int) -> Iterator[Row]:
        # Proposition 1: λ_max(Σx ⊗ Σ∇h) = λ_max(Σx) · λ_max(Σ∇h), which stands for that of the layer's Fisher matrix
        magnitudes: dict[str, float] = {}
        for row in layer_rows(model, (images, labels), step, keep=MAGNITUDES):
            magnitudes[row.layer] = magnitudes.get(row.layer, 1.0) * row.value
        yield from (Row(step, layer, KRONECKER.lambda_max, value, "") for layer, value in magnitudes.items())
        if step <= 1:
            weights = {layer: model.get_submodule(layer).get_parameter("weight") for layer in magnitudes}
            yield from (
                Row(step, name, WEIGHT_NORM, float(weight.detach().norm()), "") for name, weight in weights.items()
            )

    optimizer = SGD(model.parameters(), lr=job["lr"])
    steps = ITERATIONS[-1]
    return train_classifier(
        model, optimizer, batches, steps, at=ITERATIONS, probes=[look], progress=job.progress
    ).summary()


def magnitudes(table: Table, arm: str, step: int) -> list[float]:
    """λ_max of the hidden layers of one network, from the lowest up."""
    return list(table.arm(arm).mean_by_layer(KRONECKER.lambda_max, step).values())[1:-1]


def growth(values: list[float]) -> float:
    """By how much λ_max grows from layer to layer downwards, between the means of the lower and of the upper half.

    Example:
        >>> round(growth([8.0, 4.0, 2.0, 1.0]), 6)
        2.0
    """
    logs = [math.log(value) for value in values]
    middle = len(logs) // 2
    distance = len(logs) - middle
    return math.exp((fmean(logs[:middle]) - fmean(logs[middle:])) / distance) if middle else 1.0


def explodes(arm: str) -> Claim:
    """At iteration 0."""

    @claim(f"{arm}: at the start, gradients explode exponentially from the top to the lower layers", paper="explode")
    def check(table: Table) -> Outcome:
        values = magnitudes(table, arm, 0)
        if not values:
            return judged([], "")
        if min(values) == 0:
            return judged([False], "a layer gets no gradient at all")
        factor = growth(values)
        total = values[0] / values[-1]
        details = f"λ_max grows {number(factor)} times a layer, {number(total)} times over {len(values)} layers"
        return judged([factor > 1.05, total > LARGE], details)

    return check


def is_small_after_a_step(arm: str) -> Claim:
    """At iterations 1 to 7, in the lower third of the layers; the largest of all layers is reported too."""

    @claim(f"{arm}: after a single step the gradients of the lower layers are small", paper="small, iterations 1 to 7")
    def check(table: Table) -> Outcome:
        before = magnitudes(table, arm, 0)
        lower = len(before) // 3
        falls: list[float] = []
        greatest = 0.0
        for step in ITERATIONS[1:]:
            after = magnitudes(table, arm, step)
            greatest = max([greatest, *after])
            falls += [old / new for old, new in zip(before[:lower], after[:lower], strict=False) if new > 0]
        if not falls:
            return judged([], "")
        details = (
            f"in the lower third, λ_max is {number(min(falls))} to {number(max(falls))} times smaller, "
            f"{number(median(falls))} times in the median; the greatest of all layers was {number(max(before))} and is "
            f"{number(greatest)} at some later iteration"
        )
        return judged([fall > LARGE for fall in falls], details)

    return check


def weights_grow(arm: str) -> Claim:
    """From iteration 0 to 1."""

    @claim(f"{arm}: that step increases the weights of the lower layers exponentially", paper="exponential growth")
    def check(table: Table) -> Outcome:
        old, new = (list(table.arm(arm).mean_by_layer(WEIGHT_NORM, step).values())[1:-1] for step in (0, 1))
        if not old or not new:
            return judged([], "")
        ratios = [after / before for before, after in zip(old, new, strict=True)]
        details = (
            f"‖W‖ is {number(ratios[0])} times as large in the lowest hidden layer, {number(ratios[-1])} in the highest"
        )
        return judged([ratios[0] > LARGE, growth(ratios) > 1.0], details)

    return check


def draw(table: Table) -> Figure:
    """λ_max of every layer at each iteration, a panel per network."""
    figure, axes = panels(table.arms)
    for arm, panel in axes.items():
        looks = looks_of(table, arm, KRONECKER.lambda_max)
        draw_looks(panel, looks, LogScale.of(value for look in looks.values() for value in look.values()))
        panel.set_ylabel(r"$\lambda_{\max}(F_k)$")
    return figure


EXPERIMENT = Experiment(
    name="huang2020-fig11",
    title="Gradient explosion of deep networks with BN, and weight domination after one step",
    says="The gradients of deep networks with BN and without shortcuts explode at the start. After one step the "
    "weights of the lower layers are dominated by it, and their gradients are small.",
    arms=NETWORKS | {at_rate(arm, rate): NETWORKS[arm] for arm in ("BN MLP", "BN VGG-style") for rate in RATES},
    scales={
        "smoke": {"arms": {"BN MLP": SMALL, "plain MLP": SMALL, "BN VGG-style": SMALL | {"depth": 26, "width": 4}}},
        "laptop": {"arms": {"BN MLP": MNIST, "plain MLP": MNIST}},
        "gpu": {"seeds": 3, "arms": FULL | OTHER_RATES},
        "paper": {"seeds": 3, "arms": FULL | OTHER_RATES},
    },
    measure=measure,
    claims=tuple(
        make(arm) for arm in ("BN MLP", "BN VGG-style") for make in (explodes, is_small_after_a_step, weights_grow)
    ),
    draw=draw,
    minutes={"smoke": 0.05, "laptop": 1.6, "gpu": 1.5, "paper": 1.5},
    contrast=[("BN MLP", "plain MLP")],
    silent=("lr", "batch", "measured"),
    departures=(
        "The source does not give the learning rate; here 0.1, and others where a line is named after one.",
        "λ_max of a layer's Fisher matrix is that of its Kronecker approximation Σx ⊗ Σ∇h.",
        "The plain MLP is not in the source's figure; it is there to compare with.",
        "The source does not say which layers are the lower ones: here the lower third, chosen after the lower half "
        "came out mixed.",
    ),
)
