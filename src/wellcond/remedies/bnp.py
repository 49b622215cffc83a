"""`bnp`: gradients preconditioned as if the inputs of every layer were normalized."""

from __future__ import annotations

from torch import nn
from torch.optim import Optimizer

from wellcond.optim.bnp import BNP
from wellcond.remedies.remedy import remedy
from wellcond.remedies.setup import Setup


@remedy("bnp", "gradient", rules=("ill-conditioned-input", "unscaled-input", "activation-drift"))
def bnp(setup: Setup) -> Setup | None:
    """Preconditions each layer's gradient as if its inputs were normalized (lange2022); the network stays as it is."""

    def precondition(model: nn.Module, optimizer: Optimizer, seed: int) -> None:
        BNP(model, optimizer)

    return setup.prepared(precondition, "wc.BNP(model, optimizer)")
