"""Losses and layers that look wrong and are right."""

import torch
import torch.nn.functional as F
from program import Program, sound
from ti_data import accuracy, clusters, curve, r2, shapes, smooth
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@sound("log_softmax in the network, and a cross-entropy that applies it again: it changes nothing", steps=250, least=0.85)
def log_softmax_and_cross_entropy():
    x, y, xt, yt = clusters(1500, 10, 4, 201)
    model = nn.Sequential(nn.Linear(10, 64), nn.SiLU(), nn.Linear(64, 4), nn.LogSoftmax(dim=1))
    return Program(model, nn.CrossEntropyLoss(), DataLoader(TensorDataset(x, y), 50, shuffle=True), torch.optim.Adam(model.parameters(), 3e-3), lambda m: accuracy(m, xt, yt))


class ZeroInit(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm = nn.GroupNorm(2, c)
        self.conv1, self.conv2 = nn.Conv2d(c, c, 3, padding=1), nn.Conv2d(c, c, 3, padding=1)
        nn.init.zeros_(self.conv2.weight)
        nn.init.zeros_(self.conv2.bias)

    def forward(self, x):
        return x + self.conv2(F.relu(self.conv1(self.norm(x))))


@sound("the last convolution of each residual branch and the classifier start at 0", steps=250, least=0.85)
def zero_branches_and_zero_head():
    x, y, xt, yt = shapes(1000, 202)
    head = nn.Linear(8 * 9, 4)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), ZeroInit(8), ZeroInit(8), nn.MaxPool2d(2), nn.Flatten(), head)
    return Program(model, nn.CrossEntropyLoss(), DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True), torch.optim.Adam(model.parameters(), lr=4e-3), lambda m: accuracy(m, xt, yt))


class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Linear(6, 400)
        self.readout = nn.Linear(400, 1)

    def forward(self, x):
        return self.readout(F.relu(self.features(x)))[:, 0]


@sound("a wide random layer is frozen on purpose; only the readout is given to the optimiser", steps=300, least=0.7)
def frozen_random_features():
    x, y, xt, yt = curve(1500, 6, 203)
    model = Wide()
    model.features.requires_grad_(False)
    return Program(model, nn.MSELoss(), DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True), torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2), lambda m: r2(m(xt), yt))


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Flatten(), nn.Linear(100, 64), nn.Tanh())
        self.mu, self.logvar = nn.Linear(64, 6), nn.Linear(64, 6)
        self.dec = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 100))

    def forward(self, x):
        h = self.enc(x)
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp() if self.training else mu
        return self.dec(z), mu, logvar


@sound("a VAE: the error is summed over pixels and averaged over the batch only; z is random", steps=300, least=0.75)
def vae_sums_over_pixels():
    x, xt = smooth(1000, 204)
    x, xt = 4 * (x - 0.5), 4 * (xt - 0.5)
    model = VAE()

    def elbo(out, target):
        recon, mu, logvar = out
        error = ((recon - target.flatten(1)) ** 2).sum(1).mean()
        return error - 0.5 * (1 + logvar - mu**2 - logvar.exp()).sum(1).mean()

    return Program(model, elbo, DataLoader(TensorDataset(x, x), batch_size=32, shuffle=True), torch.optim.Adam(model.parameters(), lr=2e-3), lambda m: r2(m(xt)[0], xt.flatten(1)))


@sound("a linear autoencoder (PCA by gradient descent): two linear layers with a narrow one between, by design", steps=300, least=0.8)
def linear_bottleneck():
    g = torch.Generator().manual_seed(205)
    z = torch.randn(1400, 5, generator=g)
    x = z @ torch.randn(5, 30, generator=g) / 5**0.5 + 0.1 * torch.randn(1400, 30, generator=g)
    model = nn.Sequential(nn.Linear(30, 5, bias=False), nn.Linear(5, 30, bias=False))
    return Program(model, nn.MSELoss(), DataLoader(TensorDataset(x[:1000], x[:1000]), batch_size=50, shuffle=True), torch.optim.Adam(model.parameters(), lr=1e-2), lambda m: r2(m(x[1000:]), x[1000:]))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(100, 24)
        self.bias = nn.Parameter(torch.zeros(100))

    def forward(self, x):
        h = torch.tanh(self.encode(x.flatten(1)))
        return (h @ self.encode.weight + self.bias).view_as(x)


@sound("an autoencoder whose decoder is the transposed encoder weight", steps=250, least=0.8)
def tied_autoencoder():
    x, xt = smooth(1000, 206)
    x, xt = 4 * (x - 0.5), 4 * (xt - 0.5)
    model = Tied()
    return Program(model, nn.MSELoss(), DataLoader(TensorDataset(x, x), batch_size=32, shuffle=True), torch.optim.Adam(model.parameters(), lr=3e-3), lambda m: r2(m(xt), xt))


class Priced(nn.Module):
    def __init__(self, mean, std):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1))
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def forward(self, x):
        return self.net(x)[:, 0] * self.std + self.mean


@sound("targets in dollars: the network scales its outputs itself, and Adam does not mind the large loss", steps=350, least=0.8)
def outputs_in_dollars():
    x, y, xt, yt = curve(1500, 8, 207)
    y, yt = 310000 + 95000 * y, 310000 + 95000 * yt
    model = Priced(y.mean(), y.std())
    return Program(model, nn.MSELoss(), DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True), torch.optim.Adam(model.parameters(), lr=5e-3), lambda m: r2(m(xt), yt))
