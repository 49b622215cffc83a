import math

import torch
import torch.nn.functional as F
from program import Program, fault
from sqq_tools import accuracy, decoded, first, loader, r2, rng, speech, tones, waves
from torch import nn


class Forecaster(nn.Module):
    def __init__(self, features=1, hidden=32):
        super().__init__()
        self.lstm = nn.LSTM(features, hidden, batch_first=True)
        self.fc = nn.Linear(hidden, 1)

    def forward(self, x):
        out, _ = self.lstm(x)
        return self.fc(out[:, -1]).squeeze(-1)


@fault("load in megawatts as target, not standardised", rules=("unscaled-target",), fails=True, steps=400)
def sqq_load_in_megawatts(is_faulty):
    x, y = waves(2000, 24, 1)
    hx, hy = waves(400, 24, 2)
    mean, scale = (5200.0, 800.0) if is_faulty else (0.0, 1.0)
    model = Forecaster()

    def score(m):
        out = (m(hx) - mean) / scale
        return max(-1.0, 1 - ((out - hy) ** 2).mean().item() / hy.var().item())

    return Program(model, nn.MSELoss(), loader(x, y * scale + mean), torch.optim.Adam(model.parameters(), 5e-3), score)


class Purchases(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(3, 32, batch_first=True)
        self.head = nn.Linear(32, 3)

    def forward(self, x):
        return self.head(self.gru(x)[1].squeeze(0))


@fault("seconds since 1970 among the features of events", rules=("unscaled-input", "saturated-activation", "ill-conditioned-input"), fails=False, steps=400)
def sqq_unix_seconds(is_faulty):
    def made(n, seed):
        g = rng(seed)
        gaps = torch.rand(n, 12, generator=g)
        amount = torch.randn(n, 12, 2, generator=g)
        y = (amount[..., 0].sum(1) > 0).long() + (amount[:, -4:, 1].sum(1) > 0).long()
        when = 1.0e6 + 3.0e4 * gaps.cumsum(1) if is_faulty else gaps
        return torch.cat([when.unsqueeze(-1), amount], -1), y

    (x, y), (hx, hy) = made(2500, 3), made(500, 4)
    model = Purchases()
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(model.parameters(), 1e-2),
                   accuracy(hx, hy))


@fault("forecasts of shape (batch, 1) against targets of shape (batch,)", rules=("output-loss-mismatch",), fails=True, steps=300)
def sqq_broadcast_forecast(is_faulty):
    x, y = waves(2000, 24, 5)
    hx, hy = waves(400, 24, 6)
    model = nn.Sequential(nn.Flatten(), nn.Linear(24, 48), nn.SiLU(), nn.Linear(48, 1))
    if not is_faulty:
        y = y.unsqueeze(-1)
    return Program(model, lambda out, t: ((out - t) ** 2).mean(), loader(x, y), torch.optim.RMSprop(model.parameters(), 2e-3),
                   r2(hx, hy))


class Recogniser(nn.Module):
    def __init__(self, raw):
        super().__init__()
        self.front = nn.Conv1d(6, 32, 3, padding=1)
        self.gru = nn.GRU(32, 32, batch_first=True, bidirectional=True)
        self.out = nn.Linear(64, 5)
        self.raw = raw

    def forward(self, x):
        h = torch.relu(self.front(x.transpose(1, 2))).transpose(1, 2)
        logits = self.out(self.gru(h)[0])
        return logits.softmax(-1) if self.raw else logits.log_softmax(-1)


def ctc(out, y):
    n, frames, _ = out.shape
    return F.ctc_loss(out.transpose(0, 1), y, torch.full((n,), frames), torch.full((n,), y.shape[1]))


def ctc_score(x, y):
    def score(model):
        return sum(a == b for a, b in zip(decoded(model(x)), y.tolist())) / len(y)

    return score


@fault("CTC on probabilities instead of log-probabilities", rules=("output-loss-mismatch",), fails=False, steps=250)
def sqq_ctc_probabilities(is_faulty):
    x, y = speech(1200, 15, 7)
    hx, hy = speech(200, 15, 8)
    model = Recogniser(is_faulty)
    return Program(model, ctc, loader(x, y), torch.optim.Adam(model.parameters(), 5e-3), ctc_score(hx, hy))


@fault("sigmoid before BCEWithLogitsLoss for rare sound events", rules=("output-loss-mismatch",), layers=("net.5",), fails=True, steps=300)
def sqq_sigmoid_twice(is_faulty):
    def made(n, seed):
        g = rng(seed)
        on = (torch.rand(n, 5, generator=g) < 0.15).float()
        t = torch.arange(48.0)
        f = torch.tensor([0.04, 0.1, 0.17, 0.24, 0.33])
        s = torch.sin(2 * math.pi * (f[:, None] * t + torch.rand(n, 5, 1, generator=g)))
        x = (on.unsqueeze(-1) * s).sum(1, keepdim=True) + 0.2 * torch.randn(n, 1, 48, generator=g)
        return x, on

    class Detector(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Conv1d(1, 32, 13), nn.ReLU(), nn.AdaptiveMaxPool1d(1), nn.Flatten(),
                                     nn.Linear(32, 5), nn.Sigmoid() if is_faulty else nn.Identity())

        def forward(self, x):
            return self.net(x)

    (x, y), (hx, hy) = made(2000, 9), made(500, 10)
    model = Detector()
    cut = 0.5 if is_faulty else 0.0

    def score(m):
        found, real = m(hx) > cut, hy > 0
        return 2 * (found & real).sum().item() / max(1, found.sum().item() + real.sum().item())

    return Program(model, nn.BCEWithLogitsLoss(), loader(x, y), torch.optim.Adam(model.parameters(), 1e-2), score)


class Memory(nn.Module):
    def __init__(self, features, classes, hidden=32):
        super().__init__()
        self.rnn = nn.RNN(features, hidden, batch_first=True)
        self.decode = nn.Linear(hidden, classes)

    def forward(self, x):
        return self.decode(self.rnn(x)[0][:, -1])


@fault("tanh RNN with small recurrent weights, where the first of 40 steps counts", rules=("vanishing-gradient", "bad-initialisation"), layers=("rnn",),
       fails=True, steps=300)
def sqq_forgets_first(is_faulty):
    x, y = first(2000, 40, 13)
    hx, hy = first(400, 40, 14)
    model = Memory(5, 4)
    if is_faulty:
        nn.init.normal_(model.rnn.weight_hh_l0, std=0.02)
    else:
        nn.init.orthogonal_(model.rnn.weight_hh_l0)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(model.parameters(), 2e-3), accuracy(hx, hy))


class Diagonal(nn.Module):
    """h_t = a h_{t-1} + B x_t, y = MLP(h_T)."""

    def __init__(self, features, low, high, dim=32):
        super().__init__()
        self.a = nn.Parameter(torch.empty(dim).uniform_(low, high))
        self.b = nn.Linear(features, dim)
        self.out = nn.Sequential(nn.Linear(dim, 32), nn.GELU(), nn.Linear(32, 4))

    def forward(self, x):
        u = self.b(x)
        h = torch.zeros_like(u[:, 0])
        for t in range(u.shape[1]):
            h = self.a * h + u[:, t]
        return self.out(h)


def ear(norm=None, act=nn.ReLU):
    return nn.Sequential(nn.Conv1d(1, 16, 9, stride=2), norm(16) if norm else nn.Identity(), act(),
                         nn.Conv1d(16, 32, 5, stride=2), norm(32) if norm else nn.Identity(), act(),
                         nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 4))


@fault("BatchNorm momentum as in another library: the new batch counts almost nothing", rules=("batchnorm-mode-gap",), layers=("1", "4"), fails=True, steps=300)
def sqq_momentum_meaning(is_faulty):
    x, y = tones(1500, 64, 17)
    hx, hy = tones(400, 64, 18)
    x, hx = 6 * x + 20, 6 * hx + 20
    model = ear(nn.BatchNorm1d)
    for m in model:
        if isinstance(m, nn.BatchNorm1d):
            m.momentum = 1e-4 if is_faulty else 0.1
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(model.parameters(), 3e-3), accuracy(hx, hy))


@fault("prior bias of rare classes set on all convolutions", rules=("dying-neurons", "bad-initialisation"), layers=("0", "3"), fails=True, steps=300)
def sqq_prior_everywhere(is_faulty):
    x, y = tones(1500, 64, 19)
    hx, hy = tones(400, 64, 20)
    model = ear()
    for m in model:
        if isinstance(m, (nn.Conv1d, nn.Linear)):
            nn.init.constant_(m.bias, -4.6 if is_faulty else 0.0)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(model.parameters(), 3e-3), accuracy(hx, hy))


class Univariate(nn.Module):
    def __init__(self, is_faulty):
        super().__init__()
        self.norm = nn.LayerNorm(1) if is_faulty else nn.Identity()
        self.up = nn.Linear(1, 16)
        self.conv = nn.Sequential(nn.Conv1d(16, 16, 5), nn.GELU(), nn.Flatten(), nn.Linear(16 * 16, 1))

    def forward(self, x):
        return self.conv(self.up(self.norm(x)).transpose(1, 2)).squeeze(-1)


@fault("LayerNorm over the single channel of a series", rules=("rank-collapse", "constant-feature", "loss-not-decreasing"), layers=("norm",), fails=True, steps=300)
def sqq_norm_of_one(is_faulty):
    x, y = waves(2000, 20, 21)
    hx, hy = waves(400, 20, 22)
    model = Univariate(is_faulty)
    return Program(model, nn.HuberLoss(), loader(x, y), torch.optim.Adam(model.parameters(), 3e-3), r2(hx, hy))


@fault("convolutions with nothing between them", rules=("no-nonlinearity",), fails=True, steps=300)
def sqq_linear_convolutions(is_faulty):
    x, y = tones(1500, 64, 25)
    hx, hy = tones(400, 64, 26)
    model = ear(act=nn.Identity if is_faulty else nn.ReLU)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(model.parameters(), 3e-3), accuracy(hx, hy))


@fault("(batch, time, channels) brought to convolutions by view into (time, batch)", rules=("mixed-examples",), fails=True, steps=300)
def sqq_view_to_time_first(is_faulty):
    x, y = waves(2000, 16, 27)
    hx, hy = waves(400, 16, 28)

    class TimeFirst(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(1, 32)
            self.fc = nn.Linear(32, 1)

        def forward(self, x):
            n, t, c = x.shape
            x = x.reshape(t, n, c) if is_faulty else x.permute(1, 0, 2)
            return self.fc(self.gru(x)[0][-1]).squeeze(-1)

    model = TimeFirst()
    return Program(model, nn.MSELoss(), loader(x, y, drop_last=True), torch.optim.Adam(model.parameters(), 1e-2), r2(hx, hy))
