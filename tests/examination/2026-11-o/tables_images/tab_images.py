"""Images."""

from __future__ import annotations

import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from program import Program, fault
from tab_data import accuracy, shapes
from torch.utils.data import DataLoader, Dataset, TensorDataset


class Bytes(Dataset):
    """Images stored as bytes."""

    def __init__(self, images, labels, transform):
        self.images, self.labels, self.transform = images, labels, transform

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.transform(self.images[i]), self.labels[i]


def convnet(width=12):
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * width, 4),
    )


@fault("bytes divided by 255 as integers", rules=["constant-feature", "labels-unrelated"], layers=[], fails=True, steps=400)
def tab_integer_division(is_faulty: bool) -> Program:
    x, y, _ = shapes(1300)
    raw = (x * 250).byte()
    transform = (lambda im: (im // 255).float()) if is_faulty else (lambda im: im.float() / 255)
    model = convnet()
    return Program(
        model,
        nn.CrossEntropyLoss(),
        DataLoader(Bytes(raw[:1000], y[:1000], transform), batch_size=32, shuffle=True),
        torch.optim.Adam(model.parameters(), lr=2e-3),
        accuracy(torch.stack([transform(im) for im in raw[1000:]]), y[1000:]),
    )


@fault(
    "bytes from 0 to 255 go in raw",
    rules=[
        "unscaled-input",
        "learning-rate-too-high",
        "dying-neurons",
        "saturated-output",
        "exploding-gradient",
        "non-finite",
        "diverging",
    ],
    layers=[],
    fails=True,
    steps=400,
)
def tab_raw_bytes(is_faulty: bool) -> Program:
    x, y, _ = shapes(1300)
    raw = (x * 255).byte()
    prep = (lambda im: im.float()) if is_faulty else (lambda im: (im.float() / 255 - 0.13) / 0.24)
    model = convnet(10)
    return Program(
        model,
        F.cross_entropy,
        DataLoader(Bytes(raw[:1000], y[:1000], prep), batch_size=40, shuffle=True),
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        accuracy(prep(raw[1000:]), y[1000:]),
    )


class UNetish(nn.Module):
    def __init__(self, classes=1):
        super().__init__()
        self.enc1 = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.enc2 = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1, stride=2), nn.BatchNorm2d(16), nn.ReLU())
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.last = nn.Conv2d(16, classes, 1)

    def forward(self, x):
        a = self.enc1(x)
        b = self.enc2(a)
        return self.last(torch.cat([a, self.up(b)], 1))


@fault(
    "image and mask are flipped and turned each at random",
    rules=["labels-unrelated", "output-loss-mismatch"],
    layers=[],
    fails=False,
    steps=300,
)
def tab_flips(is_faulty: bool) -> Program:
    x, _, m = shapes(900, noise=0.3)
    m = m.float()[:, None]

    def augment(t, k, flip):
        t = torch.rot90(t, k, (-2, -1))
        return t.flip(-1) if flip else t

    class Pairs(Dataset):
        def __len__(self):
            return 700

        def __getitem__(self, i):
            k, flip = int(torch.randint(4, ())), bool(torch.rand(()) < 0.5)
            image = augment(x[i], k, flip)
            if is_faulty:
                k, flip = int(torch.randint(4, ())), bool(torch.rand(()) < 0.5)
            return image, augment(m[i], k, flip)

    def dice(model):
        p, t = model(x[700:]) > 0, m[700:] > 0.5
        return 2 * (p & t).sum().item() / (p.sum() + t.sum()).item()

    model = UNetish()
    return Program(
        model,
        nn.BCEWithLogitsLoss(),
        DataLoader(Pairs(), batch_size=20, shuffle=True),
        torch.optim.Adam(model.parameters(), lr=2e-3),
        dice,
    )


@fault(
    "view(-1, classes) without a permute before it",
    rules=["output-loss-mismatch"],
    layers=[],
    fails=True,
    steps=300,
)
def tab_view(is_faulty: bool) -> Program:
    x, y, m = shapes(900)
    target = torch.where(m, y[:, None, None] % 2 + 1, 0)

    def loss(logits, t):
        if is_faulty:
            flat = logits.view(-1, 3)
        else:
            flat = logits.permute(0, 2, 3, 1).reshape(-1, 3)
        return F.cross_entropy(flat, t.view(-1), weight=torch.tensor([0.2, 1.0, 1.0]))

    def iou(model):
        p, t = model(x[700:]).argmax(1), target[700:]
        return sum(((p == c) & (t == c)).sum().item() / ((p == c) | (t == c)).sum().item() for c in range(3)) / 3

    model = UNetish(3)
    return Program(
        model,
        loss,
        DataLoader(TensorDataset(x[:700], target[:700]), batch_size=20, shuffle=True, drop_last=True),
        torch.optim.AdamW(model.parameters(), lr=5e-3),
        iou,
    )


@fault(
    "labels count from 1",
    rules=["model-fails", "output-loss-mismatch"],
    layers=[],
    fails=True,
    steps=300,
)
def tab_from_one(is_faulty: bool) -> Program:
    x, y, _ = shapes(1200)
    labels = y + 1 if is_faulty else y

    class Small(nn.Module):
        def __init__(self, num_classes):
            super().__init__()
            self.features = nn.Sequential(
                nn.Conv2d(1, 16, 5, stride=2, padding=2),
                nn.BatchNorm2d(16),
                nn.ReLU(),
                nn.Conv2d(16, 24, 3, stride=2, padding=1),
                nn.BatchNorm2d(24),
                nn.ReLU(),
            )
            self.classifier = nn.Linear(24 * 16, num_classes)

        def forward(self, x):
            return self.classifier(self.features(x).flatten(1))

    model = Small(4)
    return Program(
        model,
        nn.CrossEntropyLoss(),
        DataLoader(TensorDataset(x[:1000], labels[:1000]), batch_size=32, shuffle=True),
        torch.optim.Adam(model.parameters(), lr=1e-3),
        accuracy(x[1000:], y[1000:]),
    )


@fault(
    "one BatchNorm for all convolutions of the network",
    rules=["shared-weight", "batchnorm-mode-gap"],
    layers=["bn"],
    fails=True,
    steps=400,
)
def tab_one_norm(is_faulty: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
            self.conv2 = nn.Conv2d(16, 16, 3, padding=1)
            self.conv3 = nn.Conv2d(16, 16, 3, padding=1)
            self.bn = nn.BatchNorm2d(16)
            if not is_faulty:
                self.bn2, self.bn3 = nn.BatchNorm2d(16), nn.BatchNorm2d(16)
            self.fc = nn.Linear(16 * 16, 4)

        def forward(self, x):
            b2, b3 = (self.bn, self.bn) if is_faulty else (self.bn2, self.bn3)
            x = F.max_pool2d(F.relu(self.bn(self.conv1(x))), 2)
            x = F.max_pool2d(F.relu(b2(self.conv2(x))), 2)
            x = F.relu(b3(self.conv3(x)))
            return self.fc(x.flatten(1))

    x, y, _ = shapes(1200)
    model = Net()
    return Program(
        model,
        nn.CrossEntropyLoss(),
        DataLoader(TensorDataset(x[:1000], y[:1000]), batch_size=25, shuffle=True),
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4),
        accuracy(x[1000:], y[1000:]),
    )


@fault(
    "GroupNorm with a group per channel after the pooling: all becomes zero",
    rules=["rank-collapse", "no-gradient", "vanishing-gradient"],
    layers=["head.1", "head.2", "head.3"],
    fails=True,
    steps=400,
)
def tab_group_each(is_faulty: bool) -> Program:
    groups = 16 if is_faulty else 4

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Sequential(
                nn.Conv2d(1, 16, 3, padding=1, bias=False),
                nn.GroupNorm(4, 16),
                nn.ReLU(),
                nn.MaxPool2d(2),
                nn.Conv2d(16, 16, 3, padding=1, bias=False),
                nn.GroupNorm(4, 16),
                nn.ReLU(),
            )
            self.head = nn.Sequential(
                nn.AdaptiveMaxPool2d(1), nn.Conv2d(16, 16, 1), nn.GroupNorm(groups, 16), nn.ReLU(), nn.Flatten(), nn.Linear(16, 4)
            )

        def forward(self, x):
            return self.head(self.stem(x))

    x, y, _ = shapes(1200)
    model = Net()
    return Program(
        model,
        nn.CrossEntropyLoss(label_smoothing=0.05),
        DataLoader(TensorDataset(x[:1000], y[:1000]), batch_size=32, shuffle=True),
        torch.optim.AdamW(model.parameters(), lr=5e-3),
        accuracy(x[1000:], y[1000:]),
    )


@fault(
    "the prior bias of the last layer of a detector is given to all of them",
    rules=["dying-neurons", "bad-initialisation", "no-gradient", "vanishing-gradient", "rank-collapse"],
    layers=["tower"],
    fails=True,
    steps=400,
)
def tab_prior_bias(is_faulty: bool) -> Program:
    x, y, mask = shapes(1100)
    heat = torch.zeros(1100, 1, 16, 16)
    ys, xs = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    area = mask.sum((1, 2))
    cy, cx = (mask * ys).sum((1, 2)) / area, (mask * xs).sum((1, 2)) / area
    heat[torch.arange(1100), 0, cy.round().long(), cx.round().long()] = 1

    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.tower = nn.Sequential(
                nn.Conv2d(1, 12, 3, padding=1),
                nn.ReLU(),
                nn.Conv2d(12, 12, 3, padding=2, dilation=2),
                nn.ReLU(),
                nn.Conv2d(12, 12, 3, padding=1),
                nn.ReLU(),
            )
            self.cls_logits = nn.Conv2d(12, 1, 3, padding=1)
            prior = -math.log((1 - 0.01) / 0.01)
            for m in self.modules():
                if isinstance(m, nn.Conv2d):
                    nn.init.kaiming_normal_(m.weight, nonlinearity="relu")
                    nn.init.constant_(m.bias, prior if is_faulty or m is self.cls_logits else 0.0)
            nn.init.normal_(self.cls_logits.weight, std=0.01)

        def forward(self, x):
            return self.cls_logits(self.tower(x))

    def focal(logits, t):
        p = logits.sigmoid()
        ce = F.binary_cross_entropy_with_logits(logits, t, reduction="none")
        pt = torch.where(t > 0, p, 1 - p)
        return (ce * (1 - pt) ** 2).sum() / t.sum()

    def hits(model):
        at = model(x[900:]).flatten(1).argmax(1)
        return (((at // 16) - cy[900:]).abs().maximum(((at % 16) - cx[900:]).abs()) <= 1.5).float().mean().item()

    model = Head()
    return Program(
        model,
        focal,
        DataLoader(TensorDataset(x[:900], heat[:900]), batch_size=16, shuffle=True),
        torch.optim.Adam(model.parameters(), lr=2e-3),
        hits,
    )


@fault(
    "momentum of BatchNorm as in another framework: running statistics hardly move",
    rules=["batchnorm-mode-gap"],
    layers=["c1.bn", "c2.bn", "c3.bn"],
    fails=False,
    steps=400,
)
def tab_momentum(is_faulty: bool) -> Program:
    class ConvBN(nn.Module):
        def __init__(self, a, b, stride):
            super().__init__()
            self.conv = nn.Conv2d(a, b, 3, stride, 1, bias=False)
            self.bn = nn.BatchNorm2d(b, momentum=0.001 if is_faulty else 0.1)

        def forward(self, x):
            return F.hardswish(self.bn(self.conv(x)))

    class Mobile(nn.Module):
        def __init__(self):
            super().__init__()
            self.c1, self.c2, self.c3 = ConvBN(1, 16, 1), ConvBN(16, 24, 2), ConvBN(24, 32, 2)
            self.fc = nn.Linear(32, 4)

        def forward(self, x):
            return self.fc(self.c3(self.c2(self.c1(x))).amax((2, 3)))

    x, y, _ = shapes(1200)
    x = (x - 0.13) / 0.24
    model = Mobile()
    return Program(
        model,
        nn.CrossEntropyLoss(),
        DataLoader(TensorDataset(x[:1000], y[:1000]), batch_size=32, shuffle=True, drop_last=True),
        torch.optim.RMSprop(model.parameters(), lr=1e-3),
        accuracy(x[1000:], y[1000:]),
    )


@fault(
    "a folder of classes read in order, with shuffle=False",
    rules=["sorted-batches", "batchnorm-mode-gap", "constant-target"],
    layers=[],
    fails=True,
    steps=400,
)
def tab_folder_order(is_faulty: bool) -> Program:
    x, y, _ = shapes(1200)
    order = y[:1000].argsort(stable=True)
    data = TensorDataset(x[:1000][order], y[:1000][order])
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1),
        nn.BatchNorm2d(24),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(384, 4),
    )
    return Program(
        model,
        nn.CrossEntropyLoss(),
        DataLoader(data, batch_size=25, shuffle=not is_faulty),
        torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9),
        accuracy(x[1000:], y[1000:]),
    )


class Block(nn.Module):
    def __init__(self, c, norm):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(c, c, 3, padding=1), nn.Conv2d(c, c, 3, padding=1)
        self.n1 = nn.BatchNorm2d(c) if norm else nn.Identity()
        self.n2 = nn.BatchNorm2d(c) if norm else nn.Identity()
        for conv in (self.conv1, self.conv2):
            nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
            nn.init.zeros_(conv.bias)

    def forward(self, x):
        return x + self.n2(self.conv2(F.relu(self.n1(self.conv1(x)))))


@fault(
    "a residual network whose norms were taken out",
    rules=[
        "activation-drift",
        "exploding-gradient",
        "bad-initialisation",
        "learning-rate-too-high",
        "non-finite",
        "saturated-output",
        "last-layer-drift",
        "diverging",
    ],
    layers=[],
    fails=True,
    steps=350,
)
def tab_no_norm(is_faulty: bool) -> Program:
    class ResNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(1, 8, 3, stride=2, padding=1)
            self.blocks = nn.Sequential(*[Block(8, not is_faulty) for _ in range(10)])
            self.fc = nn.Linear(8 * 16, 4)

        def forward(self, x):
            x = self.blocks(self.stem(x))
            return self.fc(F.max_pool2d(x, 2).flatten(1))

    x, y, _ = shapes(1200)
    model = ResNet()
    return Program(
        model,
        nn.CrossEntropyLoss(),
        DataLoader(TensorDataset(x[:1000], y[:1000]), batch_size=20, shuffle=True),
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        accuracy(x[1000:], y[1000:]),
    )


@fault(
    "Adam at the rate of SGD",
    rules=["learning-rate-too-high", "dying-neurons", "diverging"],
    layers=[],
    fails=True,
    steps=400,
)
def tab_adam_rate(is_faulty: bool) -> Program:
    x, y, _ = shapes(1300)
    model = convnet()
    return Program(
        model,
        nn.CrossEntropyLoss(),
        DataLoader(TensorDataset(x[:1000], y[:1000]), batch_size=32, shuffle=True),
        torch.optim.Adam(model.parameters(), lr=0.1 if is_faulty else 0.001),
        accuracy(x[1000:], y[1000:]),
    )


@fault(
    "the loss of a segmentation is summed over pixels and batch, at the rate for a mean",
    rules=["summed-loss", "learning-rate-too-high", "exploding-gradient", "diverging", "non-finite", "dying-neurons", "saturated-output"],
    layers=[],
    fails=True,
    steps=300,
)
def tab_summed_pixels(is_faulty: bool) -> Program:
    x, _, m = shapes(900)
    m = m[:, None].float()
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(12, 12, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(12, 1, 3, padding=1),
    )

    def dice(model):
        p, t = model(x[700:]) > 0, m[700:] > 0.5
        return 2 * (p & t).sum().item() / max(1, (p.sum() + t.sum()).item())

    return Program(
        model,
        nn.BCEWithLogitsLoss(reduction="sum" if is_faulty else "mean"),
        DataLoader(TensorDataset(x[:700], m[:700]), batch_size=20, shuffle=True),
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        dice,
    )


@fault(
    "the last batch of an epoch has one image, and BatchNorm follows a global pooling",
    rules=["model-fails", "small-batch-batchnorm"],
    layers=[],
    fails=False,
    steps=500,
)
def tab_last_one(is_faulty: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(1, 24, 5, padding=2)
            self.conv2 = nn.Conv2d(24, 24, 3, padding=1, stride=2)
            self.neck = nn.Sequential(nn.Linear(24, 32), nn.BatchNorm1d(32), nn.ReLU())
            self.fc = nn.Linear(32, 4)

        def forward(self, x):
            x = F.relu(self.conv(x))
            x = F.relu(self.conv2(F.max_pool2d(x, 2))).amax((2, 3))
            return self.fc(self.neck(x))

    x, y, _ = shapes(1000)
    model = Net()
    return Program(
        model,
        nn.CrossEntropyLoss(),
        DataLoader(TensorDataset(x[:769], y[:769]), batch_size=32, shuffle=True, drop_last=not is_faulty),
        torch.optim.Adam(model.parameters(), lr=2e-3),
        accuracy(x[769:], y[769:]),
    )


class SoftArgmax(nn.Module):
    """Expected place under a heat map."""

    def __init__(self, whole):
        super().__init__()
        self.whole = whole

    def forward(self, heat):
        n, k, h, w = heat.shape
        if self.whole:
            p = F.softmax(heat.flatten(2), dim=-1).view(n, k, h, w)
        else:
            p = F.softmax(heat, dim=-1)
        ys, xs = torch.linspace(-1, 1, h), torch.linspace(-1, 1, w)
        return torch.stack([(p.sum(2) * xs).sum(-1), (p.sum(3) * ys).sum(-1)], -1)


@fault(
    "softmax of heat maps over the columns only",
    rules=["wrong-softmax-dimension"],
    layers=["soft_argmax"],
    fails=False,
    steps=300,
)
def tab_keypoint(is_faulty: bool) -> Program:
    class Pose(nn.Module):
        def __init__(self):
            super().__init__()
            self.backbone = nn.Sequential(
                nn.Conv2d(1, 12, 5, padding=2), nn.ReLU(), nn.Conv2d(12, 12, 5, padding=2), nn.ReLU(), nn.Conv2d(12, 1, 1)
            )
            self.soft_argmax = SoftArgmax(not is_faulty)

        def forward(self, x):
            return self.soft_argmax(self.backbone(x))[:, 0]

    x, _, mask = shapes(1000)
    grid = torch.linspace(-1, 1, 16)
    area = mask.sum((1, 2))
    centre = torch.stack([(mask.sum(1) * grid).sum(1) / area, (mask.sum(2) * grid).sum(1) / area], 1)
    model = Pose()
    return Program(
        model,
        nn.MSELoss(),
        DataLoader(TensorDataset(x[:800], centre[:800]), batch_size=20, shuffle=True),
        torch.optim.Adam(model.parameters(), lr=3e-3),
        lambda m: max(0.0, 1 - ((m(x[800:]) - centre[800:]) ** 2).mean().item() / centre[800:].var(0).mean().item()),
    )
