"""Scales, initialisation, optimizers, data preparation."""
import math
import torch
from torch import nn
from torch.nn import functional as F
from program import Program, fault, sound  # noqa: F401
from textdata import acc, before, chain, gen, keyword, loader, r2, waves  # noqa: F401
from faults_a import TinyGPT
from faults_b import Forecast, SetTransformer, ar_series


def lm_loss(o, y):
    return F.cross_entropy(o.flatten(0, 1), y.flatten())


def lm_score(held):
    return lambda m: acc(m(held[:, :-1]), held[:, 1:])


@fault("The series of inputs is standardised, the price to forecast is left in dollars",
       rules=("unscaled-target",), fails=True, steps=300)
def price_targets_in_dollars(bad):
    x, y = ar_series(800, 42)
    xt, yt = ar_series(300, 43)
    model = Forecast()
    scale = (lambda v: 31000 + 4200 * v) if bad else (lambda v: v)
    return Program(model, F.mse_loss, loader(x, scale(y)[:, None]), torch.optim.Adam(model.parameters(), lr=1e-2),
                   lambda m: max(-1.0, r2(m(xt)[:, 0], scale(yt))))


class WaveRNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.frame = nn.Linear(8, 32)
        self.gru = nn.GRU(32, 32, batch_first=True)
        self.fc = nn.Linear(32, 4)

    def forward(self, wav):
        h = torch.tanh(self.frame(wav.unflatten(1, (-1, 8))))
        return self.fc(self.gru(h)[0].mean(1))


@fault("int16 samples cast to float, not divided by 32768, into frames with tanh",
       rules=("unscaled-input", "saturated-activation"), fails=False, steps=200)
def audio_int16_not_scaled(bad):
    def sounds(n, seed):  # two pitches, soft or loud
        wav, pitch = waves(n, 96, seed, classes=2)
        loud = torch.randint(0, 2, (n,), generator=gen(seed + 300))
        y = 2 * pitch + loud
        return wav * torch.where(y % 2 == 0, 0.3, 1.0)[:, None], y

    x, y = sounds(640, 44)
    xt, yt = sounds(300, 45)
    k = 9000.0 if bad else 1.0
    model = WaveRNN()
    return Program(model, nn.CrossEntropyLoss(), loader(k * x, y), torch.optim.Adam(model.parameters(), lr=3e-3),
                   lambda m: acc(m(k * xt), yt))


class FirstWord(nn.Module):
    def __init__(self, bad):
        super().__init__()
        self.emb = nn.Embedding(12, 16)
        self.rnn = nn.RNN(16, 48, batch_first=True)
        self.fc = nn.Linear(48, 4)
        if bad:
            nn.init.xavier_normal_(self.rnn.weight_hh_l0, gain=0.3)
        else:
            nn.init.orthogonal_(self.rnn.weight_hh_l0)

    def forward(self, x):
        return self.fc(self.rnn(self.emb(x))[1][0])


@fault("A tanh RNN with small recurrent weights is to recall the first of 30 words",
       rules=("vanishing-gradient", "bad-initialisation"), layers=("rnn",), fails=True, steps=300)
def rnn_forgets_first_word(bad):
    def data(n, seed):
        x = torch.randint(4, 12, (n, 30), generator=gen(seed))
        x[:, 0] = torch.randint(0, 4, (n,), generator=gen(seed + 1))
        return x, x[:, 0].clone()

    x, y = data(800, 46)
    xt, yt = data(300, 48)
    model = FirstWord(bad)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), opt, lambda m: acc(m(xt), yt))


@fault("The Noam schedule multiplies a base rate of 1e-3 instead of 1: rates near 1e-6",
       rules=("learning-rate-too-low",), fails=True, steps=250)
def noam_times_small_rate(bad):
    ids, held = chain(800, 13, 20, 52), chain(200, 13, 20, 53)
    model = TinyGPT(20)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3 if bad else 1.0, betas=(0.9, 0.98), eps=1e-9)
    noam = torch.optim.lr_scheduler.LambdaLR(
        opt, lambda s: 0.25 * 32 ** -0.5 * min((s + 1) ** -0.5, (s + 1) * 100 ** -1.5))
    return Program(model, lm_loss, loader(ids[:, :-1], ids[:, 1:]), opt, lm_score(held), scheduler=noam)


@fault("MSELoss(reduction='sum') over a batch of 64 windows of 12 values, at the rate of the mean",
       rules=("summed-loss", "learning-rate-too-high"), fails=True, steps=250)
def horizon_loss_summed(bad):
    def data(n, seed):
        g = gen(seed)
        s = torch.sin(6.28 * torch.rand(n, 1, generator=g) + (0.2 + 0.2 * torch.rand(n, 1, generator=g)) * torch.arange(36))
        s = s + 0.05 * torch.randn(n, 36, generator=g)
        return s[:, :24], s[:, 24:]

    x, y = data(1280, 54)
    xt, yt = data(300, 55)
    model = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 12))
    crit = nn.MSELoss(reduction="sum" if bad else "mean")
    return Program(model, crit, loader(x, y, bs=64), torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
                   lambda m: max(-1.0, r2(m(xt), yt)))


@fault("The vocabulary is lower case and the texts are not: every word becomes <unk>",
       rules=("constant-feature", "labels-unrelated", "rank-collapse"), fails=True, steps=150)
def all_words_unknown(bad):
    words = ["good", "bad", "film", "plot", "actor", "scene", "long", "music", "end", "start", "great", "awful"]
    stoi = {w: i + 1 for i, w in enumerate(words)}

    def texts(n, seed):
        g = gen(seed)
        idx = torch.randint(2, 10, (n, 7), generator=g)
        y = torch.randint(0, 2, (n,), generator=g)
        tone = torch.randint(0, 2, (n,), generator=g)
        idx[torch.arange(n), torch.randint(0, 7, (n,), generator=g)] = torch.where(tone == 0, 1 - y, 11 - y)
        sentences = [" ".join(words[i].upper() for i in row) for row in idx.tolist()]
        enc = [[stoi.get(w if bad else w.lower(), 0) for w in s.split()] for s in sentences]
        return torch.tensor(enc), y.float()

    x, y = texts(500, 56)
    xt, yt = texts(300, 57)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(13, 16)
            self.lstm = nn.LSTM(16, 16, batch_first=True)
            self.out = nn.Linear(16, 1)

        def forward(self, t):
            return self.out(self.lstm(self.emb(t))[0].mean(1)).squeeze(1)

    model = Net()
    return Program(model, nn.BCEWithLogitsLoss(), loader(x, y), torch.optim.Adam(model.parameters(), lr=1e-2),
                   lambda m: ((m(xt) > 0) == (yt > 0)).float().mean().item())
