"""Lightning: a callback that records the training, and a verdict before it.

```
trainer = Trainer(callbacks=[RecorderCallback("runs/a")])
print(diagnose(trainer, module))
```
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from wellcond.diagnosis.diagnosis import Diagnosis
from wellcond.errors import MissingExtra
from wellcond.integrations.lightning_lines import arguments_of_fit, lightning_lines
from wellcond.integrations.lightning_plan import planned
from wellcond.integrations.lightning_step import detached, training_step
from wellcond.integrations.plan import Plan
from wellcond.learning_rate.race.suggested_rate import SuggestedRate
from wellcond.network.whole import holds_shards
from wellcond.recording.recorder import Recorder
from wellcond.training.script_names import name_in_script
from wellcond.treatment.treatment import Treatment

try:
    from lightning.pytorch import Callback
except ImportError:
    try:
        from pytorch_lightning import Callback
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
        if not trainer.is_global_zero and not holds_shards(pl_module):  # whose norms all processes add up
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
        diagnosis = plan.diagnose(**options)
        lines = _lines(trainer, module, train_dataloaders, datamodule, plan)
    return replace(diagnosis, findings=tuple(each.with_lines(lines) for each in diagnosis.findings))


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
        treatment = plan.treat(**options)
        lines = _lines(trainer, module, train_dataloaders, datamodule, plan)
    return replace(treatment, arms={name: replace(arm, code=lines(arm.code)) for name, arm in treatment.arms.items()})


def _lines(trainer: Any, module: Any, train_dataloaders: Any, datamodule: Any, plan: Plan) -> Callable[[str], str]:
    return functools.partial(
        lightning_lines,
        module=name_in_script(module, "module"),
        arguments=arguments_of_fit(trainer, module, train_dataloaders, datamodule),
        configured=plan.configured,
    )
