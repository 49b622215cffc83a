"""`fresh-norms`: norms with scales of one and shifts of zero."""

from __future__ import annotations

from torch import nn

from wellcond.remedies.drawn_weights import with_weights
from wellcond.remedies.remedy import remedy
from wellcond.remedies.setup import Setup

NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm)
LINES = """\
for module in model.modules():
    if isinstance(module, (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm)):
        module.reset_parameters()"""


@remedy("fresh-norms", "norms", rules=("dying-neurons", "full-neurons"))
def fresh_norms(setup: Setup) -> Setup | None:
    """Sets the scales of norms to one and their shifts to zero, as they start.

    A norm gives its activation values around zero, of which about half are on each side; a shift of several standard
    deviations puts all of them on one.
    """
    if not any(isinstance(module, NORMS) for module in setup.problem.model.modules()):
        return None

    def reset(model: nn.Module) -> None:
        for module in model.modules():
            if isinstance(module, NORMS):
                module.reset_parameters()

    return with_weights(setup, reset, LINES)
