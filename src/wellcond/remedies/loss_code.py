"""The lines that make a new `loss` around the user's."""

from __future__ import annotations

from types import FunctionType

from torch.nn import functional

from wellcond.problem.loss.outputs import own_loss
from wellcond.problem.problem import Problem


def name_of_loss(problem: Problem) -> str:
    """What a script calls its loss, for lines that pass it on.

    That is the name of a function of the script itself or of `torch.nn.functional`, `None` if the model computes its
    loss, and `loss` for everything else, whose name is not known.
    """
    loss = problem.loss
    if loss is own_loss:
        return "None"
    name = getattr(loss, "__name__", "")
    if getattr(functional, name, None) is loss:
        return f"nn.functional.{name}"
    is_own = isinstance(loss, FunctionType) and loss.__module__ == "__main__" and name == loss.__qualname__
    return name if is_own and name.isidentifier() else "loss"


def wrapped_loss(name: str, value: str) -> str:
    """The lines of a `loss` that returns `value`, an expression in which the old loss is called `name`.

    The old one is bound where the new one is defined, so that lines may be pasted twice.

    Example:
        >>> print(wrapped_loss("summed_loss", "summed_loss(outputs, targets) / 64"))
        def loss(outputs, targets, summed_loss=loss):
            return summed_loss(outputs, targets) / 64
    """
    return f"def loss(outputs, targets, {name}=loss):\n    return {value}"
