"""Figure 4 of wei2019: learning curves of VGG-16 and PreAct-ResNet-18 from several γ."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import SGD

from wellcond.results import Row
from wellcond.results.quantities import TEST_ACCURACY, TRAINING_LOSS
from wellcond_papers.data.batches import Batches
from wellcond_papers.data.load import load
from wellcond_papers.experiments.claims import Outcome, claim, judged
from wellcond_papers.experiments.experiment import Experiment, Job
from wellcond_papers.experiments.pictures import draw_over_training, panels
from wellcond_papers.experiments.table import Table
from wellcond_papers.models import preact_resnet18, vgg
from wellcond_papers.training.checkpoint import Checkpoint, HasState
from wellcond_papers.training.classifier import train_classifier
from wellcond_papers.training.schedules import warm_up

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NETWORKS = ("VGG-16", "PreAct-ResNet-18")
GAMMAS = (0.1, 0.5, 1.0)
USUAL = 1.0
WARMED = f"γ {USUAL:g}, warm-up"
ARMS = {f"{name}, γ {gamma:g}": {"network": name, "gamma": gamma} for name in NETWORKS for gamma in GAMMAS}
PUBLISHED = list(ARMS)
ARMS |= {f"{name}, {WARMED}": {"network": name, "gamma": USUAL, "warm_up": 1} for name in NETWORKS}
"""Beyond the source: γ = 1 with a rate that rises over the first epoch, since at once 0.1 is too high for it."""
SETTINGS = {"data": "cifar10", "batch": 128, "lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4, "count": None}


def network(name: str, gamma: float, width: int, seed: int) -> nn.Module:
    """The network with every γ at the same value, and every β at 0."""
    if name == "VGG-16":
        model = vgg(16, affine=True, bias=True, width=width, seed=seed)
    else:
        model = preact_resnet18(width=width, seed=seed)
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            nn.init.constant_(module.weight, gamma)
    return model


def measure(job: Job) -> Iterator[Row]:
    """Loss and test accuracy at every part of an epoch."""
    model = network(job["network"], job["gamma"], job["width"], job["seed"])
    model.to(job.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    options = {"augment": ("crop", "flip"), "count": job["count"], "channels_last": True, "device": job.device}
    images = load(job["data"], job.data, size=32, channels=3)
    batches = Batches(images, job["batch"], seed=job["seed"], **options)
    x, y = load(job["data"], job.data, train=False, size=32, channels=3).tensors(count=job["test_images"])
    optimizer = SGD(
        model.parameters(), lr=job["lr"], momentum=job["momentum"], weight_decay=job["weight_decay"], nesterov=False
    )
    steps = round(job["epochs"] * batches.per_epoch)
    looks = [round(steps * k / job["looks"]) for k in range(job["looks"] + 1)]
    parts: dict[str, HasState] = {"model": model, "optimizer": optimizer}
    run = train_classifier(
        model,
        optimizer,
        batches,
        steps,
        at=looks,
        test=(x.to(job.device), y.to(job.device)),
        schedule=warm_up(batches.per_epoch * job.settings.get("warm_up", 0)),
        half=job["half"],
        checkpoint=Checkpoint(job.folder / "state.pt", parts) if job.folder else None,
        progress=job.progress,
    )
    yield from run.summary()


def curve_mean(table: Table, arm: str, quantity: str) -> float:
    """A curve's height, the mean over training: the lower a loss, the faster it fell."""
    return fmean(table.arm(arm).mean_series(quantity).values())


def lost(table: Table, arm: str) -> str:
    """How many runs diverged, if any did."""
    diverged = sum(record.has_diverged for record in table.arm(arm))
    return f", {diverged} of {len(table.arm(arm))} diverged" if diverged else ""


def _compared(table: Table, quantity: str, *, higher_is_better: bool) -> Outcome:
    cases, words = [], []
    for name in NETWORKS:
        arms = {gamma: f"{name}, γ {gamma:g}" for gamma in GAMMAS}
        heights = {gamma: curve_mean(table, arm, quantity) for gamma, arm in arms.items() if arm in table.arms}
        usual = heights.get(USUAL)
        if usual is not None and len(heights) > 1:
            smaller = [height for gamma, height in heights.items() if gamma < USUAL]
            cases += [height > usual if higher_is_better else height < usual for height in smaller]
            texts = {gamma: f"{100 * h:.1f} %" if higher_is_better else f"{h:.3g}" for gamma, h in heights.items()}
            words.append(f"{name}: " + ", ".join(f"{texts[g]} (γ {g:g}{lost(table, arms[g])})" for g in heights))
    return judged(cases, "mean over training, " + "; ".join(words) if words else "")


@claim("the training loss falls faster from small γ", paper="small γ initialization increases the speed of convergence")
def _loss(table: Table) -> Outcome:
    return _compared(table, TRAINING_LOSS, higher_is_better=False)


@claim("the test accuracy rises faster from small γ", paper="small γ initialization increases the speed of convergence")
def _accuracy(table: Table) -> Outcome:
    return _compared(table, TEST_ACCURACY, higher_is_better=True)


def draw(table: Table) -> Figure:
    """Training loss and test accuracy of each network, one line per γ."""
    shown = {"training loss": TRAINING_LOSS, "test accuracy": TEST_ACCURACY}
    present = [name for name in NETWORKS if any(arm.startswith(name) for arm in table.arms)]
    figure, axes = panels([f"{name}: {title}" for name in present for title in shown], columns=2)
    for name in present:
        own = Table([record for record in table if record.settings["network"] == name])
        for title, quantity in shown.items():
            draw_over_training(axes[f"{name}: {title}"], own, quantity, log=quantity == TRAINING_LOSS)
    for panel in axes.values():
        panel.legend(frameon=False, fontsize=8)
    return figure


EXPERIMENT = Experiment(
    name="wei2019-fig4",
    title="Small γ at the start of VGG-16 and PreAct-ResNet-18",
    says="Learning curves on CIFAR-10 with the same settings but for the first γ: small γ helps faster convergence.",
    arms=ARMS,
    scales={
        "smoke": SETTINGS
        | {"data": "digits", "width": 8, "count": 256, "test_images": 100, "epochs": 1, "looks": 2, "half": False},
        "laptop": SETTINGS
        | {"width": 16, "count": 5120, "test_images": 1000, "epochs": 4, "looks": 8, "half": False, "seeds": 2}
        | {"arms": [f"VGG-16, γ {gamma:g}" for gamma in GAMMAS]},
        "gpu": SETTINGS
        | {"width": 64, "test_images": None, "epochs": 3, "looks": 12, "half": True, "seeds": 2}
        | {"arms": PUBLISHED},
        "paper": SETTINGS | {"width": 64, "test_images": None, "epochs": 30, "looks": 60, "half": False, "seeds": 5},
    },
    measure=measure,
    claims=[_loss, _accuracy],
    draw=draw,
    minutes={"smoke": 0.07, "laptop": 3, "gpu": 0.6, "paper": 50},
    contrast=[(f"{name}, γ 0.1", f"{name}, γ 1") for name in NETWORKS],
    departures=(
        "The source names neither the values of γ, nor the batch size, the number of epochs and the augmentation.",
    ),
)
