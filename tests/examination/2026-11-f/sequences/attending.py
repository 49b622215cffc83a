"""Attention and transformers that classify: order, scales, depth, optimizers."""

import math

import torch
from program import Program, fault, sound
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def which_first(n, seed, length=10):
    """Tokens 1 and 2 occur once each among others: does 1 come before 2?"""
    g = torch.Generator().manual_seed(seed)
    x = torch.randint(3, 12, (n, length), generator=g)
    places = torch.rand(n, length, generator=g).argsort(1)[:, :2]
    x.scatter_(1, places[:, :1], 1).scatter_(1, places[:, 1:], 2)
    return x, (places[:, 0] < places[:, 1]).long()


def looked_up(n, seed, length=8):
    """A key in the last place; the class is the value that stands next to the same key before."""
    g = torch.Generator().manual_seed(seed)
    keys = torch.rand(n, length, generator=g).argsort(1)
    values = torch.randint(0, 4, (n, length), generator=g)
    asked = torch.randint(0, length, (n,), generator=g)
    row = torch.arange(n)
    return torch.cat([keys * 4 + values, 32 + keys[row, asked][:, None]], 1), values[row, asked]


def loader(data, batch=32):
    return DataLoader(TensorDataset(*data), batch_size=batch, shuffle=True)


def right(data):
    x, y = data
    return lambda m: (m(x).argmax(-1) == y).float().mean().item()


def sinusoids(length, d):
    at = torch.arange(length)[:, None] * torch.exp(-math.log(1000.0) * torch.arange(0, d, 2) / d)
    return torch.stack([at.sin(), at.cos()], -1).flatten(1)


class Positional(nn.Module):
    def __init__(self, d, time_first):
        super().__init__()
        self.register_buffer("pe", sinusoids(512, d)[:, None])
        self.time_first = time_first

    def forward(self, x):
        if self.time_first:
            return x + self.pe[: x.size(0)]
        return x + self.pe[: x.size(1)].transpose(0, 1)


class Classifier(nn.Module):
    def __init__(self, position, d=32, layers=2, vocab=12, classes=2, dropout=0.0):
        super().__init__()
        self.embed = nn.Embedding(vocab, d)
        self.position = position
        layer = nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=dropout, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.fc = nn.Linear(d, classes)

    def forward(self, x):
        return self.fc(self.encoder(self.position(self.embed(x))).mean(1))


@fault(
    "a module of positions that counts along the first dimension, in a network whose first dimension is the batch",
    rules=["order-lost", "mixed-examples"], layers=["position"], fails=True, steps=350,
)
def positions_along_the_batch(is_faulty):
    model = Classifier(Positional(32, time_first=is_faulty))
    return Program(
        model, nn.CrossEntropyLoss(), loader(which_first(1600, 1)), torch.optim.Adam(model.parameters(), 2e-3),
        right(which_first(300, 2)),
    )


class AdditivePooling(nn.Module):
    def __init__(self, vocab, classes):
        super().__init__()
        self.embed = nn.Embedding(vocab, 24)
        self.score = nn.Sequential(nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1))
        self.softmax = nn.Softmax(dim=1)
        self.out = nn.Linear(24, classes)

    def forward(self, x):
        e = self.embed(x)
        a = self.softmax(self.score(e).squeeze(-1))
        return self.out((a.unsqueeze(-1) * e).sum(1))


def one_marked(n, seed, length=30):
    """One word out of five that matter, among many that do not."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 5, (n,), generator=g)
    x = torch.randint(5, 60, (n, length), generator=g)
    x.scatter_(1, torch.randint(0, length, (n, 1), generator=g), y[:, None])
    return x, y


class Lookup(nn.Module):
    def __init__(self, multiply, d=64, dim=-1):
        super().__init__()
        self.embed = nn.Embedding(40, d)
        self.q, self.k, self.v = (nn.Linear(d, d) for _ in range(3))
        self.out = nn.Linear(d, 4)
        self.factor = math.sqrt(d) if multiply else 1 / math.sqrt(d)
        self.softmax = nn.Softmax(dim)

    def forward(self, x):
        e = self.embed(x)
        q, k, v = self.q(e[:, -1:]), self.k(e[:, :-1]), self.v(e[:, :-1])
        a = self.softmax(q @ k.transpose(1, 2) * self.factor)
        return self.out((a @ v)[:, 0])


@fault(
    "the scores of attention are multiplied by the root of the width instead of divided by it",
    rules=["attention-saturation"], layers=["q", "k"], fails=False, steps=200,
)
def scores_multiplied(is_faulty):
    model = Lookup(is_faulty)
    return Program(
        model, nn.CrossEntropyLoss(), loader(looked_up(3000, 1), 60), torch.optim.Adam(model.parameters(), 2e-3),
        right(looked_up(300, 2)),
    )


@fault(
    "softmax over dimension 1, which here is the single query: every place gets a weight of one",
    rules=["wrong-softmax-dimension", "no-gradient"], layers=["softmax", "q", "k"], fails=False, steps=300,
)
def softmax_over_one_query(is_faulty):
    model = Lookup(False, dim=1 if is_faulty else 2)
    return Program(
        model, nn.CrossEntropyLoss(), loader(looked_up(3000, 1, 5), 60), torch.optim.Adam(model.parameters(), 2e-3),
        right(looked_up(300, 2, 5)),
    )


@fault(
    "the fourth argument of Adam is its epsilon, and 1.0 was meant to be something else",
    rules=["optimizer-setting", "learning-rate-too-low"], fails=True, steps=300,
)
def fourth_argument_of_adam(is_faulty):
    model = Classifier(Positional(32, time_first=False))
    if is_faulty:
        opt = torch.optim.AdamW(model.parameters(), 2e-3, (0.9, 0.999), 1.0)
    else:
        opt = torch.optim.AdamW(model.parameters(), 2e-3, (0.9, 0.999), weight_decay=0.01)
    return Program(model, nn.CrossEntropyLoss(), loader(which_first(1600, 1)), opt, right(which_first(300, 2)))


@fault(
    "a decay of 0.1, common for AdamW, in Adam, where it is added to the gradient",
    rules=["weight-decay-dominates"], fails=True, steps=300,
)
def decay_of_adamw_in_adam(is_faulty):
    model = Classifier(Positional(32, time_first=False))
    kind = torch.optim.Adam if is_faulty else torch.optim.AdamW
    return Program(
        model, nn.CrossEntropyLoss(), loader(which_first(1600, 1)), kind(model.parameters(), 2e-3, weight_decay=0.1),
        right(which_first(300, 2)),
    )


@sound("an ordinary transformer with sinusoids", steps=350, least=0.8)
def sinusoidal_classifier():
    model = Classifier(Positional(32, time_first=False), dropout=0.05)
    return Program(
        model, nn.CrossEntropyLoss(), loader(which_first(1600, 1)), torch.optim.Adam(model.parameters(), 2e-3),
        right(which_first(300, 2)),
    )


@sound("one and the same layer, applied four times", steps=350, least=0.8)
def universal_transformer():
    class Universal(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(12, 32)
            self.position = Positional(32, time_first=False)
            self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
            self.norm = nn.LayerNorm(32)
            self.fc = nn.Linear(32, 2)

        def forward(self, x):
            x = self.position(self.embed(x))
            for _ in range(4):
                x = self.layer(x)
            return self.fc(self.norm(x).mean(1))

    model = Universal()
    return Program(
        model, nn.CrossEntropyLoss(), loader(which_first(1600, 1)), torch.optim.Adam(model.parameters(), 1.5e-3),
        right(which_first(300, 2)),
    )


@sound("ReZero: every branch starts with a factor of exactly 0", steps=350, least=0.8)
def rezero():
    class ReZero(nn.Module):
        def __init__(self, d=32, depth=4):
            super().__init__()
            self.embed = nn.Embedding(12, d)
            self.position = Positional(d, time_first=False)
            self.attn = nn.ModuleList(nn.MultiheadAttention(d, 4, batch_first=True) for _ in range(depth))
            self.mlp = nn.ModuleList(
                nn.Sequential(nn.Linear(d, 2 * d), nn.ReLU(), nn.Linear(2 * d, d)) for _ in range(depth)
            )
            self.alpha = nn.Parameter(torch.zeros(2 * depth))
            self.fc = nn.Linear(d, 2)

        def forward(self, x):
            x = self.position(self.embed(x))
            for i, (a, m) in enumerate(zip(self.attn, self.mlp)):
                x = x + self.alpha[2 * i] * a(x, x, x, need_weights=False)[0]
                x = x + self.alpha[2 * i + 1] * m(x)
            return self.fc(x.mean(1))

    model = ReZero()
    return Program(
        model, nn.CrossEntropyLoss(), loader(which_first(1600, 1)), torch.optim.Adam(model.parameters(), 3e-3),
        right(which_first(300, 2)),
    )


@sound("four words in five are dropped, of wide vectors of which any fifth says enough", steps=300, least=0.8)
def strong_dropout():
    def topics(n, seed):
        g = torch.Generator().manual_seed(seed)
        y = torch.randint(0, 4, (n,), generator=g)
        own = 25 * y[:, None] + torch.randint(0, 25, (n, 20), generator=g)
        x = torch.where(torch.rand(n, 20, generator=g) < 0.6, own, torch.randint(0, 100, (n, 20), generator=g))
        return x, y

    class Wide(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(100, 128)
            self.drop = nn.Dropout(0.8)
            self.fc = nn.Linear(128, 4)

        def forward(self, x):
            return self.fc(self.drop(self.embed(x).mean(1)))

    model = Wide()
    return Program(
        model, nn.CrossEntropyLoss(), loader(topics(1200, 1)), torch.optim.Adam(model.parameters(), 1e-2), right(topics(300, 2))
    )


@sound("plain SGD with a rate of 1.5, on a classifier of word averages whose gradients are small", steps=400, least=0.8)
def large_rate_of_sgd():
    model = AdditivePooling(60, 5)
    return Program(
        model, nn.CrossEntropyLoss(), loader(one_marked(1200, 1, 8), 60), torch.optim.SGD(model.parameters(), 1.5),
        right(one_marked(300, 2, 8)),
    )
