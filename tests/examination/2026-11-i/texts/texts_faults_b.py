"""Attention, masks, pooled classifiers."""
import math

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from texts_data import G, accuracy, loader, reviews

from program import Program, fault


class QueryPool(nn.Module):
    def __init__(self, vocab, width, invert):
        super().__init__()
        self.invert = invert
        self.embed = nn.Embedding(vocab, width)
        self.query = nn.Parameter(torch.randn(1, 1, width) * 0.1)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.head = nn.Linear(width, 2)

    def forward(self, ids):
        h = self.embed(ids)
        mask = ids != 0 if self.invert else ids == 0
        pooled, _ = self.attention(self.query.expand(len(ids), -1, -1), h, h, key_padding_mask=mask)
        return self.head(pooled[:, 0])


@fault("key_padding_mask is True where tokens are real", rules=["wrong-mask", "rank-collapse"], layers=["attention"], fails=True, steps=200)
def pool_inverted_mask(is_faulty):
    x, y = reviews(1200, 18, 30, 21, shortest=5, longest=16)
    model = QueryPool(30, 24, is_faulty)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(model.parameters(), 5e-3),
                   accuracy(*reviews(400, 18, 30, 22, shortest=5, longest=16)))


class LastState(nn.Module):
    def __init__(self, vocab, last_real):
        super().__init__()
        self.last_real = last_real
        self.embedding = nn.Embedding(vocab, 16)
        self.gru = nn.GRU(16, 24, batch_first=True)
        self.linear = nn.Linear(24, 4)

    def forward(self, tokens):
        out, _ = self.gru(self.embedding(tokens))
        if self.last_real:
            lengths = (tokens != 0).sum(1)
            return self.linear(out[torch.arange(len(tokens)), lengths - 1])
        return self.linear(out[:, -1])


@fault("the last state of a GRU is taken from sentences padded on the right", rules=["wrong-mask"], fails=False, steps=120)
def gru_last_is_padding(is_faulty):
    def data(n, seed):
        g = G(seed)
        x = torch.randint(1, 17, (n, 60), generator=g)
        lengths = torch.randint(3, 9, (n,), generator=g)
        y = x[torch.arange(n), lengths - 1] % 4
        x[torch.arange(60)[None] >= lengths[:, None]] = 0
        return x, y

    model = LastState(17, not is_faulty)
    return Program(model, nn.CrossEntropyLoss(), loader(*data(900, 23)), torch.optim.Adam(model.parameters(), 5e-3), accuracy(*data(300, 24)))


class TimeFirst(nn.Module):
    def __init__(self, is_faulty):
        super().__init__()
        self.is_faulty = is_faulty
        self.tok = nn.Embedding(30, 24)
        self.layer = nn.TransformerEncoderLayer(24, 2, 48, dropout=0.0)
        self.cls = nn.Linear(24, 2)

    def forward(self, x):
        b, t = x.shape
        h = self.tok(x)
        h = h.reshape(t, b, -1) if self.is_faulty else h.transpose(0, 1)
        return self.cls(self.layer(h).mean(0))


@fault("(batch, time) is reshaped to (time, batch) instead of transposed", rules=["mixed-examples"], fails=True, steps=200)
def encoder_reshaped(is_faulty):
    x, y = reviews(1200, 12, 30, 25)
    hx, hy = reviews(320, 12, 30, 26)
    model = TimeFirst(is_faulty)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(model.parameters(), 3e-3), accuracy(hx, hy))


class FramePool(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.scorer = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1))
        self.value = nn.Linear(5, 16)
        self.weights = nn.Softmax(dim=dim)
        self.classify = nn.Linear(16, 4)

    def forward(self, frames):
        w = self.weights(self.scorer(frames))
        return self.classify((w * self.value(frames)).sum(1))


@fault("attention weights (batch, time, 1) are normalised over the last dimension", rules=["wrong-softmax-dimension", "no-gradient"],
       layers=["weights", "scorer"], fails=True, steps=250)
def frames_softmax_of_one(is_faulty):
    def data(n, seed):
        g = G(seed)
        kind = torch.randint(4, (n, 16), generator=g)
        at = torch.randint(16, (n,), generator=g)
        flag = torch.zeros(n, 16, 1)
        flag[torch.arange(n), at] = 1
        return torch.cat([flag, nn.functional.one_hot(kind, 4).float()], 2), kind[torch.arange(n), at]

    model = FramePool(-1 if is_faulty else 1)
    return Program(model, nn.CrossEntropyLoss(), loader(*data(1000, 27)), torch.optim.Adam(model.parameters(), 1e-2), accuracy(*data(400, 28)))


class Orderly(nn.Module):
    def __init__(self, positions):
        super().__init__()
        self.embed = nn.Embedding(10, 32)
        self.pos = nn.Parameter(torch.randn(8, 32) * 0.5) if positions else None
        self.block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.out = nn.Linear(32, 2)

    def forward(self, x):
        h = self.embed(x)
        if self.pos is not None:
            h = h + self.pos
        return self.out(self.block(h).mean(1))


@fault("a transformer without positions is to tell who is named first", rules=["order-lost"], fails=True, steps=300)
def who_is_first(is_faulty):
    def data(n, seed):
        g = G(seed)
        x = torch.randint(2, 10, (n, 8), generator=g)
        at = torch.rand(n, 8, generator=g).argsort(1)[:, :2]
        x[torch.arange(n), at[:, 0]] = 0
        x[torch.arange(n), at[:, 1]] = 1
        return x, (at[:, 0] < at[:, 1]).long()

    model = Orderly(not is_faulty)
    return Program(model, nn.CrossEntropyLoss(), loader(*data(1500, 29)), torch.optim.Adam(model.parameters(), 2e-3), accuracy(*data(400, 30)))


class OwnAttention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def forward(self, h, factor):
        scores = self.q(h) @ self.k(h).transpose(1, 2) * factor
        return scores.softmax(-1) @ self.v(h)


class SelfAttentive(nn.Module):
    def __init__(self, is_faulty):
        super().__init__()
        self.factor = math.sqrt(64) if is_faulty else 1 / math.sqrt(64)
        self.embed = nn.Embedding(30, 64)
        self.cls = nn.Parameter(torch.randn(64))
        self.attend = OwnAttention(64)
        self.head = nn.Linear(64, 2)

    def forward(self, ids):
        h = torch.cat([self.cls.expand(len(ids), 1, -1), self.embed(ids)], 1)
        return self.head(self.attend(h, self.factor)[:, 0])


@fault("attention scores are multiplied by the root of the width", rules=["attention-saturation"], layers=["attend"], fails=True, steps=200)
def attention_multiplied(is_faulty):
    x, y = reviews(2000, 24, 30, 31)
    model = SelfAttentive(is_faulty)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(model.parameters(), 1e-3), accuracy(*reviews(400, 24, 30, 32)))


def collate_sorted(labels_too):
    def collate(items):
        words = [w for w, _ in items]
        labels = torch.tensor([label for _, label in items])
        order = sorted(range(len(words)), key=lambda i: -len(words[i]))
        batch = pad_sequence([words[i] for i in order], batch_first=True)
        return batch, labels[order] if labels_too else labels

    return collate


class BagClassifier(nn.Module):
    def __init__(self, vocab=30, width=24):
        super().__init__()
        self.embed = nn.Embedding(vocab, width, padding_idx=0)
        self.hidden = nn.Linear(width, 32)
        self.out = nn.Linear(32, 2)

    def forward(self, ids):
        n = (ids != 0).sum(1, keepdim=True).clamp(min=1)
        return self.out(torch.relu(self.hidden(self.embed(ids).sum(1) / n)))


@fault("collate sorts the sentences by length, but not their labels", rules=["labels-unrelated"], fails=True, steps=200)
def collate_sorts_sentences(is_faulty):
    x, y = reviews(900, 16, 30, 33, shortest=4)
    items = [(row[row != 0], int(label)) for row, label in zip(x, y)]
    model = BagClassifier()
    return Program(model, nn.CrossEntropyLoss(), DataLoader(items, batch_size=32, shuffle=True, collate_fn=collate_sorted(not is_faulty)),
                   torch.optim.Adam(model.parameters(), 1e-2), accuracy(*reviews(400, 16, 30, 34, shortest=4)))
