"""Sound physics, and sound steps of one's own."""

import copy
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call
from wts_data import accuracy, loader, r2, surface

from program import Program, sound


@sound("a physics-informed loss whose boundary weighs 100 times as much", steps=500, least=0.8)
def wts_weighted_boundary():
    net = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    inside = torch.rand(1500, 2)
    side = torch.linspace(0, 1, 20)

    def truth(p):
        return torch.exp(-p[:, :1]) * torch.sin(math.pi * p[:, 1:])

    rim = torch.cat([torch.stack([torch.full_like(side, k), side], 1) for k in (0.0, 1.0)]
                    + [torch.stack([side, torch.full_like(side, k)], 1) for k in (0.0, 1.0)])

    def step(net, batch):
        p = batch[0].clone().requires_grad_()
        u = net(p)
        du = torch.autograd.grad(u.sum(), p, create_graph=True)[0]
        d2 = sum(torch.autograd.grad(du[:, k].sum(), p, create_graph=True)[0][:, k] for k in (0, 1))
        residual = d2 - (1 - math.pi**2) * truth(p.detach())[:, 0]
        return residual.square().mean() + 100 * (net(rim) - truth(rim)).square().mean()

    held = torch.rand(400, 2)
    return Program(
        net, None, loader(inside, size=60), torch.optim.Adam(net.parameters(), lr=5e-3), lambda m: r2(m(held), truth(held)), step=step
    )


class Oscillator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
        self.stiffness = nn.Parameter(torch.tensor(1.0))

    def forward(self, t):
        return self.net(t)


@sound("an inverse problem: one of the weights is a constant of physics; half trained", trained=200, steps=600, least=0.8)
def wts_inverse_stiffness():
    t = 3 * torch.rand(1200, 1)
    seen = torch.cos(2 * t) + 0.02 * torch.randn_like(t)
    model = Oscillator()

    def step(model, batch):
        at, y = batch
        at = at.clone().requires_grad_(True)
        u = model(at)
        v = torch.autograd.grad(u.sum(), at, create_graph=True)[0]
        a = torch.autograd.grad(v.sum(), at, create_graph=True)[0]
        return F.mse_loss(u, y) + 0.01 * (a + model.stiffness * u).square().mean()

    groups = [{"params": model.net.parameters(), "lr": 4e-3}, {"params": [model.stiffness], "lr": 3e-2}]
    grid = torch.linspace(0, 3, 100)[:, None]
    return Program(
        model,
        None,
        loader(t, seen, size=60),
        torch.optim.Adam(groups),
        lambda m: 0.5 * r2(m(grid), torch.cos(2 * grid)) + 0.5 * max(0.0, 1 - abs(m.stiffness.item() - 4) / 3),
        step=step,
    )


class RungeKutta(nn.Module):
    def __init__(self, n=6):
        super().__init__()
        self.n = n
        self.field = nn.Sequential(nn.Linear(2, 48), nn.Tanh(), nn.Linear(48, 2))

    def forward(self, x):
        path, h = [], 1 / self.n
        for _ in range(self.n):
            a = self.field(x)
            b = self.field(x + h / 2 * a)
            c = self.field(x + h / 2 * b)
            d = self.field(x + h * c)
            x = x + h / 6 * (a + 2 * b + 2 * c + d)
            path.append(x)
        return torch.stack(path, 1)


@sound("one small network is used 24 times on the way", steps=350, least=0.85)
def wts_runge_kutta():
    x = torch.randn(1200, 2)
    y, path = x.clone(), []
    for k in range(120):
        y = y + 1 / 120 * torch.stack([2 * y[:, 1], -2 * torch.sin(y[:, 0]) - 0.2 * y[:, 1]], 1)
        if k % 20 == 19:
            path.append(y)
    path = torch.stack(path, 1)
    model = RungeKutta()
    return Program(
        model,
        F.mse_loss,
        loader(x[:900], path[:900]),
        torch.optim.Adam(model.parameters(), lr=5e-3),
        lambda m: r2(m(x[900:]), path[900:]),
    )


class Operator(nn.Module):
    def __init__(self):
        super().__init__()
        self.branch = nn.Sequential(nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 20))
        self.trunk = nn.Sequential(nn.Linear(1, 40), nn.SiLU(), nn.Linear(40, 40), nn.SiLU(), nn.Linear(40, 20))
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, u, at):
        return torch.einsum("bp,bqp->bq", self.branch(u), self.trunk(at)) + self.bias


@sound("nothing: a DeepONet with points of its own for every function", steps=450, least=0.7)
def wts_operator():
    n, grid = 1200, torch.linspace(0, 1, 30)
    k = math.pi * torch.arange(1, 4)
    c = torch.randn(n, 3)
    at = torch.rand(n, 16, 1)
    u = c @ torch.sin(k[:, None] * grid)
    s = torch.einsum("bk,bqk->bq", c / torch.tensor([1.0, 1.5, 2]), torch.cos(k * at))
    model = Operator()

    def step(model, batch):
        a, b, wanted = batch
        return F.mse_loss(model(a, b), wanted)

    return Program(
        model,
        None,
        loader(u[:1000], at[:1000], s[:1000], size=50),
        torch.optim.Adam(model.parameters(), lr=4e-3),
        lambda m: r2(m(u[1000:], at[1000:]), s[1000:]),
        step=step,
    )


class Double(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
        self.slow = copy.deepcopy(self.q)
        for p in self.slow.parameters():
            p.requires_grad = False

    def forward(self, s):
        return self.q(s)


@sound("Q-learning: half of the weights are a frozen copy, and the targets move as it learns", trained=120, steps=600, least=0.75)
def wts_double_q():
    n, gamma = 5000, 0.7
    s, a = torch.rand(n, 3) * 2 - 1, torch.randint(3, (n,))

    def move(s, a):
        s = s.clone()
        s[:, 0] = (s[:, 0] + 0.3 * (a - 1)).clamp(-1, 1)
        return s

    def pay(s, a):
        return torch.sin(3 * move(s, a)[:, 0]) * s[:, 1] + 0.5 * s[:, 2]

    calls = [0]
    model = Double()

    def step(model, batch):
        s, a, r, after = batch
        if calls[0] % 20 == 0:
            model.slow.load_state_dict(model.q.state_dict())
        calls[0] += 1
        with torch.no_grad():
            best = model.q(after).argmax(1, keepdim=True)
            wanted = r + gamma * model.slow(after).gather(1, best).squeeze(1)
        return F.smooth_l1_loss(model(s).gather(1, a[:, None]).squeeze(1), wanted)

    held = torch.rand(300, 3) * 2 - 1

    def value(s, depth):
        both = [(pay(s, k), move(s, k)) for k in (torch.full((len(s),), j) for j in range(3))]
        return torch.stack([r + gamma * value(t, depth - 1).amax(1) if depth else r for r, t in both], 1)

    truth = value(held, 6)
    return Program(
        model,
        None,
        loader(s, a, pay(s, a), move(s, a)),
        torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1.5e-3),
        lambda m: r2(m(held), truth),
        step=step,
    )


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 64), nn.Tanh())
        self.actor, self.critic = nn.Linear(64, 3), nn.Linear(64, 1)
        nn.init.orthogonal_(self.actor.weight, 0.01)
        nn.init.zeros_(self.actor.bias)

    def forward(self, s):
        h = self.body(s)
        return self.actor(h), self.critic(h).squeeze(-1)


@sound("actor and critic: the loss of the policy hovers around 0, noisy, and does not fall", steps=600, least=0.75)
def wts_actor_critic():
    states, held = torch.randn(4000, 4), torch.randn(500, 4)
    arms = torch.randn(4, 3)
    model = ActorCritic()

    def step(model, batch):
        (s,) = batch
        logits, v = model(s)
        policy = torch.distributions.Categorical(logits=logits)
        a = policy.sample()
        r = (a == (s @ arms).argmax(1)).float() + 0.3 * torch.randn(len(s))
        advantage = (r - v).detach()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        actor = -(policy.log_prob(a) * advantage).mean()
        return actor + 0.5 * F.mse_loss(v, r) - 0.01 * policy.entropy().mean()

    return Program(
        model,
        None,
        loader(states, size=128),
        torch.optim.Adam(model.parameters(), lr=4e-3, eps=1e-5),
        lambda m: accuracy(m(held)[0], (held @ arms).argmax(1)),
        step=step,
    )


class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.teacher = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 5)).requires_grad_(False)
        nn.init.normal_(self.teacher[2].weight, std=0.5)
        self.student = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 5))

    def forward(self, x):
        return self.student(x)

    def training_step(self, batch):
        x, y = batch
        with torch.no_grad():
            soft = (self.teacher(x) / 4).softmax(1)
        logits = self(x)
        kl = F.kl_div((logits / 4).log_softmax(1), soft, reduction="batchmean") * 16
        return 0.9 * kl + 0.1 * F.cross_entropy(logits, y)


@sound("a frozen teacher lives inside the module of the student", steps=400, least=0.75)
def wts_teacher_inside():
    x = torch.randn(2000, 8)
    model = Student()
    y = model.teacher(x).argmax(1)
    return Program(
        model,
        None,
        loader(x[:1500], y[:1500]),
        torch.optim.Adam(filter(lambda p: p.requires_grad, model.parameters()), lr=4e-3),
        lambda m: accuracy(m(x[1500:]), y[1500:]),
        step=lambda m, batch: m.training_step(batch),
    )


@sound("a step of gradient descent inside the step", steps=350, least=0.7)
def wts_inner_step():
    def draw(n):
        x = 4 * torch.rand(n, 20, 1) - 2
        return x, torch.randn(n, 1, 1) * torch.sin(2 * x) + 0.5

    x, y = draw(800)
    held, wanted = draw(60)
    model = nn.Sequential(nn.Linear(1, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 1))

    def adapted(model, xs, ys):
        weights = dict(model.named_parameters())
        inner = F.mse_loss(functional_call(model, weights, (xs[:10],)), ys[:10])
        slopes = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
        fast = {name: w - 0.1 * g for (name, w), g in zip(weights.items(), slopes)}
        return functional_call(model, fast, (xs[10:],))

    def step(model, batch):
        losses = [F.mse_loss(adapted(model, xs, ys), ys[10:]) for xs, ys in zip(*batch)]
        return torch.stack(losses).mean()

    def score(m):
        with torch.enable_grad():
            guess = torch.stack([adapted(m, xs, ys) for xs, ys in zip(held, wanted)])
        return r2(guess, wanted[:, 10:])

    return Program(model, None, loader(x, y, size=5), torch.optim.Adam(model.parameters(), lr=4e-3), score, step=step)


class GaussianMixture(nn.Module):
    def __init__(self, x, k):
        super().__init__()
        self.pick = nn.Parameter(torch.zeros(k))
        self.means = nn.Parameter(x[torch.randperm(len(x))[:k]].clone())
        self.log_scales = nn.Parameter(torch.zeros(k, x.shape[1]))

    def forward(self, x):
        each = torch.distributions.Normal(self.means, self.log_scales.exp()).log_prob(x[:, None]).sum(-1)
        return (each + self.pick.log_softmax(0)).logsumexp(1)


@sound("a mixture after it was trained: every point belongs to one component for certain", trained=300, steps=500, least=0.7)
def wts_mixture_trained():
    centers = 4 * torch.randn(5, 3)
    x = centers[torch.randint(5, (2500,))] + 0.4 * torch.randn(2500, 3)
    held = x[2000:]
    model = GaussianMixture(x[:2000], 12)
    truth = copy.deepcopy(model)
    truth.pick.data, truth.means.data, truth.log_scales.data = torch.zeros(5), centers, torch.full((5, 3), math.log(0.4))
    best = truth(held).mean().detach()
    one = torch.distributions.MultivariateNormal(x.mean(0), x.T.cov()).log_prob(held).mean()
    return Program(
        model,
        None,
        loader(x[:2000], size=100),
        torch.optim.Adam(model.parameters(), lr=2e-2),
        lambda m: ((m(held).mean() - one) / (best - one)).item(),
        step=lambda m, batch: -m(batch[0]).mean(),
    )


class TopTwo(nn.Module):
    def __init__(self, d, n):
        super().__init__()
        self.gate = nn.Linear(d, n, bias=False)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(d, 24), nn.ReLU(), nn.Linear(24, 1)) for _ in range(n))

    def forward(self, x):
        p = self.gate(x).softmax(1)
        top, which = p.topk(2, 1)
        share = torch.zeros_like(p).scatter(1, which, top / top.sum(1, keepdim=True))
        y = sum(share[:, j] * expert(x).squeeze(1) for j, expert in enumerate(self.experts))
        self.imbalance = len(self.experts) * ((share > 0).float().mean(0) * p.mean(0)).sum() / 2
        return y


@sound("each row goes to two of six experts, and a second term spreads them", steps=500, least=0.7)
def wts_sparse_experts():
    x = torch.randn(2500, 5)
    y = torch.where(x[:, 0] > 0, x[:, 1] + x[:, 2], x[:, 3].abs() - x[:, 1])
    model = TopTwo(5, 6)

    def step(model, batch):
        rows, wanted = batch
        error = F.mse_loss(model(rows), wanted)
        return error + 0.01 * model.imbalance

    return Program(
        model,
        None,
        loader(x[:2000], y[:2000]),
        torch.optim.AdamW(model.parameters(), lr=4e-3),
        lambda m: r2(m(x[2000:]), y[2000:]),
        step=step,
    )


@sound("pseudo-labels count only above a confidence of 0.95, so that their term is 0 at first", steps=500, least=0.8)
def wts_pseudo_labels():
    centers = 2.2 * torch.randn(4, 6)
    y = torch.randint(4, (3000,))
    x = centers[y] + 0.9 * torch.randn(3000, 6)
    model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 4))

    def step(model, batch):
        rows, label = batch
        few, many = rows[:16], rows[16:]
        with torch.no_grad():
            sure, guess = model(many + 0.05 * torch.randn_like(many)).softmax(1).max(1)
        hard = model(many + 0.4 * torch.randn_like(many))
        unlabelled = (F.cross_entropy(hard, guess, reduction="none") * (sure > 0.95)).mean()
        return F.cross_entropy(model(few), label[:16]) + unlabelled

    return Program(
        model,
        None,
        loader(x[:2400], y[:2400], size=80),
        torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True),
        lambda m: accuracy(m(x[2400:]), y[2400:]),
        step=step,
    )


class MultiTask(nn.Module):
    """Weighs its tasks by what it learns about their noise."""

    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.value, self.kind = nn.Linear(64, 1), nn.Linear(64, 3)
        self.log_var = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        h = self.trunk(x)
        return self.value(h).squeeze(1), self.kind(h)

    def training_step(self, batch):
        value, kind = self(batch["x"])
        terms = torch.stack([F.mse_loss(value, batch["value"]), F.cross_entropy(kind, batch["kind"])])
        return (terms * (-self.log_var).exp() + 0.5 * self.log_var).sum()


class DictRows(torch.utils.data.Dataset):
    def __init__(self, **columns):
        self.columns = columns

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, i):
        return {name: column[i] for name, column in self.columns.items()}


@sound("learned weights of tasks take the loss below 0; trained", trained=300, steps=600, least=0.8)
def wts_learned_task_weights():
    x = torch.randn(2200, 6)
    value = surface(x)
    kind = torch.stack([x[:, 0], x[:, 4] + 0.2, x[:, 5].abs() - 0.5], 1).argmax(1)
    train = DictRows(x=x[:1700], value=value[:1700], kind=kind[:1700])
    model = MultiTask()

    def score(m):
        a, b = m(x[1700:])
        return 0.5 * (r2(a, value[1700:]) + accuracy(b, kind[1700:]))

    return Program(
        model,
        None,
        torch.utils.data.DataLoader(train, batch_size=64, shuffle=True),
        torch.optim.Adam(model.parameters(), lr=2e-3),
        score,
        step=lambda m, batch: m.training_step(batch),
    )
