import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

from program import Program, fault
from ti_common import accuracy, discs, iou_of, loader, shapes


def convnet(out=4):
    return nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(24 * 9, out),
    )  # fmt: skip


class ByteImages(Dataset):
    def __init__(self, images, labels, whole):
        self.images, self.labels, self.whole = images, labels, whole

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        image = self.images[i]
        image = image // 255 if self.whole else image / 255
        return image.float(), self.labels[i]


@fault(
    "bytes are divided by 255 with //, so that every image is black",
    rules=["constant-feature", "labels-unrelated", "rank-collapse"],
    fails=True,
    steps=250,
)
def bytes_floor_divided(faulty):
    x, y = shapes(900, seed=1)
    b = (x * 240).to(torch.uint8)
    net = convnet()
    held = b[700:] // 255 if faulty else b[700:] / 255
    return Program(
        net,
        nn.CrossEntropyLoss(),
        DataLoader(ByteImages(b[:700], y[:700], faulty), batch_size=32, shuffle=True),
        torch.optim.Adam(net.parameters(), lr=3e-3),
        accuracy(held.float(), y[700:]),
    )


@fault("an image folder is read in its order, class after class", rules=["sorted-batches"], fails=True, steps=280)
def folder_in_order(faulty):
    x, y = shapes(900, seed=2)
    order = y[:704].argsort(stable=True)
    net = convnet()
    return Program(
        net,
        nn.CrossEntropyLoss(),
        loader(x[:704][order], y[:704][order], batch_size=32, shuffle=not faulty),
        torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9),
        accuracy(x[704:], y[704:]),
    )


@fault(
    "masks read from PNG hold 0 and 255, the loss takes 0 and 1", rules=["output-loss-mismatch"], fails=True, steps=200
)
def masks_of_255(faulty):
    x, m, _, _ = discs(400, seed=3)
    net = nn.Sequential(
        nn.Conv2d(1, 12, 5, padding=2), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 1, 3, padding=1)
    )
    mask = m[:, None] * (255.0 if faulty else 1.0)
    return Program(
        net,
        nn.BCEWithLogitsLoss(),
        loader(x[:320], mask[:320], batch_size=16),
        torch.optim.Adam(net.parameters(), lr=3e-3),
        lambda n: iou_of(n(x[320:])[:, 0] > 0, m[320:]),
    )


class FiveCrops(nn.Module):
    """Mean of the logits over the crops of an image."""

    def __init__(self, wrong):
        super().__init__()
        self.wrong = wrong
        self.net = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16 * 16, 48), nn.ReLU(), nn.Linear(48, 4)
        )

    def forward(self, crops):
        b, k, c, h, w = crops.shape
        logits = self.net(crops.reshape(b * k, c, h, w))
        if self.wrong:
            return logits.view(k, b, -1).mean(0)
        return logits.view(b, k, -1).mean(1)


@fault(
    "crops are folded into the batch and unfolded with the two dimensions swapped: means over crops of several images",
    rules=["mixed-examples", "output-loss-mismatch"],
    fails=True,
    steps=300,
)
def crops_unfolded_swapped(faulty):
    x, y = shapes(900, seed=4)
    crops = torch.stack([x[..., i : i + 8, j : j + 8] for i, j in ((0, 0), (0, 4), (4, 0), (4, 4), (2, 2))], 1)
    net = FiveCrops(faulty)
    return Program(
        net,
        nn.CrossEntropyLoss(),
        loader(crops[:704], y[:704], batch_size=32),
        torch.optim.Adam(net.parameters(), lr=2e-3),
        accuracy(crops[704:], y[704:]),
    )


class Objectness(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 16, 3, stride=2, padding=1)
        self.mid = nn.Conv2d(16, 16, 3, padding=1)
        self.head = nn.Conv2d(16, 1, 1)

    def forward(self, x):
        return self.head(F.relu(self.mid(F.relu(self.stem(x)))))


@fault(
    "the prior bias of a detector's last layer (-4) is given to every convolution",
    rules=["dying-neurons", "bad-initialisation", "no-gradient", "rank-collapse"],
    layers=["stem", "mid"],
    fails=True,
    steps=300,
)
def prior_bias_everywhere(faulty):
    x, m, _, _ = discs(400, seed=5)
    cells = F.avg_pool2d(m[:, None], 2).gt(0.5).float()
    net = Objectness()
    for name, module in net.named_modules():
        if isinstance(module, nn.Conv2d) and (faulty or name == "head"):
            nn.init.constant_(module.bias, -4.0)
    return Program(
        net,
        nn.BCEWithLogitsLoss(),
        loader(x[:320], cells[:320], batch_size=16),
        torch.optim.Adam(net.parameters(), lr=3e-3),
        lambda n: iou_of(n(x[320:]) > 0, cells[320:]),
    )


class OneNorm(nn.Module):
    def __init__(self, one):
        super().__init__()
        self.c1 = nn.Conv2d(1, 16, 3, padding=1)
        self.c2 = nn.Conv2d(16, 16, 3, padding=1)
        self.c3 = nn.Conv2d(16, 16, 3, padding=1)
        self.bn = nn.BatchNorm2d(16)
        self.others = nn.ModuleList() if one else nn.ModuleList([nn.BatchNorm2d(16), nn.BatchNorm2d(16)])
        self.fc = nn.Linear(16 * 9, 4)

    def forward(self, x):
        b, c = self.others if len(self.others) else (self.bn, self.bn)
        x = F.max_pool2d(F.relu(self.bn(self.c1(x))), 2)
        x = F.max_pool2d(F.relu(b(self.c2(x))), 2)
        x = F.relu(c(self.c3(x)))
        return self.fc(x.flatten(1))


@fault(
    "one BatchNorm is used after three convolutions, so that its running statistics fit none of them",
    rules=["shared-weight", "batchnorm-mode-gap"],
    layers=["bn"],
    fails=False,
    steps=150,
)
def one_norm_for_three_convs(faulty):
    x, y = shapes(900, seed=6)
    x = x * 4 - 1
    net = OneNorm(faulty)
    return Program(
        net,
        nn.CrossEntropyLoss(),
        loader(x[:704], y[:704], batch_size=32),
        torch.optim.Adam(net.parameters(), lr=2e-3),
        accuracy(x[704:], y[704:]),
    )
