"""Sound set-ups that look like mistakes."""
import math

import torch
import torch.nn.functional as F
from program import Program, sound
from torch import nn
from yts_data import Stream, above_chance, loader, mlp, r2, surface


class Curiosity(nn.Module):
    def __init__(self):
        super().__init__()
        self.fixed = mlp(6, 32, 8, act=nn.Tanh)
        self.fixed.requires_grad_(False)
        self.predictor = mlp(6, 64, 64, 8, act=nn.SiLU)

    def forward(self, s):
        return self.predictor(s), self.fixed(s).detach()


@sound("Half of the network is random, frozen and without gradients: it is what the other half has to predict.",
       steps=400, least=0.8)
def yts_curiosity():
    test = torch.randn(600, 6)
    model = Curiosity()

    def step(m, s):
        guess, fixed = m(s)
        return (guess - fixed).pow(2).sum(1).mean()

    return Program(model, None, Stream(lambda: torch.randn(64, 6)),
                   torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 2e-3), lambda m: r2(*m(test)),
                   step=step)


class Gated(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        self.alpha = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return x + self.alpha * self.inner(x)


@sound("Residual branches that are switched off by gates of zero, and a head of zeros, so that most gradients are 0 at "
       "the first step.", steps=500, least=0.7)
def yts_zero_gates():
    x, xt = torch.randn(4000, 8), torch.randn(600, 8)
    model = nn.Sequential(nn.Linear(8, 48), *[Gated(48) for _ in range(5)], nn.Linear(48, 1), nn.Flatten(0))
    nn.init.zeros_(model[-2].weight)
    nn.init.zeros_(model[-2].bias)
    return Program(model, nn.MSELoss(), loader(x, surface(x)), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: r2(m(xt), surface(xt)))


@sound("A loss that is summed over the batch, at a rate that is small to match.", steps=500, least=0.7)
def yts_sum_and_small_rate():
    x, xt = torch.randn(5000, 9), torch.randn(600, 9)
    model = mlp(9, 64, 64, 1, act=nn.Tanh)
    return Program(model, lambda o, y: ((o[:, 0] - y) ** 2).sum(), loader(x, surface(x), size=128),
                   torch.optim.SGD(model.parameters(), lr=0.05 / 128, momentum=0.9),
                   lambda m: r2(m(xt)[:, 0], surface(xt)))


@sound("One row in sixty is positive, with a weight of 15 in the loss; most batches of 64 hold one or none.",
       steps=500, least=0.75)
def yts_rare_fraud():
    def rows(n):
        x = torch.randn(n, 8)
        y = surface(x) > 2.25
        return x, y.float()

    (x, y), (xt, yt) = rows(6000), rows(4000)
    model = mlp(8, 48, 48, 1)
    weight = torch.tensor([15.0])

    def auc(m):
        s = m(xt).squeeze(1)
        return 2 * float((s[yt == 1][:, None] > s[yt == 0]).float().mean()) - 1

    return Program(model, lambda o, t: F.binary_cross_entropy_with_logits(o[:, 0], t, pos_weight=weight), loader(x, y),
                   torch.optim.Adam(model.parameters(), 2e-3), auc)


@sound("Two hundred indicator columns, of which nearly all are 0 in each row and some in every batch.", steps=600,
       least=0.7)
def yts_indicators():
    effect = torch.randn(10, 20)

    def rows(n):
        c = torch.randint(0, 20, (n, 10))
        c = torch.minimum(c, torch.randint(0, 20, (n, 10)))
        x = F.one_hot(c, 20).flatten(1).float()
        z = effect[torch.arange(10), c]
        return x, z.sum(1) / 3 + 0.3 * z[:, 0] * z[:, 1]

    (x, y), (xt, yt) = rows(6000), rows(800)
    model = nn.Sequential(nn.Linear(200, 64), nn.ReLU(), nn.Linear(64, 1), nn.Flatten(0))
    return Program(model, nn.L1Loss(), loader(x, y), torch.optim.Adam(model.parameters(), 3e-3), lambda m: r2(m(xt), yt))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(20, 32), nn.Linear(32, 4)
        self.back, self.out = nn.Parameter(torch.zeros(32)), nn.Parameter(torch.zeros(20))

    def forward(self, x):
        z = self.second(torch.tanh(self.first(x)))
        return F.linear(torch.tanh(F.linear(z, self.second.weight.t(), self.back)), self.first.weight.t(), self.out)


@sound("An autoencoder whose decoder is the transpose of its encoder: each weight is used twice, targets are inputs.",
       steps=500, least=0.7)
def yts_tied_autoencoder():
    load = torch.randn(4, 20) / 2
    x, xt = torch.randn(4000, 4) @ load, torch.randn(600, 4) @ load
    model = Tied()
    return Program(model, nn.MSELoss(), loader(x, x), torch.optim.Adam(model.parameters(), 4e-3), lambda m: r2(m(xt), xt))


class Prices(nn.Module):
    def __init__(self, x, y):
        super().__init__()
        for name, value in (("xm", x.mean(0)), ("xs", x.std(0)), ("ym", y.mean()), ("ys", y.std())):
            self.register_buffer(name, value)
        self.net = mlp(x.shape[1], 64, 64, 1)

    def forward(self, x):
        return self.net((x - self.xm) / self.xs).squeeze(1) * self.ys + self.ym


@sound("Raw columns and prices in hundreds of thousands: the model scales both, and the loss divides by the spread.",
       steps=500, least=0.8)
def yts_raw_prices():
    scale, shift = torch.tensor([1000.0, 3.0, 0.01, 50.0, 1e5, 1.0]), torch.tensor([5e3, 2.0, 0.0, 2000.0, 4e5, 0.0])

    def rows(n):
        x = torch.randn(n, 6)
        return x * scale + shift, 350000 + 80000 * surface(x)

    (x, y), (xt, yt) = rows(4000), rows(600)
    model = Prices(x, y)
    spread = float(y.std())
    return Program(model, lambda o, t: (((o - t) / spread) ** 2).mean(), loader(x, y),
                   torch.optim.Adam(model.parameters(), 3e-3), lambda m: r2(m(xt), yt))


@sound("A contrastive loss whose softmax runs over the batch, so that each row's loss depends on the others.",
       steps=400, least=0.6)
def yts_views_in_batch():
    one, two = torch.randn(5, 16) / 2, torch.randn(5, 16) / 2

    def pairs(n):
        z = torch.randn(n, 5)
        return torch.tanh(z @ one) + 0.05 * torch.randn(n, 16), torch.tanh(z @ two) + 0.05 * torch.randn(n, 16)

    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = mlp(16, 64, 16), mlp(16, 64, 16)
            self.scale = nn.Parameter(torch.tensor(2.3))

        def forward(self, a, b):
            return self.scale.exp() * F.normalize(self.left(a), dim=1) @ F.normalize(self.right(b), dim=1).T

    def step(model, batch):
        s = model(*batch)
        t = torch.arange(len(s))
        return (F.cross_entropy(s, t) + F.cross_entropy(s.T, t)) / 2

    at, bt = pairs(200)
    model = Pair()
    return Program(model, None, loader(*pairs(4000), size=96), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: above_chance(m(at, bt), torch.arange(200), 200), step=step)


@sound("Classes that are wholly apart, after long training: probabilities near 0 and 1, gradients near nothing.",
       trained=500, steps=550, least=0.95)
def yts_classes_apart():
    def rows(n):
        y = torch.randint(0, 4, (n,))
        x = 0.5 * torch.randn(n, 6)
        x[:, 0] += 4.0 * (y % 2)
        x[:, 1] += 4.0 * (y // 2)
        return x, y

    (x, y), (xt, yt) = rows(3000), rows(600)
    model = mlp(6, 48, 48, 4)
    return Program(model, F.cross_entropy, loader(x, y), torch.optim.Adam(model.parameters(), 5e-3),
                   lambda m: above_chance(m(xt), yt, 4))


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.each, self.all = mlp(3, 32, 32), mlp(32, 32, 1)

    def forward(self, members, present):
        return self.all((self.each(members) * present[..., None]).sum(1)).squeeze(-1)


@sound("A network for sets, which cannot see the order of the members and fills small sets up with zeros.", steps=500,
       least=0.75)
def yts_households():
    def households(n):
        present = (torch.arange(6) < torch.randint(1, 7, (n, 1))).float()
        members = torch.randn(n, 6, 3) * present[..., None]
        worth = (torch.relu(members[..., 0]) + members[..., 1] * members[..., 2]) * present
        return {"members": members, "present": present}, worth.sum(1) / 2

    x, y = households(4000)
    test = households(600)
    data = [({k: v[i] for k, v in x.items()}, y[i]) for i in range(4000)]
    model = Bag()
    return Program(model, nn.HuberLoss(), torch.utils.data.DataLoader(data, 64, shuffle=True),
                   torch.optim.Adam(model.parameters(), 3e-3), lambda m: r2(m(**test[0]), test[1]))


@sound("A rate that begins at 0 and rises over 80 steps, before it falls again.", steps=500, least=0.7)
def yts_long_warm_up():
    x, xt = torch.randn(5000, 8), torch.randn(600, 8)
    model = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda k: k / 80 if k < 80 else 0.5 * (1 + math.cos(math.pi * min(1.0, (k - 80) / 420))))
    return Program(model, lambda o, y: F.mse_loss(o, y.unsqueeze(1)), loader(x, surface(x)), optimizer,
                   lambda m: r2(m(xt).squeeze(1), surface(xt)), scheduler=schedule)


@sound("A third of the labels is random, so that the loss stays high; the true classes are learned all the same.",
       trained=150, steps=500, least=0.65)
def yts_crowd_labels():
    w = torch.randn(8, 4)

    def rows(n):
        x = torch.randn(n, 8)
        return x, (torch.tanh(x) @ w + 0.3 * x[:, :4] ** 2).argmax(1)

    (x, y), (xt, yt) = rows(8000), rows(800)
    y = torch.where(torch.rand(8000) < 0.35, torch.randint(0, 4, (8000,)), y)
    model = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Dropout(0.1), nn.Linear(48, 4))
    return Program(model, nn.CrossEntropyLoss(), loader(x, y, size=128),
                   torch.optim.AdamW(model.parameters(), 4e-3, weight_decay=0.02), lambda m: above_chance(m(xt), yt, 4))


class TopOne(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(6, 4)
        self.experts = nn.ModuleList(mlp(6, 24, 1) for _ in range(4))

    def forward(self, x):
        share = self.router(x).softmax(-1)
        top, index = share.max(-1)
        out = torch.zeros(len(x))
        for k, expert in enumerate(self.experts):
            rows = (index == k).nonzero().squeeze(-1)
            if len(rows):
                out = out.index_add(0, rows, expert(x[rows]).squeeze(-1) * top[rows])
        return out, share, index


@sound("Each row goes to one expert only, and a small term asks the router to use all of them.", steps=600, least=0.65)
def yts_top_one_experts():
    x, xt = torch.randn(6000, 6), torch.randn(600, 6)

    def step(model, batch):
        x, y = batch
        out, share, index = model(x)
        use = F.one_hot(index, 4).float().mean(0)
        return F.mse_loss(out, y) + 0.02 * 4 * (use * share.mean(0)).sum()

    model = TopOne()
    return Program(model, None, loader(x, surface(x), size=128), torch.optim.Adam(model.parameters(), 5e-3),
                   lambda m: r2(m(xt)[0], surface(xt)), step=step)


@sound("Meta learning through an inner step of gradient descent, in which the model is called with other weights.",
       steps=500, least=0.6)
def yts_inner_step():
    def draw(n=16, k=12):
        amplitude = torch.randn(n, 1, 2)
        x = 2 * torch.rand(n, 2 * k, 1) - 1
        y = amplitude[..., :1] * torch.sin(3 * x) + amplitude[..., 1:] * torch.cos(2 * x)
        return x[:, :k], y[:, :k], x[:, k:], y[:, k:]

    def adapted(model, x, y):
        weights = dict(model.named_parameters())

        def inner(w, a, b):
            return F.mse_loss(torch.func.functional_call(model, w, (a,)), b)

        def predict(a, b, c):
            g = torch.func.grad(inner)(weights, a, b)
            return torch.func.functional_call(model, {n: p - 0.15 * g[n] for n, p in weights.items()}, (c,))

        return predict

    def step(model, batch):
        xs, ys, xq, yq = batch
        return F.mse_loss(torch.vmap(adapted(model, xs, ys))(xs, ys, xq), yq)

    test = draw(200)

    def score(model):
        return r2(torch.vmap(adapted(model, *test[:2]))(*test[:3]).flatten(), test[3].flatten())

    model = mlp(1, 40, 40, 1, act=nn.Tanh)
    return Program(model, None, Stream(draw), torch.optim.Adam(model.parameters(), 3e-3), score, step=step)


class Decay(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp(1, 32, 32, 1, act=nn.Tanh)
        self.rate = nn.Parameter(torch.tensor(0.2))

    def forward(self, t):
        return 1.0 + t * self.net(t)


@sound("A physics-informed network with a physical constant of its own rate, a start that is built in, and a residual "
       "that is far larger than the misfit.", steps=600, least=0.8)
def yts_unknown_rate():
    true = 2.5

    def exact(t):
        return torch.exp(-0.3 * t) * torch.cos(true * t)

    def draw():
        t = 3 * torch.rand(64, 1)
        seen = 3 * torch.rand(16, 1)
        return t, seen, exact(seen) + 0.02 * torch.randn(16, 1)

    def step(model, batch):
        t, seen, value = batch
        t = t.clone().requires_grad_(True)
        u = model(t)
        du = torch.autograd.grad(u.sum(), t, create_graph=True)[0]
        ddu = torch.autograd.grad(du.sum(), t, create_graph=True)[0]
        residual = ddu + 0.6 * du + (model.rate**2 + 0.09) * u
        return 0.02 * residual.pow(2).mean() + F.mse_loss(model(seen), value)

    grid = torch.linspace(0, 3, 200)[:, None]
    model = Decay()
    optimizer = torch.optim.Adam([{"params": model.net.parameters(), "lr": 5e-3}, {"params": [model.rate], "lr": 3e-2}])
    return Program(model, None, Stream(draw), optimizer, lambda m: r2(m(grid), exact(grid)), step=step)


@sound("A policy gradient whose loss is noise around 0 and does not fall while the rewards rise.", steps=500, least=0.65)
def yts_policy_gradient():
    taste = torch.randn(6, 4)

    def step(policy, s):
        choice = torch.distributions.Categorical(logits=policy(s))
        a = choice.sample()
        won = ((s @ taste).argmax(1) == a).float()
        advantage = (won - won.mean()) / (won.std() + 1e-6)
        return -(choice.log_prob(a) * advantage).mean()

    test = torch.randn(800, 6)
    policy = mlp(6, 48, 4, act=nn.Tanh)
    return Program(policy, None, Stream(lambda: torch.randn(128, 6)), torch.optim.Adam(policy.parameters(), 5e-3),
                   lambda m: above_chance(m(test), (test @ taste).argmax(1), 4), step=step)
