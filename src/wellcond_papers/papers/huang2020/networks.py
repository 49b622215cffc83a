"""The convolutional networks of huang2020, how it trains them, and the test errors that come out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD

from wellcond.results import Row
from wellcond.results.quantities import TEST_ACCURACY
from wellcond_papers.data.batches import Batches
from wellcond_papers.data.dataset import Dataset
from wellcond_papers.data.image_folder import ImageFolder
from wellcond_papers.data.load import load
from wellcond_papers.experiments.experiment import Job
from wellcond_papers.experiments.table import Record
from wellcond_papers.models import imagenet_resnet, preresnet, resnet, vgg
from wellcond_papers.papers.percentages import TEST_IMAGES, error_of_test
from wellcond_papers.training import schedules
from wellcond_papers.training.checkpoint import Checkpoint, HasState
from wellcond_papers.training.classifier import Test, train_classifier

Probe = Callable[[int], Iterable[Row]]
BUILDERS: dict[str, Callable[..., nn.Sequential]] = {
    "ResNet": resnet,
    "VGG-style": lambda *sizes, **options: resnet(*sizes, shortcuts=False, **options),
    "PreResNet": preresnet,
    "VGG": lambda *sizes, **options: vgg(*sizes, affine=True, **options),
    "ImageNet ResNet": imagenet_resnet,
}
VALIDATION_IMAGES = 50_000
"""Of ImageNet."""
OPTIONS = ("norm", "last_norm", "final_norm", "dropout", "width", "enlarge", "init")
"""Settings that are handed to the network as they are."""

CIFAR: dict[str, Any] = {
    "data": "cifar10",
    "size": 32,
    "batch": 128,
    "lr": 0.1,
    "momentum": 0.9,
    "weight_decay": 0.0,
    "epochs": 160,
    "drops": [0.5, 0.75],
    "augment": ["crop", "flip"],
    "half": False,
    "tests": 12,
}
"""Training on CIFAR-10, without weight decay; drops are shares of the training."""
IMAGENET: dict[str, Any] = CIFAR | {
    "data": "imagenet",
    "size": 224,
    "batch": 256,
    "weight_decay": 1e-4,
    "epochs": 100,
    "drops": [0.3, 0.6, 0.9],
    "classes": 1000,
}
"""Training on ImageNet."""
WARM_UP = 400
"""Steps at a tenth of the rate; He et al. begin so with 110 layers, until the training error is below 80 %."""
STAND_IN: dict[str, Any] = IMAGENET | {
    "data": "cifar100",
    "size": 32,
    "enlarge": 64,
    "classes": 100,
    "epochs": 10,
    "half": True,
    "tests": 10,
}
"""CIFAR-100 in place of ImageNet, and a tenth of the epochs; the rate drops after the same shares of them."""
AS_PUBLISHED = (
    "Momentum is Nesterov's, and training on CIFAR-10 has 160 epochs with drops of the rate after 80 and 120, as in "
    "the authors' published code (huangleiBuaa/LayerwiseCA on GitHub). The source refers to He et al., who have plain "
    "momentum and 64 000 steps, 164 epochs, with drops after 32 000 and 48 000."
)
"""A departure of all experiments on CIFAR-10."""
ON_IMAGENET = (
    "Momentum is Nesterov's, as in the authors' published code (huangleiBuaa/LayerwiseCA on GitHub).",
    "Images are resized to one scale before they are cropped, and their colors are not augmented; the source refers "
    "to He et al., who do both.",
)
"""Departures of all experiments on ImageNet."""
ITS_DROPS = (
    "The rate drops after 30, 60 and 90 epochs: the source names the last, and refers to He et al., who drop it when "
    "the error plateaus.",
    "One device trains 50 layers too; the source takes four, whose BN sees 64 images each.",
)
"""Departures of the experiments on ImageNet that have 100 epochs."""
SMOKE: dict[str, Any] = CIFAR | {
    "data": "digits",
    "size": 16,
    "images": 128,
    "tested": 32,
    "batch": 32,
    "epochs": 1,
    "augment": [],
    "width": 4,
    "tests": 2,
}
"""A few steps of a narrow network on small digits."""


def build(job: Job) -> nn.Sequential:
    """The network that the settings name, on the job's device."""
    options = {name: job[name] for name in OPTIONS if name in job.settings}
    classes = job.settings.get("classes", 10)
    model = BUILDERS[job["network"]](job["depth"], classes, **options, seed=job["seed"])
    layout = torch.channels_last if job.device.type == "cuda" else torch.contiguous_format
    return model.to(job.device, memory_format=layout)  # type: ignore[call-overload, no-any-return]


def images(job: Job, *, train: bool = True) -> Dataset:
    """The training or the test images."""
    return load(job["data"], root=job.data, train=train, size=job["size"], channels=3)


def first_images(job: Job, count: int | None, *, train: bool = True) -> tuple[Tensor, Tensor]:
    """The first images and their labels, on the device; None for all."""
    x, y = images(job, train=train).tensors(count=count)
    return x.to(job.device), y.to(job.device)


def unseen(job: Job, count: int | None) -> Test:
    """The first test images and their labels; those of ImageNet, which take 30 GB, are read when they are needed."""
    test = images(job, train=False)
    if isinstance(test, ImageFolder):
        return partial(test.stream, job.device, count)
    return first_images(job, count, train=False)


def trained(job: Job, model: nn.Module, probe: Probe | None = None, looks: Iterable[float] = ()) -> list[Row]:
    """Train with Nesterov's momentum and a rate that drops by ten.

    Args:
        job: The cell. Its "warm_up_steps", if it has them, are taken at a tenth of the rate; its "looks" take the place
            of `looks`.
        model: The network; only what requires a gradient is trained.
        probe: What to measure on the way.
        looks: When to measure it, as shares of the training.

    Returns:
        Training loss, test loss and test accuracy at equal distances, what was measured, and how it ended. There is no
        test with 0 "tested" images.
    """
    batches = Batches(
        images(job),
        job["batch"],
        seed=job["seed"],
        device=job.device,
        augment=job["augment"],
        count=job.settings.get("images"),
        channels_last=job.device.type == "cuda",
    )
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    decay = job["weight_decay"]
    optimizer = SGD(learned, lr=job["lr"], momentum=job["momentum"], nesterov=True, weight_decay=decay)
    tested = job.settings.get("tested")
    steps = max(1, round(job["epochs"] * batches.per_epoch))
    seen = {round(share * steps) for share in job.settings.get("looks", looks)}
    drop = schedules.steps([round(share * steps) for share in job["drops"]])
    warm_up = job.settings.get("warm_up_steps", 0)

    def look(step: int) -> Iterable[Row]:
        return probe(step) if probe is not None and step in seen else ()

    torch.manual_seed(job["seed"])  # dropout draws from torch's own generator
    parts: dict[str, HasState] = {"model": model, "optimizer": optimizer}
    return train_classifier(
        model,
        optimizer,
        batches,
        steps,
        at=sorted(seen | {round(k * steps / job["tests"]) for k in range(job["tests"] + 1)}),
        test=None if tested == 0 else unseen(job, tested),
        probes=[look],
        schedule=lambda step: drop(step) * (0.1 if step < warm_up else 1.0),
        half=job["half"],
        checkpoint=None if job.folder is None else Checkpoint(job.folder / "state.pt", parts),
        progress=job.progress,
    ).summary()


def noise_of_a_test(records: Iterable[Record]) -> float:
    """The standard error of a test error in percent, √(p (1 − p) / n) at the mean error p of these runs.

    Differences below it mean nothing, whatever the seeds say.
    """
    runs = list(records)
    images = VALIDATION_IMAGES if runs[0].settings.get("data") == "imagenet" else TEST_IMAGES
    return 100 * error_of_test([percent_wrong(record) / 100 for record in runs], images)


def percent_wrong(record: Record) -> float:
    """The test error in percent at the end of training; that of guessing if it diverged."""
    if record.has_diverged:
        return 100 - 100 / float(record.settings.get("classes", 10))
    return 100 - 100 * record.last(TEST_ACCURACY)
