"""Examples, units and outputs that are nearly alike, or mixed with each other, by effect."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import wellcond as wc

G = torch.Generator().manual_seed(0)
X = torch.randn(256, 8, generator=G)
LABELS = (torch.tanh(X @ torch.randn(8, 12, generator=G)) @ torch.randn(12, 3, generator=G)).argmax(1)
WORDS = torch.randint(0, 12, (256, 32), generator=G)
MANY = ((WORDS < 6).double().mean(1) > 0.5).long()


class Normalized(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.hidden, self.out, self.dim = nn.Linear(8, 32), nn.Linear(32, 3), dim

    def forward(self, x):
        return self.out(5 * F.normalize(torch.relu(self.hidden(x)), dim=self.dim))


class Pooled(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.words, self.hidden, self.out, self.dim = nn.Embedding(12, 16), nn.Linear(16, 32), nn.Linear(32, 2), dim

    def forward(self, x):
        return self.out(torch.relu(self.hidden(self.words(x))).mean(self.dim))


class Dropped(nn.Module):
    """A perceptron whose activation is assigned, or thrown away."""

    def __init__(self, is_used):
        super().__init__()
        self.one, self.two, self.is_used = nn.Linear(8, 64), nn.Linear(64, 3), is_used
        self.act = nn.ReLU()

    def forward(self, x):
        h = self.one(x)
        activated = self.act(h)
        return self.two(activated if self.is_used else h)


def around(mean):
    model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3))
    nn.init.normal_(model[0].weight, mean, 0.02)
    return model


def ill(model, x, y):
    batches = [(x[i : i + 32], y[i : i + 32]) for i in range(0, 256, 32)]
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    findings = wc.diagnose(wc.Problem(model, nn.CrossEntropyLoss(), batches), optimizer).findings
    return [(each.rule, each.layer) for each in findings if each.severity != "note"]


CASES = {
    "a norm over the batch": (lambda ok: Normalized(1 if ok else 0), X, LABELS, "mixed-examples", "out"),
    "a mean over the batch": (lambda ok: Pooled(1 if ok else 0), WORDS, MANY, "mixed-examples", "out"),
    "an activation in vain": (Dropped, X, LABELS, "no-nonlinearity", "one"),
    "weights around 1": (lambda ok: around(0.0 if ok else 1.0), X, LABELS, "symmetric-initialisation", "0"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_found_and_sound(name):
    make, x, y, rule, layer = CASES[name]
    torch.manual_seed(0)
    assert ill(make(False), x, y)[0] == (rule, layer)
    torch.manual_seed(0)
    assert ill(make(True), x, y) == []
