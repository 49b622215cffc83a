import math
import torch
import torch.nn.functional as F
from torch import nn
from corpora import G, acc, chain, loader, padded, r2, tones, waves
from faults_a import CharGRU, TinyGPT
from program import Program, fault


class Forecaster(nn.Module):
    def __init__(self, h=24):
        super().__init__()
        self.gru = nn.GRU(1, h, batch_first=True)
        self.lin = nn.Linear(h, 1)

    def forward(self, x):
        return self.lin(self.gru(x)[1][-1])


@fault("forecasts (N, 1) are compared to values (N,): all pairs", rules=["output-loss-mismatch"], fails=True, steps=150)
def forecast_broadcast(bad):
    (x, y), (vx, vy) = waves(600, 12), waves(200, 12, seed=1)
    m = Forecaster()
    return Program(m, (lambda o, t: ((o - t) ** 2).mean()) if bad else (lambda o, t: ((o[:, 0] - t) ** 2).mean()), loader(x, y),
                   torch.optim.Adam(m.parameters(), lr=1e-2), lambda m: max(0.0, r2(m(vx), vy)))


@fault("a small transformer with Adam at 0.3", rules=["learning-rate-too-high"], fails=False, steps=200)
def gpt_at_a_wild_rate(bad):
    x, v = chain(512, 13), chain(256, 13, seed=1)
    m = TinyGPT()
    return Program(m, lambda o, y: F.cross_entropy(o.flatten(0, 1), y.flatten()), loader(x[:, :-1], x[:, 1:]),
                   torch.optim.Adam(m.parameters(), lr=0.3 if bad else 3e-3), lambda m: acc(m(v[:, :-1]), v[:, 1:]))


@fault("sales in single pieces are forecast from standardised history", rules=["unscaled-target"], fails=True, steps=300)
def sales_in_pieces(bad):
    (x, y), (vx, vy) = waves(600, 12), waves(200, 12, seed=1)
    mean, std = 4000.0, 2500.0
    sales = mean + std * y
    m = Forecaster()
    back = (lambda o: o) if bad else (lambda o: mean + std * o)
    return Program(m, nn.MSELoss(), loader(x, (sales if bad else y)[:, None]), torch.optim.Adam(m.parameters(), lr=5e-3),
                   lambda m: max(0.0, r2(back(m(vx)), mean + std * vy)))


class Translator(nn.Module):
    def __init__(self, cut):
        super().__init__()
        self.cut = cut
        self.src = nn.Embedding(8, 16)
        self.encoder = nn.GRU(16, 24, batch_first=True)
        self.tgt = nn.Embedding(9, 16)
        self.decoder = nn.GRU(16, 24, batch_first=True)
        self.out = nn.Linear(24, 8)

    def forward(self, src, tgt):
        _, state = self.encoder(self.src(src))
        if self.cut:
            state = state.detach()
        return self.out(self.decoder(self.tgt(tgt), state)[0])


@fault("every parameter is initialised to 0.05", rules=["symmetric-initialisation", "bad-initialisation"], fails=False, steps=150)
def all_parameters_alike(bad):
    x, v = chain(512, 13, seed=7), chain(256, 13, seed=8)
    m = CharGRU()
    for p in m.parameters():
        if bad:
            nn.init.constant_(p, 0.05)
        else:
            nn.init.uniform_(p, -0.2, 0.2)
    return Program(m, lambda o, y: F.cross_entropy(o.transpose(1, 2), y), loader(x[:, :-1], x[:, 1:]), torch.optim.Adam(m.parameters(), lr=1e-2),
                   lambda m: acc(m(v[:, :-1]), v[:, 1:]))


@fault("embeddings with a standard deviation of 60 in front of a tanh RNN", rules=["bad-initialisation", "saturated-activation", "vanishing-gradient"], layers=["emb", "rnn"], fails=True, steps=250)
def loud_embeddings(bad):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(12, 16)
            self.rnn = nn.RNN(16, 32, batch_first=True)
            self.fc = nn.Linear(32, 12)
            nn.init.normal_(self.emb.weight, std=60.0 if bad else 1.0)

        def forward(self, x):
            return self.fc(self.rnn(self.emb(x))[0][:, -1])

    def make(n, s):
        x = torch.randint(0, 12, (n, 5), generator=G(s))
        return x, (x[:, 2])
    x, y = make(1000, 0)
    vx, vy = make(300, 1)
    m = Net()
    return Program(m, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(m.parameters(), lr=5e-3), lambda m: acc(m(vx), vy))


class Lookup(nn.Module):
    """Own attention: which value stands next to the asked key?"""

    def __init__(self, scale, dim=-1):
        super().__init__()
        self.k = nn.Embedding(8, 32)
        self.v = nn.Embedding(8, 32)
        self.q = nn.Embedding(8, 32)
        self.wq, self.wk = nn.Linear(32, 32), nn.Linear(32, 32)
        self.out = nn.Linear(32, 8)
        self.scale, self.dim = scale, dim

    def forward(self, keys, values, asked):
        s = (self.wq(self.q(asked))[:, None] * self.wk(self.k(keys))).sum(-1) * self.scale
        a = s.softmax(self.dim)
        return self.out((a[..., None] * self.v(values)).sum(1))


def pairs(n, s):
    g = G(s)
    keys = torch.rand(n, 8, generator=g).argsort(1)[:, :5]
    values = torch.randint(0, 8, (n, 5), generator=g)
    at = torch.randint(0, 5, (n,), generator=g)
    r = torch.arange(n)
    return (keys, values, keys[r, at]), values[r, at]


def lookup(m, lr=1e-2):
    (k, v, a), y = pairs(2000, 0)
    (vk, vv, va), vy = pairs(300, 1)
    return Program(m, None, loader(k, v, a, y), torch.optim.Adam(m.parameters(), lr=lr), lambda m: sum(acc(m(vk[i:i + 1], vv[i:i + 1], va[i:i + 1]), vy[i:i + 1]) for i in range(200)) / 200,
                   step=lambda m, b: F.cross_entropy(m(*b[:3]), b[3]))


@fault("scores are multiplied by the width instead of divided by its root", rules=["attention-saturation"], fails=False, steps=200)
def scores_multiplied(bad):
    return lookup(Lookup(32.0 if bad else 32**-0.5), lr=3e-3)


@fault("attention weights are normalised over the batch", rules=["wrong-softmax-dimension", "mixed-examples"], fails=False, steps=200)
def softmax_over_batch(bad):
    return lookup(Lookup(32**-0.5, 0 if bad else 1), lr=3e-3)


class KeepsItsMap(Lookup):
    """Lookup that keeps its attention map for plots."""

    def __init__(self, detached):
        super().__init__(32**-0.5)
        self.detached = detached

    def forward(self, keys, values, asked):
        s = (self.wq(self.q(asked))[:, None] * self.wk(self.k(keys))).sum(-1) * self.scale
        a = s.softmax(1)
        if self.detached:
            a = self.map = a.detach()
        else:
            self.map = a.detach()
        return self.out((a[..., None] * self.v(values)).sum(1))


@fault("the attention map is detached for plots, and the detached one is used", rules=["no-gradient"], layers=["wq", "wk", "q", "k"], fails=False, steps=200)
def map_kept_for_plots(bad):
    return lookup(KeepsItsMap(bad), lr=3e-3)
