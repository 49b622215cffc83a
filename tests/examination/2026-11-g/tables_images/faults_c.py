"""Layers, optimisers, schedules."""

import torch
import torch.nn.functional as F
from program import Program, fault
from ti_data import accuracy, clusters, curve, r2, shapes
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset


@fault(
    "momentum of BatchNorm taken over as 1 - 0.999: the running statistics stay where they started",
    rules=["batchnorm-mode-gap"],
    layers=["1", "5"],
    fails=True,
    steps=150,
)
def batchnorm_decay_of_another_framework(is_faulty):
    x, y, xt, yt = shapes(1000, 13)
    x, xt = 6 * x + 2, 6 * xt + 2
    mom = 0.001 if is_faulty else 0.1
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8, momentum=mom), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16, momentum=mom), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(144, 4),
    )  # fmt: skip
    return Program(
        model,
        nn.CrossEntropyLoss(),
        DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True),
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        lambda m: accuracy(m, xt, yt),
    )


@fault("weight_decay=0.3 of an AdamW recipe, given to Adam as an L2 penalty", rules=["weight-decay-dominates"], fails=True, steps=250)
def adamw_decay_in_adam(is_faulty):
    x, y, xt, yt = clusters(1500, 10, 4, 15)
    net = nn.Sequential(nn.Linear(10, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 4))
    make = torch.optim.Adam if is_faulty else torch.optim.AdamW
    return Program(
        net,
        nn.CrossEntropyLoss(),
        DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True),
        make(net.parameters(), lr=3e-3, weight_decay=0.3),
        lambda m: accuracy(m, xt, yt),
    )


@fault("StepLR meant for epochs is stepped at every batch", rules=["learning-rate-too-low"], fails=True, steps=300)
def epoch_schedule_stepped_per_batch(is_faulty):
    x, y, xt, yt = shapes(1200, 16)
    loader = DataLoader(TensorDataset(x, y), batch_size=24, shuffle=True)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(144, 4),
    )  # fmt: skip
    opt = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader,
        opt,
        lambda m: accuracy(m, xt, yt),
        scheduler=StepLR(opt, step_size=4 if is_faulty else 4 * len(loader), gamma=0.1),
    )


@fault("keep_prob=0.95 is taken over as the p of nn.Dropout", rules=["dropout-too-strong"], layers=["drop1", "drop2"], fails=True, steps=250)
def keep_probability_as_dropout(is_faulty):
    from collections import OrderedDict

    x, y, xt, yt = curve(1500, 8, 19)
    p = 0.95 if is_faulty else 0.05
    model = nn.Sequential(OrderedDict(
        fc1=nn.Linear(8, 64), act1=nn.ReLU(), drop1=nn.Dropout(p),
        fc2=nn.Linear(64, 64), act2=nn.ReLU(), drop2=nn.Dropout(p), out=nn.Linear(64, 1),
    ))  # fmt: skip
    return Program(
        model,
        nn.MSELoss(),
        DataLoader(TensorDataset(x, y[:, None]), batch_size=64, shuffle=True),
        torch.optim.Adam(model.parameters(), lr=3e-3),
        lambda m: r2(m(xt), yt),
    )


class Reused(nn.Module):
    def __init__(self, one):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 12, 3, padding=1), nn.Conv2d(12, 12, 3, padding=1)
        self.bn = nn.BatchNorm2d(12)
        self.bn2 = self.bn if one else nn.BatchNorm2d(12)
        self.fc = nn.Linear(12 * 9, 4)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.bn2(self.conv2(x))), 2)
        return self.fc(x.flatten(1))


@fault("one BatchNorm after two convolutions", rules=["shared-weight", "batchnorm-mode-gap"], layers=["bn", "bn2"], fails=False, steps=200)
def batchnorm_in_two_places(is_faulty):
    x, y, xt, yt = shapes(1000, 23)
    x, xt = 8 * x, 8 * xt
    model = Reused(is_faulty)
    return Program(
        model,
        nn.CrossEntropyLoss(),
        DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True),
        torch.optim.Adam(model.parameters(), lr=3e-3),
        lambda m: accuracy(m, xt, yt),
    )


@fault("eps=1 in Adam, from another framework's advice", rules=["optimizer-setting", "learning-rate-too-low"], fails=True, steps=300)
def adam_with_large_epsilon(is_faulty):
    x, y, xt, yt = shapes(1000, 24)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.SiLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.SiLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(144, 4),
    )  # fmt: skip
    return Program(
        model,
        nn.CrossEntropyLoss(),
        DataLoader(TensorDataset(2 * x - 0.2, y), batch_size=32, shuffle=True),
        torch.optim.Adam(model.parameters(), lr=2e-3, eps=1.0 if is_faulty else 1e-8),
        lambda m: accuracy(m, 2 * xt - 0.2, yt),
    )


@fault(
    "the last batch has one row, and BatchNorm raises on it",
    rules=["model-fails", "small-batch-batchnorm"],
    layers=["1", "4"],
    fails=True,
    steps=250,
)
def one_row_left_over(is_faulty):
    x, y, xt, yt = clusters(193, 8, 4, 25, noise=0.4)
    net = nn.Sequential(nn.Linear(8, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 4))
    return Program(
        net,
        nn.CrossEntropyLoss(),
        DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True, drop_last=not is_faulty),
        torch.optim.AdamW(net.parameters(), lr=1e-3),
        lambda m: accuracy(m, xt, yt),
    )
