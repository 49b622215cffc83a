"""`decorrelate-inputs`: the principal components of a table in place of its features."""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor, nn

from wellcond.network.isolation.isolation import rng_kept
from wellcond.remedies.batch_code import pairs_code
from wellcond.remedies.remedy import remedy
from wellcond.remedies.setup import Setup

LINES = """\
x = torch.cat([inputs for inputs, _ in {pairs}])
_, s, v = torch.linalg.svd(x - x.mean(0), full_matrices=False)
whitening = nn.Linear(x.shape[1], x.shape[1]).requires_grad_(False)
whitening.weight.data = v * (len(x) ** 0.5 / s.clamp_min(1e-4 * s[0]))[:, None]
whitening.bias.data = -whitening.weight.data @ x.mean(0)
model = nn.Sequential(whitening, model)"""


@remedy("decorrelate-inputs", "inputs", rules=("ill-conditioned-input",))
def decorrelate_inputs(setup: Setup) -> Setup | None:
    """Puts a fixed layer first that turns the features of a table into principal components of variance one.

    Along a direction in which the inputs hardly vary gradient descent hardly moves; this makes all directions alike
    (LeCun et al. 1998, section 4.3). Directions below a ten-thousandth of the largest are left small.
    """
    with setup.problem.measuring(), contextlib.closing(setup.problem.data()) as data:
        batches = [inputs for _, (inputs, _) in data]
    if not all(isinstance(x, Tensor) and x.dim() == 2 and x.is_floating_point() for x in batches):
        return None
    x = torch.cat(batches)
    if len(x) <= x.shape[1]:
        return None
    _, s, v = torch.linalg.svd(x - x.mean(0), full_matrices=False)

    def change(model: nn.Module) -> nn.Module:
        with rng_kept(x.device):
            whitening = nn.Linear(x.shape[1], x.shape[1]).requires_grad_(False)
        whitening.weight.data = v * (len(x) ** 0.5 / s.clamp_min(1e-4 * s[0]))[:, None]
        whitening.bias.data = -whitening.weight.data @ x.mean(0)
        return nn.Sequential(whitening, model).train(model.training)

    return setup.with_model(change, LINES.format(pairs=pairs_code(setup)), is_new=False)
