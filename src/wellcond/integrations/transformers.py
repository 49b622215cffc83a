"""Transformers' `Trainer`: a callback that records the training, and a verdict before it.

```
print(diagnose(trainer))
trainer.add_callback(RecorderCallback(trainer, "runs/a"))
```
"""

from __future__ import annotations

import contextlib
import functools
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from wellcond.diagnosis.diagnosis import Diagnosis
from wellcond.errors import MissingExtra
from wellcond.integrations.plan import Plan, swapped
from wellcond.learning_rate.race.suggested_rate import SuggestedRate
from wellcond.network.whole import holds_shards
from wellcond.problem.problem import Problem
from wellcond.problem.training_step import TrainingStep
from wellcond.recording.recorder import Recorder
from wellcond.remedies.optimizer_code import FOLLOWED, RESCALED
from wellcond.training.script_names import ScriptNames, name_in_script
from wellcond.treatment.treatment import Treatment

try:
    from transformers import Trainer, TrainerCallback
except ImportError:
    raise MissingExtra("transformers", "transformers") from None

__all__ = ["RecorderCallback", "diagnose", "suggest_lr", "treat"]

CREATED = ("optimizer", "lr_scheduler", "_created_lr_scheduler", "_signature_columns")
"""Attributes of a trainer that it sets when it begins to train."""
SCALED = r"factor = (\S+) / \S+  # for all rates of the schedule"
"""The line before `RESCALED`."""


class RecorderCallback(TrainerCallback):  # type: ignore[misc]
    """Records a training with `wellcond.Recorder`: with accumulation, in any precision, full models and adapters.

    A callback sees neither losses nor batches, so it is made with the trainer, whose `training_step` it watches while
    that trains. Only the first process records. A training that goes on from a checkpoint goes on in the same folder.

    Args:
        trainer: The trainer, or one of its kin that has a loss of its own.
        run_dir: Folder of the run; None records in memory.
        budget: Share of wall time that recording may take.
        **options: Of `wellcond.Recorder`.

    Attributes:
        recorder: The recorder of the last training; None before the first.
    """

    def __init__(self, trainer: Any, run_dir: str | Path | None = None, budget: float = 0.05, **options: Any) -> None:
        self.recorder: Recorder | None = None
        self._trainer, self._options = trainer, {"run_dir": run_dir, "budget": budget, **options}
        self._watching = contextlib.ExitStack()
        self._value: Any = None
        self._batch: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.on_train_end(args, state, control)  # where the last training ended by an error
        model, optimizer = kwargs["model"], kwargs["optimizer"]
        if not state.is_world_process_zero and not holds_shards(model):  # whose norms all processes add up
            return
        trainer = self._trainer
        scaler = trainer.accelerator.scaler
        self.recorder = Recorder(model, optimizer, loss_of(trainer), scaler=scaler, **self._options)
        original = trainer.training_step

        def training_step(model: nn.Module, inputs: Any, *rest: Any, **named: Any) -> Any:
            self._batch = dict(inputs) if isinstance(inputs, Mapping) else inputs  # a loss may take labels out of it
            share = original(model, inputs, *rest, **named)
            self._value = share.detach() * trainer.current_gradient_accumulation_steps
            return share

        self._watching.enter_context(swapped(trainer, training_step=training_step))

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.recorder is not None:
            self.recorder.step(self._value, self._batch)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.recorder is not None:
            self.recorder.step(self._value, self._batch, step=state.global_step)

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        loss = next((value for name, value in (metrics or {}).items() if name.endswith("loss")), None)
        if self.recorder is not None and loss is not None:
            self.recorder.validation(loss)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._watching.close()
        if self.recorder is not None:
            self.recorder.close()


def diagnose(trainer: Any, **options: Any) -> Diagnosis:
    """`wellcond.diagnose` of a training before it begins: the line before `trainer.train()`.

    Args:
        trainer: The trainer; optimizer and schedule are those that it will create.
        **options: Of `wellcond.diagnose`.
    """
    plan = planned(trainer)
    diagnosis = plan.diagnose(**options)
    lines = functools.partial(_lines, name_in_script(trainer, "trainer"), names_of(trainer, plan))
    return replace(diagnosis, findings=tuple(each.with_lines(lines) for each in diagnosis.findings))


def suggest_lr(trainer: Any, **options: Any) -> SuggestedRate:
    """`wellcond.suggest_lr` for a training of the trainer's length, with its optimizer and schedule.

    Args:
        trainer: The trainer.
        **options: Of `wellcond.suggest_lr`.
    """
    return planned(trainer).suggest_lr(**options)


def treat(trainer: Any, **options: Any) -> Treatment:
    """`wellcond.treat` of a training before it begins.

    Args:
        trainer: The trainer.
        **options: Of `wellcond.treat`.
    """
    plan = planned(trainer)
    treatment = plan.treat(**options)
    lines = functools.partial(_lines, name_in_script(trainer, "trainer"), names_of(trainer, plan))
    return replace(treatment, arms={name: replace(arm, code=lines(arm.code)) for name, arm in treatment.arms.items()})


def planned(trainer: Any) -> Plan:
    """What a trainer would do; it is left without optimizer and schedule, if it had none."""
    own = {name: getattr(trainer, name) for name in CREATED}
    # a loader that is prepared would belong to the trainer from then on
    with swapped(trainer, **own), swapped(trainer.accelerator, prepare=lambda loader: loader):
        loader = trainer.get_train_dataloader()
        optimizer = trainer.optimizer or trainer.create_optimizer()
        steps = steps_of(trainer, loader)
        scheduler = trainer.lr_scheduler if steps is None else trainer.create_scheduler(steps, optimizer)
    accelerator, half = trainer.accelerator, {"fp16": torch.float16, "bf16": torch.bfloat16}
    # it trains in float32 where it has no autocast, as with fp16 on a CPU
    autocast = half.get(accelerator.mixed_precision) if accelerator.native_amp else None
    problem = Problem(trainer.model, loss_of(trainer), loader, autocast=autocast, scaler=accelerator.scaler)
    return Plan(problem, optimizer, scheduler, steps)


def names_of(trainer: Any, plan: Plan) -> ScriptNames:
    """What lines call the parts of a training that only its trainer holds."""
    name = name_in_script(trainer, "trainer")
    own = ScriptNames.of_caller(plan.problem)
    parts = {"model": f"{name}.model", "loader": f"{name}.get_train_dataloader()", "optimizer": f"{name}.optimizer"}
    return ScriptNames({**parts, "scheduler": f"{name}.lr_scheduler", **own.names}, own.definitions)


def _lines(trainer: str, script: ScriptNames, code: str) -> str:
    """Lines for a script that has a trainer, before it trains: the optimizer is created, and no schedule yet.

    Example:
        >>> script = ScriptNames({"optimizer": "trainer.optimizer"})
        >>> print(_lines("trainer", script, 'optimizer.param_groups[0]["eps"] = 1e-08'))
        trainer.create_optimizer()
        trainer.optimizer.param_groups[0]["eps"] = 1e-08
    """
    makes_optimizer = re.search(r"^optimizer = ", code, re.MULTILINE) is not None
    rate = "" if makes_optimizer else rf"{trainer}.args.learning_rate = \1\n"
    code = re.sub(rf"{SCALED}\n{re.escape(RESCALED)}\n?", rate, code.replace(f"{FOLLOWED}\n", "").replace(FOLLOWED, ""))
    code = re.sub(r"wc\.suggest_lr\(.*, optimizer\)", f"wc.integrations.transformers.suggest_lr({trainer})", code)
    code = code.rstrip("\n")
    if not makes_optimizer and re.search(r"\boptimizer\b", code):
        code = f"{trainer}.create_optimizer()\n{code}"
    return script.lines(code)


def steps_of(trainer: Any, loader: Any) -> int | None:
    """Steps that the optimizer will take; None if the loader has no length, and no number is set."""
    args = trainer.args
    if args.max_steps > 0:
        return int(args.max_steps)
    if not hasattr(loader, "__len__"):
        return None
    per_epoch = math.ceil(len(loader) / (args.gradient_accumulation_steps * args.world_size))
    steps: int = math.ceil(per_epoch * args.num_train_epochs)
    return max(1, steps)


def loss_of(trainer: Any) -> TrainingStep | None:
    """The loss that a trainer computes; None if it takes the one that the model returns."""
    is_stock = type(trainer).compute_loss is Trainer.compute_loss
    if is_stock and trainer.label_smoother is None and trainer.compute_loss_func is None:
        return None

    def step(model: nn.Module, batch: Any) -> Any:
        return trainer.compute_loss(model, dict(batch))  # labels are taken out of it

    return TrainingStep(step)
