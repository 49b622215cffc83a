"""Training steps of one's own: sound set-ups."""

import copy

import torch
import torch.nn.functional as F
from program import Program, sound
from torch import nn
from torch.distributions import Categorical
from torch.utils.data import DataLoader
from xts_data import accuracy, bumpy, correlation, loader, mean_r2, mlp, r2


@sound("nothing: a module with a training step and two losses", steps=400, least=0.75)
def xts_plain_lightning():
    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
            self.value, self.kind = nn.Linear(64, 1), nn.Linear(64, 3)

        def forward(self, x):
            h = self.trunk(x)
            return {"value": self.value(h).squeeze(-1), "kind": self.kind(h)}

        def training_step(self, batch):
            out = self(batch["x"])
            return F.mse_loss(out["value"], batch["value"]) + 0.5 * F.cross_entropy(out["kind"], batch["kind"])

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=3e-3)

    x = torch.randn(2500, 6)
    value, kind = bumpy(x), torch.stack([x[:, 3], x[:, 4], x[:, 5]], 1).argmax(1)
    rows = [{"x": x[i], "value": value[i], "kind": kind[i]} for i in range(2000)]

    def score(m):
        out = m(x[2000:])
        return 0.5 * r2(out["value"], value[2000:]) + 0.5 * accuracy(out["kind"], kind[2000:])

    model = Module()
    return Program(model, None, DataLoader(rows, 64, shuffle=True), model.configure_optimizers(), score,
                   step=lambda m, batch: m.training_step(batch))


@sound("nothing: a flow in time by Runge and Kutta", steps=300, least=0.8)
def xts_plain_runge_kutta():
    class Flow(nn.Module):
        def __init__(self):
            super().__init__()
            self.field = mlp(2, 32, 2, act=nn.Tanh)

        def forward(self, z, steps=5, h=0.2):
            path = []
            for _ in range(steps):
                a = self.field(z)
                b = self.field(z + h / 2 * a)
                c = self.field(z + h / 2 * b)
                d = self.field(z + h * c)
                z = z + h / 6 * (a + 2 * b + 2 * c + d)
                path.append(z)
            return torch.stack(path, 1)

    def truth(z):
        path = []
        for i in range(100):
            z = z + 0.01 * torch.stack([z[:, 1], -2 * torch.sin(z[:, 0]) - 0.2 * z[:, 1]], 1)
            if i % 20 == 19:
                path.append(z)
        return torch.stack(path, 1)

    start = 1.2 * torch.randn(1000, 2)
    path = truth(start)
    model = Flow()
    return Program(model, nn.MSELoss(), loader(start[:800], path[:800], size=40),
                   torch.optim.Adam(model.parameters(), lr=1e-2), lambda m: r2(m(start[800:]), path[800:]))


@sound("nothing: soft experts, half trained", trained=200, steps=500, least=0.7)
def xts_plain_experts():
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = mlp(5, 16, 3, act=nn.Tanh)
            self.experts = nn.ModuleList(mlp(5, 24, 1) for _ in range(3))

        def forward(self, x):
            shares = self.gate(x).softmax(-1)
            return (shares * torch.cat([e(x) for e in self.experts], -1)).sum(-1), shares

    x = torch.randn(2500, 5)
    y = torch.where(x[:, 0] > 0, 1.5 * torch.sin(2 * x[:, 1]), x[:, 2] + 0.5 * x[:, 3])

    def step(m, batch):
        out, shares = m(batch[0])
        usage = shares.mean(0)
        return F.mse_loss(out, batch[1]) + 0.01 * (usage * usage.log()).sum()

    model = Experts()
    return Program(model, None, loader(x[:2000], y[:2000]), torch.optim.Adam(model.parameters(), lr=6e-3),
                   lambda m: r2(m(x[2000:])[0], y[2000:]), step=step)


@sound("nothing: pairs to be ranked, by the logistic loss of their difference", steps=300, least=0.8)
def xts_plain_pairs():
    x = torch.randn(3000, 6)
    worth = bumpy(x)

    def step(model, batch):
        x, worth = batch
        other = torch.randperm(len(x))
        gap = (model(x) - model(x[other])).squeeze(1)
        keep = worth != worth[other]
        return F.softplus(-gap * (worth - worth[other]).sign())[keep].mean()

    model = mlp(6, 48, 48, 1, act=nn.ELU)
    return Program(model, None, loader(x[:2500], worth[:2500]), torch.optim.Adam(model.parameters(), lr=3e-3),
                   lambda m: correlation(m(x[2500:]), worth[2500:]), step=step)


@sound("a target network whose weights no gradient reaches, and a loss that rises as values are found",
       trained=150, steps=600, least=0.7)
def xts_double_q():
    states, actions, gamma = 24, 4, 0.8
    feature = torch.randn(states, 10)
    following, reward = torch.randint(states, (states, actions)), torch.randn(states, actions)
    best = torch.zeros(states, actions)
    for _ in range(200):
        best = reward + gamma * best.max(1).values[following]

    class Agent(nn.Module):
        def __init__(self):
            super().__init__()
            self.online = mlp(10, 64, 64, actions)
            self.target = copy.deepcopy(self.online).requires_grad_(False)

        def forward(self, s):
            return self.online(s)

    def step(agent, batch):
        s, a = batch
        with torch.no_grad():
            for slow, fast in zip(agent.target.parameters(), agent.online.parameters()):
                slow.mul_(0.95).add_(fast, alpha=0.05)
            after = feature[following[s, a]]
            pick = agent.online(after).argmax(1, keepdim=True)
            goal = reward[s, a] + gamma * agent.target(after).gather(1, pick).squeeze(1)
        return F.smooth_l1_loss(agent(feature[s]).gather(1, a[:, None]).squeeze(1), goal)

    model = Agent()
    s, a = torch.randint(states, (4000,)), torch.randint(actions, (4000,))
    return Program(model, None, loader(s, a), torch.optim.Adam(model.online.parameters(), lr=2e-3),
                   lambda m: r2(m(feature), best), step=step)


@sound("a policy's loss is negative, noisy, and does not fall", steps=500, least=0.7)
def xts_bandit_policy():
    class ActorCritic(nn.Module):
        def __init__(self):
            super().__init__()
            self.actor, self.critic = mlp(5, 48, 4, act=nn.Tanh), mlp(5, 48, 1, act=nn.Tanh)

        def forward(self, s):
            return Categorical(logits=self.actor(s)), self.critic(s).squeeze(1)

    worth = torch.randn(5, 4)

    def step(model, batch):
        (s,) = batch
        policy, guess = model(s)
        a = policy.sample()
        won = (s @ worth).gather(1, a[:, None]).squeeze(1) + 0.3 * torch.randn(len(s))
        advantage = won - guess.detach()
        advantage = advantage / (advantage.std() + 1e-6)
        return (-(advantage * policy.log_prob(a)).mean() + 0.5 * F.mse_loss(guess, won)
                - 0.01 * policy.entropy().mean())

    fresh = torch.randn(500, 5)
    best = (fresh @ worth).argmax(1, keepdim=True)
    model = ActorCritic()
    return Program(model, None, loader(torch.randn(6400, 5), size=128),
                   torch.optim.Adam(model.parameters(), lr=5e-3),
                   lambda m: float(m(fresh)[0].probs.gather(1, best).mean()), step=step)


@sound("a teacher without gradients inside the model, and dropout in the student", trained=150, steps=400, least=0.8)
def xts_frozen_teacher():
    class Teacher(nn.Module):
        def __init__(self):
            super().__init__()
            self.wide = nn.Linear(6, 128)
            self.read = nn.Linear(128, 4)
            nn.init.normal_(self.read.weight, std=0.6)

        def forward(self, x):
            return self.read(torch.cos(2 * self.wide(x)))

    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.teacher = Teacher().eval().requires_grad_(False)
            self.student = nn.Sequential(nn.Linear(6, 64), nn.GELU(), nn.Dropout(0.05), nn.Linear(64, 64), nn.GELU(),
                                         nn.Linear(64, 4))

        def forward(self, x):
            return self.student(x), self.teacher(x)

    def step(model, batch):
        mine, theirs = model(batch[0])
        t = 2.0
        soft = F.kl_div((mine / t).log_softmax(-1), (theirs / t).log_softmax(-1), log_target=True,
                        reduction="batchmean")
        return t * t * soft

    x = torch.randn(3000, 6)
    model = Pair()
    return Program(model, None, loader(x[:2500]),
                   torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=4e-3),
                   lambda m: accuracy(m(x[2500:])[0], m(x[2500:])[1].argmax(1)), step=step)


@sound("tasks weighted by learned uncertainties: the loss becomes negative", steps=500, least=0.75)
def xts_uncertain_tasks():
    class Tasks(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = nn.Sequential(nn.Linear(6, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU())
            self.heads = nn.ModuleList(nn.Linear(64, 1) for _ in range(3))
            self.log_variance = nn.Parameter(torch.zeros(3))

        def forward(self, x):
            h = self.trunk(x)
            return torch.cat([head(h) for head in self.heads], 1)

    def step(model, batch):
        x, y = batch
        error = (model(x) - y).square().mean(0)
        return (0.5 * torch.exp(-model.log_variance) * error + 0.5 * model.log_variance).sum()

    x = torch.randn(2500, 6)
    y = torch.stack([bumpy(x), torch.sin(x[:, 4] + x[:, 5]), 0.2 * bumpy(x[:, 2:])], 1) + 0.05 * torch.randn(2500, 3)
    model = Tasks()
    rest = [p for n, p in model.named_parameters() if n != "log_variance"]
    return Program(model, None, loader(x[:2000], y[:2000]),
                   torch.optim.Adam([{"params": rest}, {"params": [model.log_variance], "lr": 1e-2}], lr=4e-3),
                   lambda m: mean_r2(m(x[2000:]), y[2000:]), step=step)


@sound("pseudo labels: hardly any example counts at first, and a slow copy gives the answers", steps=400, least=0.8)
def xts_slow_teacher():
    centers = 2.2 * torch.randn(4, 6)
    y = torch.randint(4, (2500,))
    x = centers[y] + torch.randn(2500, 6)

    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.fast = mlp(6, 48, 4)
            self.slow = copy.deepcopy(self.fast)
            for p in self.slow.parameters():
                p.requires_grad = False

        def forward(self, x):
            return self.slow(x)

    def step(model, batch):
        (free,) = batch
        with torch.no_grad():
            for a, b in zip(model.slow.parameters(), model.fast.parameters()):
                a.lerp_(b, 0.05)
            sure, label = model.slow(free).softmax(-1).max(-1)
        pick = torch.randint(60, (30,))
        supervised = F.cross_entropy(model.fast(x[pick]), y[pick])
        noisy = model.fast(free + 0.3 * torch.randn_like(free))
        return supervised + ((sure > 0.9) * F.cross_entropy(noisy, label, reduction="none")).mean()

    model = Pair()
    return Program(model, None, loader(x[60:2000]), torch.optim.SGD(model.fast.parameters(), lr=0.1, momentum=0.9),
                   lambda m: accuracy(m(x[2000:]), y[2000:]), step=step)
