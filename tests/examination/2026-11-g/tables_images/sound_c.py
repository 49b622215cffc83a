"""Data, batches, optimisers that look wrong and are right."""

import torch
import torch.nn.functional as F
from program import Program, sound
from ti_data import accuracy, clusters, curve, iou, r2, scenes, shapes
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler


@sound("columns in native units, and a BatchNorm as first layer that scales them", steps=300, least=0.75)
def batchnorm_scales_the_columns():
    g = torch.Generator().manual_seed(301)
    z = torch.randn(1900, 4, generator=g)
    y = (z[:, 0] * z[:, 2] + 0.8 * z[:, 3] + 0.2 * z[:, 1] > 0).long()
    raw = z * torch.tensor([12.0, 18000.0, 0.15, 1.2]) + torch.tensor([44.0, 52000.0, 0.4, 2.0])
    model = nn.Sequential(nn.BatchNorm1d(4, affine=False), nn.Linear(4, 48), nn.ReLU(), nn.Linear(48, 2))
    return Program(model, nn.CrossEntropyLoss(), DataLoader(TensorDataset(raw[:1500], y[:1500]), batch_size=100, shuffle=True), torch.optim.Adam(model.parameters(), lr=1e-2), lambda m: accuracy(m, raw[1500:], y[1500:]))


@sound("an MLP on pictures with a border that is always black: many inputs never vary", steps=300, least=0.6)
def black_border():
    x, y, xt, yt = shapes(2000, 302, size=7, noise=0.05)
    x, xt = F.pad(x, (3, 3, 3, 3)), F.pad(xt, (3, 3, 3, 3))
    model = nn.Sequential(nn.Flatten(), nn.Linear(169, 96), nn.ReLU(), nn.Linear(96, 4))
    return Program(model, nn.CrossEntropyLoss(), DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True), torch.optim.Adam(model.parameters(), lr=4e-3), lambda m: accuracy(m, xt, yt))


def mixup(rows):
    x = torch.stack([r[0] for r in rows])
    y = F.one_hot(torch.stack([r[1] for r in rows]), 4).float()
    lam = torch.distributions.Beta(0.4, 0.4).sample()
    other = torch.randperm(len(x))
    return lam * x + (1 - lam) * x[other], lam * y + (1 - lam) * y[other]


@sound("mixup in the collate function: examples and labels are blends", steps=300, least=0.8)
def mixup_in_collate():
    x, y, xt, yt = shapes(1000, 303)
    model = nn.Sequential(
        nn.Conv2d(1, 10, 3, padding=1), nn.BatchNorm2d(10), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(10, 20, 3, padding=1), nn.BatchNorm2d(20), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(180, 4),
    )  # fmt: skip
    return Program(model, nn.CrossEntropyLoss(), DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True, collate_fn=mixup), torch.optim.Adam(model.parameters(), lr=3e-3), lambda m: accuracy(m, xt, yt))


@sound("segmentation with two pictures a batch: GroupNorm does not mind", trained=60, steps=200, least=0.7)
def two_pictures_a_batch_with_groupnorm():
    x, mask, xt, maskt = scenes(200, 304)
    model = nn.Sequential(nn.Conv2d(1, 12, 5, padding=2), nn.GroupNorm(3, 12), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1), nn.GroupNorm(3, 12), nn.ReLU(), nn.Conv2d(12, 3, 1))
    return Program(model, nn.CrossEntropyLoss(weight=torch.tensor([0.5, 1.0, 1.0])), DataLoader(TensorDataset(x, mask), batch_size=2, shuffle=True), torch.optim.Adam(model.parameters(), lr=5e-3), lambda m: iou(m(xt).argmax(1), maskt))


class Bags(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(6, 32), nn.Tanh())
        self.attend = nn.Linear(32, 1)
        self.out = nn.Linear(32, 1)

    def forward(self, bag):
        h = self.embed(bag)
        a = torch.softmax(self.attend(h), dim=1)
        return torch.sigmoid(self.out((a * h).sum(1)))[:, 0]


@sound("attention over the instances of a bag (softmax over dim 1, summed over dim 1), a sigmoid and BCELoss", steps=300, least=0.8)
def bags_with_attention():
    g = torch.Generator().manual_seed(305)
    x = torch.randn(1900, 7, 6, generator=g)
    y = (torch.rand(1900, generator=g) > 0.5).float()
    x[:, 3] += 2.5 * y[:, None] * torch.tensor([1.0, -1, 1, 0, 0, 0])
    return_model = Bags()
    return Program(return_model, nn.BCELoss(), DataLoader(TensorDataset(x[:1500], y[:1500]), batch_size=50, shuffle=True), torch.optim.Adam(return_model.parameters(), lr=5e-3), lambda m: ((m(x[1500:]) > 0.5).float() == y[1500:]).float().mean().item())


@sound("sorted rows of rare classes, drawn by a weighted sampler", trained=250, steps=300, least=0.75)
def weighted_sampler_over_sorted_rows():
    x, y, xt, yt = clusters(3000, 8, 3, 306, noise=0.5, held=600)
    g = torch.Generator().manual_seed(1)
    keep = (y == 0) | (torch.rand(len(y), generator=g) < 0.1)
    x, y = x[keep], y[keep]
    order = y.argsort()
    x, y = x[order], y[order]
    weights = (1 / torch.bincount(y).float())[y]
    model = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 3))
    return Program(model, nn.CrossEntropyLoss(), DataLoader(TensorDataset(x, y), batch_size=32, sampler=WeightedRandomSampler(weights, len(y))), torch.optim.Adam(model.parameters(), lr=3e-3), lambda m: accuracy(m, xt, yt))


class Uncertain(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 48), nn.ReLU())
        self.kind, self.value = nn.Linear(48, 2), nn.Linear(48, 1)
        self.log_var = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        h = self.trunk(x)
        return self.kind(h), self.value(h)[:, 0]


@sound("two tasks weighted by learned uncertainties, a warm-up from a hundredth of the rate", steps=300, least=0.75)
def learned_task_weights_with_warmup():
    x, v, xt, vt = curve(1500, 8, 307)
    k, kt = [(a[:, 4] + 0.5 * a[:, 5] > 0).long() for a in (x, xt)]
    model = Uncertain()

    def step(m, batch):
        rows, kind, value = batch
        a, b = m(rows)
        losses = torch.stack([F.cross_entropy(a, kind), F.mse_loss(b, value)])
        return (losses * (-m.log_var).exp() + 0.5 * m.log_var).sum()

    def score(m):
        a, b = m(xt)
        return 0.5 * (a.argmax(1) == kt).float().mean().item() + 0.5 * r2(b, vt)

    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    warm = torch.optim.lr_scheduler.LambdaLR(opt, lambda t: min(1.0, (t + 1) / 60 + 0.01))
    return Program(model, None, DataLoader(TensorDataset(x, k, v), batch_size=64, shuffle=True), opt, score, warm, step)
