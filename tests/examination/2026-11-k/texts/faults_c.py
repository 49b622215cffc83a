import math
import torch
import torch.nn.functional as F
from torch import nn
from corpora import G, acc, chain, loader, padded, r2, tones, waves
from faults_a import CharGRU, TinyGPT
from faults_b import Forecaster
from program import Program, fault


@fault("F.dropout without training=self.training", rules=["dropout-in-eval"], fails=False, steps=250)
def functional_dropout(bad):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(30, 16)
            self.fc = nn.Linear(16, 10)

        def forward(self, x):
            h = self.emb(x)[:, 0]
            h = F.dropout(h, 0.8) if bad else F.dropout(h, 0.8, self.training)
            return self.fc(h)
    x = torch.randint(0, 30, (1000, 3), generator=G(0))
    vx = torch.randint(0, 30, (400, 3), generator=G(1))
    m = Net()
    return Program(m, nn.CrossEntropyLoss(), loader(x, x[:, 0] % 10), torch.optim.Adam(m.parameters(), lr=1e-2), lambda m: acc(m(vx), vx[:, 0] % 10))


@fault("weight_decay=0.3 in Adam, which adds it to the gradient", rules=["weight-decay-dominates"], fails=True, steps=200)
def decay_of_a_third(bad):
    x, v = chain(512, 13, seed=2), chain(256, 13, seed=3)
    m = CharGRU()
    return Program(m, lambda o, y: F.cross_entropy(o.flatten(0, 1), y.flatten()), loader(x[:, :-1], x[:, 1:]),
                   torch.optim.Adam(m.parameters(), lr=5e-3, weight_decay=0.3 if bad else 1e-5), lambda m: acc(m(v[:, :-1]), v[:, 1:]))


@fault("audio as 16-bit integers made float", rules=["unscaled-input", "saturated-activation"], fails=True, steps=200)
def pcm_not_divided(bad):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv1d(1, 12, 9, stride=2)
            self.fc = nn.Linear(12, 4)

        def forward(self, x):
            return self.fc(self.conv(x).tanh().pow(2).mean(-1) * 4)
    (x, y), (vx, vy) = tones(800), tones(200, seed=1)
    k = 20000.0 if bad else 1.0
    m = Net()
    return Program(m, nn.CrossEntropyLoss(), loader(x * k, y), torch.optim.Adam(m.parameters(), lr=1e-2), lambda m: acc(m(vx * k), vy))


@fault("texts lie in the order of their classes, and the loader does not shuffle", rules=["sorted-batches"], fails=False, steps=240)
def classes_one_after_another(bad):
    def make(n, s):
        g = G(s)
        y = torch.randint(0, 6, (n,), generator=g)
        x = torch.where(torch.rand(n, 10, generator=g) < 0.4, y[:, None] * 4 + torch.randint(0, 4, (n, 10), generator=g), torch.randint(0, 24, (n, 10), generator=g))
        return x, y
    x, y = make(1920, 0)
    vx, vy = make(300, 1)
    o = y.argsort()
    m = nn.Sequential(nn.EmbeddingBag(24, 16), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 6))
    return Program(m, nn.CrossEntropyLoss(), loader(x[o], y[o], shuffle=not bad), torch.optim.Adam(m.parameters(), lr=1e-2), lambda m: acc(m(vx), vy))


@fault("squared errors are summed over the batch, with the rate of a mean", rules=["summed-loss", "learning-rate-too-high", "non-finite"], fails=True, steps=300)
def errors_summed(bad):
    (x, y), (vx, vy) = waves(640, 12), waves(200, 12, seed=1)
    m = Forecaster()
    crit = nn.MSELoss(reduction="sum" if bad else "mean")
    return Program(m, crit, loader(x, y[:, None], bs=64), torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9), lambda m: max(0.0, r2(m(vx), vy)))


@fault("empty texts: a row of attention in which all is masked", rules=["non-finite", "wrong-mask"], fails=True, steps=120)
def empty_texts(bad):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(21, 24)
            self.score = nn.Linear(24, 1)
            self.fc = nn.Linear(24, 2)

        def forward(self, x):
            e = self.emb(x)
            s = self.score(e)[..., 0].masked_fill(x == 0, -torch.inf if bad else -1e4)
            return self.fc((s.softmax(1)[..., None] * e).sum(1))
    x, y, _ = padded(800, least=0)
    vx, vy, _ = padded(300, least=4, seed=1)
    m = Net()
    return Program(m, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(m.parameters(), lr=3e-3), lambda m: acc(m(vx), vy))


@fault("the bias of the forget gate is set to -4 instead of +4", rules=["vanishing-gradient", "bad-initialisation"], layers=["lstm"], fails=True, steps=200)
def forgetful_lstm(bad):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(6, 16)
            self.lstm = nn.LSTM(16, 24, batch_first=True)
            self.fc = nn.Linear(24, 6)
            with torch.no_grad():
                self.lstm.bias_ih_l0[24:48] = -4.0 if bad else 4.0

        def forward(self, x):
            return self.fc(self.lstm(self.emb(x))[0][:, -1])

    x, vx = (torch.randint(0, 6, (n, 20), generator=G(n)) for n in (2000, 300))
    m = Net()
    return Program(m, nn.CrossEntropyLoss(), loader(x, x[:, 0]), torch.optim.Adam(m.parameters(), lr=1e-2), lambda m: acc(m(vx), vx[:, 0]))


@fault("texts are padded on the left and then cut to their first places", rules=["constant-feature", "labels-unrelated"], fails=True, steps=120)
def cut_from_the_wrong_end(bad):
    def make(n, s):
        x, y, _ = padded(n, L=10, seed=s)
        x = torch.cat([torch.zeros(n, 20, dtype=torch.long), x.flip(1)], 1)
        return (x[:, :10] if bad else x[:, -10:]), y
    x, y = make(800, 0)
    vx, vy = make(300, 1)
    m = nn.Sequential(nn.Embedding(21, 8), nn.Flatten(), nn.Linear(80, 32), nn.ReLU(), nn.Linear(32, 2))
    return Program(m, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(m.parameters(), lr=3e-3), lambda m: acc(m(vx), vy))


@fault("the penalty on hidden activity has a weight of 500", rules=["term-dominates"], fails=False, steps=200)
def activity_penalty(bad):
    x, v = chain(512, 13, seed=12), chain(256, 13, seed=13)
    m = CharGRU()

    def step(m, b):
        h, _ = m.rnn(m.embed(b[0]))
        return F.cross_entropy(m.head(h).flatten(0, 1), b[1].flatten()) + (500.0 if bad else 0.01) * h.pow(2).mean()
    return Program(m, None, loader(x[:, :-1], x[:, 1:]), torch.optim.Adam(m.parameters(), lr=5e-3), lambda m: acc(m(v[:, :-1]), v[:, 1:]), step=step)


@fault("a warm-up of 100000 steps for a run of 200", rules=["learning-rate-too-low"], fails=True, steps=200)
def endless_warmup(bad):
    x, v = chain(512, 13, seed=14), chain(256, 13, seed=15)
    m = TinyGPT()
    opt = torch.optim.AdamW(m.parameters(), lr=5e-3)
    warm = 100_000 if bad else 20
    return Program(m, lambda o, y: F.cross_entropy(o.flatten(0, 1), y.flatten()), loader(x[:, :-1], x[:, 1:]), opt, lambda m: acc(m(v[:, :-1]), v[:, 1:]),
                   torch.optim.lr_scheduler.LambdaLR(opt, lambda i: min(1.0, (i + 1) / warm)))


@fault("BatchNorm with momentum 0.001, taken for that of an optimizer", rules=["batchnorm-mode-gap"], layers=["1"], fails=True, steps=150)
def momentum_of_batchnorm(bad):
    (x, y), (vx, vy) = tones(800), tones(200, seed=1)
    m = nn.Sequential(nn.Conv1d(1, 16, 9, stride=2), nn.BatchNorm1d(16, momentum=0.001 if bad else 0.1), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(16, 4))
    return Program(m, nn.CrossEntropyLoss(), loader(x * 0.2, y), torch.optim.Adam(m.parameters(), lr=1e-2), lambda m: acc(m(vx * 0.2), vy))


@fault("a window forecaster of three layers without activations", rules=["no-nonlinearity"], fails=True, steps=300)
def linear_forecaster(bad):
    def make(n, s):
        z = torch.rand(n, generator=G(s))
        c = [z]
        for _ in range(4):
            c.append(3.9 * c[-1] * (1 - c[-1]))
        s = (torch.stack(c, 1) - 0.5) * 2
        return s[:, :4], s[:, 4:]
    x, y = make(1000, 0)
    vx, vy = make(300, 1)
    act = nn.Identity if bad else nn.GELU
    m = nn.Sequential(nn.Linear(4, 32), act(), nn.Linear(32, 32), act(), nn.Linear(32, 1))
    return Program(m, nn.MSELoss(), loader(x, y), torch.optim.Adam(m.parameters(), lr=5e-3), lambda m: max(0.0, r2(m(vx), vy)))
