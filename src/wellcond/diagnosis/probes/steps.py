"""Sequences: which tensor of the inputs counts steps, along which dimension, and what the loss asks of each step.

Legend: N examples, T steps. A *grid* is a tensor with the examples in front and the steps next, (N, T, …).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from wellcond.diagnosis.probes.subject import Subject
from wellcond.network.calling import tensors_in
from wellcond.problem.batches import LABELS, own_copies
from wellcond.problem.loss.outputs import named_tensors, own_loss, with_tensors

FEWEST_STEPS = 3
"""Steps of the shortest sequence that is looked at."""
LOCAL = 0.5
"""Share of a change at one step from which on it is a change of this step."""
SPARE = 2
"""Steps that outputs may have less than inputs: a model may drop the last."""
LEAST = 0.05
"""Share of padded places from which on there is something to see."""
ONE_HOT = 3
"""Fewest classes of a one-hot code; two zeros and ones are flags."""


@dataclass(frozen=True)
class Layout:
    """How examples and steps are counted in a batch.

    Attributes:
        examples: N.
        steps: T.
        steps_first: Whether the steps are in front of the examples.
    """

    examples: int
    steps: int
    steps_first: bool

    def grids(self, tensor: Tensor, spare: int = 0) -> Iterator[Tensor]:
        """Views of a tensor as a grid: as it is, turned, with the steps last, or unrolled from one dimension.

        Args:
            tensor: Inputs, targets or outputs.
            spare: Steps that may be missing at the end.
        """
        n = self.examples
        for steps in range(self.steps, self.steps - spare - 1, -1):
            front = (steps, n) if self.steps_first else (n, steps)
            if tensor.shape[:2] == front:
                yield tensor.transpose(0, 1) if self.steps_first else tensor
            if tensor.dim() > 2 and tensor.shape[0] == n and tensor.shape[2] == steps and not self.steps_first:
                yield tensor.transpose(1, 2)
            if tensor.dim() and len(tensor) == n * steps and n > 1:
                unrolled = tensor.view(*front, *tensor.shape[1:])
                yield unrolled.transpose(0, 1) if self.steps_first else unrolled


@dataclass(frozen=True)
class Sequence:
    """A tensor of the inputs that counts steps.

    Attributes:
        inputs: The inputs, of which it is one.
        name: Its name in the inputs.
        grid: (N, T, …), a view of it.
        layout: How examples and steps are counted.
    """

    inputs: Any
    name: str
    grid: Tensor
    layout: Layout

    @property
    def is_tokens(self) -> bool:
        """Whether its entries are indices."""
        return not self.grid.is_floating_point()

    @property
    def shape(self) -> torch.Size:
        """Shape of the tensor as the model takes it."""
        return named_tensors(self.inputs)[self.name].shape

    @property
    def has_steps_last(self) -> bool:
        """Whether the steps come after the features, as convolutions want them."""
        return self.grid.dim() == 3 and self.shape[:2] not in (self.grid.shape[:2], self.grid.shape[1::-1])

    def with_grid(self, other: Tensor) -> Any:
        """The inputs with other values of this tensor, given as a grid."""
        tensor = named_tensors(self.inputs)[self.name]
        back = other.transpose(0, 1) if self.layout.steps_first else other
        if back.shape != tensor.shape:
            back = back.transpose(1, 2)
        return with_tensors(self.inputs, {id(tensor): back})

    def with_other_examples(self, where: Tensor) -> Any:
        """The inputs with those of another example at some places (N, T), so that all values are ordinary ones."""
        chosen = where.view(*where.shape, *[1] * (self.grid.dim() - 2))
        return self.with_grid(torch.where(chosen, _of_others(self.grid), self.grid))


@dataclass(frozen=True)
class Compared:
    """What the loss compares: outputs of a step with targets of a step.

    Attributes:
        target: (N, T, …), the targets.
        offset: The outputs at step t are compared with the targets at t + offset.
        counted: (N, T'), whether the loss depends on the outputs at a step; T' may be a few steps less than T.
        which: Number of the view that makes the outputs a grid, among all such views.
        layout: How examples and steps are counted.
    """

    target: Tensor
    offset: int
    counted: Tensor
    which: int
    layout: Layout

    def grid(self, outputs: Tensor) -> Tensor:
        """(N, T', …), the outputs."""
        return [*self.layout.grids(outputs, SPARE)][self.which]


def sequences(subject: Subject) -> list[Sequence]:
    """Tensors of the inputs that may count steps: indices (N, T), or numbers (N, T, …), in either order."""
    inputs = subject.once(separate_inputs)
    return [
        Sequence(inputs, name, grid, layout)
        for name, tensor in named_tensors(inputs).items()
        if not _is_target(subject, name, inputs) and tensor.dim() in (2, 3) and tensor.layout is torch.strided
        for layout in _layouts(tensor)
        for grid in [next(layout.grids(tensor))]
        if not _is_flag(tensor)
    ]


def separate_inputs(subject: Subject) -> Any:
    """The inputs with every tensor apart: a batch may have one for the tokens and the labels."""
    return own_copies(subject.inputs)


def has_steps_first(model: nn.Module) -> bool:
    """Whether its recurrent and attention layers expect the steps in front of the examples."""
    flags = [m.batch_first for m in model.modules() if isinstance(m, (nn.RNNBase, nn.MultiheadAttention))]
    return bool(flags) and not any(flags)


def _layouts(tensor: Tensor) -> Iterator[Layout]:
    first, second, *rest = tensor.shape
    if second >= FEWEST_STEPS:
        yield Layout(first, second, False)
    if first >= FEWEST_STEPS:
        yield Layout(second, first, True)
    if rest and rest[0] >= FEWEST_STEPS and tensor.is_floating_point():
        yield Layout(first, rest[0], False)


def _is_flag(tensor: Tensor) -> bool:
    """Whether it is a mask: zeros and ones, or booleans."""
    return tensor.dtype == torch.bool or (tensor.dim() == 2 and bool(((tensor == 0) | (tensor == 1)).all()))


def _is_target(subject: Subject, name: str, inputs: Any) -> bool:
    """Whether a tensor of the inputs holds the targets, from which the model computes its own loss."""
    return subject.problem.loss is own_loss and name == name_of_target(subject, inputs)


def name_of_target(subject: Subject, inputs: Any) -> str | None:
    """The name of the targets in the inputs of a model that computes its own loss."""
    names = [*named_tensors(inputs)]
    labels = [name for name in names if name in {f"[{label!r}]" for label in LABELS}]
    has_targets = isinstance(subject.targets, Tensor) and isinstance(inputs, (tuple, list)) and len(inputs) > 1
    return labels[0] if labels else names[-1] if has_targets else None


def compared(subject: Subject, layout: Layout) -> Compared | None:
    """See which outputs the gradient of the loss changes at, if the targets of one step are taken from other examples.

    Returns:
        None where there is no target for each step.
    """
    target = subject.once(target_of)
    grid = None if target is None else _target_grid(layout, target)
    if subject.outputs is None or target is None or grid is None:
        return None
    problem = subject.problem
    if problem.loss is own_loss and layout.steps_first and not has_steps_first(problem.model):
        return None  # each layout that is tried takes a pass
    if not any(True for _ in layout.grids(subject.outputs, SPARE)) or (before := subject.once(loss_gradient)) is None:
        return None
    # where all examples have the same target, as in padding, there is none to exchange
    steps = (grid != _of_others(grid)).transpose(0, 1).flatten(1).any(1).nonzero().flatten().tolist()
    for step in dict.fromkeys(steps[len(steps) * quarter // 4] for quarter in (2, 1, 3) if steps):
        changed = target.clone()
        _target_grid(layout, changed)[:, step] = _of_others(grid)[:, step]  # type: ignore[index]  # a view, as above
        if (after := loss_gradient(subject, changed)) is None:
            continue
        pairs = zip(layout.grids(before, SPARE), layout.grids(after, SPARE), strict=True)
        for which, (first, second) in enumerate(pairs):
            profile = (second - first).abs().transpose(0, 1).flatten(1).double().sum(1)
            if float(profile.max()) > LOCAL * float(profile.sum()) > 0:
                counted = first.flatten(2).any(2) if first.dim() > 2 else first != 0
                return Compared(grid, step - int(profile.argmax()), counted, which, layout)
        if problem.loss is own_loss:
            return None
    return None


def _target_grid(layout: Layout, target: Tensor) -> Tensor | None:
    """The targets as a grid: a step may be missing, or one more be there, of which the loss leaves out the first."""
    return next(replace(layout, steps=layout.steps + 1).grids(target, 2), None)


def _of_others(grid: Tensor) -> Tensor:
    """The values of other examples, or of other steps if there is only one example."""
    return grid.roll(1, 0) if len(grid) > 1 else grid.flip(1)


def target_of(subject: Subject) -> Tensor | None:
    """The targets, if they are one tensor, next to which there may be masks and lengths."""
    if subject.problem.loss is own_loss:
        inputs = subject.once(separate_inputs)
        return named_tensors(inputs).get(name_of_target(subject, inputs) or "")
    tensors = tensors_in(subject.targets)
    several = [t for t in tensors if t.dim() > 1 and not (_is_flag(t) and is_at_end(t.bool()))]
    return subject.targets if isinstance(subject.targets, Tensor) else several[0] if len(several) == 1 else None


def loss_gradient(subject: Subject, target: Tensor | None = None) -> Tensor | None:
    """∂L/∂f: of the loss alone, or by a pass through a model that computes its own loss.

    Args:
        subject: The batch.
        target: Other targets than its own.
    """
    problem = subject.problem
    with torch.enable_grad():
        if problem.loss is own_loss:
            inputs = subject.once(separate_inputs)
            labels = named_tensors(inputs)[name_of_target(subject, inputs) or ""]
            raw = problem.forward(0, with_tensors(inputs, {id(labels): labels if target is None else target}))
            outputs = subject.outputs_in(raw)
        else:
            outputs = None if subject.outputs is None else subject.outputs.detach().requires_grad_()
            raw = subject.raw if outputs is None else with_tensors(subject.raw, {id(subject.outputs): outputs})
        if outputs is None:
            return None
        targets, own = subject.targets, subject.once(target_of)
        if target is not None and own is not None and problem.loss is not own_loss:
            targets = with_tensors(targets, {id(own): target})
        loss = problem.raw_loss(raw, targets)
        (gradient,) = torch.autograd.grad(loss, [outputs], allow_unused=True)
    return None if gradient is None else gradient.detach()


def padded(grid: Tensor) -> Tensor | None:
    """(N, T), where steps are filled with one value: at one end, some in each example, and nowhere else."""
    for turned in (grid, grid.flip(1)):
        runs = _run_at_end(_is(turned, turned[:, -1:]))
        longest = int(runs.sum(1).argmax())
        is_filled = _is(turned, turned[longest : longest + 1, -1:])
        ends = _run_at_end(is_filled)
        lengths = ends.sum(1)
        varies = int(lengths.max()) > max(1, int(lengths.min()))
        if varies and bool((is_filled == ends).all()) and float(ends.double().mean()) >= LEAST:
            return ends if turned is grid else ends.flip(1)
    return None


def masked_places(subject: Subject, sequence: Sequence) -> Iterator[Tensor]:
    """(N, T), places that a mask or lengths in the batch say to be padding, and that all hold one value."""
    grid, layout = sequence.grid, sequence.layout
    for tensor in (*tensors_in(sequence.inputs), *tensors_in(subject.targets)):
        flags = next(layout.grids(tensor), None)
        if flags is not None and flags.dim() == 2 and _is_flag(tensor):
            candidates = [~flags.bool(), flags.bool()]
        elif tensor.shape == (layout.examples,) and not tensor.is_floating_point() and tensor.dtype != torch.bool:
            candidates = [torch.arange(layout.steps, device=tensor.device) >= tensor[:, None]]
        else:
            continue
        for places in candidates:
            if is_at_end(places) and bool((grid[places] == grid[places][:1]).all()):
                yield places


def is_at_end(places: Tensor) -> bool:
    """Whether places (N, T) are runs of different lengths at one end of each row, and never all of it."""
    if places.dim() != 2 or float(places.double().mean()) < LEAST or bool(places.all(1).any()):
        return False
    lengths = places.sum(1)
    is_run = any(torch.equal(_run_at_end(turned), turned) for turned in (places, places.flip(1)))
    return is_run and int(lengths.max()) > int(lengths.min())


def _is(grid: Tensor, value: Tensor) -> Tensor:
    same = grid == value
    return same.flatten(2).all(2) if same.dim() > 2 else same


def _run_at_end(places: Tensor) -> Tensor:
    return places.flip(1).long().cumprod(1).flip(1).bool()
