"""Pictures out of pictures: segmentation, boxes, autoencoders, inpainting."""

from __future__ import annotations

import torch
from program import Program, fault
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset


def discs(n: int, seed: int, size: int = 16):
    """A bright disc and a distracting bar under noise; the mask of the disc; its box as x, y, w, h in pixels."""
    g = torch.Generator().manual_seed(5000 + seed)
    at = torch.rand(n, 2, generator=g) * (size - 8) + 4
    radius = torch.rand(n, generator=g) * 1.8 + 1.8
    grid = torch.arange(size).float()
    d2 = (grid[None, :, None] - at[:, 1, None, None]) ** 2 + (grid[None, None, :] - at[:, 0, None, None]) ** 2
    mask = (d2 < radius[:, None, None] ** 2).float()[:, None]
    x = mask + 0.35 * torch.randn(n, 1, size, size, generator=g)
    rows = torch.randint(0, size, (n,), generator=g)
    x[torch.arange(n), 0, rows] += 0.8
    box = torch.cat([at, 2 * radius[:, None], 2 * radius[:, None]], 1)
    return x, mask, box


def overlap(x, mask):
    """Mean intersection over union of the sign of the logits, over pictures."""

    def score(model):
        said = (model(x) > 0).flatten(1)
        true = mask.flatten(1) > 0.5
        return ((said & true).sum(1) / (said | true).sum(1).clamp(min=1)).mean().item()

    return score


def block(a, b, norm=True):
    layers = [nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b) if norm else nn.Identity(), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    def __init__(self, width=8, norm=True):
        super().__init__()
        self.down1 = block(1, width, norm)
        self.down2 = block(width, 2 * width, norm)
        self.middle = block(2 * width, 2 * width, norm)
        self.up = block(3 * width, width, norm)
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.middle(self.down2(F.max_pool2d(a, 2)))
        b = F.interpolate(b, scale_factor=2, mode="nearest")
        return self.out(self.up(torch.cat([a, b], 1)))


def gaussians(n: int, seed: int, size: int = 12, spread: float = 8.0):
    """Two soft spots each: four numbers decide a picture."""
    g = torch.Generator().manual_seed(5100 + seed)
    grid = torch.arange(size).float()
    x = torch.zeros(n, size, size)
    for sign in (1.0, -1.0):
        at = torch.rand(n, 2, generator=g) * (size - 4) + 2
        d2 = (grid[None, :, None] - at[:, 1, None, None]) ** 2 + (grid[None, None, :] - at[:, 0, None, None]) ** 2
        x += sign * torch.exp(-d2 / spread)
    return x.flatten(1) * 3


def rebuilt(x):
    return lambda m: max(0.0, 1 - ((m(x) - x) ** 2).mean().item() / x.var().item())


class VAE(nn.Module):
    def __init__(self, d=144, latent=6):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(d, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU())
        self.mean = nn.Linear(64, latent)
        self.log_var = nn.Linear(64, latent)
        self.decoder = nn.Sequential(nn.Linear(latent, 64), nn.ReLU(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, d))

    def forward(self, x):
        h = self.encoder(x)
        mean, log_var = self.mean(h), self.log_var(h)
        z = mean + torch.randn_like(mean) * (0.5 * log_var).exp() if self.training else mean
        return self.decoder(z), mean, log_var


def vae_loss(is_mean):
    def loss(out, x):
        picture, mean, log_var = out
        kl = -0.5 * (1 + log_var - mean**2 - log_var.exp()).sum(1).mean()
        error = (picture - x) ** 2
        return (error.mean() if is_mean else error.sum(1).mean()) + kl

    return loss


@fault(
    "pictures are shifted at random, masks are not",
    rules=["labels-unrelated", "output-loss-mismatch"],
    fails=True,
    steps=250,
)
def picture_shifted_alone(is_faulty):
    class Augmented(Dataset):
        def __init__(self, x, mask):
            self.x, self.mask = x, mask

        def __len__(self):
            return len(self.x)

        def __getitem__(self, k):
            x, mask = self.x[k], self.mask[k]
            by = torch.randint(-5, 6, (2,)).tolist()
            x = x.roll(by, (1, 2))
            if not is_faulty:
                mask = mask.roll(by, (1, 2))
            return x, mask

    x, mask, _ = discs(400, 0)
    hx, hmask, _ = discs(200, 1)
    model = UNet()
    loader = DataLoader(Augmented(x, mask), batch_size=16, shuffle=True)
    return Program(model, nn.BCEWithLogitsLoss(), loader, torch.optim.Adam(model.parameters(), 5e-3), overlap(hx, hmask))


@fault(
    "a variational autoencoder: the error is a mean over pixels, the divergence a sum over latents",
    rules=["term-dominates", "rank-collapse"],
    fails=True,
    steps=500,
)
def divergence_outweighs(is_faulty):
    x, hx = gaussians(2000, 0), gaussians(400, 1)
    model = VAE()
    loader = DataLoader(TensorDataset(x, x), batch_size=64, shuffle=True)
    inner = rebuilt(hx)
    return Program(
        model, vae_loss(is_faulty), loader, torch.optim.Adam(model.parameters(), 2e-3), lambda m: inner(lambda v: m(v)[0])
    )


@fault(
    "squared errors summed over pixels and pictures at a rate that suits their mean",
    rules=["summed-loss", "learning-rate-too-high", "non-finite"],
    fails=True,
    steps=500,
)
def sum_over_all_pixels(is_faulty):
    x, hx = gaussians(2000, 2), gaussians(400, 3)
    model = nn.Sequential(
        nn.Linear(144, 96), nn.Tanh(), nn.Linear(96, 12), nn.Tanh(), nn.Linear(12, 96), nn.Tanh(), nn.Linear(96, 144)
    )
    loader = DataLoader(TensorDataset(x, x), batch_size=50, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.5, momentum=0.9)
    return Program(model, nn.MSELoss(reduction="sum" if is_faulty else "mean"), loader, optimizer, rebuilt(hx))


@fault(
    "an inpainting network gets the picture before the hole is cut, so it may copy what it is asked for",
    rules=["future-seen"],
    fails=False,
    steps=400,
)
def hole_not_cut(is_faulty):
    def cut(x, seed):
        g = torch.Generator().manual_seed(5200 + seed)
        hole = torch.zeros(len(x), 12, 12)
        for k, (r, c) in enumerate(torch.randint(0, 7, (len(x), 2), generator=g).tolist()):
            hole[k, r : r + 5, c : c + 5] = 1
        return hole.flatten(1)

    x, hx = gaussians(3000, 4), gaussians(400, 5)
    hole, hhole = cut(x, 0), cut(hx, 1)
    seen = x if is_faulty else x * (1 - hole)
    model = nn.Sequential(nn.Linear(288, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 144))

    def loss(out, target):
        picture, hole = target.chunk(2, 1)
        return ((out - picture) ** 2 * hole).sum() / hole.sum()

    loader = DataLoader(TensorDataset(torch.cat([seen, hole], 1), torch.cat([x, hole], 1)), batch_size=64, shuffle=True)
    test = torch.cat([hx * (1 - hhole), hhole], 1)
    inside = hhole > 0

    def score(m):
        return max(0.0, 1 - ((m(test) - hx)[inside] ** 2).mean().item() / hx[inside].var().item())

    return Program(model, loss, loader, torch.optim.Adam(model.parameters(), 2e-3), score)


@fault(
    "an activation looked up by a misspelt name becomes the identity: the autoencoder is linear",
    rules=["no-nonlinearity"],
    layers=["encoder", "decoder"],
    fails=False,
    steps=500,
)
def activation_misspelt(is_faulty):
    def make(name):
        return {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh}.get(name, nn.Identity)()

    class AE(nn.Module):
        def __init__(self, activation):
            super().__init__()
            self.encoder = nn.Sequential(
                nn.Linear(144, 128), make(activation), nn.Linear(128, 128), make(activation), nn.Linear(128, 4)
            )
            self.decoder = nn.Sequential(
                nn.Linear(4, 128), make(activation), nn.Linear(128, 128), make(activation), nn.Linear(128, 144)
            )

        def forward(self, x):
            return self.decoder(self.encoder(x))

    x, hx = gaussians(3000, 6, spread=4.0), gaussians(400, 7, spread=4.0)
    model = AE("GELU" if is_faulty else "gelu")
    loader = DataLoader(TensorDataset(x, x), batch_size=64, shuffle=True)
    return Program(model, nn.MSELoss(), loader, torch.optim.Adam(model.parameters(), 3e-3), rebuilt(hx))


@fault(
    "a momentum of 0.001 for BatchNorm: after the whole run its running statistics are still close to those of the start",
    rules=["batchnorm-mode-gap"],
    layers=["1", "5"],
    fails=True,
    steps=250,
)
def slow_running_statistics(is_faulty):
    x, mask, _ = discs(1200, 6)
    hx, hmask, _ = discs(400, 7)
    area, harea = mask.sum((1, 2, 3)), hmask.sum((1, 2, 3))
    mean, std = area.mean(), area.std()
    momentum = 0.001 if is_faulty else 0.1
    model = nn.Sequential(
        nn.Conv2d(1, 12, 5, padding=2), nn.BatchNorm2d(12, momentum=momentum), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.BatchNorm1d(12, momentum=momentum), nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 1), nn.Flatten(0)
    )
    loader = DataLoader(TensorDataset(x, (area - mean) / std), batch_size=40, shuffle=True)

    def score(m):
        return max(0.0, 1 - ((m(hx) * std + mean - harea) ** 2).mean().item() / harea.var().item())

    return Program(model, nn.MSELoss(), loader, torch.optim.Adam(model.parameters(), 5e-3), score)


@fault(
    "one BatchNorm is made and used at three places",
    rules=["shared-weight", "batchnorm-mode-gap"],
    layers=["bn"],
    fails=False,
    steps=350,
)
def one_norm_for_all(is_faulty):
    class Centre(nn.Module):
        """Where the disc is."""

        def __init__(self):
            super().__init__()
            self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
            self.conv2 = nn.Conv2d(16, 16, 3, padding=1)
            self.conv3 = nn.Conv2d(16, 16, 3, padding=1)
            self.bn = nn.BatchNorm2d(16) if is_faulty else nn.ModuleList(nn.BatchNorm2d(16) for _ in range(3))
            self.fc = nn.Linear(16 * 16, 2)

        def forward(self, x):
            bn = [self.bn] * 3 if is_faulty else self.bn
            x = F.max_pool2d(F.relu(bn[0](self.conv1(x))), 2)
            x = F.max_pool2d(F.relu(bn[1](self.conv2(x))), 2)
            return self.fc(F.relu(bn[2](self.conv3(x))).flatten(1))

    x, _, box = discs(1200, 8)
    hx, _, hbox = discs(300, 9)
    model = Centre()
    loader = DataLoader(TensorDataset(x, box[:, :2] / 8 - 1), batch_size=32, shuffle=True)
    test = hbox[:, :2] / 8 - 1

    def score(m):
        return max(0.0, 1 - F.mse_loss(m(hx), test).item() / test.var().item())

    return Program(model, nn.MSELoss(), loader, torch.optim.Adam(model.parameters(), 3e-3), score)
