"""Batches of outputs: the loss of a part of a batch, of two batches joined, or of other outputs.

Nothing here runs the model. The loss is the user's, so any call may raise any exception.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from wellcond.problem.batches import examples_in
from wellcond.problem.loss.outputs import LossOfTensors

Change = Callable[[Tensor], Tensor]
MOST_COMPARED = 2**24
"""Entries of the outputs at which losses are compared: 128 MiB in float64, of which some five copies are held."""
FEWEST_COMPARED = 2
"""Fewest examples at which they are."""


def compared_examples(outputs: Tensor) -> int:
    """How many examples of these outputs are compared: all of them, unless they are very many numbers.

    >>> compared_examples(torch.empty(512, 10)), compared_examples(torch.empty(8, 512, 50257, device="meta"))
    (512, 2)
    """
    if outputs.numel() <= MOST_COMPARED:
        return len(outputs)
    return min(max(FEWEST_COMPARED, len(outputs) * MOST_COMPARED // outputs.numel()), len(outputs))


@dataclass(frozen=True)
class OutputBatch:
    """The outputs of one batch that its loss depends on, and the targets.

    Attributes:
        loss_of: The loss as a function of outputs and targets.
        tensors: The outputs, without a graph; those with the examples in front are cut and joined.
        targets: Any nest of tensors.
    """

    loss_of: LossOfTensors
    tensors: list[Tensor]
    targets: Any

    @property
    def examples(self) -> int:
        """Number of examples in the outputs."""
        return examples_in(self.tensors)

    @property
    def is_steps_first(self) -> bool:
        """Whether the examples are in the second dimension, after time steps: that of targets which the first lacks."""
        targets = [t for t in tree_flatten(self.targets)[0] if isinstance(t, Tensor) and t.dim()]
        seconds = {t.shape[1] for t in self.tensors if t.dim() > 1}
        return any(len(t) in seconds for t in targets) and not any(map(self._is_by_example, targets))

    def gradients(self) -> list[Tensor]:
        """Gradients of the loss with respect to each output; zero for those it does not depend on."""
        leaves = [t.detach().requires_grad_() for t in self.tensors]
        with torch.enable_grad():
            value = self.loss_of(leaves, self.targets)
            gradients: Sequence[Tensor | None] = [None] * len(leaves)
            if value.requires_grad:
                gradients = torch.autograd.grad(value.sum(), leaves, allow_unused=True)
        return [torch.zeros_like(leaf) if g is None else g.detach() for g, leaf in zip(gradients, leaves, strict=True)]

    def compared(self) -> OutputBatch:
        """The batch, or its first examples if its outputs are very many numbers, as over a vocabulary."""
        examples = min(compared_examples(t) for t in self.tensors if t.dim())
        return self if examples >= self.examples else self.taken(torch.arange(examples, device="cpu"))

    def at(self, *tensors: Tensor) -> OutputBatch:
        """The same batch with other outputs."""
        return replace(self, tensors=list(tensors))

    def taken(self, index: Tensor) -> OutputBatch:
        """Some of its examples."""
        n = self.examples

        def take(t: Tensor) -> Tensor:
            if not self._is_by_example(t):
                return t
            return t.reshape(n, len(t) // n, *t.shape[1:])[index].flatten(0, 1)

        return OutputBatch(self.loss_of, [take(t) for t in self.tensors], _mapped(take, self.targets))

    def joined(self, other: OutputBatch) -> OutputBatch:
        """This batch's examples and then the other's.

        Raises:
            ValueError: The two differ in something that is not an example, such as a class weight.
        """

        def join(a: Any, b: Any) -> Any:
            if not isinstance(a, Tensor) or not isinstance(b, Tensor):
                if a != b:
                    raise ValueError("the two batches have different settings")
                return a
            if self._is_by_example(a) and other._is_by_example(b):
                return torch.cat([a, b])
            if a.shape != b.shape or not torch.equal(a, b):
                raise ValueError("a tensor without examples differs between the two batches")
            return a

        (mine, form), (theirs, other_form) = tree_flatten(self.targets), tree_flatten(other.targets)
        if form != other_form:
            raise ValueError("the targets of the two batches have different forms")
        targets = tree_unflatten([join(a, b) for a, b in zip(mine, theirs, strict=True)], form)
        return OutputBatch(
            self.loss_of, [join(a, b) for a, b in zip(self.tensors, other.tensors, strict=True)], targets
        )

    def split(self, joined: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Cut the gradients of this batch joined with another into those of each."""
        by_example = [g for g in joined if g.dim()]
        return [g[: self.examples] for g in by_example], [g[self.examples :] for g in by_example]

    def shortened(self, dim: int, count: int, positions: Sequence[int]) -> OutputBatch:
        """The batch with only the first `count` places along one of the position dimensions of its one output."""
        (outputs,) = self.tensors
        sizes = [outputs.shape[d] for d in positions]
        place = 1 + list(positions).index(dim)

        def shorten(t: Tensor) -> Tensor:
            if t.dim() == outputs.dim() and t.shape[dim] == outputs.shape[dim]:
                return t.narrow(dim, 0, count)
            if t.dim() > place and t.shape[place] == outputs.shape[dim]:
                return t.narrow(place, 0, count)
            if t.dim() and len(t) == len(outputs) * math.prod(sizes) != len(outputs):  # tokens in one row
                by_place = t.reshape(len(outputs), *sizes, *t.shape[1:])
                return by_place.narrow(place, 0, count).flatten(0, len(sizes))
            return t

        return OutputBatch(self.loss_of, [shorten(outputs)], _mapped(shorten, self.targets))

    def _is_by_example(self, t: Tensor) -> bool:
        """Whether a tensor has the examples in front, or all their positions in one row."""
        if not t.dim():
            return False
        shapes = [o.shape for o in self.tensors if o.dim()]
        counts = {self.examples * math.prod(part) for shape in shapes for part in ((), shape[1:-1], shape[2:])}
        return len(t) in counts


def scaling(after: Sequence[Tensor], before: Sequence[Tensor]) -> float | None:
    """The number r with after = r · before, or None if there is none."""
    a, b = (torch.cat([t.double().reshape(-1) for t in tensors]) for tensors in (after, before))
    size = float(b @ b)
    if not 0 < size < math.inf:
        return None
    r = float(a @ b) / size
    error = float((a - r * b).norm())
    return r if error <= tolerance(before[0]) * float(a.norm()) else None


def compared_with_gradients(batch: OutputBatch) -> tuple[OutputBatch, list[Tensor]]:
    """As `with_gradients`, of the first examples if outputs are very many numbers and the loss takes fewer."""
    few = batch.compared()
    if few is not batch:
        with contextlib.suppress(Exception):
            return with_gradients(few)
    return with_gradients(batch)


def with_gradients(batch: OutputBatch) -> tuple[OutputBatch, list[Tensor]]:
    """The gradients of a batch; where they are zero, as at a perfect fit, the batch with other outputs and theirs."""
    gradients = batch.gradients()
    if any(bool(g.any()) for g in gradients):
        return batch, gradients
    elsewhere = batch.at(*map(waves, batch.tensors))
    try:
        return elsewhere, elsewhere.gradients()
    except Exception:  # a loss of probabilities refuses other numbers
        return batch, gradients


def is_one(r: float | None) -> bool:
    """Whether a scaling is 1, up to rounding."""
    return r is not None and abs(r - 1) < 1e-3


def tolerance(tensor: Tensor) -> float:
    """Relative error up to which two numbers of this precision count as equal."""
    return min(1e3 * torch.finfo(tensor.dtype).eps, 0.02)


def waves(tensor: Tensor) -> Tensor:
    """Numbers between −1 and 1, all different, of the shape of a tensor."""
    return torch.arange(1.0, tensor.numel() + 1, device=tensor.device).sin().view_as(tensor).to(tensor)


def fingerprint(targets: Any) -> list[tuple[int, float]]:
    """Numbers that change with the values of the targets and with their order."""
    sums = []
    for t in tree_flatten(targets)[0]:
        if isinstance(t, Tensor):
            flat = t.detach().reshape(-1).double()
            sums.append((len(flat), float(flat @ waves(flat))))
    return sums


def _mapped(change: Change, targets: Any) -> Any:
    leaves, form = tree_flatten(targets)
    return tree_unflatten([change(t) if isinstance(t, Tensor) else t for t in leaves], form)
