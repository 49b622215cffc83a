import math

import torch
import torch.nn.functional as F
from program import Program, sound
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler
from tos_kit import acc, dl, r2, rn, ru, table


@sound("ordinary: digits, two layers, Adam", steps=200, least=0.85)
def tos_plain_digits():
    x, y, vx, vy = table("digits")
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    return Program(model, nn.CrossEntropyLoss(), dl(x, y), torch.optim.Adam(model.parameters(), 3e-3), lambda m: acc(m(vx), vy))


@sound("ordinary: iris, batches of eight, SGD with momentum", steps=250, least=0.85)
def tos_plain_iris():
    x, y, vx, vy = table("iris")
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
    return Program(model, nn.CrossEntropyLoss(), dl(x, y, bs=8), torch.optim.SGD(model.parameters(), 0.05, momentum=0.9), lambda m: acc(m(vx), vy))


@sound("ordinary: wine with BatchNorm, trained", trained=200, steps=300, least=0.9)
def tos_plain_wine():
    x, y, vx, vy = table("wine")
    model = nn.Sequential(nn.Linear(13, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 3))
    return Program(model, F.cross_entropy, dl(x, y, bs=20), torch.optim.AdamW(model.parameters(), 5e-3), lambda m: acc(m(vx), vy))


@sound("logistic regression: one layer and nothing else", steps=200, least=0.9)
def tos_logistic():
    x, y, vx, vy = table("breast_cancer")
    model = nn.Linear(30, 1)

    def loss(out, t):
        return F.binary_cross_entropy_with_logits(out.squeeze(1), t.float())

    return Program(model, loss, dl(x, y, bs=32), torch.optim.SGD(model.parameters(), 0.1), lambda m: float(((m(vx)[:, 0] > 0) == vy.bool()).float().mean()))


@sound("ordinary: small convolutional network on digits, cosine schedule, half trained", trained=120, steps=260, least=0.85)
def tos_conv_cosine():
    x, y, vx, vy = table("digits")
    model = nn.Sequential(nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3), nn.ReLU(),
                          nn.Flatten(), nn.Linear(64, 10))
    opt = torch.optim.AdamW(model.parameters(), 8e-3, weight_decay=1e-2)
    return Program(model, nn.CrossEntropyLoss(label_smoothing=0.1), dl(x, y), opt, lambda m: acc(m(vx), vy), scheduler=CosineAnnealingLR(opt, 260))


@sound("ordinary: Huber regression with RMSprop", steps=300, least=0.8)
def tos_plain_huber():
    x = rn(1200, 7)
    y = torch.sin(x[:, 0]) + 0.5 * x[:, 1] * (x[:, 2] > 0) + 0.1 * rn(1200, s=3)
    model = nn.Sequential(nn.Linear(7, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1), nn.Flatten(0))
    return Program(model, nn.HuberLoss(), dl(x[200:], y[200:]), torch.optim.RMSprop(model.parameters(), 2e-3), lambda m: r2(m(x[:200]), y[:200]))


@sound("ordinary: breast cancer, two classes, one-cycle schedule", steps=200, least=0.9)
def tos_onecycle():
    x, y, vx, vy = table("breast_cancer")
    model = nn.Sequential(nn.Linear(30, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 2))
    opt = torch.optim.AdamW(model.parameters(), 1e-3)
    return Program(model, nn.CrossEntropyLoss(), dl(x, y, bs=32), opt, lambda m: acc(m(vx), vy), scheduler=OneCycleLR(opt, 1e-2, total_steps=700))


@sound("ordinary: Adagrad and ELU on digits, trained", trained=250, steps=300, least=0.85)
def tos_adagrad():
    x, y, vx, vy = table("digits")
    model = nn.Sequential(nn.Linear(64, 48), nn.ELU(), nn.Linear(48, 10), nn.LogSoftmax(1))
    return Program(model, nn.NLLLoss(), dl(x, y, bs=50), torch.optim.Adagrad(model.parameters(), 0.03), lambda m: acc(m(vx), vy))


@sound("five quantiles at once by the pinball loss: sorted outputs against one target", steps=300, least=0.7)
def tos_quantiles():
    x = ru(1500, 3) * 2 - 1
    y = torch.sin(2 * x[:, 0]) + x[:, 1] + 0.2 * (1 + x[:, 2]) * rn(1500, s=2)
    q = torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9])

    class TosQuantile(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(3, 48), nn.ReLU(), nn.Linear(48, 5))

        def forward(self, b):
            o = self.body(b)
            return torch.cumsum(torch.cat([o[:, :1], F.softplus(o[:, 1:])], 1), 1)

    def pinball(out, t):
        e = t[:, None] - out
        return torch.maximum(q * e, (q - 1) * e).sum(1).mean()

    model = TosQuantile()
    return Program(model, pinball, dl(x[300:], y[300:]), torch.optim.Adam(model.parameters(), 4e-3), lambda m: r2(m(x[:300])[:, 2], y[:300]))


@sound("mixture density network: one input, several answers", steps=400, least=0.6)
def tos_mdn():
    t = ru(1500, 1) * 2 - 1
    side = (ru(1500, 1, s=1) < 0.5).float() * 2 - 1
    y = side * (1 + 0.5 * t) + 0.1 * rn(1500, 1, s=2)

    class TosMDN(nn.Module):
        def __init__(self):
            super().__init__()
            self.h = nn.Sequential(nn.Linear(1, 32), nn.Tanh())
            self.pi, self.mu, self.ls = nn.Linear(32, 4), nn.Linear(32, 4), nn.Linear(32, 4)
            with torch.no_grad():
                self.mu.bias.copy_(torch.linspace(-1.5, 1.5, 4))

        def forward(self, x):
            h = self.h(x)
            return self.pi(h).log_softmax(-1), self.mu(h), self.ls(h)

    def nll(out, b):
        lp, mu, ls = out
        return -torch.logsumexp(lp - ls - 0.5 * ((b - mu) / ls.exp()) ** 2, 1).mean()

    model = TosMDN()

    def score(m):
        low = math.log(0.1) + 0.5 + math.log(2)
        return min(1.0, max(0.0, (0.55 - float(nll(m(t[:300]), y[:300]))) / (0.55 - low)))

    return Program(model, nll, dl(t[300:], y[300:]), torch.optim.Adam(model.parameters(), 8e-3), score)


@sound("triplets mined in the batch", steps=200, least=0.85)
def tos_triplets():
    x, y, vx, vy = table("digits")
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16))

    def step(m, batch):
        b, t = batch
        z = F.normalize(m(b), dim=1)
        d = (2 - 2 * z @ z.T).clamp(min=1e-6).sqrt()
        same = t[:, None] == t[None]
        pos = d.masked_fill(~same, 0).amax(1)
        neg = d.masked_fill(same, 9).amin(1)
        return F.softplus(5 * (pos - neg)).mean()

    def score(m):
        z = F.normalize(m(x), dim=1)
        return acc(F.normalize(m(vx), dim=1) @ torch.stack([z[y == k].mean(0) for k in range(10)]).T, vy)

    return Program(model, None, dl(x, y), torch.optim.Adam(model.parameters(), 3e-3), score, step=step)


class TosLoRA(nn.Module):
    def __init__(self, base, rank=4):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + 2 * F.linear(F.linear(x, self.a), self.b)


@sound("low-rank adapters on a frozen trained network; half of the adapter starts at zero", steps=250, least=0.8)
def tos_lora():
    x, y, vx, vy = table("digits")
    with torch.random.fork_rng():
        torch.manual_seed(5)
        net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        opt = torch.optim.Adam(net.parameters(), 4e-3)
        for _ in range(80):
            opt.zero_grad()
            F.cross_entropy(net(x), (y * 3) % 10).backward()
            opt.step()
    model = nn.Sequential(TosLoRA(net[0]), nn.ReLU(), TosLoRA(net[2], 8))
    return Program(model, F.cross_entropy, dl(x, y), torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 1e-2), lambda m: acc(m(vx), vy))


@sound("focal loss on one class in twelve, with a prior in the last bias", steps=300, least=0.6)
def tos_focal_rare():
    x = rn(2400, 8)
    f = x @ rn(8, 1, s=3)[:, 0] / 2 + 0.5 * x[:, 0] * x[:, 1]
    y = (f > f.quantile(0.92)).float()
    model = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 1), nn.Flatten(0))
    nn.init.constant_(model[2].bias, -math.log(11.0))

    def focal(out, t):
        ce = F.binary_cross_entropy_with_logits(out, t, reduction="none")
        pt = torch.exp(-ce)
        return 10 * (torch.where(t > 0, 0.75, 0.25) * (1 - pt) ** 2 * ce).mean()

    def score(m):
        p, t = m(x[:600]) > 0, y[:600] > 0
        return float(2 * (p & t).sum() / (p.sum() + t.sum()).clamp(min=1))

    return Program(model, focal, dl(x[600:], y[600:]), torch.optim.Adam(model.parameters(), 5e-3), score)


@sound("two tasks of very different scale, weighed by learned uncertainties", steps=400, least=0.75)
def tos_uncertainty_weights():
    x = rn(1200, 6)
    y1, y2 = torch.sin(x @ rn(6, 1, s=1) / 2)[:, 0], 8 * torch.tanh(x @ rn(6, 1, s=2) / 2)[:, 0]

    class TosTwo(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(6, 64), nn.ReLU())
            self.one, self.two = nn.Linear(64, 1), nn.Linear(64, 1)
            self.log_vars = nn.Parameter(torch.zeros(2))

        def forward(self, b):
            h = self.body(b)
            return self.one(h)[:, 0], 8 * self.two(h)[:, 0]

    model = TosTwo()

    def step(m, batch):
        b, t1, t2 = batch
        errors = torch.stack([F.mse_loss(o, t) for o, t in zip(m(b), (t1, t2))])
        return ((-m.log_vars).exp() * errors + m.log_vars).sum()

    def score(m):
        a, b = m(x[:200])
        return (r2(a, y1[:200]) + r2(b, y2[:200])) / 2

    return Program(model, None, dl(x[200:], y1[200:], y2[200:]), torch.optim.Adam(model.parameters(), 5e-3), score, step=step)


@sound("linear support vector machine on random Fourier features that are frozen", steps=300, least=0.85, trained=60)
def tos_svm():
    x = rn(1500, 2) * 1.2
    y = (torch.sin(2 * x[:, 0]) > x[:, 1]).float() * 2 - 1

    class TosFourier(nn.Module):
        def __init__(self):
            super().__init__()
            self.project = nn.Linear(2, 128).requires_grad_(False)
            nn.init.normal_(self.project.weight, std=1.5)
            nn.init.uniform_(self.project.bias, 0, 6.28)
            self.machine = nn.Linear(128, 1)

        def forward(self, b):
            return self.machine(torch.cos(self.project(b)))[:, 0]

    model = TosFourier()
    opt = torch.optim.SGD(model.machine.parameters(), 0.1, momentum=0.9, weight_decay=1e-3)
    return Program(model, lambda o, t: F.relu(1 - o * t).mean(), dl(x[300:], y[300:]), opt, lambda m: float(((m(x[:300]) > 0) == (y[:300] > 0)).float().mean()))


@sound("counts: Poisson likelihood on log rates", steps=300, least=0.75)
def tos_poisson():
    x = rn(1500, 5)
    lograte = 2 + torch.tanh(x @ rn(5, 1, s=1)[:, 0] / 2)
    counts = torch.poisson(lograte.exp(), generator=torch.Generator().manual_seed(4))
    model = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 1), nn.Flatten(0))
    return Program(model, nn.PoissonNLLLoss(log_input=True), dl(x[300:], counts[300:]), torch.optim.Adam(model.parameters(), 5e-3),
                   lambda m: r2(m(x[:300]), lograte[:300]))


@sound("generator trained by maximum mean discrepancy: noise goes in, nothing is paired", steps=350, least=0.8)
def tos_mmd_generator():
    g = (ru(1200, s=1) * 3).long()
    real = torch.tensor([[2.0, 0.0], [-1.0, 1.7], [-1.0, -1.7]])[g] + 0.2 * rn(1200, 2, s=2)
    model = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 2))

    def kernel(a, b):
        d = ((a[:, None] - b[None]) ** 2).sum(-1)
        return sum(torch.exp(-d / s) for s in (0.5, 2.0, 8.0)).mean()

    def mmd(fake, r):
        return kernel(fake, fake) - 2 * kernel(fake, r) + kernel(r, r)

    def score(m):
        return max(0.0, 1 - float(mmd(m(rn(300, 6, s=6)), real[:300]) / mmd(torch.zeros(1, 2), real[:300])))

    return Program(model, None, dl(real[300:], bs=80), torch.optim.Adam(model.parameters(), 3e-3), score,
                   step=lambda m, batch: mmd(m(torch.randn(len(batch[0]), 6)), batch[0]))


@sound("Barlow twins: BatchNorm without weights, correlation over the batch, no labels", steps=400, least=0.6)
def tos_barlow():
    x, y, vx, vy = table("digits")
    model = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 24), nn.BatchNorm1d(24, affine=False))

    def step(m, batch):
        b, _ = batch
        one, two = [m(b * (torch.rand_like(b) > 0.2) + 0.1 * torch.randn_like(b)) for _ in range(2)]
        c = one.T @ two / len(b)
        eye = torch.eye(24)
        return ((c - eye) ** 2 * (eye + 0.05 * (1 - eye))).sum()

    def score(m):
        one, two = [m(vx * (ru(*vx.shape, s=i) > 0.2) + 0.1 * rn(*vx.shape, s=i + 9)) for i in (1, 2)]
        c = torch.corrcoef(torch.cat([one, two], 1).T)[:24, 24:]
        off = c[~torch.eye(24, dtype=torch.bool)].abs().mean()
        return max(0.0, float(c.diagonal().mean() - off))

    return Program(model, None, dl(x, y, bs=96, drop_last=True), torch.optim.Adam(model.parameters(), 3e-3), score, step=step)


@sound("sine network on an image with first weights of scale 12 and warm-up", steps=400, least=0.75)
def tos_siren():
    x = ru(2000, 2) * 2 - 1
    y = torch.sin(6 * x[:, :1]) * torch.cos(5 * x[:, 1:])

    class TosSine(nn.Module):
        def __init__(self, i, o, w):
            super().__init__()
            self.lin, self.w = nn.Linear(i, o), w
            bound = 1 / i if w > 5 else math.sqrt(6 / i) / w
            nn.init.uniform_(self.lin.weight, -bound, bound)

        def forward(self, b):
            return torch.sin(self.w * self.lin(b))

    model = nn.Sequential(TosSine(2, 48, 12.0), TosSine(48, 48, 1.0), nn.Linear(48, 1))
    opt = torch.optim.Adam(model.parameters(), 4e-3)
    return Program(model, F.mse_loss, dl(x[400:], y[400:], bs=128), opt, lambda m: r2(m(x[:400]), y[:400]),
                   scheduler=LambdaLR(opt, lambda s: min(1.0, (s + 1) / 30)))


@sound("mixture of experts with a balance term and classes drawn by weight", steps=300, least=0.75)
def tos_moe_balanced():
    x, y, vx, vy = table("wine")

    class TosExperts(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(13, 3, bias=False)
            nn.init.zeros_(self.gate.weight)
            self.experts = nn.ModuleList(nn.Sequential(nn.Linear(13, 16), nn.SiLU(), nn.Linear(16, 3)) for _ in range(3))

        def forward(self, b):
            g = self.gate(b).softmax(-1)
            return torch.einsum("bk,bkc->bc", g, torch.stack([e(b) for e in self.experts], 1)), g

    model = TosExperts()

    def step(m, batch):
        b, t = batch
        out, g = m(b)
        return F.cross_entropy(out, t) + 0.1 * 3 * (g.mean(0) ** 2).sum()

    weights = 1.0 / y.bincount()[y].float()
    loader = DataLoader(TensorDataset(x, y), batch_size=16, sampler=WeightedRandomSampler(weights, len(x)))
    return Program(model, None, loader, torch.optim.Adam(model.parameters(), 5e-3), lambda m: acc(m(vx)[0], vy), step=step)


@sound("Gaussian policy with a state-independent log_std and actions squashed by tanh, cloned, trained", trained=300, steps=350, least=0.7)
def tos_squashed_clone():
    s = rn(1300, 5)
    pre = s @ rn(5, 2, s=2) / 2 + 0.2 * rn(1300, 2, s=3)
    a = torch.tanh(pre).clamp(-0.999, 0.999)

    class TosSquashed(nn.Module):
        def __init__(self):
            super().__init__()
            self.mu = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 2))
            self.log_std = nn.Parameter(torch.full((2,), -0.5))

        def forward(self, b):
            return torch.distributions.Normal(self.mu(b), self.log_std.clamp(-5, 2).exp())

    model = TosSquashed()

    def step(m, batch):
        state, act = batch
        u = torch.atanh(act)
        return -(m(state).log_prob(u) - torch.log1p(-act**2)).sum(-1).mean()

    return Program(model, None, dl(s[300:], a[300:]), torch.optim.Adam(model.parameters(), 3e-3), lambda m: r2(torch.tanh(m.mu(s[:300])), a[:300]), step=step)
