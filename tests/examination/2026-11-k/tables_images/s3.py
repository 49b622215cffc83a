import torch
import torch.nn.functional as F
from program import Program, sound
from tidata import *
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler


def pretrained_stem(seed):
    """Features learned on other classes of the same pictures."""
    x, y, _, _ = images(seed=seed)
    stem = nn.Sequential(nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    model = nn.Sequential(stem, nn.Linear(256, 4))
    opt = torch.optim.Adam(model.parameters(), 2e-3)
    it = 0
    while it < 80:
        for a, b in loader(x, y, seed=9):
            opt.zero_grad()
            F.cross_entropy(model(a), b).backward()
            opt.step()
            it += 1
    return stem


class FineTuned(nn.Module):
    def __init__(self, stem):
        super().__init__()
        self.stem = stem.eval().requires_grad_(False)
        self.head = nn.Linear(256, 2)

    def train(self, mode=True):
        super().train(mode)
        self.stem.eval()
        return self

    def forward(self, x):
        return self.head(self.stem(x))


@sound("the trained stem is frozen on purpose and stays in evaluation mode", steps=200, least=0.8)
def frozen_stem():
    x, y, xt, yt = images(seed=48)
    model = FineTuned(pretrained_stem(48))
    return Program(model, nn.CrossEntropyLoss(), loader(x, y % 2), torch.optim.Adam(model.head.parameters(), 3e-3), accuracy(xt, yt % 2))


@sound("two parameter groups, the trained one with a rate of a hundredth", steps=200, least=0.8)
def slow_backbone():
    x, y, xt, yt = images(seed=49)
    stem = pretrained_stem(49)
    model = nn.Sequential(stem, nn.Linear(256, 32), nn.ReLU(), nn.Linear(32, 2))
    opt = torch.optim.AdamW([{"params": stem.parameters(), "lr": 3e-5}, {"params": [p for m in model[1:] for p in m.parameters()]}], lr=3e-3)
    return Program(model, nn.CrossEntropyLoss(), loader(x, (y > 1).long()), opt, accuracy(xt, (yt > 1).long()))


class ZeroBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c1, self.b1 = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)
        self.c2, self.b2 = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)
        nn.init.zeros_(self.b2.weight)

    def forward(self, x):
        return F.relu(x + self.b2(self.c2(F.relu(self.b1(self.c1(x))))))


@sound("the last BatchNorm of each block, and the head, start at zero", steps=200, least=0.75)
def zero_gamma():
    x, y, xt, yt = images(seed=50)
    model = nn.Sequential(nn.Conv2d(1, 12, 3, stride=2), nn.ReLU(), ZeroBlock(12), ZeroBlock(12), nn.Flatten(), nn.Linear(192, 4))
    nn.init.zeros_(model[-1].weight)
    nn.init.zeros_(model[-1].bias)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, nesterov=True), accuracy(xt, yt))


@sound("squared errors summed over the features and averaged over the batch", steps=300, least=0.7)
def sum_over_features():
    x, xt = factors(seed=51)
    model = mlp(24, 64, 6, 64, 24, act=nn.SiLU)
    return Program(model, lambda o, t: ((o - t) ** 2).sum(1).mean(), loader(x, x), torch.optim.Adam(model.parameters(), 3e-3), fit(xt, xt))
