"""Whether a BatchNorm that is called at several places has running statistics that fit all of them."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from wellcond.diagnosis.after_runs import SharedNorm
from wellcond.diagnosis.attempts import Allowance
from wellcond.diagnosis.threshold import Condition
from wellcond.network.isolation.copies import copied
from wellcond.network.taps import bracketed
from wellcond.problem.problem import Problem
from wellcond.results import Cost
from wellcond.training.copy_run import CopyRun
from wellcond.training.copy_trainer import CopyTrainer

NORMS_AT_PLACES = "norms at several places"
APART = Condition(
    "largest difference of a place's mean and deviation from those of all places, in standard deviations of all", 0.3,
    origin="0.01 to 0.08 for the sides of siamese and triplet networks; 0.55 to 3.4 where running statistics fit none",
)  # fmt: skip


def shared_norm(trainer: CopyTrainer, run: CopyRun, allowed: Allowance) -> SharedNorm | None:
    """Average the running statistics of a run's model anew, and compare its loss with them and with each batch's own.

    Args:
        trainer: Counts what this takes.
        run: A run at its end; it is not changed.
        allowed: What may be spent after the first pass.

    Returns:
        None if no BatchNorm is called more than once in a pass, on signals whose statistics differ, or further passes
        do not fit.
    """
    model = copied(run.model)
    norms = {module: name for name, module in model.named_modules() if _has_statistics(module)}
    if not norms or run.diverged_at is not None:
        return None
    problem = Problem(model, run.problem.loss, run.problem.source, dropout=run.problem.dropout)
    calls: defaultdict[_BatchNorm, list[Tensor]] = defaultdict(list)  # mean and variance of each, of the present batch
    sums: dict[_BatchNorm, Tensor] = {}

    def on_entry(module: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        signal = next(iter([*args, *kwargs.values()])).detach().transpose(0, 1).flatten(1).float()
        calls[module].append(torch.stack([signal.mean(1), signal.var(1, correction=0)]))

    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the mean over all batches
    passes, whole = 0, 0

    def on_whole(*_: Any) -> None:
        nonlocal whole
        whole += 1

    handle = model.register_forward_pre_hook(on_whole)
    with (
        CopyRun(trainer, problem, run.optimizer, 0).training(),
        torch.no_grad(),
        bracketed(norms, on_entry, lambda *_: None),
        contextlib.closing(problem.data()) as data,
    ):
        for index, batch in data:
            calls.clear()
            problem.training_loss(index, batch)
            passes += 1
            for norm, places in calls.items():
                statistics = torch.stack(places)
                if len(places) > 1 and (passes == 1 or (norm in sums and len(sums[norm]) == len(places))):
                    sums[norm] = statistics + sums.get(norm, 0)
                else:
                    sums.pop(norm, None)
            # the other batches, and all of them in both modes
            if not sums or (passes == 1 and not allowed.has(trainer.batch_count, NORMS_AT_PLACES)):
                sums.clear()
                break
        averages = {name: buffer.clone() for name, buffer in model.named_buffers()}
    handle.remove()
    trainer.cost += Cost(forwards=passes)
    differences = {norm: difference_of_places(total / passes, norm.eps) for norm, total in sums.items()}
    if not differences or max(differences.values()) < APART.at:
        return None
    for name, buffer in model.named_buffers():
        buffer.copy_(averages[name])  # a measurement has restored those that were there before it
    losses = {}
    for kind in ("batch", "running"):
        measured = Problem(model, problem.loss, problem.source, kind, dropout=trainer.problem.dropout)
        with measured.measuring(), torch.no_grad():
            losses[kind] = float(measured.mean_loss())
        trainer.cost += measured.cost
    most = max(differences, key=differences.__getitem__)
    count = len(sums[most])
    return SharedNorm(norms[most], count, losses["batch"], losses["running"], is_by_pass=whole == count * passes)


def difference_of_places(statistics: Tensor, eps: float = 0.0) -> float:
    """How far the statistics of places are from those of all places together, which running statistics become.

    Args:
        statistics: Means and variances (places, 2, channels).
        eps: What a norm adds to variances.

    Returns:
        The largest, over places, of the RMS over channels of √((m − m̄)² + (s − s̄)²)/s̄, with the mean m and the
        standard deviation s of a place, and m̄ and s̄ of running statistics, which average means and variances.
    """
    means, deviations = statistics[:, 0], (statistics[:, 1] + eps).sqrt()
    usual = (statistics[:, 1].mean(0) + eps).sqrt()
    squares = ((means - means.mean(0)).square() + (deviations - usual).square()) / usual.square()
    return float(squares.mean(1).sqrt().max())


def _has_statistics(module: nn.Module) -> TypeGuard[_BatchNorm]:
    return isinstance(module, _BatchNorm) and module.training and module.running_mean is not None
