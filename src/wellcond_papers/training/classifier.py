"""Train an image classifier with cross-entropy: a schedule, test accuracy and probes during training, checkpoints."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from wellcond.errors import InvalidProblem
from wellcond.network.isolation.isolation import rng_kept
from wellcond.optim.bnp import BNP
from wellcond.results import Progress, Row
from wellcond.results.quantities import TEST_ACCURACY, TEST_LOSS, TRAINING_LOSS
from wellcond.results.run import Run
from wellcond_papers.data.batches import Batches
from wellcond_papers.training.checkpoint import Checkpoint
from wellcond_papers.training.distributed import join_processes, process_count, share_of, shared
from wellcond_papers.training.loop import Loop, Probe
from wellcond_papers.training.schedules import Schedule
from wellcond_papers.training.step import CapturedStep, EagerStep, can_capture

Batch = tuple[Tensor, Tensor]
Test = Batch | Callable[[], Iterable[Batch]]
"""Inputs and labels; or a function that reads them in batches, if all of them together are too large for the memory."""
CHUNK = 1000
"""Test images per forward pass."""


def train_classifier(
    model: nn.Module,
    optimizer: Optimizer,
    batches: Callable[[int], Batch],
    steps: int,
    *,
    at: Collection[int],
    test: Test | None = None,
    probes: Sequence[Probe] = (),
    schedule: Schedule | None = None,
    half: bool = False,
    compiled: bool = False,
    bnp: BNP | None = None,
    checkpoint: Checkpoint | None = None,
    progress: Progress | None = None,
) -> Run:
    """Train with cross-entropy, and evaluate and probe the network at chosen steps.

    On a GPU the forward and backward pass are captured as a CUDA graph where they allow that, and nothing waits for
    the device between looks: a loss that is not finite is found up to 50 steps late, at the right step. What a network
    decides in Python, it then decides once; one with hooks is not captured. Started by `torchrun`, every process takes
    its share of each batch, and the first one writes the checkpoint.

    Args:
        model: The network, on its device; it is put into training mode. If its weights are laid out in channels-last
            order, so are the batches.
        optimizer: An optimizer of its parameters.
        batches: A function such as `Batches`: the inputs and labels of a step, counted from 0.
        steps: The number of steps to take.
        at: The numbers of steps taken at which to evaluate and probe; 0 is before the first.
        test: Test inputs and labels, or a function that reads them in batches; test loss and accuracy (in evaluation
            mode) are measured at `at`.
        probes: Further measurements at `at`, with the network in training mode. Their changes of gradients, modes,
            buffers and random numbers are undone.
        schedule: The factor of the learning rates at each step.
        half: Whether to compute in bfloat16 where autocast does.
        compiled: Whether to run the network through `torch.compile`.
        bnp: The BNP over this optimizer, if there is one.
        checkpoint: The file for the state, from which a killed run continues. The state of `bnp` is saved too.
        progress: Called as (what is being done, share of all work done).

    Returns:
        The loss of every step. `evaluations` holds, at each step of `at`, `TRAINING_LOSS` (the mean since the step of
        `at` before it), `TEST_LOSS`, `TEST_ACCURACY` and the rows of the probes.

    Raises:
        Unsupported: The checkpoint belongs to another run.
        InvalidProblem: The optimizer trains no parameter of the model, or the test set is empty.
    """
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if not any(p.requires_grad and id(p) in held for p in model.parameters()):
        raise InvalidProblem(
            "the optimizer trains no parameter of this model. Make it of model.parameters(), after the model was moved "
            "or copied, and leave some of them with requires_grad=True."
        )
    if test is not None and not callable(test) and not len(test[0]) == len(test[1]) > 0:
        raise InvalidProblem(
            f"test has {len(test[0])} inputs and {len(test[1])} labels; it needs the same number of each, at least one."
        )
    join_processes()
    model.train()
    network = model if process_count() == 1 else shared(model)
    if compiled:
        network = torch.compile(network)  # type: ignore[assignment]
    looks, count = sorted(at), process_count()
    device, layout = next(model.parameters()).device, layout_of(model)

    def batch_at(step: int) -> tuple[Any, ...]:
        if count > 1:
            x, y, weight = share_of(batches, step)
            return laid_out(x, layout), y, weight
        x, y = batches(step)
        return laid_out(x, layout), y

    def loss_of(batch: tuple[Any, ...]) -> Tensor:
        x, y, *weights = batch
        # the cache of cast weights must not outlive the capture of a graph
        with torch.autocast(device.type, torch.bfloat16, enabled=half, cache_enabled=False):
            loss = functional.cross_entropy(network(x), y)
        return loss * weights[0] if weights else loss

    def evaluate(taken: int) -> Iterable[Row]:
        before = max((look for look in looks if look < taken), default=0)
        if since := loop.history.losses[before:taken]:
            yield Row(taken, "", TRAINING_LOSS, fmean(since), "")
        if test is not None:
            with undisturbed(model):
                yield from tested(model, test, taken)

    def guarded(probe: Probe, taken: int) -> list[Row]:
        with undisturbed(model):
            return list(probe(taken))

    if bnp is not None and checkpoint is not None:
        checkpoint = replace(checkpoint, parts={**checkpoint.parts, "bnp": bnp})
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        loop = Loop(
            optimizer,
            _step(model, optimizer, loss_of, bnp, compiled),
            steps,
            at=looks,
            evaluate=evaluate,
            probes=[partial(guarded, probe) for probe in probes],
            schedule=schedule,
            checkpoint=checkpoint,
            settings={"batches": repr(batches)} if isinstance(batches, Batches) else {},
        )
        return loop.run(batch_at, progress)


def _step(
    model: nn.Module,
    optimizer: Optimizer,
    loss_of: Callable[[tuple[Any, ...]], Tensor],
    bnp: BNP | None,
    compiled: bool,
) -> CapturedStep | EagerStep[tuple[Any, ...]]:
    """A CUDA graph on one GPU, if the optimizer allows it; an eager step elsewhere."""
    is_cuda, is_shared = next(model.parameters()).is_cuda, process_count() > 1
    # the operators of BNP in a compiled network keep out of graphs
    if is_cuda and not is_shared and can_capture(optimizer, bnp) and not (compiled and bnp is not None):
        return CapturedStep(model, optimizer, loss_of, bnp)
    return EagerStep(optimizer, lambda step, batch: loss_of(batch), is_checked=not is_cuda, is_shared=is_shared)


def layout_of(model: nn.Module) -> torch.memory_format:
    """The memory format of the model's convolutions."""
    kernels = [p for p in model.parameters() if p.dim() == 4 and not p.is_contiguous()]
    is_last = any(p.is_contiguous(memory_format=torch.channels_last) for p in kernels)
    return torch.channels_last if is_last else torch.preserve_format


def laid_out(x: Tensor, layout: torch.memory_format) -> Tensor:
    """Images in a memory format; other inputs as they are."""
    return x.contiguous(memory_format=layout) if layout is torch.channels_last and x.dim() == 4 else x


@contextlib.contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Gradients, modes, buffers and random number generators are as before afterwards."""
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    modes = [(module, module.training) for module in model.modules()]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    for parameter, _ in gradients:
        parameter.grad = None
    try:
        with rng_kept(next(model.parameters()).device):
            yield
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient
        for module, mode in modes:
            module.training = mode
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)


@torch.no_grad()
def tested(model: nn.Module, test: Test, step: int) -> list[Row]:
    """Loss and accuracy on test images, in evaluation mode."""
    was_training, layout = model.training, layout_of(model)
    model.eval()
    sums, count = [], 0
    for x, y in test() if callable(test) else zip(*(torch.split(each, CHUNK) for each in test), strict=True):
        outputs = model(laid_out(x, layout))
        right = (outputs.argmax(1) == y).sum()
        sums.append(torch.stack([functional.cross_entropy(outputs, y, reduction="sum").double(), right.double()]))
        count += len(y)
    model.train(was_training)
    loss, accuracy = (torch.stack(sums).sum(0) / count).tolist()
    return [Row(step, "", TEST_LOSS, loss, ""), Row(step, "", TEST_ACCURACY, accuracy, "")]
