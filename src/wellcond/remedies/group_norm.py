"""`group-norm`: GroupNorm in place of BatchNorm."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from wellcond.nn.replace import exchanged
from wellcond.remedies.remedy import remedy
from wellcond.remedies.setup import Setup

LINES = """\
model = wc.nn.replace_norm(
    model,
    lambda old: nn.GroupNorm(1, old.num_features, old.eps, old.affine),
    of=nn.modules.batchnorm._BatchNorm,
)"""


@remedy("group-norm", "norms", rules=("small-batch-batchnorm", "batchnorm-mode-gap"))
def group_norm(setup: Setup) -> Setup | None:
    """Puts a GroupNorm of one group in place of every BatchNorm (Wu and He 2018): its statistics are of one example.

    Statistics of a small batch are noisy, by 1/√N, and differ from the running ones used in evaluation. One group works
    after every layer: groups of few channels do not, since after a linear layer of 8 units, 8 groups give zeros.
    """
    if not any(isinstance(module, _BatchNorm) for module in setup.problem.model.modules()):
        return None

    def change(model: nn.Module) -> nn.Module:
        return exchanged(model, {m: _of_one_group(m) for m in model.modules() if isinstance(m, _BatchNorm)})

    return setup.with_model(change, LINES)


def _of_one_group(norm: _BatchNorm) -> nn.GroupNorm:
    """A GroupNorm with the scale and shift of a BatchNorm."""
    new = nn.GroupNorm(1, norm.num_features, norm.eps, norm.affine).train(norm.training)
    new.weight, new.bias = norm.weight, norm.bias
    return new
