"""Sound scripts with their own step."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

from ats_data import auc, friedman, gen, loader, mlp, r2
from ats_faults_b import Flow, bandit_log, greedy_share
from program import Program, sound


@sound("A replayed policy gradient, whose loss is about 0 all the time", trained=100, steps=300, least=0.7)
def ats_policy_normalised_gain() -> Program:
    x, arm, reward, worth = bandit_log(70)
    model = mlp(6, 48, 48, 3, act=nn.Tanh)
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)

    def step(model, batch):
        s, a, r = batch
        log_p = F.log_softmax(model(s), 1).gather(1, a[:, None])[:, 0]
        ratio = (3 * log_p.exp()).clamp(max=2.5)
        return -(ratio * (r - r.mean()) / r.std()).mean()

    data = loader(x[500:], arm[500:], reward[500:])
    return Program(model, None, data, opt, greedy_share(x[:500], worth[:500]), step=step)


class TwoNets(nn.Module):
    """A value network and a frozen copy that follows it slowly."""

    def __init__(self) -> None:
        super().__init__()
        self.online = mlp(9, 64, 64, 2)
        self.slow = copy.deepcopy(self.online).requires_grad_(False)

    def forward(self, s):
        return self.online(s)


@sound("Q-learning on a corridor with a frozen target network inside the model", trained=300, steps=600, least=0.7)
def ats_corridor_target_network() -> Program:
    g = gen(71)
    place = torch.randint(0, 9, (2000,), generator=g)
    action = torch.randint(0, 2, (2000,), generator=g)
    after = (place + 2 * action - 1).clamp(0, 8)
    reward, done = (after == 8).float(), (after == 8).float()
    hot = torch.eye(9)
    true = torch.zeros(9, 2)
    for _ in range(60):
        for p in range(9):
            for a in range(2):
                n = min(8, max(0, p + 2 * a - 1))
                true[p, a] = 1.0 if n == 8 else 0.9 * true[n].max()
    model = TwoNets()
    opt = torch.optim.Adam(model.online.parameters(), lr=2e-3)

    def step(model, batch):
        s, a, r, n, d = batch
        with torch.no_grad():
            for p, q in zip(model.slow.parameters(), model.online.parameters()):
                p.lerp_(q, 0.1)
            target = r + 0.9 * (1 - d) * model.slow(hot[n]).max(1).values
        return F.smooth_l1_loss(model(hot[s]).gather(1, a[:, None])[:, 0], target)

    data = loader(place, action, reward, after, done)
    return Program(model, None, data, opt, lambda m: r2(m(hot), true), step=step)


@sound("A normalizing flow from the identity", steps=400, least=0.7)
def ats_flow_from_identity() -> Program:
    g = gen(72)
    a = torch.randn(2000, 1, generator=g)
    x = torch.cat([a, 0.7 * a**2 - 0.7 + 0.2 * torch.randn(2000, 1, generator=g)], 1)
    model = Flow(4)
    for part in model.parts:
        nn.init.zeros_(part.net[2].weight)
        nn.init.zeros_(part.net[2].bias)
    opt = torch.optim.Adam(model.parameters(), lr=4e-3)

    def nll(model, x):
        z, log_det = model(x)
        return (0.5 * (z**2).sum(1) + 1.838 - log_det).mean()

    def score(m):
        return min(1.0, max(0.0, (2.4 - float(nll(m, x[:500]))) / (2.4 - 1.25)))

    return Program(model, None, loader(x[500:]), opt, score, step=lambda m, batch: nll(m, batch[0]))


@sound("The partial likelihood of Cox, in which the examples of a batch stand against each other", steps=300, least=0.6)
def ats_cox_partial_likelihood() -> Program:
    g = gen(73)
    x = torch.randn(2000, 8, generator=g)
    risk = x[:, 0] - 0.8 * x[:, 1] + 0.6 * x[:, 2] * x[:, 3]
    time = -torch.log(torch.rand(2000, generator=g)) * torch.exp(-1.5 * risk)
    limit = 3 * torch.rand(2000, generator=g)
    event, time = (time < limit).float(), torch.minimum(time, limit)
    model = mlp(8, 48, 1)
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)

    def step(model, batch):
        rows, t, e = batch
        order = t.argsort(descending=True)
        h = model(rows)[order, 0]
        return -((h - h.logcumsumexp(0)) * e[order]).sum() / e.sum().clamp(min=1)

    def score(m):
        h = m(x[:500])[:, 0]
        return max(0.0, float(torch.corrcoef(torch.stack([h, risk[:500]]))[0, 1]))

    return Program(model, None, loader(x[500:], time[500:], event[500:], size=128), opt, score, step=step)


@sound("A physics-informed network that keeps its boundary by construction", steps=500, least=0.8)
def ats_pinn_hard_boundary() -> Program:
    class Rod(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp(1, 24, 24, 1, act=nn.Tanh)

        def forward(self, x):
            return x * (1 - x) * self.net(x)

    def step(model, batch):
        p = batch[0].clone().requires_grad_(True)
        u = model(p)
        du = torch.autograd.grad(u.sum(), p, create_graph=True)[0]
        ddu = torch.autograd.grad(du.sum(), p, create_graph=True)[0]
        return (ddu + 39.48 * torch.sin(6.2832 * p)).pow(2).mean()

    grid = torch.linspace(0, 1, 101)[:, None]
    model = Rod()
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    data = loader(torch.rand(512, 1, generator=gen(74)))
    return Program(model, None, data, opt, lambda m: r2(m(grid), torch.sin(6.2832 * grid)), step=step)


@sound("A conditional process: each batch is one task of sines with its own context", steps=600, least=0.6)
def ats_conditional_process() -> Program:
    class Process(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode, self.decode = mlp(2, 64, 64), mlp(65, 64, 64, 1)

        def forward(self, cx, cy, tx):
            r = self.encode(torch.cat([cx, cy], -1)).mean(1, keepdim=True)
            return self.decode(torch.cat([r.expand(-1, tx.shape[1], -1), tx], -1))

    g = gen(75)
    height, phase = 0.5 + torch.rand(1200, 1, 1, generator=g), 3.14 * torch.rand(1200, 1, 1, generator=g)
    x = 4 * torch.rand(1200, 20, 1, generator=g) - 2
    y = height * torch.sin(x + phase)
    model = Process()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)

    def step(model, batch):
        a, b = batch
        return F.mse_loss(model(a[:, :10], b[:, :10], a[:, 10:]), b[:, 10:])

    def score(m):
        return r2(m(x[:200, :10], y[:200, :10], x[:200, 10:]), y[:200, 10:])

    return Program(model, None, loader(x[200:], y[200:], size=32), opt, score, step=step)


@sound("Contrastive learning of two views with a low temperature", trained=400, steps=450, least=0.7)
def ats_two_views_contrast() -> Program:
    class Towers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.web, self.shop = mlp(10, 64, 12), mlp(8, 64, 12)
            self.log_scale = nn.Parameter(torch.tensor(2.6))

        def forward(self, a, b):
            return F.normalize(self.web(a), dim=1), F.normalize(self.shop(b), dim=1)

    g = gen(76)
    core = torch.randn(1800, 4, generator=g)
    a = torch.tanh(core @ torch.randn(4, 10, generator=g) * 0.5) + 0.05 * torch.randn(1800, 10, generator=g)
    b = torch.tanh(core @ torch.randn(4, 8, generator=g) * 0.5) + 0.05 * torch.randn(1800, 8, generator=g)
    model = Towers()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)

    def step(model, batch):
        u, v = model(*batch)
        logits = u @ v.T * model.log_scale.exp()
        truth = torch.arange(len(logits))
        return (F.cross_entropy(logits, truth) + F.cross_entropy(logits.T, truth)) / 2

    def score(m):
        u, v = m(a[:200], b[:200])
        s = u @ v.T
        return max(0.0, float((1 - 2 * (s > s.diagonal()[:, None]).float().mean(1)).mean()))

    return Program(model, None, loader(a[200:], b[200:]), opt, score, step=step)


@sound("Triplets, most of which are already far enough apart and give no loss", trained=250, steps=350, least=0.8)
def ats_triplets_mostly_satisfied() -> Program:
    g = gen(77)
    kind = torch.randint(0, 6, (1800,), generator=g)
    x = torch.randn(6, 16, generator=g)[kind] + 0.9 * torch.randn(1800, 16, generator=g)
    index = [torch.nonzero(kind[:1400] == k)[:, 0] for k in range(6)]
    positive = torch.stack([index[k][torch.randint(len(index[k]), (), generator=g)] for k in kind[:1400].tolist()])
    other = (kind[:1400] + torch.randint(1, 6, (1400,), generator=g)) % 6
    negative = torch.stack([index[k][torch.randint(len(index[k]), (), generator=g)] for k in other.tolist()])
    model = mlp(16, 48, 8)
    nn.init.normal_(model[-1].weight, std=0.1)
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    lossy = nn.TripletMarginLoss(margin=1.0)

    def step(model, batch):
        return lossy(*(model(part) for part in batch))

    def score(m):
        z = m(x)
        centre = torch.stack([z[:1400][kind[:1400] == k].mean(0) for k in range(6)])
        return float((torch.cdist(z[1400:], centre).argmin(1) == kind[1400:]).float().mean())

    return Program(model, None, loader(x[:1400], x[positive], x[negative]), opt, score, step=step)


@sound("Two heads for uplift, each of which learns from its own half of a batch", steps=400, least=0.7)
def ats_uplift_two_heads() -> Program:
    class Uplift(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk = nn.Sequential(nn.Linear(6, 48), nn.ReLU())
            self.control, self.treated = mlp(48, 32, 1), mlp(48, 32, 1)

        def forward(self, x):
            h = self.trunk(x)
            return self.control(h)[:, 0], self.treated(h)[:, 0]

    g = gen(78)
    x = torch.randn(2500, 6, generator=g)
    effect = 1 + x[:, 0] + torch.relu(x[:, 1])
    t = torch.randint(0, 2, (2500,), generator=g).float()
    y = 0.7 * x[:, 2] + t * effect + 0.2 * torch.randn(2500, generator=g)
    model = Uplift()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)

    def step(model, batch):
        rows, treated, outcome = batch
        a, b = model(rows)
        return ((1 - treated) * (a - outcome) ** 2 + treated * (b - outcome) ** 2).mean()

    def score(m):
        a, b = m(x[:500])
        return r2(b - a, effect[:500])

    return Program(model, None, loader(x[500:], t[500:], y[500:]), opt, score, step=step)


@sound("A summed loss with a rate that is meant for it", steps=400, least=0.8)
def ats_summed_with_small_rate() -> Program:
    xt, yt, xv, yv = friedman(1600, 79, 400)
    model = mlp(8, 64, 64, 1)
    opt = torch.optim.SGD(model.parameters(), lr=5e-4, momentum=0.9)

    def step(model, batch):
        x, y = batch
        return ((model(x) - y) ** 2).sum()

    return Program(model, None, loader(xt, yt), opt, lambda m: r2(m(xv), yv), step=step)


@sound("Two tasks whose weights are learned as log variances", steps=400, least=0.7)
def ats_tasks_learned_weights() -> Program:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
            self.churn, self.spend = nn.Linear(32, 1), nn.Linear(32, 1)
            self.log_var = nn.Parameter(torch.zeros(2))

        def forward(self, x):
            h = self.trunk(x)
            return self.churn(h)[:, 0], self.spend(h)[:, 0]

    g = gen(80)
    x = torch.randn(2400, 8, generator=g)
    churn = (x[:, 0] * x[:, 1] + x[:, 2] > 0).float()
    spend = 3 * (x[:, 4] + torch.sin(2 * x[:, 5]))
    model = Shared()
    opt = torch.optim.Adam(model.parameters(), lr=4e-3)

    def step(model, batch):
        rows, c, s = batch
        a, b = model(rows)
        terms = torch.stack([F.binary_cross_entropy_with_logits(a, c), 0.5 * F.mse_loss(b, s)])
        return (terms * torch.exp(-model.log_var) + 0.5 * model.log_var).sum()

    def score(m):
        a, b = m(x[:500])
        return 0.5 * auc(a, churn[:500]) + 0.5 * r2(b, spend[:500])

    return Program(model, None, loader(x[500:], churn[500:], spend[500:]), opt, score, step=step)


@sound("Meta-learning through one inner step of gradient descent, with second derivatives", steps=500, least=0.6)
def ats_meta_inner_step() -> Program:
    g = gen(81)
    slope, bend = torch.randn(1000, 1, 1, generator=g), torch.randn(1000, 1, 1, generator=g)
    x = 2 * torch.rand(1000, 24, 1, generator=g) - 1
    y = slope * x + bend * torch.cos(3 * x)
    model = mlp(1, 40, 40, 1, act=nn.Tanh)
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)

    def adapted(model, a, b, graph):
        with torch.enable_grad():
            weights = dict(model.named_parameters())
            inner = F.mse_loss(functional_call(model, weights, (a,)), b)
            grads = torch.autograd.grad(inner, list(weights.values()), create_graph=graph)
        return {k: w - 0.2 * d for (k, w), d in zip(weights.items(), grads)}

    def step(model, batch):
        total = 0.0
        for a, b in zip(*batch):
            total = total + F.mse_loss(functional_call(model, adapted(model, a[:12], b[:12], True), (a[12:],)), b[12:])
        return total / len(batch[0])

    def score(m):
        out = [functional_call(m, adapted(m, x[i, :12], y[i, :12], False), (x[i, 12:],)) for i in range(60)]
        return r2(torch.stack(out), y[:60, 12:])

    return Program(model, None, loader(x[60:], y[60:], size=4), opt, score, step=step)


@sound("An energy learned against noise, with a penalty on its size", steps=400, least=0.7)
def ats_energy_against_noise() -> Program:
    g = gen(82)
    angle = 6.2832 * torch.rand(2000, generator=g)
    ring = torch.stack([angle.cos(), angle.sin()], 1) * 2 + 0.15 * torch.randn(2000, 2, generator=g)
    noise = 3 * (2 * torch.rand(2000, 2, generator=g) - 1)
    model = mlp(2, 64, 64, 1, act=nn.SiLU)
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)

    def step(model, batch):
        real, fake = model(batch[0]), model(batch[1])
        return (F.softplus(real) + F.softplus(-fake)).mean() + 0.001 * (real**2 + fake**2).mean()

    def score(m):
        e = torch.cat([m(ring[:400]), m(noise[:400])])[:, 0]
        return auc(-e, torch.cat([torch.ones(400), torch.zeros(400)]))

    return Program(model, None, loader(ring[400:], noise[400:]), opt, score, step=step)
