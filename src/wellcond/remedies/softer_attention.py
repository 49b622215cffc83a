"""`softer-attention`: weights of queries and keys that are not too large to begin with."""

from __future__ import annotations

from torch import Tensor, nn

from wellcond.remedies.drawn_weights import with_weights
from wellcond.remedies.remedy import remedy
from wellcond.remedies.rewired import own_name
from wellcond.remedies.setup import Setup

LARGE = 2.0
"""Queries and keys this much larger than torch draws them have products that are four times as large."""


@remedy("softer-attention", "attention", rules=("attention-saturation",))
def softer_attention(setup: Setup) -> Setup | None:
    """Draws queries and keys of torch's attention as torch does where their weights are more than twice as large.

    Scores are products of both, and a softmax of large scores looks at one position only and has no gradient.
    """
    modules = setup.problem.model.named_modules()
    names = [name for name, module in modules if isinstance(module, nn.MultiheadAttention) and _is_loud(module)]
    if not names:
        return None

    def draw(model: nn.Module) -> None:
        for name in names:
            attention = model.get_submodule(name)
            assert isinstance(attention, nn.MultiheadAttention)
            nn.init.xavier_uniform_(attention.in_proj_weight[: 2 * attention.embed_dim])

    listed = ", ".join(f'"{own_name(name)}"' for name in names)
    lines = (
        f"for module in map(model.get_submodule, [{listed}]):\n"
        "    nn.init.xavier_uniform_(module.in_proj_weight.data[: 2 * module.embed_dim])  # queries and keys"
    )
    return with_weights(setup, draw, lines)


def _is_loud(attention: nn.MultiheadAttention) -> bool:
    if attention.in_proj_weight is None:  # queries and keys of different sizes
        return False
    weight: Tensor = attention.in_proj_weight[: 2 * attention.embed_dim]
    usual: float = (2 / sum(weight.shape)) ** 0.5
    return float(weight.detach().float().square().mean().sqrt()) > LARGE * usual
