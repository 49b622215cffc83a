"""Unusual but right."""
import torch
import torch.nn.functional as F
from program import Program, sound
from seqdata import acc, chain, gen, loader, padded, topics
from torch import nn


@sound("input and output embeddings are tied", steps=250, least=0.8)
def tied_embeddings():
    class LM(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(20, 32)
            nn.init.normal_(self.embed.weight, std=0.2)
            self.rnn = nn.GRU(32, 32, batch_first=True)
            self.out = nn.Linear(32, 20)
            self.out.weight = self.embed.weight

        def forward(self, x):
            return self.out(self.rnn(self.embed(x))[0])

    a, b = chain(1500, 13, 20, 201), chain(200, 13, 20, 202)
    m = LM()
    return Program(m, lambda o, y: F.cross_entropy(o.transpose(1, 2), y), loader(a[:, :-1], a[:, 1:], batch_size=50),
                   torch.optim.Adam(m.parameters(), 1e-2), lambda m: acc(m(b[:, :-1]), b[:, 1:]))


@sound("a bag of words: order is not seen, and does not matter; plain SGD with a rate of 5", steps=300, least=0.85)
def bag_of_words():
    x, y = topics(3000, 15, 80, 4, 203)
    tx, ty = topics(400, 15, 80, 4, 204)
    net = nn.Sequential(nn.EmbeddingBag(80, 16, mode="mean"), nn.Linear(16, 4))
    return Program(net, nn.CrossEntropyLoss(), loader(x, y), torch.optim.SGD(net.parameters(), lr=5.0),
                   lambda m: acc(m(tx), ty))


@sound("a masked language model sees both sides and is asked for inputs, but for hidden ones", steps=300, least=0.7)
def masked_language_model():
    V, T, MASK = 12, 8, 12

    def make(n, seed):
        x = chain(n, T, V, seed, noise=0.0)
        hide = torch.rand(n, T, generator=gen(seed + 1)) < 0.2
        hide[:, 0] = False
        return torch.where(hide, MASK, x), torch.where(hide, x, -100)

    class Bert(nn.Module):
        def __init__(self):
            super().__init__()
            self.tok, self.pos = nn.Embedding(V + 1, 32), nn.Embedding(T, 32)
            self.rnn = nn.GRU(32, 32, batch_first=True, bidirectional=True)
            self.out = nn.Linear(64, V)

        def forward(self, x):
            return self.out(self.rnn(self.tok(x) + self.pos(torch.arange(x.shape[1])))[0])

    x, y = make(3000, 1)
    tx, ty = make(400, 5)
    m = Bert()
    return Program(m, lambda o, y: F.cross_entropy(o.flatten(0, 1), y.flatten()), loader(x, y),
                   torch.optim.Adam(m.parameters(), 1e-2), lambda m: acc(m(tx)[ty >= 0], ty[ty >= 0]))


@sound("transliteration: the target at a place is a function of the token there", steps=200, least=0.85)
def transliteration():
    table = torch.randperm(26, generator=gen(9)) % 13
    vowel = torch.arange(26) % 5 == 0

    def make(n, seed):
        x = torch.randint(26, (n, 10), generator=gen(seed))
        return x, torch.where(vowel[x.roll(1, 1)], (table[x] + 1) % 13, table[x])

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(26, 24)
            self.conv = nn.Conv1d(24, 64, 3, padding=1, padding_mode="circular")
            self.out = nn.Conv1d(64, 13, 1)

        def forward(self, x):
            return self.out(torch.relu(self.conv(self.embed(x).transpose(1, 2))))

    x, y = make(2000, 1)
    tx, ty = make(200, 2)
    m = Net()
    return Program(m, nn.CrossEntropyLoss(), loader(x, y, batch_size=40), torch.optim.Adam(m.parameters(), 1e-2),
                   lambda m: acc(m(tx).transpose(1, 2), ty))


@sound("time comes first in the network, as nn.LSTM has it by default", steps=200, least=0.85)
def time_first():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(60, 16)
            self.lstm = nn.LSTM(16, 24)
            self.fc = nn.Linear(24, 3)

        def forward(self, x):
            out, (h, c) = self.lstm(self.embed(x.t()))
            return self.fc(h.squeeze(0))

    x, y = topics(2000, 12, 60, 3, 205, 0.6)
    tx, ty = topics(300, 12, 60, 3, 206, 0.6)
    m = Net()
    return Program(m, nn.CrossEntropyLoss(), loader(x, y, batch_size=12), torch.optim.Adam(m.parameters(), 5e-3),
                   lambda m: acc(m(tx), ty))


@sound("padding is on the left, so the last column is real; no mask, the GRU passes over it", steps=250, least=0.85)
def padding_on_the_left():
    def make(n, seed):
        x, y = topics(n, 16, 60, 3, seed, 0.6)
        x, _ = padded(x, 6, seed + 1)
        return x.flip(1), y

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(60, 16, padding_idx=0)
            self.gru = nn.GRU(16, 24, batch_first=True)
            self.fc = nn.Linear(24, 3)

        def forward(self, x):
            return self.fc(self.gru(self.embed(x))[0][:, -1])

    x, y = make(2000, 209)
    tx, ty = make(300, 219)
    m = Net()
    return Program(m, nn.CrossEntropyLoss(), loader(x, y, batch_size=50), torch.optim.Adam(m.parameters(), 5e-3),
                   lambda m: acc(m(tx), ty))


@sound("a sum over tokens, divided by how many there are, in a step of its own with label smoothing", steps=200,
       least=0.8)
def sum_over_token_count():
    def make(n, seed):
        x, _ = padded(torch.randint(1, 30, (n, 12), generator=gen(seed)), 4, seed + 1)
        return x, torch.where(x > 0, 1 + (x + x.roll(1, 1)) % 3, 0)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(30, 24)
            self.mix = nn.Conv1d(24, 64, 3, padding=1, padding_mode="circular")
            self.out = nn.Linear(64, 4)

        def forward(self, x):
            return self.out(F.gelu(self.mix(self.embed(x).transpose(1, 2))).transpose(1, 2))

    def step(m, batch):
        x, y = batch
        total = F.cross_entropy(m(x).flatten(0, 1), y.flatten(), ignore_index=0, reduction="sum", label_smoothing=0.1)
        return total / (y != 0).sum()

    x, y = make(2000, 1)
    tx, ty = make(200, 5)
    m = Net()
    return Program(m, None, loader(x, y, batch_size=40), torch.optim.Adam(m.parameters(), 1e-2),
                   lambda m: acc(m(tx)[ty > 0], ty[ty > 0]), step=step)
