"""Attention code with one mistake each."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from program import Program, fault
from torch import nn

from data import accuracy, loader, order, pairs, rng, tags


class Lookup(nn.Module):
    """One attention layer that answers with the value behind a key."""

    def __init__(self, width=32, scale=True, init=None, softmax_dim=-1):
        super().__init__()
        self.tok = nn.Embedding(12, width)
        self.pos = nn.Embedding(11, width)
        self.pre = nn.Linear(3 * width, width)
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 6))
        self.scale = width**-0.5 if scale else 1.0
        self.softmax_dim = softmax_dim
        if init is not None:
            for layer in (self.q, self.k):
                nn.init.normal_(layer.weight, std=init)

    def forward(self, ids):
        e = self.tok(ids)
        before = F.pad(e, (0, 0, 1, 0))[:, :-1]
        x = self.pre(torch.cat([e, before, self.pos(torch.arange(ids.shape[1])).expand_as(e)], -1))
        logits = self.q(x) @ self.k(x).transpose(1, 2) * self.scale
        weights = logits.softmax(self.softmax_dim)
        return self.out((weights @ self.v(x))[:, -1])


def lookup_program(model, lr=3e-3):
    x, y = pairs(n=4096)
    tx, ty = pairs(seed=8)
    return Program(
        model, F.cross_entropy, loader(x, y, batch=64), torch.optim.Adam(model.parameters(), lr), accuracy(tx, ty)
    )


@fault(
    "The attention's logits are not divided by anything, and its projections start at N(0, 1): each query looks at one key.",
    rules=["attention-saturation"],
    fails=True,
    steps=600,
)
def unscaled_logits(is_faulty):
    return lookup_program(Lookup(scale=not is_faulty, init=1.0 if is_faulty else None))


@fault(
    "The decoder asks with one query at a time, and the softmax of its [batch, 1, time] scores runs over dim 1: all weights are 1.",
    rules=["wrong-softmax-dimension"],
    fails=False,
    steps=600,
)
def softmax_over_one_query(is_faulty):
    class Ask(nn.Module):
        def __init__(self, d=32):
            super().__init__()
            self.tok = nn.Embedding(12, d)
            self.keys, self.values = nn.Linear(d, d), nn.Linear(d, d)
            self.query = nn.Linear(d, d)
            self.answer = nn.Sequential(nn.Linear(2 * d, 48), nn.ReLU(), nn.Linear(48, 6))

        def forward(self, ids):
            k, v = self.tok(ids[:, 0:-1:2]), self.tok(ids[:, 1:-1:2])
            q = self.tok(ids[:, -1:])
            score = torch.bmm(self.query(q), self.keys(k).transpose(1, 2)) / 32**0.5
            weights = F.softmax(score, dim=1 if is_faulty else 2)
            context = torch.bmm(weights, self.values(v))[:, 0]
            return self.answer(torch.cat([context, q[:, 0]], -1))

    return lookup_program(Ask())


@fault(
    "Attention pooling of [batch, time, 1] scores with F.softmax and no dim, which takes dim 0 for three dimensions: the batch.",
    rules=["wrong-softmax-dimension", "mixed-examples"],
    fails=True,
    steps=250,
)
def pooled_over_the_batch(is_faulty):
    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.enc = nn.Sequential(nn.Linear(8, 48), nn.Tanh())
            self.pool = nn.Linear(48, 1)
            self.fc = nn.Linear(48, 3)

        def forward(self, x):
            h = self.enc(x)
            a = F.softmax(4 * self.pool(h), dim=0 if is_faulty else 1)
            return self.fc((a * h).sum(1))

    def make(n, seed):
        g = rng(seed)
        x = torch.randn(n, 25, 8, generator=g)
        where = torch.randint(0, 25, (n,), generator=g)
        y = torch.randint(0, 3, (n,), generator=g)
        row = torch.arange(n)
        x[row, where, 0] = 4.0
        x[row, where, 1:4] = 2 * F.one_hot(y, 3).float()
        return x, y

    x, y = make(1024, 1)
    tx, ty = make(200, 2)

    def alone(model):
        return sum(float(model(a[None]).argmax() == b) for a, b in zip(tx, ty, strict=True)) / len(ty)

    net = Pooled()
    return Program(net, F.cross_entropy, loader(x, y), torch.optim.Adam(net.parameters(), 5e-3), alone)


class Padded(nn.Module):
    """A transformer over padded tokens; `mask` makes src_key_padding_mask from the ids."""

    def __init__(self, mask, width=32):
        super().__init__()
        self.emb = nn.Embedding(16, width)
        self.pos = nn.Parameter(0.5 * torch.randn(64, width))
        layer = nn.TransformerEncoderLayer(width, 4, 64, 0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.tag = nn.Linear(width, 5)
        self.mask = mask

    def forward(self, ids):
        h = self.emb(ids) + self.pos[: ids.shape[1]]
        return self.tag(self.encoder(h, src_key_padding_mask=self.mask(ids)))


@fault(
    "src_key_padding_mask is True where there is a token, the opposite of what PyTorch wants.",
    rules=["wrong-mask"],
    layers=["encoder"],
    fails=False,
    steps=600,
)
def padding_mask_inverted(is_faulty):
    x, y, _ = tags(longest=18)
    tx, ty, _ = tags(longest=18, seed=9)
    model = Padded((lambda ids: ids != 0) if is_faulty else (lambda ids: ids == 0))
    crit = nn.CrossEntropyLoss(ignore_index=0)
    opt = torch.optim.Adam(model.parameters(), 3e-3)
    return Program(
        model,
        lambda o, t: crit(o.flatten(0, 1), t.flatten()),
        loader(x, y),
        opt,
        accuracy(tx, ty.masked_fill(ty == 0, -1)),
    )


@fault(
    "Some rows of the table are empty texts, all padding: the softmax over nothing but -inf is NaN and spoils the weights.",
    rules=["non-finite"],
    fails=True,
    steps=300,
)
def empty_texts_are_masked_whole(is_faulty):
    x, y = order()
    tx, ty = order(seed=1)
    x = x.clone()
    x[::40] = 0

    class Attend(nn.Module):
        def __init__(self, d=32):
            super().__init__()
            self.emb = nn.Embedding(10, d)
            self.pos = nn.Parameter(torch.randn(12, d))
            self.q, self.kv = nn.Linear(d, d), nn.Linear(d, 2 * d)
            self.fc = nn.Sequential(nn.Linear(d, 64), nn.ReLU(), nn.Linear(64, 2))

        def forward(self, ids):
            h = self.emb(ids) + self.pos
            k, v = self.kv(h).chunk(2, -1)
            logits = self.q(h) @ k.mT / 32**0.5
            fill = float("-inf") if is_faulty else -1e4
            logits = logits.masked_fill((ids == 0)[:, None, :], fill)
            return self.fc((logits.softmax(-1) @ v + h).relu().mean(1))

    net = Attend()
    return Program(net, F.cross_entropy, loader(x, y), torch.optim.Adam(net.parameters(), 2e-3), accuracy(tx, ty))


@fault(
    "The position is added as a plain number, 0 to 49, to embeddings of size one.",
    rules=["attention-saturation", "unscaled-input", "rank-collapse", "activation-drift", "ill-conditioned-input"],
    fails=True,
    steps=400,
)
def raw_position_added(is_faulty):
    class Net(nn.Module):
        def __init__(self, d=32, n=50):
            super().__init__()
            self.emb = nn.Embedding(10, d)
            t = torch.arange(n).float()[:, None].expand(n, d)
            sines = torch.sin(t * torch.logspace(0, -2, d) + torch.arange(d))
            self.register_buffer("position", t if is_faulty else sines)
            self.attn = nn.MultiheadAttention(d, 1, batch_first=True)
            self.fc = nn.Sequential(nn.Linear(2 * d, 48), nn.ReLU(), nn.Linear(48, 2))

        def forward(self, ids):
            h = self.emb(ids) + self.position
            a, _ = self.attn(h, h, h)
            return self.fc(torch.cat([h, a], -1).amax(1))

    x, y = order(length=50)
    tx, ty = order(length=50, seed=1)
    net = Net()
    return Program(
        net, F.cross_entropy, loader(x, y, batch=16), torch.optim.Adam(net.parameters(), 3e-3), accuracy(tx, ty)
    )
