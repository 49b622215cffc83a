"""Forecasting, denoising, recurrent nets, autoregressive models."""
import torch
import torch.nn.functional as F
from data import accuracy, gen, loader, order_text, r2, seed, series
from program import Program, fault
from sklearn.datasets import load_digits
from torch import nn


class WaveNet(nn.Module):
    def __init__(self, channels, same):
        super().__init__()
        self.same = same
        self.start = nn.Conv1d(1, channels, 1)
        self.dilated = nn.ModuleList(nn.Conv1d(channels, 2 * channels, 3, dilation=2**i) for i in range(4))
        self.mix = nn.ModuleList(nn.Conv1d(channels, channels, 1) for _ in range(4))
        self.end = nn.Conv1d(channels, 1, 1)

    def forward(self, x):
        h = self.start(x.unsqueeze(1))
        for i, (conv, mix) in enumerate(zip(self.dilated, self.mix)):
            d = 2**i
            padded = F.pad(h, (d, d)) if self.same else F.pad(h, (2 * d, 0))
            a, b = conv(padded).chunk(2, dim=1)
            h = h + mix(torch.tanh(a) * torch.sigmoid(b))
        return self.end(F.relu(h)).squeeze(1)


@fault("a forecaster of dilated convolutions pads both sides: each step sees the value that it should forecast",
       rules=("future-seen",), layers=("dilated",), fails=False, steps=300)
def padding_on_both_sides(is_faulty):
    x, test = series(600, 41, k=20), series(200, 41, k=21)
    seed(20)
    model = WaveNet(16, is_faulty)

    def score(m):  # rolling on for six steps
        seen = test[:, :-6]
        for _ in range(6):
            seen = torch.cat([seen, m(seen)[:, -1:]], 1)
        return r2(seen[:, -6:], test[:, -6:])

    return Program(model, nn.MSELoss(), loader(x[:, :-1], x[:, 1:], batch=16), torch.optim.Adam(model.parameters(), lr=3e-3), score)


class MADE(nn.Module):
    def __init__(self, size, hidden, strict):
        super().__init__()
        order = torch.arange(size)
        degree = torch.arange(hidden) % (size - 1)
        self.w1 = nn.Parameter(torch.randn(hidden, size) / size**0.5)
        self.b1 = nn.Parameter(torch.zeros(hidden))
        self.w2 = nn.Parameter(torch.randn(size, hidden) / hidden**0.5)
        self.b2 = nn.Parameter(torch.zeros(size))
        self.register_buffer("m1", (degree[:, None] >= order[None, :]).float())
        self.register_buffer("m2", (order[:, None] > degree[None, :] if strict else order[:, None] >= degree[None, :]).float())

    def forward(self, x):
        h = F.relu(F.linear(x, self.w1 * self.m1, self.b1))
        return F.linear(h, self.w2 * self.m2, self.b2)


@fault("MADE's output mask has >= where > belongs: each pixel is predicted from itself",
       rules=("future-seen", "wrong-mask", "label-shift"), fails=False, steps=400)
def made_sees_itself(is_faulty):
    x = (torch.tensor(load_digits().data) > 7).float()[torch.randperm(1797, generator=gen(22))]
    seed(21)
    model = MADE(64, 256, not is_faulty)
    test = x[1500:]

    def score(m):  # each pixel from those before it
        right = [((m(test * (torch.arange(64) < i)) > 0)[:, i] == test[:, i].bool()).float().mean() for i in range(64)]
        return torch.stack(right).mean().item()

    return Program(model, F.binary_cross_entropy_with_logits, loader(x[:1500], x[:1500], batch=64), torch.optim.Adam(model.parameters(), lr=3e-3), score)


class QuantileGRU(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.rnn = nn.GRU(1, 24, batch_first=True)
        self.heads = heads

    def forward(self, x):
        _, h = self.rnn(x.unsqueeze(-1))
        return torch.cat([head(h[-1]) for head in self.heads], dim=1)


@fault("three quantile heads made by multiplying a list: they are one and the same layer",
       rules=("shared-weight",), layers=("heads",), fails=True, steps=300)
def one_head_thrice(is_faulty):
    x, test = series(800, 21, k=23, noise=0.4), series(400, 21, k=24, noise=0.4)
    seed(22)
    heads = nn.ModuleList([nn.Linear(24, 1)] * 3) if is_faulty else nn.ModuleList([nn.Linear(24, 1) for _ in range(3)])
    model = QuantileGRU(heads)
    q = torch.tensor([0.1, 0.5, 0.9])

    def pinball(pred, y):
        e = y - pred
        return torch.max(q * e, (q - 1) * e).mean()

    def score(m):  # how right the shares below the quantiles are
        return 1 - 2 * ((test[:, -1:] < m(test[:, :-1])).float().mean(0) - q).abs().mean().item()

    return Program(model, pinball, loader(x[:, :-1], x[:, -1:]), torch.optim.Adam(model.parameters(), lr=5e-3), score)


@fault("seconds since 1970 are an input of the load forecast, beside values of size one",
       rules=("unscaled-input", "saturated-activation", "ill-conditioned-input"), fails=True, steps=250)
def seconds_since_1970(is_faulty):
    x = series(800, 25, k=25)
    start = 1.6e9 + 3.0e7 * torch.rand(800, 1, generator=gen(26))
    when = start + 3600 * torch.arange(25)
    if not is_faulty:
        when = (when - when.mean()) / when.std()
    inputs = torch.stack([when, x], -1)[:, :-1]

    class Load(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.LSTM(2, 32, batch_first=True)
            self.out = nn.Linear(32, 1)

        def forward(self, v):
            return self.out(self.rnn(v)[0][:, -1]).squeeze(-1)

    seed(23)
    model = Load()
    return Program(model, nn.MSELoss(), loader(inputs[:600], x[:600, -1]), torch.optim.Adam(model.parameters(), lr=5e-3),
                   lambda m: r2(m(inputs[600:]), x[600:, -1]))


class Denoiser(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 64), nn.SiLU())
        self.inp = nn.Linear(size, 128)
        self.film = nn.Linear(64, 256)
        self.mid = nn.Linear(128, 128)
        self.out = nn.Linear(128, size)

    def forward(self, x, t):
        f = torch.exp(torch.linspace(0, 4, 8)) * t[:, None]
        scale, shift = self.film(self.time(torch.cat([f.sin(), f.cos()], -1))).chunk(2, -1)
        h = F.silu(self.inp(x) * (1 + scale) + shift)
        return self.out(h + F.silu(self.mid(h)))


@fault("the noise in the diffusion loss is drawn anew and is not the noise that was added",
       rules=("labels-unrelated",), fails=True, steps=400)
def noise_drawn_again(is_faulty):
    x, test = series(1000, 24, k=28, noise=0.0), series(300, 24, k=29, noise=0.0)
    seed(25)
    model = Denoiser(24)

    def noised(clean, t, eps):
        a = torch.cos(t * 1.5)[:, None]
        return a * clean + (1 - a**2).sqrt() * eps

    def step(m, batch):
        (clean,) = batch
        t = torch.rand(len(clean)) * 0.8 + 0.2
        eps = torch.randn_like(clean)
        noisy = noised(clean, t, torch.randn_like(clean) if is_faulty else eps)
        return F.mse_loss(m(noisy, t), eps)

    def score(m):
        t, eps = torch.rand(300, generator=gen(1)) * 0.8 + 0.2, torch.randn(300, 24, generator=gen(2))
        return r2(m(noised(test, t, eps), t), eps)

    return Program(model, None, loader(x, batch=64), torch.optim.Adam(model.parameters(), lr=2e-3), score, step=step)


class SortingLSTM(nn.Module):
    def __init__(self, unsort):
        super().__init__()
        self.unsort = unsort
        self.emb = nn.Embedding(20, 24, padding_idx=0)
        self.lstm = nn.LSTM(24, 32, batch_first=True)
        self.fc = nn.Linear(32, 2)

    def forward(self, ids):
        lengths = (ids != 0).sum(1)
        lengths, order = lengths.sort(descending=True)
        packed = nn.utils.rnn.pack_padded_sequence(self.emb(ids[order]), lengths, batch_first=True)
        h = self.lstm(packed)[1][0][-1]
        if self.unsort:
            h = h[order.argsort()]
        return self.fc(h)


@fault("sequences are sorted by length for packing and the outputs are not put back into the batch's order",
       rules=("mixed-examples", "labels-unrelated"), fails=True, steps=250)
def not_unsorted(is_faulty):
    ids, y, _ = order_text(1200, 12, k=30, padded=True)
    test, want, _ = order_text(300, 12, k=31, padded=True)
    seed(26)
    model = SortingLSTM(not is_faulty)
    return Program(model, nn.CrossEntropyLoss(), loader(ids, y), torch.optim.Adam(model.parameters(), lr=5e-3), lambda m: accuracy(m(test), want))


class WordDropout(nn.Module):
    def __init__(self, p, always):
        super().__init__()
        self.p, self.always = p, always

    def forward(self, ids):
        if self.training or self.always:
            ids = ids.masked_fill(torch.rand(ids.shape) < self.p, 0)  # 0: the unknown word
        return ids


class WordDropGRU(nn.Module):
    def __init__(self, always):
        super().__init__()
        self.word_dropout = WordDropout(0.35, always)
        self.emb = nn.Embedding(20, 24)
        self.gru = nn.GRU(24, 32, batch_first=True)
        self.fc = nn.Linear(32, 2)

    def forward(self, ids):
        h, _ = self.gru(self.emb(self.word_dropout(ids)))
        return self.fc(h.amax(1))


@fault("own word dropout does not look at the module's mode: words go missing in evaluation, too",
       rules=("dropout-in-eval",), layers=("word_dropout",), fails=False, steps=250)
def word_dropout_always(is_faulty):
    ids, y = order_text(1600, 10, k=32)
    seed(27)
    model = WordDropGRU(is_faulty)
    return Program(model, nn.CrossEntropyLoss(), loader(ids[:1200], y[:1200]), torch.optim.Adam(model.parameters(), lr=5e-3),
                   lambda m: accuracy(m(ids[1200:]), y[1200:]))


class SensorNet(nn.Module):
    def __init__(self, momentum):
        super().__init__()
        self.conv1 = nn.Conv1d(1, 16, 5, padding=2)
        self.bn1 = nn.BatchNorm1d(16, momentum=momentum)
        self.conv2 = nn.Conv1d(16, 16, 5, padding=2)
        self.bn2 = nn.BatchNorm1d(16, momentum=momentum)
        self.fc = nn.Linear(16, 3)

    def forward(self, x):
        h = torch.relu(self.bn1(self.conv1(x.unsqueeze(1))))
        h = F.max_pool1d(h, 2)
        h = torch.relu(self.bn2(self.conv2(h)))
        return self.fc(h.mean(-1))


@fault("BatchNorm's momentum copied from Keras's convention the wrong way round (0.001): the running statistics stay where they began",
       rules=("batchnorm-mode-gap",), layers=("bn1", "bn2"), fails=True, steps=200)
def momentum_of_keras(is_faulty):
    g = gen(33)
    y = torch.randint(3, (900,), generator=g)
    t = torch.arange(32).float()
    period = torch.tensor([5.0, 8.0, 12.0])[y][:, None]
    x = 2 + 1.5 * torch.sin(6.2832 * (t / period + torch.rand(900, 1, generator=g))) + 0.5 * torch.randn(900, 32, generator=g)
    seed(28)
    model = SensorNet(0.001 if is_faulty else 0.1)
    return Program(model, nn.CrossEntropyLoss(), loader(x[:600], y[:600]), torch.optim.Adam(model.parameters(), lr=5e-3), lambda m: accuracy(m(x[600:]), y[600:]))


class Elman(nn.Module):
    def __init__(self, symbols, hidden, small):
        super().__init__()
        self.W = nn.Parameter(torch.randn(symbols, hidden) / symbols**0.5)
        self.U = nn.Parameter(torch.randn(hidden, hidden) * 0.01)
        if not small:
            nn.init.orthogonal_(self.U)
        self.b = nn.Parameter(torch.zeros(hidden))
        self.V = nn.Linear(hidden, 4)

    def forward(self, x):
        h = x.new_zeros(len(x), self.U.shape[0])
        for xt in x.unbind(1):
            h = torch.tanh(xt @ self.W + h @ self.U + self.b)
        return self.V(h)


@fault("an own recurrent net starts with a recurrent matrix of 0.01: the first symbol's gradient is gone after a few steps",
       rules=("vanishing-gradient", "bad-initialisation"), layers=("U",), fails=True, steps=300)
def recurrence_too_small(is_faulty):
    g = gen(34)
    first = torch.randint(4, (1200,), generator=g)
    ids = torch.cat([first[:, None], torch.randint(4, 8, (1200, 14), generator=g)], 1)
    x = F.one_hot(ids, 8).float()
    seed(29)
    model = Elman(8, 48, is_faulty)
    return Program(model, nn.CrossEntropyLoss(), loader(x[:1000], first[:1000]), torch.optim.Adam(model.parameters(), lr=1e-3),
                   lambda m: accuracy(m(x[1000:]), first[1000:]))


class Stateful(nn.Module):
    def __init__(self, fixed):
        super().__init__()
        self.fixed = fixed
        self.gru = nn.GRU(1, 32, 2)
        self.lin = nn.Linear(32, 1)

    def forward(self, x):
        x = x.t().unsqueeze(-1)
        h0 = torch.zeros(2, 32 if self.fixed else x.size(1), 32)
        out, _ = self.gru(x, h0)
        return self.lin(out[-1]).squeeze(-1)


@fault("the initial state has the batch size written into it; the last batch is smaller and raises",
       rules=("model-fails",), fails=True, steps=250)
def state_of_fixed_batch(is_faulty):
    x, test = series(300, 17, k=35), series(256, 17, k=36)
    seed(30)
    model = Stateful(is_faulty)
    return Program(model, nn.SmoothL1Loss(), loader(x[:, :-1], x[:, -1]), torch.optim.Adam(model.parameters(), lr=5e-3),
                   lambda m: r2(torch.cat([m(b[:, :-1]) for b in test.split(32)]), test[:, -1]))
