"""Ordinary sound set-ups, at the start and after some training."""

import torch
import torch.nn.functional as F
from torch import nn

from data import *
from program import Program, sound


@sound("A plain convolutional classifier, at the start", steps=200, least=0.9)
def digits_conv():
    start()
    xa, ya, xb, yb = digits()
    m = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10))
    return Program(m, nn.CrossEntropyLoss(), loader(xa, ya), torch.optim.Adam(m.parameters(), 3e-3), accuracy(xb, yb))


@sound("A residual net whose blocks end in a BatchNorm with gain 0, by SGD with Nesterov's momentum, half trained", trained=80, steps=200, least=0.9)
def resnet_zero_gain():
    start()
    xa, ya, xb, yb = digits()

    class Block(nn.Module):
        def __init__(self, c):
            super().__init__()
            self.conv1, self.conv2 = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.Conv2d(c, c, 3, padding=1, bias=False)
            self.bn1, self.bn2 = nn.BatchNorm2d(c), nn.BatchNorm2d(c)
            nn.init.zeros_(self.bn2.weight)

        def forward(self, x):
            return F.relu(x + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))

    m = nn.Sequential(nn.Conv2d(1, 12, 3, 2, 1, bias=False), nn.BatchNorm2d(12), nn.ReLU(), Block(12), Block(12), nn.Flatten(), nn.Linear(192, 10))
    return Program(m, nn.CrossEntropyLoss(), loader(xa, ya), torch.optim.SGD(m.parameters(), 0.05, momentum=0.9, nesterov=True, weight_decay=5e-4), accuracy(xb, yb))


@sound("Dropout of a half in a wide classifier, trained", trained=200, steps=250, least=0.9)
def dropout_of_a_half():
    start()
    xa, ya, xb, yb = digits()
    m = nn.Sequential(nn.Flatten(), nn.Linear(64, 192), nn.ReLU(), nn.Dropout(0.5), nn.Linear(192, 96), nn.ReLU(), nn.Dropout(0.5), nn.Linear(96, 10))
    return Program(m, nn.CrossEntropyLoss(), loader(xa, ya), torch.optim.Adam(m.parameters(), 2e-3), accuracy(xb, yb))


@sound("Logistic regression: no hidden layer, nothing nonlinear", steps=200, least=0.9)
def logistic_regression():
    start()
    xa, ya, xb, yb = sk_table("cancer")
    m = nn.Linear(30, 2)
    return Program(m, nn.CrossEntropyLoss(), loader(xa, ya), torch.optim.SGD(m.parameters(), 0.1, weight_decay=1e-3), accuracy(xb, yb))


@sound("Raw features of very different scales, but a BatchNorm comes first", steps=150, least=0.9)
def wine_batchnorm_first():
    start()
    xa, ya, xb, yb = sk_table("wine", scale=False)
    m = nn.Sequential(nn.BatchNorm1d(13), nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 3))
    return Program(m, nn.CrossEntropyLoss(), loader(xa, ya), torch.optim.Adam(m.parameters(), 5e-3), accuracy(xb, yb))


@sound("Several labels at once with sigmoids, weight decay for weights only", trained=100, steps=300, least=0.75)
def multilabel_groups():
    start()
    xa, ya, xb, yb = tags(seed=29)
    m = nn.Sequential(nn.Linear(10, 64), nn.LayerNorm(64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 6))
    decay = [p for p in m.parameters() if p.ndim > 1]
    rest = [p for p in m.parameters() if p.ndim <= 1]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0}], 3e-3)
    score = lambda m: max(0.0, 2 * ((m(xb) > 0).float() == yb).float().mean().item() - 1)
    return Program(m, nn.BCEWithLogitsLoss(), loader(xa, ya), opt, score)


@sound("Mean and log variance of a regression, half trained", trained=150, steps=300, least=0.6)
def heteroscedastic():
    start()
    xa, ya, xb, yb = noisy(seed=28)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.l1, self.l2, self.out = nn.Linear(5, 64), nn.Linear(64, 32), nn.Linear(32, 2)

        def forward(self, x):
            h = self.out(F.relu(self.l2(F.relu(self.l1(x)))))
            return h[:, :1], h[:, 1:].clamp(-8, 4)

    def nll(out, y):
        mu, lv = out
        return 0.5 * (lv + (y - mu) ** 2 * torch.exp(-lv)).mean()

    m = Net()
    return Program(m, nll, loader(xa, ya), torch.optim.Adam(m.parameters(), 3e-3), gauss_skill(xb, yb))


@sound("Categories by embeddings next to numbers, inputs as a dict", steps=250, least=0.8)
def categories_and_numbers():
    start()
    r = np.random.RandomState(14)
    shop, day = r.randint(0, 20, 1500), r.randint(0, 7, 1500)
    num = r.randn(1500, 4)
    effect, week = r.randn(20), np.sin(np.arange(7))
    y = effect[shop] + week[day] + num[:, 0] * 0.8 + np.abs(num[:, 1]) * 0.5 + 0.1 * r.randn(1500)
    y = torch.tensor((y - y.mean()) / y.std(), dtype=torch.float32)[:, None]
    shop, day, num = torch.tensor(shop), torch.tensor(day), torch.tensor(num, dtype=torch.float32)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.shop, self.day = nn.Embedding(20, 6), nn.Embedding(7, 3)
            self.fc1, self.fc2 = nn.Linear(13, 48), nn.Linear(48, 1)

        def forward(self, shop, day, num):
            return self.fc2(F.relu(self.fc1(torch.cat([self.shop(shop), self.day(day), num], 1))))

    class Batches:
        def __len__(self):
            return len(inner)

        def __iter__(self):
            return (({"shop": s, "day": d, "num": n}, t) for s, d, n, t in inner)

    inner = loader(shop[300:], day[300:], num[300:], y[300:])
    m = Net()
    score = lambda m: r2_of(m(shop[:300], day[:300], num[:300]), y[:300])
    return Program(m, nn.MSELoss(), Batches(), torch.optim.Adam(m.parameters(), 8e-3), score)


@sound("Segmentation of a small object by cross entropy and dice, half trained", trained=60, steps=150, least=0.7)
def unet_dice():
    start()
    x, mask, _, _ = shapes()
    y = (mask > 0).float()[:, None]

    class UNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.d1, self.d2 = nn.Conv2d(1, 12, 3, padding=1), nn.Conv2d(12, 16, 3, padding=1)
            self.up = nn.ConvTranspose2d(16, 12, 2, 2)
            self.out = nn.Conv2d(24, 1, 1)

        def forward(self, x):
            a = F.relu(self.d1(x))
            b = F.relu(self.d2(F.max_pool2d(a, 2)))
            return self.out(torch.cat([a, F.relu(self.up(b))], 1))

    def loss(logits, t):
        p = logits.sigmoid()
        dice = 1 - (2 * (p * t).sum((1, 2, 3)) + 1) / (p.sum((1, 2, 3)) + t.sum((1, 2, 3)) + 1)
        return F.binary_cross_entropy_with_logits(logits, t) + dice.mean()

    def score(m):
        p, t = m(x[:200]) > 0, y[:200] > 0.5
        return (p & t).sum().item() / max(1, (p | t).sum().item())

    m = UNet()
    return Program(m, loss, loader(x[200:], y[200:], batch=12), torch.optim.Adam(m.parameters(), 4e-3), score)
