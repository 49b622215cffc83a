"""Training steps of one's own: faults."""

import math

import torch
import torch.nn.functional as F
from program import Program, fault
from torch import nn
from torch.distributions import Categorical
from xts_data import accuracy, bumpy, loader, mlp, r2


@fault("the gate's softmax is over the examples and not over the experts",
       rules=["wrong-softmax-dimension", "mixed-examples"], layers=["gate"], fails=True, steps=400)
def xts_gate_over_batch(is_faulty):
    class Experts(nn.Module):
        def __init__(self, experts=4):
            super().__init__()
            self.gate = nn.Sequential(nn.Linear(6, experts), nn.Softmax(dim=0 if is_faulty else 1))
            self.experts = nn.ModuleList(mlp(6, 24, 1) for _ in range(experts))

        def forward(self, x):
            shares = self.gate(x)
            answers = torch.cat([e(x) for e in self.experts], 1)
            return (shares * answers).sum(1), shares

    x = torch.randn(2500, 6)
    y = torch.where(x[:, 4] > 0, bumpy(x), -1.5 * x[:, 5])

    def step(model, batch):
        x, y = batch
        out, shares = model(x)
        balance = (shares.mean(0) - shares.mean()).square().sum()
        return F.mse_loss(out, y) + 0.1 * balance

    model = Experts()
    return Program(model, None, loader(x[:2000], y[:2000]), torch.optim.Adam(model.parameters(), lr=5e-3),
                   lambda m: r2(m(x[2000:])[0], y[2000:]), step=step)


@fault("values are learned from rewards in the thousands",
       rules=["unscaled-target"], fails=False, steps=500)
def xts_td_rewards(is_faulty):
    gamma, unit = 0.7, 1.0 if is_faulty else 1e-3
    a = torch.tensor([[0.8, 0.3, 0.0], [-0.3, 0.8, 0.0], [0.0, 0.2, 0.7]])
    cost = torch.eye(3)
    for _ in range(200):
        cost = torch.eye(3) + gamma * a.T @ cost @ a

    class Critic(nn.Module):
        def __init__(self):
            super().__init__()
            self.online = mlp(3, 48, 48, 1)
            self.target = mlp(3, 48, 48, 1)
            self.target.load_state_dict(self.online.state_dict())
            self.target.requires_grad_(False)

        def forward(self, s):
            return self.online(s).squeeze(-1)

        @torch.no_grad()
        def follow(self, tau=0.1):
            for slow, fast in zip(self.target.parameters(), self.online.parameters()):
                slow.lerp_(fast, tau)

    state = torch.randn(4000, 3)
    following = state @ a.T
    reward = -1000 * state.square().sum(1)

    def step(critic, batch):
        s, r, after = batch
        critic.follow()
        with torch.no_grad():
            goal = unit * r + gamma * critic.target(after).squeeze(-1)
        return F.smooth_l1_loss(critic(s), goal)

    model = Critic()
    fresh = torch.randn(500, 3)
    value = -1000 * (fresh @ cost * fresh).sum(1)
    return Program(model, None, loader(state, reward, following), torch.optim.Adam(model.online.parameters(), lr=3e-3),
                   lambda m: r2(m(fresh) / unit, value), step=step)


@fault("the policy's probabilities are taken for logits",
       rules=["output-loss-mismatch"], fails=True, steps=600)
def xts_policy_probabilities(is_faulty):
    class Policy(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(6, 64), nn.Tanh())
            self.action = nn.Linear(64, 6)

        def forward(self, s):
            p = torch.softmax(self.action(self.body(s)), -1)
            return Categorical(logits=p) if is_faulty else Categorical(probs=p)

    best = torch.randn(6, 6)

    def reward_of(s, a):
        return ((s @ best).argmax(1) == a).float()

    def step(policy, batch):
        (s,) = batch
        now = policy(s)
        a = now.sample()
        reward = reward_of(s, a)
        advantage = reward - reward.mean()
        return -(advantage * now.log_prob(a)).mean() - 0.001 * now.entropy().mean()

    model = Policy()
    fresh = torch.randn(600, 6)
    right = (fresh @ best).argmax(1, keepdim=True)
    return Program(model, None, loader(torch.randn(8192, 6), size=128),
                   torch.optim.Adam(model.parameters(), lr=1e-2),
                   lambda m: float(m(fresh).probs.gather(1, right).mean()), step=step)


@fault("the student's share of kept units is given as its rate of dropout",
       rules=["dropout-too-strong"], layers=["student.drop_1", "student.drop_2"], fails=False, steps=400)
def xts_student_keep(is_faulty):
    keep = 0.92

    class Student(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc_1, self.fc_2, self.fc_3 = nn.Linear(8, 48), nn.Linear(48, 48), nn.Linear(48, 5)
            self.drop_1 = nn.Dropout(keep if is_faulty else 1 - keep)
            self.drop_2 = nn.Dropout(keep if is_faulty else 1 - keep)

        def forward(self, x):
            x = self.drop_1(F.relu(self.fc_1(x)))
            x = self.drop_2(F.relu(self.fc_2(x)))
            return self.fc_3(x)

    class Teacher(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("centers", torch.randn(15, 8))

        def forward(self, x):
            near = -torch.cdist(x, self.centers).square()
            return near.view(-1, 5, 3).logsumexp(2)

    class Distillation(nn.Module):
        def __init__(self):
            super().__init__()
            self.teacher, self.student = Teacher(), Student()

        def training_step(self, batch, temperature=2.0):
            (x,) = batch
            with torch.no_grad():
                soft = F.softmax(self.teacher(x) / temperature, -1)
            mine = F.log_softmax(self.student(x) / temperature, -1)
            return temperature**2 * F.kl_div(mine, soft, reduction="batchmean")

    model = Distillation()
    x = torch.randn(3000, 8)
    return Program(model, None, loader(x[:2500]), torch.optim.Adam(model.student.parameters(), lr=4e-3),
                   lambda m: accuracy(m.student(x[2500:]), m.teacher(x[2500:]).argmax(1)),
                   step=lambda m, batch: m.training_step(batch))


@fault("the adapted weights are detached from the ones that are to be learned",
       rules=["no-gradient"], layers=["w1", "b1", "w2", "b2", "w3", "b3"], fails=True, steps=400)
def xts_meta_detached(is_faulty):
    class Learner(nn.Module):
        def __init__(self, width=32):
            super().__init__()
            self.w1, self.b1 = nn.Parameter(torch.randn(width, 1)), nn.Parameter(torch.randn(width))
            self.w2, self.b2 = nn.Parameter(torch.randn(width, width) / width**0.5), nn.Parameter(torch.zeros(width))
            self.w3, self.b3 = nn.Parameter(torch.randn(1, width) / width**0.5), nn.Parameter(torch.zeros(1))

        def forward(self, x, w=None):
            w = w or [self.w1, self.b1, self.w2, self.b2, self.w3, self.b3]
            h = torch.tanh(F.linear(x, w[0], w[1]))
            h = torch.tanh(F.linear(h, w[2], w[3]))
            return F.linear(h, w[4], w[5])

        def adapted(self, x, y, rate=0.05):
            w = list(self.parameters())
            with torch.enable_grad():
                for _ in range(2):
                    inner = (self(x, w) - y).square().mean()
                    slopes = torch.autograd.grad(inner, w, create_graph=True)
                    w = [p - rate * g for p, g in zip(w, slopes)]
                    if is_faulty:
                        w = [p.detach().requires_grad_() for p in w]
            return w

    def tasks(n):
        x = 4 * torch.rand(n, 20, 1) - 2
        return x, 1.5 * torch.sin(2 * x) + torch.randn(n, 1, 1)

    def step(model, batch):
        total = 0.0
        for x, y in zip(*batch):
            w = model.adapted(x[:10], y[:10])
            total = total + (model(x[10:], w) - y[10:]).square().mean()
        return total / len(batch[0])

    def score(m):
        out = [m(a[10:], m.adapted(a[:10], b[:10])).detach() for a, b in zip(*held)]
        return r2(torch.stack(out), held[1][:, 10:])

    model = Learner()
    held = tasks(60)
    return Program(model, None, loader(*tasks(600), size=4), torch.optim.Adam(model.parameters(), lr=3e-3), score,
                   step=step)


@fault("the heads of a mixture start at zero, so that its parts are alike and stay so",
       rules=["symmetric-initialisation"], layers=["mu", "log_sigma", "share"], fails=True, steps=500)
def xts_mixture_zero(is_faulty):
    class Mixture(nn.Module):
        def __init__(self, parts=3):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
            self.mu, self.log_sigma, self.share = (nn.Linear(32, parts) for _ in range(3))
            if is_faulty:
                for head in (self.mu, self.log_sigma, self.share):
                    nn.init.zeros_(head.weight)
                    nn.init.zeros_(head.bias)

        def log_prob(self, x, y):
            h = self.body(x)
            log_sigma = self.log_sigma(h).clamp(-4, 3)
            parts = -0.5 * ((y - self.mu(h)) / log_sigma.exp()) ** 2 - log_sigma - 0.5 * math.log(2 * math.pi)
            return torch.logsumexp(parts + self.share(h).log_softmax(1), 1)

    x = 2 * torch.rand(3000, 1) - 1
    p, level, noise = torch.sigmoid(2 * x), 1 + x.square(), 0.15
    side = torch.where(torch.rand(3000, 1) < p, 1.0, -1.0)
    y = side * level + noise * torch.randn(3000, 1)

    def normal(y, m, s):
        return -0.5 * ((y - m) / s) ** 2 - torch.as_tensor(s).log() - 0.5 * math.log(2 * math.pi)

    best = torch.logaddexp(p.log() + normal(y, level, noise), (1 - p).log() + normal(y, -level, noise))
    one = normal(y, (2 * p - 1) * level, (level**2 * (1 - (2 * p - 1) ** 2) + noise**2).sqrt())
    held = slice(2500, 3000)
    best, one = best[held].mean(), one[held].mean()
    model = Mixture()
    return Program(model, None, loader(x[:2500], y[:2500]), torch.optim.Adam(model.parameters(), lr=5e-3),
                   lambda m: float(((m.log_prob(x[held], y[held]).mean() - one) / (best - one)).clamp(0, 1)),
                   step=lambda m, batch: -m.log_prob(*batch).mean())


@fault("agreement of two noisy views outweighs the few labels from the start",
       rules=["term-dominates"], fails=False, steps=400)
def xts_agreement_weight(is_faulty):
    weight = 3000.0 if is_faulty else 1.0
    centers = 1.3 * torch.randn(4, 6)
    y = torch.randint(4, (2600,))
    x = centers[y] + 0.7 * torch.randn(2600, 6)
    labelled_x, labelled_y = x[:80], y[:80]

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU())
            self.classes = nn.Linear(48, 4)

        def forward(self, x):
            return self.classes(self.trunk(x))

    def step(model, batch):
        (free,) = batch
        pick = torch.randint(80, (32,))
        supervised = F.cross_entropy(model(labelled_x[pick]), labelled_y[pick])
        one = model(free + 0.5 * torch.randn_like(free)).softmax(-1)
        two = model(free + 0.5 * torch.randn_like(free)).softmax(-1)
        return supervised + weight * (one - two).square().mean()

    model = Net()
    return Program(model, None, loader(x[80:2080]), torch.optim.Adam(model.parameters(), lr=2e-3),
                   lambda m: accuracy(m(x[2080:]), y[2080:]), step=step)


@fault("an expert is chosen by the router's index alone, so that nothing teaches the router",
       rules=["no-gradient"], layers=["router"], fails=False, steps=600)
def xts_router_index(is_faulty):
    class Switch(nn.Module):
        def __init__(self, experts=4):
            super().__init__()
            self.router = nn.Linear(5, experts)
            self.weight = nn.Parameter(torch.randn(experts, 5) * 0.3)
            self.bias = nn.Parameter(torch.zeros(experts))

        def forward(self, x):
            shares = self.router(x).softmax(1)
            answers = x @ self.weight.T + self.bias
            if is_faulty:
                return answers.gather(1, shares.argmax(1, keepdim=True)).squeeze(1)
            return (answers * shares).sum(1)

    x = torch.randn(3000, 5)
    region = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()
    slopes = 1.0 * torch.randn(4, 5)
    y = (x * slopes[region]).sum(1) + torch.tensor([-2.0, 2.0, 2.0, -2.0])[region]
    y = y / y.std()
    model = Switch()
    optimizer = torch.optim.AdamW([{"params": model.router.parameters(), "lr": 2e-2},
                                   {"params": [model.weight, model.bias]}], lr=2e-2)
    return Program(model, None, loader(x[:2500], y[:2500], size=100), optimizer,
                   lambda m: r2(m(x[2500:]), y[2500:]), step=lambda m, batch: F.mse_loss(m(batch[0]), batch[1]))


@fault("gradients are accumulated over parts of two rows, and BatchNorm normalises each part",
       rules=["small-batch-batchnorm"], layers=["bn1", "bn2"], fails=True, steps=400)
def xts_micro_batches(is_faulty):
    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1, self.bn1 = nn.Linear(6, 48), nn.BatchNorm1d(48)
            self.fc2, self.bn2 = nn.Linear(48, 48), nn.BatchNorm1d(48)
            self.head = nn.Linear(48, 1)
            self.micro = 2 if is_faulty else 32

        def forward(self, x):
            x = F.relu(self.bn1(self.fc1(x)))
            x = F.relu(self.bn2(self.fc2(x)))
            return self.head(x).squeeze(-1)

        def training_step(self, batch):
            x, y = batch
            parts = list(zip(x.split(self.micro), y.split(self.micro)))
            return sum(F.mse_loss(self(a), b) for a, b in parts) / len(parts)

    x = torch.randn(2500, 6)
    y = bumpy(x)
    model = Module()
    return Program(model, None, loader(x[:2048], y[:2048], size=32), torch.optim.Adam(model.parameters(), lr=3e-3),
                   lambda m: r2(m(x[2048:]), y[2048:]), step=Module.training_step)
