"""The runs of zhang2018: a VGG without biases and with fixed norms, trained by one of the compared methods."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from wellcond.optim.scale_amended import ScaleAmendedSGD
from wellcond.optim.scaled_sgd import LARS, LSALR
from wellcond.results import Row
from wellcond.results.quantities import TEST_ACCURACY
from wellcond_papers.data.batches import Batches
from wellcond_papers.data.load import load
from wellcond_papers.experiments.experiment import Job
from wellcond_papers.models import vgg
from wellcond_papers.training.checkpoint import Checkpoint, HasState
from wellcond_papers.training.classifier import train_classifier
from wellcond_papers.training.schedules import Schedule, cosine, plateau

AMENDED = "scale-amended"
METHODS: dict[str, Callable[..., Optimizer]] = {
    # fused: one pass over the weights instead of five, on a CPU and on a GPU
    "SGD": lambda model, inputs, **options: SGD(model.parameters(), fused=True, **options),
    "LARS": lambda model, inputs, **options: LARS(model.parameters(), **options),
    "LSALR": lambda model, inputs, **options: LSALR(model.parameters(), **options),
    AMENDED: lambda model, inputs, **options: ScaleAmendedSGD(model, inputs=inputs, **options),
}
DATA = {"CIFAR-10": "cifar10", "CIFAR-100": "cifar100"}
OWN_RATE = {"CIFAR-10": 0.005, "CIFAR-100": 0.1}
"""Rates of scale-amended SGD in figure 1; on CIFAR-10 the last layer's factor is about 10/512, and "small learning
rate η = 0.005 works better"."""
SETTINGS: dict[str, Any] = {"batch": 128, "momentum": 0.9, "augment": ["flip", "rotation"], "count": None}
SILENT = ("batch", "half")
DEPARTURES = (
    "The source names neither the batch size (128 here) nor the angle of the rotations (up to 15 degrees).",
    "All methods use Nesterov momentum, which the source names for SGD in its Table 1 alone.",
    "The rate is halved by the accuracy on the test images, since the source names no images for validation.",
)
PATIENCE = 11
"""Epochs without a better accuracy before the rate is halved: torch's ReduceLROnPlateau with a patience of 10 tolerates
ten and acts after the next. Its threshold, 1e-4 of the best accuracy, is less than one of 10,000 images."""


def measure(job: Job) -> Iterator[Row]:
    """Training loss, test loss and test accuracy after every epoch."""
    images = load(job["data"], job.data, size=32, channels=3)
    x, y = load(job["data"], job.data, train=False, size=32, channels=3).tensors(count=job["test_images"])
    test = x.to(job.device), y.to(job.device)
    model = vgg(job["depth"], len(images.classes), width=job["width"], seed=job["seed"])
    model.to(job.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    options = {"augment": job["augment"], "count": job["count"], "channels_last": True, "device": job.device}
    batches = Batches(images, job["batch"], seed=job["seed"], **options)
    optimizer = optimizer_of(job, model, test[0][:1])
    steps = job["epochs"] * batches.per_epoch
    parts: dict[str, HasState] = {"model": model, "optimizer": optimizer}
    run = train_classifier(
        model,
        optimizer,
        batches,
        steps,
        at=range(0, steps + 1, batches.per_epoch),
        test=test,
        schedule=schedule_of(job["schedule"], steps),
        half=job["half"],
        # 300 epochs of a VGG: compiled, a step in bfloat16 takes 1.1 ms where four cells share an H200
        compiled=job.device.type == "cuda",
        checkpoint=Checkpoint(job.folder / "state.pt", parts) if job.folder else None,
        progress=job.progress,
    )
    yield from run.summary()


def optimizer_of(job: Job, model: nn.Module, inputs: Tensor) -> Optimizer:
    """The method of a cell; `inputs` are images to read the network with."""
    trust = {"trust_coefficient": job["trust"]} if job["method"] == "LARS" else {}
    options = {"lr": job["lr"], "momentum": job["momentum"], "nesterov": True, "weight_decay": job["weight_decay"]}
    return METHODS[job["method"]](model, inputs, **options, **trust)


def schedule_of(name: str, steps: int) -> Schedule:
    """As in the source, "plateau"; or "cosine", which comes down in few epochs, when there is no plateau yet."""
    if name == "plateau":
        return plateau(TEST_ACCURACY, patience=PATIENCE, factor=0.5)
    return cosine(steps)
