"""What a Lightning trainer would do with a module, before it does it; neither of them is changed."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

import torch

from wellcond.integrations.lightning_step import called_parts, detached, forward_of, training_step
from wellcond.integrations.plan import Plan
from wellcond.problem.problem import Problem
from wellcond.training.passed_optimizer import optimizers_in
from wellcond.training.schedule import schedules_in

AUTOCAST = {"16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}
"""Dtype of the autocast of a trainer, by its precision."""


@contextlib.contextmanager
def planned(trainer: Any, module: Any, train_dataloaders: Any = None, datamodule: Any = None) -> Iterator[Plan]:
    """What a trainer would do with a module; inside, the module is on the trainer's device."""
    sources = [each for each in (datamodule, module) if each is not None]
    about = TrainerBefore(trainer, module, datamodule)
    with detached(module):
        for each in sources:
            each.trainer = about
            each.prepare_data()
            each.setup("fit")
        module.configure_model()
        about.train_dataloader = sources[0].train_dataloader() if train_dataloaders is None else train_dataloaders
        configured = module.configure_optimizers()
    optimizers = list({id(each): each for each in optimizers_in(configured)}.values())
    schedules = list(schedules_in(configured))
    running = about, optimizers, [each.scheduler for each in schedules], sources, module
    scheduler, is_by_epoch = schedules[0][:2] if schedules else (None, False)
    device = module.device
    with detached(module):
        module.to(trainer.strategy.root_device)
        try:
            plugin = trainer.precision_plugin
            precision: dict[str, Any] = {"autocast": AUTOCAST.get(trainer.precision)}
            precision["scaler"] = getattr(plugin, "scaler", None)
            problem = Problem.from_step(module, training_step(*running), about.batches, **precision)
            parts = _parts_called(problem)
            if parts:
                step = training_step(*running, parts)
                problem = Problem.from_step(module, step, problem.source, **precision)
            steps = about.estimated_stepping_batches
            length = int(steps) if 0 < steps < math.inf else None
            between = about.steps_per_epoch if is_by_epoch else 1
            forward = forward_of(module, parts) if parts else None
            yield Plan(problem, optimizers, scheduler, length, between, is_by_epoch, forward, configured)
        finally:
            module.to(device)
            if datamodule is not None:
                datamodule.trainer = trainer


def _parts_called(problem: Problem) -> tuple[str, ...]:
    """The parts of the module that its step calls; none where it fails, which a diagnosis says."""
    with contextlib.suppress(Exception), problem.measuring(), contextlib.closing(problem.data()) as data:
        index, batch = next(data)
        return called_parts(problem.model, lambda: problem.forward(index, batch[0]))
    return ()


class TrainerBefore:
    """A trainer as its module sees it in training, before that has begun: it knows how long it will take."""

    def __init__(self, trainer: Any, module: Any, datamodule: Any) -> None:
        self._trainer = trainer
        self.lightning_module, self.datamodule, self.train_dataloader = module, datamodule, None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trainer, name)

    @property
    def batches(self) -> Any:
        """What training goes over, also if there are several loaders."""
        several = isinstance(self.train_dataloader, (Sequence, Mapping))
        return _Together(self.train_dataloader) if several else self.train_dataloader

    @property
    def num_training_batches(self) -> float:
        """Batches of an epoch; may be infinite."""
        length = len(self.batches) if hasattr(self.batches, "__len__") else math.inf
        limit: float | None = self.limit_train_batches
        return min(length, limit) if isinstance(limit, int) else length if limit is None else length * limit // 1

    @property
    def steps_per_epoch(self) -> int:
        """Steps of the optimizer in an epoch; 1 if it has no end."""
        batches = self.num_training_batches
        return math.ceil(batches / self.accumulate_grad_batches) if 0 < batches < math.inf else 1

    @property
    def estimated_stepping_batches(self) -> float:
        """Steps of the optimizer in the whole training; may be infinite, or -1 if nobody knows."""
        most: float = self.max_steps if self.max_steps != -1 else math.inf
        if self.max_epochs == -1:
            return most
        if self.num_training_batches == math.inf:
            return float(self.max_steps)
        return min(most, float(self.steps_per_epoch * max(self.max_epochs, 1)))


class _Together:
    """Batches of several loaders, as the trainer puts them together."""

    def __init__(self, loaders: Any) -> None:
        package = "lightning.pytorch" if "lightning.pytorch" in sys.modules else "pytorch_lightning"
        self._loaders = import_module(f"{package}.utilities").CombinedLoader(loaders, "max_size_cycle")

    def __iter__(self) -> Iterator[Any]:
        return (batch for batch, _, _ in iter(self._loaders))

    def __len__(self) -> int:
        return len(iter(self._loaders))
