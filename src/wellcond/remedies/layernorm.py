"""`layernorm`: a LayerNorm after every hidden layer."""

from __future__ import annotations

from wellcond.remedies.hidden_norms import DEPTH, with_hidden_norms
from wellcond.remedies.remedy import remedy
from wellcond.remedies.setup import Setup


@remedy("layernorm", "norms", rules=DEPTH)
def layernorm(setup: Setup) -> Setup | None:
    """Puts a LayerNorm after every hidden layer (Ba et al. 2016); it does not depend on the other examples."""
    return with_hidden_norms(setup, "layer")
