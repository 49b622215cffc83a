"""The deep MLPs of huang2020 on MNIST, trained with a few rates, and their layers over training."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import SGD, Adam

from wellcond.results import Row
from wellcond.results.quantities import FINAL_LOSS, INPUT, TRAINED_LR
from wellcond.results.run import Run
from wellcond_papers.data.batches import Batches
from wellcond_papers.data.load import load
from wellcond_papers.experiments.experiment import Job
from wellcond_papers.experiments.table import Record, Table
from wellcond_papers.models import mlp
from wellcond_papers.training.classifier import train_classifier

Batch = tuple[Tensor, Tensor]
Look = Callable[[nn.Module, Batch, int], Iterable[Row]]
"""Called as (network, images and labels, steps taken); returns what it measured."""
LOOKS = (0.0, 0.05, 0.2, 0.5, 1.0)
"""When layers are measured, as shares of the training."""
SMOKE: dict[str, Any] = {
    "data": "digits", "depth": 10, "units": 16, "batch": 200, "epochs": 2, "measured": 100, "rates": [0.1, 0.5],
}  # fmt: skip
LAPTOP: dict[str, Any] = {
    "data": "mnist", "depth": 20, "units": 256, "batch": 1024, "epochs": 4, "measured": 1024, "rates": [0.05, 0.2, 1.0],
}  # fmt: skip
OFTEN = [0.0, 0.002, 0.005, 0.01, 0.02, 0.035, 0.06, 0.1, 0.18, 0.3, 0.55, 1.0]
"""Looks that are close enough in loss to compare networks when they have the same one."""
PAPER: dict[str, Any] = LAPTOP | {"epochs": 80, "measured": 10_000, "looks": OFTEN}
COMPARED_LR = {"lecun": 0.2, "he": 0.05}
"""The rate at which the layers of a plain network and of one with BN are compared, by their initialization: the larger
two of 0.05, 0.2 and 1 make the plain one diverge with He's, and with LeCun's only 0.2 moves it."""
AS_IN_SECTION_4 = (
    "“similar results as those obtained using full gradient descent, as described in Section 4 of the paper”; the "
    "supplement does not say which"
)
"""All that the supplement says of figures V and VI."""
SILENT = ("epochs", "rates", "measured", "looks", "compared_lr")
DEPARTURES = (
    "The source gives neither the learning rates of SGD nor the number of epochs. Where `compared_lr` is set, layers "
    "are measured at that rate in both networks of a pair; elsewhere at the rate of the lowest training loss, of "
    "`rates`, which may differ within a pair.",
    "`measured` is the number of images that the layers are measured on, `looks` when, as shares of the training; "
    "without it, at the start and after 5, 20, 50 and 100 %.",
    "The layers have no biases, as in the source's equations.",
)


def network(job: Job) -> nn.Sequential:
    """The MLP of a cell."""
    inputs = load(job["data"], job.data).images[0].numel()
    sizes = [inputs, *[job["units"]] * (job["depth"] - 1), 10]
    return mlp(sizes, norm=job["norm"], init=job["init"], bias=False, seed=job["seed"]).to(job.device)


def first_images(job: Job) -> Batch:
    """The images that layers are measured on."""
    images, labels = load(job["data"], job.data).tensors(flatten=True, count=job["measured"])
    return images.to(job.device), labels.to(job.device)


def trained(job: Job, look: Look, looks: Sequence[float] = LOOKS) -> list[Row]:
    """Train with every rate; returns the rows of one run, its rate, and the final losses of all rates.

    The run is that of "compared_lr", else the best. The `layer` of a final loss names its rate, as in "lr 0.1". A run
    that diverged is the worst.

    Args:
        job: The cell. Its "looks", if it has them, take the place of `looks`.
        look: What to measure on the way.
        looks: When to measure it, as shares of the training.
    """
    chosen = job.settings.get("compared_lr")
    batches = Batches(load(job["data"], job.data), job["batch"], seed=job["seed"], device=job.device, flatten=True)
    steps = job["epochs"] * batches.per_epoch
    at = sorted({round(share * steps) for share in job.settings.get("looks", looks)})
    runs: dict[float, Run] = {}
    for place, rate in enumerate(job["rates"]):
        model, batch = network(job), first_images(job)
        kind = {"SGD": SGD, "Adam": Adam}[job["optimizer"]]

        def probe(step: int, model: nn.Module = model, batch: Batch = batch) -> Iterable[Row]:
            return look(model, batch, step)

        def tell(what: str, share: float, place: int = place) -> None:
            job.progress(what, (place + share) / len(job["rates"]))

        optimizer = kind(model.parameters(), lr=rate)
        probes = [probe] if chosen in (None, rate) else []
        runs[rate] = train_classifier(model, optimizer, batches, steps, at=at, probes=probes, progress=tell)
    finals = {rate: math.inf if run.final is None else run.final for rate, run in runs.items()}
    shown = chosen or min(finals, key=finals.__getitem__)
    tried = [Row(None, f"lr {rate:g}", FINAL_LOSS, loss, "") for rate, loss in finals.items()]
    return [*runs[shown].summary(), Row(None, "", TRAINED_LR, shown, ""), *tried]


def hidden(values: Mapping[str, float], quantity: str) -> dict[str, float]:
    """The hidden layers: the first receives the images, and the last gets back what the loss gives, whatever the norm.

    Example:
        >>> hidden({"fc1": 1.0, "fc2": 2.0, "fc3": 3.0}, "input_lambda_max")
        {'fc2': 2.0, 'fc3': 3.0}
        >>> hidden({"fc1": 1.0, "fc2": 2.0, "fc3": 3.0}, "gradient_lambda_max")
        {'fc1': 1.0, 'fc2': 2.0}
    """
    of_inputs = quantity in (INPUT.lambda_max, *INPUT.kappa.values())
    names = list(values)
    return {layer: values[layer] for layer in (names[1:] if of_inputs else names[:-1])}


def at_step(table: Table, arm: str, quantity: str, step: int | None = None) -> dict[str, float]:
    """One quantity of the hidden layers at one step, the mean over seeds; None for the last look."""
    return hidden(table.arm(arm).mean_by_layer(quantity, step), quantity)


def by_seed(table: Table, arm: str, other: str) -> list[tuple[Record, Record]]:
    """The runs of two arms in pairs, seed by seed."""
    others = {record.settings.get("seed"): record for record in table.arm(other)}
    pairs = [(record, others.get(record.settings.get("seed"))) for record in table.arm(arm)]
    return [(record, partner) for record, partner in pairs if partner is not None]


def shared_looks(pair: tuple[Record, Record], quantity: str) -> dict[int, list[dict[str, float]]]:
    """One quantity of the hidden layers of both runs, by the steps at which both were measured: one may diverge."""
    steps = set.intersection(*(set(Table([record]).steps(quantity)) for record in pair))
    return {step: [hidden(record.by_layer(quantity, step), quantity) for record in pair] for step in sorted(steps)}


def spread(values: Mapping[str, float]) -> float:
    """How many times the greatest is the least; infinite where a layer has nothing left.

    Example:
        >>> spread({"fc1": 0.5, "fc2": 2.0}), spread({"fc1": 0.0, "fc2": 1.0})
        (4.0, inf)
    """
    low, high = min(values.values()), max(values.values())
    return high / low if low > 0 else math.inf


def changes(table: Table, arm: str, quantity: str) -> dict[str, list[float]]:
    """By hidden layer, how many times its greatest value over training is its least, in every seed."""
    ratios: dict[str, list[float]] = {}
    for record in table.arm(arm):
        looks = [hidden(record.by_layer(quantity, step), quantity) for step in Table([record]).steps(quantity)]
        for layer in looks[0] if looks else ():
            ratio = spread({str(i): look[layer] for i, look in enumerate(looks)})
            ratios.setdefault(layer, []).append(ratio)
    return ratios
