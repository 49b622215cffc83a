import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.data import DataLoader, TensorDataset

from program import Program, fault
from texts_data import acc, chain, gen, r2, reviews, tagged, waves


class Lookup(nn.Module):
    """The last item is a key; answer with the value that followed it."""

    def __init__(self, factor):
        super().__init__()
        self.key, self.val = nn.Embedding(8, 32), nn.Embedding(8, 32)
        self.q, self.k, self.v = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 32)
        self.out = nn.Linear(32, 8)
        self.factor = factor

    def forward(self, keys, values, ask):
        q, k, v = self.q(self.key(ask)), self.k(self.key(keys)), self.v(self.val(values))
        w = (self.factor * torch.einsum("bd,btd->bt", q, k)).softmax(-1)
        return self.out(torch.einsum("bt,btd->bd", w, v))


@fault("attention scores are multiplied by the dimension instead of divided by its root", rules=["attention-saturation"],
       layers=["q", "k"], fails=False, steps=300)
def attention_multiplied(is_faulty):
    def make(seed, n):
        g = gen(seed)
        keys = torch.rand(n, 8, generator=g).argsort(1)[:, :6]
        values = torch.randint(8, (n, 6), generator=g)
        i = torch.randint(6, (n, 1), generator=g)
        return keys, values, keys.gather(1, i)[:, 0], values.gather(1, i)[:, 0]

    d = make(1, 2048)
    h = make(2, 512)
    batches = [({"keys": a, "values": b, "ask": c}, y) for a, b, c, y in zip(*(t.split(64) for t in d))]
    model = Lookup(32.0 if is_faulty else 32**-0.5)
    return Program(model, nn.CrossEntropyLoss(), batches, torch.optim.Adam(model.parameters(), 5e-3),
                   lambda m: acc(m(*h[:3]), h[3]))


class Packed(nn.Module):
    def __init__(self, unsort):
        super().__init__()
        self.embed = nn.Embedding(30, 16, padding_idx=0)
        self.gru = nn.GRU(16, 24, batch_first=True)
        self.fc = nn.Linear(24, 2)
        self.unsort = unsort

    def forward(self, ids, lengths):
        lengths, order = lengths.sort(descending=True)
        packed = pack_padded_sequence(self.embed(ids[order]), lengths, batch_first=True)
        logits = self.fc(self.gru(packed)[1][-1])
        return logits[order.argsort()] if self.unsort else logits


@fault("sorted by length for packing and never put back", rules=["mixed-examples", "output-loss-mismatch", "labels-unrelated"],
       fails=True, steps=200)
def sorted_for_packing(is_faulty):
    x, l, y = reviews(1, 1024, 14)
    hx, hl, hy = reviews(2, 512, 14)
    batches = [({"ids": a, "lengths": b}, c) for a, b, c in zip(x.split(32), l.split(32), y.split(32))]
    model = Packed(not is_faulty)
    return Program(model, nn.CrossEntropyLoss(), batches, torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: acc(m(hx, hl), hy))


class Sounds(nn.Module):
    def __init__(self, momentum):
        super().__init__()
        self.conv1 = nn.Conv1d(1, 16, 9, stride=2)
        self.bn1 = nn.BatchNorm1d(16, momentum=momentum)
        self.conv2 = nn.Conv1d(16, 16, 5, stride=2)
        self.bn2 = nn.BatchNorm1d(16, momentum=momentum)
        self.fc = nn.Linear(16, 4)

    def forward(self, x):
        x = self.bn1(self.conv1(x)).relu()
        x = self.bn2(self.conv2(x)).relu()
        return self.fc(x.mean(-1))


def tones(seed, n, t=96):
    g = gen(seed)
    y = torch.randint(4, (n,), generator=g)
    f = 0.15 + 0.2 * y + 0.05 * torch.rand(n, generator=g)
    ph = 6.28 * torch.rand(n, generator=g)
    x = torch.sin(f[:, None] * torch.arange(t) + ph[:, None]) + 0.3 * torch.randn(n, t, generator=g)
    return x[:, None], y


@fault("BatchNorm momentum 0.0005, from a framework where it is one minus that", rules=["batchnorm-mode-gap"],
       layers=["bn1", "bn2"], fails=False, steps=150)
def momentum_of_another_framework(is_faulty):
    (x, y), (hx, hy) = tones(1, 1024), tones(2, 512)
    x, hx = 4 * x + 1, 4 * hx + 1
    model = Sounds(0.0005 if is_faulty else 0.1)
    return Program(model, nn.CrossEntropyLoss(), DataLoader(TensorDataset(x, y), 32, shuffle=True, generator=gen(4)),
                   torch.optim.Adam(model.parameters(), 3e-3), lambda m: acc(m(hx), hy))


class BagMLP(nn.Module):
    def __init__(self, act):
        super().__init__()
        self.embed = nn.EmbeddingBag(12, 16, mode="sum")
        layers = [nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 2)]
        if act:
            layers = [layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2]]
        self.mlp = nn.Sequential(*layers)

    def forward(self, x):
        return self.mlp(self.embed(x))


@fault("a deep head on pooled embeddings without activations; the label is an exclusive or", rules=["no-nonlinearity"],
       layers=["mlp", "embed"], fails=True, steps=300)
def linear_head_of_three(is_faulty):
    def make(seed, n):
        g = gen(seed)
        x = torch.randint(2, 12, (n, 8), generator=g)
        a, b = torch.randint(2, (n,), generator=g), torch.randint(2, (n,), generator=g)
        x[:, 2] = torch.where(a == 1, 0, x[:, 2])
        x[:, 5] = torch.where(b == 1, 1, x[:, 5])
        return x, a ^ b

    (x, y), (hx, hy) = make(1, 2048), make(2, 512)
    model = BagMLP(not is_faulty)
    return Program(model, nn.CrossEntropyLoss(), DataLoader(TensorDataset(x, y), 64, shuffle=True, generator=gen(4)),
                   torch.optim.Adam(model.parameters(), 5e-3), lambda m: acc(m(hx), hy))


class ClsReader(nn.Module):
    def __init__(self, first):
        super().__init__()
        self.embed = nn.Embedding(32, 24)
        self.lstm = nn.LSTM(24, 32, batch_first=True)
        self.classify = nn.Linear(32, 2)
        self.first = first

    def forward(self, ids):
        hidden, _ = self.lstm(self.embed(ids))
        return self.classify(hidden[:, 0] if self.first else hidden[:, -1])


@fault("out[:, 0] ('the CLS token') of a forward LSTM, which has seen nothing but [CLS] there",
       rules=["rank-collapse", "loss-not-decreasing", "no-gradient", "labels-unrelated", "constant-feature"], fails=True, steps=200)
def cls_of_an_lstm(is_faulty):
    x, _, y = reviews(1, 1024, 10, least=10)
    hx, _, hy = reviews(2, 512, 10, least=10)
    x, hx = F.pad(x, (1, 0), value=31), F.pad(hx, (1, 0), value=31)
    model = ClsReader(is_faulty)
    return Program(model, nn.CrossEntropyLoss(), DataLoader(TensorDataset(x, y), 32, shuffle=True, generator=gen(4)),
                   torch.optim.AdamW(model.parameters(), 3e-3), lambda m: acc(m(hx), hy))


class RegularisedLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(12, 24)
        self.gru = nn.GRU(24, 32, batch_first=True)
        self.out = nn.Linear(32, 12)

    def forward(self, x):
        h, _ = self.gru(self.embed(x))
        return self.out(h), h


@fault("temporal activation regularisation, summed where the paper takes a mean", rules=["term-dominates", "summed-loss"], fails=True, steps=200)
def activation_penalty_summed(is_faulty):
    data, held = chain(1, 1024, 13), chain(2, 256, 13)
    model = RegularisedLM()

    def step(m, batch):
        (ids,) = batch
        logits, h = m(ids[:, :-1])
        ce = F.cross_entropy(logits.reshape(-1, 12), ids[:, 1:].reshape(-1))
        tar = (h[:, 1:] - h[:, :-1]).pow(2) + h[:, 1:].pow(2)
        return ce + 0.2 * (tar.sum() if is_faulty else tar.mean())

    return Program(model, None, DataLoader(TensorDataset(data), 32, shuffle=True, generator=gen(3)),
                   torch.optim.Adam(model.parameters(), 5e-3), lambda m: acc(m(held[:, :-1])[0], held[:, 1:]), step=step)


class MaskedPool(nn.Module):
    def __init__(self, fill):
        super().__init__()
        self.embed = nn.Embedding(30, 24, padding_idx=0)
        self.score = nn.Linear(24, 1)
        self.fc = nn.Linear(24, 2)
        self.fill = fill

    def forward(self, ids):
        h = self.embed(ids)
        s = self.score(torch.tanh(h))[..., 0].masked_fill(ids == 0, self.fill)
        return self.fc((s.softmax(-1)[..., None] * h).sum(1))


@fault("-inf on every word of a text that is empty after cleaning", rules=["non-finite"], fails=True, steps=200)
def empty_texts(is_faulty):
    x, _, y = reviews(1, 1024, 10)
    hx, _, hy = reviews(2, 512, 10)
    x[::40] = 0
    model = MaskedPool(float("-inf") if is_faulty else -1e4)
    return Program(model, nn.CrossEntropyLoss(), list(zip(x.split(32), y.split(32))),
                   torch.optim.Adam(model.parameters(), 1e-2), lambda m: acc(m(hx), hy))


WORDS = [w + s for w in ("good", "bad") for s in "abcdefgh"]


def sentences(seed, n):
    g = gen(seed)
    y = torch.randint(2, (n,), generator=g)
    pick = torch.rand(n, 9, generator=g) < torch.where(y == 1, 0.75, 0.25)[:, None]
    which = torch.randint(8, (n, 9), generator=g)
    texts = [" ".join(WORDS[(0 if p else 8) + w].capitalize() for p, w in zip(ps, ws))
             for ps, ws in zip(pick.tolist(), which.tolist())]
    return texts, (pick.sum(1) > 4).long()


@fault("the vocabulary is of lower case, the texts are not: every word becomes <unk>",
       rules=["constant-feature", "labels-unrelated", "rank-collapse", "loss-not-decreasing"], fails=True, steps=200)
def everything_unknown(is_faulty):
    vocab = {"<pad>": 0, "<unk>": 1, **{w: i + 2 for i, w in enumerate(WORDS)}}

    def encode(texts, lower):
        return torch.tensor([[vocab.get(w, 1) for w in (t.lower() if lower else t).split()] for t in texts])

    (tx, y), (th, hy) = sentences(1, 512), sentences(2, 256)
    x, hx = encode(tx, not is_faulty), encode(th, not is_faulty)
    model = nn.Sequential(nn.EmbeddingBag(len(vocab), 16), nn.Linear(16, 2))
    return Program(model, nn.CrossEntropyLoss(), DataLoader(TensorDataset(x, y), 32, shuffle=True, generator=gen(4)),
                   torch.optim.Adam(model.parameters(), 1e-2), lambda m: acc(m(hx), hy))
