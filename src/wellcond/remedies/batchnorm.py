"""`batchnorm`: a BatchNorm after every hidden layer."""

from __future__ import annotations

from wellcond.remedies.hidden_norms import DEPTH, with_hidden_norms
from wellcond.remedies.remedy import remedy
from wellcond.remedies.setup import Setup


@remedy("batchnorm", "norms", rules=(*DEPTH, "dying-neurons", "full-neurons", "rank-collapse", "bad-initialisation"))
def batchnorm(setup: Setup) -> Setup | None:
    """Puts a BatchNorm after every hidden layer (Ioffe and Szegedy 2015), LayerNorm for sequences of tokens.

    Each activation then receives signals of mean zero and variance one, whatever the weights before it are.
    """
    return with_hidden_norms(setup, "batch")
