import math

import torch
from program import Program, fault
from tdata import accuracy, chain, flat_ce, gen, loader, r2, tagged, topics, waves
from torch import nn
from torch.nn import functional as F


@fault("A loop sets every parameter to 0.05, so that all units of a layer are one unit.",
       rules=["symmetric-initialisation", "bad-initialisation"], fails=False, steps=300)
def all_parameters_constant(bad):
    model = nn.ModuleDict({"emb": nn.Embedding(20, 12), "gru": nn.GRU(12, 24, batch_first=True),
                           "out": nn.Linear(24, 6)})
    if bad:
        for p in model.parameters():
            nn.init.constant_(p, 0.05)

    def call(m, x):
        return m["out"](m["gru"](m["emb"](x))[0])

    x, y = tagged(640, 12, 43, tags=6)
    tx, ty = tagged(200, 12, 44, tags=6)
    return Program(model, None, loader(x, y), torch.optim.Adam(model.parameters(), 5e-3),
                   lambda m: (call(m, tx).argmax(-1) == ty).float().mean().item(),
                   step=lambda m, b: flat_ce(call(m, b[0]), b[1]))


@fault("Dropout(0.95): a keep probability, as in the framework that the code was ported from.",
       rules=["dropout-too-strong"], layers=["drop"], fails=True, steps=250)
def keep_probability(bad):
    class CharCNN(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(61, 16)
            self.conv = nn.Conv1d(16, 32, 3, padding=1)
            self.drop = nn.Dropout(0.97 if bad else 0.03)
            self.fc = nn.Linear(32, 6)

        def forward(self, x):
            h = self.drop(self.emb(x)).transpose(1, 2)
            return self.fc(self.drop(F.relu(self.conv(h)).mean(2)))

    x, _, y = topics(800, 20, 47, classes=6, rate=0.45)
    tx, _, ty = topics(400, 20, 48, classes=6, rate=0.45)
    model = CharCNN()
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(model.parameters(), 3e-3),
                   accuracy(tx, ty))


@fault("Attention scores are multiplied by the root of the width where they should be divided by it.",
       rules=["attention-saturation"], layers=["attn"], fails=False, steps=250)
def scores_times_root(bad):
    class Attn(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.q, self.k, self.v = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)
            self.d = d

        def forward(self, h):
            s = self.q(h) @ self.k(h).transpose(1, 2)
            s = s * math.sqrt(self.d) * 4 if bad else s / math.sqrt(self.d)
            return s.softmax(-1) @ self.v(h)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(40, 64)
            self.attn = Attn(64)
            self.out = nn.Linear(64, 1)

        def forward(self, x):
            return self.out(self.attn(self.emb(x))[:, 0])

    value = torch.randn(40, generator=gen(7))

    def data(n, seed):
        x = torch.randint(40, (n, 16), generator=gen(seed))
        return x, 3 * value[x].mean(1, keepdim=True)

    x, y = data(1000, 51)
    tx, ty = data(300, 52)
    model = Net()
    return Program(model, nn.MSELoss(), loader(x, y), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: r2(m(tx), ty))


@fault("Log-power features of clips with digital silence: log(0).",
       rules=["non-finite"], fails=True, steps=200)
def log_of_silence(bad):
    def data(n, seed):
        g = gen(seed)
        y = torch.randint(4, (n,), generator=g)
        f = torch.tensor([0.25, 0.6, 1.1, 1.8])[y][:, None]
        clip = torch.sin(f * torch.arange(64) + 6.28 * torch.rand(n, 1, generator=g))
        clip = clip + 0.3 * torch.randn(n, 64, generator=g)
        clip[:, 48:] = 0
        return clip, y

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(36, 32), nn.ReLU(), nn.Linear(32, 4))

        def forward(self, clip):
            power = torch.fft.rfft(clip.unfold(1, 16, 16)).abs() ** 2
            return self.net(torch.log(power if bad else power + 1e-2).flatten(1))

    x, y = data(600, 60)
    tx, ty = data(300, 61)
    model = Net()
    score = lambda m: 0.0 if not m(tx).isfinite().all() else accuracy(tx, ty)(m)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(model.parameters(), 3e-3), score)


@fault("Tokens that the tokenizer numbers from 1000 on are clamped to the size of the table: all become one token.",
       rules=["constant-feature", "labels-unrelated", "rank-collapse"], fails=True, steps=200)
def clamped_ids(bad):
    x, _, y = topics(800, 20, 62)
    tx, _, ty = topics(400, 20, 63)
    fix = lambda ids: (ids + 1000).clamp(max=60) if bad else ids
    model = nn.Sequential(nn.EmbeddingBag(61, 16), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    return Program(model, nn.CrossEntropyLoss(), loader(fix(x), y), torch.optim.Adam(model.parameters(), 5e-3),
                   accuracy(fix(tx), ty))


@fault("Padding is tagged as class 0 and counts in the loss; nine tenths of the places are padding.",
       rules=["padding-in-loss"], fails=False, steps=200)
def padded_tags_count(bad):
    x, y = tagged(640, 16, 64)
    tx, ty = tagged(300, 16, 65)
    x = F.pad(x[:, :4], (0, 60))
    y = F.pad(y[:, :4], (0, 60), value=0 if bad else -100)
    tx, ty = tx[:, :4], ty[:, :4]

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(20, 16)
            self.conv = nn.Conv1d(16, 32, 2)
            self.out = nn.Linear(32, 3)

        def forward(self, x):
            h = F.pad(self.emb(x).transpose(1, 2), (1, 0))
            return self.out(F.relu(self.conv(h)).transpose(1, 2))

    model = Net()
    return Program(model, flat_ce, loader(x, y), torch.optim.SGD(model.parameters(), 0.3, momentum=0.5),
                   accuracy(tx, ty))


@fault("An L2 penalty on the hidden states, left at 3000, outweighs the forecast.",
       rules=["term-dominates"], fails=True, steps=250)
def state_penalty(bad):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(1, 24, batch_first=True)
            self.out = nn.Linear(24, 1)

    w, t = waves(800, 16, 66), waves(256, 16, 67)

    def step(m, batch):
        (s,) = batch
        h, _ = m.gru(s[:, :-1, None])
        return F.mse_loss(m.out(h)[:, 5:, 0], s[:, 6:]) + (3000 if bad else 1e-3) * (h ** 2).mean()

    def score(m):
        return r2(m.out(m.gru(t[:, :-1, None])[0])[:, 5:, 0], t[:, 6:])

    model = Net()
    return Program(model, None, loader(w), torch.optim.Adam(model.parameters(), 5e-3), score, step=step)


@fault("BatchNorm keeps its statistics with momentum 0.001, in the belief that it is the share that is kept.",
       rules=["batchnorm-mode-gap"], layers=["bn"], fails=True, steps=150)
def slow_running_statistics(bad):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv1d(1, 16, 5, stride=2)
            self.bn = nn.BatchNorm1d(16, momentum=0.0005 if bad else 0.1)
            self.fc = nn.Linear(16, 3)

        def forward(self, x):
            return self.fc(F.relu(self.bn(self.conv(x[:, None]))).mean(2))

    def data(n, seed):
        g = gen(seed)
        y = torch.randint(3, (n,), generator=g)
        f = torch.tensor([0.4, 0.8, 1.4])[y][:, None]
        return 6 + 2 * torch.sin(f * torch.arange(32) + 6.28 * torch.rand(n, 1, generator=g)), y

    x, y = data(640, 68)
    tx, ty = data(300, 69)
    model = Net()
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(model.parameters(), 1e-2),
                   accuracy(tx, ty))
