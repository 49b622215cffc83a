"""What was looked at once the runs of a trial had ended: other batches, one answer for all, terms, shared norms."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class HeldOut:
    """Mean losses of batches that a run with the optimizer as it is was trained on, and of others.

    Attributes:
        seen: Loss of the first after the run.
        unseen: Loss of the others after the run.
        before: Loss of the others before it.
        exchanged: The first two with the last tensor of each batch, as the labels, in the order of other examples; None
            if the loss does not take that.
    """

    seen: float
    unseen: float
    before: float
    exchanged: tuple[float, float] | None = None


@dataclass(frozen=True)
class OneAnswer:
    """What one answer for all examples is worth, after the run at its own rate.

    Attributes:
        loss: Loss of the first batch if all examples have the mean of the outputs; one number for all outputs where the
            loss does not depend on which example they belong to.
        is_compared: Whether the loss depends on which example outputs belong to.
        has_goals: Whether a step compares outputs with tensors that it makes itself, such as labels of ones.
    """

    loss: float
    is_compared: bool
    has_goals: bool


@dataclass(frozen=True)
class Swamped:
    """A term that stands still next to others which have fallen to nothing, are far larger, or penalize the weights.

    Attributes:
        before: Its value at the start.
        together: Its value after the run with all terms.
        alone: Its value after a run of the same length with this term only.
        others_before: Sum of the other terms at the start.
        others_after: Their sum after the run with all terms.
        are_of_weights: Whether the others depend on the weights alone: they are the same for other batches.
        still_falls: Whether it falls by 3 % or more when the run with all terms goes on for half its length.
        is_outweighed: Whether one of the others is large, and many times larger: it need not have fallen to nothing.
    """

    before: float
    together: float
    alone: float
    others_before: float
    others_after: float
    are_of_weights: bool = False
    still_falls: bool = False
    is_outweighed: bool = False


@dataclass(frozen=True)
class Bonus:
    """A bonus of the outputs alone next to a term that is not learned because of it.

    Attributes:
        before: The bonus at the start, below zero as it counts in the loss.
        after: The same after the run with all terms.
        term: The other term at the start.
        together: The same after the run with all terms.
        alone: The same after a run of the same length with this term only.
    """

    before: float
    after: float
    term: float
    together: float
    alone: float


@dataclass(frozen=True)
class SharedNorm:
    """A BatchNorm that is called at several places, after the run at its own rate.

    Attributes:
        name: Its name.
        calls: Calls in one pass.
        batch: Mean loss with the statistics of each batch.
        running: Mean loss with running statistics, averaged anew over all calls.
        is_by_pass: Whether a training step calls the whole model that often, as on real and on generated examples.
    """

    name: str
    calls: int
    batch: float
    running: float
    is_by_pass: bool = False
