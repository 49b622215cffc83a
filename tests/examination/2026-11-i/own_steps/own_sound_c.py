"""Sound: ordinary scripts."""

import torch
import torch.nn.functional as F
from own_common import accuracy, blobs, fit, gen, loader, wavy
from own_faults_a import low_rank
from program import Program, sound
from torch import nn


@sound("ordinary: a classifier, Adam, shuffled loader", steps=200, least=0.8)
def plain_classifier():
    x, y = blobs(1600, 6, 16, 172, 1.5)
    m = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 6))
    return Program(m, nn.CrossEntropyLoss(), loader(x[:1280], y[:1280]), torch.optim.Adam(m.parameters(), 1e-3), accuracy(x[1280:], y[1280:]))


@sound("ordinary: a small CNN with BatchNorm, SGD with momentum, cosine; half trained", trained=80, steps=200, least=0.8)
def plain_cnn():
    g = gen(173)
    y = torch.randint(0, 4, (1200,), generator=g)
    patterns = torch.randn(4, 1, 4, 4, generator=g)
    x = 0.5 * torch.randn(1200, 1, 10, 10, generator=g)
    at = torch.randint(0, 6, (1200, 2), generator=g)
    for i in range(1200):
        r, c = at[i]
        x[i, :, r : r + 4, c : c + 4] += patterns[y[i]]
    m = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(24, 4))
    opt = torch.optim.SGD(m.parameters(), 0.05, momentum=0.9, weight_decay=5e-4)
    return Program(m, nn.CrossEntropyLoss(), loader(x[:960], y[:960], size=48), opt, accuracy(x[960:], y[960:]), scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(opt, 220))


@sound("ordinary: a regression with AdamW and a one-cycle rate", steps=250, least=0.7)
def plain_regression():
    x, y = wavy(1600, 6, 174)
    m = nn.Sequential(nn.Linear(6, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))
    opt = torch.optim.AdamW(m.parameters(), 1e-3)
    return Program(m, nn.MSELoss(), loader(x[:1280], y[:1280]), opt, fit(x[1280:], y[1280:]), scheduler=torch.optim.lr_scheduler.OneCycleLR(opt, 1e-2, total_steps=420))


class Clf(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(3, 24, batch_first=True)
        self.head = nn.Linear(24, 3)

    def forward(self, x):
        return self.head(self.rnn(x)[1][-1])


@sound("ordinary: a GRU that classifies waves", steps=200, least=0.7)
def plain_gru():
    g = gen(175)
    y = torch.randint(0, 3, (1000,), generator=g)
    t = torch.arange(12).view(1, 12, 1)
    x = torch.sin((0.5 + 0.5 * y.view(-1, 1, 1)) * t + 6 * torch.rand(1000, 1, 3, generator=g)) + 0.2 * torch.randn(1000, 12, 3, generator=g)
    m = Clf()
    return Program(m, nn.CrossEntropyLoss(), loader(x[:800], y[:800], size=50), torch.optim.Adam(m.parameters(), 5e-3), accuracy(x[800:], y[800:]))


@sound("ordinary: a denoising autoencoder, trained", trained=250, steps=300, least=0.7)
def plain_autoencoder():
    x = low_rank(1600, 16, 176)
    m = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 4), nn.Linear(4, 48), nn.ReLU(), nn.Linear(48, 16))

    def step(net, batch):
        (xb,) = batch
        return F.mse_loss(net(xb + 0.1 * torch.randn_like(xb)), xb)

    return Program(m, None, loader(x[:1280]), torch.optim.Adam(m.parameters(), 3e-3), fit(x[1280:], x[1280:]), step=step)


@sound("ordinary: yes or no, one logit, weighted for rare positives", steps=200, least=0.6)
def plain_binary():
    g = gen(177)
    x = torch.randn(2400, 8, generator=g)
    y = ((x[:, 0] * x[:, 1] + x[:, 2]) > 1.0).float()[:, None]
    m = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))

    def score(m):
        p, t = m(x[2000:]) > 0, y[2000:] > 0
        return float((p & t).sum() / t.sum() + (~p & ~t).sum() / (~t).sum() - 1)

    return Program(m, nn.BCEWithLogitsLoss(pos_weight=torch.tensor(4.0)), loader(x[:2000], y[:2000]), torch.optim.Adam(m.parameters(), 3e-3), score)
