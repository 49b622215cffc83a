"""`pre-norm`: norms of transformer layers before attention and feed-forward."""

from __future__ import annotations

from torch import nn

from wellcond.remedies.remedy import remedy
from wellcond.remedies.setup import Setup

TRANSFORMERS = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
LINES = """\
for module in model.modules():
    if isinstance(module, (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)):
        module.norm_first = True  # as by nn.TransformerEncoderLayer(…, norm_first=True)"""


@remedy("pre-norm", "norms", rules=("vanishing-gradient", "exploding-gradient", "learning-rate-too-high"))
def pre_norm(setup: Setup) -> Setup | None:
    """Puts the norms of transformer layers before attention and feed-forward, not after the sum (Xiong et al. 2020).

    After the sum they shrink the residual stream at every layer, and with it the gradients of the first ones.
    """
    if not any(isinstance(m, TRANSFORMERS) and not m.norm_first for m in setup.problem.model.modules()):
        return None

    def change(model: nn.Module) -> nn.Module:
        for module in model.modules():
            if isinstance(module, TRANSFORMERS):
                module.norm_first = True
        return model

    return setup.with_model(change, LINES, is_new=False)
