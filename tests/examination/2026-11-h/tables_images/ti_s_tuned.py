"""Tuning of trained networks, unusual losses and pipelines."""

from functools import lru_cache

import torch
import torch.nn.functional as F
from program import Program, sound
from ti_common import accuracy, classes, gen, loader, r2_pos, shapes, table
from torch import nn, optim


def backbone():
    return nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1),
        nn.BatchNorm2d(24),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
    )


@lru_cache(maxsize=None)
def pretrained():
    with torch.random.fork_rng():
        torch.manual_seed(3)
        x, y, _, _ = shapes(800, 140)
        body = backbone()
        net = nn.Sequential(body, nn.Linear(24, 4))
        opt = optim.Adam(net.parameters(), lr=5e-3)
        for _ in range(8):
            for i in range(0, 800, 40):
                opt.zero_grad()
                F.cross_entropy(net(x[i : i + 40]), y[i : i + 40]).backward()
                opt.step()
    return {k: v.clone() for k, v in body.state_dict().items()}


class Tuned(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.body = backbone()
        self.body.load_state_dict(pretrained())
        self.head = nn.Linear(24, outputs)

    def forward(self, x):
        return self.head(self.body(x))


@sound("a pretrained body is frozen and in evaluation mode; the optimizer has the new head only", trained=60, steps=250, least=0.85)
def frozen_body_new_head():
    x, y, _, _ = shapes(600, 141)
    xt, yt, _, _ = shapes(300, 142)
    net = Tuned(2)
    net.body.requires_grad_(False)
    net.body.eval()
    return Program(
        net,
        nn.CrossEntropyLoss(),
        loader(x, (y >= 2).long(), bs=32),
        optim.Adam(net.head.parameters(), lr=1e-2),
        lambda m: accuracy(m(xt), (yt >= 2).long()),
    )


@sound("a pretrained body learns at a hundredth of the rate of its head, BatchNorm frozen, batches of 8", steps=300, least=0.85)
def body_a_hundred_times_slower():
    x, y, _, _ = shapes(600, 143)
    xt, yt, _, _ = shapes(300, 144)
    net = Tuned(4)
    for module in net.body:
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    groups = [{"params": net.body.parameters(), "lr": 5e-5}, {"params": net.head.parameters(), "lr": 5e-3}]
    return Program(
        net,
        nn.CrossEntropyLoss(label_smoothing=0.1),
        loader(x, y, bs=8),
        optim.AdamW(groups),
        lambda m: accuracy(m(xt), yt),
    )


@sound("a quarter of the labels is wrong, the rest is learned", steps=200, least=0.75)
def noisy_labels():
    x, y = classes(1500, 10, 4, 147)
    xt, yt = classes(400, 10, 4, 148)
    g = gen(149)
    y = torch.where(torch.rand(len(y), generator=g) < 0.25, torch.randint(4, y.shape, generator=g), y)
    net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 4))
    return Program(
        net, nn.CrossEntropyLoss(), loader(x, y, bs=100), optim.Adam(net.parameters(), lr=5e-3),
        lambda m: accuracy(m(xt), yt),
    )


@sound("images with an empty border: many pixels never vary, most are 0", steps=300, least=0.75)
def images_with_empty_border():
    def padded(n, seed):
        _, y, mask, c = shapes(n, seed)
        return F.pad(mask[:, None], (3, 3, 3, 3)), c

    x, c = padded(1200, 150)
    xt, ct = padded(300, 151)
    net = nn.Sequential(nn.Flatten(), nn.Linear(324, 64), nn.ReLU(), nn.Linear(64, 2))
    return Program(
        net,
        nn.MSELoss(),
        loader(x, 3 * c - 1.5),
        optim.Adam(net.parameters(), lr=3e-3),
        lambda m: r2_pos(m(xt), 3 * ct - 1.5),
    )


@sound("three quantiles as outputs, pinball loss, half trained", trained=150, steps=350, least=0.65)
def three_quantiles():
    x, f = table(1200, 8, 153)
    xt, ft = table(400, 8, 154)
    q = torch.tensor([0.1, 0.5, 0.9])
    net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))

    def pinball(out, y):
        error = y[:, None] - out
        return torch.maximum(q * error, (q - 1) * error).mean()

    return Program(
        net, pinball, loader(x, f), optim.Adam(net.parameters(), lr=4e-3), lambda m: r2_pos(m(xt)[:, 1], ft)
    )


class Bag(nn.Module):
    """Ten instances, weighted by attention."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(6, 32), nn.ReLU())
        self.attend = nn.Sequential(nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 1))
        self.head = nn.Linear(32, 1)

    def forward(self, x):
        h = self.embed(x)
        weight = torch.softmax(self.attend(h), dim=1)
        return self.head((weight * h).sum(1))[:, 0]


@sound("bags of instances, of which one decides; a softmax over the instances", steps=350, least=0.8)
def bags_with_attention():
    g = gen(155)
    x = torch.randn(1800, 10, 6, generator=g)
    y = (torch.rand(1800, generator=g) < 0.5).float()
    x[:, 0, :3] = torch.where(y[:, None] == 1, x[:, 0, :3] * 0.3 + 2.5, x[:, 0, :3])
    order = torch.rand(1800, 10, generator=g).argsort(1)
    x = x.gather(1, order[:, :, None].expand_as(x))
    net = Bag()
    return Program(
        net,
        nn.BCEWithLogitsLoss(),
        loader(x[:1400], y[:1400]),
        optim.Adam(net.parameters(), lr=5e-3),
        lambda m: float(((m(x[1400:]) > 0) == (y[1400:] > 0.5)).float().mean()),
    )


@sound("probabilities as outputs, their logarithm in the loss", steps=250, least=0.85)
def probabilities_and_their_logarithm():
    x, y = classes(1000, 10, 5, 156)
    xt, yt = classes(400, 10, 5, 157)
    net = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 5), nn.Softmax(dim=1))
    return Program(
        net,
        lambda p, t: F.nll_loss(torch.log(p + 1e-8), t),
        loader(x, y),
        optim.Adam(net.parameters(), lr=4e-3),
        lambda m: accuracy(m(xt), yt),
    )
