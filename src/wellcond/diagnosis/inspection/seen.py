"""Sums over the calls of one module or function in the passes that are watched.

Legend: a *row* is one example at one position (pixel, token), a unit is a feature or channel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from wellcond.diagnosis.inspection.nonlinearities import RECTIFIERS, SLOPES, is_flat
from wellcond.diagnosis.inspection.signal import Signal

MOST_ROWS, MOST_FEATURES = 256, 4096
"""Examples, and entries of each, over which the variation is computed."""
CELLS = ("RNNCell", "LSTMCell", "GRUCell")
MANY_CALLS = 10
"""Calls in one pass from which a layer counts as one in a loop over steps."""


class SeenCalls:
    """What is seen of all modules and functions, in the order in which they are called first."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], Seen] = {}
        self._calls: dict[tuple[str, str], int] = {}

    def __iter__(self) -> Iterator[Seen]:
        return iter(self._seen.values())

    def begin(self) -> None:
        """Another pass begins."""
        self._calls.clear()

    def call_of(self, name: str, kind: str, is_weighted: bool, function: str | None) -> tuple[Seen, int]:
        """The sums that the next call belongs to, and how many of it there were in this pass before."""
        nth = self._calls.get((name, kind), 0)
        self._calls[name, kind] = nth + 1
        # a second ReLU after the same layer is another one; a module that is called again is the same
        key = (name, f"{kind}[{nth}]" if function and nth else kind)
        if key not in self._seen:
            self._seen[key] = Seen(name, kind, is_weighted, function)
        return self._seen[key], nth


class Seen:
    """Sums over the calls of one module or function."""

    def __init__(self, name: str, kind: str, is_weighted: bool, function: str | None) -> None:
        self.name, self.kind, self.is_weighted, self.function = name, kind, is_weighted, function
        self.units = self.rows = self.calls = 0
        self.values = self.squares = self.flat = self.not_finite = 0.0
        self.dead: Tensor | None = None
        self.full: Tensor | None = None
        self.variations: list[float] = []
        self.has_finite_input = True
        self.is_blank: bool | None = None
        self.taken: float | None = None
        self.gradients: list[Tensor] = []
        self.norms: Tensor | None = None
        self.sensitivities: list[Tensor] = []
        self.over_time: Tensor | None = None
        self.by_call: dict[int, Tensor] = {}

    def add(self, output: Tensor, dim: int, x: Tensor | None, examples: int) -> None:
        """Count one call."""
        output = output.detach()
        size = float(torch.linalg.vector_norm(output, dtype=_wide(output))) ** 2
        if not math.isfinite(size):
            bad = output.numel() - int(output.isfinite().sum())
            self.not_finite += bad
            self.has_finite_input &= x is None or bool(x.isfinite().all())
            output = output.nan_to_num(0.0, 0.0, 0.0)
            size = float(torch.linalg.vector_norm(output, dtype=torch.float64)) ** 2
        self.units, self.values, self.squares = output.shape[dim], self.values + output.numel(), self.squares + size
        self.rows += output.numel() // output.shape[dim]
        if self.function in RECTIFIERS or self.function in SLOPES:
            self._add_units(output.movedim(dim, -1).reshape(-1, output.shape[dim]))
        self.norms = None
        if self.is_weighted and len(output) == examples and examples > 1:
            if x is not None and x.is_floating_point() and len(x) == examples:
                self.taken = max(spread(x), self.taken or 0.0)
            by_example = output.flatten(1)
            self.norms = torch.linalg.vector_norm(by_example, dim=1, dtype=_wide(output))
            some = by_example[:MOST_ROWS, :MOST_FEATURES].float()
            total = float(some.square().sum())
            if 0 < total < math.inf:
                self.variations.append(float((some - some.mean(0)).square().sum()) / total)

    def add_blank(self, is_blank: bool | None) -> None:
        """Count whether one call gives all examples the same; None where that cannot be seen.

        A module that is called once a time step may say nothing in the first: it is blank if it is so in all calls.
        """
        if is_blank is not None:
            self.is_blank = is_blank and self.is_blank is not False

    def _add_units(self, rows: Tensor) -> None:
        if self.function in RECTIFIERS:
            self.dead = _both(self.dead, (rows == 0).all(0))
            self.full = _both(self.full, (rows > 0).all(0))
        elif self.function in SLOPES:
            self.flat += float(is_flat(self.function, rows).sum())

    def add_gradient(self, gradient: Tensor, examples: int, nth: int) -> None:
        """Count the gradient of the output of the nth call in a pass."""
        if len(gradient) != examples or not (self.is_weighted or self.kind in CELLS):
            return
        # the loss is a mean over the examples
        norms = torch.linalg.vector_norm(gradient.detach().flatten(1), dim=1, dtype=_wide(gradient)) * examples
        self.by_call[nth] = norms
        if self.is_weighted:
            self.gradients.append(norms)
            if self.norms is not None and len(self.norms) == len(norms):
                self.sensitivities.append(norms * self.norms)

    def signal(self) -> Signal:
        none = torch.empty(0, dtype=torch.bool)
        is_known = not self.not_finite  # what NaN makes of units and examples is no property of theirs
        return Signal(
            name=self.name,
            kind=self.function or self.kind,
            is_weighted=self.is_weighted,
            is_nonlinearity=self.function is not None,
            units=self.units,
            rows=self.rows,
            calls=self.calls,
            rms=math.sqrt(self.squares / self.values),
            variation=sum(self.variations) / len(self.variations) if self.variations and is_known else None,
            dead=self.dead.cpu() if self.dead is not None and is_known else none,
            full=self.full.cpu() if self.full is not None and is_known else none,
            saturated=self.flat / self.values if self.function in SLOPES and is_known else None,
            not_finite=self.not_finite / self.values,
            has_finite_input=self.has_finite_input,
            is_blank=bool(self.is_blank) and is_known,
            taken=self.taken,
            gradient=_rms(self.gradients),
            sensitivity=_rms(self.sensitivities),
            gradient_over_time=self._over_calls() if self.over_time is None else self.over_time,
        )

    def _over_calls(self) -> Tensor | None:
        """Gradient norms of a layer that is called in every step of a loop; 0 for a step that gets no gradient."""
        if self.calls < MANY_CALLS or not self.by_call:
            return None
        none = torch.zeros(())
        return torch.stack(
            [self.by_call[k].norm().double().cpu() if k in self.by_call else none.double() for k in range(self.calls)]
        )


def spread(t: Tensor) -> float:
    """RMS of what differs between examples."""
    return float((t.detach() - t.detach().mean(0)).square().mean().sqrt())


def _both(earlier: Tensor | None, now: Tensor) -> Tensor:
    """Whether units were so in earlier calls and are now; a layer whose width changes begins again."""
    return now if earlier is None or len(earlier) != len(now) else earlier & now


def _wide(t: Tensor) -> torch.dtype:
    """A type in which the norm of half-precision numbers does not overflow."""
    return torch.float64 if t.dtype == torch.float64 else torch.float32


def _rms(norms: list[Tensor]) -> float | None:
    return float(torch.cat(norms).double().square().mean().sqrt()) if norms else None
