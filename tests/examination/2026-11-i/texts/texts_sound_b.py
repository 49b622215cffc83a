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


@sound("a masked language model sees both sides, and its targets are not shifted", steps=300, least=0.7)
def masked_words():
    def data(n, seed):
        s = markov(n, 14, 12, seed, noise=0.02)
        hidden = torch.rand(s.shape, generator=G(seed + 1)) < 0.2
        hidden[:, 5] = True
        return s.masked_fill(hidden, 12), s.masked_fill(~hidden, -100)

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(13, 24)
            self.gru = nn.GRU(24, 24, batch_first=True, bidirectional=True)
            self.out = nn.Linear(48, 12)

        def forward(self, x):
            return self.out(self.gru(self.embed(x))[0])

    hx, hy = data(300, 203)
    model = Both()
    return Program(model, token_ce, loader(*data(1000, 201)), torch.optim.Adam(model.parameters(), 1e-2),
                   lambda m: (m(hx).argmax(-1) == hy)[hy >= 0].float().mean().item())


@sound("a cipher: the target of every place is a function of the token of that place", steps=200, least=0.9)
def cipher_per_token():
    key = torch.randperm(20, generator=G(204))
    x = torch.randint(20, (800, 10), generator=G(205))
    hx = torch.randint(20, (300, 10), generator=G(206))
    model = nn.Sequential(nn.Embedding(20, 16), nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True), nn.Linear(16, 20))
    return Program(model, token_ce, loader(x, key[x]), torch.optim.Adam(model.parameters(), 1e-2), accuracy(hx, key[hx]))


@sound("a transformer without positions, for a label that does not depend on the order", steps=250, least=0.75)
def set_transformer_of_words():
    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(30, 32)
            self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
            self.fc = nn.Linear(32, 2)

        def forward(self, x):
            return self.fc(self.layer(self.embed(x)).mean(1))

    model = Bag()
    return Program(model, nn.CrossEntropyLoss(), loader(*reviews(1200, 12, 30, 207)), torch.optim.Adam(model.parameters(), 2e-3),
                   accuracy(*reviews(400, 12, 30, 208)))


@sound("the loss is a sum over tokens, and the rate is made for it", steps=200, least=0.8)
def summed_with_its_rate():
    s = markov(600, 17, 12, 209)
    model = nn.Sequential(nn.Embedding(12, 24), nn.Linear(24, 32), nn.Tanh(), nn.Linear(32, 12))
    return Program(model, lambda o, t: F.cross_entropy(o.flatten(0, 1), t.flatten(), reduction="sum"), loader(s[:, :-1], s[:, 1:]),
                   torch.optim.SGD(model.parameters(), lr=6e-4, momentum=0.9), next_accuracy(12))


@sound("input and output embedding are one weight, of small scale", steps=300, least=0.8)
def tied_embeddings():
    class Tied(nn.Module):
        def __init__(self, vocab=16, width=32):
            super().__init__()
            self.embed = nn.Embedding(vocab, width)
            nn.init.normal_(self.embed.weight, std=0.1)
            self.lstm = nn.LSTM(width, width, batch_first=True)
            self.project = nn.Linear(width, width)
            self.decoder = nn.Linear(width, vocab)
            self.decoder.weight = self.embed.weight

        def forward(self, x):
            return self.decoder(self.project(self.lstm(self.embed(x))[0]))

    s = markov(800, 17, 16, 213)
    model = Tied()
    return Program(model, token_ce, loader(s[:, :-1], s[:, 1:]), torch.optim.Adam(model.parameters(), 1e-2), next_accuracy(16))


@sound("a recurrent net that runs time first, on transposed batches", trained=50, steps=250, least=0.8)
def time_first_inside():
    class TimeFirst(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(8, 16)
            self.gru = nn.GRU(16, 32)
            self.fc = nn.Linear(32, 4)

        def forward(self, x):
            out, _ = self.gru(self.embed(x.t()))
            return self.fc(out[-1])

    model = TimeFirst()
    return Program(model, nn.CrossEntropyLoss(), loader(*first_matters(1000, 8, 8, 215)), torch.optim.Adam(model.parameters(), 1e-2),
                   accuracy(*first_matters(400, 8, 8, 216)))


@sound("several attention weights per place, normalised over dimension 1, which is time", steps=250, least=0.8)
def pooling_heads():
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.scores = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 3))
            self.value = nn.Linear(5, 12)
            self.fc = nn.Linear(36, 4)

        def forward(self, x):
            w = torch.softmax(self.scores(x), dim=1)
            return self.fc(torch.einsum("bth,btd->bhd", w, self.value(x)).flatten(1))

    def data(n, seed):
        g = G(seed)
        kind = torch.randint(4, (n, 10), generator=g)
        at = torch.randint(10, (n,), generator=g)
        flag = F.one_hot(at, 10).float().unsqueeze(-1)
        return torch.cat([flag, F.one_hot(kind, 4).float()], 2), kind[torch.arange(n), at]

    model = Heads()
    return Program(model, nn.CrossEntropyLoss(), loader(*data(1000, 217)), torch.optim.Adam(model.parameters(), 1e-2), accuracy(*data(400, 218)))
