"""How far back in time a gradient reaches, compared with what the outputs depend on."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from wellcond.diagnosis.probes.influence import Reading, Watched, read_out, repeats
from wellcond.diagnosis.probes.steps import compared
from wellcond.diagnosis.probes.subject import Subject, relative_change
from wellcond.network.calling import is_equal

NUDGE = 0.1
"""Change of the numbers before the cut, over their RMS: too small to move a maximum or a choice elsewhere."""


@dataclass(frozen=True)
class Memory:
    """A sequence up to the last step whose outputs count.

    Attributes:
        steps: Number of its steps.
        reached: Last steps that a gradient comes back to; the gradient of all others is exactly zero.
        change: ‖f − f'‖/‖f‖ of the outputs if the inputs of the others change; 0 if a gradient comes back to all.
        layer: Layer that is called again and again, and carries the state; "" if that is not known.
        over_time: (steps,), gradient norms of what is read from the last step; None if some are zero.
    """

    steps: int
    reached: int
    change: float = 0.0
    layer: str = ""
    over_time: Tensor | None = field(default=None, compare=False, repr=False)


def memory(subject: Subject) -> Memory | None:
    """Differentiate what is read from a sequence with respect to every step; change the steps that get no gradient.

    Returns:
        None if the inputs are no sequence.
    """
    reading = subject.once(read_out)
    if reading is None:
        return None
    steps = torch.arange(reading.pads.shape[1], device=reading.pads.device)
    back = reading.last[:, None] - steps  # (N, T), how many steps before the last one
    is_real = ~reading.pads & (back >= 0)
    with_gradient = back[is_real & (reading.influence > 0)]
    reached = int(with_gradient.max()) + 1 if len(with_gradient) else 0
    lost = is_real & (back >= reached)
    length = int(reading.last.max()) + 1
    if not reached:
        return Memory(length, reached)
    if not bool(lost.any()):
        over_time = (reading.influence * is_real)[:, :length].sum(0).cpu()
        return Memory(length, reached, layer=_carrier(reading.watched), over_time=over_time)
    change = _change(subject, reading, lost)
    return Memory(length, reached, change, _carrier(reading.watched) if change else "")


def _change(subject: Subject, reading: Reading, lost: Tensor) -> float:
    """How much what is read changes with the steps that get no gradient."""
    sequence = reading.watched.sequence
    if sequence.is_tokens:
        lost = lost & ~reading.pads.roll(1, 0)  # a mask may be made from the tokens
        inputs = sequence.with_other_examples(lost)
    else:
        noise = torch.randn(sequence.grid.shape, generator=torch.Generator().manual_seed(0)).to(sequence.grid)
        size = NUDGE * sequence.grid.double().square().mean().sqrt().to(noise)
        inputs = sequence.with_grid(sequence.grid + lost[:, :, None] * size * noise)
    after = subject.outputs_for(inputs)
    if after is None or subject.outputs is None or after.shape != subject.outputs.shape:
        return 0.0
    before = subject.outputs
    pair = subject.once(compared, sequence.layout)
    if pair is not None:
        rows = torch.arange(len(lost))
        before, after = (pair.grid(t)[rows, reading.last] for t in (before, after))
    change = relative_change(before, after)
    return change if change > subject.tolerance and subject.once(repeats) else 0.0


def _carrier(seen: Watched) -> str:
    """A layer that is called more than once and reads something else than the sequence; the module of several."""
    steps = [step for step in seen.sequence.grid.unbind(1) if step.is_floating_point()]
    steps += [piece for _, piece in seen.read if piece.dim() == 2]
    model = seen.problem.model
    again = {
        name: inputs
        for name, inputs in seen.calls.items()
        if len(inputs) > 1 and any(True for _ in model.get_submodule(name).parameters()) and not _is_index(inputs[-1])
    }
    carriers = [name for name, inputs in again.items() if not _is_any(inputs[-1], steps)] or [*again]
    outer = [name for name in carriers if not any(name.startswith(f"{other}.") for other in carriers)]
    return outer[0] if outer else ""


def _is_index(tensor: object) -> bool:
    return isinstance(tensor, Tensor) and not tensor.is_floating_point()


def _is_any(tensor: object, others: list[Tensor]) -> bool:
    return isinstance(tensor, Tensor) and any(is_equal(tensor, other) for other in others)
