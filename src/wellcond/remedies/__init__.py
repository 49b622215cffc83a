"""Remedies, one file each: what a remedy does to a set-up, and the lines a person writes for it."""

# every file registers its remedy when it is imported
from wellcond.remedies import (  # noqa: F401
    adam,
    batchnorm,
    bnp,
    class_dimension,
    clip,
    cross_entropy,
    decorrelate_inputs,
    fresh_norms,
    group_norm,
    he_init,
    larger_eps,
    last_bn,
    layernorm,
    leaky_relu,
    lecun_init,
    less_dropout,
    less_weight_decay,
    logits,
    match_shapes,
    no_decay_of_norms,
    nonlinearity,
    open_gates,
    orthogonal_init,
    orthogonal_recurrence,
    own_layers,
    pre_norm,
    rate,
    relu,
    scale_amended,
    scale_inputs,
    scale_targets,
    sgd,
    sigmoid_output,
    softer_attention,
    unfreeze,
    unit_signals,
    usual_settings,
    warm_up,
    zero_biases,
    zero_last,
)
from wellcond.remedies.remedy import REMEDIES as REMEDIES
from wellcond.remedies.remedy import Remedy, lines_for
from wellcond.remedies.setup import Setup

__all__ = ["Remedy", "Setup", "lines_for"]
