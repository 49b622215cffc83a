"""More sound programs over sequences that look wrong."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from program import Program, sound
from torch import nn

from data import accuracy, loader, order, recall, rng, text


@sound(
    "Skip-grams with negative samples and sparse gradients: most rows of the table do not move in a step.",
    steps=500,
    least=0.8,
)
def skipgram_sparse():
    """Words of the same one of five topics occur together; the score is the share of nearest neighbors of one's topic."""
    g = rng(31)
    topic = torch.arange(100) % 5
    a = torch.randint(0, 100, (6000,), generator=g)
    b = (torch.randint(0, 20, (6000,), generator=g) * 5 + topic[a]) % 100

    class SkipGram(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(100, 12, sparse=True)
            self.contexts = nn.Embedding(100, 12, sparse=True)
            nn.init.normal_(self.words.weight, std=0.3)
            nn.init.normal_(self.contexts.weight, std=0.3)

        def forward(self, pair):
            return (self.words(pair[:, 0]) * self.contexts(pair[:, 1])).sum(-1)

    def step(model, batch):
        center, context = batch
        bad = torch.randint(0, 100, context.shape)
        up = F.logsigmoid(model(torch.stack([center, context], 1))).mean()
        down = F.logsigmoid(-model(torch.stack([center, bad], 1))).mean()
        return -(up + down)

    def score(model):
        e = F.normalize(model.words.weight, dim=-1)
        near = (e @ e.T - 2 * torch.eye(100)).argmax(1)
        return (topic[near] == topic).float().mean().item()

    net = SkipGram()
    return Program(
        net, None, loader(a, b, batch=128), torch.optim.SparseAdam(list(net.parameters()), 1e-2), score, step=step
    )


@sound(
    "A state is carried from batch to batch, detached, with the batches in the order of time and never shuffled.",
    steps=400,
    least=0.8,
)
def stateful_in_order():
    g = rng(41)
    t = torch.arange(20 * 200).float()
    rows = torch.stack(
        [torch.sin(0.2 * t + 6 * torch.rand(1, generator=g)) + 0.5 * torch.sin(0.51 * t) for _ in range(16)]
    )
    rows = rows + 0.05 * torch.randn(rows.shape, generator=g)
    train, test = rows[:, :3001], rows[:, 3001:]
    chunks = [(train[:, i : i + 20, None], train[:, i + 1 : i + 21, None]) for i in range(0, 3000, 20)]

    class Stateful(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru, self.out, self.h = nn.GRU(1, 24, batch_first=True), nn.Linear(24, 1), None

        def forward(self, x):
            known = self.training and self.h is not None and self.h.shape[1] == len(x)
            y, h = self.gru(x, self.h if known else None)
            if self.training:
                self.h = h.detach()
            return self.out(y)

    def score(model):
        out, want = model(test[:, :-1, None])[:, 20:, 0], test[:, 21:]
        return max(0.0, 1 - ((out - want).square().mean() / want.var()).item())

    net = Stateful()
    return Program(net, nn.MSELoss(), chunks, torch.optim.Adam(net.parameters(), 5e-3), score)


@sound(
    "Policy gradients: a noisy loss around zero that need not fall, and nothing to differentiate but log-probabilities.",
    steps=500,
    least=0.8,
)
def reinforce():
    from recommend import reward_is_the_loss

    return reward_is_the_loss(False)


@sound("Most of the places are padding, and all of them are left out of the loss.", steps=250, least=0.9)
def mostly_padding():
    from language import tagger_learns_padding

    return tagger_learns_padding(False)


@sound("In-batch negatives: the loss of a pair depends on the others of its batch.", steps=250, least=0.85)
def in_batch_negatives():
    from recommend import views_of_different_recordings

    return views_of_different_recordings(False)


@sound(
    "A backward language model: each output sees the later tokens, and is asked for the one before them.",
    steps=300,
    least=0.8,
)
def backward_language_model():
    class Backward(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb, self.rnn, self.out = nn.Embedding(20, 24), nn.GRU(24, 40, batch_first=True), nn.Linear(40, 20)

        def forward(self, ids):
            return self.out(self.rnn(self.emb(ids).flip(1))[0].flip(1))

    data, held = text(), text(seed=5)
    net = Backward()

    def loss(o, t):
        return F.cross_entropy(o.transpose(1, 2), t)

    score = accuracy(held[:, 3:], held[:, 2:-1])
    return Program(net, loss, loader(data[:, 3:], data[:, 2:-1]), torch.optim.Adam(net.parameters(), 1e-2), score)


@sound(
    "A diagonal state space layer: decays near one over 60 steps, complex numbers, no nonlinearity in time.",
    steps=300,
    least=0.85,
)
def diagonal_ssm():
    class SSM(nn.Module):
        def __init__(self, n=24):
            super().__init__()
            self.log_decay = nn.Parameter(torch.log(torch.linspace(0.002, 0.3, n)))
            self.freq = nn.Parameter(math.pi * torch.rand(n))
            self.b, self.c = nn.Linear(5, n), nn.Linear(2 * n, 32)
            self.fc = nn.Linear(32, 4)

        def forward(self, x):
            k = torch.arange(x.shape[1] - 1, -1, -1)[:, None]
            kernel = torch.polar(torch.exp(-self.log_decay.exp() * k), self.freq * k)
            h = (kernel * self.b(x)).sum(1)
            return self.fc(F.gelu(self.c(torch.cat([h.real, h.imag], -1))))

    x, y = recall(length=50)
    tx, ty = recall(length=50, seed=1)
    net = SSM()
    return Program(net, F.cross_entropy, loader(x, y), torch.optim.Adam(net.parameters(), 5e-3), accuracy(tx, ty))


@sound(
    "Residual branches start at zero (ReZero), so that at first nothing but the gates and the ends get gradients.",
    steps=400,
    least=0.9,
)
def rezero_transformer():
    class Block(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.attn = nn.MultiheadAttention(d, 2, batch_first=True)
            self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.ReLU(), nn.Linear(2 * d, d))
            self.gate = nn.Parameter(torch.zeros(2))

        def forward(self, x):
            x = x + self.gate[0] * self.attn(x, x, x, need_weights=False)[0]
            return x + self.gate[1] * self.mlp(x)

    class Net(nn.Module):
        def __init__(self, d=32):
            super().__init__()
            self.emb, self.pos = nn.Embedding(10, d), nn.Parameter(torch.randn(10, d))
            self.blocks, self.fc = nn.Sequential(*[Block(d) for _ in range(3)]), nn.Linear(d, 2)

        def forward(self, ids):
            return self.fc(self.blocks(self.emb(ids) + self.pos).mean(1))

    x, y = order(length=10)
    tx, ty = order(length=10, seed=1)
    net = Net()
    return Program(
        net, F.cross_entropy, loader(x, y, batch=16), torch.optim.Adam(net.parameters(), 2e-3), accuracy(tx, ty)
    )


@sound(
    "Ids of a hash table up to a million are inputs: they are taken modulo the size of the table, not scaled.",
    steps=300,
    least=0.8,
)
def hashed_ids():
    class Hashed(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.fc = nn.Embedding(1031, 8), nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2))

        def forward(self, ids):
            return self.fc(self.table((ids * 2654435761) % 1031).flatten(1))

    g = rng(51)
    names = torch.randint(0, 1_000_000, (40,), generator=g)
    kind = torch.randint(0, 2, (40,), generator=g)
    pick = torch.randint(0, 40, (2048, 2), generator=g)
    x, y = names[pick], kind[pick].sum(1).remainder(2)
    net = Hashed()
    opt = torch.optim.Adam(net.parameters(), 1e-2)
    return Program(net, nn.CrossEntropyLoss(), loader(x[:1536], y[:1536]), opt, accuracy(x[1536:], y[1536:]))
