"""Ordinary scripts."""

import torch
import torch.nn.functional as F
from program import Program, sound
from ti_common import accuracy, classes, loader, r2_pos, shapes, table
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset


@sound("an ordinary classifier of rows", steps=250, least=0.85)
def rows_with_adam():
    x, y = classes(1000, 12, 5, 101)
    xt, yt = classes(400, 12, 5, 102)
    net = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 5))
    return Program(
        net, nn.CrossEntropyLoss(), loader(x, y), optim.Adam(net.parameters(), lr=3e-3), lambda m: accuracy(m(xt), yt)
    )


@sound("an ordinary convolutional network with BatchNorm and SGD", steps=250, least=0.85)
def shapes_with_batchnorm():
    x, y, _, _ = shapes(1000, 103)
    xt, yt, _, _ = shapes(400, 104)

    def block(a, b):
        return nn.Sequential(nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU())

    net = nn.Sequential(
        block(1, 12), nn.MaxPool2d(2), block(12, 24), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(24, 4)
    )
    opt = optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    return Program(net, nn.CrossEntropyLoss(), loader(x, y, bs=50), opt, lambda m: accuracy(m(xt), yt))


@sound("an ordinary regression with a cosine schedule", steps=300, least=0.8)
def regression_with_cosine():
    x, f = table(1200, 10, 105)
    xt, ft = table(400, 10, 106)
    net = nn.Sequential(nn.Linear(10, 96), nn.SiLU(), nn.Linear(96, 96), nn.SiLU(), nn.Linear(96, 1))
    opt = optim.AdamW(net.parameters(), lr=4e-3, weight_decay=0.01)
    return Program(
        net,
        nn.MSELoss(),
        loader(x, f[:, None]),
        opt,
        lambda m: r2_pos(m(xt)[:, 0], ft),
        scheduler=optim.lr_scheduler.CosineAnnealingLR(opt, 300),
    )


class SmallUNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(1, 10, 3, padding=1), nn.Conv2d(10, 16, 3, padding=1)
        self.up, self.c = nn.ConvTranspose2d(16, 10, 2, stride=2), nn.Conv2d(20, 10, 3, padding=1)
        self.out = nn.Conv2d(10, 1, 1)

    def forward(self, x):
        a = F.relu(self.a(x))
        b = F.relu(self.b(F.max_pool2d(a, 2)))
        c = F.relu(self.c(torch.cat([a, self.up(b)], 1)))
        return self.out(c)[:, 0]


def iou(guess, truth):
    return float((guess & truth).sum() / (guess | truth).sum().clamp(min=1))


@sound("an ordinary segmentation with a skip; few pixels are positive", steps=200, least=0.8)
def masks_with_small_unet():
    x, _, m, _ = shapes(600, 109)
    xt, _, mt, _ = shapes(200, 110)
    net = SmallUNet()
    return Program(
        net,
        nn.BCEWithLogitsLoss(pos_weight=torch.tensor(4.0)),
        loader(x, m, bs=24),
        optim.Adam(net.parameters(), lr=5e-3),
        lambda n: iou(n(xt) > 0, mt > 0),
    )


class Shapes(Dataset):
    def __init__(self, n, seed):
        self.x, self.y, _, self.c = shapes(n, seed)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return {"image": self.x[i], "kind": self.y[i], "centre": self.c[i]}


class WhatAndWhere(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 12, 3, padding=1), nn.ReLU()
        )
        self.shared = nn.Sequential(nn.Flatten(), nn.Linear(432, 64), nn.ReLU())
        self.kind, self.centre = nn.Linear(64, 4), nn.Linear(64, 2)

    def forward(self, image):
        h = self.shared(self.body(image))
        return self.kind(h), self.centre(h)


@sound("two ordinary tasks on one body, batches as dictionaries", steps=350, least=0.75)
def kind_and_centre():
    test = Shapes(300, 112)
    net = WhatAndWhere()

    def step(model, batch):
        kind, centre = model(batch["image"])
        return F.cross_entropy(kind, batch["kind"]) + 5 * F.mse_loss(centre, batch["centre"])

    def score(m):
        kind, centre = m(test.x)
        return (accuracy(kind, test.y) + r2_pos(centre, test.c)) / 2

    return Program(
        net,
        None,
        DataLoader(Shapes(1200, 111), batch_size=64, shuffle=True),
        optim.Adam(net.parameters(), lr=3e-3),
        score,
        step=step,
    )


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(2 * width, width))

    def forward(self, x):
        return x + self.mlp(self.norm(x))


@sound("an ordinary residual network for tables, half trained", trained=150, steps=300, least=0.75)
def residual_rows_half_way():
    x, f = table(1200, 10, 113)
    xt, ft = table(400, 10, 114)
    net = nn.Sequential(nn.Linear(10, 48), *[Residual(48) for _ in range(3)], nn.LayerNorm(48), nn.Linear(48, 1))
    return Program(
        net,
        lambda out, y: F.smooth_l1_loss(out.squeeze(1), y),
        loader(x, f),
        optim.AdamW(net.parameters(), lr=2e-3),
        lambda m: r2_pos(m(xt)[:, 0], ft),
    )


@sound("ordinary binary labels with a sigmoid and BCELoss, after training", trained=250, steps=300, least=0.8)
def sigmoid_and_bce_trained():
    x, f = table(1000, 8, 115)
    xt, ft = table(400, 8, 116)
    net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1), nn.Sigmoid())
    return Program(
        net,
        nn.BCELoss(),
        loader(x, (f > 0).float()[:, None]),
        optim.RMSprop(net.parameters(), lr=1e-3),
        lambda m: float(((m(xt)[:, 0] > 0.5) == (ft > 0)).float().mean()),
    )
