"""Ordinary set-ups."""
import math

import torch
import torch.nn.functional as F
from program import Program, sound
from torch import nn
from torch.utils.data import DataLoader
from yts_data import Stream, above_chance, loader, mlp, r2, surface


@sound("An ordinary regression on a table, half trained.", trained=200, steps=500, least=0.8)
def yts_housing():
    x, xt = torch.randn(4000, 10), torch.randn(800, 10)
    y = surface(x) + 0.15 * torch.randn(4000)
    model = mlp(10, 64, 64, 1)
    return Program(model, lambda out, t: F.mse_loss(out.squeeze(-1), t), loader(x, y),
                   torch.optim.Adam(model.parameters(), 2e-3), lambda m: r2(m(xt).squeeze(-1), surface(xt)))


class CreditNet(nn.Module):
    def __init__(self, sizes, numeric, classes):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(n, 6) for n in sizes)
        self.norm = nn.BatchNorm1d(numeric)
        self.layers = nn.Sequential(nn.Linear(6 * len(sizes) + numeric, 64), nn.ReLU(), nn.BatchNorm1d(64),
                                    nn.Dropout(0.1), nn.Linear(64, classes))

    def forward(self, cats, nums):
        parts = [table(cats[:, k]) for k, table in enumerate(self.tables)]
        return self.layers(torch.cat([*parts, self.norm(nums)], 1))


@sound("Ordinary entity embeddings next to raw columns, which a BatchNorm scales.", steps=500, least=0.6)
def yts_credit():
    sizes = (12, 30, 5)
    effects = [torch.randn(n, 3) for n in sizes]
    w = torch.randn(4, 3)

    def rows(n):
        cats = torch.stack([torch.randint(0, s, (n,)) for s in sizes], 1)
        nums = torch.randn(n, 4)
        score = sum(e[cats[:, k]] for k, e in enumerate(effects)) + torch.tanh(nums) @ w
        return cats, nums * torch.tensor([10.0, 200.0, 1.0, 0.1]) + torch.tensor([40.0, 500.0, 0.0, 0.3]), score.argmax(1)

    c, n, y = rows(4000)
    ct, nt, yt = rows(800)
    data = [({"cats": a, "nums": b}, t) for a, b, t in zip(c, n, y)]
    model = CreditNet(sizes, 4, 3)
    return Program(model, nn.CrossEntropyLoss(), DataLoader(data, 64, shuffle=True, drop_last=True),
                   torch.optim.AdamW(model.parameters(), 4e-3), lambda m: above_chance(m(ct, nt), yt, 3))


@sound("Ordinary Poisson regression with a log link.", steps=500, least=0.6)
def yts_claims():
    def claims(n):
        x = torch.randn(n, 7)
        log_rate = 0.4 * surface(x) + 0.8
        return x, torch.poisson(log_rate.exp()), log_rate

    x, y, _ = claims(6000)
    xt, _, truth = claims(800)
    model = nn.Sequential(nn.Linear(7, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1), nn.Flatten(0))
    return Program(model, nn.PoissonNLLLoss(log_input=True), loader(x, y, size=128),
                   torch.optim.SGD(model.parameters(), 0.03, momentum=0.9, nesterov=True), lambda m: r2(m(xt), truth))


class QNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.online, self.target = mlp(4, 64, 64, 3), mlp(4, 64, 64, 3)
        self.target.load_state_dict(self.online.state_dict())
        self.target.requires_grad_(False)

    def forward(self, s):
        return self.online(s)


@sound("Ordinary Q-learning with a target network that follows slowly, half trained.", trained=200, steps=500, least=0.6)
def yts_q_learning():
    gains = torch.randn(4, 3) / 2

    def reward(s):
        return torch.sin(1.5 * s @ gains)

    s, a, after = torch.randn(8000, 4), torch.randint(0, 3, (8000,)), torch.randn(8000, 4)
    r = reward(s).gather(1, a[:, None]).squeeze(1)
    st = torch.randn(1000, 4)

    def step(q, batch):
        s, a, r, after = batch
        with torch.no_grad():
            for slow, fast in zip(q.target.parameters(), q.online.parameters()):
                slow.lerp_(fast, 0.05)
            goal = r + 0.5 * q.target(after).max(1).values
        return F.smooth_l1_loss(q(s).gather(1, a[:, None]).squeeze(1), goal)

    truth = reward(st) + reward(st).max(1).values.mean()
    q = QNet()
    return Program(q, None, loader(s, a, r, after, size=128), torch.optim.Adam(q.online.parameters(), 3e-3),
                   lambda m: r2(m(st), truth), step=step)


@sound("Ordinary distillation, of soft and hard labels together.", steps=400, least=0.6)
def yts_distil():
    w = torch.randn(8, 5)
    hidden = torch.randn(5, 5)
    teacher = lambda x: torch.tanh(x @ w / 2) @ hidden  # noqa: E731
    x, xt = torch.randn(5000, 8), torch.randn(800, 8)
    y = torch.distributions.Categorical(logits=teacher(x)).sample()
    student = mlp(8, 64, 5)

    def step(model, batch):
        x, y = batch
        out = model(x)
        soft = F.kl_div(F.log_softmax(out / 2, 1), F.softmax(teacher(x) / 2, 1), reduction="batchmean") * 4
        return 0.7 * soft + 0.3 * F.cross_entropy(out, y)

    return Program(student, None, loader(x, y), torch.optim.Adam(student.parameters(), 3e-3),
                   lambda m: r2(m(xt).softmax(1), teacher(xt).softmax(1)), step=step)


class Operator(nn.Module):
    def __init__(self):
        super().__init__()
        self.branch, self.trunk = mlp(16, 48, 32, act=nn.GELU), mlp(1, 48, 48, 32, act=nn.GELU)
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, pair):
        f, x = pair
        return torch.einsum("bk,bk->b", self.branch(f), self.trunk(x)) + self.bias


@sound("An ordinary operator network that learns to integrate, trained.", trained=500, steps=600, least=0.8)
def yts_integral():
    grid = torch.linspace(0, 1, 16)
    k = torch.arange(1, 4) * math.pi

    def draw(n):
        a = torch.randn(n, 3)
        x = torch.rand(n, 1)
        return (torch.cos(grid[:, None] * k) @ a.T).T, x, (a * torch.sin(x * k) / k).sum(1) * 2

    f, x, y = draw(6000)
    ft, xt, yt = draw(800)
    data = [((a, b), c) for a, b, c in zip(f, x, y)]
    model = Operator()
    return Program(model, nn.MSELoss(), DataLoader(data, 64, shuffle=True), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: r2(m((ft, xt)), yt))


class LitTasks(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(9, 64), nn.ReLU(), nn.LayerNorm(64), nn.Linear(64, 64), nn.ReLU())
        self.price, self.sold = nn.Linear(64, 1), nn.Linear(64, 3)

    def forward(self, x):
        h = self.trunk(x)
        return {"price": self.price(h).squeeze(-1), "sold": self.sold(h)}

    def training_step(self, batch, index):
        out = self(batch["x"])
        return F.mse_loss(out["price"], batch["price"]) + 0.5 * F.cross_entropy(out["sold"], batch["sold"])

    def configure_optimizers(self):
        thin = [p for p in self.parameters() if p.ndim < 2]
        wide = [p for p in self.parameters() if p.ndim >= 2]
        optimizer = torch.optim.AdamW([{"params": wide, "weight_decay": 0.01}, {"params": thin, "weight_decay": 0.0}], 3e-3)
        return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 500)


@sound("An ordinary module with a step of its own for two tasks, late in its cosine schedule.", trained=400, steps=500,
       least=0.65)
def yts_two_tasks():
    w = torch.randn(9, 3)

    def rows(n):
        x = torch.randn(n, 9)
        return [{"x": r, "price": p, "sold": s} for r, p, s in zip(x, surface(x), (torch.tanh(x) @ w).argmax(1))]

    test = torch.utils.data.default_collate(rows(800))
    lit = LitTasks()
    optimizer, schedule = lit.configure_optimizers()

    def score(m):
        out = m(test["x"])
        return (r2(out["price"], test["price"]) + above_chance(out["sold"], test["sold"], 3)) / 2

    return Program(lit, None, DataLoader(rows(3000), 64, shuffle=True), optimizer, score, scheduler=schedule,
                   step=lambda m, b: m.training_step(b, 0))


@sound("An ordinary discrete-time survival model: most of its hazards are small, and late intervals are masked.",
       steps=500, least=0.6)
def yts_hazards():
    spans = 8

    def patients(n):
        x = torch.randn(n, 6)
        logit = -2.0 + 0.9 * surface(x)[:, None] + 0.15 * torch.arange(spans)
        event = torch.rand(n, spans) < logit.sigmoid()
        first = torch.where(event.any(1), event.float().argmax(1), spans)
        censor = torch.randint(2, spans + 1, (n,))
        return x, torch.minimum(first, censor), (first < censor).float(), logit

    x, when, seen, _ = patients(6000)
    xt, *_, truth = patients(600)

    class Hazard(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp(6, 48, 48, spans)

        def forward(self, x):
            return self.net(x)

    def step(model, batch):
        x, when, seen = batch
        logit = model(x)
        at = torch.arange(spans)
        event = (at == when[:, None]).float() * seen[:, None]
        alive = (at < when[:, None]).float()
        return (F.binary_cross_entropy_with_logits(logit, event, reduction="none") * (alive + event)).sum(1).mean()

    model = Hazard()
    return Program(model, None, loader(x, when, seen, size=128), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: r2(m(xt), truth), step=step)
