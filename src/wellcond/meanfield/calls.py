"""One call in a traced forward pass, as rules see it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from wellcond.meanfield.signals import NotUnderstood, Signal


@dataclass
class Call:
    """One call in a forward pass: of a module, or of a function named `name`.

    arguments: those behind the signal. shape, output: of the signal and of what came out; None where not known.
    """

    name: str
    what: Any
    arguments: tuple[Any, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    shape: torch.Size | None = None
    output: torch.Size | None = None
    remarks: list[str] = field(default_factory=list)
    """On what the theory takes otherwise than it is."""

    def argument(self, place: int, name: str, default: Any) -> Any:
        """By its place behind the signal or by its name."""
        return self.arguments[place] if place < len(self.arguments) else self.options.get(name, default)

    @property
    def kind(self) -> str:
        """The name of the module's type or of the function."""
        return type(self.what).__name__ if isinstance(self.what, nn.Module) else str(self.what)

    def refused(self, why: str | None = None, cure: str | None = None) -> NotUnderstood:
        """The error that says so."""
        article = "an" if self.kind[0] in "AEIOU" else "a"
        what = f"{article} {self.kind}" if isinstance(self.what, nn.Module) else f"a call of {self.kind}()"
        return NotUnderstood(self.name, what, why, cure)

    @property
    def sizes(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Height and width of the feature map before and behind; a sequence is a map of height 1."""
        if self.shape is None or self.output is None:
            raise self.refused(
                "what it does depends on the size of the feature maps",
                "Pass inputs=a batch of examples, or inputs=the shape of one, such as (3, 32, 32).",
            )
        before, behind = (_height_and_width(shape) for shape in (self.shape, self.output))
        return before, behind


Rule = Callable[[Call, Signal], Signal]


def two(values: int | Sequence[int], fill: int = 1) -> tuple[int, int]:
    """An option along height and width; a layer of sequences says nothing about the height, which is then `fill`."""
    first, second = (values, values) if isinstance(values, int) else (fill, fill, *values)[-2:]
    return first, second


def _height_and_width(shape: torch.Size) -> tuple[int, int]:
    return two(shape[2:])
