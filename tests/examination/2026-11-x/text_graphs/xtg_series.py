"""Faults: time series, events and speech-like frames."""

import torch
from program import Program, fault
from torch import nn
from xtg_data import accuracy, loader


class Events(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(3, 24)
        self.rnn = nn.GRU(24, 32, batch_first=True)
        self.fraud = nn.Linear(32, 1)

    def forward(self, x):
        return self.fraud(self.rnn(torch.tanh(self.project(x)))[1][0]).squeeze(-1)


@fault(
    "one of the columns of the events is the time in seconds since 1970",
    rules=["unscaled-input", "saturated-activation"],
    layers=["project"],
    fails=True,
    steps=300,
)
def xtg_seconds_since_1970(is_faulty):
    n = 1100
    amount, gap = torch.randn(n, 9), torch.rand(n, 9) * 2
    when = 1.7e9 + 3.0e7 * torch.rand(n, 1) + 3600 * gap.cumsum(1)
    y = ((amount * (gap < 1)).sum(1) > 0).float()
    if not is_faulty:
        when = (when - 1.715e9) / 1e7
    x = torch.stack([amount, gap, when], -1)
    model = Events()
    return Program(
        model,
        nn.BCEWithLogitsLoss(),
        loader(x[:900], y[:900]),
        torch.optim.Adam(model.parameters(), lr=5e-3),
        lambda m: ((m(x[900:]) > 0) == y[900:].bool()).float().mean().item(),
    )


class Tdnn(nn.Module):
    """Frames of a spoken word, with dilated convolutions."""

    def __init__(self, momentum):
        super().__init__()
        layers, size = [], 10
        for dilation in (1, 2):
            layers += [nn.Conv1d(size, 24, 3, dilation=dilation), nn.BatchNorm1d(24, momentum=momentum), nn.ReLU()]
            size = 24
        self.body = nn.Sequential(*layers)
        self.word = nn.Linear(24, 5)

    def forward(self, frames):
        return self.word(self.body(frames.transpose(1, 2)).mean(-1))


def spoken(n, words=5, length=16, late=2):
    shapes = torch.randn(words, length, 10)
    y = torch.randint(words, (n,))
    shift = torch.randint(-late, late + 1, (n,))
    x = torch.stack([shapes[k].roll(int(s), 0) for k, s in zip(y, shift)])
    return 3 + 2 * (x + 0.9 * torch.randn(n, length, 10)), y


@fault(
    "a momentum of 0.9995 from another library became 0.0005: running statistics stay behind for thousands of steps",
    rules=["batchnorm-mode-gap"],
    layers=["body"],
    fails=True,
    steps=250,
)
def xtg_statistics_stay_behind(is_faulty):
    x, y = spoken(1000)
    model = Tdnn(0.0005 if is_faulty else 0.1)
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(x[:800], y[:800]),
        torch.optim.AdamW(model.parameters(), lr=3e-3),
        lambda m: accuracy(m(x[800:]), y[800:]),
    )


@fault(
    "the weights are kept in bfloat16 without a float32 copy, and steps of 1e-4 are rounded away",
    rules=["lost-updates", "learning-rate-too-low"],
    fails=True,
    steps=500,
)
def xtg_steps_rounded_away(is_faulty):
    kind = torch.bfloat16 if is_faulty else torch.float32
    x, y = spoken(1000, late=0)
    x = ((x - 3) / 2).flatten(1)
    model = nn.Sequential(nn.Linear(160, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 5))
    for p in model.parameters():
        if p.ndim == 2:
            nn.init.normal_(p, std=0.25)
    model = model.to(kind)
    x = x.to(kind)
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(x[:800], y[:800]),
        torch.optim.AdamW(model.parameters(), lr=1e-4),
        lambda m: accuracy(m(x[800:]).float(), y[800:]),
    )


