"""Representations, several tasks, experts, graphs, physics, implicit layers: with nothing wrong."""
import copy
import math

import torch
import torch.nn.functional as F
from sklearn import datasets
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from osr_base import accuracy, bandit, digits, ema, gen, loader, mlp, r2
from osr_misc import Factors, GraphAE, Hyper, NeuralProcess, communities, functions, ratings
from osr_rep import Experts, LoRA, neighbours, pretrained, regimes, views
from program import Program, sound


def probe(a, y, embed=lambda m: m):
    return lambda m: max(0.0, (neighbours(lambda z: embed(m)(z), a[:2000], y[:2000], a[2000:], y[2000:]) - 0.5) / 0.5)


@sound("SimCLR with a temperature of 0.5 over both directions: every example meets every other", steps=500, least=0.6)
def osr_ok_simclr():
    a, b, y = views(171)
    model = mlp(34, 96, 24)

    def step(m, batch):
        u, v = F.normalize(m(batch[0]), dim=1), F.normalize(m(batch[1]), dim=1)
        z = torch.cat([u, v])
        sims = z @ z.T / 0.5 - 1e9 * torch.eye(len(z))
        n = len(u)
        return F.cross_entropy(sims, torch.cat([torch.arange(n) + n, torch.arange(n)]))

    return Program(model, None, loader(a[:2000], b[:2000], n=128), torch.optim.Adam(model.parameters(), 2e-3), probe(a, y), step=step)


class Bootstrap(nn.Module):
    def __init__(self):
        super().__init__()
        self.online = nn.Sequential(nn.Linear(34, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, 16), nn.BatchNorm1d(16))
        self.target = copy.deepcopy(self.online).requires_grad_(False)
        self.predictor = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 16))

    def forward(self, x):
        return self.online(x)


@sound("BYOL: a target of moving averages and a predictor", steps=500, least=0.6)
def osr_ok_byol():
    a, b, y = views(172)
    model = Bootstrap()

    def step(m, batch):
        u, v = batch
        loss = 0
        for p, q in ((u, v), (v, u)):
            with torch.no_grad():
                goal = m.target(q)
            loss = loss + 1 - F.cosine_similarity(m.predictor(m.online(p)), goal, dim=1).mean()
        ema(m.target, m.online, 0.05)
        return loss

    return Program(model, None, loader(a[:2000], b[:2000], n=128),
                   torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 3e-3), probe(a, y), step=step)


@sound("VICReg: invariance, variance and covariance with weights of 25, 25 and 1", steps=400, least=0.6)
def osr_ok_vicreg():
    a, b, y = views(173)
    model = mlp(34, 96, 16)

    def step(m, batch):
        u, v = m(batch[0]), m(batch[1])
        loss = 25 * F.mse_loss(u, v)
        for z in (u, v):
            loss = loss + 12.5 * F.relu(1 - (z.var(0) + 1e-4).sqrt()).mean()
            c = z.T.cov()
            loss = loss + (c - torch.diag(c.diagonal())).pow(2).sum() / 16
        return loss

    return Program(model, None, loader(a[:2000], b[:2000], n=128), torch.optim.Adam(model.parameters(), 2e-3), probe(a, y), step=step)


@sound("triplets of digits, many of which already satisfy their margin", steps=400, least=0.8)
def osr_ok_triplets():
    x, y, xt, yt = digits()
    model = mlp(64, 64, 16)

    def step(m, b):
        z = m(b[0])
        d = torch.cdist(z, z)
        same = b[1][:, None] == b[1][None]
        pos = d.masked_fill(~same, 0).max(1).values
        neg = d.masked_fill(same, 1e9).min(1).values
        return F.softplus(pos - neg).mean()

    return Program(model, None, loader(x, y), torch.optim.Adam(model.parameters(), 2e-3),
                   lambda m: neighbours(m, x, y, xt, yt), step=step)


class Distilled(nn.Module):
    def __init__(self, teacher, student):
        super().__init__()
        self.teacher, self.student = teacher.requires_grad_(False).eval(), student

    def train(self, mode=True):
        super().train(mode)
        self.teacher.eval()
        return self

    def forward(self, x):
        return self.student(x)


@sound("distillation at temperature 4 from a frozen teacher with dropout, in evaluation mode", steps=300, least=0.85)
def osr_ok_distillation():
    x, y, xt, yt = digits()
    with torch.random.fork_rng():
        torch.manual_seed(7)
        teacher = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.3), nn.Linear(128, 10))
        opt = torch.optim.Adam(teacher.parameters(), 5e-3)
        for _ in range(150):
            i = torch.randint(len(x), (128,))
            opt.zero_grad()
            F.cross_entropy(teacher(x[i]), y[i]).backward()
            opt.step()
    model = Distilled(teacher, mlp(64, 24, 10))

    def step(m, b):
        with torch.no_grad():
            goal = (m.teacher(b[0]) / 4).softmax(1)
        out = m.student(b[0])
        return 0.9 * 16 * F.kl_div((out / 4).log_softmax(1), goal, reduction="batchmean") + 0.1 * F.cross_entropy(out, b[1])

    return Program(model, None, loader(x, y), torch.optim.Adam(model.student.parameters(), 4e-3), lambda m: accuracy(m(xt), yt), step=step)


@sound("mean teacher: few labels, a consistency term, and a teacher of moving averages that is scored", steps=500, least=0.75)
def osr_ok_mean_teacher():
    x, y, xt, yt = digits()
    student = mlp(64, 96, 10)
    model = nn.ModuleDict({"student": student, "teacher": copy.deepcopy(student).requires_grad_(False)})
    labelled = torch.arange(len(x)) < 250

    def step(m, b):
        u, c, has = b
        out = m["student"](u + 0.1 * torch.randn_like(u))
        with torch.no_grad():
            goal = m["teacher"](u + 0.1 * torch.randn_like(u)).softmax(1)
        ce = (F.cross_entropy(out, c, reduction="none") * has).sum() / has.sum().clamp(min=1)
        ema(m["teacher"], m["student"], 0.03)
        return ce + F.mse_loss(out.softmax(1), goal)

    return Program(model, None, loader(x, y, labelled.float()), torch.optim.Adam(student.parameters(), 3e-3),
                   lambda m: accuracy(m["teacher"](xt), yt), step=step)


@sound("two tasks of unlike units, weighted by learned uncertainties", steps=500, least=0.7)
def osr_ok_uncertainty():
    x, v, xt, vt = bandit(174)
    kind, kindt = v.argmax(1), vt.argmax(1)
    other, othert = 12 * v[:, 0] + 30, 12 * vt[:, 0] + 30

    class Tasks(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
            self.kind, self.value = nn.Linear(64, 4), nn.Linear(64, 1)
            self.log_var = nn.Parameter(torch.tensor([0.0, 5.0]))
            nn.init.constant_(self.value.bias, 30.0)

        def forward(self, s):
            h = self.trunk(s)
            return self.kind(h), self.value(h)[:, 0]

    model = Tasks()

    def step(m, b):
        logits, value = m(b[0])
        losses = torch.stack([F.cross_entropy(logits, b[1]), F.mse_loss(value, b[2])])
        return ((-m.log_var).exp() * losses + 0.5 * m.log_var).sum()

    return Program(model, None, loader(x, kind, other), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: min(accuracy(m(xt)[0], kindt), r2(m(xt)[1], othert)), step=step)


@sound("mixture of experts with a balancing term", steps=600, least=0.7)
def osr_ok_experts():
    x, y = regimes(175)
    model = Experts("soft")

    def step(m, b):
        share = m.gate(b[0]).softmax(1).mean(0)
        return F.mse_loss(m(b[0]), b[1]) + 0.01 * 4 * share.pow(2).sum()

    return Program(model, None, loader(x[:2000], y[:2000]), torch.optim.Adam(model.parameters(), 2e-2),
                   lambda m: r2(m(x[2000:]), y[2000:]), step=step)


@sound("low-rank updates, one factor of which starts at zero, of a frozen network", steps=300, least=0.85)
def osr_ok_lora():
    net, x, y, xt, yt = pretrained(176)
    model = nn.Sequential(*(LoRA(part) if isinstance(part, nn.Linear) else part for part in net))
    return Program(model, None, loader(x, y), torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 5e-3, weight_decay=0.0),
                   lambda m: accuracy(m(xt), yt), step=lambda m, b: F.cross_entropy(m(b[0]), b[1]))


@sound("a linear probe on a frozen body of random features in evaluation mode", steps=400, least=0.85)
def osr_ok_probe():
    x, y, xt, yt = digits()
    body = nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU())
    with torch.no_grad():
        for _ in range(40):
            body(x)
    model = Distilled(body, nn.Linear(256, 10))
    return Program(model, None, loader(x, y), torch.optim.SGD(model.student.parameters(), 0.05, momentum=0.9),
                   lambda m: accuracy(m.student(m.teacher(xt)), yt), step=lambda m, b: F.cross_entropy(m.student(m.teacher(b[0])), b[1]))


@sound("graph autoencoder trained on the whole graph at every step", steps=300, least=0.6)
def osr_ok_gae():
    a, c = communities(177, n=160)
    g = gen(178)
    hidden = (torch.rand(a.shape, generator=g) < 0.15).float().triu(1)
    hidden = hidden + hidden.T
    seen = a * (1 - hidden)
    model = GraphAE(seen, len(a), False)

    def step(m, b):
        weight = (1 - hidden) * (1 + 4 * seen)
        return (F.binary_cross_entropy_with_logits(m(b[0]), seen, reduction="none") * weight).sum() / weight.sum()

    def score(m):
        z = m(torch.eye(len(a)))
        on, off = z[(hidden * (c[:, None] == c[None])).bool()], z[(hidden * (c[:, None] != c[None])).bool()]
        return (on[:, None] > off[None]).float().mean().item()

    return Program(model, None, [(torch.eye(len(a)),)], torch.optim.Adam(model.parameters(), 1e-2), score, step=step)


@sound("conditional neural process with contexts of random size", steps=600, least=0.65)
def osr_ok_process():
    x, y = functions(179)
    model = NeuralProcess(1)

    def step(m, b):
        u, v = b
        n = int(torch.randint(5, 16, ()))
        return -m(u[:, :n], v[:, :n], u[:, n:]).log_prob(v[:, n:]).mean()

    return Program(model, None, loader(x[:1000], y[:1000], n=20), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: max(0.0, r2(m(x[1000:, :12], y[1000:, :12], x[1000:, 12:]).mean.flatten(), y[1000:, 12:].flatten())), step=step)


class FixedPoint(nn.Module):
    """Iterated to its fixed point without a graph, and once more with one."""

    def __init__(self, d=8, width=48):
        super().__init__()
        self.inject, self.cell, self.read = nn.Linear(d, width), nn.Linear(width, width, bias=False), nn.Linear(width, 1)
        nn.init.orthogonal_(self.cell.weight, 0.5)

    def forward(self, x):
        u = self.inject(x)
        z = torch.zeros_like(u)
        with torch.no_grad():
            for _ in range(20):
                z = torch.tanh(self.cell(z) + u)
        return self.read(torch.tanh(self.cell(z) + u))[:, 0]


@sound("equilibrium network with a gradient of one step", steps=400, least=0.8)
def osr_ok_fixed_point():
    g = gen(180)
    x = torch.randn(2500, 8, generator=g)
    y = torch.sin(x[:, 0] + x[:, 1]) + 0.5 * torch.tanh(2 * x[:, 2])
    model = FixedPoint()
    return Program(model, None, loader(x[:2000], y[:2000]), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: r2(m(x[2000:]), y[2000:]), step=lambda m, b: F.mse_loss(m(b[0]), b[1]))


@sound("hypernetwork with a small last layer", steps=500, least=0.8)
def osr_ok_hyper():
    g = gen(181)
    c = torch.randn(2400, 3, generator=g)
    x = torch.rand(2400, 12, generator=g) * 4 - 2
    y = torch.tanh(c[:, :1]) * torch.sin(1.5 * x) + torch.tanh(c[:, 1:2]) * x / 2
    model = Hyper(0.06)
    return Program(model, None, loader(c[:2000], x[:2000], y[:2000], n=32), torch.optim.Adam(model.parameters(), 2e-3),
                   lambda m: r2(m(c[2000:], x[2000:]), y[2000:]), step=lambda m, b: F.mse_loss(m(b[0], b[1]), b[2]))


@sound("Poisson's equation by a tanh network, boundary weight 20, second derivatives, new points each step", steps=500, least=0.9)
def osr_ok_poisson():
    class Points:
        def __iter__(self):
            for _ in range(100):
                yield torch.rand(64, 1) * 2 - 1

    model = mlp(1, 32, 32, 1, act=nn.Tanh)
    edge = torch.tensor([[-1.0], [1.0]])

    def step(m, x):
        x = x.clone().requires_grad_()
        u = m(x)
        du = torch.autograd.grad(u.sum(), x, create_graph=True)[0]
        ddu = torch.autograd.grad(du.sum(), x, create_graph=True)[0]
        return (ddu + math.pi**2 * torch.sin(math.pi * x)).pow(2).mean() + 20 * m(edge).pow(2).mean()

    x = torch.linspace(-1, 1, 200)[:, None]
    return Program(model, None, Points(), torch.optim.Adam(model.parameters(), 5e-3), lambda m: r2(m(x), torch.sin(math.pi * x)), step=step)


@sound("second-order meta-learning of sines with two inner steps", steps=300, least=0.8)
def osr_ok_maml():
    g = gen(182)
    n = 800
    amp, phase = torch.rand(n, 1, 1, generator=g) * 2 + 0.5, torch.rand(n, 1, 1, generator=g) * math.pi
    x = torch.rand(n, 20, 1, generator=g) * 6 - 3
    y = amp * torch.sin(x + phase)
    model = mlp(1, 40, 40, 1, act=nn.Tanh)

    def adapted(m, u, v, w):
        def one(a, b, c):
            params = dict(m.named_parameters())
            for _ in range(2):
                grads = torch.func.grad(lambda p: F.mse_loss(torch.func.functional_call(m, p, (a,)), b))(params)
                params = {k: params[k] - 0.1 * grads[k] for k in params}
            return torch.func.functional_call(m, params, (c,))

        with torch.enable_grad():
            return torch.func.vmap(one)(u, v, w)

    def step(m, b):
        return F.mse_loss(adapted(m, b[0][:, :10], b[1][:, :10], b[0][:, 10:]), b[1][:, 10:])

    return Program(model, None, loader(x[:600], y[:600], n=8), torch.optim.Adam(model.parameters(), 5e-3),
                   lambda m: r2(adapted(m, x[600:, :10], y[600:, :10], x[600:, 10:]).flatten(), y[600:, 10:].flatten()), step=step)


@sound("matrix factorization with small factors and zero biases, most rows untouched by a batch", steps=500, least=0.8)
def osr_ok_factors():
    u, i, r = ratings(183)
    model = Factors(60, 50, 8, 0.1)
    return Program(model, None, loader(u[:5000], i[:5000], r[:5000], n=16), torch.optim.Adam(model.parameters(), 1e-2),
                   lambda m: r2(m(u[5000:], i[5000:]), r[5000:]), step=lambda m, b: F.mse_loss(m(b[0], b[1]), b[2]))


@sound("Bayesian personalised ranking, sampled negatives, trained", trained=300, steps=500, least=0.75)
def osr_ok_bpr():
    u, i, r = ratings(184, n=12000)
    u, i = u[r > 0.7], i[r > 0.7]
    n = int(len(u) * 0.8)
    model = Factors(60, 50, 8, 0.1)

    def step(m, b):
        neg = torch.randint(50, b[1].shape)
        return -F.logsigmoid(m(b[0], b[1]) - m(b[0], neg)).mean()

    def score(m):
        neg = torch.randint(50, (len(u) - n,), generator=gen(1))
        return (m(u[n:], i[n:]) > m(u[n:], neg)).float().mean().item()

    return Program(model, None, loader(u[:n], i[:n], n=128), torch.optim.Adam(model.parameters(), 1e-2, weight_decay=1e-5), score, step=step)


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.weight = weight
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -ctx.weight * grad, None


@sound("domain adaptation with reversed gradients: the domain's loss is meant to stay at ln 2", steps=500, least=0.7)
def osr_ok_reversal():
    g = gen(185)
    x = torch.randn(3000, 8, generator=g)
    y = (torch.sin(x[:, 0] * 1.5) + x[:, 1] > 0).long()
    domain = (torch.arange(3000) % 2)
    x[:, 7] = x[:, 7] + 3 * domain
    model = nn.ModuleDict({"body": mlp(8, 64, 32), "label": mlp(32, 32, 2), "domain": mlp(32, 32, 2)})

    def step(m, b):
        h = F.relu(m["body"](b[0]))
        source = b[2] == 0
        return (F.cross_entropy(m["label"](h[source]), b[1][source])
                + F.cross_entropy(m["domain"](Reverse.apply(h, 0.1)), b[2]))

    t = torch.arange(3000) >= 2400
    t &= domain == 1
    return Program(model, None, loader(x[:2400], y[:2400], domain[:2400]), torch.optim.Adam(model.parameters(), 2e-3),
                   lambda m: accuracy(m["label"](F.relu(m["body"](x[t]))), y[t]), step=step)


@sound("digits with mixup, quite ordinary", steps=300, least=0.85)
def osr_ok_mixup():
    x, y, xt, yt = digits()
    model = mlp(64, 64, 10)

    def step(m, b):
        w = torch.distributions.Beta(0.4, 0.4).sample()
        p = torch.randperm(len(b[0]))
        out = m(w * b[0] + (1 - w) * b[0][p])
        return w * F.cross_entropy(out, b[1]) + (1 - w) * F.cross_entropy(out, b[1][p])

    return Program(model, None, loader(x, y), torch.optim.Adam(model.parameters(), 3e-3), lambda m: accuracy(m(xt), yt), step=step)


@sound("wine, standardised, with micro-batches of 8 accumulated as means, quite ordinary", steps=300, least=0.85)
def osr_ok_accumulated():
    x, y = datasets.load_wine(return_X_y=True)
    p = torch.randperm(len(x), generator=gen(3))
    x, y = torch.tensor(x, dtype=torch.float32)[p], torch.tensor(y)[p]
    x = (x - x[:130].mean(0)) / x[:130].std(0)
    model = mlp(13, 32, 3)

    def step(m, b):
        parts = list(zip(b[0].chunk(4), b[1].chunk(4)))
        return sum(F.cross_entropy(m(u), v) / len(parts) for u, v in parts)

    return Program(model, None, loader(x[:130], y[:130], n=32), torch.optim.SGD(model.parameters(), 0.1, momentum=0.9),
                   lambda m: accuracy(m(x[130:]), y[130:]), step=step)


@sound("denoising autoencoder of digits, quite ordinary", steps=400, least=0.6)
def osr_ok_denoising():
    x, _, xt, _ = digits()
    model = nn.Sequential(mlp(64, 64, 16), nn.ReLU(), mlp(16, 64, 64), nn.Sigmoid())
    return Program(model, None, loader(x, n=32), torch.optim.Adam(model.parameters(), 3e-3), lambda m: r2(m(xt), xt),
                   step=lambda m, b: F.mse_loss(m(b[0] + 0.15 * torch.randn_like(b[0])), b[0]))


@sound("two tasks on one body, quite ordinary", steps=400, least=0.75)
def osr_ok_two_tasks():
    x, y, xt, yt = digits()
    model = nn.ModuleDict({"body": nn.Sequential(nn.Linear(64, 64), nn.ReLU()), "digit": nn.Linear(64, 10), "ink": nn.Linear(64, 1)})

    def ink(z):
        return (z.mean(1, keepdim=True) - 0.3) / 0.05

    def step(m, b):
        h = m["body"](b[0])
        return F.cross_entropy(m["digit"](h), b[1]) + 0.5 * F.mse_loss(m["ink"](h), ink(b[0]))

    return Program(model, None, loader(x, y), torch.optim.Adam(model.parameters(), 5e-3),
                   lambda m: min(accuracy(m["digit"](m["body"](xt)), yt), r2(m["ink"](m["body"](xt)), ink(xt))), step=step)


class Curriculum:
    """Examples from easy to hard: far from the boundary first, all of them later."""

    def __init__(self, x, y, ease):
        self.x, self.y, self.order = x, y, ease.argsort(descending=True)

    def __iter__(self):
        for share in torch.linspace(0.3, 1.0, 40):
            i = self.order[torch.randint(int(share * len(self.x)), (64,))]
            yield self.x[i], self.y[i]


@sound("a curriculum from easy to hard in every epoch", steps=400, least=0.75)
def osr_ok_curriculum():
    g = gen(186)
    x = torch.randn(2600, 6, generator=g)
    z = x[:, 0] * x[:, 1] + torch.sin(2 * x[:, 2])
    y = (z > 0).float()
    model = mlp(6, 64, 64, 1)
    return Program(model, None, Curriculum(x[:2000], y[:2000], z[:2000].abs()), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: ((m(x[2000:])[:, 0] > 0) == (y[2000:] > 0)).float().mean().item(),
                   step=lambda m, b: F.binary_cross_entropy_with_logits(m(b[0])[:, 0], b[1]))


@sound("contrastive embeddings, trained", trained=300, steps=400, least=0.6)
def osr_ok_supervised_contrast():
    x, y, xt, yt = digits()
    model = nn.Sequential(nn.Linear(64, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, 16))

    def step(m, b):
        z = F.normalize(m(b[0]), dim=1)
        sims = z @ z.T / 0.2 - 1e9 * torch.eye(len(z))
        same = (b[1][:, None] == b[1][None]).float() - torch.eye(len(z))
        return -((sims.log_softmax(1) * same).sum(1) / same.sum(1).clamp(min=1)).mean()

    return Program(model, None, loader(x, y), torch.optim.Adam(model.parameters(), 2e-3), lambda m: neighbours(m, x, y, xt, yt), step=step)
