"""Ordinary set-ups."""

import torch
import torch.nn.functional as F
from program import Program, sound
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset, TensorDataset, WeightedRandomSampler
from vis_data import accuracy, blobs, iou, loader, r2, rings, scenes, shapes, table, waves


@sound("Nothing", steps=300, least=0.8)
def plain_regression():
    x, y = table(1400)
    net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    return Program(net, nn.MSELoss(), loader(x[:1024], y[:1024, None]), optim.Adam(net.parameters(), 2e-3), r2(x[1024:], y[1024:]))


class Basic(nn.Module):
    def __init__(self, i, o, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(i, o, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(o)
        self.conv2 = nn.Conv2d(o, o, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(o)
        self.short = nn.Identity() if i == o and stride == 1 else nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o))

    def forward(self, x):
        h = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(h)) + self.short(x))


class SmallResNet(nn.Module):
    def __init__(self, zero_init=False):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.layer1 = Basic(8, 8)
        self.layer2 = Basic(8, 16, 2)
        self.layer3 = Basic(16, 16)
        self.fc = nn.Linear(16, 4)
        if zero_init:
            for m in self.modules():
                if isinstance(m, Basic):
                    nn.init.zeros_(m.bn2.weight)

    def forward(self, x):
        x = self.layer3(self.layer2(self.layer1(self.stem(x))))
        return self.fc(x.mean((-2, -1)))


def decay_groups(net, wd):
    decay = [p for p in net.parameters() if p.dim() > 1]
    other = [p for p in net.parameters() if p.dim() <= 1]
    return [{"params": decay, "weight_decay": wd}, {"params": other, "weight_decay": 0.0}]


@sound("A residual network, half trained", trained=60, steps=160, least=0.8)
def resnet_halfway():
    x, y = shapes(1024)
    net = SmallResNet()
    opt = optim.SGD(decay_groups(net, 5e-4), lr=0.05, momentum=0.9, nesterov=True)
    sched = optim.lr_scheduler.CosineAnnealingLR(opt, T_max=160)
    return Program(net, nn.CrossEntropyLoss(), loader(x[:768], y[:768]), opt, accuracy(x[768:], y[768:]), scheduler=sched)


@sound("Residual branches that start at zero, and so pass no gradient at first", steps=160, least=0.8)
def resnet_zero_gamma():
    x, y = shapes(1024)
    net = SmallResNet(zero_init=True)
    opt = optim.SGD(decay_groups(net, 1e-4), lr=0.05, momentum=0.9)
    return Program(net, nn.CrossEntropyLoss(label_smoothing=0.1), loader(x[:768], y[:768]), opt, accuracy(x[768:], y[768:]))


@sound("OneCycle: the rate starts low", steps=300, least=0.8)
def signals_onecycle():
    x, y = waves(1024)
    net = nn.Sequential(
        nn.Conv1d(1, 16, 7, padding=3), nn.BatchNorm1d(16), nn.ReLU(), nn.MaxPool1d(2),
        nn.Conv1d(16, 32, 5, padding=2), nn.BatchNorm1d(32), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(),
        nn.Dropout(0.2), nn.Linear(32, 4))  # fmt: skip
    opt = optim.AdamW(net.parameters(), lr=1e-2, weight_decay=0.01)
    sched = optim.lr_scheduler.OneCycleLR(opt, max_lr=1e-2, total_steps=601)
    return Program(net, nn.CrossEntropyLoss(), loader(x[:768], y[:768]), opt, accuracy(x[768:], y[768:]), scheduler=sched)


@sound("A logistic regression, trained to the end", trained=300, steps=300, least=0.8)
def logistic_done():
    x, y = blobs(1400, k=2, spread=1.0)
    net = nn.Linear(10, 1)

    def loss(out, y):
        return F.binary_cross_entropy_with_logits(out.squeeze(1), y.float())

    def score(model):
        return ((model(x[1024:]).squeeze(1) > 0) == (y[1024:] > 0)).float().mean().item()

    return Program(net, loss, loader(x[:1024], y[:1024]), optim.SGD(net.parameters(), lr=0.5), score)


class TinyUNet(nn.Module):
    def __init__(self, c=8):
        super().__init__()
        self.down1 = nn.Sequential(nn.Conv2d(1, c, 3, padding=1), nn.GroupNorm(2, c), nn.ReLU())
        self.down2 = nn.Sequential(nn.Conv2d(c, 2 * c, 3, padding=1), nn.GroupNorm(2, 2 * c), nn.ReLU())
        self.up = nn.ConvTranspose2d(2 * c, c, 2, stride=2)
        self.last = nn.Sequential(nn.Conv2d(2 * c, c, 3, padding=1), nn.ReLU(), nn.Conv2d(c, 1, 1))

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        return self.last(torch.cat([a, self.up(b)], 1))


@sound("Few foreground pixels; Dice and cross-entropy together", steps=150, least=0.75)
def unet_dice():
    x, m = scenes(384)

    def loss(logits, m):
        p = logits.sigmoid()
        dice = 1 - (2 * (p * m).sum((1, 2, 3)) + 1) / ((p + m).sum((1, 2, 3)) + 1)
        return dice.mean() + F.binary_cross_entropy_with_logits(logits, m)

    net = TinyUNet()
    return Program(net, loss, loader(x[:256], m[:256], batch=8), optim.Adam(net.parameters(), 3e-3), iou(x[256:], m[256:]))


@sound("Several rare labels with pos_weight", steps=300, least=0.6)
def multi_label():
    x, _ = table(1800)
    g = torch.Generator().manual_seed(2)
    w = torch.randn(8, 6, generator=g) / 8**0.5
    y = ((x @ w + 0.5 * (x[:, :6] * x[:, 1:7])) > 1.0).float()
    pos = (y[:1400] == 0).sum(0) / (y[:1400] == 1).sum(0)
    net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 6))

    def score(model):  # mean of F1
        p, t = model(x[1400:]) > 0, y[1400:] > 0
        tp = (p & t).sum(0).float()
        return (2 * tp / (p.sum(0) + t.sum(0)).clamp(min=1)).mean().item()

    return Program(net, nn.BCEWithLogitsLoss(pos_weight=pos), loader(x[:1400], y[:1400]), optim.Adam(net.parameters(), 4e-3), score)


@sound("Categories through embeddings next to numbers, trained halfway", trained=150, steps=300, least=0.7)
def embeddings_and_numbers():
    n = 1600
    x, y = table(n, d=4)
    city = torch.randint(0, 20, (n,))
    kind = torch.randint(0, 4, (n,))
    g = torch.Generator().manual_seed(4)
    y = y + torch.randn(20, generator=g)[city] + 0.5 * torch.randn(4, generator=g)[kind]

    class Rows(Dataset):
        def __init__(self, part):
            self.part = part

        def __len__(self):
            return len(self.part)

        def __getitem__(self, i):
            i = self.part[i]
            return {"numbers": x[i], "city": city[i], "kind": kind[i]}, y[i]

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.city, self.kind = nn.Embedding(20, 6), nn.Embedding(4, 2)
            self.mlp = nn.Sequential(nn.Linear(12, 64), nn.SiLU(), nn.Linear(64, 32), nn.SiLU(), nn.Linear(32, 1))

        def forward(self, numbers, city, kind):
            return self.mlp(torch.cat([numbers, self.city(city), self.kind(kind)], 1)).squeeze(1)

    def score(model):
        o, t = model(x[1200:], city[1200:], kind[1200:]), y[1200:]
        return max(0.0, (1 - ((o - t) ** 2).mean() / t.var()).item())

    net = Net()
    return Program(net, nn.MSELoss(), DataLoader(Rows(range(1200)), 64, shuffle=True), optim.Adam(net.parameters(), 5e-3), score)


@sound("One class in twelve, balanced by a sampler", steps=250, least=0.7)
def rare_class_sampler():
    x, r = rings(4000, k=2)
    keep = (r == 0) | (torch.rand(4000) < 0.09)
    x, y = x[keep], r[keep]
    n = len(y) - 600
    weight = 1.0 / torch.bincount(y[:n]).float()
    sampler = WeightedRandomSampler(weight[y[:n]], n)
    net = nn.Sequential(nn.Linear(6, 32), nn.LeakyReLU(0.1), nn.Linear(32, 32), nn.LeakyReLU(0.1), nn.Linear(32, 2))

    def score(model):  # balanced accuracy
        p, t = model(x[n:]).argmax(1), y[n:]
        return 0.5 * ((p[t == 0] == 0).float().mean() + (p[t == 1] == 1).float().mean()).item()

    batches = DataLoader(TensorDataset(x[:n], y[:n]), 32, sampler=sampler)
    return Program(net, nn.CrossEntropyLoss(), batches, optim.RMSprop(net.parameters(), 2e-3), score)
