"""Time series with one mistake each."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from program import Program, fault
from torch import nn

from data import accuracy, loader, motifs, r2, recall, rng, waves


@fault(
    "Sales are forecast in pieces, about ten thousand a day, with the mean squared error and inputs that are standardized.",
    rules=["unscaled-target"],
    fails=True,
    steps=300,
)
def sales_in_pieces(is_faulty):
    x, y = waves()
    tx, ty = waves(seed=2)
    scale = (lambda v: 9000 + 1500 * v) if is_faulty else (lambda v: v)
    net = nn.Sequential(nn.Flatten(), nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    return Program(net, nn.MSELoss(), loader(x, scale(y)), opt, r2(tx, scale(ty)))


@fault(
    "The timestamp in seconds stands next to the readings as a feature of the GRU.",
    rules=["unscaled-input", "ill-conditioned-input", "saturated-activation"],
    fails=True,
    steps=300,
)
def seconds_as_feature(is_faulty):
    x, y = waves()
    tx, ty = waves(seed=2)

    def stamped(x, seed):
        start = 1.7e9 + 1e6 * torch.rand(len(x), 1, generator=rng(seed))
        clock = start + 3600.0 * torch.arange(x.shape[1])
        if not is_faulty:
            clock = (clock - 1.7e9) / 1e6
        return torch.cat([x, clock[..., None]], -1)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(2, 24, batch_first=True)
            self.fc = nn.Linear(24, 1)

        def forward(self, x):
            return self.fc(self.gru(x)[1][0])

    net = Net()
    return Program(
        net, nn.MSELoss(), loader(stamped(x, 1), y), torch.optim.Adam(net.parameters(), 1e-2), r2(stamped(tx, 2), ty)
    )


@fault(
    "Each window is divided by its standard deviation; a sensor that stood still gives 0/0 in a few windows.",
    rules=["non-finite"],
    fails=True,
    steps=250,
)
def still_sensor(is_faulty):
    x, y = motifs()
    tx, ty = motifs(seed=4)
    x = x.clone()
    x[::50, 1] = 0.7

    def normal(x):
        sd = x.std(-1, keepdim=True)
        return (x - x.mean(-1, keepdim=True)) / (sd if is_faulty else sd + 1e-3)

    net = nn.Sequential(
        nn.Conv1d(3, 24, 7),
        nn.ReLU(),
        nn.AdaptiveMaxPool1d(1),
        nn.Flatten(),
        nn.Linear(24, 32),
        nn.ReLU(),
        nn.Linear(32, 4),
    )
    return Program(
        net, F.cross_entropy, loader(normal(x), y), torch.optim.Adam(net.parameters(), 3e-3), accuracy(normal(tx), ty)
    )


@fault(
    "LayerNorm(1) on a series with one feature: every value becomes the bias.",
    rules=["rank-collapse", "constant-feature", "no-gradient"],
    layers=["norm"],
    fails=True,
    steps=200,
)
def layernorm_of_one_feature(is_faulty):
    x, y = waves()
    tx, ty = waves(seed=2)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(1) if is_faulty else nn.LayerNorm([24, 1])
            self.lstm = nn.LSTM(1, 24, batch_first=True)
            self.fc = nn.Linear(24, 1)

        def forward(self, x):
            return self.fc(self.lstm(self.norm(x))[0][:, -1])

    net = Net()
    return Program(net, nn.MSELoss(), loader(x, y), torch.optim.Adam(net.parameters(), 1e-2), r2(tx, ty))


@fault(
    "The readings, between -1 and 1, are turned into whole numbers by a LongTensor on their way.",
    rules=["constant-feature", "labels-unrelated", "loss-not-decreasing"],
    fails=True,
    steps=200,
)
def readings_cast_to_long(is_faulty):
    x, y = waves()
    tx, ty = waves(seed=2)

    def load(x):
        x = 0.4 * x
        return x.long().float() if is_faulty else x

    net = nn.Sequential(nn.Flatten(), nn.Linear(24, 48), nn.Tanh(), nn.Linear(48, 1))
    return Program(net, nn.MSELoss(), loader(load(x), y), torch.optim.Adam(net.parameters(), 5e-3), r2(load(tx), ty))


@fault(
    "Windows and targets sit in two loaders, each of which shuffles on its own.",
    rules=["labels-unrelated"],
    fails=True,
    steps=250,
)
def two_shuffled_loaders(is_faulty):
    x, y = waves(n=1024)
    tx, ty = waves(seed=2)

    class Zipped:
        def __iter__(self):
            n = len(x)
            rows = torch.randperm(n)
            cols = torch.randperm(n) if is_faulty else rows
            for i, j in zip(rows.split(32), cols.split(32), strict=True):
                yield x[i], y[j]

    net = nn.Sequential(nn.Flatten(), nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 1))
    return Program(net, nn.SmoothL1Loss(), Zipped(), torch.optim.AdamW(net.parameters(), 5e-3), r2(tx, ty))


@fault(
    "One head for each of the horizons, made as [nn.Linear(...)] * 6: they are one and the same.",
    rules=["shared-weight"],
    layers=["heads"],
    fails=False,
    steps=300,
)
def list_times_six(is_faulty):
    x, y = waves(horizon=6)
    tx, ty = waves(horizon=6, seed=2)

    class MultiHorizon(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(1, 32, batch_first=True)
            self.heads = nn.ModuleList([nn.Linear(32, 1)] * 6 if is_faulty else [nn.Linear(32, 1) for _ in range(6)])

        def forward(self, x):
            h = self.gru(x)[1][0]
            return torch.cat([head(h) for head in self.heads], -1)

    net = MultiHorizon()
    return Program(net, nn.MSELoss(), loader(x, y), torch.optim.Adam(net.parameters(), 1e-2), r2(tx, ty))


@fault(
    "A whole bfloat16 model, weights and all, with Adam at 3e-5: most updates are rounded away.",
    rules=["lost-updates", "learning-rate-too-low"],
    fails=True,
    steps=600,
)
def weights_in_bfloat16(is_faulty):
    x, y = waves()
    tx, ty = waves(seed=2)
    kind = torch.bfloat16 if is_faulty else torch.float32
    net = nn.Sequential(
        nn.Flatten(), nn.Linear(24, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 1)
    ).to(kind)
    opt = torch.optim.Adam(net.parameters(), lr=3e-5)
    return Program(net, nn.MSELoss(), loader(x.to(kind), y.to(kind)), opt, r2(tx.to(kind), ty))


@fault(
    "AdamW's weight decay of 0.1 went into Adam, where it is added to the gradient.",
    rules=["weight-decay-dominates"],
    fails=True,
    steps=300,
)
def decay_of_adamw_in_adam(is_faulty):
    x, y = recall(length=12)
    tx, ty = recall(length=12, seed=1)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(5, 32, batch_first=True)
            self.fc = nn.Linear(32, 4)

        def forward(self, x):
            return self.fc(self.gru(x)[0][:, -1])

    net = Net()
    make = torch.optim.Adam if is_faulty else torch.optim.AdamW
    return Program(
        net, F.cross_entropy, loader(x, y), make(net.parameters(), lr=5e-3, weight_decay=0.1), accuracy(tx, ty)
    )


@fault(
    "A gradient is clipped to 1e-4 in size by a hook on each parameter, where 1.0 was meant, and SGD steps by it.",
    rules=["learning-rate-too-low", "vanishing-gradient"],
    fails=True,
    steps=300,
)
def clipped_to_next_to_nothing(is_faulty):
    x, y = motifs()
    tx, ty = motifs(seed=4)
    net = nn.Sequential(
        nn.Conv1d(3, 16, 7),
        nn.ReLU(),
        nn.AdaptiveMaxPool1d(1),
        nn.Flatten(),
        nn.Linear(16, 32),
        nn.ReLU(),
        nn.Linear(32, 4),
    )
    most = 1e-4 if is_faulty else 1.0
    for p in net.parameters():
        p.register_hook(lambda g: g * torch.clamp(most / (g.norm() + 1e-12), max=1.0))
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    return Program(net, F.cross_entropy, loader(x, y), opt, accuracy(tx, ty))


@fault(
    "A LambdaLR returns the rate itself (1e-3 · decay) instead of a factor of it.",
    rules=["learning-rate-too-low"],
    fails=True,
    steps=300,
)
def lambda_returns_the_rate(is_faulty):
    x, y = waves()
    tx, ty = waves(seed=2)
    net = nn.Sequential(nn.Flatten(), nn.Linear(24, 64), nn.GELU(), nn.Linear(64, 1))
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda k: (1e-3 if is_faulty else 1.0) * 0.998**k)
    return Program(net, nn.MSELoss(), loader(x, y), opt, r2(tx, ty), scheduler=schedule)


@fault(
    "Recordings are read folder by folder, a class each, and never shuffled.",
    rules=["sorted-batches"],
    fails=True,
    steps=384,
)
def read_folder_by_folder(is_faulty):
    x, y = motifs(n=1024, classes=4)
    tx, ty = motifs(n=512, classes=4, seed=4)
    by_class = y.argsort(stable=True)
    net = nn.Sequential(
        nn.Conv1d(3, 12, 7),
        nn.ReLU(),
        nn.AdaptiveMaxPool1d(1),
        nn.Flatten(),
        nn.Linear(12, 32),
        nn.ReLU(),
        nn.Linear(32, 4),
    )
    batches = loader(x[by_class], y[by_class], batch=16, shuffle=not is_faulty)
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    return Program(net, nn.CrossEntropyLoss(), batches, opt, accuracy(tx, ty))


@fault(
    "Adam(params, lr, betas, 0.5): the fourth argument by position is eps, not the weight decay that was meant.",
    rules=["optimizer-setting", "learning-rate-too-low"],
    fails=False,
    steps=300,
)
def fourth_argument_of_adam(is_faulty):
    x, y = waves()
    tx, ty = waves(seed=2)
    net = nn.Sequential(nn.Flatten(), nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    if is_faulty:
        opt = torch.optim.AdamW(net.parameters(), 1e-3, (0.9, 0.999), 0.5)
    else:
        opt = torch.optim.AdamW(net.parameters(), 1e-3, (0.9, 0.999), weight_decay=0.5)
    return Program(net, nn.MSELoss(), loader(x, y), opt, r2(tx, ty))
