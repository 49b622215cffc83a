"""Recurrent networks and what is fed to them, with one mistake each."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from program import Program, fault
from torch import nn

from data import accuracy, loader, motifs, order, tags


@fault(
    "Short texts are padded on the right to 72 tokens and the GRU's output at the last place is read, long after the text.",
    rules=["vanishing-gradient", "rank-collapse", "wrong-mask"],
    fails=True,
    steps=120,
)
def last_step_is_padding(is_faulty):
    x, y = order(length=6, vocab=10)
    tx, ty = order(length=6, vocab=10, seed=3)

    def padded(x):
        return F.pad(x, (0, 66))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(10, 16, padding_idx=0)
            self.gru = nn.GRU(16, 12, batch_first=True)
            self.fc = nn.Linear(12, 2)

        def forward(self, ids):
            out, _ = self.gru(self.emb(ids))
            if is_faulty:
                return self.fc(out[:, -1])
            last = (ids != 0).sum(1) - 1
            return self.fc(out[torch.arange(len(ids)), last])

    net = Net()
    return Program(
        net,
        F.cross_entropy,
        loader(padded(x), y, batch=12),
        torch.optim.Adam(net.parameters(), 1e-2),
        accuracy(padded(tx), ty),
    )


@fault(
    "Dropout of 0.9 between the layers: it was the probability of keeping, in the framework that the code comes from.",
    rules=["dropout-too-strong"],
    fails=False,
    steps=400,
)
def dropout_was_keep_probability(is_faulty):
    rate = 0.9 if is_faulty else 0.1

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = nn.Conv1d(3, 24, 7, stride=2)
            self.drop1 = nn.Dropout(rate)
            self.gru = nn.GRU(24, 24, batch_first=True)
            self.drop2 = nn.Dropout(rate)
            self.fc = nn.Linear(24, 4)

        def forward(self, x):
            x = self.drop1(self.conv1(x).relu()).transpose(1, 2)
            return self.fc(self.drop2(self.gru(x)[0].amax(1)))

    x, y = motifs()
    tx, ty = motifs(seed=4)
    net = Net()
    return Program(net, F.cross_entropy, loader(x, y), torch.optim.Adam(net.parameters(), 3e-3), accuracy(tx, ty))


@fault(
    "Word dropout for augmentation stands in forward without a look at self.training, so a third of the words go at test time too.",
    rules=["dropout-in-eval"],
    fails=False,
    steps=300,
)
def word_dropout_always_on(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(10, 24)
            self.gru = nn.GRU(24, 32, batch_first=True)
            self.fc = nn.Linear(32, 2)

        def forward(self, ids):
            e = self.emb(ids)
            if is_faulty or self.training:
                e = e * (torch.rand(ids.shape) > 0.3).unsqueeze(-1)
            return self.fc(self.gru(e)[1][0])

    x, y = order()
    tx, ty = order(seed=1)
    net = Net()
    return Program(net, F.cross_entropy, loader(x, y), torch.optim.Adam(net.parameters(), 5e-3), accuracy(tx, ty))


@fault(
    "The tokens of each document go through a set on their way (to remove repeats) and come out sorted: their order is gone.",
    rules=["labels-unrelated", "order-lost", "loss-not-decreasing"],
    fails=True,
    steps=250,
)
def tokens_through_a_set(is_faulty):
    def clean(x):
        rows = []
        for row in x.tolist():
            row = sorted(set(row)) if is_faulty else list(dict.fromkeys(row))
            rows.append(row + [0] * (12 - len(row)))
        return torch.tensor(rows)

    x, y = order(n=1536, vocab=12)
    tx, ty = order(vocab=12, seed=1)
    net = nn.Sequential(nn.Embedding(12, 16), nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 2))
    return Program(
        net, F.cross_entropy, loader(clean(x), y), torch.optim.Adam(net.parameters(), 2e-3), accuracy(clean(tx), ty)
    )


@fault(
    "The class is read from the last column of the padded table, which is the padding.",
    rules=["constant-target", "padding-in-loss", "labels-unrelated"],
    fails=True,
    steps=200,
)
def label_read_from_padding(is_faulty):
    x, y, lengths = tags(longest=12, length=14)
    tx, ty, tl = tags(longest=12, length=14, seed=9)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(16, 16, padding_idx=0)
            self.gru = nn.GRU(16, 24, batch_first=True)
            self.fc = nn.Linear(24, 5)

        def forward(self, ids):
            last = (ids != 0).sum(1) - 1
            return self.fc(self.gru(self.emb(ids))[0][torch.arange(len(ids)), last])

    target = y[:, -1] if is_faulty else y[torch.arange(len(y)), lengths - 1]
    net = Net()
    test = ty[torch.arange(len(ty)), tl - 1]
    return Program(
        net, F.cross_entropy, loader(x, target), torch.optim.Adam(net.parameters(), 1e-2), accuracy(tx, test)
    )
