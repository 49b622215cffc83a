"""Faults of a loss that show in its values alone, and healthy losses that look like them."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import wellcond as wc

G = torch.Generator().manual_seed(0)
IMAGES = torch.randn(64, 1, 6, 6, generator=G)
MASKS = (IMAGES > 0.3).float()
X = torch.randn(128, 6, generator=G)
TAGS = (X[:, :4] > -1).float()
COUNTS = torch.poisson((1 + X[:, 0]).exp(), generator=G)


def dense(classes=1):
    return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, classes, 1))


def overlap(outputs, targets):
    p = outputs.sigmoid()
    return ((2 * (p * targets).sum() + 1) / (p.sum() + targets.sum() + 1)).mean()


def places(reorder):
    return (
        dense(2),
        lambda o, t: F.cross_entropy(reorder(o).reshape(-1, 2), t.long().reshape(-1)),
        (IMAGES, MASKS[:, 0]),
    )


def tags(squash):
    network = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 4), squash)
    return network, nn.BCELoss(), (X, TAGS)


def counts():
    network = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 1), nn.Flatten(0))
    return network, nn.PoissonNLLLoss(), (X, COUNTS)


def next_token():
    tokens = (torch.arange(9) + torch.arange(64)[:, None]) % 5
    model = nn.Sequential(nn.Embedding(5, 16), nn.Linear(16, 5))

    def loss(outputs, targets):
        return F.cross_entropy(outputs[:, :-1].reshape(-1, 5), targets[:, 1:].reshape(-1))

    return model, loss, (tokens, tokens)


def mismatches(set_up):
    torch.manual_seed(0)
    model, loss, (x, y) = set_up()
    batches = [(x[i : i + 32], y[i : i + 32]) for i in range(0, len(x), 32)]
    findings = wc.diagnose(wc.Problem(model, loss, batches), torch.optim.Adam(model.parameters(), 5e-3)).findings
    return [each for each in findings if each.rule == "output-loss-mismatch"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "set_up",
    [
        lambda: places(lambda o: o),
        lambda: (dense(), overlap, (IMAGES, MASKS)),
        lambda: tags(nn.Softmax(1)),
    ],
    ids=["reshaped, not permuted", "a score is minimized", "labels that exclude each other"],
)
def test_found(set_up):
    assert [each.severity for each in mismatches(set_up)] == ["severe"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "set_up",
    [
        lambda: places(lambda o: o.permute(0, 2, 3, 1)),
        lambda: (dense(), lambda o, t: 1 - overlap(o, t), (IMAGES, MASKS)),
        lambda: tags(nn.Sigmoid()),
        counts,
        next_token,
    ],
    ids=["permuted", "a dice loss", "labels of their own", "counts", "a shift inside the loss"],
)
def test_sound(set_up):
    assert not mismatches(set_up)
