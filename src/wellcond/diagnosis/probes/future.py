"""Which step's input each output is asked for, and whether it can see that input."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from wellcond.diagnosis.probes.influence import FIRST_MODULES, repeats, watched
from wellcond.diagnosis.probes.judges import is_judged_by_network
from wellcond.diagnosis.probes.own_shift import own_shift
from wellcond.diagnosis.probes.steps import ONE_HOT, Compared, Sequence, compared, sequences
from wellcond.diagnosis.probes.subject import Subject, relative_change

SHIFTS = (1, 0, -1, 2, 3, -2, -3)
"""Shifts that are looked for. The usual one comes first: where a sequence repeats itself, several fit."""
REPEATED = 0.95
"""Share of the targets that are inputs of another step. Masked or corrupted inputs leave 0.85 of them, and by chance it
is that of the most frequent token."""
OWN = 3.0
"""Change of the outputs of examples with other inputs over that of the rest of the batch, which a BatchNorm changes,
from which on it is their own."""
FEWEST = 32
"""Fewest targets that are compared."""


@dataclass(frozen=True)
class Shift:
    """Targets that are the inputs of another step.

    Attributes:
        steps: The output at step t is asked for the input at step t + steps: 1 for a language model.
        of_loss: How many of these the loss shifts by itself; the rest is in the data.
        share: Share of the targets for which this is so.
        is_tokens: Whether inputs are indices or one-hot codes, and not numbers.
        begins_unknown: Whether the first targets are none of the inputs and differ between examples, so that they were
            cut from a longer sequence.
        future: ‖f − f'‖/‖f‖ of the outputs just before a step, if inputs from this step on are other ones.
        past: The same of the outputs at the last step, if the inputs before it are other ones; 0 where targets are
            inputs of a later step, and it was not in question.
        layer: First module whose output at a step depends on later ones, if the outputs do; "" if that is not known.
    """

    steps: int
    of_loss: int
    share: float
    is_tokens: bool
    begins_unknown: bool
    future: float = 0.0
    past: float = 0.0
    layer: str = ""


def shift(subject: Subject) -> Shift | None:
    """Compare targets with inputs of nearby steps, and exchange the inputs that come later.

    Returns:
        None if the targets are not the inputs of a step, or those of its own that it does not see; or if another
        network gets inputs and outputs side by side, as a discriminator does: they are not compared.
    """
    if (own := own_shift(subject)) is not None:  # a model that computes its loss from labels
        steps = own.of_data + own.of_model
        return Shift(steps, own.of_model, own.share, True, False, past=float(own.sees_past))
    copying: Shift | None = None
    candidates = _candidates(subject)
    if candidates and is_judged_by_network(subject.problem):
        return None
    for sequence, pair, each in reversed(candidates):
        if each.steps:
            future = _future(subject, sequence, pair, each)
            past = _past(subject, sequence, pair) if each.steps < 0 else 0.0
            layer = _first_that_looks_ahead(subject, sequence) if future else ""
            return replace(each, future=future, past=past, layer=layer)
        # without a shift, only a network with a memory tells the steps from the examples
        past = _past(subject, sequence, pair) if each.is_tokens else 0.0
        if each.is_tokens and not _own(subject, sequence, pair):
            continue  # the model shifts its inputs by itself, as a decoder that is taught with the right tokens
        copying = replace(each, past=past)
        if past > subject.tolerance:
            return replace(copying, future=_future(subject, sequence, pair, each))
    return copying


def _candidates(subject: Subject) -> list[tuple[Sequence, Compared, Shift]]:
    """Sequences that the targets repeat; of several, as of an encoder and a decoder, the last is continued."""
    repeated: list[tuple[Sequence, Compared, Shift]] = []
    every = [] if subject.outputs is None else sequences(subject)
    for sequence in sorted(every, key=lambda each: each.layout.steps_first):
        layout = sequence.layout
        if layout.steps_first and any(each.steps for *_, each in repeated):
            break
        pair = subject.once(compared, layout)
        each = None if pair is None else _shift_between(sequence, pair)
        if pair is not None and each is not None:
            repeated.append((sequence, pair, each))
    shifted = [each for each in repeated if each[2].steps]
    return shifted or repeated[::-1]


def _shift_between(sequence: Sequence, pair: Compared) -> Shift | None:
    inputs, targets = _alike(sequence.grid, pair.target)
    if inputs is None:
        return None
    for steps in SHIFTS:
        share, count = _share(inputs, targets, pair, steps)
        if count >= FEWEST and share >= REPEATED:
            is_tokens = not inputs.is_floating_point()
            return Shift(steps, pair.offset, share, is_tokens, _begins_unknown(targets))
    return None


def _alike(inputs: Tensor, targets: Tensor) -> tuple[Tensor | None, Tensor]:
    """Inputs and targets in one form: indices, or numbers (N, T, features)."""
    if not targets.is_floating_point():
        if inputs.is_floating_point() and inputs.dim() == 3 and inputs.shape[2] >= ONE_HOT:
            is_code = bool(((inputs == 0) | (inputs == 1)).all()) and bool((inputs.sum(2) <= 1).all())
            inputs = inputs.argmax(2) if is_code else inputs
        fits = not inputs.is_floating_point() and inputs.dim() == 2 == targets.dim()
        return (inputs if fits else None), targets
    if not inputs.is_floating_point():
        return None, targets
    inputs, targets = (t.unsqueeze(2) if t.dim() == 2 else t.flatten(2) for t in (inputs, targets))
    if inputs.shape[2] > targets.shape[2]:  # one of several series is predicted
        steps = min(inputs.shape[1], targets.shape[1])
        chosen = int((inputs[:, 1:steps] - targets[:, : steps - 1, :1]).abs().sum((0, 1)).argmin())
        inputs, targets = inputs[..., chosen : chosen + 1], targets[..., :1]
    return (inputs if inputs.shape[2] == targets.shape[2] else None), targets


def _share(inputs: Tensor, targets: Tensor, pair: Compared, steps: int) -> tuple[float, int]:
    """The share of counted outputs whose target is the input some steps later, and how many were compared."""
    counted = pair.counted
    first = max(0, -steps, -pair.offset)
    last = min(counted.shape[1], inputs.shape[1] - steps, targets.shape[1] - pair.offset)
    if last <= first:
        return 0.0, 0
    x = inputs[:, first + steps : last + steps]
    y = targets[:, first + pair.offset : last + pair.offset]
    same = x == y if not x.is_floating_point() else torch.isclose(x, y.to(x.dtype), rtol=1e-5).all(2)
    where = counted[:, first:last]
    varies = bool((y[where] != y[where][:1]).any()) if bool(where.any()) else False
    return (float(same[where].double().mean()), int(where.sum())) if varies else (0.0, 0)


def _begins_unknown(targets: Tensor) -> bool:
    return bool((targets[:, 0] != targets[:1, 0]).any())


def _future(subject: Subject, sequence: Sequence, pair: Compared, each: Shift) -> float:
    """Exchange the inputs after a step: those outputs before it whose target is among these must not change."""
    steps = pair.counted.any(0).nonzero()[:, 0]
    begin = min(int(steps[len(steps) // 2]) + 1, sequence.grid.shape[1] - 1)
    where = torch.zeros(sequence.grid.shape[:2], dtype=torch.bool, device=sequence.grid.device)
    where[::2, begin:] = True  # the others show what changes through statistics of the batch alone
    window = slice(max(0, begin - max(each.steps, 1)), begin)
    return _change(subject, sequence, pair, where, window)


def _first_that_looks_ahead(subject: Subject, sequence: Sequence) -> str:
    """The first module whose output in the middle of the sequence depends on later steps."""
    seen = subject.once(watched)
    if seen is None or (seen.sequence.name, seen.sequence.layout) != (sequence.name, sequence.layout):
        return ""
    middle = sequence.layout.steps // 2
    for name, grid in seen.grids[:FIRST_MODULES]:
        if bool((seen.influence(grid[:, middle])[:, middle + 1 :] > 0).any()):
            return name
    return ""


def _past(subject: Subject, sequence: Sequence, pair: Compared) -> float:
    """Exchange the inputs before a step that is late."""
    last = int(pair.counted.any(0).nonzero()[-1, 0])
    where = torch.zeros(sequence.grid.shape[:2], dtype=torch.bool, device=sequence.grid.device)
    where[:, :last] = True
    return _change(subject, sequence, pair, where, slice(last, last + 1))


def _own(subject: Subject, sequence: Sequence, pair: Compared) -> float:
    """Exchange the inputs at a step that is late, and at all steps after it."""
    last = int(pair.counted.any(0).nonzero()[-1, 0])
    where = torch.zeros(sequence.grid.shape[:2], dtype=torch.bool, device=sequence.grid.device)
    where[:, last:] = True
    return _change(subject, sequence, pair, where, slice(last, last + 1))


def _change(subject: Subject, sequence: Sequence, pair: Compared, where: Tensor, window: slice) -> float:
    after = subject.outputs_for(sequence.with_other_examples(where))
    if after is None or subject.outputs is None or after.shape != subject.outputs.shape:
        return 0.0
    rows, counted = where.any(1)[:, None], pair.counted[:, window]
    before, after = (pair.grid(t)[:, window] for t in (subject.outputs, after))
    difference = relative_change(before[counted & rows], after[counted & rows])
    through_others = relative_change(before[counted & ~rows], after[counted & ~rows])
    if difference <= max(subject.tolerance, OWN * through_others) or not subject.once(repeats):
        return 0.0
    return difference
