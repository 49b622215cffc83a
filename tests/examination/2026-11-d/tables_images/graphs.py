"""Graphs, rewards, experts and contrasts with one mistake each."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from program import Program, fault
from torch import nn

from data import accuracy, classes, digits, graphs, loader, rng


class GCN(nn.Module):
    def __init__(self, depth=2, width=24, normalize=True, pool_all=False, residual=False):
        super().__init__()
        self.first = nn.Linear(4, width)
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(depth)])
        self.out = nn.Linear(width, 2)
        self.normalize, self.pool_all, self.residual = normalize, pool_all, residual

    def forward(self, x, adj):
        a = adj + torch.eye(adj.shape[-1])
        if self.normalize:
            d = a.sum(-1).rsqrt()
            a = d[:, :, None] * a * d[:, None, :]
        h = self.first(x).relu()
        for layer in self.layers:
            new = layer(a @ h).relu()
            h = h + new if self.residual else new
            if self.residual:
                h = F.layer_norm(h, h.shape[-1:])
        pooled = h.mean((0, 1)).expand(len(x), -1) if self.pool_all else h.mean(1)
        return self.out(pooled)


class Batches:
    def __init__(self, x, a, y, batch=32):
        self.x, self.a, self.y, self.batch = x, a, y, batch

    def __iter__(self):
        for i in torch.randperm(len(self.y)).split(self.batch):
            yield {"x": self.x[i], "adj": self.a[i]}, self.y[i]


def graph_program(model, lr=5e-3):
    x, a, y = graphs()
    tx, ta, ty = graphs(seed=1, n=300)
    score = accuracy({"x": tx, "adj": ta}, ty)
    return Program(model, F.cross_entropy, Batches(x, a, y), torch.optim.Adam(model.parameters(), lr), score)


@fault(
    "The pooling runs over all nodes of all graphs of the batch: every graph gets the same vector.",
    rules=["rank-collapse", "mixed-examples"],
    fails=True,
    steps=300,
)
def pooled_over_all_graphs(is_faulty):
    return graph_program(GCN(pool_all=is_faulty, residual=True))


@fault(
    "Twenty rounds of averaging over neighbors, with nothing carried around them: all nodes become the same.",
    rules=["rank-collapse", "vanishing-gradient"],
    fails=True,
    steps=300,
)
def oversmoothed(is_faulty):
    return graph_program(GCN(depth=20, width=16, residual=not is_faulty), lr=3e-3)


@fault(
    "The adjacency is summed over, not averaged, in eight layers: the features grow with every one of them.",
    rules=["activation-drift", "exploding-gradient", "bad-initialisation", "saturated-output"],
    fails=True,
    steps=250,
)
def adjacency_not_normalized(is_faulty):
    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(4, 24)
            self.layers = nn.ModuleList([nn.Linear(24, 24) for _ in range(8)])
            self.out = nn.Linear(24, 2)
            for layer in self.layers:
                nn.init.orthogonal_(layer.weight, gain=1.4)

        def forward(self, x, adj):
            a = adj + torch.eye(adj.shape[-1])
            if not is_faulty:
                a = a / a.sum(-1, keepdim=True)
            h = self.first(x).relu()
            for layer in self.layers:
                h = h + (layer(a @ h) if is_faulty else 0.3 * layer(a @ h)).relu()
            return self.out(h.mean(1))

    p = graph_program(Deep())
    p.optimizer = torch.optim.SGD(p.model.parameters(), lr=0.03, momentum=0.9)
    return p


@fault(
    "The gate of a mixture of experts takes its softmax over dim 0: the examples compete, not the experts.",
    rules=["wrong-softmax-dimension", "mixed-examples"],
    fails=False,
    steps=400,
)
def gate_over_the_batch(is_faulty):
    class MoE(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(8, 4)
            self.experts = nn.ModuleList(
                [nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4)) for _ in range(4)]
            )

        def forward(self, x):
            w = F.softmax(self.gate(x), dim=0 if is_faulty else 1)
            return sum(w[:, i : i + 1] * e(x) for i, e in enumerate(self.experts))

    x, y, tx, ty = classes()
    net = MoE()
    opt = torch.optim.Adam(net.parameters(), 5e-3)

    def alone(model):
        return sum(float(model(tx[i : i + 1]).argmax() == ty[i]) for i in range(200)) / 200

    return Program(net, F.cross_entropy, loader(x, y, batch=64), opt, alone)


@fault(
    "The critic's returns are in the thousands and share a trunk with the actor: its error is all of the loss.",
    rules=["term-dominates", "unscaled-target"],
    fails=True,
    steps=500,
)
def critic_drowns_actor(is_faulty):
    states = torch.randn(2048, 4, generator=rng(1))
    test = torch.randn(512, 4, generator=rng(2))
    unit = 3000.0 if is_faulty else 1.0

    def best(s):
        return (s[:, 0] > 0).long() + 2 * (s[:, 1] > 0).long()

    class ActorCritic(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = nn.Sequential(nn.Linear(4, 48), nn.Tanh())
            self.pi, self.v = nn.Linear(48, 4), nn.Linear(48, 1)

        def forward(self, s):
            h = self.trunk(s)
            return self.pi(h), self.v(h)[:, 0]

    def step(model, batch):
        s = batch[0]
        logits, value = model(s)
        dist = torch.distributions.Categorical(logits=logits)
        action = dist.sample()
        ret = unit * ((action == best(s)).float() + 0.5 * s[:, 2])
        adv = (ret - value).detach()
        adv = (adv - adv.mean()) / (adv.std() + 1e-6)
        return -(dist.log_prob(action) * adv).mean() + 0.5 * F.mse_loss(value, ret)

    def score(model):
        return (model(test)[0].argmax(-1) == best(test)).float().mean().item()

    net = ActorCritic()
    return Program(net, None, loader(states, batch=64), torch.optim.Adam(net.parameters(), 5e-3), score, step=step)


@fault(
    "Q-values are learned from rewards in cents, up to ten thousand, with the squared error.",
    rules=["unscaled-target"],
    fails=True,
    steps=400,
)
def rewards_in_cents(is_faulty):
    g = rng(11)
    s = torch.randn(2048, 4, generator=g)
    a = torch.randint(0, 3, (2048,), generator=g)
    cents = 4000.0 if is_faulty else 1.0
    centers = torch.tensor([[1.0, 0, 0, 0], [-1.0, 1, 0, 0], [0, -1.0, 0, 0]])

    def worth(s):
        return -(s[:, None] - centers).square().sum(-1) / 4

    r = cents * worth(s)[torch.arange(2048), a]
    test = torch.randn(512, 4, generator=g)
    net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))

    def step(net, batch):
        s, a, r = batch
        return F.mse_loss(net(s).gather(1, a[:, None])[:, 0], r)

    def score(net):
        want = cents * worth(test)
        return max(0.0, 1 - ((net(test) - want).square().mean() / want.var()).item())

    return Program(net, None, loader(s, a, r, batch=64), torch.optim.Adam(net.parameters(), 1e-3), score, step=step)


@fault(
    "A gradient reversal layer of a domain classifier is left in the path of the class: the body learns to be wrong.",
    rules=["diverging", "loss-not-decreasing"],
    fails=True,
    steps=300,
)
def reversal_in_the_wrong_path(is_faulty):
    class Reverse(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            return -g

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4), nn.Tanh())
            self.classify = nn.Linear(4, 4)

        def forward(self, x):
            h = self.body(x)
            return self.classify(Reverse.apply(h) if is_faulty else h)

    x, y, tx, ty = classes()
    net = Net()
    return Program(net, F.cross_entropy, loader(x, y), torch.optim.Adam(net.parameters(), 1e-2), accuracy(tx, ty))


@fault(
    "Every head of the ensemble is the same object, [head] * 3, though each has a task of its own.",
    rules=["shared-weight"],
    layers=["heads"],
    fails=False,
    steps=400,
)
def one_object_three_tasks(is_faulty):
    x, y, tx, ty = digits()

    def tasks(y):
        return torch.stack([y % 2, (y > 4).long(), (y % 3 == 0).long()], 1)

    class Multi(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU())
            head = nn.Linear(64, 2)
            self.heads = nn.ModuleList([head] * 3 if is_faulty else [nn.Linear(64, 2) for _ in range(3)])

        def forward(self, x):
            h = self.body(x)
            return torch.stack([head(h) for head in self.heads], -1)

    net = Multi()
    return Program(
        net, F.cross_entropy, loader(x, tasks(y)), torch.optim.Adam(net.parameters(), 5e-3), accuracy(tx, tasks(ty))
    )
