import math

import torch
import torch.nn.functional as F
from osq_common import acc, digits, gen, loader, r2, split, table
from program import Program, fault, sound
from torch import nn
from torch.func import functional_call


# mixtures of experts
def pieces(n, seed):
    g = gen(seed)
    x = torch.randn(n, 4, generator=g)
    w = 1.5 * torch.randn(4, 4, generator=gen(70))
    k = (x[:, 0] > 0).long() * 2 + (x[:, 1] > 0).long()
    return x, (x * w[k]).sum(1) + 0.05 * torch.randn(n, generator=g)


class MoE(nn.Module):
    def __init__(self, dim=-1, same=False, n=4):
        super().__init__()
        self.gate = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, n), nn.Softmax(dim=dim))
        one = nn.Linear(4, 1)
        self.experts = nn.ModuleList([one] * n if same else [nn.Linear(4, 1) for _ in range(n)])

    def forward(self, x):
        out = torch.cat([e(x) for e in self.experts], 1)
        return (self.gate(x) * out).sum(1)


@fault("the gate's softmax runs over the batch", rules=("wrong-softmax-dimension", "mixed-examples"), layers=("gate",), fails=False, steps=500)
def osq_moe_gate_dim(is_faulty):
    x, y = pieces(2000, 71)
    xv, yv = pieces(300, 72)
    m = MoE(dim=0 if is_faulty else 1)
    return Program(m, nn.MSELoss(), loader(x, y, bs=64), torch.optim.Adam(m.parameters(), 1e-2), lambda model: r2(model(xv), yv))


@fault("[expert] * 4: all experts are one", rules=("shared-weight",), layers=("experts",), fails=False, steps=500)
def osq_moe_one_expert(is_faulty):
    x, y = pieces(2000, 73)
    xv, yv = pieces(300, 74)
    m = MoE(same=is_faulty)
    return Program(m, None, loader(x, y, bs=64), torch.optim.Adam(m.parameters(), 1e-2), lambda model: r2(model(xv), yv),
                   step=lambda model, batch: F.mse_loss(model(batch[0]), batch[1]))


@sound("a mixture of experts with a load-balancing term", steps=500, least=0.6)
def osq_s_moe_balanced():
    x, y = pieces(2000, 75)
    xv, yv = pieces(300, 76)
    m = MoE(n=6)

    def step(model, batch):
        x, y = batch
        return F.mse_loss(model(x), y) + 0.01 * 6 * model.gate(x).mean(0).pow(2).sum()

    return Program(m, None, loader(x, y, bs=64), torch.optim.Adam(m.parameters(), 1e-2), lambda model: r2(model(xv), yv), step=step)


# recommenders
def ratings(n, seed, users=60, items=50):
    g = gen(seed)
    u, v = torch.randn(users, 3, generator=gen(77)), torch.randn(items, 3, generator=gen(78))
    i, j = torch.randint(0, users, (n,), generator=g), torch.randint(0, items, (n,), generator=g)
    return i, j, (u[i] * v[j]).sum(1) / 3**0.5 + 0.05 * torch.randn(n, generator=g)


class MF(nn.Module):
    def __init__(self, init):
        super().__init__()
        self.user, self.item = nn.Embedding(60, 8), nn.Embedding(50, 8)
        init(self.user.weight)
        init(self.item.weight)

    def forward(self, i, j):
        return (self.user(i) * self.item(j)).sum(1)


def mf_program(m, opt, seed, bs=256):
    i, j, r = ratings(2200, seed)
    iv, jv, rv = ratings(500, seed + 1)
    return Program(m, None, loader(i, j, r, bs=bs), opt, lambda model: r2(model(iv, jv), rv),
                   step=lambda model, batch: F.mse_loss(model(batch[0], batch[1]), batch[2]))


@fault("all factors of users and items start at 0.1", rules=("symmetric-initialisation", "bad-initialisation"), layers=("user", "item"), fails=False, steps=400)
def osq_mf_constant_factors(is_faulty):
    m = MF((lambda w: nn.init.constant_(w, 0.1)) if is_faulty else (lambda w: nn.init.normal_(w, std=0.3)))
    return mf_program(m, torch.optim.Adam(m.parameters(), 2e-2), 80)


@fault("weight decay of 0.1 in plain Adam", rules=("weight-decay-dominates",), fails=True, steps=400)
def osq_mf_weight_decay(is_faulty):
    m = MF(lambda w: nn.init.normal_(w, std=0.3))
    return mf_program(m, torch.optim.Adam(m.parameters(), 2e-2, weight_decay=0.1 if is_faulty else 1e-5), 82)


@fault("a rate of SGD that is ordinary elsewhere, for embeddings that a batch reaches rarely", rules=("learning-rate-too-low",), fails=True, steps=500)
def osq_mf_sgd_rate(is_faulty):
    m = MF(lambda w: nn.init.normal_(w, std=0.5))
    return mf_program(m, torch.optim.SGD(m.parameters(), 0.005 if is_faulty else 1.5, momentum=0.9), 84)


@sound("factors that start at N(0, 0.3²), whose gradients are mostly 0", steps=400, least=0.6)
def osq_s_mf():
    m = MF(lambda w: nn.init.normal_(w, std=0.3))
    return mf_program(m, torch.optim.Adam(m.parameters(), 2e-2), 86)


@fault("a tower with Dropout(0.95), meant as the share that is kept", rules=("dropout-too-strong",), layers=("drop",), fails=True, steps=300)
def osq_tower_keep_prob(is_faulty):
    xt, yt, xv, yv = digits()

    class Tower(nn.Module):
        def __init__(self):
            super().__init__()
            self.item = nn.Embedding(10, 16)
            self.lin1 = nn.Linear(64, 32)
            self.drop = nn.Dropout(0.95 if is_faulty else 0.05)
            self.lin2 = nn.Linear(32, 16)

        def forward(self, x):
            return self.lin2(self.drop(torch.relu(self.lin1(x)))) @ self.item.weight.T / 4

    m = Tower()
    return Program(m, None, loader(xt, yt, bs=64), torch.optim.Adam(m.parameters(), 3e-3), lambda model: float(model(xv).softmax(1).gather(1, yv[:, None]).mean()),
                   step=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]))


def histories(n, seed, t=10, items=12):
    g = gen(seed)
    step = torch.randint(1, 4, (n, 1), generator=g)
    jump = torch.where(torch.rand(n, t + 1, generator=g) < 0.08, torch.randint(0, items, (n, t + 1), generator=g), step.expand(-1, t + 1))
    return jump.cumsum(1) % items + 1


class SAS(nn.Module):
    def __init__(self, causal=True, t=10, items=13, pad=False):
        super().__init__()
        self.causal, self.pad = causal, pad
        self.item = nn.Embedding(items, 32, padding_idx=0)
        self.place = nn.Parameter(0.1 * torch.randn(t, 32))
        layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(32, items)

    def forward(self, s):
        mask = torch.triu(torch.ones(s.shape[1], s.shape[1], dtype=torch.bool), 1) if self.causal else None
        return self.out(self.encoder(self.item(s) + self.place[:s.shape[1]], mask=mask, src_key_padding_mask=(s == 0) if self.pad else None))


@fault("a recommender of next items that sees them, for want of a causal mask", rules=("future-seen",), layers=("encoder",), fails=False, steps=250)
def osq_sasrec_no_causal_mask(is_faulty):
    h, hv = histories(2000, 88), histories(300, 89)
    m = SAS(causal=not is_faulty)

    def step(model, batch):
        s, nxt = batch
        return F.cross_entropy(model(s).flatten(0, 1), nxt.flatten())

    return Program(m, None, loader(h[:, :-1], h[:, 1:], bs=32), torch.optim.Adam(m.parameters(), 3e-3),
                   lambda model: sum(acc(model(hv[:, :k])[:, -1], hv[:, k]) for k in range(3, 11)) / 8, step=step)


@sound("histories of several lengths, padded, masked and ignored by the loss", steps=300, least=0.6)
def osq_s_sasrec_padded():
    g = gen(90)
    def padded(n, seed):
        h = histories(n, seed)
        s, nxt = h[:, :-1].clone(), h[:, 1:].clone()
        drop = torch.arange(10)[None] >= torch.randint(4, 11, (n, 1), generator=g)
        s[drop], nxt[drop] = 0, 0
        return s, nxt
    s, nxt = padded(2000, 91)
    sv, nv = padded(300, 92)
    m = SAS(pad=True)

    def score(model):
        out = model(sv).argmax(-1)[:, 2:]
        return float((out == nv[:, 2:])[nv[:, 2:] > 0].float().mean())

    return Program(m, None, loader(s, nxt, bs=32), torch.optim.Adam(m.parameters(), 3e-3), score,
                   step=lambda model, batch: F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten(), ignore_index=0))


@fault("a mask of the real places where that of the padding is asked for", rules=("wrong-mask",), layers=("pool",), fails=True, steps=300)
def osq_attention_pool_mask(is_faulty):
    def data(n, seed):
        g = gen(seed)
        x = torch.randn(n, 8, 6, generator=g)
        k = torch.randint(2, 7, (n,), generator=g)
        real = torch.arange(8)[None] < k[:, None]
        x = x * real[..., None]
        return x, real, ((x[..., 0] * real).sum(1) > 0).long() + 2 * ((x[..., 1] * real).sum(1) > 0).long()
    x, real, y = data(2000, 93)
    xv, rv, yv = data(500, 94)

    class Pool(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 32))
            self.query = nn.Parameter(0.1 * torch.randn(1, 1, 32))
            self.pool = nn.MultiheadAttention(32, 2, batch_first=True)
            self.head = nn.Linear(32, 4)

        def forward(self, x, real):
            h = self.embed(x)
            return self.head(self.pool(self.query.expand(len(x), -1, -1), h, h, key_padding_mask=real if is_faulty else ~real)[0][:, 0])

    m = Pool()
    return Program(m, None, loader(x, real, y, bs=64), torch.optim.Adam(m.parameters(), 3e-3), lambda model: acc(model(xv, rv), yv),
                   step=lambda model, batch: F.cross_entropy(model(batch[0], batch[1]), batch[2]))


# graphs
def blocks(n=100, k=4, p=0.4, q=0.03, seed=95):
    g = gen(seed)
    c = torch.arange(n) % k
    prob = torch.where(c[:, None] == c[None], p, q)
    a = (torch.rand(n, n, generator=g) < prob).float().triu(1)
    a = a + a.T
    hat = a + torch.eye(n)
    d = hat.sum(1).rsqrt()
    x = F.one_hot(c, k).float() + 1.0 * torch.randn(n, k, generator=g)
    return x, c, a, d[:, None] * hat * d[None]


class Edges:
    def __init__(self, a, n=20, bs=128):
        self.pos, self.neg, self.n, self.bs = a.nonzero(), (a + torch.eye(len(a)) == 0).nonzero(), n, bs

    def __len__(self):
        return self.n

    def __iter__(self):
        for _ in range(self.n):
            p = self.pos[torch.randint(0, len(self.pos), (self.bs // 2,))]
            q = self.neg[torch.randint(0, len(self.neg), (self.bs // 2,))]
            yield torch.cat([p, q]), torch.cat([torch.ones(len(p)), torch.zeros(len(q))])


class GAE(nn.Module):
    def __init__(self, x, norm, end):
        super().__init__()
        self.register_buffer("x", x)
        self.register_buffer("norm", norm)
        self.one, self.two, self.end = nn.Linear(x.shape[1], 32), nn.Linear(32, 8), end

    def forward(self, e):
        z = self.end(self.norm @ self.two(torch.relu(self.norm @ self.one(self.x))))
        return (z[e[:, 0]] * z[e[:, 1]]).sum(1)


def gae_program(end):
    x, c, a, norm = blocks()
    g = gen(96)
    order = torch.rand(a.shape, generator=g).triu(1)
    held = (order + order.T) > 0.8
    m = GAE(x, norm, end)
    keep = a * ~held
    every = torch.ones(len(a), len(a)).triu(1).nonzero()
    same = c[every[:, 0]] == c[every[:, 1]]

    def score(model):
        up = model(every) > 0
        return float(up[same].float().mean() + (~up[~same]).float().mean() - 1)

    return Program(m, None, Edges(keep), torch.optim.Adam(m.parameters(), 1e-2), score,
                   step=lambda model, batch: F.binary_cross_entropy_with_logits(model(batch[0]), batch[1]))


@fault("a graph autoencoder whose embeddings end in a ReLU: inner products are never negative", rules=("output-loss-mismatch",), layers=("end",), fails=False, steps=300)
def osq_gae_relu_embedding(is_faulty):
    return gae_program(nn.ReLU() if is_faulty else nn.Identity())


@sound("a graph autoencoder on sampled edges, which are no labels of nodes", steps=300, least=0.6)
def osq_s_gae():
    return gae_program(nn.Identity())


@fault("twelve graph convolutions in a row smooth all nodes to one", rules=("rank-collapse", "vanishing-gradient"), fails=True, steps=300)
def osq_gcn_oversmoothing(is_faulty):
    x, c, a, norm = blocks(n=160, p=0.15, q=0.04, seed=97)
    idx = torch.randperm(160, generator=gen(98))

    class GCN(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("x", x)
            self.register_buffer("norm", norm)
            self.first = nn.Linear(4, 24)
            self.convs = nn.ModuleList(nn.Linear(24, 24) for _ in range(12))
            self.head = nn.Linear(24, 4)

        def forward(self, i):
            h = h0 = self.first(self.x)
            for conv in self.convs:
                step = torch.relu(conv(self.norm @ h))
                h = step if is_faulty else 0.5 * h0 + 0.5 * step
            return self.head(h)[i]

    m = GCN()
    t, v = idx[:120], idx[120:]
    return Program(m, nn.CrossEntropyLoss(), loader(t, c[t], bs=40), torch.optim.Adam(m.parameters(), 3e-3), lambda model: acc(model(v), c[v]))


# physics
class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, x):
        return self.net(x)


def second(model, x):
    x = x.requires_grad_(True)
    u = model(x)
    du = torch.autograd.grad(u.sum(), x, create_graph=True)[0]
    return u, du, torch.autograd.grad(du.sum(), x, create_graph=True)[0]


@fault("the residual in units of a conductivity of 400, next to boundary values of order 1", rules=("term-dominates",), fails=False, steps=600)
def osq_pinn_residual_units(is_faulty):
    k = 400.0
    m = Field()
    edge, value = torch.tensor([[0.0], [1.0]]), torch.tensor([[0.0], [2.0]])

    def step(model, batch):
        x, = batch
        _, _, uxx = second(model, x.clone())
        res = k * uxx + k * math.pi**2 * torch.sin(math.pi * x)
        if not is_faulty:
            res = res / (k * math.pi**2)
        return res.pow(2).mean() + (model(edge) - value).pow(2).mean()

    xv = torch.linspace(0, 1, 101)[:, None]
    return Program(m, None, loader(torch.rand(1000, 1, generator=gen(99)), bs=32), torch.optim.Adam(m.parameters(), 5e-3),
                   lambda model: r2(model(xv), torch.sin(math.pi * xv) + 2 * xv), step=step)


@sound("a physics-informed loss of an oscillator, which has no targets", steps=500, least=0.7)
def osq_s_pinn():
    m = Field()

    def step(model, batch):
        x, = batch
        u, _, uxx = second(model, x.clone())
        zero = torch.zeros(1, 1)
        u0, du0, _ = second(model, zero)
        return (uxx + 4 * u).pow(2).mean() / 4 + 5 * ((u0 - 1).pow(2).mean() + du0.pow(2).mean())

    xv = torch.linspace(0, 2, 101)[:, None]
    return Program(m, None, loader(2 * torch.rand(1000, 1, generator=gen(100)), bs=32), torch.optim.Adam(m.parameters(), 5e-3),
                   lambda model: r2(model(xv), torch.cos(2 * xv)), step=step)


# energies
def ring(n, seed):
    g = gen(seed)
    a = 2 * math.pi * torch.rand(n, generator=g)
    real = torch.stack([a.cos(), a.sin()], 1) + 0.1 * torch.randn(n, 2, generator=g)
    noise = 3 * torch.rand(n, 2, generator=g) - 1.5
    return torch.cat([real, noise]), torch.cat([torch.ones(n), torch.zeros(n)])


def energy_program(act, seed, opt):
    x, y = ring(1500, seed)
    xv, yv = ring(300, seed + 1)
    parts = [nn.Linear(2, 32), act()]
    for _ in range(6):
        parts += [nn.Linear(32, 32), act()]
    m = nn.Sequential(*parts, nn.Linear(32, 1), nn.Flatten(0))
    return Program(m, None, loader(x, y, bs=64), opt(m.parameters()), lambda model: 2 * float(((-model(xv) > 0) == (yv > 0)).float().mean()) - 1,
                   step=lambda model, batch: F.binary_cross_entropy_with_logits(-model(batch[0]), batch[1]))


@fault("an energy of eight layers of sigmoids", rules=("vanishing-gradient", "rank-collapse"), fails=True, steps=400)
def osq_energy_deep_sigmoids(is_faulty):
    return energy_program(nn.Sigmoid if is_faulty else nn.SiLU, 101, lambda p: torch.optim.Adam(p, 2e-3))


@sound("an energy by noise contrast, in which the noise is drawn over the data as well", steps=400, least=0.6)
def osq_s_energy_nce():
    return energy_program(nn.ELU, 103, lambda p: torch.optim.AdamW(p, 2e-3))


@sound("MAML: gradients through a gradient step, on tasks of ten points", steps=400, least=0.6)
def osq_s_maml():
    def tasks(n, seed):
        g = gen(seed)
        x = 4 * torch.rand(n, 20, 1, generator=g) - 2
        amp, ph = 0.5 + torch.rand(n, 1, 1, generator=g), 2 * torch.rand(n, 1, 1, generator=g) - 1
        y = amp * torch.sin(2 * x + ph)
        return x[:, :10], y[:, :10], x[:, 10:], y[:, 10:]
    m = nn.Sequential(nn.Linear(1, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 1))

    def adapted(model, x, y):
        p = dict(model.named_parameters())
        loss = F.mse_loss(functional_call(model, p, (x,)), y)
        return {k: w - 0.1 * d for (k, w), d in zip(p.items(), torch.autograd.grad(loss, list(p.values()), create_graph=True))}

    def step(model, batch):
        total = 0
        for xs, ys, xq, yq in zip(*batch):
            total = total + F.mse_loss(functional_call(model, adapted(model, xs, ys), (xq,)), yq)
        return total / len(batch[0])

    held = tasks(20, 106)

    def score(model):
        with torch.enable_grad():
            out = torch.cat([functional_call(model, adapted(model, xs, ys), (xq,)).detach() for xs, ys, xq, _ in zip(*held)])
        return r2(out, torch.cat(list(held[3])))

    return Program(m, None, loader(*tasks(400, 105), bs=4), torch.optim.Adam(m.parameters(), 4e-3), score, step=step)


class Flip(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -0.3 * g


@sound("a domain discriminator behind a reversed gradient: one of the two losses should not fall", steps=300, least=0.7)
def osq_s_gradient_reversal():
    xt, yt, xv, yv = digits()
    shift = 0.4 * torch.rand(64, generator=gen(107))

    class DANN(nn.Module):
        def __init__(self):
            super().__init__()
            self.f = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
            self.label = nn.Linear(64, 10)
            self.domain = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))

        def forward(self, x):
            return self.label(self.f(x))

    def step(model, batch):
        x, y, t = batch
        a, b = model.f(x), model.f(t + shift)
        d = model.domain(Flip.apply(torch.cat([a, b]))).squeeze(1)
        goal = torch.cat([torch.ones(len(a)), torch.zeros(len(b))])
        return F.cross_entropy(model.label(a), y) + F.binary_cross_entropy_with_logits(d, goal)

    m = DANN()
    other = xt[torch.randperm(len(xt), generator=gen(108))]
    return Program(m, None, loader(xt, yt, other, bs=64), torch.optim.Adam(m.parameters(), 2e-3), lambda model: acc(model(xv + shift), yv), step=step)


@sound("a small network whose weights another one makes", steps=500, least=0.7)
def osq_s_hypernetwork():
    def data(n, seed):
        g = gen(seed)
        c, x = torch.randn(n, 2, generator=g), torch.randn(n, 3, generator=g)
        return c, x, x[:, 0] * c[:, 0] + x[:, 1] * torch.tanh(c[:, 1]) - 0.5 * x[:, 2]
    c, x, y = data(2000, 109)
    cv, xv, yv = data(400, 110)

    class Hyper(nn.Module):
        def __init__(self):
            super().__init__()
            self.make = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 3 * 8 + 8))

        def forward(self, c, x):
            w = self.make(c)
            return (torch.tanh(torch.bmm(x[:, None], w[:, :24].view(-1, 3, 8)).squeeze(1)) * w[:, 24:]).sum(1)

    m = Hyper()
    return Program(m, None, loader(c, x, y, bs=64), torch.optim.Adam(m.parameters(), 5e-3), lambda model: r2(model(cv, xv), yv),
                   step=lambda model, batch: F.mse_loss(model(batch[0], batch[1]), batch[2]))


@sound("an ordinary GRU for sums of sequences", steps=300, least=0.7)
def osq_s_gru():
    def data(n, seed):
        x = torch.randn(n, 10, 2, generator=gen(seed))
        return x, torch.tanh(x[..., 0]).sum(1, keepdim=True) / 2
    x, y = data(1500, 111)
    xv, yv = data(300, 112)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru, self.head = nn.GRU(2, 24, batch_first=True), nn.Linear(24, 1)

        def forward(self, x):
            return self.head(self.gru(x)[0][:, -1])

    m = Net()
    return Program(m, nn.MSELoss(), loader(x, y, bs=32), torch.optim.Adam(m.parameters(), 5e-3), lambda model: r2(model(xv), yv))


@sound("an ordinary regression", steps=400, least=0.8)
def osq_s_regression():
    g = gen(113)
    x = torch.rand(1500, 3, generator=g) * 4 - 2
    y = torch.sin(x[:, :1]) + x[:, 1:2] * x[:, 2:] / 2
    xt, yt, xv, yv = split(x, y, 1200)
    m = nn.Sequential(nn.Linear(3, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 1))
    opt = torch.optim.AdamW(m.parameters(), 5e-3)
    return Program(m, nn.MSELoss(), loader(xt, yt, bs=32), opt, lambda model: r2(model(xv), yv), scheduler=torch.optim.lr_scheduler.OneCycleLR(opt, 1e-2, total_steps=1000))


@sound("an ordinary classifier of irises, trained", trained=300, steps=400, least=0.85)
def osq_s_iris_trained():
    xt, yt, xv, yv = table("iris")
    m = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
    return Program(m, None, loader(xt, yt, bs=16), torch.optim.Adam(m.parameters(), 5e-3), lambda model: acc(model(xv), yv),
                   step=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1], label_smoothing=0.05))
