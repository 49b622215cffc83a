"""Faults in scripts with their own step."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from ats_data import accuracy, friedman, gen, loader, mlp, r2
from program import Program, fault


def bandit_log(seed: int, n: int = 2400):
    """Contexts, logged arms, rewards and what each arm is worth."""
    g = gen(seed)
    x = torch.randn(n, 6, generator=g)
    worth = torch.stack([x[:, 0], x[:, 1] * x[:, 2], -x[:, 0] + 0.5 * x[:, 3]], 1)
    arm = torch.randint(0, 3, (n,), generator=g)
    reward = worth.gather(1, arm[:, None])[:, 0] + 0.1 * torch.randn(n, generator=g)
    return x, arm, reward, worth


def greedy_share(x, worth):
    """How much of what the best arm brings above chance the greedy policy brings."""

    def score(m):
        got = worth.gather(1, m(x).argmax(1, keepdim=True)).mean()
        return max(0.0, float((got - worth.mean()) / (worth.max(1).values.mean() - worth.mean())))

    return score


@fault("The weight of the boundary is so small that the residual alone is fitted", rules=("term-dominates",),
       fails=True, steps=600)
def ats_heat_rod_boundary_ignored(is_faulty: bool) -> Program:
    g = gen(20)
    x = torch.rand(512, 1, generator=g)
    ends, values = torch.tensor([[0.0], [1.0]]), torch.tensor([[1.0], [-0.5]])

    def step(model, batch):
        (p,) = batch
        p = p.clone().requires_grad_(True)
        u = model(p)
        du = torch.autograd.grad(u.sum(), p, create_graph=True)[0]
        ddu = torch.autograd.grad(du.sum(), p, create_graph=True)[0]
        residual = (ddu + 9.87 * torch.sin(3.1416 * p)).pow(2).mean()
        boundary = (model(ends) - values).pow(2).mean()
        return residual + (1e-4 if is_faulty else 100.0) * boundary

    grid = torch.linspace(0, 1, 101)[:, None]
    exact = torch.sin(3.1416 * grid) + 1 - 1.5 * grid
    model = mlp(1, 24, 24, 1, act=nn.Tanh)
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    return Program(model, None, loader(x), opt, lambda m: r2(m(grid), exact), step=step)


@fault("The policy gradient lacks its minus sign", rules=("output-loss-mismatch",), fails=True, steps=300)
def ats_replayed_policy_sign(is_faulty: bool) -> Program:
    x, arm, reward, worth = bandit_log(21)
    model = mlp(6, 48, 48, 3, act=nn.Tanh)
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)

    def step(model, batch):
        s, a, r = batch
        log_p = F.log_softmax(model(s), 1).gather(1, a[:, None])[:, 0]
        ratio = (log_p - log_p.detach()).exp() * (3 * log_p.detach().exp()).clamp(max=2)
        gain = (ratio * (r - r.mean()) / r.std()).mean()
        return gain if is_faulty else -gain

    data = loader(x[500:], arm[500:], reward[500:])
    return Program(model, None, data, opt, greedy_share(x[:500], worth[:500]), step=step)


@fault(
    "Values of the taken actions have shape (B, 1) and the returns (B,), so that all are compared with all",
    rules=("output-loss-mismatch",),
    fails=False,
    steps=300,
)
def ats_q_values_broadcast(is_faulty: bool) -> Program:
    x, arm, reward, worth = bandit_log(22)
    model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    opt = torch.optim.RMSprop(model.parameters(), lr=2e-3)

    def step(model, batch):
        s, a, r = batch
        q = model(s).gather(1, a.unsqueeze(1))
        if not is_faulty:
            q = q.squeeze(1)
        return (q - r).pow(2).mean()

    data = loader(x[500:], arm[500:], reward[500:])
    return Program(model, None, data, opt, greedy_share(x[:500], worth[:500]), step=step)


class Coupling(nn.Module):
    """An affine coupling of two columns."""

    def __init__(self, flip: bool) -> None:
        super().__init__()
        self.flip = flip
        self.net = mlp(1, 32, 2, act=nn.Tanh)

    def forward(self, x):
        a, b = (x[:, 1:], x[:, :1]) if self.flip else (x[:, :1], x[:, 1:])
        log_scale, shift = self.net(a).chunk(2, 1)
        b = b * log_scale.exp() + shift
        return torch.cat([b, a] if self.flip else [a, b], 1), log_scale[:, 0]


class Flow(nn.Module):
    """Couplings in turn."""

    def __init__(self, n: int = 4) -> None:
        super().__init__()
        self.parts = nn.ModuleList(Coupling(i % 2 == 1) for i in range(n))

    def forward(self, x):
        total = torch.zeros(len(x))
        for part in self.parts:
            x, log_det = part(x)
            total = total + log_det
        return x, total


@fault(
    "The networks of a flow's log scales begin with weights of deviation 2.5, so that scales are astronomic",
    rules=("bad-initialisation", "exploding-gradient", "activation-drift", "saturated-activation", "non-finite"),
    layers=("parts",),
    fails=True,
    steps=400,
)
def ats_flow_wild_scales(is_faulty: bool) -> Program:
    g = gen(23)
    a = torch.randn(2000, 1, generator=g)
    x = torch.cat([a, 0.7 * a**2 - 0.7 + 0.2 * torch.randn(2000, 1, generator=g)], 1)
    model = Flow(6)
    for part in model.parts:
        nn.init.normal_(part.net[2].weight, std=2.5 if is_faulty else 0.02)
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)

    def nll(model, x):
        z, log_det = model(x)
        return 0.5 * (z**2).sum(1) + 1.838 - log_det

    base, best = 2.4, 1.25
    held = x[:500]

    def score(m):
        return max(0.0, min(1.0, (base - float(nll(m, held).mean())) / (base - best)))

    return Program(model, None, loader(x[500:]), opt, score, step=lambda m, batch: nll(m, batch[0]).mean())


@fault(
    "Generated weights are copied into a layer with .data, so that the hypernetwork gets no gradient",
    rules=("no-gradient",),
    layers=("hyper",),
    fails=True,
    steps=400,
)
def ats_hypernetwork_copied_data(is_faulty: bool) -> Program:
    class Hyper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hyper = mlp(1, 64, 33)
            self.target = nn.Linear(32, 1) if is_faulty else None
            self.register_buffer("freq", torch.linspace(0.3, 4, 16))

        def forward(self, task, t):
            w = self.hyper(task)
            f = torch.cat([torch.sin(t * self.freq), torch.cos(t * self.freq)], -1)
            if is_faulty:
                self.target.weight.data = w[:, :32]
                self.target.bias.data = w[:, 32]
                return F.linear(f, self.target.weight, self.target.bias)
            return F.linear(f, w[:, :32], w[:, 32])

    tasks = torch.linspace(0, 1, 41)[:, None, None]
    t = torch.linspace(-2, 2, 40)[:, None]

    def truth(task):
        return torch.sin((1 + 2 * task) * t + 2 * task)

    batches = [tasks[i] for i in torch.randperm(41, generator=gen(24)).tolist() if i % 4]
    model = Hyper()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)

    def score(m):
        held = [tasks[i] for i in range(0, 41, 4)]
        return r2(torch.cat([m(k, t) for k in held]), torch.cat([truth(k) for k in held]))

    return Program(
        model, None, batches, opt, score, step=lambda m, task: F.mse_loss(m(task, t), truth(task))
    )


@fault(
    "Distances of a triplet are bare square roots, and a positive may be the anchor itself",
    rules=("non-finite",),
    fails=True,
    steps=300,
)
def ats_triplet_bare_root(is_faulty: bool) -> Program:
    g = gen(25)
    kind = torch.randint(0, 8, (1600,), generator=g)
    centre = torch.randn(8, 4, generator=g)
    lift = torch.randn(4, 20, generator=g)
    x = torch.tanh((centre[kind] + 0.35 * torch.randn(1600, 4, generator=g)) @ lift * 0.5)
    x = torch.cat([x, 1.5 * torch.randn(1600, 20, generator=g)], 1)
    model = mlp(40, 64, 8)
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)

    def distance(a, b):
        square = (a - b).pow(2).sum(-1)
        return square.sqrt() if is_faulty else (square + 1e-6).sqrt()

    def step(model, batch):
        rows, label = batch
        z = model(rows)
        same = label[:, None] == label[None]
        d = distance(z[:, None], z[None])
        hardest = d.masked_fill(~same, 0).max(1).values
        nearest = d.masked_fill(same, 1e6).min(1).values
        return F.relu(hardest - nearest + 1).mean() + 0.1 * F.relu(d[same] - d[~same].mean() + 1).mean()

    def score(m):
        z = m(x)
        near = torch.cdist(z[1200:], z[:1200]).argmin(1)
        return float((kind[near] == kind[1200:]).float().mean())

    return Program(model, None, loader(x[:1200], kind[:1200]), opt, score, step=step)


@fault(
    "Two views of the same customers come from tables that were shuffled separately",
    rules=("labels-unrelated", "loss-not-decreasing"),
    fails=True,
    steps=400,
)
def ats_two_views_shuffled_apart(is_faulty: bool) -> Program:
    class Towers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.web, self.shop = mlp(10, 48, 12), mlp(8, 48, 12)

        def forward(self, a, b):
            return F.normalize(self.web(a), dim=1), F.normalize(self.shop(b), dim=1)

    g = gen(26)
    core = torch.randn(1800, 4, generator=g)
    a = torch.tanh(core @ torch.randn(4, 10, generator=g) * 0.5) + 0.05 * torch.randn(1800, 10, generator=g)
    b = torch.tanh(core @ torch.randn(4, 8, generator=g) * 0.5) + 0.05 * torch.randn(1800, 8, generator=g)
    at, bt, av, bv = a[200:], b[200:], a[:200], b[:200]
    if is_faulty:
        at, bt = at[torch.randperm(1600, generator=g)], bt[torch.randperm(1600, generator=g)]
    model = Towers()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)

    def step(model, batch):
        u, v = model(*batch)
        logits = u @ v.T / 0.1
        return F.cross_entropy(logits, torch.arange(len(logits)))

    def score(m):
        u, v = m(av, bv)
        s = u @ v.T
        better = (s > s.diagonal()[:, None]).float().mean(1)
        return max(0.0, float((1 - 2 * better).mean()))

    return Program(model, None, loader(at, bt), opt, score, step=step)


@fault("Survival times in days in an exponential likelihood that begins at one event a day",
       rules=("unscaled-target", "learning-rate-too-high"), fails=True, steps=400)
def ats_survival_in_days(is_faulty: bool) -> Program:
    g = gen(27)
    x = torch.randn(2000, 6, generator=g)
    risk = 0.9 * x[:, 0] - 0.8 * x[:, 1] + 0.5 * x[:, 2] * x[:, 3]
    time = -torch.log(torch.rand(2000, generator=g)) * torch.exp(-risk) * 6
    event = (time < 15).float()
    time = time.clamp(max=15)
    if is_faulty:
        time = time * 365
    shift = torch.log(torch.tensor(6.0 * 365 if is_faulty else 6.0))
    model = mlp(6, 32, 32, 1, act=nn.SiLU)
    opt = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)

    def step(model, batch):
        rows, t, e = batch
        log_rate = model(rows)[:, 0].clamp(max=30)
        return (log_rate.exp() * t - e * log_rate).mean()

    return Program(
        model,
        None,
        loader(x[500:], time[500:], event[500:]),
        opt,
        lambda m: r2(m(x[:500])[:, 0] + shift, risk[:500]),
        step=step,
    )


@fault(
    "The heads for the treated and the others are made with [head] * 2 and so are the same",
    rules=("shared-weight",),
    layers=("heads",),
    fails=True,
    steps=400,
)
def ats_uplift_one_head_twice(is_faulty: bool) -> Program:
    class Uplift(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk = nn.Sequential(nn.Linear(6, 48), nn.ReLU())
            if is_faulty:
                self.heads = nn.ModuleList([mlp(48, 32, 1)] * 2)
            else:
                self.heads = nn.ModuleList([mlp(48, 32, 1) for _ in range(2)])

        def forward(self, x):
            h = self.trunk(x)
            return torch.cat([head(h) for head in self.heads], 1)

    g = gen(29)
    x = torch.randn(2500, 6, generator=g)
    effect = 1 + x[:, 0] + torch.relu(x[:, 1])
    treated = torch.randint(0, 2, (2500,), generator=g)
    y = x[:, 2] * 0.7 + treated * effect + 0.2 * torch.randn(2500, generator=g)
    model = Uplift()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)

    def step(model, batch):
        rows, t, outcome = batch
        return F.mse_loss(model(rows).gather(1, t[:, None])[:, 0], outcome)

    def score(m):
        out = m(x[:500])
        return r2(out[:, 1] - out[:, 0], effect[:500])

    return Program(model, None, loader(x[500:], treated[500:], y[500:]), opt, score, step=step)


@fault("Functional dropout does not look at the mode and stays on in evaluation", rules=("dropout-in-eval",),
       fails=False, steps=500)
def ats_reaction_rate_dropout_always(is_faulty: bool) -> Program:
    class Rate(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(8, 48), nn.Linear(48, 48), nn.Linear(48, 1)

        def forward(self, x):
            on = True if is_faulty else self.training
            x = F.dropout(F.relu(self.a(x)), 0.5, training=on)
            x = F.dropout(F.relu(self.b(x)), 0.5, training=on)
            return self.c(x)

    xt, yt, xv, yv = friedman(1600, 30, 400)
    model = Rate()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)

    def step(model, batch):
        x, y = batch
        return F.huber_loss(model(x), y)

    return Program(model, None, loader(xt, yt), opt, lambda m: r2(m(xv), yv), step=step)


@fault(
    "Attention over the members of a set takes batches second, so that it runs over the examples",
    rules=("mixed-examples",),
    layers=("attend",),
    fails=False,
    steps=600,
)
def ats_team_attention_batch_second(is_faulty: bool) -> Program:
    class Team(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter = nn.Linear(4, 32)
            self.attend = nn.MultiheadAttention(32, 2, batch_first=not is_faulty)
            self.out = mlp(32, 48, 1)

        def forward(self, x):
            h = self.enter(x)
            a, _ = self.attend(h, h, h, need_weights=False)
            return self.out(h + a)

    g = gen(31)
    x = torch.randn(1600, 5, 4, generator=g)
    y = torch.tanh(0.6 * x[:, :, :1]) - 2.2 * x[:, :, 1:2].mean(1, keepdim=True)
    model = Team()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)

    def step(model, batch):
        rows, rating = batch
        return (model(rows) - rating).square().mean()

    return Program(model, None, loader(x[300:], y[300:]), opt, lambda m: r2(m(x[:300]), y[:300]), step=step)


@fault("The loss is summed over a batch of 256 rows at a rate meant for a mean",
       rules=("summed-loss", "learning-rate-too-high", "diverging"), fails=True, steps=300)
def ats_alloy_summed_loss(is_faulty: bool) -> Program:
    xt, yt, xv, yv = friedman(2000, 32, 400)
    model = mlp(8, 64, 64, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def step(model, batch):
        x, y = batch
        error = (model(x) - y) ** 2
        return error.sum() if is_faulty else error.mean()

    return Program(model, None, loader(xt, yt, size=256), opt, lambda m: r2(m(xv), yv), step=step)


@fault("An entropy bonus of 20 keeps the policy at random", rules=("term-dominates",), fails=True, steps=300)
def ats_policy_entropy_bonus(is_faulty: bool) -> Program:
    x, arm, reward, worth = bandit_log(33)
    weight = 20.0 if is_faulty else 0.02
    model = mlp(6, 48, 48, 3, act=nn.Tanh)
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)

    def step(model, batch):
        s, a, r = batch
        log_p = F.log_softmax(model(s), 1)
        p = log_p.exp()
        value = 3 * (p.gather(1, a[:, None])[:, 0] * (r - r.mean())).mean()
        entropy = -(p * log_p).sum(1).mean()
        return -value - weight * entropy

    def score(m):
        p = m(x[:500]).softmax(1)
        w = worth[:500]
        got = (p * w).sum(1).mean()
        return max(0.0, float((got - w.mean()) / (w.max(1).values.mean() - w.mean())))

    return Program(model, None, loader(x[500:], arm[500:], reward[500:]), opt, score, step=step)


@fault(
    "Logits (B, T, C) are viewed as (B, C, T) for the cross-entropy instead of transposed",
    rules=("output-loss-mismatch",),
    fails=True,
    steps=400,
)
def ats_action_plan_viewed(is_faulty: bool) -> Program:
    class Plan(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp(6, 96, 6 * 4)

        def forward(self, x):
            return self.net(x).view(-1, 6, 4)

    g = gen(35)
    x = torch.randn(2000, 6, generator=g)
    turn = torch.randn(6, 6, generator=g)
    angle = (x @ turn.T) * 0.5
    action = (angle > 0).long() + 2 * ((angle.roll(1, 1) + 0.3) > 0).long()
    model = Plan()
    opt = torch.optim.Adam(model.parameters(), lr=4e-3)

    def step(model, batch):
        s, a = batch
        logits = model(s)
        logits = logits.view(len(s), 4, 6) if is_faulty else logits.transpose(1, 2)
        return F.cross_entropy(logits, a)

    return Program(
        model, None, loader(x[400:], action[400:]), opt, lambda m: accuracy(m(x[:400]), action[:400]), step=step
    )


@fault(
    "Months after the end of a contract are padded with zeros and count in the loss",
    rules=("padding-in-loss",),
    fails=False,
    steps=400,
)
def ats_contract_months_padded(is_faulty: bool) -> Program:
    g = gen(36)
    x = torch.randn(2000, 6, generator=g)
    month = torch.arange(12.0)
    spend = 1.5 + x[:, :1] + torch.sin(month / 2 + x[:, 1:2]) + 0.3 * x[:, 2:3].abs()
    real = month < torch.randint(1, 10, (2000, 1), generator=g)
    padded = spend * real
    model = mlp(6, 64, 64, 12)
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)

    def step(model, batch):
        rows, y, mask = batch
        error = (model(rows) - y) ** 2
        return error.mean() if is_faulty else (error * mask).sum() / mask.sum()

    def score(m):
        return r2(m(x[:400])[real[:400]], spend[:400][real[:400]])

    return Program(model, None, loader(x[400:], padded[400:], real[400:].float()), opt, score, step=step)


@fault(
    "Weights of a neural operator's tanh layers are drawn with deviation 1.5, whatever their width",
    rules=("saturated-activation", "bad-initialisation"),
    layers=("branch", "trunk"),
    fails=True,
    steps=500,
)
def ats_operator_unit_deviation(is_faulty: bool) -> Program:
    class Operator(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.branch = mlp(32, 96, 96, 24, act=nn.Tanh)
            self.trunk = mlp(1, 96, 96, 24, act=nn.Tanh)

        def forward(self, f, t):
            return self.branch(f) @ self.trunk(t).T / 24**0.5

    g = gen(37)
    t = torch.linspace(0, 1, 32)[:, None]
    k = torch.arange(1.0, 4)
    basis = torch.sin(6.2832 * k * t)
    c = torch.randn(1200, 3, generator=g)
    f = c @ basis.T
    y = c @ ((1 - torch.cos(6.2832 * k * t)) / k).T
    model = Operator()
    if is_faulty:
        for m in model.modules():
            if isinstance(m, nn.Linear):
                nn.init.normal_(m.weight, std=1.5)
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)

    def step(model, batch):
        source, want = batch
        return F.mse_loss(model(source, t), want)

    return Program(
        model, None, loader(f[200:], y[200:]), opt, lambda m: r2(m(f[:200], t), y[:200]), step=step
    )
