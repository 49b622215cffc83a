"""Sound programs on texts and tokens."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from atg_data import accuracy, chain, first_of_two, loader, lookup, padded, tags, topics
from program import Program, sound
from torch import nn


class BiTagger(nn.Module):
    """An ordinary tagger."""

    def __init__(self, vocab=60, kinds=5):
        super().__init__()
        self.embed = nn.Embedding(vocab, 24, padding_idx=0)
        self.lstm = nn.LSTM(24, 24, batch_first=True, bidirectional=True)
        self.out = nn.Linear(48, kinds)

    def forward(self, x):
        return self.out(self.lstm(self.embed(x))[0])


@sound("an ordinary tagger with padding that is ignored", steps=300, least=0.85)
def atg_tagger_ordinary():
    x, y = tags(1000, 14)
    x = padded(x, 6, 14)
    y = torch.where(x.gt(0), y, -100)
    model = BiTagger()
    return Program(model, lambda o, t: F.cross_entropy(o.transpose(1, 2), t, ignore_index=-100),
                   loader(x[:800], y[:800]), torch.optim.Adam(model.parameters(), 5e-3), accuracy(x[800:], y[800:]))


@sound("an ordinary bag of words", trained=80, steps=300, least=0.9)
def atg_bag_ordinary():
    x, y = topics(1500, 20)
    model = nn.Sequential(nn.EmbeddingBag(120, 32), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
    return Program(model, nn.CrossEntropyLoss(), loader(x[:1200], y[:1200]),
                   torch.optim.Adam(model.parameters(), 2e-3), accuracy(x[1200:], y[1200:]))


class Gpt(nn.Module):
    """A small causal transformer whose output is its table of words."""

    def __init__(self, vocab, width=32, length=24, layers=2):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        nn.init.normal_(self.embed.weight, std=0.02)
        self.place = nn.Embedding(length, width)
        nn.init.normal_(self.place.weight, std=0.02)
        block = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.out = nn.Linear(width, vocab, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, x):
        n = x.shape[1]
        mask = torch.ones(n, n, dtype=torch.bool).triu(1)
        return self.out(self.blocks(self.embed(x) + self.place.weight[:n], mask=mask))


def gpt():
    """A language model and its data."""
    x = chain(700, 20, 40)
    model = Gpt(40)
    return Program(model, lambda o, t: F.cross_entropy(o.flatten(0, 1), t.flatten()),
                   loader(x[:600, :-1], x[:600, 1:]), torch.optim.AdamW(model.parameters(), 3e-3),
                   accuracy(x[600:, :-1], x[600:, 1:]))


@sound("input and output table are one, by design; small initial words", steps=300, least=0.75)
def atg_gpt_tied():
    return gpt()


@sound("the same, half trained", trained=150, steps=300, least=0.75)
def atg_gpt_tied_half_trained():
    return gpt()


@sound("a masked language model: most targets are ignored, and attention sees both sides", steps=500, least=0.65)
def atg_masked_words():
    x = chain(900, 16, 24, sure=1.0, start=1)
    hidden = torch.rand(x.shape) < 0.2
    hidden[:, 5] = True
    y = torch.where(hidden, x, -100)
    x = torch.where(hidden, 0, x)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(25, 32)
            self.place = nn.Parameter(torch.randn(16, 32) * 0.3)
            block = nn.TransformerEncoderLayer(32, 2, 64, 0.0, batch_first=True, norm_first=True)
            self.blocks = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
            self.out = nn.Linear(32, 25)

        def forward(self, x):
            return self.out(self.blocks(self.embed(x) + self.place))

    model = Model()
    return Program(model, lambda o, t: F.cross_entropy(o.transpose(1, 2), t), loader(x[:800], y[:800]),
                   torch.optim.Adam(model.parameters(), 3e-3), accuracy(x[800:], y[800:]))


class Copier(nn.Module):
    """Compresses a sequence to a state and writes it down again."""

    def __init__(self, vocab=12, width=64, length=5):
        super().__init__()
        self.length = length
        self.embed = nn.Embedding(vocab, 24)
        self.reader = nn.GRU(24, width, batch_first=True)
        self.clock = nn.Parameter(0.5 * torch.randn(length, width))
        self.out = nn.Sequential(nn.Linear(2 * width, 96), nn.ReLU(), nn.Linear(96, vocab))

    def forward(self, x):
        state = self.reader(self.embed(x))[1][0]
        clock = self.clock.expand(len(x), -1, -1)
        return self.out(torch.cat([state[:, None].expand(-1, self.length, -1), clock], -1))


@sound("an autoencoder: targets equal the inputs", steps=600, least=0.75)
def atg_sequence_autoencoder():
    x = torch.randint(12, (2500, 5))
    model = Copier()
    return Program(model, lambda o, t: F.cross_entropy(o.flatten(0, 1), t.flatten()),
                   loader(x[:2200], x[:2200], size=64), torch.optim.Adam(model.parameters(), 5e-3),
                   accuracy(x[2200:], x[2200:]))


class Gate(nn.Module):
    """A residual block whose gate begins at zero."""

    def __init__(self, width):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.a = nn.Parameter(torch.zeros(()))
        self.b = nn.Parameter(torch.zeros(()))

    def forward(self, h):
        h = h + self.a * self.attention(h, h, h, need_weights=False)[0]
        return h + self.b * self.feed(h)


class Gated(nn.Module):
    """A transformer without norms, of which nothing but the residual path works at first."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 32)
        self.place = nn.Parameter(torch.randn(10, 32))
        self.blocks = nn.Sequential(Gate(32), Gate(32), Gate(32))
        self.head = nn.Linear(32, 2)

    def forward(self, x):
        return self.head(self.blocks(self.embed(x) + self.place).mean(1))


@sound("residual gates begin at zero, so the blocks have no gradient in the first step", steps=500, least=0.85)
def atg_order_gates_at_zero():
    x, y = first_of_two(2800, 10)
    model = Gated()
    return Program(model, F.cross_entropy, loader(x[:2500], y[:2500]), torch.optim.Adam(model.parameters(), 3e-3),
                   accuracy(x[2500:], y[2500:]))


class LowRank(nn.Module):
    """A frozen layer with an addition of low rank that begins at zero."""

    def __init__(self, layer, rank=4):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.layer(x) + self.up(self.down(x))


@sound("low-rank adapters begin at zero beside frozen weights", steps=300, least=0.8)
def atg_low_rank_adapters():
    x, y = topics(1500, 18, classes=6)
    base = nn.Sequential(nn.EmbeddingBag(120, 32), nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 6))
    early = torch.optim.Adam(base.parameters(), 1e-2)
    for rows in torch.randperm(1200).split(64) * 3:
        early.zero_grad()
        F.cross_entropy(base(x[rows]), y[rows]).backward()
        early.step()
    y = (y * 5 + 2) % 6
    base[0].requires_grad_(False)
    model = nn.Sequential(base[0], LowRank(base[1]), nn.ReLU(), LowRank(base[3]))
    for p in base.parameters():
        p.grad = None
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 5e-3)
    return Program(model, F.cross_entropy, loader(x[:1200], y[:1200]), optimizer, accuracy(x[1200:], y[1200:]))


@sound("the loss is a sum, at a rate that fits one", steps=300, least=0.85)
def atg_sum_with_small_rate():
    x, y = tags(1000, 14)
    model = BiTagger()
    return Program(model, lambda o, t: F.cross_entropy(o.flatten(0, 1), t.flatten(), reduction="sum"),
                   loader(x[:800], y[:800]), torch.optim.SGD(model.parameters(), 0.4 / (32 * 14), momentum=0.9),
                   accuracy(x[800:], y[800:]))


@sound("a warm-up from nearly nothing, and a decay", steps=400, least=0.85)
def atg_question_with_warm_up():
    x, y = lookup(3000, keys=30)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.keys, self.values = nn.Embedding(30, 32), nn.Embedding(10, 32)
            self.query, self.key = nn.Linear(32, 32), nn.Linear(32, 32)
            self.head = nn.Linear(32, 10)

        def forward(self, x):
            scores = self.query(self.keys(x[:, 12:])) @ self.key(self.keys(x[:, :6])).transpose(1, 2) / 32**0.5
            return self.head((scores.softmax(-1) @ self.values(x[:, 6:12]))[:, 0])

    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, 400, div_factor=1000.0)
    return Program(model, F.cross_entropy, loader(x[:2600], y[:2600]), optimizer, accuracy(x[2600:], y[2600:]),
                   scheduler=schedule)


class Diagonal(nn.Module):
    """A diagonal state-space layer, as a convolution."""

    def __init__(self, width=16, states=8):
        super().__init__()
        self.log_rate = nn.Parameter(torch.linspace(-5, -0.5, states).repeat(width, 1))
        self.mix = nn.Parameter(torch.randn(width, states) / states)
        self.skip = nn.Parameter(torch.ones(width))

    def forward(self, u):
        n = u.shape[1]
        time = torch.arange(n)
        kernel = (self.mix[..., None] * torch.exp(-self.log_rate.exp()[..., None] * time)).sum(1)
        lags = time[:, None] - time
        full = torch.where(lags >= 0, kernel[:, lags.clamp(min=0)], 0.0)
        return torch.einsum("dts,bsd->btd", full, u) + self.skip * u


@sound("a state-space layer with rates as small as exp(-5)", steps=500, least=0.85)
def atg_count_by_states():
    x = torch.randint(8, (2500, 24))
    y = ((x == 1).sum(1) > (x == 2).sum(1)).long() + ((x == 1).sum(1) >= (x == 2).sum(1)).long()
    model = nn.Sequential(nn.Embedding(8, 16), Diagonal(), nn.GELU(), Diagonal())
    head = nn.Linear(16, 3)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = model, head

        def forward(self, x):
            return self.head(self.body(x)[:, -1])

    whole = Model()
    return Program(whole, F.cross_entropy, loader(x[:2200], y[:2200]), torch.optim.Adam(whole.parameters(), 5e-3),
                   accuracy(x[2200:], y[2200:]))


class Reservoir(nn.Module):
    """Frozen random recurrence, and a readout that is trained."""

    def __init__(self, vocab, width=200):
        super().__init__()
        self.embed = nn.Embedding(vocab, 24).requires_grad_(False)
        self.rnn = nn.RNN(24, width, batch_first=True).requires_grad_(False)
        nn.init.orthogonal_(self.rnn.weight_hh_l0, gain=0.9)
        self.out = nn.Linear(width, vocab)

    def forward(self, x):
        return self.out(self.rnn(self.embed(x))[0])


@sound("a reservoir: only the readout is trained, by intention", steps=300, least=0.75)
def atg_reservoir():
    x = chain(500, 16, 30)
    model = Reservoir(30)
    return Program(model, lambda o, t: F.cross_entropy(o.flatten(0, 1), t.flatten()),
                   loader(x[:400, :-1], x[:400, 1:], size=16), torch.optim.Adam(model.out.parameters(), 3e-3),
                   accuracy(x[400:, :-1], x[400:, 1:]))


@sound("a fifth of the labels is wrong", steps=250, least=0.85)
def atg_crowd_labels():
    x, y = topics(2300, 18, classes=4)
    noisy = torch.where(torch.rand(2300) < 0.2, torch.randint(4, (2300,)), y)
    model = nn.Sequential(nn.EmbeddingBag(120, 24), nn.LayerNorm(24), nn.Linear(24, 4))
    return Program(model, nn.CrossEntropyLoss(label_smoothing=0.05), loader(x[:2000], noisy[:2000]),
                   torch.optim.AdamW(model.parameters(), 3e-3), accuracy(x[2000:], y[2000:]))


class Pointer(nn.Module):
    """Points at the place of the largest number word after a sign."""

    def __init__(self, vocab):
        super().__init__()
        self.embed = nn.Embedding(vocab, 32)
        self.rnn = nn.GRU(32, 32, batch_first=True, bidirectional=True)
        self.query = nn.Parameter(torch.randn(64) / 8)

    def forward(self, x):
        scores = self.rnn(self.embed(x))[0] @ self.query
        return scores.masked_fill(x.eq(0), -math.inf)


@sound("a pointer: logits over places, of which those of padding are minus infinity", steps=300, least=0.85)
def atg_pointer_minus_infinity():
    x = padded(torch.randint(2, 40, (2000, 16)), 8, 16)
    y = torch.randint(7, (2000,))
    x[torch.arange(2000), y] = 1
    model = Pointer(40)
    return Program(model, F.cross_entropy, loader(x[:1700], y[:1700] + 1), torch.optim.Adam(model.parameters(), 3e-3),
                   accuracy(x[1700:], y[1700:] + 1))


@sound("an ordinary convolutional classifier, trained to its end", trained=300, steps=350, least=0.85)
def atg_text_convolution_trained():
    x, y = topics(1500, 14, classes=4, share=0.4)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(120, 24)
            self.convs = nn.ModuleList(nn.Conv1d(24, 16, k, padding=k // 2) for k in (2, 3, 5))
            self.drop = nn.Dropout(0.3)
            self.fc = nn.Linear(48, 4)

        def forward(self, x):
            h = self.embed(x).transpose(1, 2)
            return self.fc(self.drop(torch.cat([F.relu(c(h)).amax(-1) for c in self.convs], 1)))

    model = Model()
    return Program(model, nn.CrossEntropyLoss(), loader(x[:1200], y[:1200]),
                   torch.optim.Adam(model.parameters(), 2e-3), accuracy(x[1200:], y[1200:]))
