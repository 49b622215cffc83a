"""Lightning: a callback that records the training, and a verdict before it.

```
trainer = Trainer(callbacks=[RecorderCallback("runs/a")])
print(diagnose(trainer, module))
```
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from wellcond.diagnosis.diagnosis import Diagnosis
from wellcond.errors import MissingExtra
from wellcond.integrations.plan import Plan, swapped
from wellcond.learning_rate.race.suggested_rate import SuggestedRate
from wellcond.network.calling import arguments_of
from wellcond.problem.problem import Problem
from wellcond.problem.training_step import Step
from wellcond.recording.recorder import Recorder
from wellcond.training.passed_optimizer import optimizers_in
from wellcond.treatment.treatment import Treatment

try:
    from lightning.pytorch import Callback
    from lightning.pytorch.utilities import CombinedLoader
except ImportError:
    try:
        from pytorch_lightning import Callback
        from pytorch_lightning.utilities import CombinedLoader
    except ImportError:
        raise MissingExtra("lightning", "lightning") from None

__all__ = ["RecorderCallback", "diagnose", "suggest_lr", "treat"]


class RecorderCallback(Callback):  # type: ignore[misc]
    """Records a training with `wellcond.Recorder`: automatic and manual optimization, in any precision.

    Only the first process records. The state of the recorder is part of every checkpoint, so that a training that goes
    on from one goes on in the same run directory.

    Args:
        run_dir: Folder of the run; None records in memory.
        budget: Share of wall time that recording may take.
        monitor: Name of the logged validation loss; None: the first whose name contains "val" and "loss".
        **options: Of `wellcond.Recorder`.

    Attributes:
        recorder: The recorder of the last training; None before the first.

    Example:
        >>> import torch
        >>> from lightning.pytorch import Trainer
        >>> from lightning.pytorch.demos.boring_classes import BoringModel
        >>> callback = RecorderCallback()
        >>> quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
        >>> trainer = Trainer(max_steps=3, accelerator="cpu", callbacks=[callback], logger=False, **quiet)
        >>> trainer.fit(BoringModel())
        >>> len(callback.recorder.history.series("training_loss"))
        3
    """

    def __init__(
        self,
        run_dir: str | Path | None = None,
        budget: float = 0.05,
        *,
        monitor: str | None = None,
        **options: Any,
    ) -> None:
        self.recorder: Recorder | None = None
        self._monitor, self._options = monitor, {"run_dir": run_dir, "budget": budget, **options}
        self._state: dict[str, Any] = {}
        self._losses: list[Tensor] = []

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.is_global_zero:
            return
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
        step = training_step(trainer, trainer.optimizers, schedulers)
        self.recorder = Recorder.from_step(pl_module, trainer.optimizers, step, scaler=scaler, **self._options)
        if self._state:
            self.recorder.load_state_dict(self._state)
            self._state = {}

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Tensor) -> None:
        if not pl_module.automatic_optimization:
            scale = getattr(getattr(trainer.precision_plugin, "scaler", None), "_scale", None)
            self._losses.append(loss.detach() if scale is None else loss.detach() / scale)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        losses, self._losses = self._losses, []
        value = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if value is None and losses:
            value = sum(losses)
        if self.recorder is None or value is None:  # a training step may skip a batch
            return
        if pl_module.automatic_optimization:
            value = value * trainer.accumulate_grad_batches
        # the losses of several optimizers are no function of which there is a curvature
        is_one = len(trainer.optimizers) == 1
        with detached(pl_module):
            self.recorder.step(value, batch if is_one else None)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if self.recorder is None or trainer.sanity_checking:
            return
        metrics = trainer.callback_metrics
        names = (
            [name for name in metrics if "val" in name and "loss" in name] if self._monitor is None else [self._monitor]
        )
        if names and names[0] in metrics:
            self.recorder.validation(metrics[names[0]])

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if self.recorder is not None:
            self.recorder.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self.on_train_end(trainer, pl_module)

    def state_dict(self) -> dict[str, Any]:
        return {} if self.recorder is None else self.recorder.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._state = state_dict


def diagnose(
    trainer: Any, module: Any, train_dataloaders: Any = None, *, datamodule: Any = None, **options: Any
) -> Diagnosis:
    """`wellcond.diagnose` of a training before it begins: the line before `trainer.fit`, with the same arguments.

    Data and module are set up as `fit` does it (`prepare_data`, `setup`, `configure_model`), on the trainer's device.

    Args:
        trainer: The trainer.
        module: The module.
        train_dataloaders: Its loaders; None if the module or the datamodule has them.
        datamodule: The datamodule, if there is one.
        **options: Of `wellcond.diagnose`.
    """
    with planned(trainer, module, train_dataloaders, datamodule) as plan:
        return plan.diagnose(**options)


def suggest_lr(
    trainer: Any, module: Any, train_dataloaders: Any = None, *, datamodule: Any = None, **options: Any
) -> SuggestedRate:
    """`wellcond.suggest_lr` for a training of the trainer's length, with the module's optimizer and schedule.

    Args:
        trainer: The trainer.
        module: The module.
        train_dataloaders: As in `diagnose`.
        datamodule: As in `diagnose`.
        **options: Of `wellcond.suggest_lr`.
    """
    with planned(trainer, module, train_dataloaders, datamodule) as plan:
        return plan.suggest_lr(**options)


def treat(
    trainer: Any, module: Any, train_dataloaders: Any = None, *, datamodule: Any = None, **options: Any
) -> Treatment:
    """`wellcond.treat` of a training before it begins.

    Args:
        trainer: The trainer.
        module: The module.
        train_dataloaders: As in `diagnose`.
        datamodule: As in `diagnose`.
        **options: Of `wellcond.treat`.
    """
    with planned(trainer, module, train_dataloaders, datamodule) as plan:
        return plan.treat(**options)


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
    step = training_step(about, optimizers, [schedule for schedule, _ in schedules], sources)
    scheduler, is_by_epoch = schedules[0] if schedules else (None, False)
    device = module.device
    with detached(module):
        module.to(trainer.strategy.root_device)
        try:
            problem = Problem.from_step(module, step, about.batches)
            steps = about.estimated_stepping_batches
            length = int(steps) if 0 < steps < math.inf else None
            yield Plan(problem, optimizers, scheduler, length, about.steps_per_epoch if is_by_epoch else 1)
        finally:
            module.to(device)
            if datamodule is not None:
                datamodule.trainer = trainer


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


def training_step(
    trainer: Any, optimizers: Sequence[Any], schedulers: Sequence[Any], hooks: Sequence[Any] = ()
) -> Step:
    """The module's training step as a function of a module and a batch, without its logging.

    With manual optimization the loss is the sum of those that are passed to `manual_backward`.

    Args:
        trainer: What `self.trainer` is.
        optimizers: What `self.optimizers()` returns.
        schedulers: What `self.lr_schedulers()` returns.
        hooks: A datamodule and the module, whose hooks change a batch that comes from a loader.
    """

    def nothing(*_: Any, **__: Any) -> None: ...

    def step(module: Any, batch: Any) -> Any:
        losses: list[Tensor] = []
        idle = [[_Idle(each) for each in several] for several in (optimizers, schedulers)]
        covers: dict[str, Any] = {"log": nothing, "log_dict": nothing}
        if not module.automatic_optimization:
            covers |= dict.fromkeys(("toggle_optimizer", "untoggle_optimizer", "clip_gradients"), nothing)
            covers["manual_backward"] = lambda loss, *_, **__: losses.append(loss)
            covers["optimizers"] = lambda *_, **__: idle[0][0] if len(idle[0]) == 1 else idle[0]
            covers["lr_schedulers"] = lambda: idle[1][0] if len(idle[1]) == 1 else idle[1] or None
        with detached(module), swapped(module, **covers):
            module.trainer = trainer
            for each in hooks:
                batch = each.on_after_batch_transfer(each.on_before_batch_transfer(batch, 0), 0)
            most = arguments_of(module.training_step).most
            returned = module.training_step(batch) if most == 1 else module.training_step(batch, 0)
        if losses:
            return sum(losses)
        return returned["loss"] if isinstance(returned, Mapping) else returned

    return step


@contextlib.contextmanager
def detached(module: Any) -> Iterator[None]:
    """A module without its trainer, which is neither copied nor restored along with it."""
    trainer = module._trainer
    module.trainer = None
    try:
        yield
    finally:
        module.trainer = trainer


def schedules_in(configured: Any) -> Iterator[tuple[LRScheduler, bool]]:
    """Every schedule in what `configure_optimizers` returns, and whether it is stepped once per epoch.

    Example:
        >>> import torch
        >>> sgd = torch.optim.SGD([torch.zeros(1)], lr=0.1)
        >>> schedule = torch.optim.lr_scheduler.StepLR(sgd, 10)
        >>> by_step = {"optimizer": sgd, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
        >>> [is_by_epoch for form in (([sgd], [schedule]), by_step) for _, is_by_epoch in schedules_in(form)]
        [True, False]
    """
    if isinstance(configured, Mapping) and "scheduler" in configured:
        yield configured["scheduler"], configured.get("interval", "epoch") == "epoch"
    elif isinstance(configured, Mapping):
        yield from schedules_in(configured.get("lr_scheduler"))
    elif isinstance(configured, Sequence):
        for part in configured:
            yield from schedules_in(part)
    elif isinstance(configured, LRScheduler):
        yield configured, True


class _Idle:
    """An optimizer or a schedule whose steps do nothing; a closure is called, for its loss."""

    def __init__(self, original: Any) -> None:
        self._original = original

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def step(self, closure: Any = None, **_: Any) -> Any:
        return closure() if callable(closure) else None

    def zero_grad(self, *_: Any, **__: Any) -> None: ...

    def toggle_model(self, *_: Any, **__: Any) -> contextlib.nullcontext[None]:
        return contextlib.nullcontext()


class _Together:
    """Batches of several loaders, as the trainer puts them together."""

    def __init__(self, loaders: Any) -> None:
        self._loaders = CombinedLoader(loaders, "max_size_cycle")

    def __iter__(self) -> Iterator[Any]:
        return (batch for batch, _, _ in iter(self._loaders))

    def __len__(self) -> int:
        return len(iter(self._loaders))
