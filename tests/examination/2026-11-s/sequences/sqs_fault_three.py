import math
import torch
import torch.nn.functional as F
from torch import nn
from program import Program, fault
from sqs_data import *
from sqs_fault_two import Forecaster, Gestures3, which_first


@fault("BatchNorm with a momentum of 0.001, as if it were the share kept", rules=["batchnorm-mode-gap"], layers=["1", "3"], fails=True, steps=250)
def sqs_pressure_tcn(is_faulty):
    (x, y), (tx, ty) = waves(640, 32, 4, 41), waves(200, 32, 4, 42)
    x, tx = (x * 3 + 4).transpose(1, 2), (tx * 3 + 4).transpose(1, 2)
    mom = 0.001 if is_faulty else 0.1
    m = nn.Sequential(nn.Conv1d(1, 16, 7), nn.BatchNorm1d(16, momentum=mom), nn.ReLU(), nn.BatchNorm1d(16, momentum=mom), nn.Conv1d(16, 16, 5), nn.ReLU(),
                      nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(16, 4))
    return Program(m, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(m.parameters(), 5e-3), accuracy(tx, ty))


@fault("all weights of the GRU and its input filled with one constant", rules=["symmetric-initialisation", "bad-initialisation"], layers=["gru", "proj"], fails=False, steps=110)
def sqs_constant_gru(is_faulty):
    (x, y), (tx, ty) = ecg(600, 24, 31), ecg(200, 24, 32)
    m = Gestures3()
    for name, p in m.named_parameters():
        if p.dim() > 1:
            nn.init.constant_(p, 0.05) if is_faulty else nn.init.xavier_uniform_(p)
        else:
            nn.init.zeros_(p)
    return Program(m, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(m.parameters(), 5e-3), accuracy(tx, ty))


@fault("windows are sorted by their level, and the targets are not", rules=["labels-unrelated"], fails=True, steps=250)
def sqs_sorted_windows(is_faulty):
    (x, y), (tx, ty) = series(600, 20, 51), series(200, 20, 52)
    order = x.mean((1, 2)).argsort()
    m = Forecaster()
    return Program(m, nn.MSELoss(), loader(x[order], y if is_faulty else y[order]), torch.optim.Adam(m.parameters(), 5e-3), r2(tx, ty))


class HandLSTM(nn.Module):
    def __init__(self, std, f=8, h=24):
        super().__init__()
        self.h = h
        self.W = nn.Parameter(torch.randn(f, 4 * h) * std)
        self.U = nn.Parameter(torch.randn(h, 4 * h) * std)
        self.b = nn.Parameter(torch.zeros(4 * h))
        self.fc = nn.Linear(h, 3)

    def forward(self, x):
        h = c = x.new_zeros(len(x), self.h)
        for t in range(x.shape[1]):
            i, f, g, o = (x[:, t] @ self.W + h @ self.U + self.b).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        return self.fc(h)


@fault("gates of a hand-written LSTM drawn ten times too wide", rules=["saturated-activation", "bad-initialisation"], layers=["W", "U"], fails=False, steps=200)
def sqs_gesture_lstm(is_faulty):
    dirs = torch.randn(3, 8, generator=gen(9)) * 0.5

    def data(n, seed):
        g = gen(seed)
        y = torch.randint(0, 3, (n,), generator=g)
        x = torch.randn(n, 12, 8, generator=g)
        return x + dirs[y][:, None], y
    (x, y), (tx, ty) = data(600, 1), data(300, 2)
    m = HandLSTM(6.0 if is_faulty else 0.2)
    return Program(m, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(m.parameters(), 3e-3), accuracy(tx, ty))


class Vae(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.GRU(1, 32, batch_first=True)
        self.stats = nn.Linear(32, 12)
        self.dec = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, 16))

    def forward(self, x):
        mu, logvar = self.stats(self.enc(x)[0].mean(1)).chunk(2, 1)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp() if self.training else mu
        return self.dec(z), mu, logvar


@fault("a KL summed over the batch against a reconstruction averaged over everything", rules=["term-dominates"], fails=True, steps=400)
def sqs_trajectory_vae(is_faulty):
    def data(n, seed):
        g = gen(seed)
        t = torch.linspace(-1, 1, 16)
        a = torch.randn(n, 3, generator=g)
        return (a[:, :1] + a[:, 1:2] * t + a[:, 2:] * t ** 2)[..., None]
    x, tx = data(800, 1), data(200, 2)
    m = Vae()

    def loss(out, t):
        rec, mu, lv = out
        kl = -0.5 * (1 + lv - mu ** 2 - lv.exp()).sum()
        return F.mse_loss(rec, t) + (kl if is_faulty else kl / len(t) * 0.003)

    def score(m):
        return max(0.0, (1 - (m(tx)[0] - tx[..., 0]).square().mean() / tx.var()).item())
    return Program(m, loss, loader(x, x[..., 0]), torch.optim.Adam(m.parameters(), 5e-3), score)


class WordNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(61, 16)
        self.conv = nn.Conv1d(16, 24, 3)
        self.fc = nn.Linear(24, 2)

    def forward(self, ids):
        return self.fc(self.conv(self.emb(ids).transpose(1, 2)).relu().mean(2))


@fault("no word is found in the vocabulary, so that all are <unk>", rules=["constant-feature", "labels-unrelated", "rank-collapse"], fails=True, steps=200)
def sqs_unknown_words(is_faulty):
    (x, _, y), (tx, _, ty) = chats(800, 14, 60, 61, 14), chats(300, 14, 60, 62, 14)
    vocab = {("W%d" if is_faulty else "w%d") % i: i for i in range(60)}
    encode = lambda rows: torch.tensor([[vocab.get("w%d" % i, 60) for i in r] for r in rows.tolist()])
    x, tx = encode(x), encode(tx)
    m = WordNet()
    return Program(m, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(m.parameters(), 5e-3), accuracy(tx, ty))


@fault("the logarithm of volumes that are sometimes 0", rules=["non-finite"], fails=True, steps=250)
def sqs_trade_volume(is_faulty):
    def data(n, seed):
        x, y = series(n, 20, seed)
        v = (x[..., 0] * 1.2 + 0.5).exp()
        v = torch.where(v < 0.35, 0.0, v)
        return (v.log() if is_faulty else v.log1p())[..., None], y
    (x, y), (tx, ty) = data(600, 71), data(200, 72)
    m = Forecaster()
    return Program(m, nn.MSELoss(), loader(x, y), torch.optim.Adam(m.parameters(), 5e-3), r2(tx, ty))


class PadPool(nn.Module):
    def __init__(self, times):
        super().__init__()
        self.emb = nn.Embedding(60, 24)
        self.score = nn.Linear(24, 1)
        self.value = nn.Linear(24, 24)
        self.fc = nn.Linear(24, 2)
        self.times = times

    def forward(self, ids):
        x, real = self.emb(ids), (ids > 0).float()
        s = self.score(x).squeeze(2)
        s = s * real if self.times else s.masked_fill(real == 0, -1e4)
        a = s.softmax(1)
        return self.fc((a[..., None] * self.value(x)).sum(1))


@fault("scores multiplied with the mask, so that paddings keep their share of the softmax", rules=["wrong-mask"], fails=False, steps=120)
def sqs_short_messages(is_faulty):
    (x, _, y), (tx, _, ty) = chats(800, 200, 60, 63, 3, 9), chats(300, 200, 60, 64, 3, 9)
    m = PadPool(is_faulty)
    return Program(m, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(m.parameters(), 3e-3), accuracy(tx, ty))


class Mlp16(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 3)).to(dtype)
        self.dtype = dtype

    def forward(self, x):
        return self.net(x[..., 0].to(self.dtype)).float()


@fault("weights in bfloat16 and Adam at 1e-4", rules=["lost-updates"], fails=True, steps=600)
def sqs_bf16_beats(is_faulty):
    (x, y), (tx, ty) = ecg(1200, 24, 33, 0.3), ecg(400, 24, 34, 0.3)
    m = Mlp16(torch.bfloat16 if is_faulty else torch.float32)
    return Program(m, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(m.parameters(), 1e-4), accuracy(tx, ty))


class TwoStreams(nn.Module):
    def __init__(self, shared):
        super().__init__()
        self.price, self.volume = nn.Linear(12, 24), nn.Linear(12, 24)
        self.bn = nn.BatchNorm1d(24)
        self.bn2 = self.bn if shared else nn.BatchNorm1d(24)
        self.out = nn.Linear(48, 2)

    def forward(self, x):
        a = self.bn(self.price(x[..., 0])).relu()
        b = self.bn2(self.volume(x[..., 1])).relu()
        return self.out(torch.cat([a, b], 1))


@fault("one BatchNorm serves two streams of different scale", rules=["shared-weight", "batchnorm-mode-gap"], layers=["bn", "bn2"], fails=True, steps=250)
def sqs_order_book(is_faulty):
    def data(n, seed):
        g = gen(seed)
        x = torch.randn(n, 12, 2, generator=g)
        y = (x[:, -4:, 0].sum(1) + 0.5 * x[:, :4, 1].sum(1) > 0).long()
        x[..., 1] = x[..., 1] * 6 + 9
        return x, y
    (x, y), (tx, ty) = data(1000, 1), data(400, 2)
    m = TwoStreams(is_faulty)
    return Program(m, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(m.parameters(), 5e-3), accuracy(tx, ty))


@fault("a ReLU behind the output of a forecast of returns, half of which are negative", rules=["output-loss-mismatch", "dying-neurons"], fails=False, steps=250)
def sqs_daily_returns(is_faulty):
    (x, y), (tx, ty) = series(600, 20, 81), series(200, 20, 82)
    m = nn.Sequential(nn.Flatten(), nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 1), nn.ReLU() if is_faulty else nn.Identity())
    return Program(m, nn.MSELoss(), loader(x, y), torch.optim.Adam(m.parameters(), 5e-3), r2(tx, ty))
