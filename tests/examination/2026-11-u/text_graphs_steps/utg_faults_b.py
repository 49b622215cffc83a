import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from program import Program, fault
from utg_data import (utg_accuracy, utg_clouds, utg_gen, utg_graph, utg_keyword, utg_loader, utg_markov, utg_r2,
                      utg_tagged)


def utg_episodes(count, seed, ways=5, shots=2, queries=4):
    """Few-shot tasks: classes are directions in a few of many features, the rest are noise."""
    g = utg_gen(seed)
    plane = torch.randn(4, 24, generator=utg_gen(1234))
    result = []
    for _ in range(count):
        centre = 1.6 * torch.randn(ways, 1, 4, generator=g)
        z = centre + 0.3 * torch.randn(ways, shots + queries, 4, generator=g)
        noise = 3 * torch.randn(ways, shots + queries, 24, generator=g)
        noise = noise - noise @ torch.linalg.pinv(plane) @ plane
        x = (z @ plane) * 0.5 + noise
        result.append((x[:, :shots], x[:, shots:].reshape(-1, 24), torch.arange(ways).repeat_interleave(queries)))
    return result


class UtgProto(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 16))
        self.log_scale = nn.Parameter(torch.zeros(()))

    def logits(self, support, query, frozen):
        with torch.set_grad_enabled(torch.is_grad_enabled() and not frozen):
            proto, z = self.encoder(support).mean(1), self.encoder(query)
        return -self.log_scale.exp() * torch.cdist(z, proto).square()


def utg_mlp(sizes, act=nn.Tanh):
    parts = []
    for a, b in zip(sizes, sizes[1:]):
        parts += [nn.Linear(a, b), act()]
    return nn.Sequential(*parts[:-1])


@fault("the PINN's second derivative is taken with retain_graph=True where create_graph=True was needed: a constant",
       rules=["diverging", "loss-not-decreasing", "no-gradient"], fails=True, steps=500)
def utg_pinn_no_graph(is_faulty):
    net = utg_mlp([1, 32, 32, 1])
    grid = torch.linspace(0, 1.5, 101)[:, None]

    def step(model, t):
        t = t.clone().requires_grad_()
        u = model(t)
        du = torch.autograd.grad(u.sum(), t, create_graph=True)[0]
        if is_faulty:
            ddu = torch.autograd.grad(du.sum(), t, retain_graph=True)[0]
        else:
            ddu = torch.autograd.grad(du.sum(), t, create_graph=True)[0]
        zero = torch.zeros(1, 1, requires_grad=True)
        u0 = model(zero)
        v0 = torch.autograd.grad(u0.sum(), zero, create_graph=True)[0]
        return (ddu + 4 * u).square().mean() + 10 * ((u0 - 1).square() + v0.square()).mean()

    return Program(net, None, [1.5 * torch.rand(64, 1, generator=utg_gen(i)) for i in range(20)],
                   torch.optim.Adam(net.parameters(), 5e-3), lambda m: utg_r2(m(grid), (2 * grid).cos()), step=step)


@fault("the residual of a homogeneous equation is weighted 10,000 times: u = 0 fulfils it, and the start value is lost",
       rules=["term-dominates"], fails=True, steps=500)
def utg_pinn_weights(is_faulty):
    net = utg_mlp([1, 32, 32, 1])
    grid = torch.linspace(0, 2, 101)[:, None]

    def step(model, t):
        t = t.clone().requires_grad_()
        u = model(t)
        du = torch.autograd.grad(u.sum(), t, create_graph=True)[0]
        residual = (du + 2 * u).square().mean()
        start = (model(torch.zeros(1, 1)) - 1).square().mean()
        return (1e4 if is_faulty else 1.0) * residual + start

    return Program(net, None, [2 * torch.rand(64, 1, generator=utg_gen(i)) for i in range(20)],
                   torch.optim.Adam(net.parameters(), 5e-3), lambda m: utg_r2(m(grid), (-2 * grid).exp()), step=step)


class UtgDeepSets(nn.Module):
    def __init__(self, features, out, constant=None, act=nn.ReLU):
        super().__init__()
        self.phi = nn.Sequential(nn.Linear(features, 48), act(), nn.Linear(48, 48), act())
        self.rho = nn.Sequential(nn.Linear(48, 48), act(), nn.Linear(48, out))
        if constant is not None:
            for m in self.modules():
                if isinstance(m, nn.Linear):
                    nn.init.constant_(m.weight, constant)
                    nn.init.zeros_(m.bias)

    def forward(self, x):
        return self.rho(self.phi(x).mean(1))


def utg_sets(n, seed):
    """Sets of points of the plane; the class is where they lie and how wide they are."""
    g = utg_gen(seed)
    y = torch.randint(4, (n,), generator=g)
    wide = torch.where(y % 2 == 1, 1.5, 0.6)[:, None, None]
    centre = torch.where(y >= 2, 0.5, -0.5)[:, None, None] * torch.tensor([1.0, -1.0])
    return centre + wide * torch.randn(n, 20, 2, generator=g), y


@fault("all weights of a DeepSets network start at the same constant",
       rules=["symmetric-initialisation", "bad-initialisation"], fails=False, steps=250)
def utg_sets_constant(is_faulty):
    x, y = utg_sets(1000, 33)
    vx, vy = utg_sets(400, 34)
    model = UtgDeepSets(2, 4, constant=0.05 if is_faulty else None)
    return Program(model, nn.CrossEntropyLoss(), utg_loader(x, y), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: utg_accuracy(m(vx), vy))


class UtgBag(nn.Module):
    def __init__(self, vocab, classes):
        super().__init__()
        self.emb = nn.Embedding(vocab, 24)
        self.gru = nn.GRU(24, 24, batch_first=True)
        self.out = nn.Linear(24, classes)

    def forward(self, ids):
        return self.out(self.gru(self.emb(ids))[0].mean(1))


def utg_topics(n, vocab, classes, seed, length=14, strength=0.35):
    g = utg_gen(seed)
    y = torch.randint(classes, (n,), generator=g)
    ids = torch.randint(vocab, (n, length), generator=g)
    own = y[:, None] * (vocab // classes) + torch.randint(vocab // classes, (n, length), generator=g)
    return torch.where(torch.rand(n, length, generator=g) < strength, own, ids), y


class UtgTransducer(nn.Module):
    """Maps a sequence to one of the same length, read backwards: encoder, learned queries, decoder."""

    def __init__(self, vocab, length, d=32):
        super().__init__()
        self.enc_embed = nn.Embedding(vocab, d)
        self.enc_rnn = nn.GRU(d, d, batch_first=True, bidirectional=True)
        self.decoder = nn.Sequential(nn.Linear(2 * d, 2 * d), nn.ReLU(), nn.Linear(2 * d, vocab))

    def forward(self, src):
        return self.decoder(self.enc_rnn(self.enc_embed(src))[0])


def utg_translated(n, seed, vocab=20, length=8):
    """The translation of a word depends on whether the word after it is a large one."""
    ids = torch.randint(vocab, (n, length), generator=utg_gen(seed))
    after = torch.cat([ids[:, 1:], ids[:, :1] * 0], 1) >= vocab // 2
    one, two = (torch.randperm(vocab, generator=utg_gen(s)) for s in (41, 42))
    return ids, torch.where(after, one[ids], two[ids])


@fault("parameter groups by name: the encoder's layers are called enc_..., the filter asks for encoder.",
       rules=["no-gradient"], layers=["enc_embed", "enc_rnn"], fails=False, steps=200)
def utg_group_filter(is_faulty):
    x, y = utg_translated(1000, 37)
    vx, vy = utg_translated(300, 38)
    model = UtgTransducer(20, 8)
    prefix = "encoder." if is_faulty else "enc_"
    named = list(model.named_parameters())
    groups = [{"params": [p for n, p in named if n.startswith("decoder")], "lr": 5e-3},
              {"params": [p for n, p in named if n.startswith(prefix)], "lr": 5e-3, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW([group for group in groups if group["params"]], weight_decay=0.01)
    return Program(model, lambda o, t: F.cross_entropy(o.transpose(1, 2), t), utg_loader(x, y), optimizer,
                   lambda m: utg_accuracy(m(vx), vy))


class UtgNormedGNN(nn.Module):
    def __init__(self, shared, momentum=0.1):
        super().__init__()
        self.lift = nn.Linear(8, 32)
        self.msgs = nn.ModuleList([nn.Linear(32, 32) for _ in range(3)])
        first = nn.BatchNorm1d(32, momentum=momentum)
        self.norms = nn.ModuleList([first] + [first if shared else nn.BatchNorm1d(32, momentum=momentum)
                                              for _ in range(2)])
        self.head = nn.Linear(32, 3)

    def forward(self, x, adj):
        h = self.lift(x)
        for msg, norm in zip(self.msgs, self.norms):
            h = h + F.relu(norm((adj @ msg(h)).flatten(0, 1))).view_as(h)
        return self.head(h.mean(1))


def utg_small_graphs(n, seed, nodes=12):
    """Rings, stars and random trees with features of their nodes."""
    g = utg_gen(seed)
    y = torch.randint(3, (n,), generator=g)
    adj = torch.zeros(n, nodes, nodes)
    for k in range(n):
        i = torch.arange(1, nodes)
        if y[k] == 0:
            j = i - 1
            adj[k, 0, nodes - 1] = adj[k, nodes - 1, 0] = 1
        elif y[k] == 1:
            j = torch.zeros_like(i)
        else:
            j = (torch.rand(nodes - 1, generator=g) * i).long()
        adj[k, i, j] = 1
        adj[k, j, i] = 1
    x = torch.randn(n, nodes, 8, generator=g) * 0.5
    x[..., 0] = 1 + 0.1 * x[..., 0]
    return x, adj, y


def utg_graph_batches(x, adj, y, batch=32):
    return [({"x": a, "adj": b}, c) for a, b, c in zip(x.split(batch), adj.split(batch), y.split(batch))]


@fault("one BatchNorm for three message-passing layers of different scales: its running statistics fit none",
       rules=["shared-weight", "batchnorm-mode-gap"], layers=["norms"], fails=False, steps=200)
def utg_shared_norm(is_faulty):
    x, adj, y = utg_small_graphs(600, 43)
    vx, va, vy = utg_small_graphs(300, 44)
    model = UtgNormedGNN(is_faulty)
    return Program(model, F.cross_entropy, utg_graph_batches(x, adj, y), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: utg_accuracy(m(vx, va), vy))


class UtgWordDrop(nn.Module):
    def __init__(self, always):
        super().__init__()
        self.always = always
        self.emb = nn.Embedding(60, 32)
        self.conv = nn.Conv1d(32, 48, 3, padding=1)
        self.fc1, self.fc2 = nn.Linear(48, 48), nn.Linear(48, 12)

    def drop(self, x):
        return F.dropout(x, 0.5) if self.always else F.dropout(x, 0.5, self.training)

    def forward(self, ids):
        h = self.drop(self.emb(ids)).transpose(1, 2)
        h = self.drop(F.relu(self.conv(h)).mean(2))
        return self.fc2(self.drop(F.relu(self.fc1(h))))


@fault("F.dropout without training=self.training: dropout stays on in evaluation mode",
       rules=["dropout-in-eval"], fails=False, steps=300)
def utg_functional_dropout(is_faulty):
    ids, y = utg_topics(1500, 60, 12, 47, length=16, strength=0.5)
    vi, vy = utg_topics(500, 60, 12, 48, length=16, strength=0.5)
    model = UtgWordDrop(is_faulty)
    return Program(model, nn.CrossEntropyLoss(), utg_loader(ids, y), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: utg_accuracy(m(vi), vy))


class UtgKeep(nn.Module):
    def __init__(self, rate):
        super().__init__()
        self.embedding = nn.Embedding(20, 32)
        self.dropout = nn.Dropout(rate)
        self.lstm = nn.LSTM(32, 48, batch_first=True)
        self.decoder = nn.Linear(48, 20)

    def forward(self, ids):
        h, _ = self.lstm(self.dropout(self.embedding(ids)))
        return self.decoder(self.dropout(h))


class UtgCell(nn.Module):
    """A plain recurrent network with its own cell, which says at the end what it was shown first."""

    def __init__(self, act, init):
        super().__init__()
        self.act = act
        self.inp = nn.Linear(6, 32)
        self.rec = nn.Linear(32, 32, bias=False)
        self.out = nn.Linear(32, 5)
        init(self.rec.weight)

    def forward(self, x):
        h = torch.zeros(x.shape[0], 32)
        for t in range(x.shape[1]):
            h = self.act(self.inp(x[:, t]) + self.rec(h))
        return self.out(h)


def utg_recall(n, length, seed, amount=0.1):
    g = utg_gen(seed)
    y = torch.randint(5, (n,), generator=g)
    x = torch.zeros(n, length, 6)
    x[:, 0, :5] = F.one_hot(y, 5).float()
    x[:, 1:, 5] = amount * torch.randn(n, length - 1, generator=g)
    return x, y


@fault("recurrent weights start at a standard deviation of 0.02: the gradient is gone after a few steps",
       rules=["vanishing-gradient", "bad-initialisation", "rank-collapse"], layers=["rec"], fails=True, steps=200)
def utg_rnn_tiny_weights(is_faulty):
    x, y = utg_recall(640, 20, 51)
    vx, vy = utg_recall(300, 20, 52)
    model = UtgCell(torch.tanh, (lambda w: nn.init.normal_(w, std=0.02)) if is_faulty else nn.init.orthogonal_)
    return Program(model, F.cross_entropy, utg_loader(x, y), torch.optim.Adam(model.parameters(), 2e-3),
                   lambda m: utg_accuracy(m(vx), vy))


class UtgTimeFirst(nn.Module):
    def __init__(self, vocab):
        super().__init__()
        self.emb = nn.Embedding(vocab, 32)
        self.rnn = nn.GRU(32, 48, bidirectional=True)
        self.proj = nn.Linear(96, vocab)

    def forward(self, src):
        return self.proj(self.rnn(self.emb(src.t()))[0])  # (time, batch, vocabulary)


@fault("time-first logits are flattened against batch-first targets: outputs are paired with others' words",
       rules=["output-loss-mismatch", "labels-unrelated"], fails=True, steps=200)
def utg_flatten_order(is_faulty):
    x, y = utg_translated(1000, 55)
    vx, vy = utg_translated(300, 56)
    model = UtgTimeFirst(20)

    def loss(out, target):
        target = target if is_faulty else target.t()
        return F.cross_entropy(out.reshape(-1, out.shape[-1]), target.reshape(-1))

    return Program(model, loss, utg_loader(x, y), torch.optim.Adam(model.parameters(), 5e-3),
                   lambda m: utg_accuracy(m(vx).transpose(0, 1), vy))


class UtgConvTagger(nn.Module):
    def __init__(self, vocab, tags):
        super().__init__()
        self.embed = nn.Embedding(vocab, 32)
        self.body = nn.Sequential(nn.Conv1d(32, 64, 3, padding=1), nn.ReLU(), nn.Conv1d(64, tags, 1))

    def forward(self, ids):
        return self.body(self.embed(ids).transpose(1, 2))  # (batch, tags, time), as cross_entropy takes it


@fault("Adam(weight_decay=0.1) where AdamW was meant: the L2 term outweighs the gradient",
       rules=["weight-decay-dominates"], fails=False, steps=250)
def utg_adam_decay(is_faulty):
    ids, tags, _ = utg_tagged(800, 12, 40, 6, 59, shortest=12)
    vi, vt, _ = utg_tagged(300, 12, 40, 6, 60, shortest=12)
    model = UtgConvTagger(40, 7)
    kind = torch.optim.Adam if is_faulty else torch.optim.AdamW
    return Program(model, F.cross_entropy, utg_loader(ids, tags),
                   kind(model.parameters(), lr=3e-3, weight_decay=0.1),
                   lambda m: utg_accuracy(m(vi).transpose(1, 2), vt))


@fault("Noam's schedule with a warm-up of 4,000 epochs' worth of steps in a run of a few hundred",
       rules=["learning-rate-too-low"], fails=True, steps=200)
def utg_warmup_endless(is_faulty):
    ids, y = utg_topics(1280, 100, 4, 61)
    vi, vy = utg_topics(400, 100, 4, 62)
    warm = 4000 * 40 if is_faulty else 40
    model = nn.Sequential(nn.EmbeddingBag(100, 32), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), 5e-3)
    return Program(model, F.cross_entropy, utg_loader(ids, y), optimizer, lambda m: utg_accuracy(m(vi), vy),
                   scheduler=LambdaLR(optimizer, lambda k: min((k + 1) / warm, math.sqrt(warm / (k + 1)))))


class UtgNGram(nn.Module):
    def __init__(self, vocab, context):
        super().__init__()
        self.c = nn.Embedding(vocab, 16)
        self.h = nn.Linear(16 * context, 64)
        self.u = nn.Linear(64, vocab)

    def forward(self, window):
        return self.u(F.relu(self.h(self.c(window).flatten(1))))


@fault("the language model's loss is summed over the windows of the batch, at a rate meant for the mean",
       rules=["summed-loss", "learning-rate-too-high", "diverging", "non-finite"], fails=True, steps=300)
def utg_lm_summed(is_faulty):
    windows = utg_markov(500, 12, 12, 63).unfold(1, 4, 1).flatten(0, 1)
    held = utg_markov(100, 12, 12, 64).unfold(1, 4, 1).flatten(0, 1)
    model = UtgNGram(12, 3)
    criterion = nn.CrossEntropyLoss(reduction="sum" if is_faulty else "mean")
    return Program(model, criterion, utg_loader(windows[:, :3], windows[:, 3], batch=64),
                   torch.optim.SGD(model.parameters(), 0.3, momentum=0.9),
                   lambda m: utg_accuracy(m(held[:, :3]), held[:, 3]))


class UtgMaskedPool(nn.Module):
    def __init__(self, fill):
        super().__init__()
        self.fill = fill
        self.item = nn.Linear(5, 32)
        self.query = nn.Linear(32, 1)
        self.head = nn.Linear(32, 3)

    def forward(self, x, present):
        h = torch.tanh(self.item(x))
        w = self.query(h).squeeze(-1).masked_fill(~present, self.fill).softmax(-1)
        return self.head((w[..., None] * h).sum(1))


@fault("sets may be empty, and the attention masks with -inf: their softmax is 0/0",
       rules=["non-finite", "wrong-mask"], fails=True, steps=250)
def utg_empty_sets(is_faulty):
    def make(n, seed):
        g = utg_gen(seed)
        size = torch.randint(0, 9, (n,), generator=g)
        present = torch.arange(8)[None] < size[:, None]
        y = torch.randint(1, 3, (n,), generator=g)
        x = torch.randn(n, 8, 5, generator=g) * 0.8
        x[..., 0] += (2.0 * y - 3)[:, None]
        return x, present, torch.where(size > 0, y, 0)

    x, p, y = make(900, 65)
    vx, vp, vy = make(300, 66)
    model = UtgMaskedPool(float("-inf") if is_faulty else -1e9)
    data = [({"x": a, "present": b}, c) for a, b, c in zip(x.split(32), p.split(32), y.split(32))]
    return Program(model, F.cross_entropy, data, torch.optim.Adam(model.parameters(), 5e-3),
                   lambda m: utg_accuracy(m(vx, vp), vy))


class UtgTied(nn.Module):
    def __init__(self, std):
        super().__init__()
        self.tok = nn.Embedding(30, 128)
        self.gru = nn.GRU(128, 128, batch_first=True)
        self.decoder = nn.Linear(128, 30, bias=False)
        self.decoder.weight = self.tok.weight
        nn.init.normal_(self.tok.weight, std=std)

    def forward(self, ids):
        e = self.tok(ids)
        return self.decoder(F.layer_norm(e + self.gru(e)[0], (128,)))


class UtgLastStep(nn.Module):
    def __init__(self, at_length):
        super().__init__()
        self.at_length = at_length
        self.embed = nn.Embedding(40, 24)
        self.rnn = nn.RNN(24, 32, batch_first=True)
        self.fc = nn.Linear(32, 5)

    def forward(self, ids, lengths):
        h, _ = self.rnn(self.embed(ids))
        last = h[torch.arange(len(ids)), lengths - 1] if self.at_length else h[:, -1]
        return self.fc(last)
