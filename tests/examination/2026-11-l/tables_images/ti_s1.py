import torch
import torch.nn.functional as F
from program import Program, fault, sound
from ti_data import accuracy, boxes, curve, gen, iou_of, loader, r2, r2_of, shapes, table
from ti_f1 import small_cnn
from torch import nn


@sound("ordinary: a table, an MLP, Adam", steps=250, least=0.8)
def plain_table():
    x, y = table()
    xt, yt = table(512, seed=4)
    m = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    return Program(m, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(m.parameters(), 3e-3), accuracy(xt, yt))


@sound("ordinary: images, convolutions with BatchNorm, Adam", steps=200, least=0.8)
def plain_cnn():
    x, y = shapes()
    xt, yt = shapes(512, seed=8)
    m = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.2), nn.Linear(144, 4))
    return Program(m, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(m.parameters(), 2e-3), accuracy(xt, yt))


@sound("ordinary: regression on standardised targets, AdamW, half trained", trained=120, steps=300, least=0.7)
def plain_regression():
    x, y = curve()
    xt, yt = curve(512, seed=6)
    m = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))
    return Program(m, nn.MSELoss(), loader(x, y[:, None]), torch.optim.AdamW(m.parameters(), 4e-3), r2_of(xt, yt))


@sound("ordinary: segmentation", steps=200, least=0.65)
def plain_segmentation():
    x, mask, _ = boxes()
    xt, mt, _ = boxes(512, seed=10)
    m = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 12, 3, padding=1), nn.ReLU(),
                      nn.Conv2d(12, 1, 3, padding=1))
    return Program(m, nn.BCEWithLogitsLoss(), loader(x, mask, batch=32), torch.optim.Adam(m.parameters(), 5e-3),
                   iou_of(xt, mt))


@sound("ordinary: an autoencoder with a narrow code", steps=350, least=0.65)
def plain_autoencoder():
    g = gen(2)
    mix = torch.randn(5, 30, generator=g)
    x = torch.tanh(torch.randn(2560, 5, generator=g) @ mix * 0.5) + 0.1 * torch.randn(2560, 30, generator=g)
    m = nn.Sequential(nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 6), nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 30))
    return Program(m, nn.MSELoss(), loader(x[:2048], x[:2048]), torch.optim.Adam(m.parameters(), 3e-3),
                   r2_of(x[2048:], x[2048:]))


@sound("ordinary: several yes/no labels a row", steps=250, least=0.7)
def plain_multilabel():
    def labels(x):
        return torch.stack([x[:, 0] * x[:, 1] > 0, x[:, 2] > 0.3, x[:, 3] + x[:, 4] > 0], 1).float()

    x, _ = table()
    xt, _ = table(512, seed=4)
    m = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 3))
    return Program(m, nn.BCEWithLogitsLoss(), loader(x, labels(x)), torch.optim.Adam(m.parameters(), 1e-2),
                   lambda k: max(0.0, 2 * ((k(xt) > 0) == labels(xt).bool()).float().mean().item() - 1))


@sound("ordinary: a small residual network with GroupNorm, SGD and a cosine", steps=250, least=0.75)
def plain_resnet():
    class Block(nn.Module):
        def __init__(self, c):
            super().__init__()
            self.conv1, self.conv2 = nn.Conv2d(c, c, 3, padding=1), nn.Conv2d(c, c, 3, padding=1)
            self.n1, self.n2 = nn.GroupNorm(4, c), nn.GroupNorm(4, c)

        def forward(self, x):
            return F.relu(x + self.n2(self.conv2(F.relu(self.n1(self.conv1(x))))))

    x, y = shapes()
    xt, yt = shapes(512, seed=8)
    m = nn.Sequential(nn.Conv2d(1, 12, 3, stride=2, padding=1), nn.ReLU(), Block(12), Block(12), nn.MaxPool2d(2),
                      nn.Flatten(), nn.Linear(108, 4))
    opt = torch.optim.SGD(m.parameters(), 0.01, momentum=0.9, nesterov=True, weight_decay=5e-4)
    return Program(m, nn.CrossEntropyLoss(), loader(x, y, batch=32), opt, accuracy(xt, yt),
                   scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(opt, 250))


@sound("the last layer of every residual branch starts at zero, as does the classifier", steps=400, least=0.7)
def zero_branches():
    class Block(nn.Module):
        def __init__(self, w):
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(w), nn.Linear(w, 2 * w), nn.Linear(2 * w, w)
            nn.init.zeros_(self.down.weight)
            nn.init.zeros_(self.down.bias)

        def forward(self, x):
            return x + self.down(F.gelu(self.up(self.norm(x))))

    x, y = table()
    xt, yt = table(512, seed=4)
    m = nn.Sequential(nn.Linear(10, 32), *[Block(32) for _ in range(4)], nn.LayerNorm(32), nn.Linear(32, 4))
    nn.init.zeros_(m[-1].weight)
    nn.init.zeros_(m[-1].bias)
    return Program(m, nn.CrossEntropyLoss(), loader(x, y), torch.optim.AdamW(m.parameters(), 5e-3), accuracy(xt, yt))


@sound("a trained backbone is frozen on purpose, in eval mode, and only a new head learns", steps=250, least=0.7)
def frozen_backbone():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.features = nn.Sequential(nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
                                          nn.Conv2d(16, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten())
            self.head = nn.Linear(32 * 9, 4)

        def forward(self, x):
            return self.head(self.features(x))

        def train(self, mode=True):
            super().train(mode)
            self.features.eval()
            return self

    x, y = shapes(seed=21)
    m = Net()
    m.features.train()
    pre = torch.optim.Adam(m.parameters(), 3e-3)
    for i in range(0, 1536, 32):
        pre.zero_grad()
        F.cross_entropy(m(x[i : i + 32]), y[i : i + 32]).backward()
        pre.step()
    pre.zero_grad()
    m.features.requires_grad_(False)
    m.features.eval()
    m.head = nn.Linear(32 * 9, 3)
    x, y = shapes()
    xt, yt = shapes(512, seed=8)
    return Program(m, nn.CrossEntropyLoss(), loader(x, y.clamp(max=2)), torch.optim.Adam(m.head.parameters(), 3e-3),
                   accuracy(xt, yt.clamp(max=2)))


@sound("counts with rates from Softplus and log_input=False", steps=300, least=0.6)
def rates_from_softplus():
    x, y = curve()
    xt, yt = curve(512, seed=6)
    n = torch.poisson(torch.exp(0.6 * y + 0.5), generator=gen(3))
    m = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1), nn.Softplus(),
                      nn.Flatten(0))
    return Program(m, nn.PoissonNLLLoss(log_input=False), loader(x, n), torch.optim.Adam(m.parameters(), 4e-3),
                   lambda k: r2(k(xt).clamp(min=1e-3).log(), 0.6 * yt + 0.5))


@sound("a mean and a log-variance: a loss that goes below zero", trained=150, steps=350, least=0.7)
def negative_likelihood():
    x, y = curve()
    xt, yt = curve(512, seed=6)
    m = nn.Sequential(nn.Linear(8, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 2))

    def nll(out, t):
        mu, lv = out[:, 0], out[:, 1].clamp(-7, 5)
        return 0.5 * (lv + (t - mu) ** 2 * torch.exp(-lv)).mean()

    return Program(m, nll, loader(x, y), torch.optim.Adam(m.parameters(), 4e-3), lambda k: r2(k(xt)[:, 0], yt))
