"""The rules of a recorded run, one file per name, registered by these imports."""

from wellcond.recording.rules import (  # noqa: F401
    data_changed,
    diverging,
    dying_neurons,
    exploding_gradient,
    gradient_underflow,
    gradients_not_cleared,
    layer_thawed,
    learning_rate_too_high,
    learning_rate_too_low,
    loss_not_decreasing,
    loss_spike,
    lost_updates,
    no_gradient,
    non_finite,
    overfitting,
    repeated_batches,
    saturated_activation,
    stale_statistics,
    vanishing_gradient,
    weight_decay_dominates,
)
