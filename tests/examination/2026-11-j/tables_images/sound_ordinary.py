import torch
import torch.nn.functional as F
from program import Program, sound
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ti_data import acc, clusters, gen, miou, r2, scenes, shapes, surface


@sound("Nothing: a small table, a loader that shuffles, Adam", steps=250, least=0.85)
def plain_table_classifier():
    x, y = clusters(1500, d=14, k=6, per=2, seed=101)
    net = nn.Sequential(nn.Linear(14, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 6))
    return Program(net, nn.CrossEntropyLoss(), DataLoader(TensorDataset(x[:1200], y[:1200]), batch_size=64, shuffle=True, drop_last=True),
                   torch.optim.Adam(net.parameters(), lr=1e-3), lambda n: acc(n(x[1200:]), y[1200:]))


@sound("Nothing: convolutions with BatchNorm, SGD with momentum", steps=200, least=0.85)
def plain_convnet():
    x, y = shapes(900, seed=102)
    x = (x - 0.15) / 0.25

    def block(i, o):
        return nn.Sequential(nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True), nn.MaxPool2d(2))

    net = nn.Sequential(block(1, 12), block(12, 24), nn.Flatten(), nn.Linear(24 * 9, 4))
    return Program(net, nn.CrossEntropyLoss(), DataLoader(TensorDataset(x[:720], y[:720]), 32, shuffle=True),
                   torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4), lambda n: acc(n(x[720:]), y[720:]))


@sound("Nothing: regression with dropout and AdamW, half trained", trained=150, steps=400, least=0.7)
def plain_regression_adamw():
    x, y = surface(2000, seed=103)
    net = nn.Sequential(nn.Linear(8, 96), nn.GELU(), nn.Dropout(0.05), nn.Linear(96, 96), nn.GELU(), nn.Linear(96, 1))
    return Program(net, nn.MSELoss(), DataLoader(TensorDataset(x[:1600], y[:1600, None]), 64, shuffle=True),
                   torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.01), lambda n: r2(n(x[1600:]), y[1600:]))


class ResBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)
        self.conv2, self.bn2 = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)

    def forward(self, x):
        h = F.relu(self.bn1(self.conv1(x)))
        return F.relu(x + self.bn2(self.conv2(h)))


class SmallResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 12, 3, padding=1, stride=2)
        self.blocks = nn.Sequential(*[ResBlock(12) for _ in range(3)])
        self.head = nn.Linear(12, 4)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


@sound("Nothing: a small residual network with one cycle of the rate, which starts low", steps=250, least=0.8)
def plain_resnet_one_cycle():
    x, y = shapes(900, seed=104)
    net = SmallResNet()
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    sch = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=1e-2, total_steps=1000, pct_start=0.1)
    return Program(net, nn.CrossEntropyLoss(label_smoothing=0.05), DataLoader(TensorDataset(x[:720], y[:720]), 32, shuffle=True), opt,
                   lambda n: acc(n(x[720:]), y[720:]), scheduler=sch)


@sound("Nothing: segmentation of few foreground pixels with logits", steps=200, least=0.75)
def plain_binary_segmentation():
    x, m = scenes(500, seed=105, classes=2)

    class UNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.down1 = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU())
            self.down2 = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU())
            self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
            self.out = nn.Sequential(nn.Conv2d(16, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 1))

        def forward(self, x):
            a = self.down1(x)
            return self.out(torch.cat([a, self.up(self.down2(a))], 1))

    def score(n):
        p, t = n(x[400:])[:, 0] > 0, m[400:] > 0
        return float((p & t).sum() / (p | t).sum())

    net = UNet()
    return Program(net, nn.BCEWithLogitsLoss(), DataLoader(TensorDataset(x[:400], m[:400, None].float()), 16, shuffle=True),
                   torch.optim.Adam(net.parameters(), 3e-3), score)


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.city, self.day = nn.Embedding(30, 6), nn.Embedding(7, 3)
        self.mlp = nn.Sequential(nn.Linear(13, 48), nn.ReLU(), nn.Linear(48, 1))

    def forward(self, city, day, numbers):
        return self.mlp(torch.cat([self.city(city), self.day(day), numbers], 1)).squeeze(1)


@sound("Nothing: embeddings of categories next to numbers, given as a dict", steps=400, least=0.7)
def plain_embeddings_and_numbers():
    g = gen(106)
    n = 3000
    city, day = torch.randint(0, 30, (n,), generator=g), torch.randint(0, 7, (n,), generator=g)
    num = torch.randn(n, 4, generator=g)
    y = torch.randn(30, generator=g)[city] + 0.6 * torch.randn(7, generator=g)[day] + 0.5 * num[:, 0] * num[:, 1]
    rows = [({"city": city[i], "day": day[i], "numbers": num[i]}, y[i]) for i in range(2400)]
    net = Mixed()
    return Program(net, nn.MSELoss(), DataLoader(rows, 64, shuffle=True), torch.optim.Adam(net.parameters(), 1e-2),
                   lambda m: r2(m(city[2400:], day[2400:], num[2400:]), y[2400:]))


@sound("Nothing: an autoencoder of pictures in [0, 1]", steps=400, least=0.6)
def plain_autoencoder():
    g = gen(107)
    r = torch.linspace(-1, 1, 10)
    c = torch.rand(1500, 3, generator=g) * 1.2 - 0.6
    d2 = (r[None, :, None] - c[:, 0, None, None]) ** 2 + (r[None, None] - c[:, 1, None, None]) ** 2
    x = torch.exp(-d2 / (0.25 + 0.2 * c[:, 2, None, None])).flatten(1)
    net = nn.Sequential(nn.Linear(100, 64), nn.ReLU(), nn.Linear(64, 4), nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 100), nn.Sigmoid())
    return Program(net, nn.MSELoss(), DataLoader(TensorDataset(x[:1200], x[:1200]), 50, shuffle=True),
                   torch.optim.Adam(net.parameters(), 3e-3), lambda n: r2(n(x[1200:]), x[1200:]))
