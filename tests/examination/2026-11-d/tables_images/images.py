"""Pictures: classifiers, segmentation and boxes with one mistake each."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from program import Program, fault
from torch import nn

from data import accuracy, digits, loader


def convnet(norm=None, width=12):
    layers = []
    for a, b in ((1, width), (width, 2 * width)):
        layers += [nn.Conv2d(a, b, 3, padding=1)] + ([norm(b)] if norm else []) + [nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * width, 10))


@fault(
    "Pixels from 0 to 255 were divided by 255 once by ToTensor and once more by hand, at SGD's usual rate.",
    rules=["unscaled-input", "learning-rate-too-low"],
    fails=True,
    steps=400,
)
def divided_by_255_twice(is_faulty):
    x, y, tx, ty = digits()
    f = (lambda v: v / 255) if is_faulty else (lambda v: v)
    net = convnet()
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    return Program(net, nn.CrossEntropyLoss(), loader(f(x), y), opt, accuracy(f(tx), ty))


@fault(
    "The images stay at 0 to 255 because torch.from_numpy does not rescale as ToTensor does, with SGD.",
    rules=["unscaled-input", "bad-initialisation"],
    fails=True,
    steps=300,
)
def pixels_up_to_255(is_faulty):
    x, y, tx, ty = digits()
    scale = 255.0 if is_faulty else 1.0
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    return Program(net, nn.CrossEntropyLoss(), loader(scale * x, y), opt, accuracy(scale * tx, ty))


@fault(
    "Bytes are divided by 255 in whole numbers: all but the whitest pixels become 0.",
    rules=["constant-feature", "labels-unrelated", "loss-not-decreasing"],
    fails=True,
    steps=200,
)
def whole_number_division(is_faulty):
    x, y, tx, ty = digits()

    def read(v):
        raw = (v.numpy() * 250).astype(np.uint8)
        return torch.from_numpy((raw // 255 if is_faulty else raw / 255).astype(np.float32))

    net = convnet()
    return Program(
        net, nn.CrossEntropyLoss(), loader(read(x), y), torch.optim.Adam(net.parameters(), 3e-3), accuracy(read(tx), ty)
    )


@fault(
    "model.eval() stands before the training loop and nothing calls train() again: eight BatchNorms divide by their initial variance 1.",
    rules=["batchnorm-mode-gap"],
    fails=True,
    steps=200,
)
def trained_in_eval_mode(is_faulty):
    x, y, tx, ty = digits()
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 48))
    for _ in range(8):
        net.extend([nn.Linear(48, 48, bias=False), nn.BatchNorm1d(48), nn.ReLU()])
    net.append(nn.Linear(48, 10))
    if is_faulty:
        net.eval()
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    return Program(net, nn.CrossEntropyLoss(), loader(x, y), opt, accuracy(tx, ty))


@fault(
    "BatchNorm's momentum of 0.999, as other frameworks define it, was turned into 0.00001 of the new: running statistics stand still.",
    rules=["batchnorm-mode-gap"],
    fails=False,
    steps=350,
)
def running_statistics_stand_still(is_faulty):
    x, y, tx, ty = digits()
    net = convnet(norm=lambda c: nn.BatchNorm2d(c, momentum=1e-5 if is_faulty else 0.1))
    opt = torch.optim.Adam(net.parameters(), 3e-3)
    return Program(net, nn.CrossEntropyLoss(), loader(x, y), opt, accuracy(tx, ty))


@fault(
    "Memory was short, so the batch is 2 pictures, with BatchNorm after each layer of vectors.",
    rules=["small-batch-batchnorm"],
    fails=False,
    steps=600,
)
def batches_of_two(is_faulty):
    x, y, tx, ty = digits()
    norm = nn.BatchNorm1d if is_faulty else nn.LayerNorm
    net = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 48), norm(48), nn.ReLU(), nn.Linear(48, 48), norm(48), nn.ReLU(), nn.Linear(48, 10)
    )
    return Program(
        net, nn.CrossEntropyLoss(), loader(x, y, batch=2), torch.optim.Adam(net.parameters(), 2e-3), accuracy(tx, ty)
    )


@fault(
    "GroupNorm with as many groups as channels, after the pooling to 1x1: each value is normalized alone, to zero.",
    rules=["rank-collapse", "constant-feature", "vanishing-gradient", "no-gradient"],
    layers=["norm"],
    fails=True,
    steps=200,
)
def groupnorm_after_pooling(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.conv2 = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
            self.pool = nn.AdaptiveAvgPool2d(1)
            self.norm = nn.GroupNorm(32 if is_faulty else 1, 32)
            self.fc = nn.Linear(32, 10)

        def forward(self, x):
            x = F.relu(self.conv2(F.max_pool2d(F.relu(self.conv1(x)), 2)))
            return self.fc(self.norm(self.pool(x)).flatten(1))

    x, y, tx, ty = digits()
    net = Net()
    return Program(net, F.cross_entropy, loader(x, y), torch.optim.Adam(net.parameters(), 1e-2), accuracy(tx, ty))


def iou(x, mask, cut=0.0):
    def score(model):
        p = model(x) > cut
        t = mask.bool()
        return ((p & t).sum() / (p | t).sum().clamp(min=1)).item()

    return score


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(256, 48), nn.ReLU(),
        )  # fmt: skip
        self.box, self.cls = nn.Linear(48, 4), nn.Linear(48, 2)

    def forward(self, x):
        h = self.body(x)
        return self.box(h), self.cls(h)


@fault(
    "Stochastic depth draws its coin in evaluation mode too: it never looks at self.training.",
    rules=["dropout-in-eval"],
    fails=False,
    steps=500,
)
def drop_path_in_eval(is_faulty):
    class Block(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.f = nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, d))

        def forward(self, x):
            if self.training or is_faulty:
                keep = (torch.rand(len(x), 1) > 0.3).float() / 0.7
                return torch.relu(self.f(x) * keep) + 0.1 * x
            return torch.relu(self.f(x)) + 0.1 * x

    x, y, tx, ty = digits()
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 48), Block(48), Block(48), Block(48), nn.Linear(48, 10))
    return Program(net, F.cross_entropy, loader(x, y), torch.optim.Adam(net.parameters(), 3e-3), accuracy(tx, ty))


@fault(
    "nn.init.normal_ with its default deviation of 1 for a deep ReLU network.",
    rules=["bad-initialisation", "activation-drift", "exploding-gradient", "saturated-output"],
    fails=False,
    steps=300,
)
def unit_normal_relu(is_faulty):
    x, y, tx, ty = digits()
    net = nn.Sequential(nn.Flatten())
    for a in (64, *[48] * 6):
        net.extend([nn.Linear(a, 48), nn.ReLU()])
    net.append(nn.Linear(48, 10))
    for m in net:
        if isinstance(m, nn.Linear):
            nn.init.normal_(m.weight) if is_faulty else nn.init.kaiming_normal_(m.weight)
            nn.init.zeros_(m.bias)
    return Program(net, F.cross_entropy, loader(x, y), torch.optim.Adam(net.parameters(), 1e-3), accuracy(tx, ty))


@fault(
    "Convolutions in front of BatchNorm start with deviation 10: the scale does not show, but SGD's steps are as nothing to them.",
    rules=["weight-domination", "learning-rate-too-low"],
    fails=False,
    steps=300,
)
def heavy_weights_before_batchnorm(is_faulty):
    x, y, tx, ty = digits()
    net = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8, bias=False), nn.BatchNorm1d(8),
        nn.ReLU(), nn.Linear(8, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10),
    )  # fmt: skip
    for m in net:
        if isinstance(m, nn.Linear) and m.bias is None:
            nn.init.normal_(m.weight, std=20.0 if is_faulty else m.in_features**-0.5)
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    return Program(net, F.cross_entropy, loader(x, y), opt, accuracy(tx, ty))


@fault(
    "ImageFolder's order, a class at a time, went into the loader with shuffle=False.",
    rules=["sorted-batches"],
    fails=True,
    steps=440,
)
def imagefolder_unshuffled(is_faulty):
    x, y, tx, ty = digits()
    i = y.argsort(stable=True)
    net = convnet()
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    return Program(net, F.cross_entropy, loader(x[i], y[i], shuffle=not is_faulty), opt, accuracy(tx, ty))
