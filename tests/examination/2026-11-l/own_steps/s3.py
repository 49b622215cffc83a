import torch
import torch.nn.functional as F
from torch import nn
from program import Program, sound
from kit import G, acc, groups, loader, manifold, mlp, r2, smooth


class Weighted(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = mlp(8, 64, 64)
        self.out = nn.Linear(64, 3)
        self.log_var = nn.Parameter(torch.zeros(3))

    def forward(self, x):
        return self.out(F.relu(self.body(x)))


@sound("Losses weighted by learned variances; the sum becomes negative", steps=400, least=0.8)
def learned_variances():
    x, y = smooth(1024, 1, out=3)
    tx, ty = smooth(400, 2, out=3)

    def step(m, b):
        e = ((m(b[0]) - b[1]) ** 2).mean(0)
        return (e * torch.exp(-m.log_var) + m.log_var).sum()

    m = Weighted()
    o = torch.optim.Adam([{"params": [*m.body.parameters(), *m.out.parameters()]}, {"params": [m.log_var], "lr": 1e-2}], lr=3e-3)
    return Program(m, None, loader(x, y), o, lambda m: r2(m(tx), ty), step=step)


class GCN(nn.Module):
    def __init__(self, adj):
        super().__init__()
        self.register_buffer("adj", adj)
        self.a, self.b = nn.Linear(10, 32), nn.Linear(32, 4)

    def forward(self, x):
        return self.b(self.adj @ F.relu(self.a(self.adj @ x)))


@sound("A graph in one batch: outputs of a node depend on other nodes, and only some are labelled", steps=150, least=0.7)
def graph():
    g = G(1)
    y = torch.randint(0, 4, (200,), generator=g)
    x = torch.randn(4, 10, generator=G(2))[y] + 1.2 * torch.randn(200, 10, generator=g)
    p = torch.where(y[:, None] == y[None], 0.12, 0.01)
    a = (torch.rand(200, 200, generator=g) < p).float()
    a = ((a + a.T) > 0).float() + torch.eye(200)
    d = a.sum(1).rsqrt()
    train = torch.arange(200) < 80
    m = GCN(d[:, None] * a * d)
    return Program(m, None, [(x, y)], torch.optim.Adam(m.parameters(), 1e-2, weight_decay=5e-4), lambda m: acc(m(x)[~train], y[~train]), step=lambda m, b: F.cross_entropy(m(b[0])[train], b[1][train]))


@sound("A classifier, half trained", trained=150, steps=300, least=0.8)
def plain_classifier():
    x, y = groups(1024, 1)
    tx, ty = groups(400, 2)
    m = nn.Sequential(nn.Linear(10, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 5))
    return Program(m, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(m.parameters(), 2e-3), lambda m: acc(m(tx), ty))


@sound("A regression", steps=300, least=0.8)
def plain_regression():
    x, y = smooth(1024, 1)
    tx, ty = smooth(400, 2)
    m = mlp(8, 64, 64, 1)
    return Program(m, nn.MSELoss(), loader(x, y), torch.optim.Adam(m.parameters(), 3e-3), lambda m: r2(m(tx), ty))


@sound("SGD with momentum and a cosine schedule, examined near its end", trained=250, steps=300, least=0.8)
def plain_cosine():
    x, y = groups(1024, 1)
    tx, ty = groups(400, 2)
    m = mlp(10, 64, 64, 5)
    o = torch.optim.SGD(m.parameters(), 0.05, momentum=0.9, nesterov=True, weight_decay=1e-4)
    return Program(m, F.cross_entropy, loader(x, y), o, lambda m: acc(m(tx), ty), scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(o, 300))


@sound("An autoencoder in two sequential parts", steps=400, least=0.8)
def plain_autoencoder():
    x, t = manifold(1024, 1), manifold(300, 2)
    m = nn.Sequential(mlp(16, 64, 6), mlp(6, 64, 16))
    return Program(m, nn.MSELoss(), loader(x, x, bs=64), torch.optim.Adam(m.parameters(), 2e-3), lambda m: r2(m(t), t))


@sound("Residual blocks with LayerNorm, AdamW", trained=100, steps=250, least=0.8)
def plain_residual():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.f = nn.Sequential(nn.LayerNorm(48), nn.Linear(48, 96), nn.GELU(), nn.Linear(96, 48))

        def forward(self, x):
            return x + self.f(x)

    x, y = smooth(1024, 1)
    tx, ty = smooth(400, 2)
    m = nn.Sequential(nn.Linear(8, 48), Block(), Block(), nn.LayerNorm(48), nn.Linear(48, 1))
    return Program(m, F.mse_loss, loader(x, y), torch.optim.AdamW(m.parameters(), 2e-3, weight_decay=0.05), lambda m: r2(m(tx), ty))


@sound("Binary targets, one logit", steps=300, least=0.8)
def plain_binary():
    x, y = groups(1024, 1, k=2)
    tx, ty = groups(400, 2, k=2)
    m = mlp(10, 48, 48, 1)
    return Program(m, nn.BCEWithLogitsLoss(), loader(x, y.float()[:, None]), torch.optim.Adam(m.parameters(), 3e-3), lambda m: ((m(tx)[:, 0] > 0).long() == ty).float().mean().item())


@sound("Gradients clipped by hooks on the parameters", steps=300, least=0.8)
def hooks_that_clip():
    x, y = smooth(1024, 1)
    tx, ty = smooth(400, 2)
    m = mlp(8, 64, 64, 1)
    for p in m.parameters():
        p.register_hook(lambda g: g * (1.0 / (g.norm() + 1e-6)).clamp(max=1.0))
    return Program(m, F.mse_loss, loader(x, y), torch.optim.Adam(m.parameters(), 3e-3), lambda m: r2(m(tx), ty))


@sound("Triplets: the loss reaches 0 on most of them", trained=100, steps=300, least=0.7)
def triplets():
    x, y = groups(1024, 1)
    tx, ty = groups(400, 2)

    def step(m, b):
        z = F.normalize(m(b[0]), dim=1)
        d = torch.cdist(z, z)
        same = b[1][:, None] == b[1][None]
        pos = d.masked_fill(~same, 0).max(1).values
        neg = d.masked_fill(same, 9).min(1).values
        return F.relu(pos - neg + 0.3).mean()

    def score(m):
        z, w = F.normalize(m(tx), dim=1), F.normalize(m(x), dim=1)
        c = torch.stack([w[y == k].mean(0) for k in range(5)])
        return acc(-torch.cdist(z, c), ty)

    m = mlp(10, 64, 8)
    return Program(m, None, loader(x, y), torch.optim.Adam(m.parameters(), 2e-3), score, step=step)
