"""A last layer of zeros: the components of a mixture stay alike, and classes, numbers and labels do not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import wellcond as wc
from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.inspection.inspect import inspect
from wellcond.diagnosis.rules.symmetric_initialisation import alike_components

COMPONENTS = 4
Loss = Callable[[Tensor, Tensor], Tensor]


def mixture(out: Tensor, y: Tensor) -> Tensor:
    share, mean, log_scale = out.chunk(3, 1)
    density = -0.5 * ((y[:, :1] - mean) / log_scale.exp()) ** 2 - log_scale
    return -torch.logsumexp(share.log_softmax(1) + density, 1).mean()


def two_numbers(out: Tensor, y: Tensor) -> Tensor:
    """Mean and deviation of one number each."""
    mean, log_scale = out.chunk(2, 1)
    return (0.5 * ((y[:, :6] - mean) / log_scale.exp()) ** 2 + log_scale).mean()


def classes(out: Tensor, y: Tensor) -> Tensor:
    """Of twelve classes, the last six of which no example has."""
    return F.cross_entropy(out, (y[:, 0] > 0).long() + (y[:, 1] > 0).long() * 2)


def rare_labels(out: Tensor, y: Tensor) -> Tensor:
    """Labels that no example of this batch has."""
    return F.binary_cross_entropy_with_logits(out, (y.repeat(1, 2)[:, :12] > 9).float())


def actions(out: Tensor, y: Tensor) -> Tensor:
    """Values of one action of each example; those of most actions have no gradient."""
    chosen = (y[:, 0] > 0).long()
    return F.smooth_l1_loss(out.gather(1, chosen[:, None])[:, 0], y[:, 1])


@pytest.mark.parametrize(
    ("loss", "is_zero", "is_alike"),
    [
        (mixture, True, True),
        (mixture, False, False),
        (two_numbers, True, False),
        (classes, True, False),
        (rare_labels, True, False),
        (actions, True, False),
        (F.mse_loss, True, False),
    ],
    ids=["mixture of zeros", "mixture", "means and deviations", "classes", "rare labels", "actions", "numbers"],
)
def test_a_last_layer_of_zeros(loss: Loss, is_zero: bool, is_alike: bool) -> None:
    draw = torch.Generator().manual_seed(1)
    x, y = torch.randn(64, 5, generator=draw), torch.randn(64, 3 * COMPONENTS, generator=draw)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 3 * COMPONENTS))
    head = model[2]
    assert isinstance(head, nn.Linear)
    if is_zero:
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
    problem = wc.Problem(model, loss, [(x, y)])
    findings = [*alike_components(Evidence(problem, inspection=inspect(problem)))]
    assert [(each.layer, each.severity) for each in findings] == [("2", "severe")] * is_alike
