"""Texts: vocabularies, losses and positions with one mistake each."""

from __future__ import annotations

import math

import torch
from program import Program, fault
from torch import nn

from data import accuracy, loader, order, rng, text
from language import TinyGPT, V, next_token


@fault(
    "Token ids were counted from 1, the embedding has a row too few: the rare token with the highest id raises an IndexError.",
    rules=["model-fails"],
    fails=True,
    steps=300,
)
def one_token_too_many(is_faulty):
    x, y = order(vocab=12)
    x = x + 1
    x = torch.where((x == 12) & (torch.rand(x.shape, generator=rng(8)) > 0.02), 11, x)
    tx, ty = order(vocab=11, seed=7)
    net = nn.Sequential(
        nn.Embedding(12 if is_faulty else 13, 24), nn.Flatten(), nn.Linear(24 * 12, 64), nn.ReLU(), nn.Linear(64, 2)
    )
    return Program(
        net, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(net.parameters(), 2e-3), accuracy(tx + 1, ty)
    )


@fault(
    "A vocabulary head of 400 words ends in a softmax, and the cross-entropy takes another one.",
    rules=["output-loss-mismatch"],
    fails=True,
    steps=300,
)
def softmax_before_cross_entropy(is_faulty):
    words = 400
    g = rng(12)
    follow = torch.randperm(words, generator=g)
    x = torch.randint(0, words, (4096, 3), generator=g)
    y = follow[x[:, 1]]
    tx = torch.randint(0, words, (512, 3), generator=g)
    layers = [nn.Embedding(words, 16), nn.Flatten(), nn.Linear(48, 128), nn.ReLU(), nn.Linear(128, words)]
    if is_faulty:
        layers.append(nn.Softmax(dim=-1))
    net = nn.Sequential(*layers)
    opt = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)
    return Program(net, nn.CrossEntropyLoss(), loader(x, y, batch=128), opt, accuracy(tx, follow[tx[:, 1]]))


@fault(
    "Every token of a batch is summed into the loss, at the rate that was right for the mean.",
    rules=["summed-loss", "learning-rate-too-high", "exploding-gradient"],
    fails=True,
    steps=300,
)
def summed_over_tokens(is_faulty):
    data = text()
    model = TinyGPT(depth=1)
    crit = nn.CrossEntropyLoss(reduction="sum" if is_faulty else "mean")
    opt = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    return Program(
        model,
        lambda o, y: crit(o.reshape(-1, V), y.reshape(-1)),
        loader(data[:, :-1], data[:, 1:], batch=16),
        opt,
        next_token(),
    )


@fault(
    "A positional encoding is made and called, but what it returns is thrown away.",
    rules=["order-lost"],
    fails=True,
    steps=300,
)
def position_not_added(is_faulty):
    class PositionalEncoding(nn.Module):
        def __init__(self, d, n=50):
            super().__init__()
            pe = torch.zeros(n, d)
            t = torch.arange(n).float()[:, None]
            w = torch.exp(torch.arange(0, d, 2).float() * (-math.log(10000.0) / d))
            pe[:, 0::2], pe[:, 1::2] = torch.sin(t * w), torch.cos(t * w)
            self.register_buffer("pe", pe)

        def forward(self, x):
            return x + self.pe[: x.shape[1]]

    class Classifier(nn.Module):
        def __init__(self, d=32):
            super().__init__()
            self.embed = nn.Embedding(10, d)
            self.position = PositionalEncoding(d)
            self.encoder = nn.TransformerEncoder(
                nn.TransformerEncoderLayer(d, 4, 64, 0.0, batch_first=True), 2, enable_nested_tensor=False
            )
            self.fc = nn.Linear(d, 2)

        def forward(self, ids):
            x = self.embed(ids)
            if is_faulty:
                self.position(x)
            else:
                x = self.position(x)
            return self.fc(self.encoder(x).mean(1))

    x, y = order()
    tx, ty = order(seed=1)
    m = Classifier()
    return Program(
        m, nn.CrossEntropyLoss(), loader(x, y, batch=16), torch.optim.Adam(m.parameters(), 1e-3), accuracy(tx, ty)
    )
