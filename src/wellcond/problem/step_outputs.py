"""What a training step calls the model with, and what its loss says of other outputs, also if it draws its targets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from wellcond.network.isolation.isolation import rng_kept, seed_generators
from wellcond.network.isolation.snapshot import Snapshot, kept
from wellcond.problem.apart import InPlaceOfModel
from wellcond.problem.batches import own_copies
from wellcond.problem.loss.outputs import own_loss
from wellcond.problem.problem import Problem
from wellcond.problem.training_step import TrainingStep
from wellcond.results import Cost


@dataclass(frozen=True)
class StepOutputs:
    """One call of the model in a training step, which draws the same numbers every time, by generators of its own too.

    Attributes:
        problem: Its loss is the step.
        batch: A batch.
        args: Arguments of the call.
        kwargs: Those with names.
        outputs: What the model returned, without a graph.
    """

    problem: Problem
    batch: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: Tensor

    @classmethod
    def of(cls, problem: Problem, batch: Any) -> StepOutputs:
        """Run the step once; a forward pass.

        Raises:
            ValueError: The step calls the model more than once, or it returns something else than a tensor.
        """
        calls: list[tuple[tuple[Any, ...], dict[str, Any], Tensor]] = []

        def noted(*args: Any, **kwargs: Any) -> Tensor:
            copies = own_copies((args, kwargs))
            with torch.no_grad():
                calls.append((*copies, problem.model(*args, **kwargs)))
            return calls[-1][2].detach().clone().requires_grad_()

        _run(problem, batch, noted)
        problem.count_copies(Cost(forwards=len(calls)))
        ((args, kwargs, outputs),) = calls
        if not isinstance(outputs, Tensor):
            raise ValueError("the model returns more than one tensor.")
        return cls(problem, batch, args, kwargs, outputs)

    def gradient(self, outputs: Tensor) -> Tensor | None:
        """∂L/∂f at other outputs: no pass of the model."""
        leaf = outputs.detach().clone().requires_grad_()
        loss = _run(self.problem, self.batch, lambda *_, **__: leaf)
        (gradient,) = torch.autograd.grad(loss, [leaf], allow_unused=True)
        return gradient

    def outputs_for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """The outputs for other arguments: a forward pass."""
        with torch.no_grad(), rng_kept(self.problem.device):
            seed_generators(0, self.problem.device)
            self.problem.count_copies(Cost(forwards=1))
            outputs: Tensor = self.problem.model(*own_copies(args), **own_copies(kwargs))
        return outputs


def _run(problem: Problem, batch: Any, call: Any) -> Tensor:
    assert isinstance(problem.loss, TrainingStep)
    function = problem.loss.function
    with (
        rng_kept(problem.device),
        kept(Snapshot([function], known=problem.model.modules(), code=True)),
        torch.enable_grad(),
    ):
        seed_generators(0, problem.device)
        loss: Tensor = own_loss(function(InPlaceOfModel(call), own_copies(batch)))
    return loss
