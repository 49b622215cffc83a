import torch
import torch.nn.functional as F
from program import Program, sound
from tidata import *
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler


@sound("nothing: a plain classifier of rows", steps=300, least=0.75)
def plain_rows():
    x, y, xt, yt = table(seed=41)
    model = mlp(10, 64, 64, 3)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(model.parameters(), 2e-3), accuracy(xt, yt))


@sound("nothing: a small convolutional network with BatchNorm", steps=200, least=0.8)
def plain_cnn():
    x, y, xt, yt = images(seed=42)
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 16, 3), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Flatten(), nn.Dropout(0.2), nn.Linear(64, 4),
    )
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(model.parameters(), 2e-3), accuracy(xt, yt))


@sound("nothing: regression with momentum", steps=400, least=0.7)
def plain_regression():
    x, y, xt, yt = curve(seed=43)
    model = mlp(8, 64, 64, 1)
    return Program(model, nn.MSELoss(), loader(x, y), torch.optim.SGD(model.parameters(), 0.03, momentum=0.9, weight_decay=1e-4), fit(xt, yt))


@sound("nothing: an autoencoder", steps=400, least=0.7)
def plain_autoencoder():
    x, xt = factors(seed=44)
    model = mlp(24, 48, 5, 48, 24, act=nn.GELU)
    return Program(model, nn.MSELoss(), loader(x, x), torch.optim.Adam(model.parameters(), 4e-3), fit(xt, xt))


@sound("nothing: segmentation of boxes", steps=200, least=0.75)
def plain_segmentation():
    x, y, xt, yt = boxes(seed=45)
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 2, 1))
    return Program(model, nn.CrossEntropyLoss(), loader(x, y, bs=32), torch.optim.AdamW(model.parameters(), 5e-3), dice(xt, yt))


class Block(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.a, self.b = nn.Linear(w, w), nn.Linear(w, w)
        self.norm = nn.LayerNorm(w)

    def forward(self, x):
        return x + self.b(F.gelu(self.a(self.norm(x))))


@sound("nothing: a residual network of rows with OneCycleLR", steps=300, least=0.7)
def plain_resnet_rows():
    x, y, xt, yt = curve(seed=46)
    model = nn.Sequential(nn.Linear(8, 48), Block(48), Block(48), Block(48), nn.LayerNorm(48), nn.Linear(48, 1))
    opt = torch.optim.AdamW(model.parameters(), 1e-3)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=4e-3, total_steps=2000, pct_start=0.1)
    return Program(model, nn.SmoothL1Loss(), loader(x, y), opt, fit(xt, yt), scheduler=sched)


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.value, self.kind = nn.Linear(64, 1), nn.Linear(64, 2)

    def forward(self, x):
        h = self.trunk(x)
        return self.value(h), self.kind(h)


@sound("nothing: two tasks with a shared trunk", steps=300, least=0.7)
def plain_two_tasks():
    x, y, xt, yt = curve(seed=47)
    kind, kind_t = (x[:, 5] * x[:, 0] > 0).long(), (xt[:, 5] * xt[:, 0] > 0).long()
    model = TwoHeads()

    def step(m, batch):
        a, b, c = batch
        v, k = m(a)
        return F.mse_loss(v, b) + 0.5 * F.cross_entropy(k, c)

    def score(m):
        v, k = m(xt)
        return 0.5 * max(-1, r2(v, yt)) + 0.5 * (k.argmax(1) == kind_t).float().mean().item()

    return Program(model, None, loader(x, y, kind), torch.optim.Adam(model.parameters(), 3e-3), score, step=step)
