"""What a run on a handful of examples showed: whether they can be fitted, and told apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wellcond.diagnosis.learned import LEARNED
from wellcond.diagnosis.probes.paired import Paired
from wellcond.results.run import Run

BELOW_ZERO = -10.0
"""A loss above this may be a similarity, with its sign changed, that has only begun to grow."""
ONE_SIDED = 5.0
"""Fall of the loss over its rise in the same number of steps uphill: about 1 for a loss without any bound."""
LEAST_GAIN = 0.15
"""Gain of the right outputs over other examples' from which on a run on a handful tells examples apart. 0.8 to 1 in
healthy networks, also in those that start slowly; below 0.1 in autoencoders whose code is all noise."""
FAINT_GAIN, NOISY = 0.02, 3.0
"""The same where most of the loss is there whatever the outputs are, as a cross-entropy of gray pixels: 0.02 to 0.14
in a variational autoencoder that learns later. Three standard errors over draws of noise may be chance."""


@dataclass(frozen=True)
class Handful:
    """A run on a few examples with a robust optimizer.

    Attributes:
        examples: Number of examples; None if not all tensors count them.
        lr: Learning rate of Adam.
        before: Loss before the first step.
        after: Loss after the last step.
        constant: Loss of the best constant prediction of these examples.
        run: Losses of its steps.
        uphill: Loss after the same number of steps up the gradient; None where the loss did not plunge, or is the value
            that another network gives.
        lost_slope: Share of the loss's slope, after the last step, that its gradient does not have; None if every term
            of the loss has a gradient.
        paired: What the outputs are worth after the same steps in training mode, or after 160 if these tell nothing
            apart; None where that was not in question, because the network's own run does, or if it is not known.
        alone: The same after a run with the largest term of the loss only; None where `paired` tells examples apart, or
            the loss is no sum.
        later: Loss after more steps, where it fell to that of a constant: some stay there for a while; None elsewhere.
    """

    examples: int | None
    lr: float
    before: float
    after: float
    constant: float | None
    run: Run
    uphill: float | None = None
    lost_slope: float | None = None
    paired: Paired | None = None
    alone: Paired | None = None
    later: float | None = None

    @property
    def tells_nothing(self) -> bool:
        """Whether outputs may as well be another example's after the run in training mode."""
        known = self.paired
        return known is not None and known.gain < min(LEAST_GAIN, max(FAINT_GAIN, NOISY * known.noise))

    @property
    def tells_apart(self) -> bool:
        """Whether that run tells examples apart; False, too, if it was not made."""
        return self.paired is not None and not self.tells_nothing

    @property
    def fall(self) -> float:
        """Relative fall of the loss, from the start or from the constant's loss if that is lower."""
        start = self.before if self.constant is None else min(self.before, self.constant)
        return (start - self.after) / max(abs(start), 1e-12)

    @property
    def is_fitted(self) -> bool:
        """Whether the network has learned more about these examples than a constant."""
        return self.fall > 1 - LEARNED

    @property
    def is_upside_down(self) -> bool:
        """Whether the loss has no lower bound, but an upper one: it falls far more than steps uphill can raise it.

        A loss that is right has a floor and no ceiling; a critic's difference, or returns of both signs, have neither.
        """
        return self.uphill is not None and self.before - self.after > ONE_SIDED * abs(self.uphill - self.before)


def plunges(losses: Sequence[float]) -> bool:
    """Whether a loss falls far below zero, and ever faster."""
    middle = losses[len(losses) // 2]
    return losses[-1] < BELOW_ZERO and middle - losses[-1] > losses[0] - middle
