"""A norm after every hidden layer, of a model that has none."""

from __future__ import annotations

from typing import Literal

from wellcond.network.norms import is_norm
from wellcond.nn.normalized import normalized
from wellcond.remedies.batch_code import inputs_line
from wellcond.remedies.setup import Setup

DEPTH = (
    "vanishing-gradient",
    "exploding-gradient",
    "activation-drift",
    "ill-conditioned-input",
    "saturated-activation",
)
"""Rules whose findings a norm between layers may treat."""


def with_hidden_norms(setup: Setup, kind: Literal["batch", "layer"]) -> Setup | None:
    """With a BatchNorm or a LayerNorm after every hidden layer; None if the model has norms."""
    if any(map(is_norm, setup.problem.model.modules())):
        return None
    return setup.with_model(
        lambda model: normalized(model, setup.inputs, kind),
        inputs_line(setup),
        f'model = wc.nn.with_norms(model, inputs, "{kind}")',
    )
