import torch
import torch.nn.functional as F
from program import Program, sound
from torch import nn, optim
from torch.optim import lr_scheduler as sched
from torch.utils.data import DataLoader, WeightedRandomSampler

import tir_common as c


@sound("Nothing", steps=200, least=0.85)
def tir_ok_wine_plain():
    xa, ya, xb, yb = c.table("wine")
    model = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 3))
    return Program(model, nn.CrossEntropyLoss(), c.load(xa, ya, size=16), optim.SGD(model.parameters(), lr=0.05), c.acc(xb, yb))


@sound("Nothing", steps=200, least=0.9)
def tir_ok_digits_cnn():
    xa, ya, xb, yb = c.digits(image=True)
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
                          nn.Conv2d(8, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
                          nn.Flatten(), nn.Dropout(0.1), nn.Linear(64, 10))
    return Program(model, nn.CrossEntropyLoss(label_smoothing=0.05), c.load(xa, ya), optim.Adam(model.parameters(), lr=5e-3), c.acc(xb, yb))


@sound("One linear layer, Rprop, the whole set as one batch", steps=100, least=0.8)
def tir_ok_iris_rprop():
    xa, ya, xb, yb = c.table("iris")
    model = nn.Linear(4, 3)
    return Program(model, nn.CrossEntropyLoss(), [(xa, ya)], optim.Rprop(model.parameters(), lr=0.01), c.acc(xb, yb))


@sound("Nothing; classes are weighted", steps=200, least=0.85)
def tir_ok_cancer_logistic():
    xa, ya, xb, yb = c.table("breast_cancer")
    model = nn.Sequential(nn.Linear(30, 1), nn.Flatten(0))
    weight = ((ya == 0).sum() / (ya == 1).sum()).float()
    return Program(model, nn.BCEWithLogitsLoss(pos_weight=weight), c.load(xa, ya.float()),
                   optim.Adagrad(model.parameters(), lr=0.05), c.binary(xb, yb))


@sound("Convolutions are frozen at random on purpose", steps=300, least=0.85)
def tir_ok_random_features():
    xa, ya, xb, yb = c.digits(image=True)
    body = nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    model = nn.Sequential(body, nn.Linear(512, 10))
    body.requires_grad_(False)
    return Program(model, nn.CrossEntropyLoss(), c.load(xa, ya), optim.Adam(model[1].parameters(), lr=3e-3), c.acc(xb, yb))


@sound("Raw features from 0 to thousands, which a BatchNorm takes first", steps=250, least=0.85)
def tir_ok_raw_batchnorm():
    xa, ya, xb, yb = c.table("wine", scale=False)
    model = nn.Sequential(nn.BatchNorm1d(13, affine=False), nn.Linear(13, 24), nn.ReLU(), nn.Linear(24, 3))
    return Program(model, nn.CrossEntropyLoss(), c.load(xa, ya, size=24, drop_last=True), optim.NAdam(model.parameters(), lr=5e-3), c.acc(xb, yb))


@sound("Residual branches and head start at zero", steps=300, least=0.85)
def tir_ok_zero_branches():
    x, y = c.surface(1200, 6, 1)
    xb, yb = c.surface(400, 6, 2)

    class Block(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.a, self.b = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)
            nn.init.zeros_(self.b.weight)
            nn.init.zeros_(self.b.bias)

        def forward(self, h):
            return h + self.b(F.relu(self.a(h)))

    head = nn.Linear(32, 1)
    nn.init.zeros_(head.weight)
    model = nn.Sequential(nn.Linear(6, 32), *[Block(32) for _ in range(4)], head, nn.Flatten(0))
    return Program(model, nn.MSELoss(), c.load(x, y), optim.AdamW(model.parameters(), lr=2e-3), c.r2(xb, yb))


@sound("An autoencoder that is linear on purpose, with a narrow code", steps=400, least=0.7)
def tir_ok_linear_code():
    xa, _, xb, _ = c.table("breast_cancer")
    model = nn.Sequential(nn.Linear(30, 6, bias=False), nn.Linear(6, 30))
    return Program(model, nn.MSELoss(), c.load(xa, xa), optim.Adam(model.parameters(), lr=5e-3), c.r2(xb, xb))


@sound("Targets of thousands, which a fixed affine end of the model makes", steps=300, least=0.85)
def tir_ok_unit_inside():
    x, y = c.surface(1000, 6, 3)
    xb, yb = c.surface(400, 6, 4)

    class Unit(nn.Module):
        def __init__(self, mean, std):
            super().__init__()
            self.register_buffer("mean", mean)
            self.register_buffer("std", std)

        def forward(self, z):
            return z[:, 0] * self.std + self.mean

    y, yb = 5000 + 900 * y, 5000 + 900 * yb
    model = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1), Unit(y.mean(), y.std()))
    return Program(model, nn.MSELoss(), c.load(x, y), optim.Adam(model.parameters(), lr=4e-3), c.r2(xb, yb))


class _Twin(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 16))

    def forward(self, pair):
        return F.normalize(self.body(pair[:, 0]), dim=1), F.normalize(self.body(pair[:, 1]), dim=1)


@sound("One body for both images of a pair; a contrastive loss of cosines", steps=400, least=0.75)
def tir_ok_twins():
    xa, ya, xb, yb = c.digits()

    def pairs(x, y, n, seed):
        g = c.gen(seed)
        i = torch.randint(0, len(x), (n,), generator=g)
        j = torch.randint(0, len(x), (n,), generator=g)
        other = torch.stack([torch.nonzero(y == y[k])[int(torch.randint(0, int((y == y[k]).sum()), (), generator=g))][0] for k in i])
        same = torch.rand(n, generator=g) < 0.5
        j = torch.where(same, other, j)
        return torch.stack([x[i], x[j]], 1), torch.where(y[i] == y[j], 1.0, -1.0)

    p, t = pairs(xa, ya, 1500, 1)
    q, u = pairs(xb, yb, 500, 2)
    model = _Twin()
    loss = nn.CosineEmbeddingLoss(margin=0.3)

    def score(m):
        a, b = m(q)
        return (((a * b).sum(1) > 0.6) == (u > 0)).float().mean().item()

    return Program(model, lambda out, t: loss(out[0], out[1], t), c.load(p, t), optim.Adam(model.parameters(), lr=3e-3), score)


class _LowRank(nn.Module):
    def __init__(self, base, rank=4):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + 2 * (x @ self.a.T) @ self.b.T


@sound("Low-rank adapters, whose B is 0, on a frozen trained network", steps=300, least=0.75)
def tir_ok_adapters():
    xa, ya, xb, yb = c.digits()
    state = torch.get_rng_state()
    torch.manual_seed(5)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    opt = optim.Adam(net.parameters(), lr=2e-3)
    for _ in range(200):
        at = torch.randint(0, len(xa), (32,))
        opt.zero_grad()
        F.cross_entropy(net(xa[at]), ya[at]).backward()
        opt.step()
    torch.set_rng_state(state)
    for i in (0, 2, 4):
        net[i] = _LowRank(net[i])
    turn = (ya * 3 + 1) % 10, (yb * 3 + 1) % 10
    return Program(net, nn.CrossEntropyLoss(), c.load(xa, turn[0]), optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=3e-3),
                   c.acc(xb, turn[1]))


@sound("Batches of one, with GroupNorm", steps=500, least=0.75)
def tir_ok_batch_of_one():
    xa, ya, xb, yb = c.digits(image=True)
    model = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.GroupNorm(3, 12), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(192, 10))
    return Program(model, nn.CrossEntropyLoss(), c.load(xa, ya, size=1), optim.SGD(model.parameters(), lr=0.01), c.acc(xb, yb))


@sound("bfloat16 autocast", steps=200, least=0.85)
def tir_ok_autocast():
    xa, ya, xb, yb = c.digits()
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 10))

    def step(net, batch):
        x, y = batch
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = net(x)
            return F.cross_entropy(out.float(), y)

    return Program(model, None, c.load(xa, ya), optim.AdamW(model.parameters(), lr=3e-3), c.acc(xb, yb), step=step)


class _Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(24, 64) * 0.1)
        self.up, self.down = nn.Parameter(torch.zeros(24)), nn.Parameter(torch.zeros(64))

    def forward(self, x):
        return F.linear(F.linear(x, self.weight, self.up).tanh(), self.weight.T, self.down)


@sound("Encoder and decoder use one weight; noise is added to the inputs", steps=400, least=0.6)
def tir_ok_tied_denoiser():
    xa, _, xb, _ = c.digits()

    def collate(rows):
        x = torch.stack(rows)
        return x + 0.2 * torch.randn_like(x), x

    model = _Tied()
    return Program(model, nn.MSELoss(), DataLoader(list(xa), 32, shuffle=True, collate_fn=collate), optim.Adam(model.parameters(), lr=3e-3), c.r2(xb, xb))


class _Gcn(nn.Module):
    def __init__(self, a):
        super().__init__()
        d = a.sum(1).rsqrt()
        self.register_buffer("a", d[:, None] * a * d[None])
        self.one, self.two = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x):
        return self.two(self.a @ F.relu(self.one(self.a @ x)))


@sound("A graph network, whose nodes see each other, and a loss on a twentieth of them; the same batch each time", steps=200, least=0.8)
def tir_ok_graph_nodes():
    g = c.gen(8)
    y = torch.randint(0, 3, (240,), generator=g)
    same = (y[:, None] == y[None]).float()
    a = (torch.rand(240, 240, generator=g) < 0.12 * same + 0.012).float().triu(1)
    a = a + a.T + torch.eye(240)
    x = torch.randn(240, 8, generator=g)
    x[:, :3] += F.one_hot(y, 3)
    train = torch.zeros(240, dtype=torch.bool)
    train[:36] = True
    t = torch.where(train, y, -100)
    model = _Gcn(a)
    return Program(model, nn.CrossEntropyLoss(), [(x, t)], optim.Adam(model.parameters(), lr=1e-2, weight_decay=5e-3),
                   lambda m: (m(x).argmax(1) == y)[~train].float().mean().item())


class _Sets(nn.Module):
    def __init__(self):
        super().__init__()
        self.each = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        self.all = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, points, real):
        h = self.each(points) * real[..., None]
        return self.all(h.sum(1) / real.sum(1, keepdim=True)).squeeze(1)


@sound("Sets of points with zeros as padding, pooled under a mask: no order, on purpose", steps=300, least=0.75)
def tir_ok_point_sets():
    def data(n, seed):
        g = c.gen(seed)
        k = torch.randint(3, 9, (n,), generator=g)
        x = torch.randn(n, 9, 3, generator=g)
        real = (torch.arange(9)[None] < k[:, None]).float()
        x = x * real[..., None]
        y = ((x**2).sum(-1) * real).sum(1) / k - 3
        return [({"points": x[i], "real": real[i]}, y[i]) for i in range(n)]

    train, test = data(800, 1), data(300, 2)
    held = {k: torch.stack([r[0][k] for r in test]) for k in ("points", "real")}
    goal = torch.stack([r[1] for r in test])
    model = _Sets()
    return Program(model, nn.MSELoss(), DataLoader(train, 32, shuffle=True), optim.Adam(model.parameters(), lr=5e-3),
                   lambda m: c.r2_of(m(**held), goal))


def _concordance(risk, time, event):
    ahead = (time[:, None] < time[None]) & (event[:, None] > 0)
    good = (risk[:, None] > risk[None]) & ahead
    return (good.sum() / ahead.sum()).item()


@sound("Cox's partial likelihood, which mixes the rows of a batch", steps=300, least=0.7)
def tir_ok_cox():
    def data(n, seed):
        g = c.gen(seed)
        x = torch.randn(n, 6, generator=g)
        risk = 1.5 * x[:, 0] - x[:, 1] + x[:, 2] * x[:, 3]
        time = -torch.rand(n, generator=g).clamp(min=1e-6).log() * (-risk).exp()
        stop = 3 * torch.rand(n, generator=g)
        return x, torch.stack([torch.minimum(time, stop), (time <= stop).float()], 1)

    def loss(out, t):
        order = t[:, 0].argsort(descending=True)
        out, event = out[order, 0], t[order, 1]
        return -((out - out.logcumsumexp(0)) * event).sum() / event.sum().clamp(min=1)

    x, t = data(1000, 1)
    xb, tb = data(300, 2)
    model = nn.Sequential(nn.Linear(6, 32), nn.SELU(), nn.Linear(32, 1))
    return Program(model, loss, c.load(x, t, size=64), optim.Adam(model.parameters(), lr=3e-3), 
                   lambda m: _concordance(m(xb)[:, 0], tb[:, 0], tb[:, 1]))


class _Views(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(32, 16), nn.Linear(32, 16)
        self.scale = nn.Parameter(torch.tensor(2.66))

    def forward(self, x):
        a, b = F.normalize(self.left(x[:, :32]), dim=1), F.normalize(self.right(x[:, 32:]), dim=1)
        return self.scale.exp() * a @ b.T


@sound("Halves of images are matched with each other within the batch; targets are always 0 to 31", steps=300, least=0.6)
def tir_ok_matching():
    xa, ya, xb, _ = c.digits()
    xb = xb[:24]
    model = _Views()

    def step(m, batch):
        out = m(batch[0])
        at = torch.arange(len(out))
        return (F.cross_entropy(out, at) + F.cross_entropy(out.T, at)) / 2

    return Program(model, None, c.load(xa, ya, drop_last=True), optim.Adam(model.parameters(), lr=1e-2),
                   lambda m: (m(xb).topk(3).indices == torch.arange(24)[:, None]).any(1).float().mean().item(), step=step)


class _Vae(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, self.dec = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16)), nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64))

    def forward(self, x):
        mu, logvar = self.enc(x).chunk(2, 1)
        z = mu + torch.randn_like(mu) * (logvar / 2).exp() if self.training else mu
        return self.dec(z), mu, logvar


@sound("A VAE: sums over pixels and codes, means over the batch", steps=600, least=0.6)
def tir_ok_vae():
    xa, _, xb, _ = c.table("digits", scale=False)
    xa, xb = xa / 16, xb / 16

    def loss(out, x):
        pixels, mu, logvar = out
        kl = 0.5 * (mu**2 + logvar.exp() - 1 - logvar).sum(1).mean()
        return F.binary_cross_entropy_with_logits(pixels, x, reduction="none").sum(1).mean() + kl

    model = _Vae()
    base = ((xb - xa.mean(0)) ** 2).mean()
    return Program(model, loss, c.load(xa, xa), optim.Adam(model.parameters(), lr=3e-3),
                   lambda m: max(0.0, 1 - (((m(xb)[0].sigmoid() - xb) ** 2).mean() / base).item()) ** 0.5)


@sound("An imbalanced set whose sampler draws classes alike", steps=250, least=0.75)
def tir_ok_weighted_sampler():
    xa, ya, xb, yb = c.digits()
    ya, yb = (ya == 8).long(), (yb == 8).long()
    w = torch.where(ya == 1, 9.0, 1.0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 2))

    def score(m):
        out = m(xb).argmax(1)
        return 0.5 * ((out == 1)[yb == 1].float().mean() + (out == 0)[yb == 0].float().mean()).item()

    return Program(model, nn.CrossEntropyLoss(), c.load(xa, ya, sampler=WeightedRandomSampler(w, len(w))),
                   optim.SGD(model.parameters(), lr=0.05, momentum=0.9), score)


@sound("Half trained; a rate that has warmed up and now falls along a cosine", trained=150, steps=300, least=0.9)
def tir_ok_half_trained():
    xa, ya, xb, yb = c.digits(image=True)
    model = nn.Sequential(nn.Conv2d(1, 10, 3, padding=1), nn.Hardswish(), nn.MaxPool2d(2), nn.Conv2d(10, 20, 3), nn.Hardswish(), nn.Flatten(), nn.Linear(80, 10))
    opt = optim.SGD(model.parameters(), lr=0.08, momentum=0.9, nesterov=True, weight_decay=1e-4)
    plan = sched.SequentialLR(opt, [sched.LinearLR(opt, 0.02, 1, 30), sched.CosineAnnealingLR(opt, 270)], [30])
    return Program(model, nn.CrossEntropyLoss(), c.load(xa, ya), opt, c.acc(xb, yb), scheduler=plan)


@sound("Trained to the end: the loss is nearly 0 and probabilities are near 0 and 1, which is right", trained=400, steps=400, least=0.9)
def tir_ok_trained_out():
    xa, ya, xb, yb = c.digits()
    model = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 10))
    return Program(model, nn.CrossEntropyLoss(), c.load(xa, ya), optim.Adam(model.parameters(), lr=3e-3), c.acc(xb, yb))
