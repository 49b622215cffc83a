"""What users pass as an optimizer: one, what Lightning's `configure_optimizers` returns, or a scheduler."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch.optim import Optimizer

from wellcond.errors import InvalidProblem
from wellcond.problem.problem import Problem
from wellcond.training.optimizers import unwrapped

PassedOptimizer = Optimizer | Mapping[str, Any] | Sequence[Any] | Any
"""An optimizer; a dict with `"optimizer"`, a list or a tuple, as `configure_optimizers` returns them; a scheduler."""
WRITE = "Write  optimizer = torch.optim.Adam(model.parameters(), lr=…)  and pass that"
SEVERAL = (
    "{count} optimizers hold parameters of the model ({names}). Pass one of them, with requires_grad_(False) for what "
    "the others train; or one optimizer with a parameter group for each."
)


def optimizer_of(problem: Problem, passed: PassedOptimizer | None) -> Optimizer | None:
    """The one optimizer that trains the model of a problem, in whatever form it was passed.

    Of several, as a GAN has, it is the one that holds parameters of the model; of a wrapper such as Accelerate's, the
    one inside.

    Raises:
        TypeError: There is no optimizer in what was passed.
        InvalidProblem: Several hold parameters of the model.

    Example:
        >>> import torch
        >>> model, other = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
        >>> problem = Problem(model, torch.nn.MSELoss(), (torch.ones(2, 2), torch.ones(2, 1)))
        >>> sgd, adam = torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.Adam(other.parameters())
        >>> schedule = torch.optim.lr_scheduler.StepLR(sgd, 10)
        >>> all(optimizer_of(problem, each) is sgd for each in (sgd, [sgd, adam], {"optimizer": sgd}, schedule))
        True
    """
    if passed is None:
        return None
    optimizers = list({id(each): each for each in map(unwrapped, optimizers_in(passed))}.values())
    if not optimizers:
        raise TypeError(f"optimizer is a {type(passed).__name__} without a torch optimizer in it. {WRITE}.")
    if len(optimizers) == 1:
        return optimizers[0]
    own = set(map(id, problem.params.values()))
    holding = [each for each in optimizers if any(id(p) in own for group in each.param_groups for p in group["params"])]
    if len(holding) > 1:
        names = ", ".join(type(each).__name__ for each in holding)
        raise InvalidProblem(SEVERAL.format(count=len(holding), names=names))
    return (holding or optimizers)[0]


def optimizers_in(passed: Any) -> Iterator[Optimizer]:
    """All optimizers in what was passed; one may come twice.

    Raises:
        TypeError: Something in it is neither an optimizer nor a scheduler.
    """
    if isinstance(passed, Optimizer) or hasattr(passed, "param_groups"):
        yield passed
    elif isinstance(passed, Mapping):
        yield from optimizers_in(passed.get("optimizer"))
    elif isinstance(passed, Sequence) and not isinstance(passed, str):
        for part in passed:
            yield from optimizers_in(part)
    elif isinstance(inside := getattr(passed, "optimizer", None), Optimizer):  # a scheduler
        yield inside
    elif isinstance(passed, (int, float)):
        raise TypeError(f"optimizer is the number {passed}. {WRITE}, or name the argument that it is for.")
    elif passed is not None:
        raise TypeError(f"optimizer is {passed!r:.40}, a {type(passed).__name__}. {WRITE}.")


def scheduled_lr(scheduler: Any) -> float:
    """The highest rate that a schedule is known to come to: a cycle's, a one-cycle's, or that of a warm-up's end.

    Example:
        >>> import torch
        >>> sgd = torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.1)
        >>> scheduled_lr(torch.optim.lr_scheduler.CyclicLR(sgd, base_lr=1e-5, max_lr=0.05))
        0.05
    """
    inside = getattr(scheduler, "_schedulers", ())  # of a chain or a sequence
    own = [*getattr(scheduler, "max_lrs", ()), *getattr(scheduler, "base_lrs", ())]
    return max([*map(float, own), *map(scheduled_lr, inside)], default=0.0)
