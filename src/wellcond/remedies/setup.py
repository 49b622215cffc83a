"""`Setup`: what is trained and by what, as one arm of a comparison trains it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from wellcond.network.copying import copied
from wellcond.problem.loss.outputs import Loss
from wellcond.problem.problem import Problem
from wellcond.training.optimizers import DEFAULT_MOMENTUM, copy_for, largest_lr

Prepare = Callable[[nn.Module, Optimizer, int], None]
"""Called with a copy of the model, its optimizer and the seed of the run, before its first step."""


@dataclass(frozen=True)
class Setup:
    """A network with its data and its optimizer, as one arm of a comparison trains it.

    Attributes:
        problem: What is trained. Its model is the user's own, or a changed copy of it.
        optimizer: It holds that model's parameters; None: SGD.
        momentum: Of SGD where there is no optimizer.
        inputs: Those of one batch.
        steps: The length of a run.
        prepare: What is done to each copy before its first step.
        lines: What to write to have the model so.
        optimizer_line: What to write to have the optimizer so, with `{lr}` in place of the rate; "" for the user's own.
        more_lines: What to write below it.
    """

    problem: Problem
    optimizer: Optimizer | None
    momentum: float
    inputs: Any
    steps: int
    prepare: tuple[Prepare, ...] = ()
    lines: tuple[str, ...] = ()
    optimizer_line: str = ""
    more_lines: tuple[str, ...] = ()

    @property
    def code(self) -> str:
        """The lines to write, with `{lr}` in place of the learning rate."""
        return "\n".join([*self.lines, self.optimizer_line or self._own_line(), *self.more_lines])

    def with_model(self, change: Callable[[nn.Module], nn.Module], *lines: str, is_new: bool = True) -> Setup:
        """With a copy of the model, changed; the optimizer is a copy that holds its parameters, new ones too.

        Args:
            change: Changes the copy it is given, and returns it or a module around it.
            lines: What to write.
            is_new: Whether these lines make a new model, which needs a new optimizer.
        """
        own = self.problem.model
        model = copied(own)
        twin = None if self.optimizer is None else copy_for(self.optimizer, own, model)
        before = set(model.parameters())
        changed = change(model)
        if twin is not None:
            twin.param_groups[0]["params"] += [p for p in changed.parameters() if p not in before]
        line = self.optimizer_line or (made_anew(twin, self.momentum) if is_new else "")
        return replace(
            self,
            problem=like(self.problem, model=changed),
            optimizer=twin,
            lines=(*self.lines, *lines),
            optimizer_line=line,
        )

    def with_loss(self, loss: Loss, *lines: str) -> Setup:
        """With another loss."""
        return replace(self, problem=like(self.problem, loss=loss), lines=(*self.lines, *lines))

    def with_optimizer(self, optimizer: Optimizer, line: str = "") -> Setup:
        """With another optimizer over the same model."""
        return replace(self, optimizer=optimizer, optimizer_line=line or self.optimizer_line)

    def prepared(self, prepare: Prepare, *lines: str) -> Setup:
        """With something done to each copy of model and optimizer before a run."""
        return replace(self, prepare=(*self.prepare, prepare), more_lines=(*self.more_lines, *lines))

    def with_setting(self, name: str, value: Any) -> Setup:
        """With another value of a setting in every group of the optimizer."""
        treated = self.with_model(lambda model: model, is_new=False)
        for group in treated.optimizer.param_groups if treated.optimizer is not None else ():
            group[name] = value
        if self.optimizer_line:  # which makes it anew
            return replace(treated, optimizer_line=made_anew(treated.optimizer))
        line = f'for group in optimizer.param_groups:\n    group["{name}"] = {value!r}'
        return replace(treated, more_lines=(*treated.more_lines, line))

    def _own_line(self) -> str:
        if self.optimizer is None:
            return made_anew(None, self.momentum)
        own = largest_lr(self.optimizer)
        if len(self.optimizer.param_groups) == 1 or not own:
            return 'optimizer.param_groups[0]["lr"] = {lr}'
        return f'for group in optimizer.param_groups:\n    group["lr"] *= {{lr}} / {own:g}'


def like(problem: Problem, *, model: nn.Module | None = None, loss: Loss | None = None) -> Problem:
    """The same problem with another model or loss."""
    return Problem(model or problem.model, loss or problem.loss, problem.source, problem.batchnorm)


def made_anew(optimizer: Optimizer | None, momentum: float = DEFAULT_MOMENTUM) -> str:
    """The line that makes such an optimizer over `model`, with `{lr}` in place of its rate."""
    if optimizer is None:
        settings = f", momentum={momentum:g}" if momentum else ""
        return f"optimizer = torch.optim.SGD(model.parameters(), lr={{lr}}{settings})"
    kind = type(optimizer)
    where = "torch.optim." if getattr(torch.optim, kind.__name__, None) is kind else ""
    if len(optimizer.param_groups) > 1:
        own = largest_lr(optimizer)
        return f"optimizer = …  # {kind.__name__} over the new model, with each rate times {{lr}} / {own:g}"
    group = optimizer.param_groups[0]
    defaults = {name: p.default for name, p in inspect.signature(kind).parameters.items()}
    settings = "".join(
        f", {name}={value!r}"
        for name, value in group.items()
        if name in defaults and name not in ("params", "lr") and value != defaults[name]
    )
    return f"optimizer = {where}{kind.__name__}(model.parameters(), lr={{lr}}{settings})"
