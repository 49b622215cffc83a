import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, random_split

from program import Program, sound
from ti_common import accuracy, classes, discs, gen, iou_of, loader, r2, r2_of, shapes, table


@sound("an ordinary classifier of a table", steps=300, least=0.75)
def ordinary_table_classifier():
    x, y = classes(1500, 8, 3, seed=201)
    net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 3))
    return Program(
        net, nn.CrossEntropyLoss(), loader(x[:1200], y[:1200]), torch.optim.Adam(net.parameters(), lr=2e-3), accuracy(x[1200:], y[1200:])
    )


@sound("an ordinary CNN with BatchNorm, momentum and a cosine", steps=200, least=0.9)
def ordinary_cnn_cosine():
    x, y = shapes(900, seed=202)
    x = (x - x[:700].mean()) / x[:700].std()
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
        nn.Flatten(), nn.Dropout(0.1), nn.Linear(96, 4),
    )  # fmt: skip
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=400)
    return Program(net, nn.CrossEntropyLoss(), loader(x[:700], y[:700], batch_size=32), opt, accuracy(x[700:], y[700:]), scheduler=sched)


class Rows(Dataset):
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return {"numbers": self.x[i, :6], "kinds": self.x[i, 6:].gt(0).long()}, self.y[i]


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.kinds = nn.ModuleList([nn.Embedding(2, 3) for _ in range(2)])
        self.net = nn.Sequential(nn.Linear(12, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))

    def forward(self, numbers, kinds):
        parts = [e(kinds[:, i]) for i, e in enumerate(self.kinds)]
        return self.net(torch.cat([numbers, *parts], 1)).squeeze(1)


@sound("an ordinary regression with embeddings of two categories, examined after 60 steps", trained=60, steps=350, least=0.8)
def ordinary_mixed_regression():
    x, y = table(1500, 8, seed=203)
    net = Mixed()
    held = {"numbers": x[1200:, :6], "kinds": x[1200:, 6:].gt(0).long()}
    return Program(
        net,
        nn.SmoothL1Loss(),
        DataLoader(Rows(x[:1200], y[:1200]), batch_size=48, shuffle=True),
        torch.optim.AdamW(net.parameters(), lr=3e-3),
        lambda m: r2_of(m(**held), y[1200:]),
    )


@sound("an ordinary yes-or-no classifier with BCEWithLogitsLoss and random_split", steps=300, least=0.8)
def ordinary_binary():
    x, t = table(1500, 8, seed=204)
    data = torch.utils.data.TensorDataset(x, (t > 0).float().unsqueeze(1))
    train, test = random_split(data, [1200, 300], generator=gen(0))
    net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    hx, hy = x[test.indices], (t > 0)[test.indices]
    return Program(
        net,
        nn.BCEWithLogitsLoss(),
        DataLoader(train, batch_size=64, shuffle=True),
        torch.optim.Adam(net.parameters(), lr=2e-3),
        lambda m: ((m(hx)[:, 0] > 0) == hy).float().mean().item(),
    )


class Res(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


@sound("an ordinary residual network for tables with OneCycleLR", steps=300, least=0.68)
def ordinary_residual_table():
    x, y = classes(1500, 8, 4, seed=205)
    net = nn.Sequential(nn.Linear(8, 32), Res(32), Res(32), Res(32), nn.LayerNorm(32), nn.Linear(32, 4))
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=1e-2)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=5e-3, total_steps=2000, pct_start=0.05)
    return Program(net, nn.CrossEntropyLoss(), loader(x[:1200], y[:1200]), opt, accuracy(x[1200:], y[1200:]), scheduler=sched)


@sound("an ordinary autoencoder of images, with a sigmoid for pixels in 0..1", steps=400, least=0.6)
def ordinary_autoencoder():
    _, m, _, _ = discs(900, seed=206)
    x = (0.1 + 0.8 * F.avg_pool2d(m[:, None], 2)).flatten(1)
    net = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 12), nn.Linear(12, 96), nn.ReLU(), nn.Linear(96, 64), nn.Sigmoid())
    return Program(net, nn.MSELoss(), loader(x[:700], x[:700], batch_size=50), torch.optim.Adam(net.parameters(), lr=4e-3), r2(x[700:], x[700:]))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(1, 8, 3, padding=1)
        self.b = nn.Conv2d(8, 16, 3, padding=1)
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.c = nn.Conv2d(16, 2, 3, padding=1)

    def forward(self, x):
        a = F.relu(self.a(x))
        b = F.relu(self.b(F.max_pool2d(a, 2)))
        return self.c(torch.cat([a, self.up(b)], 1))


@sound("an ordinary small U-Net with cross-entropy over two classes", steps=200, least=0.7)
def ordinary_unet():
    x, m, _, _ = discs(400, seed=207)
    net = UNet()
    return Program(
        net,
        nn.CrossEntropyLoss(),
        loader(x[:320], m[:320].long(), batch_size=16),
        torch.optim.Adam(net.parameters(), lr=4e-3),
        lambda n: iou_of(n(x[320:]).argmax(1), m[320:]),
    )
