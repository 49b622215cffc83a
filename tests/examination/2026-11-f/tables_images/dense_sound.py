"""Pictures out of pictures: sound set-ups."""

from __future__ import annotations

import math
import torch
from dense_images import UNet, VAE, block, discs, gaussians, overlap, rebuilt, vae_loss
from program import Program, sound
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


@sound("an ordinary U-Net on small objects, positives weighted", steps=250, least=0.6)
def plain_unet():
    x, mask, _ = discs(600, 10)
    hx, hmask, _ = discs(200, 11)
    model = UNet()
    loader = DataLoader(TensorDataset(x, mask), batch_size=16, shuffle=True)
    loss = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(2.0))
    return Program(model, loss, loader, torch.optim.Adam(model.parameters(), 5e-3), overlap(hx, hmask))


@sound("a Dice loss alone, without norms, half trained", trained=100, steps=300, least=0.6)
def dice_only():
    x, mask, _ = discs(600, 12)
    hx, hmask, _ = discs(200, 13)
    model = UNet(10, norm=False)

    def dice(out, t):
        p = out.sigmoid()
        both, either = (p * t).sum((1, 2, 3)), p.sum((1, 2, 3)) + t.sum((1, 2, 3))
        return 1 - ((2 * both + 1) / (either + 1)).mean()

    loader = DataLoader(TensorDataset(x, mask), batch_size=16, shuffle=True)
    return Program(model, dice, loader, torch.optim.Adam(model.parameters(), 3e-3), overlap(hx, hmask))


@sound("heat maps of a key point, nearly all zeros, squared errors times 100", steps=300, least=0.6)
def sparse_heat_map():
    def load(n, seed):
        x, _, box = discs(n, seed)
        grid = torch.arange(16).float()
        d2 = (grid[None, :, None] - box[:, 1, None, None]) ** 2 + (grid[None, None, :] - box[:, 0, None, None]) ** 2
        return x, torch.exp(-d2 / 2)[:, None], box[:, :2]

    x, heat, _ = load(800, 14)
    hx, _, at = load(300, 15)
    model = nn.Sequential(block(1, 12), block(12, 12), block(12, 12), nn.Conv2d(12, 1, 3, padding=1))
    loader = DataLoader(TensorDataset(x, heat), batch_size=16, shuffle=True)

    def score(m):
        best = m(hx).flatten(1).argmax(1)
        found = torch.stack([best % 16, best // 16], 1).float()
        return ((found - at).norm(dim=1) < 2).float().mean().item()

    return Program(model, lambda o, t: 100 * F.mse_loss(o, t), loader, torch.optim.Adam(model.parameters(), 3e-3), score)


@sound("an autoencoder whose decoder is the transposed encoder, with a loss summed over pixels", steps=500, least=0.6)
def tied_autoencoder():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = nn.ParameterList([torch.randn(96, 144) / 12, torch.randn(16, 96) / 96**0.5])
            self.biases = nn.ParameterList([torch.zeros(k) for k in (96, 16, 96, 144)])

        def forward(self, x):
            h = F.gelu(F.linear(x, self.weights[0], self.biases[0]))
            z = F.linear(h, self.weights[1], self.biases[1])
            h = F.gelu(F.linear(z, self.weights[1].T, self.biases[2]))
            return F.linear(h, self.weights[0].T, self.biases[3])

    x, hx = gaussians(3000, 8), gaussians(400, 9)
    model = Tied()
    loader = DataLoader(TensorDataset(x, x), batch_size=64, shuffle=True)
    return Program(
        model, lambda o, t: (o - t).square().sum(1).mean(), loader, torch.optim.Adam(model.parameters(), 2e-3), rebuilt(hx)
    )


@sound("a variational autoencoder with both terms summed, and Adam as GANs have it", trained=250, steps=500, least=0.6)
def balanced_vae():
    x, hx = gaussians(2000, 10), gaussians(400, 11)
    model = VAE()
    loader = DataLoader(TensorDataset(x, x), batch_size=64, shuffle=True)
    inner = rebuilt(hx)
    return Program(
        model, vae_loss(False), loader, torch.optim.Adam(model.parameters(), 2e-3, betas=(0.5, 0.9)), lambda m: inner(lambda v: m(v)[0])
    )


@sound("sines with a frequency of 30 that fit one picture from its coordinates", steps=300, least=0.8)
def sine_network():
    class Sine(nn.Module):
        def __init__(self, a, b, is_first=False):
            super().__init__()
            self.linear = nn.Linear(a, b)
            bound = 1 / a if is_first else math.sqrt(6 / a) / 30
            nn.init.uniform_(self.linear.weight, -bound, bound)

        def forward(self, x):
            return torch.sin(30 * self.linear(x))

    class Siren(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(Sine(2, 64, True), Sine(64, 64), nn.Linear(64, 1))

        def forward(self, x):
            return self.net(x)

    axis = torch.linspace(-1, 1, 48)
    points = torch.cartesian_prod(axis, axis)
    value = torch.sin(9 * points[:, :1]) * torch.cos(7 * points[:, 1:]) + (points.norm(dim=1, keepdim=True) < 0.5).float()
    g = torch.Generator().manual_seed(53)
    order = torch.randperm(len(points), generator=g)
    train, held = order[:1900], order[1900:]
    model = Siren()
    loader = DataLoader(TensorDataset(points[train], value[train]), batch_size=256, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)

    def score(m):
        return max(0.0, 1 - F.mse_loss(m(points[held]), value[held]).item() / value.var().item())

    return Program(model, nn.MSELoss(), loader, optimizer, score)


@sound("a sum over all pixels at a rate to match, 1e-4", steps=500, least=0.6)
def sum_at_a_small_rate():
    x, hx = gaussians(2000, 12), gaussians(400, 13)
    model = nn.Sequential(
        nn.Linear(144, 96), nn.Tanh(), nn.Linear(96, 12), nn.Tanh(), nn.Linear(12, 96), nn.Tanh(), nn.Linear(96, 144)
    )
    loader = DataLoader(TensorDataset(x, x), batch_size=50, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), 1e-4, momentum=0.9)
    return Program(model, nn.MSELoss(reduction="sum"), loader, optimizer, rebuilt(hx))
