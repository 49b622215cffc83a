"""Faults in networks on images."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from program import Program, fault
from torch import nn
from torch.utils.data import DataLoader, Dataset
from yis_data import accuracy, bars, blob, dice, discs, glyphs, loader, r2


class PlainBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv1 = nn.Conv2d(c, c, 3, padding=1)
        self.conv2 = nn.Conv2d(c, c, 3, padding=1)
        for m in (self.conv1, self.conv2):
            nn.init.kaiming_normal_(m.weight, nonlinearity="relu")
            nn.init.zeros_(m.bias)

    def forward(self, x):
        return x + self.conv2(F.relu(self.conv1(x)))


class NormFreeResNet(nn.Module):
    def __init__(self, blocks=12, c=10):
        super().__init__()
        self.stem = nn.Conv2d(1, c, 3, padding=1)
        self.blocks = nn.ModuleList([PlainBlock(c) for _ in range(blocks)])
        self.fc = nn.Linear(c * 4, 6)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.stem(x)), 2)
        for b in self.blocks:
            x = b(x)
        return self.fc(F.adaptive_avg_pool2d(F.relu(x), 2).flatten(1))


@fault(
    "residual branches of full scale without any normalisation, so that the stream doubles in every block",
    rules=("activation-drift", "exploding-gradient", "bad-initialisation", "learning-rate-too-high", "saturated-output"),
    fails=True,
    steps=300,
)
def yis_residual_stream_doubles(is_faulty):
    x, y = glyphs(1200)
    model = NormFreeResNet()
    if not is_faulty:
        for b in model.blocks:
            nn.init.zeros_(b.conv2.weight)
    opt = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9)
    return Program(model, nn.CrossEntropyLoss(), loader(x[:900], y[:900]), opt, accuracy(x[900:], y[900:]))


class Attend(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.qkv = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)
        self.heads = heads
        self.scale = 1 / math.sqrt(d // heads)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        a = torch.softmax(q @ k.transpose(-1, -2) * self.scale, dim=-1)
        return self.out((a @ v).transpose(1, 2).reshape(b, t, d))


class TinyViT(nn.Module):
    def __init__(self, size, patch, d=32, depth=2, heads=2, classes=4, position=True):
        super().__init__()
        self.patchify = nn.Conv2d(1, d, patch, patch)
        n = (size // patch) ** 2
        self.pos = nn.Parameter(torch.randn(1, n, d) * 0.3) if position else None
        self.norms = nn.ModuleList(nn.LayerNorm(d) for _ in range(2 * depth))
        self.attn = nn.ModuleList(Attend(d, heads) for _ in range(depth))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d)) for _ in range(depth)
        )
        self.head = nn.Linear(d, classes)

    def forward(self, x):
        x = self.patchify(x).flatten(2).transpose(1, 2)
        if self.pos is not None:
            x = x + self.pos
        for i, (a, m) in enumerate(zip(self.attn, self.mlp)):
            x = x + a(self.norms[2 * i](x))
            x = x + m(self.norms[2 * i + 1](x))
        return self.head(x.mean(1))


@fault(
    "a vision transformer whose positions were never added, on a task of where",
    rules=("order-lost",),
    fails=True,
    steps=400,
)
def yis_vit_no_positions(is_faulty):
    x, p = blob(1500, 12)
    y = (p[:, 0] > 0).long() * 2 + (p[:, 1] > 0).long()
    model = TinyViT(12, 3, position=not is_faulty)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    return Program(model, F.cross_entropy, loader(x[:1100], y[:1100]), opt, accuracy(x[1100:], y[1100:]))


class UintImages(Dataset):
    def __init__(self, images, labels, scale):
        self.images, self.labels, self.scale = images, labels, scale

    def __len__(self):
        return len(self.images)

    def __getitem__(self, k):
        return self.scale(self.images[k]), self.labels[k]


@fault(
    "bytes are divided by 255 as integers, so that every pixel is 0",
    rules=("constant-feature", "labels-unrelated", "loss-not-decreasing", "rank-collapse"),
    fails=True,
    steps=250,
)
def yis_bytes_divided_as_integers(is_faulty):
    x, y = bars(1000, 10, 0.2)
    b = (x * 60 + 90).clamp(0, 254).to(torch.uint8)

    def scale(a):
        return (a // 255).float() if is_faulty else a.float() / 255

    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 16, 3, padding=1), nn.ReLU(),
        nn.AdaptiveMaxPool2d(2), nn.Flatten(), nn.Linear(64, 4),
    )
    data = UintImages(b[:750], y[:750], scale)
    opt = torch.optim.Adam(model.parameters(), 3e-3)
    return Program(
        model, nn.CrossEntropyLoss(), DataLoader(data, 32, shuffle=True), opt, accuracy(scale(b[750:]), y[750:])
    )


class MiniUNet(nn.Module):
    def __init__(self, c=8, out=1):
        super().__init__()
        self.down1 = nn.Conv2d(1, c, 3, padding=1)
        self.down2 = nn.Conv2d(c, 2 * c, 3, padding=1)
        self.mid = nn.Conv2d(2 * c, 2 * c, 3, padding=1)
        self.up = nn.ConvTranspose2d(2 * c, c, 2, 2)
        self.merge = nn.Conv2d(2 * c, c, 3, padding=1)
        self.final = nn.Conv2d(c, out, 1)

    def forward(self, x):
        a = F.relu(self.down1(x))
        b = F.relu(self.mid(F.relu(self.down2(F.max_pool2d(a, 2)))))
        return self.final(F.relu(self.merge(torch.cat([a, self.up(b)], 1))))


@fault(
    "masks of 0 and 254 (saved by an image program) are divided by 255 and cut to integers, so that all is ground",
    rules=("constant-target",),
    fails=True,
    steps=200,
)
def yis_masks_cut_to_zero(is_faulty):
    x, m = discs(700)
    saved = (m * 254).to(torch.uint8)
    target = (saved / 255).long() if is_faulty else (saved > 127).long()
    model = MiniUNet(out=2)
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    return Program(
        model, nn.CrossEntropyLoss(), loader(x[:500], target[:500], size=16), opt,
        lambda net: dice(net(x[500:]).argmax(1), m[500:]),
    )


class FunctionalDrop(nn.Module):
    def __init__(self, keeps_on, p=0.7):
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(1, 12, 3, padding=1), nn.Conv2d(12, 16, 3, padding=1)
        self.fc1, self.fc2 = nn.Linear(16 * 6, 40), nn.Linear(40, 8)
        self.keeps_on, self.p = keeps_on, p

    def forward(self, x):
        on = True if self.keeps_on else self.training
        x = F.max_pool2d(F.relu(self.c1(x)), 2)
        x = F.relu(self.c2(x))
        x = F.adaptive_avg_pool2d(x, (3, 2)).flatten(1)
        x = F.dropout(x, self.p, training=on)
        return self.fc2(F.dropout(F.relu(self.fc1(x)), self.p, training=on))


@fault(
    "functional dropout that is not told of evaluation",
    rules=("dropout-in-eval",),
    fails=False,
    steps=400,
)
def yis_functional_dropout_stays(is_faulty):
    x, y = glyphs(1500, 8, 10, 0.5)
    model = FunctionalDrop(is_faulty)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    return Program(model, F.cross_entropy, loader(x[:1200], y[:1200]), opt, accuracy(x[1200:], y[1200:]))


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(),
            nn.AdaptiveMaxPool2d(2), nn.Flatten(),
        )
        self.head = nn.Linear(96, 10)

    def forward(self, x):
        return self.head(self.body(x))


@fault(
    "the head is replaced after the optimizer was made, and the body is frozen, so that nothing learned is used",
    rules=("no-gradient",),
    layers=("head",),
    fails=True,
    steps=250,
)
def yis_head_replaced_after_optimizer(is_faulty):
    x, y = bars(1000, 12, 0.3)
    model = Backbone()
    for p in model.body.parameters():
        p.requires_grad_(False)
    new = nn.Linear(96, 4)
    if not is_faulty:
        model.head = new
    opt = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    model.head = new
    return Program(model, nn.CrossEntropyLoss(), loader(x[:800], y[:800]), opt, accuracy(x[800:], y[800:]))


class ForgottenReLU(nn.Module):
    def __init__(self, forgets):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 10, 3, padding=1)
        self.conv2 = nn.Conv2d(10, 10, 3, padding=1, stride=2)
        self.fc1, self.fc2 = nn.Linear(250, 48), nn.Linear(48, 4)
        self.forgets = forgets

    def forward(self, x):
        for layer in (self.conv1, self.conv2):
            x = layer(x)
            y = F.relu(x)
            x = x if self.forgets else y
        x = self.fc1(x.flatten(1))
        if not self.forgets:
            x = F.relu(x)
        return self.fc2(x)


@fault(
    "what relu returns is never assigned, so that the network is linear",
    rules=("no-nonlinearity",),
    fails=True,
    steps=400,
)
def yis_relu_not_assigned(is_faulty):
    x, y = bars(1600, 10, 0.2, signed=True)
    model = ForgottenReLU(is_faulty)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    return Program(model, nn.CrossEntropyLoss(), loader(x[:1300], y[:1300]), opt, accuracy(x[1300:], y[1300:]))


class EnergyPool(nn.Module):
    """Root of the sum of squares over windows."""

    def __init__(self, eps):
        super().__init__()
        self.eps = eps

    def forward(self, x):
        return torch.sqrt(F.avg_pool2d(x * x, 4) + self.eps)


@fault(
    "a root of what is exactly 0 on blank paper, whose slope is infinite",
    rules=("non-finite",),
    fails=True,
    steps=250,
)
def yis_root_of_zero(is_faulty):
    x, y = bars(1000, 12, 0.1)
    x = F.relu(x - 0.4)  # ink on black
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1, bias=False), EnergyPool(0.0 if is_faulty else 1e-6), nn.Flatten(),
        nn.Linear(108, 4),
    )
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return Program(model, F.cross_entropy, loader(x[:800], y[:800]), opt, accuracy(x[800:], y[800:]))


class SharedNorm(nn.Module):
    def __init__(self, shares, c=16):
        super().__init__()
        self.stem = nn.Conv2d(1, c, 3, padding=1)
        self.conv2, self.conv3 = nn.Conv2d(c, c, 3, padding=1), nn.Conv2d(c, c, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(c)
        self.bn2 = self.bn1 if shares else nn.BatchNorm2d(c)
        self.bn3 = self.bn1 if shares else nn.BatchNorm2d(c)
        self.fc = nn.Linear(c * 4, 6)

    def forward(self, x):
        x = F.relu(self.bn1(self.stem(x)))
        x = F.relu(self.bn2(self.conv2(F.max_pool2d(x, 2))))
        x = F.relu(self.bn3(self.conv3(x)))
        return self.fc(F.adaptive_avg_pool2d(x, 2).flatten(1))


@fault(
    "one BatchNorm is used after three convolutions whose outputs differ in scale",
    rules=("shared-weight", "batchnorm-mode-gap"),
    layers=("bn1",),
    fails=False,
    steps=250,
)
def yis_one_batchnorm_thrice(is_faulty):
    x, y = glyphs(1200, 6, 10, 0.6)
    model = SharedNorm(is_faulty)
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    return Program(model, nn.CrossEntropyLoss(), loader(x[:900], y[:900]), opt, accuracy(x[900:], y[900:]))


@fault(
    "a loader without shuffling over a folder that is read class by class",
    rules=("sorted-batches",),
    fails=True,
    steps=200,
)
def yis_folder_order(is_faulty):
    x, y = glyphs(1440, 6, 10, 0.8)
    tx, ty = x[1080:], y[1080:]
    order = y[:1080].argsort(stable=True)
    x, y = x[order], y[order]
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, 2, 1), nn.ReLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.ReLU(), nn.Flatten(),
        nn.Linear(216, 32), nn.ReLU(), nn.Linear(32, 6),
    )
    opt = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
    return Program(
        model, nn.CrossEntropyLoss(), loader(x, y, size=36, shuffle=not is_faulty), opt, accuracy(tx, ty)
    )


@fault(
    "a view with the loader's batch size written into it, which the last batch does not have",
    rules=("model-fails",),
    fails=True,
    steps=300,
)
def yis_batch_size_written_in(is_faulty):
    x, y = glyphs(1000, 6, 10, 1.0)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(1, 16, 3, 2, 1)
            self.fc1, self.fc2 = nn.Linear(400, 32), nn.Linear(32, 6)

        def forward(self, x):
            h = F.relu(self.conv(x))
            h = h.view(40, 400) if is_faulty else h.view(h.shape[0], 400)
            return self.fc2(F.relu(self.fc1(h)))

    def score(net):
        return sum(float((net(a).argmax(1) == b).float().mean()) for a, b in zip(x[800:].split(40), y[800:].split(40))) / 5

    model = Net()
    opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return Program(model, nn.CrossEntropyLoss(), loader(x[:230], y[:230], size=40, drop=False), opt, score)


class Folder(Dataset):
    """Images in the order of their names, and a table of labels by number."""

    def __init__(self, images, labels, by_number):
        self.files = {f"{k}.png": a for k, a in enumerate(images)}
        self.names = sorted(self.files, key=(lambda a: int(a[:-4])) if by_number else None)
        self.labels = labels

    def __len__(self):
        return len(self.names)

    def __getitem__(self, k):
        return self.files[self.names[k]], self.labels[k]


@fault(
    "files are sorted as text ('10.png' before '2.png'), their labels by number",
    rules=("labels-unrelated",),
    fails=True,
    steps=300,
)
def yis_names_sorted_as_text(is_faulty):
    x, p = blob(1400, 12)
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, 2, 1), nn.ReLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(216, 2)
    )
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    data = Folder(x[:1100], p[:1100], not is_faulty)
    return Program(
        model, nn.SmoothL1Loss(beta=0.2), DataLoader(data, 32, shuffle=True, drop_last=True), opt,
        lambda net: r2(net(x[1100:]), p[1100:]),
    )
