"""The lines that make a new `loss` around the user's."""

from __future__ import annotations


def wrapped_loss(name: str, value: str) -> str:
    """The lines of a `loss` that returns `value`, an expression in which the old loss is called `name`.

    The old one is bound where the new one is defined, so that lines may be pasted twice.

    Example:
        >>> print(wrapped_loss("summed_loss", "summed_loss(outputs, targets) / 64"))
        def loss(outputs, targets, summed_loss=loss):
            return summed_loss(outputs, targets) / 64
    """
    return f"def loss(outputs, targets, {name}=loss):\n    return {value}"
