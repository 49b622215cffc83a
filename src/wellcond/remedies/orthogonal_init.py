"""`orthogonal-init`: orthogonal weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from wellcond.remedies.drawn_weights import SIGNALS, with_drawn_layers
from wellcond.remedies.remedy import remedy
from wellcond.remedies.setup import Setup


@remedy("orthogonal-init", "weights", rules=SIGNALS)
def orthogonal_init(setup: Setup) -> Setup | None:
    """Draws orthogonal weights times √2, biases zero (Saxe et al. 2014).

    All singular values are the same, so that no direction of the signal or of the gradient is lost with depth.
    """
    is_half = setup.problem.dtype in (torch.float16, torch.bfloat16)  # for which torch has no QR decomposition

    def draw(module: Any) -> None:
        weight = module.weight.float() if is_half else module.weight
        module.weight.copy_(nn.init.orthogonal_(weight, gain=2**0.5))

    def line(is_input_major: bool) -> str:
        if is_half:
            return "module.weight.data = nn.init.orthogonal_(module.weight.data.float(), gain=2**0.5).to(module.weight)"
        return "nn.init.orthogonal_(module.weight, gain=2**0.5)"

    return with_drawn_layers(setup, draw, line)
