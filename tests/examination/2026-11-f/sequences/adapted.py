"""Fine-tuning, rewards, graphs, several tasks, and orders of data."""

import copy

import torch
import torch.nn.functional as F
from program import Program, fault, sound
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WORDS = 50


def reviews(n, seed, classes=4, length=12, turn=0):
    """Reviews: two words in five belong to the class."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, classes, (n,), generator=g)
    own = ((y[:, None] + turn) % classes) * 12 + torch.randint(0, 12, (n, length), generator=g)
    x = torch.where(torch.rand(n, length, generator=g) < 0.4, own, torch.randint(0, WORDS, (n, length), generator=g))
    return x, y


class Body(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.embed = nn.Embedding(WORDS, d)
        self.mix = nn.Linear(d, d)

    def forward(self, x):
        return torch.tanh(self.mix(self.embed(x))).mean(1)


class Reviewer(nn.Module):
    def __init__(self, classes=4):
        super().__init__()
        self.body = Body()
        self.head = nn.Linear(32, classes)

    def forward(self, x):
        return self.head(self.body(x))


def pretrained(steps=150):
    """A network that knows the words of another task with the same classes."""
    model = Reviewer()
    opt = torch.optim.Adam(model.parameters(), 5e-3)
    x, y = reviews(1200, 41)
    for i in range(steps):
        j = (i * 40) % 1200
        opt.zero_grad()
        F.cross_entropy(model(x[j : j + 40]), y[j : j + 40]).backward()
        opt.step()
    return model


def right(x, y):
    return lambda m: (m(x).argmax(-1) == y).float().mean().item()


class LoRA(nn.Module):
    def __init__(self, base, rank, both_zero):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.zeros(rank, base.in_features))
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))
        if not both_zero:
            nn.init.normal_(self.a, std=0.3)

    def forward(self, x):
        return self.base(x) + x @ self.a.T @ self.b.T


def with_adapters(both_zero):
    model = pretrained().requires_grad_(False)
    model.body.mix = LoRA(model.body.mix, 4, both_zero)
    model.head = LoRA(model.head, 4, both_zero)
    return model


@fault(
    "both factors of the low-rank adapters start at zero, so that each keeps the other's gradient at zero",
    rules=["no-gradient", "bad-initialisation", "symmetric-initialisation", "loss-not-decreasing"],
    layers=["body.mix", "head"], fails=True, steps=300,
)
def adapters_both_zero(is_faulty):
    model = with_adapters(is_faulty)
    trainable = [p for p in model.parameters() if p.requires_grad]
    return Program(
        model, nn.CrossEntropyLoss(), DataLoader(TensorDataset(*reviews(1200, 1, turn=1)), 40, shuffle=True),
        torch.optim.Adam(trainable, 1e-2), right(*reviews(400, 2, turn=1)),
    )


@fault(
    "the head is replaced after the optimizer was made, which goes on holding the old one; the body is frozen",
    rules=["no-gradient"], layers=["head"], fails=True, steps=250,
)
def head_after_the_optimizer(is_faulty):
    model = pretrained()
    model.body.requires_grad_(False)

    def new_head():
        model.head = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))

    if not is_faulty:
        new_head()
    opt = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 5e-3)
    if is_faulty:
        new_head()
    return Program(
        model, nn.CrossEntropyLoss(), DataLoader(TensorDataset(*reviews(1200, 1, turn=1)), 40, shuffle=True), opt,
        right(*reviews(400, 2, turn=1)),
    )


def bandit_step(mean_reward_shape):
    """One decision for each state, rewarded when it is the right one."""

    def step(m, batch):
        x, y = batch
        dist = torch.distributions.Categorical(logits=m(x))
        action = dist.sample()
        reward = (action == y).float()
        advantage = reward - reward.mean()
        if mean_reward_shape == "column":
            advantage = advantage[:, None]
        return -(dist.log_prob(action) * advantage).mean()

    return step


def states(n, seed):
    x = torch.randn(n, 8, generator=torch.Generator().manual_seed(seed))
    return x, x[:, :4].argmax(1)


@fault(
    "advantages of shape (n, 1) times log-probabilities of shape (n,): every action is paid for every reward",
    rules=["output-loss-mismatch", "mixed-examples", "labels-unrelated"], fails=True, steps=400,
)
def rewards_for_everyone(is_faulty):
    policy = nn.Sequential(nn.Linear(8, 48), nn.Tanh(), nn.Linear(48, 4))
    return Program(
        policy, None, DataLoader(TensorDataset(*states(3000, 1)), 64, shuffle=True),
        torch.optim.Adam(policy.parameters(), 1e-2), right(*states(400, 2)),
        step=bandit_step("column" if is_faulty else "row"),
    )


def community(seed, n=120, p_in=0.35, p_out=0.12):
    """A graph of three communities and noisy hints at each node."""
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 3
    p = torch.where(y[:, None] == y, p_in, p_out)
    a = (torch.rand(n, n, generator=g) < p).float().triu(1)
    a = a + a.T + torch.eye(n)
    x = torch.eye(3)[y] + 1.2 * torch.randn(n, 3, generator=g)
    return a, x, y


def node_program(model, lr=1e-2):
    a, x, y = community(1)
    train = torch.arange(120) < 60

    def masked(out, y):
        return F.cross_entropy(out[train], y[train])

    def score(m):
        return (m(a, x).argmax(1) == y)[~train].float().mean().item()

    return Program(model, masked, [({"a": a, "x": x}, y)], torch.optim.Adam(model.parameters(), lr), score)


@fault(
    "24 rounds of averaging over neighbours before a linear layer: all nodes look the same",
    rules=["rank-collapse", "bad-initialisation", "vanishing-gradient", "constant-feature"], fails=True, steps=300,
)
def averaged_until_equal(is_faulty):
    class SGC(nn.Module):
        def __init__(self, rounds):
            super().__init__()
            self.rounds = rounds
            self.lift = nn.Linear(3, 24)
            self.out = nn.Linear(24, 3)

        def forward(self, a, x):
            a = a / a.sum(1, keepdim=True)
            h = torch.tanh(self.lift(x))
            for _ in range(self.rounds):
                h = a @ h
            return self.out(h)

    return node_program(SGC(24 if is_faulty else 1))


@fault(
    "the reviews lie in folders by class and are read in that order, without a shuffle",
    rules=["sorted-batches"], fails=False, steps=320,
)
def folder_by_folder(is_faulty):
    x, y = reviews(3200, 1)
    order = y.argsort(stable=True)
    model = Reviewer()
    return Program(
        model, nn.CrossEntropyLoss(), DataLoader(TensorDataset(x[order], y[order]), 20, shuffle=not is_faulty),
        torch.optim.Adam(model.parameters(), 5e-3), right(*reviews(400, 2)),
    )


class Experts(nn.Module):
    def __init__(self, copies, count=8):
        super().__init__()
        first = nn.Linear(2, 1)
        self.experts = nn.ModuleList(copy.deepcopy(first) if copies else nn.Linear(2, 1) for _ in range(count))
        self.gate = nn.Linear(2, count)
        nn.init.zeros_(self.gate.weight)
        nn.init.zeros_(self.gate.bias)

    def forward(self, x):
        each = torch.cat([e(x) for e in self.experts], 1)
        return (self.gate(x).softmax(-1) * each).sum(1)


def folded(n, seed):
    x = torch.rand(n, 2, generator=torch.Generator().manual_seed(seed)) * 4 - 2
    return x, x[:, 0].abs() - x[:, 1].abs()


def folds(m):
    x, y = folded(300, 2)
    return max(0.0, 1 - (m(x) - y).pow(2).mean().item() / y.var().item())


@fault(
    "the experts are copies of one and the gate starts at zero: they stay copies",
    rules=["symmetric-initialisation", "bad-initialisation"], layers=["experts", "gate"], fails=True, steps=400,
)
def copied_experts(is_faulty):
    model = Experts(copies=is_faulty)
    return Program(
        model, nn.MSELoss(), DataLoader(TensorDataset(*folded(2000, 1)), 50, shuffle=True),
        torch.optim.Adam(model.parameters(), 2e-2), folds,
    )


@sound("low-rank adapters of which one factor starts at zero, on a frozen pretrained network", steps=300, least=0.75)
def adapters():
    model = with_adapters(False)
    return Program(
        model, nn.CrossEntropyLoss(), DataLoader(TensorDataset(*reviews(1200, 1, turn=1)), 40, shuffle=True),
        torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 1e-2), right(*reviews(400, 2, turn=1)),
    )


@sound("a policy gradient, whose loss is around zero from the first step to the last", steps=400, least=0.75)
def policy_gradient():
    p = rewards_for_everyone(False)
    return Program(p.model, None, p.batches, p.optimizer, p.score, step=p.step)


@sound("Q-values that learn from a frozen copy of themselves, renewed by the step now and then", steps=500, least=0.75)
def q_learning():
    """A walk on a line of eight cells: left or right; a reward at the right end."""

    class Q(nn.Module):
        def __init__(self):
            super().__init__()
            self.online = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
            self.target = copy.deepcopy(self.online).requires_grad_(False)
            self.register_buffer("count", torch.zeros(()))

        def forward(self, s):
            return self.online(s)

    eye = torch.eye(8)

    def transitions(n):
        g = torch.Generator().manual_seed(1)
        s, a = torch.randint(0, 8, (n,), generator=g), torch.randint(0, 2, (n,), generator=g)
        return s, a, (s + 2 * a - 1).clamp(0, 7)

    def step(m, batch):
        s, a, t = batch
        m.count += 1
        if m.count % 10 == 0:
            m.target.load_state_dict(m.online.state_dict())
        with torch.no_grad():
            goal = (t == 7).float() + 0.8 * (t != 7) * m.target(eye[t]).max(1).values
        return F.smooth_l1_loss(m(eye[s]).gather(1, a[:, None])[:, 0], goal)

    def score(m):
        best = torch.where(torch.arange(8) == 7, 1.0, 0.8 ** (6 - torch.arange(8.0))).clamp(max=1.0)
        found = m(eye).max(1).values
        return 1 - (found[:7] - best[:7]).pow(2).mean().item() / best[:7].var().item()

    model = Q()
    return Program(
        model, None, DataLoader(TensorDataset(*transitions(2000)), 50, shuffle=True),
        torch.optim.Adam(model.online.parameters(), 5e-3), score, step=step,
    )


@sound("a loss of derivatives: the network's own gradient is in it, and it solves u' = cos(3t) u", steps=500, least=0.8)
def differential_equation():
    class U(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))

        def forward(self, t):
            return 1 + t * self.net(t)

    def step(m, t):
        t = t.clone().requires_grad_(True)
        u = m(t)
        (du,) = torch.autograd.grad(u.sum(), t, create_graph=True)
        return (du - torch.cos(3 * t) * u).pow(2).mean()

    t = torch.linspace(0, 2, 200)[:, None]
    truth = torch.exp(torch.sin(3 * t) / 3)
    model = U()
    points = 2 * torch.rand(2000, 1, generator=torch.Generator().manual_seed(1))
    return Program(
        model, None, DataLoader(points, 50, shuffle=True), torch.optim.Adam(model.parameters(), 3e-3),
        lambda m: 1 - (m(t) - truth).pow(2).mean().item() / truth.var().item(), step=step,
    )


@sound("one review in twenty is positive, and the loss weighs these twentyfold", steps=300, least=0.75)
def rare_and_weighted():
    def data(n, seed):
        x, y = reviews(n, seed)
        g = torch.Generator().manual_seed(seed + 1)
        keep = (y != 3) | (torch.rand(n, generator=g) < 0.15)
        return x[keep], (y[keep] == 3).float()

    hx, hy = data(2000, 2)

    def balanced(m):
        hit = (m(hx)[:, 0] > 0).float() == hy
        return 0.5 * (hit[hy == 1].float().mean() + hit[hy == 0].float().mean()).item()

    model = Reviewer(1)
    weigh = torch.tensor([20.0])
    return Program(
        model, lambda o, y: F.binary_cross_entropy_with_logits(o[:, 0], y, pos_weight=weigh),
        DataLoader(TensorDataset(*data(2400, 1)), 64, shuffle=True), torch.optim.Adam(model.parameters(), 5e-3), balanced,
    )
