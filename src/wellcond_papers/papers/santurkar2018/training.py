"""Train one network of santurkar2018 and look at it on the way."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable

import torch
from torch import Tensor
from torch.nn import functional
from torch.optim import SGD

from wellcond.problem.problem import Problem
from wellcond.results import Row
from wellcond.results.quantities import TRAINING_LOSS
from wellcond_papers.data.batches import Batches
from wellcond_papers.data.load import load
from wellcond_papers.experiments.experiment import Job
from wellcond_papers.papers.santurkar2018.networks import deep_linear_network, image_network
from wellcond_papers.training.classifier import train_classifier
from wellcond_papers.training.loop import Loop
from wellcond_papers.training.step import EagerStep

Probe = Callable[[Problem, SGD, int], Iterable[Row]]
"""Called with the network on the next batch, its optimizer and the steps taken; only finite rows are kept."""


def trained(job: Job, probe: Probe | None = None, at: Collection[int] | None = None) -> list[Row]:
    """Train the network that the settings name.

    Args:
        job: The cell.
        probe: What to measure; None measures training alone.
        at: After how many steps; by default at `job["looks"]` equal distances, and before the first.

    Returns:
        The rows of the probe, the training loss at the same steps, test loss and accuracy of the VGG, and how it ended.
    """
    torch.manual_seed(job["seed"])  # noisy norms draw from torch's own generator
    every = job["steps"] // job["looks"]
    at = range(0, job["steps"] + 1, every) if at is None else at
    return {"DLN": _train_linear, "VGG": _train_images}[job["network"]](job, probe, at)


def _train_linear(job: Job, probe: Probe | None, at: Collection[int]) -> list[Row]:
    """Full-batch descent on ‖W_k … W_1 x − A x‖²."""
    model = deep_linear_network(job)
    x, a = (t.to(job.device) for t in gaussian_problem(job["examples"], job["width"], job["seed"]))
    seen = same_moments(x) if job["norm"] in ("none", "batch") else x
    problem = Problem(model, squared_error, (x, x @ a.T))
    # the rate is that of the summed loss, and the loss here the mean
    optimizer = SGD(model.parameters(), lr=job["lr"] * job["examples"])

    def loss_at(_step: int, inputs: Tensor) -> Tensor:
        return squared_error(model(inputs), inputs @ a.T)

    def evaluate(step: int) -> Iterable[Row]:
        with torch.no_grad():
            yield Row(step, "", TRAINING_LOSS, float(loss_at(step, seen)), "")
        yield from _finite(probe, problem, optimizer, step)

    loop = Loop(optimizer, EagerStep(optimizer, loss_at), job["steps"], at=at, evaluate=evaluate)
    return loop.run([seen], job.progress).summary()


def _train_images(job: Job, probe: Probe | None, at: Collection[int]) -> list[Row]:
    """Mini-batch descent on the cross-entropy of images, which are not augmented unless the settings say so."""
    model = image_network(job)
    images, tests = (load(job["data"], root=job.data, train=train, size=32, channels=3) for train in (True, False))
    options = {"seed": job["seed"], "device": job.device, "augment": job["augment"], "channels_last": True}
    batches = Batches(images, job["batch"], **options)
    optimizer = SGD(model.parameters(), lr=job["lr"])

    def look(step: int) -> Iterable[Row]:
        # the seed gives noisy norms other noise at every step
        problem = Problem(model, functional.cross_entropy, batches(step), dropout=step)
        return _finite(probe, problem, optimizer, step)

    test = tuple(t.to(job.device) for t in tests.tensors(count=job["tested"]))
    options = {"test": test, "probes": [look], "half": job["half"], "progress": job.progress}
    return train_classifier(model, optimizer, batches, job["steps"], at=at, **options).summary()


def _finite(probe: Probe | None, problem: Problem, optimizer: SGD, step: int) -> Iterable[Row]:
    rows = () if probe is None else probe(problem, optimizer, step)
    return [row for row in rows if math.isfinite(row.value)]


def gaussian_problem(examples: int, width: int, seed: int) -> tuple[Tensor, Tensor]:
    """Inputs x (examples, width) and the matrix A (width, width), all entries N(0, 1)."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(examples, width, generator=draw, dtype=torch.float64)
    return x, torch.randn(width, width, generator=draw, dtype=torch.float64)


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """‖W_k … W_1 x − A x‖², the mean over the examples."""
    return (outputs - targets).square().sum(1).mean()


def same_moments(x: Tensor) -> Tensor:
    """One example more than there are features, with the mean and the second moments of x.

    Linear layers and BatchNorm are affine in x, with coefficients that depend on these moments, and so does the mean
    squared error of their outputs: descending on these examples is descending on x, at a hundredth of the arithmetic.
    """
    n = x.shape[1] + 1
    # rootᵀ root / n are the moments of (1, x); a reflection makes the ones of its first column
    root = torch.linalg.qr(torch.cat([torch.ones_like(x[:, :1]), x], 1)).R * math.sqrt(n / len(x))
    u = root[:, 0] - 1
    moments: Tensor = (root - 2 * torch.outer(u, u @ root) / (u @ u))[:, 1:]
    return moments
