"""Faulty steps of one's own."""

import copy
import math

import torch
import torch.nn.functional as F
from torch import nn
from wts_data import accuracy, balanced, loader, r2, surface

from program import Program, fault


class Module(nn.Module):
    """What Lightning's module asks for, without Lightning."""

    def training_step(self, batch, index):
        raise NotImplementedError


def run_step(model, batch):
    return model.training_step(batch, 0)


class LogNormalSurvival(Module):
    def __init__(self, reduce):
        super().__init__()
        self.reduce = reduce
        self.net = nn.Sequential(nn.Linear(8, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 1))

    def forward(self, x):
        return self.net(x)[:, 0]

    def training_step(self, batch, index):
        x, log_time, event = batch
        z = (log_time - self(x)) / 0.5
        nll = torch.where(event > 0, 0.5 * z**2, -torch.special.log_ndtr(-z))
        return getattr(nll, self.reduce)()


@fault(
    "a sum over a batch of 256 at the rate for a mean",
    rules=["summed-loss", "learning-rate-too-high", "diverging"],
    fails=True,
    steps=300,
)
def wts_survival_summed(is_faulty):
    x = torch.randn(2400, 8)
    mean = surface(x)
    log_time = mean + 0.3 * torch.randn(len(x))
    left = 1 + torch.randn(len(x))
    event = (log_time <= left).float()
    log_time = torch.minimum(log_time, left)
    model = LogNormalSurvival("sum" if is_faulty else "mean")
    return Program(
        model,
        None,
        loader(x[:1900], log_time[:1900], event[:1900], size=256),
        torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9),
        lambda m: r2(m(x[1900:]), mean[1900:]),
        step=run_step,
    )


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.online = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
        self.target = copy.deepcopy(self.online).requires_grad_(False)

    def forward(self, state):
        return self.online(state)


@fault(
    "Q-learning at a rate a thousand times too high",
    rules=["learning-rate-too-high"],
    fails=True,
    steps=600,
)
def wts_q_learning_rate(is_faulty):
    n, gamma = 4000, 0.8
    state = torch.rand(n, 2) * 2 - 1
    action = torch.randint(2, (n,))

    def move(s, a):
        return torch.stack([(s[:, 0] + 0.4 * (2 * a - 1)).clamp(-1, 1), s[:, 1]], 1)

    def pay(s, a):
        after = move(s, a)
        return torch.cos(2 * after[:, 0]) * after[:, 1]

    reward, after = pay(state, action), move(state, action)
    agent = Agent()

    def step(agent, batch):
        s, a, r, s2 = batch
        with torch.no_grad():
            for slow, fast in zip(agent.target.parameters(), agent.online.parameters()):
                slow.lerp_(fast, 0.05)
            wanted = r + gamma * agent.target(s2).max(1).values
        return F.smooth_l1_loss(agent(s).gather(1, a[:, None])[:, 0], wanted)

    held = torch.rand(300, 2) * 2 - 1

    def value(s, depth):
        best = [pay(s, torch.full((len(s),), k)) for k in (0, 1)]
        if depth:
            best = [b + gamma * value(move(s, torch.full((len(s),), k)), depth - 1).amax(1) for k, b in enumerate(best)]
        return torch.stack(best, 1)

    truth = value(held, 10)
    return Program(
        agent,
        None,
        loader(state, action, reward, after, size=64),
        torch.optim.RMSprop(agent.online.parameters(), lr=1.0 if is_faulty else 1e-3),
        lambda m: r2(m(held), truth),
        step=step,
    )


class Policy(nn.Module):
    def __init__(self, gain):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.head = nn.Linear(64, 10)
        nn.init.orthogonal_(self.head.weight, gain)
        nn.init.zeros_(self.head.bias)

    def forward(self, context):
        return torch.distributions.Categorical(logits=self.head(self.body(context)))


@fault(
    "the last layer of the policy starts with a gain of 100 instead of 0.01, so that it explores nothing",
    rules=["saturated-output", "bad-initialisation"],
    layers=["head"],
    fails=False,
    steps=600,
)
def wts_policy_head_gain(is_faulty):
    contexts, held = torch.randn(3000, 6), torch.randn(500, 6)
    arms = torch.randn(6, 10)
    policy = Policy(100.0 if is_faulty else 0.01)

    def payoff(c):
        return F.one_hot((c @ arms).argmax(1), 10).float()

    def reinforce(policy, batch):
        (c,) = batch
        choice = policy(c)
        a = choice.sample()
        r = payoff(c).gather(1, a[:, None])[:, 0]
        return -((r - r.mean()) * choice.log_prob(a)).mean()

    return Program(
        policy,
        None,
        loader(contexts, size=128),
        torch.optim.Adam(policy.parameters(), lr=2e-3),
        lambda m: (m(held).probs * payoff(held)).sum(1).mean().item(),
        step=reinforce,
    )


@fault(
    "kl_div gets the student's probabilities instead of their logarithms",
    rules=["output-loss-mismatch"],
    fails=True,
    steps=400,
)
def wts_distilled_probabilities(is_faulty):
    x, held = torch.randn(2000, 10), torch.randn(500, 10)
    teacher = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 6))
    nn.init.normal_(teacher[2].weight, std=0.35)
    teacher.requires_grad_(False)
    student = nn.Sequential(nn.Linear(10, 24), nn.ReLU(), nn.Linear(24, 6))
    T = 2.0

    def distil(student, batch):
        soft = F.softmax(teacher(batch[0]) / T, -1)
        logits = student(batch[0]) / T
        said = F.softmax(logits, -1) if is_faulty else F.log_softmax(logits, -1)
        return T * T * F.kl_div(said, soft, reduction="batchmean")

    def score(m):
        p, q = F.softmax(teacher(held), -1), F.softmax(m(held), -1)
        flat = (p - p.mean(0)).abs().sum(1).mean()
        return (1 - (p - q).abs().sum(1).mean() / flat).clamp(min=0).item()

    return Program(student, None, loader(x, size=64), torch.optim.Adam(student.parameters(), lr=5e-3), score, step=distil)


class Adaptive(nn.Module):
    """Features that a task's own head reads, which takes one step from a common start."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(2, 48), nn.ReLU(), nn.Linear(48, 24), nn.Tanh())
        self.start = nn.Parameter(torch.zeros(24))
        self.rate = 0.4

    def forward(self, support, seen, query):
        h = self.features(support)
        error = h @ self.start - seen
        head = self.start - self.rate * 2 * torch.einsum("tn,tnd->td", error, h) / h.shape[1]
        return torch.einsum("tnd,td->tn", self.features(query), head)


def tasks(n, points=24):
    x = 2 * torch.rand(n, points, 2) - 1
    a, b = torch.randn(2, n, 1)
    return x, a * torch.sin(3 * x[..., 0]) + b * x[..., 1] * 2


@fault(
    "a schedule meant for epochs is stepped at every batch, and the rate is gone at once",
    rules=["learning-rate-too-low"],
    fails=True,
    steps=500,
)
def wts_meta_schedule(is_faulty):
    x, y = tasks(1500)
    held, wanted = tasks(200)
    model = Adaptive()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)

    def step(model, batch):
        a, b = batch
        return F.mse_loss(model(a[:, :12], b[:, :12], a[:, 12:]), b[:, 12:])

    return Program(
        model,
        None,
        loader(x, y, size=16),
        optimizer,
        lambda m: r2(m(held[:, :12], wanted[:, :12], held[:, 12:]), wanted[:, 12:]),
        scheduler=torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5 if is_faulty else 0.999),
        step=step,
    )


class Mixture(nn.Module):
    def __init__(self, k, d, spread):
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(k))
        self.means = nn.Parameter(spread * torch.randn(k, d))
        self.log_scales = nn.Parameter(torch.zeros(k, d))

    def forward(self, x):
        z = (x[:, None] - self.means) * torch.exp(-self.log_scales)
        each = -0.5 * z.square().sum(-1) - self.log_scales.sum(-1) - 0.5 * x.shape[1] * math.log(2 * math.pi)
        return torch.logsumexp(each + F.log_softmax(self.weights, 0), 1)


@fault(
    "all components of a mixture start at the same mean, and stay together",
    rules=["symmetric-initialisation"],
    layers=["means", "log_scales", "weights"],
    fails=True,
    steps=400,
)
def wts_mixture_of_one(is_faulty):
    d = 2
    angle = torch.arange(3) * 2 * math.pi / 3 + torch.rand(1)
    centers = 2.5 * torch.stack([angle.cos(), angle.sin()], 1)
    x = centers[torch.randint(3, (2600,))] + 0.35 * torch.randn(2600, d)
    held = x[2000:]
    one = torch.distributions.MultivariateNormal(x.mean(0), torch.cov(x.T)).log_prob(held).mean()
    truth = Mixture(3, d, 0.0)
    truth.means.data, truth.log_scales.data = centers.clone(), torch.full((3, d), math.log(0.35))
    best = truth(held).mean().detach()
    model = Mixture(8, d, 0.0 if is_faulty else 1.0)
    return Program(
        model,
        None,
        loader(x[:2000], size=100),
        torch.optim.Adam(model.parameters(), lr=2e-2),
        lambda m: ((m(held).mean() - one) / (best - one)).clamp(min=0).item(),
        step=lambda model, batch: -model(batch[0]).mean(),
    )


class Experts(nn.Module):
    def __init__(self, dim, n_experts, axis):
        super().__init__()
        self.axis = axis
        self.gate = nn.Linear(dim, n_experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, 16), nn.ReLU(), nn.Linear(16, 1)) for _ in range(n_experts)
        )

    def forward(self, x):
        share = self.gate(x).softmax(self.axis)
        said = torch.cat([expert(x) for expert in self.experts], 1)
        return (share * said).sum(1)


@fault(
    "the gate of a mixture of experts is normalised over the batch instead of over the experts",
    rules=["wrong-softmax-dimension", "mixed-examples"],
    layers=["gate"],
    fails=True,
    steps=500,
)
def wts_gate_over_batch(is_faulty):
    x = torch.randn(2200, 5)
    y = torch.where(x[:, 4] > 0, x[:, :3].sum(1), torch.sin(2 * x[:, 0]) - 1.5 * x[:, 1])
    model = Experts(5, 4, 0 if is_faulty else 1)

    def step(model, batch):
        rows, wanted = batch
        return (model(rows) - wanted).pow(2).mean()

    return Program(
        model,
        None,
        loader(x[:1700], y[:1700], drop_last=True),
        torch.optim.AdamW(model.parameters(), lr=6e-3),
        lambda m: r2(m(x[1700:]), y[1700:]),
        step=step,
    )


@fault(
    "agreement on unlabelled rows weighs so much from the start that all rows get the same answer",
    rules=["term-dominates", "rank-collapse"],
    fails=True,
    steps=400,
)
def wts_agreement_first(is_faulty):
    def moons(n):
        side = torch.randint(2, (n,))
        angle = math.pi * torch.rand(n)
        x = torch.stack([angle.cos() + side.float() - 0.5, torch.where(side > 0, -angle.sin() + 0.5, angle.sin()) - 0.25], 1)
        return torch.cat([2 * x + 0.15 * torch.randn(n, 2), 0.3 * torch.randn(n, 2)], 1), side

    x, y = moons(1600)
    held, truth = moons(500)
    known = torch.rand(len(x)) < 0.15
    weight = 5000.0 if is_faulty else 1.0
    model = nn.Sequential(nn.Linear(4, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 2))

    def step(model, batch):
        rows, label, has = batch
        one = model(rows + 0.4 * torch.randn_like(rows))
        two = model(rows + 0.4 * torch.randn_like(rows))
        ce = (F.cross_entropy(one, label, reduction="none") * has).sum() / has.sum().clamp(min=1)
        return ce + weight * F.mse_loss(one.softmax(1), two.softmax(1))

    return Program(
        model,
        None,
        loader(x, y, known.float(), size=100),
        torch.optim.Adam(model.parameters(), lr=2e-3),
        lambda m: max(0.0, 2 * balanced(m(held).argmax(1), truth) - 1),
        step=step,
    )


class Imputer(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(2 * n, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU())
        self.dec = nn.Linear(96, n)

    def forward(self, row, hidden):
        return self.dec(self.enc(torch.cat([row, hidden.float()], 1)))


@fault(
    "the row goes in whole although its hidden cells are asked for", rules=["future-seen"], fails=False, steps=500
)
def wts_cells_not_hidden(is_faulty):
    n = 12
    mix = torch.randn(3, n)
    rows = torch.randn(3000, 3) @ mix
    rows = rows / rows.std(0) + 0.1 * torch.randn(3000, n)
    held, held_mask = rows[2500:], torch.rand(500, n) < 0.25

    def step(model, batch):
        (row,) = batch
        hidden = torch.rand_like(row) < 0.25
        seen = row.masked_fill(hidden, 0.0)
        guess = model(row if is_faulty else seen, hidden)
        return F.mse_loss(guess[hidden], row[hidden])

    def score(m):
        guess = m(held.masked_fill(held_mask, 0.0), held_mask)
        return r2(guess[held_mask], held[held_mask])

    model = Imputer(n)
    return Program(
        model, None, loader(rows[:2500]), torch.optim.Adam(model.parameters(), lr=3e-3), score, step=step
    )
