"""Blocks, adapters and rates of attention networks with one mistake each."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from program import Program, fault
from torch import nn

from attention import lookup_program
from data import accuracy, loader, order


@fault(
    "The blocks return what the attention and the MLP give, and not the sum with what came in; there are five of them.",
    rules=["rank-collapse", "vanishing-gradient"],
    fails=True,
    steps=300,
)
def residual_forgotten(is_faulty):
    class Block(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
            self.attn = nn.MultiheadAttention(d, 2, batch_first=True)
            self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

        def forward(self, x):
            h = self.ln1(x)
            a = self.attn(h, h, h, need_weights=False)[0]
            x = a if is_faulty else x + a
            m = self.mlp(self.ln2(x))
            return m if is_faulty else x + m

    class Encoder(nn.Module):
        def __init__(self, d=16):
            super().__init__()
            self.emb, self.pos = nn.Embedding(10, d), nn.Parameter(0.5 * torch.randn(8, d))
            self.blocks = nn.Sequential(*[Block(d) for _ in range(5)])
            self.fc = nn.Linear(d, 2)

        def forward(self, ids):
            return self.fc(self.blocks(self.emb(ids) + self.pos).mean(1))

    x, y = order(length=8)
    tx, ty = order(length=8, seed=1)
    net = Encoder()
    return Program(
        net, F.cross_entropy, loader(x, y, batch=16), torch.optim.Adam(net.parameters(), 2e-3), accuracy(tx, ty)
    )


@fault(
    "nn.MultiheadAttention without batch_first on [batch, time, width]: every text attends to the other texts of its batch.",
    rules=["mixed-examples"],
    layers=["attn"],
    fails=True,
    steps=500,
)
def attention_across_the_batch(is_faulty):
    class Net(nn.Module):
        def __init__(self, d=32):
            super().__init__()
            self.tok = nn.Embedding(12, d)
            self.pre = nn.Linear(2 * d, d)
            self.attn = nn.MultiheadAttention(d, 2, batch_first=not is_faulty)
            self.out = nn.Sequential(nn.Linear(2 * d, 64), nn.ReLU(), nn.Linear(64, 6))

        def forward(self, ids):
            e = self.tok(ids)
            x = self.pre(torch.cat([e, e.roll(1, 1)], -1))
            a, _ = self.attn(e, x, x)
            return self.out(torch.cat([a[:, -1], e[:, -1]], -1))

    return lookup_program(Net())


@fault(
    "A transformer with its norms after the sums is trained by Adam at 0.1 from the first step on.",
    rules=["learning-rate-too-high"],
    fails=True,
    steps=300,
)
def transformer_at_a_rate_of_a_tenth(is_faulty):
    class Net(nn.Module):
        def __init__(self, d=32):
            super().__init__()
            self.emb, self.pos = nn.Embedding(10, d), nn.Parameter(0.5 * torch.randn(12, d))
            layer = nn.TransformerEncoderLayer(d, 4, 64, 0.0, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.fc = nn.Linear(d, 2)

        def forward(self, ids):
            return self.fc(self.encoder(self.emb(ids) + self.pos).mean(1))

    x, y = order()
    tx, ty = order(seed=1)
    model = Net()
    opt = torch.optim.Adam(model.parameters(), lr=0.1 if is_faulty else 1e-3)
    return Program(model, F.cross_entropy, loader(x, y, batch=16), opt, accuracy(tx, ty))


@fault(
    "LoRA with both factors at zero around frozen projections: neither factor ever gets a gradient.",
    rules=["symmetric-initialisation", "vanishing-gradient", "no-gradient", "loss-not-decreasing"],
    fails=True,
    steps=400,
)
def lora_with_two_zeros(is_faulty):
    class LoRA(nn.Module):
        def __init__(self, base, rank=8):
            super().__init__()
            self.base = base.requires_grad_(False)
            self.a = nn.Parameter(torch.zeros(rank, base.in_features))
            self.b = nn.Parameter(torch.zeros(base.out_features, rank))
            if not is_faulty:
                nn.init.normal_(self.a, std=0.2)

        def forward(self, x):
            return self.base(x) + 2.0 * (x @ self.a.T) @ self.b.T

    x, y = order(length=6, vocab=8)
    tx, ty = order(length=6, vocab=8, seed=1)
    net = nn.Sequential(
        nn.Embedding(8, 16),
        nn.Flatten(),
        LoRA(nn.Linear(96, 64)),
        nn.ReLU(),
        LoRA(nn.Linear(64, 32)),
        nn.ReLU(),
        LoRA(nn.Linear(32, 2)),
    )
    net[0].requires_grad_(False)
    opt = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=5e-3)
    return Program(net, F.cross_entropy, loader(x, y), opt, accuracy(tx, ty))
