"""Training as in lange2022: a method, a rate, a schedule; training loss and test accuracy during training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam, Optimizer

from wellcond.optim.bnp import BNP
from wellcond.results import Row
from wellcond.results.quantities import LOSS
from wellcond_papers.data.batches import Batches
from wellcond_papers.data.load import load
from wellcond_papers.experiments.experiment import Job
from wellcond_papers.papers.lange2022.networks import network
from wellcond_papers.training.checkpoint import Checkpoint
from wellcond_papers.training.classifier import train_classifier
from wellcond_papers.training.loop import Probe
from wellcond_papers.training.schedules import Schedule, warm_up
from wellcond_papers.training.schedules import steps as decay

RHO = 0.99
"""The decay of BNP's running statistics."""
CHUNK = 1000
"""Images per forward pass of an evaluation."""


@dataclass(frozen=True)
class Trainee:
    """Everything that a cell trains with.

    Attributes:
        model: The network, on its device.
        optimizer: An optimizer of its parameters.
        bnp: The preconditioner; None without BNP.
        batches: The training batches.
        known: Training images and labels on which its loss is evaluated.
        test: Test images and labels.
    """

    model: nn.Module
    optimizer: Optimizer
    bnp: BNP | None
    batches: Batches
    known: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def measure(job: Job) -> list[Row]:
    """Train the network of a cell: rows of its loss on training images and its test accuracy.

    The settings are those of `network`, and:

    - "data", "size", "image_channels", "standardize", "augment", "evaluated" (training images for the loss), "tested"
    - "batch", "steps" or "epochs", "looks" (how often to evaluate), "half"
    - "lr", "optimizer" ("SGD" or "Adam"), "momentum", "weight_decay", "rho" (of BNP)
    - "decay_at" (shares of the training after which the rate is a tenth), "warm_up" (epochs from a tenth of the rate)
    """
    trainee = trainee_of(job)
    return trained(job, trainee, [loss_probe(trainee)])


def trainee_of(job: Job, dtype: torch.dtype = torch.float32) -> Trainee:
    """Load the data and build the network of a cell."""
    settings, device = job.settings, job.device
    shape = {"size": settings.get("size"), "channels": settings.get("image_channels")}
    learned, unseen = (load(job["data"], job.data, train=train, **shape) for train in (True, False))
    form: dict[str, Any] = {"standardize": settings.get("standardize", False), "dtype": dtype}
    is_fast = settings.get("half", False)
    batches = Batches(
        learned, job["batch"], seed=job["seed"], device=device, augment=settings.get("augment", ()),
        channels_last=is_fast, **form,
    )  # fmt: skip
    known = learned.tensors(count=settings["evaluated"], **form)
    test = unseen.tensors(count=settings.get("tested"), **form)
    model = network(settings, _shape(known[0]), len(learned.classes)).to(device, dtype)
    if is_fast:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer, bnp = optimizer_of(settings, model)
    return Trainee(model, optimizer, bnp, batches, _on(device, *known), _on(device, *test))


def trained(job: Job, trainee: Trainee, probes: Sequence[Probe]) -> list[Row]:
    """Train it as the settings say; few rows."""
    settings, per_epoch = job.settings, trainee.batches.per_epoch
    steps = settings["steps"] if "steps" in settings else math.ceil(settings["epochs"] * per_epoch)
    parts: dict[str, Any] = {"model": trainee.model, "optimizer": trainee.optimizer}
    checkpoint = None if job.folder is None else Checkpoint(job.folder / "state.pt", parts)
    return train_classifier(
        trainee.model, trainee.optimizer, trainee.batches, steps,
        at=looks(steps, job["looks"]), test=trainee.test, probes=probes, schedule=schedule(settings, steps, per_epoch),
        half=settings.get("half", False), bnp=trainee.bnp, checkpoint=checkpoint, progress=job.progress,
    ).summary()  # fmt: skip


def looks(steps: int, count: int) -> list[int]:
    """Step 0, and this many more at equal distances up to the last.

    Example:
        >>> looks(100, 4)
        [0, 25, 50, 75, 100]
    """
    return [round(place * steps / count) for place in range(count + 1)]


def schedule(settings: Any, steps: int, per_epoch: int) -> Schedule:
    """A tenth of the rate after each of "decay_at"; a linear rise from a tenth over "warm_up" epochs.

    Example:
        >>> rate = schedule({"decay_at": [0.5], "warm_up": 1}, steps=20, per_epoch=4)
        >>> [round(rate(step), 4) for step in (0, 3, 9, 10)]
        [0.325, 1.0, 1.0, 0.1]
    """
    then = decay([round(share * steps) for share in settings.get("decay_at", ())])
    length = round(settings.get("warm_up", 0) * per_epoch)
    return warm_up(length, then, begin=0.1) if length else then


def loss_probe(trainee: Trainee) -> Probe:
    """The mean loss on known images in evaluation mode, which does not depend on the mini-batch."""
    model, (x, y) = trainee.model, trainee.known

    @torch.no_grad()
    def probe(step: int) -> list[Row]:
        model.eval()
        pieces = zip(torch.split(x, CHUNK), torch.split(y, CHUNK), strict=True)
        total = sum(float(functional.cross_entropy(model(some), labels, reduction="sum")) for some, labels in pieces)
        model.train()
        return [Row(step, "", LOSS, total / len(y), "")]

    return probe


def optimizer_of(settings: Any, model: nn.Module) -> tuple[Optimizer, BNP | None]:
    """The optimizer of a method, and BNP if the method has it."""
    optimizer: Optimizer
    if settings.get("optimizer", "SGD") == "Adam":
        optimizer = Adam(model.parameters(), lr=settings["lr"])
    else:
        momentum, weight_decay = settings.get("momentum", 0.0), settings.get("weight_decay", 0.0)
        optimizer = SGD(model.parameters(), lr=settings["lr"], momentum=momentum, weight_decay=weight_decay)
    return optimizer, BNP(model, optimizer, settings.get("rho", RHO)) if "BNP" in settings["method"] else None


def _shape(images: Tensor) -> tuple[int, int, int]:
    _, channels, height, width = images.shape
    return channels, height, width


def _on(device: torch.device, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x.to(device), y.to(device)
