"""Faults of layers, masks and number formats."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from program import Program, fault
from ti_common import accuracy, blobs, loader, mlp, r2, rng, shapes
from torch import nn


@fault(
    "the attention scores (batch, instances, 1) of a bag are put through a softmax over the last dimension: all are 1",
    rules=["wrong-softmax-dimension", "no-gradient"],
    layers=["score"],
    fails=True,
    steps=500,
)
def bag_attention_dimension(is_faulty: bool) -> Program:
    g = rng(311)
    n, k, d = 2400, 12, 10
    key = torch.randint(k, (n,), generator=g)
    x = torch.randn(n, k, d, generator=g)
    x[:, :, 0] = -1 + 0.3 * torch.randn(n, k, generator=g)
    x[torch.arange(n), key, 0] = 1 + 0.3 * torch.randn(n, generator=g)
    chosen = x[torch.arange(n), key]
    y = chosen[:, 1] - 0.7 * chosen[:, 2] + 0.5 * chosen[:, 3]

    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.value = nn.Linear(d, 16)
            self.score = nn.Sequential(nn.Linear(d, 16), nn.Tanh(), nn.Linear(16, 1))
            self.out = nn.Linear(16, 1)

        def forward(self, x):
            a = torch.softmax(self.score(x), dim=-1 if is_faulty else 1)
            return self.out((a * self.value(x)).sum(1)).squeeze(-1)

    model = Bag()
    return Program(
        model,
        nn.MSELoss(),
        loader(x[:2000], y[:2000]),
        torch.optim.Adam(model.parameters(), lr=5e-3),
        lambda m: r2(m(x[2000:]), y[2000:]),
    )


def sets(n, seed):
    g = rng(seed)
    length = torch.randint(2, 7, (n,), generator=g)
    y = torch.randint(3, (n,), generator=g)
    prototypes = torch.randn(3, 8, generator=rng(998))
    x = prototypes[y][:, None] + 0.9 * torch.randn(n, 10, 8, generator=g)
    mask = torch.arange(10)[None] < length[:, None]
    x[~mask] = 0
    return x, mask, y


@fault(
    "a mask that is 1 on what is real, as in Hugging Face, is given as key_padding_mask, which is True on padding",
    rules=["wrong-mask", "rank-collapse"],
    layers=["pool"],
    fails=True,
    steps=300,
)
def attention_mask_convention(is_faulty: bool) -> Program:
    x, mask, y = sets(2400, 321)

    class Pooler(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Sequential(nn.Linear(8, 32), nn.ReLU())
            self.query = nn.Parameter(0.02 * torch.randn(1, 1, 32))
            self.pool = nn.MultiheadAttention(32, 4, batch_first=True)
            self.classifier = nn.Linear(32, 3)

        def forward(self, features, attention_mask):
            h = self.embed(features)
            q = self.query.expand(len(h), -1, -1)
            ignored = attention_mask if is_faulty else ~attention_mask
            return self.classifier(self.pool(q, h, h, key_padding_mask=ignored)[0][:, 0])

    model = Pooler()
    batches = [
        ({"features": x[i : i + 50], "attention_mask": mask[i : i + 50]}, y[i : i + 50]) for i in range(0, 2000, 50)
    ]
    return Program(
        model,
        nn.CrossEntropyLoss(),
        batches,
        torch.optim.AdamW(model.parameters(), lr=2e-3),
        lambda m: accuracy(m(features=x[2000:], attention_mask=mask[2000:]), y[2000:]),
    )


@fault(
    "columns are made tokens of one number each and then normalised with LayerNorm(1), which leaves its bias only",
    rules=["rank-collapse", "loss-not-decreasing", "constant-feature"],
    layers=["norm", "tokens", "embed"],
    fails=True,
    steps=300,
)
def layernorm_of_one_number(is_faulty: bool) -> Program:
    g = rng(341)
    x = torch.randn(2400, 6, generator=g) * 2
    y = torch.sin(x[:, 0]) + 0.5 * x[:, 1] - 0.4 * x[:, 2].abs()

    class Columns(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(1) if is_faulty else nn.Identity()
            self.embed = nn.Linear(1, 16)
            self.column = nn.Parameter(torch.randn(6, 16))
            self.mix = nn.Sequential(nn.ReLU(), nn.Flatten(), nn.Linear(96, 64), nn.ReLU(), nn.Linear(64, 1))

        def forward(self, x):
            tokens = self.norm(x.unsqueeze(-1))
            return self.mix(self.embed(tokens) + self.column).squeeze(1)

    model = Columns()
    return Program(
        model,
        nn.HuberLoss(),
        loader(x[:2000], y[:2000]),
        torch.optim.AdamW(model.parameters(), lr=2e-3),
        lambda m: r2(m(x[2000:]), y[2000:]),
    )


@fault(
    "open, high, low and close are given as they are: nearly equal columns whose small differences matter",
    rules=["ill-conditioned-input"],
    fails=True,
    steps=500,
)
def nearly_equal_prices(is_faulty: bool) -> Program:
    g = rng(351)
    level = torch.randn(2400, 1, generator=g)
    moves = torch.randn(2400, 5, generator=g)
    y = 0.8 * moves[:, 0] - 0.6 * moves[:, 1] + 0.3 * moves[:, 2] * moves[:, 3].sign()
    prices = level + 0.03 * moves if is_faulty else moves
    x = torch.cat([prices, level], 1)
    x = (x - x.mean(0)) / x.std(0)
    model = nn.Sequential(mlp(6, 64, 64, 1), nn.Flatten(0))
    return Program(
        model,
        nn.MSELoss(),
        loader(x[:2000], y[:2000], batch=40),
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5),
        lambda m: r2(m(x[2000:]), y[2000:]),
    )


class Residual(nn.Module):
    def __init__(self, dim, is_forgotten):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.is_forgotten = is_forgotten

    def forward(self, x):
        h = self.fc2(F.relu(self.fc1(x)))
        return h if self.is_forgotten else x + h


@fault(
    "the blocks of a residual network return their branch and forget to add their input",
    rules=["vanishing-gradient", "activation-drift", "rank-collapse", "bad-initialisation"],
    layers=["1", "2", "3", "4", "5", "6", "7", "8"],
    fails=True,
    steps=300,
)
def skip_forgotten(is_faulty: bool) -> Program:
    x, y = blobs(2400, 4, 12, 361, spread=0.9)
    blocks = [Residual(32, is_faulty) for _ in range(8)]
    model = nn.Sequential(nn.Linear(12, 32), *blocks, nn.Linear(32, 4))
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(x[:2000], y[:2000]),
        torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9),
        lambda m: accuracy(m(x[2000:]), y[2000:]),
    )


class EqualLinear(nn.Module):
    """Weights of deviation 1, scaled when they are used."""

    def __init__(self, a, b):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(b, a))
        self.bias = nn.Parameter(torch.zeros(b))
        self.scale = a**-0.5

    def forward(self, x):
        return F.linear(x, self.weight * self.scale, self.bias)


@fault(
    "weights of deviation 1 are kept in bfloat16 to save memory, at a rate whose steps are lost in rounding",
    rules=["lost-updates", "rounding-error"],
    fails=True,
    steps=500,
)
def weights_in_bfloat16(is_faulty: bool) -> Program:
    x, y = blobs(2400, 6, 16, 371, spread=1.2)
    dtype = torch.bfloat16 if is_faulty else torch.float32
    model = nn.Sequential(EqualLinear(16, 48), nn.Tanh(), EqualLinear(48, 6)).to(dtype)

    def step(m, batch):
        a, b = batch
        return F.cross_entropy(m(a.to(dtype)).float(), b)

    return Program(
        model,
        None,
        loader(x[:2000], y[:2000], batch=128),
        torch.optim.Adam(model.parameters(), lr=1e-3),
        lambda m: accuracy(m(x[2000:].to(dtype)).float(), y[2000:]),
        step=step,
    )


@fault(
    "the embeddings of the categorical columns stand in a plain list, so the optimizer never gets them",
    rules=["no-gradient"],
    fails=False,
    steps=400,
)
def embeddings_in_a_list(is_faulty: bool) -> Program:
    g = rng(381)
    cats = torch.randint(40, (4000, 4), generator=g)
    effect = torch.randn(4, 40, generator=g)
    y = sum(effect[j][cats[:, j]] for j in range(4)) / 2

    class Rates(nn.Module):
        def __init__(self):
            super().__init__()
            tables = [nn.Embedding(40, 3) for _ in range(4)]
            self.tables = tables if is_faulty else nn.ModuleList(tables)
            self.mlp = mlp(12, 32, 1)

        def forward(self, c):
            e = torch.cat([t(c[:, j]) for j, t in enumerate(self.tables)], 1)
            return self.mlp(e).squeeze(-1)

    model = Rates()
    return Program(
        model,
        nn.MSELoss(),
        loader(cats[:3500], y[:3500], batch=100),
        torch.optim.Adam(model.parameters(), lr=1e-2),
        lambda m: r2(m(cats[3500:]), y[3500:]),
    )
