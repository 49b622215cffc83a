"""Whether a BatchNorm that is called at several places has running statistics that fit all of them."""

from __future__ import annotations

import contextlib
from collections import Counter

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from wellcond.diagnosis.attempts import Allowance
from wellcond.diagnosis.trial_result import SharedNorm
from wellcond.network.isolation.copies import copied
from wellcond.network.taps import bracketed
from wellcond.problem.problem import Problem
from wellcond.results import Cost
from wellcond.training.copies import CopyRun, CopyTrainer

NORMS_AT_PLACES = "norms at several places"


def shared_norm(trainer: CopyTrainer, run: CopyRun, allowed: Allowance) -> SharedNorm | None:
    """Average the running statistics of a run's model anew, and compare its loss with them and with each batch's own.

    Args:
        trainer: Counts what this takes.
        run: A run at its end; it is not changed.
        allowed: What may be spent after the first pass.

    Returns:
        None if no BatchNorm is called more than once in a pass, or further passes do not fit.
    """
    model = copied(run.model)
    norms = {module: name for name, module in model.named_modules() if _has_statistics(module)}
    if not norms or run.diverged_at is not None:
        return None
    problem = Problem(model, run.problem.loss, run.problem.source, dropout=run.problem.dropout)
    calls: Counter[str] = Counter()

    def on_entry(module: nn.Module, *_: object) -> None:
        calls[norms[module]] += 1

    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the mean over all batches
    passes = 0
    fits = True
    with (
        CopyRun(trainer, problem, run.optimizer, 0).training(),
        torch.no_grad(),
        bracketed(norms, on_entry, lambda *_: None),
        contextlib.closing(problem.data()) as data,
    ):
        for index, batch in data:
            problem.training_loss(index, batch)
            passes += 1
            if passes == 1:
                # the other batches, and all of them in both modes
                fits = max(calls.values(), default=0) > 1 and allowed.has(trainer.batch_count, NORMS_AT_PLACES)
            if not fits:
                break
    trainer.cost += Cost(forwards=passes)
    name, most = max(calls.items(), key=lambda each: each[1], default=("", 0))
    if not fits or most < 2 * passes:
        return None
    losses = {}
    for kind in ("batch", "running"):
        measured = Problem(model, problem.loss, problem.source, kind, dropout=trainer.problem.dropout)
        with measured.measuring(), torch.no_grad():
            losses[kind] = float(measured.mean_loss())
        trainer.cost += measured.cost
    return SharedNorm(name, most // passes, losses["batch"], losses["running"])


def _has_statistics(module: nn.Module) -> bool:
    return isinstance(module, _BatchNorm) and module.training and module.running_mean is not None
