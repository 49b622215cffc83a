"""Faults in networks for signals and time series."""
import math

import torch
import torch.nn.functional as F
from program import Program, fault
from torch import nn
from uts_tools import uts_acc, uts_clusters, uts_gen, uts_loader, uts_r2, uts_waves


class UtsConv(nn.Module):
    def __init__(self, channels, classes):
        super().__init__()
        self.a = nn.Conv1d(channels, 16, 7, stride=2, padding=3)
        self.b = nn.Conv1d(16, 32, 5, stride=2, padding=2)
        self.out = nn.Linear(32, classes)

    def forward(self, x):
        h = F.relu(self.b(F.relu(self.a(x.transpose(1, 2)))))
        return self.out(h.mean(-1))


@fault(
    "every window is standardised by itself, although the amplitude is what tells the classes apart",
    rules=("labels-unrelated", "loss-not-decreasing"), fails=True, steps=250,
)
def uts_vibration_level(is_faulty):
    def data(n, seed):
        g = uts_gen(seed)
        y = torch.randint(4, (n,), generator=g)
        t = torch.arange(48) / 48
        f = 3 + 5 * torch.rand(n, 1, generator=g)
        wave = torch.sin(2 * math.pi * (f * t + torch.rand(n, 1, generator=g))) + 0.3 * torch.randn(n, 48, generator=g)
        return wave * (0.3 * 1.9 ** y)[:, None] * (0.9 + 0.2 * torch.rand(n, 1, generator=g)), y

    def scaled(x):
        if is_faulty:
            return ((x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)).unsqueeze(-1)
        return ((x - mean) / std).unsqueeze(-1)

    x, y = data(1200, 1)
    mean, std = x.mean(), x.std()
    vx, vy = data(400, 2)
    vx = scaled(vx)
    net = UtsConv(1, 4)
    return Program(net, F.cross_entropy, uts_loader(scaled(x), y, size=32), torch.optim.Adam(net.parameters(), 5e-3),
                   lambda m: uts_acc(m(vx), vy))


class UtsNextValue(nn.Module):
    def __init__(self, is_both_ways):
        super().__init__()
        self.lstm = nn.LSTM(1, 32, batch_first=True, bidirectional=is_both_ways)
        self.out = nn.Linear(64 if is_both_ways else 32, 1)

    def forward(self, x):
        return self.out(self.lstm(x)[0])


def uts_series(n, seed, t=33):
    g = uts_gen(seed)
    time = torch.arange(t)
    w = 0.3 + 0.5 * torch.rand(n, 1, generator=g)
    s = torch.sin(w * time + 6.28 * torch.rand(n, 1, generator=g))
    return (s + 0.05 * torch.randn(n, t, generator=g)).unsqueeze(-1)


@fault(
    "a bidirectional LSTM that is asked at every step for the next value, which it reads from the other side",
    rules=("future-seen",), layers=("lstm",), fails=False, steps=300,
)
def uts_both_ways_forecast(is_faulty):
    s, v = uts_series(800, 3), uts_series(200, 4)
    net = UtsNextValue(is_faulty)

    def score(m):
        ends = (12, 18, 24, 30)
        return sum(uts_r2(m(v[:, :e])[:, -1], v[:, e]) for e in ends) / len(ends)

    return Program(net, nn.MSELoss(), uts_loader(s[:, :-1], s[:, 1:], size=32),
                   torch.optim.Adam(net.parameters(), 5e-3), score)


class UtsOwnRNN(nn.Module):
    def __init__(self, inputs, hidden, classes, spread):
        super().__init__()
        self.w_in = nn.Linear(inputs, hidden)
        self.w_rec = nn.Linear(hidden, hidden, bias=False)
        self.out = nn.Linear(hidden, classes)
        with torch.no_grad():
            self.w_rec.weight.copy_(spread * torch.eye(hidden))

    def forward(self, x):
        h = x.new_zeros(len(x), self.w_rec.in_features)
        for t in range(x.shape[1]):
            h = F.relu(self.w_in(x[:, t]) + self.w_rec(h))
        return self.out(h)


@fault(
    "a ReLU recurrence that starts at 1.5 times the identity and grows at every step",
    rules=("exploding-gradient", "bad-initialisation", "activation-drift"), layers=("w_rec",), fails=True, steps=250,
)
def uts_growing_recurrence(is_faulty):
    def data(n, seed):
        g = uts_gen(seed)
        x = torch.randn(n, 24, 3, generator=g)
        return x, (x[:, -8:, 0].sum(1) > 0).long() + 2 * (x[:, :, 1].mean(1) > 0).long()

    x, y = data(1500, 7)
    vx, vy = data(500, 8)
    net = UtsOwnRNN(3, 32, 4, 1.5 if is_faulty else 0.9)
    return Program(net, F.cross_entropy, uts_loader(x, y, size=32), torch.optim.Adam(net.parameters(), 3e-3),
                   lambda m: uts_acc(m(vx), vy))


class UtsPooling(nn.Module):
    """Attention over time: one weight per step."""

    def __init__(self, channels, classes, dim):
        super().__init__()
        self.dim = dim
        self.conv = nn.Conv1d(channels, 24, 5, padding=2)
        self.weigh = nn.Linear(24, 1)
        self.out = nn.Linear(24, classes)

    def forward(self, x):
        h = torch.tanh(self.conv(x.transpose(1, 2))).transpose(1, 2)
        a = torch.softmax(self.weigh(h), dim=self.dim)
        return self.out((a * h).sum(1))


@fault(
    "the weights of attention pooling are normalised over the batch in place of time",
    rules=("wrong-softmax-dimension", "mixed-examples"), fails=True, steps=300,
)
def uts_event_pooling(is_faulty):
    shapes = torch.randn(4, 6, 2, generator=uts_gen(9))

    def data(n, seed):
        g = uts_gen(seed)
        y = torch.randint(4, (n,), generator=g)
        x = 0.6 * torch.randn(n, 40, 2, generator=g)
        at = torch.randint(34, (n,), generator=g)
        for k in range(n):
            x[k, at[k] : at[k] + 6] += 2.0 * shapes[y[k]]
        return x, y

    x, y = data(1200, 10)
    vx, vy = data(400, 11)
    net = UtsPooling(2, 4, 0 if is_faulty else 1)

    def score(m):  # one by one, as it is used
        return uts_acc(torch.cat([m(row[None]) for row in vx[:200]]), vy[:200])

    return Program(net, F.cross_entropy, uts_loader(x, y, size=32), torch.optim.Adam(net.parameters(), 5e-3), score)


class UtsGRU(nn.Module):
    def __init__(self, inputs, classes, hidden=32, **options):
        super().__init__()
        self.gru = nn.GRU(inputs, hidden, **options)
        self.out = nn.Linear(hidden, classes)

    def forward(self, x):
        return self.out(self.gru(x)[0][:, -1])


@fault(
    "batch_first has been forgotten, so that the GRU runs over the examples of a batch",
    rules=("mixed-examples", "order-lost"), layers=("gru",), fails=False, steps=300,
)
def uts_gru_over_batch(is_faulty):
    def data(n, seed):
        g = uts_gen(seed)
        x = torch.randn(n, 20, 3, generator=g).cumsum(1) / 3
        way = x[:, 4:12, 0].mean(1) - x[:, 12:, 1].mean(1)
        return x, torch.bucketize(way, torch.tensor([-0.7, 0.7]))

    x, y = data(1500, 12)
    vx, vy = data(500, 13)
    net = UtsGRU(3, 3) if is_faulty else UtsGRU(3, 3, batch_first=True)
    return Program(net, F.cross_entropy, uts_loader(x, y, size=32), torch.optim.Adam(net.parameters(), 5e-3),
                   lambda m: uts_acc(m(vx), vy))


class UtsWatch(nn.Module):
    """An autoencoder of windows that also tells their kind."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(96, 48), nn.ReLU(), nn.Linear(48, 10))
        self.decoder = nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, 96))
        self.kind = nn.Linear(10, 4)

    def forward(self, x):
        z = self.encoder(x.flatten(1))
        return self.decoder(z).view_as(x), self.kind(z)


@fault(
    "the reconstruction error is summed over the window and weighed by 10, next to a mean cross-entropy",
    rules=("term-dominates",), fails=True, steps=300,
)
def uts_reconstruction_first(is_faulty):
    x, y = uts_waves(1500, 14)
    vx, vy = uts_waves(400, 15)
    net = UtsWatch()

    def step(model, batch):
        a, b = batch
        back, kind = model(a)
        rebuilt = 10.0 * F.mse_loss(back, a, reduction="sum") / len(a) if is_faulty else F.mse_loss(back, a)
        return rebuilt + F.cross_entropy(kind, b)

    return Program(net, None, uts_loader(x, y, size=64), torch.optim.Adam(net.parameters(), 1e-3),
                   lambda m: uts_acc(m(vx)[1], vy), step=step)


class UtsLengths(nn.Module):
    def __init__(self, is_last):
        super().__init__()
        self.is_last = is_last
        self.rnn = nn.GRU(2, 24, batch_first=True)
        self.head = nn.Linear(24, 2)

    def forward(self, series, lengths):
        h, _ = self.rnn(series)
        if self.is_last:
            return self.head(h[:, -1])
        return self.head(h[torch.arange(len(h)), lengths - 1])


@fault(
    "the state after the padding is read in place of the one at the end of the real series",
    rules=("wrong-mask", "vanishing-gradient"), fails=False, steps=250,
)
def uts_state_after_padding(is_faulty):
    def data(n, seed):
        g = uts_gen(seed)
        lengths = torch.randint(5, 30, (n,), generator=g)
        x = torch.randn(n, 60, 2, generator=g)
        x = x * (torch.arange(60) < lengths[:, None]).unsqueeze(-1)
        last = torch.stack([x[k, m - 3 : m, 0].sum() for k, m in enumerate(lengths.tolist())])
        return x, lengths, (last > 0).long()

    x, n, y = data(1280, 16)
    vx, vn, vy = data(400, 17)
    net = UtsLengths(is_faulty)
    order = torch.randperm(len(x)).split(64)
    batches = [({"series": x[i], "lengths": n[i]}, y[i]) for i in order]
    return Program(net, F.cross_entropy, batches, torch.optim.Adam(net.parameters(), 5e-3),
                   lambda m: 2 * uts_acc(m(vx, vn), vy) - 1)


class UtsEncoder(nn.Module):
    def __init__(self, steps, inputs, width, outs, is_placed):
        super().__init__()
        self.into = nn.Linear(inputs, width)
        self.place = nn.Parameter(0.3 * torch.randn(steps, width)) if is_placed else None
        self.layer = nn.TransformerEncoderLayer(width, 4, 48, dropout=0.0, batch_first=True, norm_first=True)
        self.out = nn.Linear(width, outs)

    def forward(self, x):
        h = self.into(x)
        if self.place is not None:
            h = h + self.place
        return self.out(self.layer(h).mean(1))


@fault(
    "a transformer of a time series without positions",
    rules=("order-lost",), fails=True, steps=300,
)
def uts_trend_without_time(is_faulty):
    def data(n, seed):
        g = uts_gen(seed)
        slope = torch.randn(n, 1, generator=g)
        t = torch.linspace(-1, 1, 24)
        return (slope * t + 0.4 * torch.randn(n, 24, generator=g)).unsqueeze(-1), slope[:, 0]

    x, y = data(1500, 18)
    vx, vy = data(400, 19)
    net = UtsEncoder(24, 1, 16, 1, not is_faulty)
    return Program(net, lambda o, t: F.mse_loss(o[:, 0], t), uts_loader(x, y, size=32),
                   torch.optim.AdamW(net.parameters(), 3e-3), lambda m: uts_r2(m(vx), vy))


class UtsMoments(nn.Module):
    """Pools a recording into means and deviations over time."""

    def __init__(self, eps):
        super().__init__()
        self.eps = eps
        self.front = nn.Sequential(nn.Conv1d(2, 24, 5, padding=2), nn.ReLU())
        self.out = nn.Linear(48, 4)

    def forward(self, x):
        h = self.front(x.transpose(1, 2))
        m = h.mean(-1)
        s = torch.sqrt(((h - m[..., None]) ** 2).mean(-1) + self.eps)
        return self.out(torch.cat([m, s], 1))


@fault(
    "the square root of a variance without an epsilon: windows in which a sensor is silent give NaN gradients",
    rules=("non-finite",), fails=True, steps=250,
)
def uts_deviation_pooling(is_faulty):
    def data(n, seed):
        x, y = uts_waves(n, seed, noise=0.2)
        x[::17] = 0.0  # the logger was off
        return x, torch.where(torch.arange(n) % 17 == 0, torch.zeros_like(y), y)

    x, y = data(1500, 20)
    vx, vy = data(400, 21)
    net = UtsMoments(0.0 if is_faulty else 1e-5)
    return Program(net, F.cross_entropy, uts_loader(x, y, size=32), torch.optim.Adam(net.parameters(), 5e-3),
                   lambda m: uts_acc(m(vx), vy))


@fault(
    "StepLR(5, 0.1) was meant for epochs and is stepped after every batch",
    rules=("learning-rate-too-low",), fails=True, steps=300,
)
def uts_schedule_per_batch(is_faulty):
    x, y = uts_waves(1600, 22)
    vx, vy = uts_waves(400, 23)
    net = UtsConv(2, 4)
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    per_epoch = 1600 // 32
    sched = torch.optim.lr_scheduler.StepLR(opt, 5 if is_faulty else 5 * per_epoch, 0.1)
    return Program(net, F.cross_entropy, uts_loader(x, y, size=32), opt, lambda m: uts_acc(m(vx), vy), scheduler=sched)


class UtsScaleFree(nn.Module):
    def __init__(self, std):
        super().__init__()
        self.a, self.b = nn.Linear(96, 48), nn.Linear(48, 48)
        self.na, self.nb = nn.LayerNorm(48), nn.LayerNorm(48)
        self.out = nn.Linear(48, 4)
        for layer in (self.a, self.b):
            nn.init.normal_(layer.weight, std=std)

    def forward(self, x):
        h = F.relu(self.na(self.a(x.flatten(1))))
        return self.out(F.relu(self.nb(self.b(h))))


@fault(
    "hidden weights start with a deviation of 20 before LayerNorm, so that steps of 0.003 hardly turn them",
    rules=("weight-domination", "bad-initialisation", "learning-rate-too-low"), layers=("a", "b"), fails=False,
    steps=300,
)
def uts_heavy_weights(is_faulty):
    x, y = uts_waves(1500, 24)
    vx, vy = uts_waves(400, 25)
    net = UtsScaleFree(20.0 if is_faulty else 0.1)
    return Program(net, F.cross_entropy, uts_loader(x, y, size=64), torch.optim.Adam(net.parameters(), 3e-3),
                   lambda m: uts_acc(m(vx), vy))


@fault(
    "Dropout(0.95), where 0.95 was meant as the share that is kept",
    rules=("dropout-too-strong",), fails=True, steps=250,
)
def uts_keep_probability(is_faulty):
    x, y = uts_clusters(1500, 26, d=16, classes=6)
    vx, vy = uts_clusters(500, 27, d=16, classes=6)
    p = 0.95 if is_faulty else 0.05
    net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(p), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(p),
                        nn.Linear(64, 6))
    return Program(net, F.cross_entropy, uts_loader(x, y, size=64), torch.optim.RMSprop(net.parameters(), 2e-3),
                   lambda m: uts_acc(m(vx), vy))


class UtsProportional(nn.Module):
    """A risk of a patient: the higher, the earlier."""

    def __init__(self):
        super().__init__()
        self.risk = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 1))

    def forward(self, x):
        return self.risk(x)[:, 0]


@fault(
    "the risk sets of a Cox model hold those who have already gone, as the times are sorted the wrong way",
    rules=("output-loss-mismatch", "labels-unrelated"), fails=True, steps=200,
)
def uts_wrong_risk_sets(is_faulty):
    def data(n, seed):
        g = uts_gen(seed)
        x = torch.randn(n, 8, generator=g)
        hazard = torch.exp(1.5 * x[:, 0] + 1.5 * x[:, 1] * x[:, 2])
        t = torch.empty(n).exponential_(1.0, generator=g) / hazard
        c = torch.empty(n).exponential_(0.3, generator=g)
        return x, torch.stack([torch.minimum(t, c), (t <= c).float()], 1)

    x, y = data(1500, 28)
    vx, vy = data(400, 29)

    def cox(risk, target):
        order = torch.argsort(target[:, 0], descending=not is_faulty)
        risk, event = risk[order], target[order, 1]
        return -((risk - torch.logcumsumexp(risk, 0)) * event).sum() / event.sum().clamp(min=1)

    def score(m):
        r, t, e = m(vx), vy[:, 0], vy[:, 1]
        pairs = (t[:, None] < t[None]) & (e[:, None] > 0)
        return float((r[:, None] > r[None])[pairs].float().mean())

    net = UtsProportional()
    return Program(net, cox, uts_loader(x, y, size=100), torch.optim.Adam(net.parameters(), 3e-3), score)
