"""`lr_table`: how the learning rate depends on the batch size and on weight decay, by a race for each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.data import DataLoader

from wellcond.errors import InvalidProblem, Unsupported
from wellcond.learning_rate.race.gradient_noise import noise_scale
from wellcond.learning_rate.race.suggest_lr import suggest_lr
from wellcond.learning_rate.race.suggested_rate import SuggestedRate
from wellcond.network.isolation.arithmetic import own_arithmetic
from wellcond.problem.arguments import check_is_problem
from wellcond.problem.batches import examples_in
from wellcond.problem.problem import Problem
from wellcond.results import Cost, Progress, Result, Row, number, text_table
from wellcond.results.quantities import COST, GRADIENT_NOISE_SCALE, SUGGESTED_LR, SUGGESTED_LR_HIGH, SUGGESTED_LR_LOW
from wellcond.training.copy_trainer import CopyTrainer
from wellcond.training.optimizers import deep_copy
from wellcond.training.passed_optimizer import PassedOptimizer, optimizer_of

FACTORS = (0.25, 1.0, 4.0)
"""Batch sizes over the present one, where none are given."""
NOT_RESIZED = """\
the batches come from a {kind}, which has no other batch size: pass a torch DataLoader over the examples, or a list of
batches."""
TOO_FEW = "there are {examples} examples, too few for a batch of {size}."
NO_DECAY = "{optimizer} has no weight decay to change."


@dataclass(frozen=True)
class RateTable(Result):
    """Learning rates for several batch sizes and weight decays.

    Attributes:
        batch_size: The present batch size.
        by_batch_size: What `suggest_lr` says, by batch size.
        by_weight_decay: What it says, by weight decay, at the present batch size.
        noise_scale: The batch size at which gradients have as much noise as signal, measured at the suggested rate of
            the present batch size; far below it the rate grows with the batch size, far above it does not.
        cost: What all races took.
    """

    batch_size: int
    by_batch_size: dict[int, SuggestedRate]
    by_weight_decay: dict[float, SuggestedRate]
    noise_scale: float
    cost: Cost

    def scaled(self, size: int) -> float:
        """The rate that theory of SGD gives a batch size from the present one's: η ∝ 1/(1 + noise scale/size)."""
        present = self.by_batch_size[self.batch_size].lr
        if math.isinf(self.noise_scale):
            return present * size / self.batch_size
        return present * (1 + self.noise_scale / self.batch_size) / (1 + self.noise_scale / size)

    def rows(self, step: int | None = None) -> list[Row]:
        rows = [Row(step, "", GRADIENT_NOISE_SCALE, self.noise_scale, "examples")]
        for name, rates in (("batch size", self.by_batch_size), ("weight decay", self.by_weight_decay)):
            for value, each in rates.items():
                numbers = {SUGGESTED_LR: each.lr, SUGGESTED_LR_LOW: each.low, SUGGESTED_LR_HIGH: each.high}
                rows += [Row(step, f"{name} {value:g}", quantity, lr, "lr") for quantity, lr in numbers.items()]
        return [*rows, Row(step, "", COST, self.cost.u, "u")]

    def verdict(self) -> str:
        """Up to which batch size the rate may grow with it."""
        if math.isinf(self.noise_scale):
            return "No signal can be seen in the gradients of single mini-batches: the rate grows with the batch size."
        return (
            f"Up to batches of about {self.noise_scale:.2g} examples the rate may grow with the batch size; beyond, "
            "larger batches allow hardly more."
        )

    def __str__(self) -> str:
        sizes = [
            [str(size), *_cells(each), number(self.by_batch_size[self.batch_size].lr * size / self.batch_size),
             number(self.scaled(size))]
            for size, each in self.by_batch_size.items()
        ]  # fmt: skip
        tables = [text_table(["batch size", "lr", "from", "to", "if linear", "by noise"], sizes)]
        if self.by_weight_decay:
            decays = [[f"{decay:g}", *_cells(each)] for decay, each in self.by_weight_decay.items()]
            tables.append(text_table(["weight decay", "lr", "from", "to"], decays))
        return "\n\n".join([self.verdict(), *tables, str(self.cost)])


def _cells(each: SuggestedRate) -> list[str]:
    return [number(each.lr), number(each.low), number(each.high)]


@own_arithmetic()
def lr_table(
    problem: Problem,
    optimizer: PassedOptimizer | None = None,
    *,
    batch_sizes: Sequence[int] = (),
    weight_decays: Sequence[float] = (),
    steps: int | None = None,
    max_steps: int | None = None,
    progress: Progress | None = None,
) -> RateTable:
    """How the learning rate depends on the batch size and on weight decay: a race of `suggest_lr` for each.

    All races are for a run of the same number of steps. Nothing of the user's is changed.

    Args:
        problem: What is trained; its batches are a DataLoader over a dataset, or a list of batches.
        optimizer: What it is trained with; None: SGD.
        batch_sizes: The sizes, besides the present one; none given: a quarter and four times the present one.
        weight_decays: Weight decays to try at the present batch size.
        steps: As in `suggest_lr`.
        max_steps: What each race may take, as in `suggest_lr`.
        progress: Called as (what is being done, share of all work done).

    Returns:
        The rates, and the gradient noise scale.

    Raises:
        InvalidProblem: There are too few examples for a batch size.
        Unsupported: The batches have no other size, or the optimizer no weight decay.
        Interrupted: On Ctrl-C, with the rate that was being raced as `.result`.
    """
    check_is_problem(problem)
    optimizer = optimizer_of(problem, optimizer)
    trainer = CopyTrainer(problem, optimizer)
    present = examples_in(trainer.batch)
    sizes = sorted({present, *(batch_sizes or (max(1, round(factor * present)) for factor in FACTORS))})
    decays = sorted(set(weight_decays))
    problems = {size: problem if size == present else _resized(problem, size) for size in sizes}
    optimizers = {decay: _with_decay(trainer.optimizer, decay) for decay in decays}
    parts = _parts(progress, len(sizes) + len(decays))

    def raced(of: Problem, by: Optimizer | None) -> SuggestedRate:
        return suggest_lr(of, by, steps=steps, max_steps=max_steps, progress=next(parts))

    by_size = {size: raced(each, optimizer) for size, each in problems.items()}
    by_decay = {decay: raced(problem, each) for decay, each in optimizers.items()}
    scale, own = math.nan, by_size[present].race
    if own is not None and own.choice is not None:
        scale = present * noise_scale(trainer, own.lr, own.longest)
    cost = sum((each.cost for each in (*by_size.values(), *by_decay.values())), trainer.cost)
    return RateTable(present, by_size, by_decay, scale, cost)


def _parts(progress: Progress | None, count: int) -> Iterator[Progress | None]:
    """The progress of each of several equal parts."""
    for i in range(count):
        yield None if progress is None else lambda what, share, i=i: progress(what, (i + share) / count)  # type: ignore[misc]


def _resized(problem: Problem, size: int) -> Problem:
    """The problem with batches of another size."""
    loader = problem.loader
    if isinstance(loader, (list, tuple)):
        batches: Any = _regrouped(loader, size)
    elif isinstance(loader, DataLoader) and loader.batch_size is not None and hasattr(loader.dataset, "__getitem__"):
        batches = DataLoader(
            loader.dataset, size, sampler=loader.sampler, num_workers=loader.num_workers, drop_last=True,
            collate_fn=loader.collate_fn, generator=loader.generator, worker_init_fn=loader.worker_init_fn,
        )  # fmt: skip
        if not len(batches):
            raise InvalidProblem(TOO_FEW.format(examples=len(loader.sampler), size=size))  # type: ignore[arg-type]
    else:
        raise Unsupported(NOT_RESIZED.format(kind=type(loader).__name__))
    return Problem(problem.model, problem.loss, batches, problem.batchnorm, dropout=problem.dropout)


def _regrouped(batches: Sequence[Any], size: int) -> list[Any]:
    """The examples of all batches in batches of another size; a rest is left out."""
    leaves, shape = tree_flatten(batches[0])
    columns = zip(*(tree_flatten(batch)[0] for batch in batches), strict=True)
    joined = [
        torch.cat(column) if isinstance(first, Tensor) else first for column, first in zip(columns, leaves, strict=True)
    ]
    examples = min(len(each) for each in joined if isinstance(each, Tensor))
    if examples < size:
        raise InvalidProblem(TOO_FEW.format(examples=examples, size=size))
    return [
        tree_unflatten([each[i : i + size] if isinstance(each, Tensor) else each for each in joined], shape)
        for i in range(0, examples - size + 1, size)
    ]


def _with_decay(optimizer: Optimizer | None, decay: float) -> Optimizer:
    """A copy of the optimizer that holds the same parameters and has another weight decay where it has one."""
    groups = [] if optimizer is None else optimizer.param_groups
    if optimizer is None or not any("weight_decay" in group for group in groups):
        raise Unsupported(
            NO_DECAY.format(optimizer="SGD without an optimizer" if optimizer is None else type(optimizer).__name__)
        )
    copy = deep_copy(optimizer, {id(p): p for group in groups for p in group["params"]})
    for group in copy.param_groups:
        if len(groups) == 1 or group["weight_decay"]:  # groups without decay, as of biases, stay so
            group["weight_decay"] = decay
    return copy
