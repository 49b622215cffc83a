"""The rules of a recorded run, one file per name, registered by these imports."""

from wellcond.recording.rules import (  # noqa: F401
    diverging,
    gradients_not_cleared,
    loss_spike,
    non_finite,
    overfitting,
)
