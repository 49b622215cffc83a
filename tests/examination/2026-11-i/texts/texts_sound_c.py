"""Unusual, but right."""
import math

import torch
import torch.nn.functional as F
from torch import nn
from texts_data import G, accuracy, first_matters, loader, markov, r2, reviews, tagged, tones, waves

from program import Program, sound


def token_ce(logits, y):
    return F.cross_entropy(logits.flatten(0, 1), y.flatten())


def next_accuracy(vocab, upto=9):
    held = markov(300, 17, vocab, 4321)
    return lambda m: (m(held[:, :upto])[:, -1].argmax(-1) == held[:, upto]).float().mean().item()


@sound("raw prices go in and come out: the model scales them, and so does the loss", steps=250, least=0.7)
def prices_scaled_inside():
    class Prices(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.tensor(5000.0))
            self.register_buffer("std", torch.tensor(600.0))
            self.gru = nn.GRU(1, 24, batch_first=True)
            self.head = nn.Linear(24, 1)

        def forward(self, x):
            z = (x - self.mean) / self.std
            return self.head(self.gru(z)[0][:, -1]) * self.std + self.mean

    def data(n, seed):
        x, y = waves(n, 20, seed)
        return 5000 + 800 * x, 5000 + 800 * y

    model = Prices()
    return Program(model, lambda o, t: F.mse_loss(o / 600, t / 600), loader(*data(1000, 219)), torch.optim.Adam(model.parameters(), 5e-3), r2(*data(300, 220)))


@sound("sentences padded on the left, so that the last state is of a real word", steps=250, least=0.8)
def padded_on_the_left():
    def data(n, seed):
        g = G(seed)
        x = torch.randint(1, 17, (n, 16), generator=g)
        x[torch.arange(16)[None] < torch.randint(0, 12, (n, 1), generator=g)] = 0
        return x, x[:, -2] % 4

    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(17, 16, padding_idx=0)
            self.lstm = nn.LSTM(16, 24, batch_first=True)
            self.fc = nn.Linear(24, 4)

        def forward(self, x):
            return self.fc(self.lstm(self.embed(x))[0][:, -1])

    model = Last()
    return Program(model, nn.CrossEntropyLoss(), loader(*data(1000, 221)), torch.optim.Adam(model.parameters(), 1e-2), accuracy(*data(400, 222)))


@sound("a head of zeros and residual branches that begin switched off", steps=250, least=0.75)
def rezero_transformer():
    class Block(nn.Module):
        def __init__(self, width=32):
            super().__init__()
            self.attn = nn.MultiheadAttention(width, 4, batch_first=True)
            self.ff = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))
            self.gate = nn.Parameter(torch.zeros(2))

        def forward(self, h):
            h = h + self.gate[0] * self.attn(h, h, h, need_weights=False)[0]
            return h + self.gate[1] * self.ff(h)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(30, 32)
            self.blocks = nn.Sequential(Block(), Block())
            self.head = nn.Linear(32, 2)
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

        def forward(self, x):
            return self.head(self.blocks(self.embed(x)).mean(1))

    model = Net()
    return Program(model, nn.CrossEntropyLoss(), loader(*reviews(1200, 12, 30, 223)), torch.optim.Adam(model.parameters(), 3e-3),
                   accuracy(*reviews(400, 12, 30, 224)))


@sound("plain gradient descent with a rate of 2, on a bag of words", steps=300, least=0.75)
def large_rate_for_bag():
    model = nn.Sequential(nn.EmbeddingBag(30, 16, mode="mean"), nn.Linear(16, 2))
    return Program(model, nn.CrossEntropyLoss(), loader(*reviews(1200, 14, 30, 225)), torch.optim.SGD(model.parameters(), lr=2.0),
                   accuracy(*reviews(400, 14, 30, 226)))


@sound("a causal transformer with a warm-up, in the middle of its run", trained=120, steps=250, least=0.75)
def causal_half_trained():
    class Causal(nn.Module):
        def __init__(self, vocab=16, width=32):
            super().__init__()
            self.embed = nn.Embedding(vocab, width)
            self.pos = nn.Embedding(32, width)
            self.qkv = nn.Linear(width, 3 * width)
            self.ff = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))
            self.norm = nn.LayerNorm(width)
            self.out = nn.Linear(width, vocab, bias=False)

        def forward(self, x):
            h = self.embed(x) + self.pos(torch.arange(x.shape[1]))
            q, k, v = self.qkv(self.norm(h)).chunk(3, -1)
            h = h + F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.out(h + self.ff(h))

    s = markov(1000, 17, 16, 227)
    model = Causal()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: min(1, (t + 1) / 30) * 0.5 * (1 + math.cos(math.pi * min(t, 300) / 300)))
    return Program(model, token_ce, loader(s[:, :-1], s[:, 1:]), optimizer, next_accuracy(16), scheduler=schedule)


@sound("consecutive pieces of long texts, in order: the state is passed on, without its graph", steps=300, least=0.75)
def state_passed_on():
    long = markov(32, 20 * 16 + 1, 16, 229)
    pieces = [(i == 0, long[:, 16 * i : 16 * i + 16], long[:, 16 * i + 1 : 16 * i + 17]) for i in range(20)]

    class Stateful(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(16, 24)
            self.gru = nn.GRU(24, 32, batch_first=True)
            self.out = nn.Linear(32, 16)

        def forward(self, x, state=None):
            h, state = self.gru(self.embed(x), state)
            return self.out(h), state

    model = Stateful()
    memory = {}

    def step(m, batch):
        begins, x, y = batch
        logits, state = m(x, None if begins else memory.get("state"))
        memory["state"] = state.detach()
        return token_ce(logits, y)

    score = next_accuracy(16)
    return Program(model, None, pieces, torch.optim.Adam(model.parameters(), 5e-3), lambda m: score(lambda x: m(x)[0]), step=step)


@sound("pairs of sentence and translation are told from the other pairs of the batch", steps=300, least=0.6)
def contrastive_pairs():
    key = torch.randperm(20, generator=G(231))

    class Tower(nn.Module):
        def __init__(self):
            super().__init__()
            self.left = nn.EmbeddingBag(20, 24, mode="mean")
            self.right = nn.EmbeddingBag(20, 24, mode="mean")

        def forward(self, a, b):
            return F.normalize(self.left(a), dim=-1), F.normalize(self.right(b), dim=-1)

    def data(n, seed):
        a = torch.randint(20, (n, 6), generator=G(seed))
        return a, key[a].flip(1)

    def logits(m, a, b):
        u, v = m(a, b)
        return u @ v.t() / 0.1

    ha, hb = data(32, 233)
    model = Tower()

    def step(m, batch):
        s = logits(m, *batch)
        labels = torch.arange(len(s))
        return (F.cross_entropy(s, labels) + F.cross_entropy(s.t(), labels)) / 2

    return Program(model, None, loader(*data(960, 232)), torch.optim.Adam(model.parameters(), 1e-2),
                   lambda m: (logits(m, ha, hb).argmax(1) == torch.arange(32)).float().mean().item(), step=step)
