"""Some of a problem's batches: the first ones, and mini-batches, with large ones cut."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from itertools import islice
from operator import length_hint
from typing import NamedTuple

from wellcond.problem.batches import Batch, cut, examples_in, first_examples
from wellcond.problem.problem import Problem

MOST_EXAMPLES = 64
"""Examples in a mini-batch that is cut from a larger batch: enough to see from its gradient whether a step helps."""
MOST_BATCHES = 8
"""Mini-batches of a trial."""
PROBED_OUTPUTS = 2**24
"""Numbers of a batch's outputs that probes compare, one pass after another; those of two examples may be more."""


class MiniBatches(NamedTuple):
    """Mini-batches of a problem.

    Attributes:
        batches: The mini-batches, as (inputs, targets).
        in_pass: How many like them a pass over the problem has.
    """

    batches: list[Batch]
    in_pass: float


def first_batches(problem: Problem, count: int) -> Problem:
    """The problem with this many of its batches; itself if it has no more."""
    if count >= problem.batch_count:
        return problem
    with contextlib.closing(problem.data()) as data:
        batches = [batch for _, batch in islice(data, count)]
    return Problem(problem.model, problem.loss, batches, problem.batchnorm, dropout=problem.dropout)


def for_probes(problem: Problem, shapes: Sequence[tuple[int, ...]]) -> Problem:
    """The problem with the first examples of its first batch, where probes could not compare the outputs of all.

    These are fewer if the outputs are very many, such as the logits of all words for every token; and one fewer if a
    batch has the length of its sequences: what has the steps in front looks like examples then.

    Args:
        problem: Is returned itself if all can be compared, or if the batch cannot be cut.
        shapes: Shapes of what the model returns for the batch.
    """
    outputs = sum(map(math.prod, shapes))
    is_square = any(len(shape) > 2 and shape[0] == shape[1] > 2 for shape in shapes)
    if outputs <= PROBED_OUTPUTS and not is_square:
        return problem
    with problem.measuring(), contextlib.closing(problem.data()) as data:
        _, batch = next(data)
    whole = examples_in(batch)
    fitting = min(max(2, PROBED_OUTPUTS * whole // outputs), whole - is_square)
    if fitting >= whole or not problem.runs_on_part(batch):
        return problem
    fewer = [first_examples(batch, fitting)]
    return Problem(problem.model, problem.loss, fewer, problem.batchnorm, dropout=problem.dropout)


def mini_batches(problem: Problem, most: int = MOST_EXAMPLES, *, batches: int = MOST_BATCHES) -> MiniBatches:
    """This many of the problem's first batches, cut where they have more than `most` examples."""
    with problem.measuring(), contextlib.closing(problem.data()) as data:
        whole = [batch for _, batch in islice(data, batches)]
    count = length_hint(problem.batches, 0) or len(whole)
    are_cut = examples_in(whole[0]) > most and problem.runs_on_part(whole[0])
    pieces = [piece for batch in whole for piece in cut(batch, most)] if are_cut else whole
    return MiniBatches(pieces[:batches], count * len(pieces) / len(whole))


def handful(problem: Problem, batch: Batch, count: int) -> Batch:
    """The first few examples; the batch itself if it cannot be cut, as a graph."""
    return first_examples(batch, count) if problem.runs_on_part(batch) else batch
