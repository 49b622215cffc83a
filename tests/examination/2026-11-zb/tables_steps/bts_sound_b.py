"""Sound scripts with an ordinary loss."""

from __future__ import annotations

import math

import torch
from torch import nn

from bts_data import from_sklearn, hits, loader, mlp, r2, record_loader, surface
from bts_faults_a import Hyper, Molecule, conditioned
from program import Program, sound


@sound("Standardised wine, a small network", steps=200, least=0.85)
def bts_wine():
    x, x_held, y, y_held = from_sklearn("wine")
    model = mlp(13, 32, 3)
    return Program(
        model, nn.CrossEntropyLoss(), loader(x, y, size=32), torch.optim.Adam(model.parameters(), 3e-3),
        lambda m: hits(m(x_held), y_held),
    )


@sound("Raw columns of a clinic, normalised by a BatchNorm at the input", trained=60, steps=300, least=0.88)
def bts_clinic_batchnorm():
    x, x_held, y, y_held = from_sklearn("breast_cancer", scaled=False)
    model = nn.Sequential(nn.BatchNorm1d(30), nn.Linear(30, 32), nn.ReLU(), nn.Linear(32, 2))
    return Program(
        model, nn.CrossEntropyLoss(), loader(x, y, size=32), torch.optim.Adam(model.parameters(), 2e-3),
        lambda m: hits(m(x_held), y_held),
    )


@sound("Logistic regression at a rate of 1", steps=200, least=0.85)
def bts_logistic_rate_one():
    x, x_held, y, y_held = from_sklearn("iris")
    model = nn.Linear(4, 3)
    return Program(
        model, nn.CrossEntropyLoss(), loader(x, y, size=28), torch.optim.SGD(model.parameters(), 1.0),
        lambda m: hits(m(x_held), y_held),
    )


@sound("Plain regression on a table", steps=500, least=0.75)
def bts_plain_regression():
    x = torch.randn(2000, 8)
    y = surface(x)
    model = mlp(8, 64, 64, 1)
    return Program(
        model, nn.MSELoss(), loader(x[:1600], y[:1600, None]), torch.optim.Adam(model.parameters(), 3e-3),
        lambda m: r2(m(x[1600:]), y[1600:]),
    )


@sound("Counts with a Poisson loss, its outputs are logarithms", steps=400, least=0.7)
def bts_counts():
    x = torch.randn(2400, 6)
    log_rate = 1 + 0.7 * x[:, 0] + 0.6 * torch.sin(2 * x[:, 1])
    y = torch.poisson(log_rate.exp())
    model = mlp(6, 48, 48, 1)
    return Program(
        model, nn.PoissonNLLLoss(), loader(x[:2000], y[:2000, None]), torch.optim.Adam(model.parameters(), 3e-3),
        lambda m: r2(m(x[2000:]), log_rate[2000:]),
    )


@sound("Rare frauds, 6 in 100, with a weight on the positives", steps=400, least=0.7)
def bts_rare_frauds():
    x = torch.randn(3000, 8)
    signal = x[:, 0] * x[:, 1] + x[:, 2]
    y = (signal > signal.quantile(0.94)).float()
    model = mlp(8, 48, 48, 1)

    def score(m):
        out, truth = m(x[2400:])[:, 0], y[2400:] > 0
        return max(0.0, 2 * (out[truth][:, None] > out[~truth][None]).float().mean().item() - 1)

    return Program(
        model, nn.BCEWithLogitsLoss(pos_weight=torch.tensor(10.0)), loader(x[:2400], y[:2400, None]),
        torch.optim.Adam(model.parameters(), 3e-3), score,
    )


class Pinball(nn.Module):
    """The loss of three quantiles."""

    def forward(self, out, y):
        q = torch.tensor([0.1, 0.5, 0.9])
        gap = y[:, None] - out
        return torch.maximum(q * gap, (q - 1) * gap).mean()


@sound("Three quantiles of one target: more outputs than targets", steps=500, least=0.7)
def bts_three_quantiles():
    x = torch.randn(2000, 8)
    clean = surface(x)
    y = clean + 0.2 * torch.randn(2000)
    model = mlp(8, 64, 64, 3)
    return Program(
        model, Pinball(), loader(x[:1600], y[:1600]), torch.optim.Adam(model.parameters(), 4e-3),
        lambda m: r2(m(x[1600:])[:, 1], clean[1600:]),
    )


class Random(nn.Module):
    """Fixed random Fourier features and a trained last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Linear(3, 200).requires_grad_(False)
        nn.init.normal_(self.features.weight)
        nn.init.uniform_(self.features.bias, 0, 2 * math.pi)
        self.head = nn.Linear(200, 1)

    def forward(self, x):
        return self.head(torch.cos(self.features(x)))


@sound("Random Fourier features frozen on purpose", steps=500, least=0.7)
def bts_frozen_random_features():
    x = torch.randn(2000, 3)
    y = torch.sin(x[:, 0]) + torch.cos(1.5 * x[:, 1]) * x[:, 2]
    y = (y - y.mean()) / y.std()
    model = Random()
    return Program(
        model, nn.MSELoss(), loader(x[:1600], y[:1600, None]), torch.optim.Adam(model.head.parameters(), 1e-2),
        lambda m: r2(m(x[1600:]), y[1600:]),
    )


class Factors(nn.Module):
    """Products of factors of users and films, with biases."""

    def __init__(self) -> None:
        super().__init__()
        self.user, self.film = nn.Embedding(50, 5), nn.Embedding(40, 5)
        self.user_bias, self.film_bias = nn.Embedding(50, 1), nn.Embedding(40, 1)
        for part in (self.user, self.film):
            nn.init.normal_(part.weight, std=0.1)
        for part in (self.user_bias, self.film_bias):
            nn.init.zeros_(part.weight)
        self.level = nn.Parameter(torch.tensor(3.0))

    def forward(self, pair):
        u, f = pair[:, 0], pair[:, 1]
        product = (self.user(u) * self.film(f)).sum(1)
        return self.level + product + self.user_bias(u)[:, 0] + self.film_bias(f)[:, 0]


@sound("Factorisation of ratings 1 to 5: nothing nonlinear, small beginnings, rows of embeddings rarely touched",
       steps=500, least=0.65)
def bts_rating_factors():
    pair = torch.stack([torch.randint(50, (3000,)), torch.randint(40, (3000,))], 1)
    u, f = torch.randn(50, 2), torch.randn(40, 2)
    y = 3 + 0.7 * (u[pair[:, 0]] * f[pair[:, 1]]).sum(1) + 0.5 * torch.randn(50)[pair[:, 0]]
    y = (y + 0.1 * torch.randn(3000)).clamp(1, 5)
    model = Factors()
    return Program(
        model, nn.MSELoss(), loader(pair[:2500], y[:2500]), torch.optim.Adam(model.parameters(), 2e-2),
        lambda m: r2(m(pair[2500:]), y[2500:]),
    )


class Block(nn.Module):
    """A residual block whose branch begins at zero."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)
        nn.init.zeros_(self.down.weight)
        nn.init.zeros_(self.down.bias)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


@sound("Residual network for tables whose branches begin at zero", steps=500, least=0.7)
def bts_zero_branches():
    x = torch.randn(2000, 8)
    y = surface(x)
    model = nn.Sequential(nn.Linear(8, 48), Block(48), Block(48), Block(48), nn.Linear(48, 1))
    return Program(
        model, nn.MSELoss(), loader(x[:1600], y[:1600, None]), torch.optim.Adam(model.parameters(), 2e-3),
        lambda m: r2(m(x[1600:]), y[1600:]),
    )


@sound("Counts of words: most entries are 0, some words nearly never occur", steps=300, least=0.75)
def bts_word_counts():
    y = torch.randint(4, (1600,))
    rates = 0.06 + 0.5 * (torch.rand(4, 120) < 0.1).float()
    rates[:, :10] = 0.001
    x = torch.poisson(rates[y])
    model = mlp(120, 32, 4)
    return Program(
        model, nn.CrossEntropyLoss(), loader(x[:1200], y[:1200]), torch.optim.Adam(model.parameters(), 3e-3),
        lambda m: hits(m(x[1200:]), y[1200:]),
    )


@sound("Hypernetwork, half trained", trained=200, steps=500, least=0.65)
def bts_hypernetwork():
    x, c, y = conditioned(2300)
    model = Hyper()
    held = slice(2000, None)
    return Program(
        model, nn.MSELoss(), record_loader({"x": x[:2000], "c": c[:2000]}, y[:2000]),
        torch.optim.Adam(model.parameters(), 4e-3), lambda m: r2(m(x[held], c[held]), y[held]),
    )


@sound("Eight residual rounds of averages over bonds", steps=500, least=0.7)
def bts_molecule_residual():
    atoms = torch.randn(800, 8, 5)
    bonds = (torch.rand(800, 8, 8) < 0.4).float()
    bonds = ((bonds + bonds.transpose(1, 2) + torch.eye(8)) > 0).float()
    y = atoms[..., 0] * 1.2 + torch.tanh(atoms[..., 1]) + (bonds / bonds.sum(-1, keepdim=True) @ atoms)[..., 2]
    y = y / y.std()
    model = Molecule(True)
    held = slice(650, None)
    return Program(
        model, nn.MSELoss(), record_loader({"atoms": atoms[:650], "bonds": bonds[:650]}, y[:650], size=32),
        torch.optim.Adam(model.parameters(), 2e-3), lambda m: r2(m(atoms[held], bonds[held]), y[held]),
    )


@sound("Noisy labels, 15 in 100 at random, and dropout of one half, half trained", trained=150, steps=400, least=0.75)
def bts_noisy_labels():
    x = torch.randn(2400, 10)
    truth = (x[:, 0] + x[:, 1] * x[:, 2] > 0).long()
    y = torch.where(torch.rand(2400) < 0.15, 1 - truth, truth)
    model = nn.Sequential(
        nn.Linear(10, 96), nn.ReLU(), nn.Dropout(0.5), nn.Linear(96, 96), nn.ReLU(), nn.Dropout(0.5), nn.Linear(96, 2)
    )
    return Program(
        model, nn.CrossEntropyLoss(), loader(x[:2000], y[:2000]), torch.optim.Adam(model.parameters(), 3e-3),
        lambda m: hits(m(x[2000:]), truth[2000:]),
    )


@sound("Digits, trained to the end: the loss is nearly 0", trained=400, steps=500, least=0.9)
def bts_digits_trained():
    x, x_held, y, y_held = from_sklearn("digits", scaled=False)
    x, x_held = x / 16, x_held / 16
    model = mlp(64, 96, 10)
    return Program(
        model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(model.parameters(), 5e-3),
        lambda m: hits(m(x_held), y_held),
    )
