"""What training on half of the batches tells of the others."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from statistics import fmean

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from wellcond.diagnosis.after_runs import HeldOut
from wellcond.problem.batches import Batch, examples_in
from wellcond.problem.problem import Problem
from wellcond.training.copy_trainer import CopyTrainer


def half_held_out(trainer: CopyTrainer, batches: Sequence[Batch], steps: int) -> HeldOut | None:
    """Train on half of the batches and test on the others; None if there are fewer than two of each."""
    half, problem = len(batches) // 2, trainer.problem
    if half < 2:
        return None
    one_half = CopyTrainer(Problem(problem.model, problem.loss, list(batches[:half])), trainer.optimizer)
    run = one_half.start()

    def loss_of(some: Sequence[Batch]) -> float:
        problem = Problem(run.model, trainer.problem.loss, list(some))
        with problem.measuring(), torch.no_grad():
            loss = float(problem.mean_loss())
        trainer.cost += problem.cost
        return loss

    before = loss_of(batches[half:])
    run.run(steps)
    unseen, seen = loss_of(batches[half:]), fmean(run.evaluate())
    trainer.cost += one_half.cost
    pairs = None
    with contextlib.suppress(Exception):  # the user's loss may refuse other pairs
        pairs = loss_of([*map(_other_pairs, batches[:half])]), loss_of([*map(_other_pairs, batches[half:])])
    return HeldOut(seen, unseen, before, pairs)


def _other_pairs(batch: Batch) -> Batch:
    """A batch whose last tensor belongs to other examples: what was a pair is none."""
    leaves, form = tree_flatten(batch)
    count = examples_in(batch)
    place = max(i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.dim() and len(leaf) == count)
    leaves[place] = leaves[place].roll(1, 0)
    pairs: Batch = tree_unflatten(leaves, form)
    return pairs
