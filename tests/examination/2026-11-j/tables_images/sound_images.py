import torch
import torch.nn.functional as F
from program import Program, sound
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from ti_data import acc, gen, miou, r2, scenes, shapes


class ZeroBranch(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.f = nn.Sequential(nn.Conv2d(c, c, 3, padding=1), nn.ReLU(), nn.Conv2d(c, c, 3, padding=1))
        nn.init.zeros_(self.f[2].weight)
        nn.init.zeros_(self.f[2].bias)

    def forward(self, x):
        return x + self.f(x)


@sound("The last convolution of each residual branch starts at zero, so that the first one gets no gradient at the first step", steps=250, least=0.85)
def residual_branches_start_at_zero():
    x, y = shapes(900, seed=111)
    net = nn.Sequential(nn.Conv2d(1, 12, 3, stride=2), nn.ReLU(), *[ZeroBranch(12) for _ in range(4)], nn.Flatten(), nn.Linear(12 * 25, 4))
    return Program(net, nn.CrossEntropyLoss(), DataLoader(TensorDataset(x[:720], y[:720]), 24, shuffle=True),
                   torch.optim.Adam(net.parameters(), 2e-3), lambda n: acc(n(x[720:]), y[720:]))


@sound("Batches of three pictures, with GroupNorm", steps=400, least=0.8)
def tiny_batches_groupnorm():
    x, y = shapes(900, seed=112)
    net = nn.Sequential(nn.Conv2d(1, 16, 3), nn.GroupNorm(4, 16), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 16, 3), nn.GroupNorm(4, 16), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4))
    return Program(net, nn.CrossEntropyLoss(), DataLoader(TensorDataset(x[:720], y[:720]), 3, shuffle=True),
                   torch.optim.Adam(net.parameters(), 1e-3), lambda n: acc(n(x[720:]), y[720:]))


@sound("Most of each mask is void (255) and left out by ignore_index", steps=250, least=0.7)
def mostly_void_masks():
    x, m = scenes(500, seed=113)
    g = gen(1130)
    sparse = torch.where(torch.rand(m.shape, generator=g) < 0.85, torch.full_like(m, 255), m)
    net = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 3, 1))
    return Program(net, nn.CrossEntropyLoss(ignore_index=255), DataLoader(TensorDataset(x[:400], sparse[:400]), 16, shuffle=True),
                   torch.optim.Adam(net.parameters(), 5e-3), lambda n: miou(n(x[400:]), m[400:]))


class Tuned(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 24, 3), nn.BatchNorm2d(24), nn.ReLU(), nn.Flatten())
        self.head = nn.Linear(216, 4)

    def forward(self, x):
        return self.head(self.body(x))

    def train(self, mode=True):
        super().train(mode)
        self.body.eval()
        return self


@sound("A pre-trained body is frozen, its BatchNorms stay in evaluation mode, and the optimizer has the head only", steps=200, least=0.75)
def frozen_body_new_head():
    x, y = shapes(900, seed=114)
    src, z = shapes(480, seed=1140, noise=0.3)
    net = Tuned()
    nn.Module.train(net)
    opt = torch.optim.Adam(net.parameters(), 3e-3)
    for i in range(40):
        s = slice(i % 10 * 48, i % 10 * 48 + 48)
        opt.zero_grad()
        F.cross_entropy(net(src[s])[:, :2], z[s] // 2).backward()  # another task: two groups
        opt.step()
    net.body.requires_grad_(False)
    net.head = nn.Linear(216, 4)
    net.train()
    return Program(net, nn.CrossEntropyLoss(), DataLoader(TensorDataset(x[:720], y[:720]), 32, shuffle=True),
                   torch.optim.Adam(net.head.parameters(), 3e-3), lambda n: acc(n(x[720:]), y[720:]))


@sound("Mixup: targets are soft, and each picture is a blend of two of the batch", steps=300, least=0.8)
def mixup_with_soft_labels():
    x, y = shapes(900, seed=115)
    net = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 24, 3), nn.ReLU(), nn.Flatten(), nn.Linear(216, 4))

    def step(net, batch):
        a, b = batch
        lam = float(torch.distributions.Beta(0.3, 0.3).sample())
        order = torch.randperm(len(a))
        t = F.one_hot(b, 4).float()
        return F.cross_entropy(net(lam * a + (1 - lam) * a[order]), lam * t + (1 - lam) * t[order])

    return Program(net, None, DataLoader(TensorDataset(x[:720], y[:720]), 32, shuffle=True),
                   torch.optim.Adam(net.parameters(), 3e-3), lambda n: acc(n(x[720:]), y[720:]), step=step)


class Cells(nn.Module):
    """One cell of a 6x6 grid has the object: a detector's head with a prior of one in a hundred."""

    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU())
        self.score = nn.Conv2d(16, 1, 1)
        nn.init.normal_(self.score.weight, std=0.01)
        nn.init.constant_(self.score.bias, -4.6)

    def forward(self, x):
        return self.score(self.f(x)).flatten(1)


@sound("The bias of a detector's scores starts at -4.6 and a focal loss is summed and divided by the number of objects", steps=300, least=0.8)
def focal_loss_with_prior():
    g = gen(116)
    n = 900
    cell = torch.randint(0, 36, (n,), generator=g)
    x = 0.3 * torch.randn(n, 1, 12, 12, generator=g)
    r, c = cell // 6 * 2, cell % 6 * 2
    for dr in (0, 1):
        for dc in (0, 1):
            x[torch.arange(n), 0, r + dr, c + dc] += 1.2
    t = F.one_hot(cell, 36).float()

    def focal(out, y):
        bce = F.binary_cross_entropy_with_logits(out, y, reduction="none")
        return ((1 - torch.exp(-bce)) ** 2 * bce).sum() / y.sum()

    net = Cells()
    return Program(net, focal, DataLoader(TensorDataset(x[:720], t[:720]), 24, shuffle=True),
                   torch.optim.Adam(net.parameters(), 5e-3), lambda m: acc(m(x[720:]), cell[720:]))


@sound("An auxiliary probe reads detached features: the trunk gets nothing from its loss", trained=60, steps=250, least=0.75)
def detached_probe():
    x, y = shapes(900, seed=117)
    bright = x.mean((1, 2, 3))
    bright = (bright - bright.mean()) / bright.std()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(400, 32), nn.ReLU())
            self.main, self.probe = nn.Linear(32, 4), nn.Linear(32, 1)

        def forward(self, x):
            h = self.trunk(x)
            return self.main(h), self.probe(h.detach()).squeeze(1)

    def step(net, batch):
        a, b = net(batch[0])
        return F.cross_entropy(a, batch[1]) + 0.5 * F.mse_loss(b, batch[2])

    net = Net()
    return Program(net, None, DataLoader(TensorDataset(x[:720], y[:720], bright[:720]), 32, shuffle=True),
                   torch.optim.Adam(net.parameters(), 3e-3), lambda n: acc(n(x[720:])[0], y[720:]), step=step)
