import torch
import torch.nn.functional as F
from torch import nn

from faults_nets import pretrained
from program import Program, sound
from ti_common import accuracy, classes, discs, gen, iou_of, loader, r2, r2_of, shapes


class ZeroBranch(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.a = nn.Conv2d(c, c, 3, padding=1, bias=False)
        self.na = nn.BatchNorm2d(c)
        self.b = nn.Conv2d(c, c, 3, padding=1, bias=False)
        self.nb = nn.BatchNorm2d(c)
        nn.init.zeros_(self.nb.weight)

    def forward(self, x):
        return F.relu(x + self.nb(self.b(F.relu(self.na(self.a(x))))))


@sound("residual blocks whose last BatchNorm starts at zero: branches get no gradient at the first step", steps=120, least=0.85)
def zero_gamma_blocks():
    x, y = shapes(900, seed=401)
    net = nn.Sequential(nn.Conv2d(1, 12, 3, stride=2, padding=1), ZeroBranch(12), ZeroBranch(12), nn.Flatten(), nn.Linear(432, 4))
    return Program(
        net,
        nn.CrossEntropyLoss(),
        loader(x[:704], y[:704], batch_size=32),
        torch.optim.SGD(net.parameters(), lr=0.03, momentum=0.9, nesterov=True),
        accuracy(x[704:], y[704:]),
    )


@sound("a frozen backbone and a new head: most weights never move, as meant", steps=250, least=0.6)
def frozen_backbone_new_head():
    x, y = shapes(900, seed=402)
    y = (y + 1) % 4
    net = pretrained(150)
    net.features.requires_grad_(False)
    net.fc = nn.Linear(64, 4)
    opt = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=5e-3)
    return Program(net, nn.CrossEntropyLoss(), loader(x[:704], y[:704], batch_size=32), opt, accuracy(x[704:], y[704:]))


class Tied(nn.Module):
    def __init__(self, d, k):
        super().__init__()
        self.code = nn.Linear(d, k)
        self.back = nn.Parameter(torch.zeros(d))

    def forward(self, x):
        return F.linear(torch.tanh(self.code(x)), self.code.weight.t(), self.back)


@sound("an autoencoder whose decoder is the transposed encoder", steps=400, least=0.7)
def tied_autoencoder():
    g = gen(403)
    x = torch.randn(1500, 4, generator=g) @ torch.randn(4, 16, generator=g) / 2 + 0.1 * torch.randn(1500, 16, generator=g)
    net = Tied(16, 24)
    return Program(net, nn.MSELoss(), loader(x[:1200], x[:1200]), torch.optim.Adam(net.parameters(), lr=5e-3), r2(x[1200:], x[1200:]))


@sound("batches of four with GroupNorm, made for small batches", steps=400, least=0.8)
def batches_of_four_groupnorm():
    x, y = shapes(900, seed=404)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(144, 4),
    )  # fmt: skip
    return Program(
        net,
        nn.CrossEntropyLoss(),
        loader(x[:704], y[:704], batch_size=4),
        torch.optim.Adam(net.parameters(), lr=2e-3),
        accuracy(x[704:], y[704:]),
    )


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 16, 5, stride=2, padding=2), nn.ReLU(), nn.Conv2d(16, 24, 3, padding=1), nn.ReLU())
        self.there = nn.Conv2d(24, 1, 1)
        self.offset = nn.Conv2d(24, 2, 1)
        nn.init.constant_(self.there.bias, -4.0)

    def forward(self, x):
        h = self.body(x)
        return self.there(h)[:, 0], self.offset(h)


@sound("a detector with a prior bias of -4 on its objectness and offsets counted only where there is an object", steps=350, least=0.6)
def detector_with_prior():
    x, m, centre, _ = discs(500, seed=405)
    cells = F.avg_pool2d(m[:, None], 2)[:, 0].gt(0.5).float()
    grid = 2 * torch.arange(8).float() + 0.5
    offs = torch.stack([(centre[:, 0, None, None] - grid[None, :, None]).expand(-1, 8, 8), (centre[:, 1, None, None] - grid[None, None, :]).expand(-1, 8, 8)], 1) / 2
    net = Detector()

    def step(model, batch):
        image, cell, off = batch
        there, offset = model(image)
        gap = (F.smooth_l1_loss(offset, off, reduction="none").sum(1) * cell).sum() / cell.sum().clamp(min=1)
        return F.binary_cross_entropy_with_logits(there, cell) + 0.5 * gap

    def score(n):
        there, offset = n(x[400:])
        c = cells[400:] > 0
        o = offset.permute(0, 2, 3, 1)[c]
        return 0.5 * iou_of(there > 0, c) + 0.5 * r2_of(o, offs[400:].permute(0, 2, 3, 1)[c])

    return Program(net, None, loader(x[:400], cells[:400], offs[:400], batch_size=16), torch.optim.Adam(net.parameters(), lr=3e-3), score, step=step)


@sound("fine-tuning of a half-trained network with a thirtieth of the rate for its backbone", trained=40, steps=250, least=0.7)
def rates_by_depth():
    x, y = shapes(900, seed=407)
    net = pretrained(60)
    net.fc = nn.Linear(64, 4)
    opt = torch.optim.AdamW(
        [{"params": net.features.parameters(), "lr": 1e-4}, {"params": net.fc.parameters(), "lr": 3e-3}], weight_decay=0.01
    )
    return Program(net, nn.CrossEntropyLoss(label_smoothing=0.1), loader(x[:704], y[:704], batch_size=32), opt, accuracy(x[704:], y[704:]))


class Factored(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(8, 96)
        self.down = nn.Linear(96, 8, bias=False)
        self.up = nn.Linear(8, 96)
        self.out = nn.Linear(96, 3)

    def forward(self, x):
        return self.out(F.relu(self.up(self.down(F.relu(self.inp(x))))))


@sound("a wide layer factored into two of rank 8, with nothing between them on purpose; mixed-up soft labels", steps=350, least=0.7)
def factored_layer_mixup():
    x, y = classes(1500, 8, 3, seed=408)
    net = Factored()

    def collate(rows):
        a = torch.stack([r[0] for r in rows])
        b = F.one_hot(torch.stack([r[1] for r in rows]), 3).float()
        lam = 0.8 + 0.2 * torch.rand(len(a), 1)
        p = torch.randperm(len(a))
        return lam * a + (1 - lam) * a[p], lam * b + (1 - lam) * b[p]

    data = torch.utils.data.TensorDataset(x[:1200], y[:1200])
    return Program(
        net,
        nn.CrossEntropyLoss(),
        torch.utils.data.DataLoader(data, batch_size=64, shuffle=True, collate_fn=collate),
        torch.optim.Adam(net.parameters(), lr=3e-3),
        accuracy(x[1200:], y[1200:]),
    )
