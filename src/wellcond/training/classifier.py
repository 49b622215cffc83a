"""Train an image classifier: the one loop, with cross-entropy, a schedule, test accuracy and probes on the way."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from wellcond.data.batches import Batches
from wellcond.results import Progress, Row
from wellcond.results.quantities import TEST_ACCURACY, TEST_LOSS
from wellcond.training.checkpoint import Checkpoint
from wellcond.training.loop import train
from wellcond.training.run import Run
from wellcond.training.schedules import Schedule

Probe = Callable[[int], Iterable[Row]]
"""Called with the number of steps taken; returns what it measured."""


def train_classifier(
    model: nn.Module,
    optimizer: Optimizer,
    batches: Batches,
    steps: int,
    *,
    at: Collection[int],
    test: tuple[Tensor, Tensor] | None = None,
    probes: Sequence[Probe] = (),
    schedule: Schedule | None = None,
    half: bool = False,
    compiled: bool = False,
    checkpoint: Checkpoint | None = None,
    progress: Progress | None = None,
) -> Run:
    """Train with cross-entropy, and look at the network at chosen steps.

    On a GPU the step is captured as a CUDA graph where it allows that.

    Args:
        model: The network, on its device, with its memory format; in training mode during steps.
        optimizer: Of its parameters.
        batches: What it is trained on.
        steps: How many steps to take.
        at: The numbers of steps taken at which to evaluate and probe; 0 is before the first.
        test: Test inputs and labels; test loss and accuracy (in evaluation mode) are measured at `at`.
        probes: Further measurements at `at`, with the network in training mode.
        schedule: The factor of the learning rates at each step.
        half: Whether to compute in bfloat16 where autocast does.
        compiled: Whether to run the network through `torch.compile`.
        checkpoint: Where to keep the state, to continue a run that was killed.
        progress: Called as (what is being done, share of all work done).

    Returns:
        The loss of every step; `evaluations` holds `TEST_LOSS`, `TEST_ACCURACY` and the rows of the probes.
    """
    looks = set(at)

    def loss_at(step: int, batch: tuple[Tensor, Tensor]) -> Tensor:
        if schedule is not None:
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * schedule(step)
        return functional.cross_entropy(model(batch[0]), batch[1])

    def evaluate(step: int) -> Iterable[Row]:
        if step in looks:
            yield from tested(model, test, step) if test is not None else ()
            for probe in probes:
                yield from probe(step)

    rates = [group["lr"] for group in optimizer.param_groups]
    stream = map(batches, range(steps))
    return train(optimizer, loss_at, stream, steps, evaluate=evaluate, progress=progress)


@torch.no_grad()
def tested(model: nn.Module, test: tuple[Tensor, Tensor], step: int, chunk: int = 1000) -> list[Row]:
    """Loss and accuracy on test images, in evaluation mode."""
    was_training = model.training
    model.eval()
    loss = right = 0.0
    for x, y in zip(torch.split(test[0], chunk), torch.split(test[1], chunk), strict=True):
        outputs = model(x)
        loss += float(functional.cross_entropy(outputs, y, reduction="sum"))
        right += float((outputs.argmax(1) == y).sum())
    model.train(was_training)
    count = len(test[1])
    return [Row(step, "", TEST_LOSS, loss / count, ""), Row(step, "", TEST_ACCURACY, right / count, "")]
