"""How far back in time a gradient reaches, compared with what the outputs depend on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from wellcond.diagnosis.probes.future import repeats
from wellcond.diagnosis.probes.influence import Watched, watched
from wellcond.diagnosis.probes.subject import Subject, relative_change

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
    """

    steps: int
    reached: int
    change: float = 0.0
    layer: str = ""


def memory(subject: Subject) -> Memory | None:
    """Differentiate the last outputs with respect to every step; change the steps before the first that has a gradient.

    Returns:
        None if the inputs are no sequence.
    """
    seen = subject.once(watched)
    if seen is None:
        return None
    has_gradient = (seen.influence(seen.outputs if seen.by_step is None else seen.by_step[:, -1]) > 0).any(0)
    if not bool(has_gradient.any()):
        return None
    cut = int(has_gradient.double().argmax())
    end = int(has_gradient.nonzero()[-1, 0])  # padding at the end, or a target for an earlier step
    if not cut or not bool(has_gradient[cut : end + 1].all()):
        return Memory(end + 1, end + 1 - cut)
    change = _change(subject, seen, cut)
    return Memory(end + 1, end + 1 - cut, change, _carrier(seen) if change else "")


def _change(subject: Subject, seen: Watched, cut: int) -> float:
    """How much the last outputs change with the inputs before the cut."""
    sequence = seen.sequence
    where = torch.zeros(sequence.grid.shape[:2], dtype=torch.bool, device=sequence.grid.device)
    where[:, :cut] = True
    if sequence.is_tokens:
        inputs = sequence.with_other_examples(where)
    else:
        noise = torch.randn(sequence.grid.shape, generator=torch.Generator().manual_seed(0)).to(sequence.grid)
        size = NUDGE * sequence.grid.double().square().mean().sqrt().to(noise)
        chosen = where.view(*where.shape, *[1] * (noise.dim() - 2))
        inputs = sequence.with_grid(sequence.grid + chosen * size * noise)
    after = subject.outputs_for(inputs)
    if after is None or subject.outputs is None or after.shape != subject.outputs.shape:
        return 0.0
    before = subject.outputs
    if seen.pair is not None:
        before, after = seen.pair.grid(before)[:, -1], seen.pair.grid(after)[:, -1]
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
    return isinstance(tensor, Tensor) and any(
        tensor.shape == other.shape and torch.equal(tensor, other) for other in others
    )
