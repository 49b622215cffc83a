"""Sound programs over sequences that look wrong."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from program import Program, sound
from torch import nn

from data import accuracy, loader, motifs, order, r2, rng, text, waves


@sound(
    "Targets are tokens of the input and not the next ones: a masked language model predicts what was hidden.",
    steps=400,
    least=0.75,
)
def masked_language_model():
    class Bert(nn.Module):
        def __init__(self, d=32):
            super().__init__()
            self.tok, self.pos = nn.Embedding(21, d), nn.Parameter(0.5 * torch.randn(16, d))
            self.conv = nn.Conv1d(d, 64, 5, padding=2)
            self.out = nn.Linear(64 + d, 20)

        def forward(self, ids):
            e = self.tok(ids) + self.pos
            h = self.conv(e.transpose(1, 2)).transpose(1, 2).relu()
            return self.out(torch.cat([h, e[:, :1].expand_as(e)], -1))

    def hide(data, seed):
        gone = torch.rand(data.shape, generator=rng(seed)) < 0.15
        gone[:, :3] = False
        return data.masked_fill(gone, 20), data.masked_fill(~gone, -100)

    x, y = hide(text(n=2048), 1)
    tx, ty = hide(text(seed=5), 2)
    net = Bert()
    opt = torch.optim.Adam(net.parameters(), 5e-3)
    return Program(net, lambda o, t: F.cross_entropy(o.transpose(1, 2), t), loader(x, y), opt, accuracy(tx, ty))


@sound(
    "Targets are the inputs themselves: an autoencoder of token sequences through a narrow state.", steps=500, least=0.8
)
def token_autoencoder():
    class Auto(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(8, 16)
            self.enc = nn.Sequential(nn.Flatten(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 24))
            self.dec = nn.Sequential(nn.Linear(24, 128), nn.ReLU(), nn.Linear(128, 48))

        def forward(self, ids):
            return self.dec(self.enc(self.emb(ids))).reshape(len(ids), 6, 8)

    x = torch.randint(0, 8, (2048, 6), generator=rng(1))
    tx = torch.randint(0, 8, (256, 6), generator=rng(2))
    net = Auto()
    opt = torch.optim.Adam(net.parameters(), 3e-3)
    return Program(
        net, lambda o, t: F.cross_entropy(o.flatten(0, 1), t.flatten()), loader(x, x, batch=64), opt, accuracy(tx, tx)
    )


@sound(
    "Outputs depend on later inputs, and are asked for tokens of the input: attention reverses the sequences.",
    steps=500,
    least=0.8,
)
def reverse_the_sequence():
    class Reverse(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb, self.pos = nn.Embedding(8, 32), nn.Parameter(torch.randn(6, 32))
            self.q, self.k, self.v = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 32)
            self.out = nn.Linear(32, 8)

        def forward(self, ids):
            p = self.pos.expand(len(ids), -1, -1)
            w = (self.q(p) @ self.k(p).mT / 32**0.5).softmax(-1)
            return self.out(w @ self.v(self.emb(ids)))

    x = torch.randint(0, 8, (1024, 6), generator=rng(3))
    tx = torch.randint(0, 8, (256, 6), generator=rng(4))
    net = Reverse()
    opt = torch.optim.Adam(net.parameters(), 5e-3)
    return Program(
        net, lambda o, t: F.cross_entropy(o.transpose(1, 2), t), loader(x, x.flip(1)), opt, accuracy(tx, tx.flip(1))
    )


@sound("The head's weight is the embedding's (tied on purpose), which starts small.", steps=300, least=0.85)
def tied_on_purpose():
    class Tied(nn.Module):
        def __init__(self, d=48):
            super().__init__()
            self.tok = nn.Embedding(20, d)
            nn.init.normal_(self.tok.weight, std=0.05)
            self.gru = nn.GRU(d, d, batch_first=True)
            self.head = nn.Linear(d, 20)
            self.head.weight = self.tok.weight

        def forward(self, ids):
            return self.head(self.gru(self.tok(ids))[0])

    from language import ce, next_token

    data = text()
    net = Tied()
    return Program(net, ce, loader(data[:, :-1], data[:, 1:]), torch.optim.Adam(net.parameters(), 5e-3), next_token())


@sound("One block is applied three times, as in ALBERT and Universal Transformers.", steps=400, least=0.9)
def one_block_three_times():
    class Albert(nn.Module):
        def __init__(self, d=32):
            super().__init__()
            self.emb, self.pos = nn.Embedding(10, d), nn.Parameter(0.5 * torch.randn(12, d))
            self.block = nn.TransformerEncoderLayer(d, 2, 48, 0.0, batch_first=True, norm_first=True)
            self.fc = nn.Linear(d, 2)

        def forward(self, ids):
            h = self.emb(ids) + self.pos
            for _ in range(3):
                h = self.block(h)
            return self.fc(h.mean(1))

    x, y = order()
    tx, ty = order(seed=1)
    net = Albert()
    return Program(
        net, F.cross_entropy, loader(x, y, batch=16), torch.optim.Adam(net.parameters(), 1e-3), accuracy(tx, ty)
    )


@sound(
    "An echo state network: the recurrent layer is random and frozen, only the readout learns.", steps=400, least=0.85
)
def echo_state():
    class Echo(nn.Module):
        def __init__(self, n=120):
            super().__init__()
            w = torch.randn(n, n)
            self.register_buffer("w", 0.9 * w / torch.linalg.eigvals(w).abs().max())
            self.register_buffer("u", torch.rand(1, n) - 0.5)
            self.readout = nn.Linear(n, 1)

        def forward(self, x):
            h = x.new_zeros(len(x), len(self.w))
            for t in range(x.shape[1]):
                h = torch.tanh(x[:, t] @ self.u + h @ self.w)
            return self.readout(h)

    x, y = waves()
    tx, ty = waves(seed=2)
    net = Echo()
    return Program(net, nn.MSELoss(), loader(x, y), torch.optim.Adam(net.parameters(), 1e-2), r2(tx, ty))


@sound(
    "The answer does not depend on the order, and neither does the model: counts of words decide (deep sets).",
    steps=300,
    least=0.85,
)
def bag_of_words():
    g = rng(21)
    x = torch.randint(0, 30, (2048, 15), generator=g)
    worth = torch.randn(30, generator=g)
    y = (worth[x].sum(1) > 0).long()
    net = nn.Sequential(nn.EmbeddingBag(30, 16, mode="mean"), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2))
    opt = torch.optim.Adam(net.parameters(), 1e-2)
    return Program(net, nn.CrossEntropyLoss(), loader(x[:1536], y[:1536]), opt, accuracy(x[1536:], y[1536:]))


@sound("The loss is a sum over the batch, and the rate was chosen for it.", steps=300, least=0.85)
def sum_with_a_small_rate():
    x, y = motifs()
    tx, ty = motifs(seed=4)
    net = nn.Sequential(nn.Conv1d(3, 16, 7), nn.ReLU(), nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(16, 4))
    crit = nn.CrossEntropyLoss(reduction="sum")
    opt = torch.optim.SGD(net.parameters(), lr=2e-3, momentum=0.9)
    return Program(net, crit, loader(x, y), opt, accuracy(tx, ty))


@sound("The rate starts at almost nothing and warms up, as post-norm transformers need it.", steps=400, least=0.9)
def warmup_from_zero():
    from blocks import transformer_at_a_rate_of_a_tenth

    p = transformer_at_a_rate_of_a_tenth(False)
    opt = torch.optim.AdamW(p.model.parameters(), lr=2e-3)
    p.optimizer = opt
    p.scheduler = torch.optim.lr_scheduler.LambdaLR(opt, lambda k: min(1.0, (k + 1) / 100))
    return p


@sound("LoRA as it should be: one factor at zero, the other random, and all else frozen.", steps=400, least=0.9)
def lora_one_zero():
    from blocks import lora_with_two_zeros

    return lora_with_two_zeros(False)


@sound("The loss falls below zero: a Gaussian likelihood with a predicted variance.", steps=400, least=0.85)
def negative_likelihood():
    class Gauss(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Flatten(), nn.Linear(24, 64), nn.ReLU())
            self.mu, self.raw = nn.Linear(64, 1), nn.Linear(64, 1)

        def forward(self, x):
            h = self.body(x)
            return self.mu(h), F.softplus(self.raw(h)) + 1e-3

    x, y = waves()
    tx, ty = waves(seed=2)

    def score(model):
        return max(0.0, 1 - ((model(tx)[0] - ty).square().mean() / ty.var()).item())

    net = Gauss()
    return Program(
        net,
        lambda o, t: F.gaussian_nll_loss(o[0], t, o[1]),
        loader(x, y),
        torch.optim.Adam(net.parameters(), 3e-3),
        score,
    )


@sound(
    "Readings in thousands go in and targets in thousands come out: the model scales both by constants of the data.",
    steps=300,
    least=0.85,
)
def scaled_inside():
    class Scaled(nn.Module):
        def __init__(self, mean, std):
            super().__init__()
            self.register_buffer("mean", mean)
            self.register_buffer("std", std)
            self.net = nn.Sequential(nn.Flatten(), nn.Linear(24, 48), nn.SiLU(), nn.Linear(48, 1))

        def forward(self, x):
            return self.mean + self.std * self.net((x - self.mean) / self.std)

    x, y = waves()
    tx, ty = waves(seed=2)
    x, y, tx, ty = (5000 + 800 * v for v in (x, y, tx, ty))
    net = Scaled(x.mean(), x.std())
    loss = nn.MSELoss()
    opt = torch.optim.Adam(net.parameters(), 3e-3)
    return Program(net, lambda o, t: loss(o, t) / 640000, loader(x, y), opt, r2(tx, ty))
