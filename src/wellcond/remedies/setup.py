"""`Setup`: what is trained, on what and by which optimizer, and the lines that lead there."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn
from torch.optim import Optimizer

from wellcond.errors import Unsupported
from wellcond.network.isolation.copies import copied
from wellcond.problem.loss.outputs import Loss
from wellcond.problem.problem import Problem
from wellcond.problem.training_step import TrainingStep
from wellcond.remedies.optimizer_code import is_scheduled, making, making_sgd, race_lr, setting_rate, with_own_rate
from wellcond.training.optimizers import DEFAULT_MOMENTUM, copy_for, unwrapped

BeforeTraining = Callable[[nn.Module, Optimizer, int], None]
"""Called with a copy of the model, its optimizer and the seed of the run, before its first step."""
BEFORE_STEP = "# in the training loop, before optimizer.step():"
AFTER_STEP = "# in the training loop, after optimizer.step():"
"""Headings of lines that are written into the loop; all lines before them come once, before training."""
NOT_REACHED = (
    "it is put around the model, and training_step calls what is inside (its methods or layers), so it would change "
    "nothing. Write it into the step or the model."
)
ORDINARY_LENGTH = 10_000
"""Steps of a training run whose length is not known."""


@dataclass(frozen=True)
class Setup:
    """A network with its data, its loss and its optimizer, and the lines that change the user's into it.

    Lines may use these names, which the user's script has: `model`, before it is compiled or wrapped; `loss`, the loss
    function, called as `loss(outputs, targets)`; `loader`, which iterates over the batches; `optimizer`; `scheduler`,
    if the optimizer has one; and `torch`, `nn` (torch.nn) and `wc` (wellcond). They import or define everything else
    themselves.

    Attributes:
        problem: Model, loss and data. The model is the user's own, or a changed copy of it.
        optimizer: The optimizer, which holds the parameters of that model; None for SGD.
        momentum: Momentum of SGD if there is no optimizer.
        steps: Number of steps in a training run.
        before_training: What is done to each copy of the model and its optimizer before its first step.
        model_lines: Lines that change the model, the loss or the data.
        has_new_optimizer: Whether the optimizer is another one than the user's, so that lines must make it.
        needs_other_rate: Whether the user's rate cannot be right for the changed network, so that lines race rates.
        optimizer_lines: Lines that need the optimizer, and come after it.
        before_step_lines: Lines of the training loop, before `optimizer.step()`.
        after_step_lines: Lines of the training loop, after it.
    """

    problem: Problem
    optimizer: Optimizer | None
    momentum: float
    steps: int
    before_training: tuple[BeforeTraining, ...] = ()
    model_lines: tuple[str, ...] = ()
    has_new_optimizer: bool = False
    needs_other_rate: bool = False
    optimizer_lines: tuple[str, ...] = ()
    before_step_lines: tuple[str, ...] = ()
    after_step_lines: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        problem: Problem,
        optimizer: Optimizer | None = None,
        *,
        momentum: float = DEFAULT_MOMENTUM,
        steps: int = ORDINARY_LENGTH,
    ) -> Setup:
        """The user's own set-up."""
        return cls(problem, None if optimizer is None else unwrapped(optimizer), momentum, steps)

    @functools.cached_property
    def inputs(self) -> Any:
        """What the model is called with, in one batch.

        Raises:
            Unsupported: A training step calls parts of the model only.
        """
        with self.problem.measuring(), contextlib.closing(self.problem.data()) as data:
            return self.problem.model_inputs(*next(data))

    # the lines

    @property
    def code(self) -> str:
        """The lines to write, with `{lr}` in place of the learning rate."""
        if self.optimizer is None:
            return self._code_with(making_sgd(self.momentum))
        if self.has_new_optimizer:
            schedule = [setting_rate(self.optimizer)] if is_scheduled(self.optimizer) else []
            return self._code_with(making(self.optimizer, self.problem.model), *schedule)
        return self._code_with(setting_rate(self.optimizer))

    @property
    def code_at_own_rate(self) -> str:
        """The lines to write if the learning rate stays as it is; without a line for an optimizer that stays."""
        if self.optimizer is None or not self.has_new_optimizer:
            return self._code_with()
        race = [race_lr(self.problem, self.optimizer)] if self.needs_other_rate else []
        return self._code_with(with_own_rate(making(self.optimizer, self.problem.model), self.optimizer), *race)

    def _code_with(self, *making_optimizer: str) -> str:
        before, after = self.before_step_lines, self.after_step_lines
        loop = [*([BEFORE_STEP, *before] if before else []), *([AFTER_STEP, *after] if after else [])]
        return "\n".join([*self.model_lines, *making_optimizer, *self.optimizer_lines, *loop])

    # changes

    def with_model(self, change: Callable[[nn.Module], nn.Module], *lines: str, is_new: bool = True) -> Setup:
        """With a changed copy of the model; a copy of the optimizer holds its parameters, new ones too.

        Args:
            change: Changes the copy, and returns it or a module around it.
            lines: What to write.
            is_new: Whether these lines make new parameters, for which the optimizer must be made again.
        """
        model = copied(self.problem.model)
        optimizer = None if self.optimizer is None else copy_for(self.optimizer, self.problem.model, model)
        before = set(model.parameters())
        changed = change(model)
        problem = self._problem_with(changed, self.problem.loss)
        if changed is not model and isinstance(problem.loss, TrainingStep):
            self._check_is_called(problem)
        if optimizer is not None:
            optimizer.param_groups[0]["params"] += [p for p in changed.parameters() if p not in before]
        return replace(
            self,
            problem=problem,
            optimizer=optimizer,
            model_lines=(*self.model_lines, *lines),
            has_new_optimizer=self.has_new_optimizer or is_new,
        )

    def with_loss(self, loss: Loss, *lines: str) -> Setup:
        """With another loss."""
        return replace(
            self, problem=self._problem_with(self.problem.model, loss), model_lines=(*self.model_lines, *lines)
        )

    def with_optimizer(self, optimizer: Optimizer) -> Setup:
        """With another optimizer over the same model."""
        return replace(self, optimizer=optimizer, has_new_optimizer=True)

    def with_setting(self, name: str, value: Any) -> Setup:
        """With this value of a setting in every group of the optimizer."""
        if self.optimizer is None:
            return self
        return self.with_settings([{name: value}] * len(self.optimizer.param_groups))

    def with_settings(self, settings: list[dict[str, Any]]) -> Setup:
        """With other settings of the optimizer, one dict per group."""
        changed = self.with_model(lambda model: model, is_new=False)
        assert changed.optimizer is not None
        for group, of_group in zip(changed.optimizer.param_groups, settings, strict=True):
            group.update(of_group)
        if self.has_new_optimizer:  # the line that makes it has them
            return changed
        if all(of_group == settings[0] for of_group in settings):
            assignments = [f'\n    group["{name}"] = {value!r}' for name, value in settings[0].items()]
            lines = ["for group in optimizer.param_groups:" + "".join(assignments)]
        else:
            lines = [
                f'optimizer.param_groups[{i}]["{name}"] = {value!r}'
                for i, of_group in enumerate(settings)
                for name, value in of_group.items()
            ]
        return replace(changed, optimizer_lines=(*changed.optimizer_lines, *lines))

    def prepared(
        self, prepare: BeforeTraining, *lines: str, before_step: Sequence[str] = (), after_step: Sequence[str] = ()
    ) -> Setup:
        """With something done to each copy of model and optimizer before a run.

        Args:
            prepare: Does it.
            lines: What to write once, after the optimizer.
            before_step: What to write into the training loop, before `optimizer.step()`.
            after_step: What to write there after it.
        """
        return replace(
            self,
            before_training=(*self.before_training, prepare),
            optimizer_lines=(*self.optimizer_lines, *lines),
            before_step_lines=(*self.before_step_lines, *before_step),
            after_step_lines=(*self.after_step_lines, *after_step),
        )

    def _check_is_called(self, problem: Problem) -> None:
        """Check that a training step calls a module that was put around the model, and not only what is inside."""
        try:
            replace(self, problem=problem).inputs  # noqa: B018
        except (AttributeError, Unsupported) as error:
            raise Unsupported(NOT_REACHED) from error

    def _problem_with(self, model: nn.Module, loss: Loss) -> Problem:
        return Problem(model, loss, self.problem.source, self.problem.batchnorm)
