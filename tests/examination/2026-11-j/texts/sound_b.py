"""Unusual, and right."""
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from program import Program, sound
from texts_data import acc, chain, chain2, gen, r2, reviews, tagged, waves


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(9, 32), nn.Embedding(10, 32)
        self.conv = nn.Conv1d(32, 48, 3, padding=1)
        self.out = nn.Linear(48, 8)

    def forward(self, x):
        h = self.tok(x) + self.pos(torch.arange(x.shape[1]))
        return self.out(self.conv(h.transpose(1, 2)).transpose(1, 2).relu())


@sound("masked-word model: sees both sides, and the targets at unmasked places do not count", steps=250, least=0.7)
def masked_words():
    def make(seed, n):
        x = chain(seed, n, 10, v=8, noise=0.05)
        hide = torch.rand(n, 10, generator=gen(seed + 50)) < 0.2
        return x.masked_fill(hide, 8), x.masked_fill(~hide, -100)

    (x, y), (hx, hy) = make(11, 2048), make(12, 512)
    model = Masked()
    return Program(model, lambda o, t: F.cross_entropy(o.transpose(1, 2), t), DataLoader(TensorDataset(x, y), 64, shuffle=True, generator=gen(1)),
                   torch.optim.Adam(model.parameters(), 5e-3), lambda m: acc(m(hx), hy))


class BiTagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 16)
        self.lstm = nn.LSTM(16, 24, bidirectional=True)
        self.out = nn.Linear(48, 10)

    def forward(self, x):  # (time, batch)
        return self.out(self.lstm(self.embed(x))[0])


@sound("restoring misspelt words, time first: most targets equal the input, and the network reads in both directions", steps=250, least=0.75)
def restore_spelling():
    def make(seed, n):
        clean = chain(seed, n, 9, v=10, noise=0.0)
        g = gen(seed + 9)
        bad = torch.rand(n, 9, generator=g) < 0.3
        return torch.where(bad, torch.randint(10, (n, 9), generator=g), clean), clean

    (x, y), (hx, hy) = make(11, 1024), make(12, 256)
    batches = [(a.t(), b.t()) for a, b in zip(x.split(32), y.split(32))]
    model = BiTagger()
    return Program(model, lambda o, t: F.cross_entropy(o.flatten(0, 1), t.flatten()), batches,
                   torch.optim.Adam(model.parameters(), 5e-3), lambda m: acc(m(hx.t()), hy.t()))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(12, 32)
        nn.init.normal_(self.embed.weight, std=0.2)
        self.gru = nn.GRU(32, 32, batch_first=True)
        self.head = nn.Linear(32, 12, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.gru(self.embed(x))[0])


@sound("a language model whose output weight is its embedding", trained=80, steps=300, least=0.75)
def tied_language_model():
    data, held = chain(11, 1024, 13), chain(12, 256, 13)
    model = Tied()
    return Program(model, lambda o, y: F.cross_entropy(o.reshape(-1, 12), y.reshape(-1)),
                   DataLoader(TensorDataset(data[:, :-1], data[:, 1:]), 32, shuffle=True, generator=gen(1)),
                   torch.optim.Adam(model.parameters(), 1e-2), lambda m: acc(m(held[:, :-1]), held[:, 1:]))


class Recycled(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(12, 32)
        self.pos = nn.Parameter(torch.randn(10, 32))
        self.block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.gate = nn.Parameter(torch.zeros(2))
        self.out = nn.Linear(32, 4)

    def forward(self, x):
        h = self.embed(x) + self.pos
        for g in self.gate:  # begins as the identity
            h = h + g * self.block(h)
        return self.out(h)


@sound("one block applied twice, behind gates that begin at zero", steps=400, least=0.75)
def gated_recycled_block():
    x, y, _ = tagged(11, 1024, 10, least=10)
    hx, hy, _ = tagged(12, 256, 10, least=10)
    model = Recycled()
    return Program(model, lambda o, t: F.cross_entropy(o.transpose(1, 2), t),
                   DataLoader(TensorDataset(x, y), 32, shuffle=True, generator=gen(1)),
                   torch.optim.Adam(model.parameters(), 4e-3), lambda m: acc(m(hx), hy))


class Carried(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(12, 24)
        self.cell = nn.GRU(24, 32, batch_first=True)
        self.out = nn.Linear(32, 12)

    def forward(self, x, h=None):
        o, h = self.cell(self.embed(x), h)
        return self.out(o), h


@sound("truncated backpropagation: the state is detached and passed on to the next piece, in order", steps=250, least=0.75)
def state_passed_on():
    stream, held = chain(11, 16, 161), chain(12, 128, 20)
    pieces = [stream[:, i : i + 9] for i in range(0, 152, 8)]
    model = Carried()
    kept = {"h": None}

    def step(m, piece):
        if piece is pieces[0]:
            kept["h"] = None
        logits, h = m(piece[:, :-1], kept["h"])
        kept["h"] = h.detach()
        return F.cross_entropy(logits.transpose(1, 2), piece[:, 1:])

    return Program(model, None, pieces, torch.optim.Adam(model.parameters(), 5e-3),
                   lambda m: acc(m(held[:, :-1])[0], held[:, 1:]), step=step)


class LeftPadded(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 24, padding_idx=0)
        self.gru = nn.GRU(24, 32, batch_first=True)
        self.fc = nn.Linear(32, 2)

    def forward(self, x):
        return self.fc(self.gru(self.embed(x))[0][:, -1])


@sound("padding stands on the left, so that the last column is real", steps=250, least=0.75)
def padded_on_the_left():
    def make(seed, n):
        x, l, y = reviews(seed, n, 12)
        idx = (torch.arange(12)[None] - (12 - l[:, None])) % 12
        return x.gather(1, idx), y

    (x, y), (hx, hy) = make(11, 1024), make(12, 512)
    model = LeftPadded()
    return Program(model, nn.CrossEntropyLoss(), DataLoader(TensorDataset(x, y), 32, shuffle=True, generator=gen(1)),
                   torch.optim.Adam(model.parameters(), 3e-3), lambda m: acc(m(hx), hy))


class Pointer(nn.Module):
    def __init__(self):
        super().__init__()
        self.key, self.val = nn.Embedding(8, 32), nn.Embedding(8, 32)
        self.q, self.k = nn.Linear(32, 32), nn.Linear(32, 32)
        self.out = nn.Linear(32, 8)

    def forward(self, keys, values, ask):
        w = (torch.einsum("bd,btd->bt", self.q(self.key(ask)), self.k(self.key(keys))) / 32**0.5).softmax(-1)
        return self.out(torch.einsum("bt,btd->bd", w, self.val(values)))


@sound("a trained look-up: its attention looks at one position, and should", trained=200, steps=300, least=0.8)
def sharp_lookup():
    def make(seed, n):
        g = gen(seed)
        keys = torch.rand(n, 8, generator=g).argsort(1)[:, :6]
        values = torch.randint(8, (n, 6), generator=g)
        i = torch.randint(6, (n, 1), generator=g)
        return keys, values, keys.gather(1, i)[:, 0], values.gather(1, i)[:, 0]

    d, h = make(11, 2048), make(12, 512)
    batches = [({"keys": a, "values": b, "ask": c}, y) for a, b, c, y in zip(*(t.split(64) for t in d))]
    model = Pointer()
    return Program(model, nn.CrossEntropyLoss(), batches, torch.optim.Adam(model.parameters(), 5e-3),
                   lambda m: acc(m(*h[:3]), h[3]))
