"""What `predict` can be asked: arguments that cannot be are refused by their names."""

from __future__ import annotations

from typing import Any, get_args

from torch import Tensor

from wellcond.errors import NonFinite
from wellcond.meanfield.architecture import Parameters
from wellcond.meanfield.prediction import Loss
from wellcond.meanfield.stages import Variant


def check_options(momentum: Any, variant: Any, loss: Any, parameters: Any, examples: Any) -> None:
    """Refuse what they cannot be; None of variant, parameters and examples is "as usual"."""
    for name, value, allowed in (
        ("variant", variant or "batch", get_args(Variant)),
        ("loss", loss, get_args(Loss)),
        ("parameters", parameters or "all", get_args(Parameters)),
    ):
        if value not in allowed:
            raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(map(repr, allowed))}.")
    if not isinstance(momentum, (int, float)):
        raise TypeError(f"momentum is of type {type(momentum).__name__}; it must be a number.")
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum is {momentum}; it must be 0 or above, and below 1.")
    if examples is not None and (not isinstance(examples, int) or examples < 1):
        raise ValueError(f"examples is {examples!r}; it must be a whole number, 1 or above.")


def check_examples(examples: int | None, has_batchnorm: bool) -> None:
    """BatchNorm needs two to have a variance."""
    if has_batchnorm and examples == 1:
        raise ValueError("examples is 1, of which BatchNorm has no variance; it must be 2 or above.")


def check_batch(inputs: Any, wanted: tuple[int, ...]) -> None:
    """Refuse what is no batch of two examples or more of the shape that is wanted, all of them finite."""
    shape = "×".join(map(str, ("N", *wanted)))
    if not isinstance(inputs, Tensor):
        raise TypeError(f"inputs is of type {type(inputs).__name__}; of an architecture it must be a tensor, {shape}.")
    if inputs.shape[1:] != wanted or len(inputs) < 2:
        raise ValueError(f"inputs is {'×'.join(map(str, inputs.shape))}; it must be {shape} with N > 1.")
    check_finite(inputs)


def check_finite(inputs: Tensor) -> None:
    if not bool(inputs.isfinite().all()):
        raise NonFinite("inputs: they hold NaN or inf; clean the data, or leave those examples out.")


def shape_of_one(inputs: Any) -> tuple[int, ...]:
    """The shape of one example, where it is one."""
    if not isinstance(inputs, (tuple, list)):
        kind = type(inputs).__name__
        raise TypeError(
            f"inputs is of type {kind}; it must be a tensor (N, ...), or the shape of one example as a tuple."
        )
    if not inputs or not all(isinstance(n, int) and n > 0 for n in inputs):
        told = repr(inputs) if all(isinstance(n, (int, float, str)) for n in inputs) else f"a {type(inputs).__name__}"
        raise ValueError(f"inputs is {told}; it must be a tensor (N, ...), or the shape of one example.")
    return tuple(inputs)
