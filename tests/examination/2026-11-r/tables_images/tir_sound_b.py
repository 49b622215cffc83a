import math

import torch
import torch.nn.functional as F
from program import Program, sound
from torch import nn, optim
from torch.nn.utils import parametrizations as par
from torch.optim import lr_scheduler as sched
from torch.utils.data import DataLoader

import tir_common as c


class _Factors(nn.Module):
    def __init__(self, users, items):
        super().__init__()
        self.user, self.item = nn.Embedding(users, 4, sparse=True), nn.Embedding(items, 4, sparse=True)
        nn.init.normal_(self.user.weight, std=0.3)
        nn.init.normal_(self.item.weight, std=0.3)

    def forward(self, pair):
        return (self.user(pair[:, 0]) * self.item(pair[:, 1])).sum(1)


@sound("Sparse gradients and SparseAdam; a product with nothing nonlinear", steps=600, least=0.7)
def tir_ok_factors():
    g = c.gen(3)
    u, v = torch.randn(40, 3, generator=g) * 0.8, torch.randn(30, 3, generator=g) * 0.8
    full = torch.cartesian_prod(torch.arange(40), torch.arange(30))[torch.randperm(1200, generator=g)]
    y = (u[full[:, 0]] * v[full[:, 1]]).sum(1)
    model = _Factors(40, 30)
    return Program(model, nn.MSELoss(), c.load(full[:900], y[:900]), optim.SparseAdam(model.parameters(), lr=0.02), c.r2(full[900:], y[900:]))


class _Sine(nn.Module):
    def __init__(self, a, b, w=30.0, first=False):
        super().__init__()
        self.linear, self.w = nn.Linear(a, b), w
        bound = 1 / a if first else math.sqrt(6 / a) / w
        nn.init.uniform_(self.linear.weight, -bound, bound)

    def forward(self, x):
        return torch.sin(self.w * self.linear(x))


@sound("SIREN: sines of thirty times a linear layer", steps=500, least=0.8)
def tir_ok_sines():
    g = c.gen(4)
    x, xb = torch.rand(1500, 2, generator=g) * 2 - 1, torch.rand(400, 2, generator=g) * 2 - 1

    def f(z):
        return torch.sin(6 * z[:, :1]) * torch.cos(5 * z[:, 1:]) 

    model = nn.Sequential(_Sine(2, 48, 12.0, first=True), _Sine(48, 48), nn.Linear(48, 1))
    return Program(model, nn.MSELoss(), c.load(x, f(x), size=64), optim.Adam(model.parameters(), lr=1e-3), c.r2(xb, f(xb)))


@sound("Mixup: labels are mixtures", steps=250, least=0.85)
def tir_ok_mixup():
    xa, ya, xb, yb = c.digits()

    def collate(rows):
        x, y = torch.stack([r[0] for r in rows]), F.one_hot(torch.stack([r[1] for r in rows]), 10).float()
        lam = 0.5 + 0.5 * torch.rand(len(x), 1)
        other = torch.randperm(len(x))
        return lam * x + (1 - lam) * x[other], lam * y + (1 - lam) * y[other]

    model = nn.Sequential(nn.Linear(64, 64), nn.CELU(), nn.Linear(64, 10))
    return Program(model, nn.CrossEntropyLoss(), DataLoader(list(zip(xa, ya, strict=True)), 32, shuffle=True, collate_fn=collate),
                   optim.RAdam(model.parameters(), lr=4e-3), c.acc(xb, yb))


@sound("A sum over the batch, with a rate that is small accordingly", steps=300, least=0.85)
def tir_ok_sum_small_rate():
    xa, ya, xb, yb = c.digits()
    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
    return Program(model, nn.CrossEntropyLoss(reduction="sum"), c.load(xa, ya), optim.SGD(model.parameters(), lr=1e-3, momentum=0.9), c.acc(xb, yb))


@sound("Counts, and the log of a rate", steps=300, least=0.6)
def tir_ok_counts():
    def data(n, seed):
        g = c.gen(seed)
        x = torch.randn(n, 5, generator=g)
        rate = (1.0 + 0.7 * x[:, 0] - 0.4 * x[:, 1]).exp()
        return x, torch.poisson(rate, generator=g), rate

    x, y, _ = data(1000, 3)
    xb, _, rb = data(400, 4)
    model = nn.Sequential(nn.Linear(5, 24), nn.Tanh(), nn.Linear(24, 1), nn.Flatten(0))
    return Program(model, nn.PoissonNLLLoss(log_input=True), c.load(x, y), optim.Adam(model.parameters(), lr=8e-3),
                   lambda m: c.r2_of(m(xb).clamp(max=6).exp(), rb))


@sound("A heat map of one pixel in a hundred, whose bias starts at -4.6, with a focal loss", steps=300, least=0.7)
def tir_ok_heatmap():
    def data(n, seed):
        g = c.gen(seed)
        x = 0.3 * torch.randn(n, 1, 10, 10, generator=g)
        at = torch.randint(1, 9, (n, 2), generator=g)
        t = torch.zeros(n, 1, 10, 10)
        for i in range(n):
            r, k = at[i].tolist()
            x[i, 0, r - 1 : r + 2, k] += 1.5
            x[i, 0, r, k - 1 : k + 2] += 1.5
            t[i, 0, r, k] = 1
        return x, t, at[:, 0] * 10 + at[:, 1]

    x, t, _ = data(500, 1)
    xb, _, place = data(200, 2)
    head = nn.Conv2d(12, 1, 1)
    nn.init.constant_(head.bias, -4.6)
    model = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(), head)

    def focal(out, t):
        p = out.sigmoid().clamp(1e-4, 1 - 1e-4)
        return -(t * (1 - p) ** 2 * p.log() + (1 - t) * p**2 * (1 - p).log()).sum() / t.sum()

    return Program(model, focal, c.load(x, t, size=16), optim.Adam(model.parameters(), lr=3e-3),
                   lambda m: (m(xb).flatten(1).argmax(1) == place).float().mean().item())


class _Frozen(nn.Sequential):
    """Its BatchNorms stay in evaluation mode."""

    def train(self, mode=True):
        super().train(mode)
        for m in self.modules():
            if isinstance(m, nn.BatchNorm2d):
                m.eval()
        return self


@sound("A pretrained body whose BatchNorms stay in evaluation mode, with a rate of its own", steps=250, least=0.85)
def tir_ok_frozen_norms():
    xa, ya, xb, yb = c.digits(image=True)
    state = torch.get_rng_state()
    torch.manual_seed(17)
    body = _Frozen(nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 16, 3, padding=1),
                   nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten())
    net = nn.Sequential(body, nn.Linear(256, 2))
    nn.Sequential.train(body)
    for m in body:
        m.train()
    opt = optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(120):
        at = torch.randint(0, len(xa), (32,))
        opt.zero_grad()
        F.cross_entropy(net(xa[at]), (ya[at] > 4).long()).backward()
        opt.step()
    torch.set_rng_state(state)
    net[1] = nn.Linear(256, 10)
    body.train()
    for m in body:
        if isinstance(m, nn.BatchNorm2d):
            m.requires_grad_(False)
    groups = [{"params": [p for p in body.parameters() if p.requires_grad], "lr": 2e-4}, {"params": net[1].parameters(), "lr": 3e-3}]
    return Program(net, nn.CrossEntropyLoss(), c.load(xa, ya), optim.AdamW(groups), c.acc(xb, yb))


@sound("Weights without biases under Muon, with a norm without weights", steps=250, least=0.85)
def tir_ok_muon():
    xa, ya, xb, yb = c.digits()
    model = nn.Sequential(nn.Linear(64, 48, bias=False), nn.ReLU(), nn.LayerNorm(48, elementwise_affine=False), nn.Linear(48, 10, bias=False))
    return Program(model, nn.CrossEntropyLoss(), c.load(xa, ya), optim.Muon(model.parameters(), lr=0.02), c.acc(xb, yb))


@sound("Spectral norms hold every layer's slope below 1", steps=300, least=0.8)
def tir_ok_spectral():
    x, y = c.rings(800, 5)
    xb, yb = c.rings(300, 6)
    model = nn.Sequential(par.spectral_norm(nn.Linear(2, 32)), nn.LeakyReLU(0.2), par.spectral_norm(nn.Linear(32, 32)), nn.LeakyReLU(0.2),
                          par.weight_norm(nn.Linear(32, 1)), nn.Flatten(0))
    return Program(model, nn.SoftMarginLoss(), c.load(x, 2.0 * y - 1), optim.Adam(model.parameters(), lr=1e-2, betas=(0.5, 0.9)), c.binary(xb, yb))


class _Pairwise(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1, bias=False))

    def forward(self, lists):
        return self.net(lists).squeeze(-1)


@sound("Lists of eight are ranked: only differences of scores count", steps=300, least=0.85)
def tir_ok_ranking():
    def data(n, seed):
        x, y = c.surface(n * 8, 6, seed)
        return x.view(n, 8, 6), y.view(n, 8)

    def loss(s, rel):
        above = rel[:, :, None] > rel[:, None] + 0.1
        return F.softplus(s[:, None] - s[:, :, None])[above].mean()

    x, y = data(300, 7)
    xb, yb = data(100, 8)
    model = _Pairwise()

    def score(m):
        s = m(xb)
        above = yb[:, :, None] > yb[:, None]
        return (s[:, :, None] > s[:, None])[above].float().mean().item()

    return Program(model, loss, c.load(x, y, size=16), optim.Adamax(model.parameters(), lr=8e-3), score)


class _Tempered(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net
        self.log_t = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return self.net(x) * (-self.log_t).exp()


@sound("Only a temperature is trained, on a frozen, overconfident network", steps=200, least=0.85)
def tir_ok_temperature():
    g = c.gen(9)
    w = torch.randn(6, 3, generator=g)
    x = torch.randn(1500, 6, generator=g)
    y = torch.multinomial((x @ w).softmax(1), 1, generator=g)[:, 0]
    net = nn.Linear(6, 3)
    with torch.no_grad():
        net.weight.copy_(4 * w.T)
        net.bias.zero_()
    net.requires_grad_(False)
    model = _Tempered(net)
    xb, yb = x[1000:], y[1000:]

    def score(m):
        p = m(xb).softmax(1)
        top, at = p.max(1)
        return 1 - abs(top.mean() - (at == yb).float().mean()).item() * 3

    return Program(model, nn.CrossEntropyLoss(), c.load(x[:1000], y[:1000]), optim.Adam([model.log_t], lr=0.03), score)


class _Cosine(nn.Module):
    def __init__(self, d, k, s):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(k, d))
        self.s = s

    def forward(self, h):
        return self.s * F.normalize(h, dim=1) @ F.normalize(self.weight, dim=1).T


@sound("Cosines times sixteen as logits, with a margin", steps=300, least=0.85)
def tir_ok_cosine_margin():
    xa, ya, xb, yb = c.digits(image=True)
    model = nn.Sequential(nn.Conv2d(1, 12, 3, stride=2, padding=1), nn.PReLU(12), nn.Flatten(), nn.Linear(192, 24), _Cosine(24, 10, 16.0))

    def loss(out, y):
        return F.cross_entropy(out - 16 * 0.2 * F.one_hot(y, 10), y)

    return Program(model, loss, c.load(xa, ya), optim.SGD(model.parameters(), lr=0.05, momentum=0.9), c.acc(xb, yb))


class _Ordinal(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.score = nn.Sequential(nn.Linear(5, 64), nn.SiLU(), nn.Linear(64, 32), nn.SiLU(), nn.Linear(32, 1, bias=False))
        self.cuts = nn.Parameter(torch.linspace(2, -2, k - 1))

    def forward(self, x):
        return self.score(x) + self.cuts


@sound("Ordinal targets: one score and ordered cuts, cumulative labels", steps=600, least=0.65)
def tir_ok_ordinal():
    def data(n, seed):
        x, z = c.surface(n, 5, seed)
        return x, torch.bucketize(z, torch.tensor([-1.0, -0.3, 0.3, 1.0]))

    x, y = data(1200, 9)
    xb, yb = data(400, 10)
    t = (y[:, None] > torch.arange(4)).float()
    model = _Ordinal(5)
    return Program(model, nn.BCEWithLogitsLoss(), c.load(x, t), optim.Adam(model.parameters(), lr=1e-2),
                   lambda m: ((m(xb) > 0).sum(1) - yb).abs().le(0).float().mean().item())


class _Unet(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.InstanceNorm2d(8, affine=True), nn.ReLU())
        self.b = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU())
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.out = nn.Conv2d(16, 1, 1)

    def forward(self, x):
        a = self.a(x)
        return self.out(torch.cat([a, self.up(self.b(F.max_pool2d(a, 2)))], 1)).squeeze(1)


@sound("Dice plus cross-entropy where a border of 255 does not count; batches of four", steps=250, least=0.75)
def tir_ok_unet_ignored():
    x, m, _ = c.blobs(300, 12, 61, noise=0.5)
    xb, mb, _ = c.blobs(100, 12, 62, noise=0.5)
    t = m.clone()
    t[:, :2], t[:, :, :1] = 255, 255
    model = _Unet()

    def loss(out, t):
        real = (t != 255).float()
        y = (t == 1).float()
        p = out.sigmoid() * real
        bce = (F.binary_cross_entropy_with_logits(out, y, reduction="none") * real).sum() / real.sum()
        dice = 1 - ((2 * p * y).sum((1, 2)) + 1) / ((p + y).sum((1, 2)) + 1)
        return bce + dice.mean()

    return Program(model, loss, c.load(x, t, size=4), optim.AdamW(model.parameters(), lr=3e-3), lambda net: c.iou(net(xb) > 0, mb.bool()))


@sound("Quantiles: three outputs with the pinball loss for one target", steps=350, least=0.8)
def tir_ok_quantiles():
    def data(n, seed):
        x, y = c.surface(n, 5, seed, noise=0.3)
        return x, y

    x, y = data(1200, 11)
    xb, yb = data(400, 12)
    q = torch.tensor([0.1, 0.5, 0.9])
    model = nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Linear(64, 3))

    def pinball(out, y):
        e = y[:, None] - out
        return torch.maximum(q * e, (q - 1) * e).mean()

    def score(m):
        out = m(xb)
        inside = ((yb > out[:, 0]) & (yb < out[:, 2])).float().mean().item()
        return c.r2_of(out[:, 1], yb) if abs(inside - 0.8) < 0.15 else 0.0

    return Program(model, pinball, c.load(x, y), optim.Adam(model.parameters(), lr=8e-3), score, scheduler=None)


class _Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(1, 32), nn.Tanh())
        self.weight, self.mean, self.log_std = nn.Linear(32, 3), nn.Linear(32, 3), nn.Linear(32, 3)
        nn.init.uniform_(self.mean.bias, -1, 1)

    def forward(self, x):
        h = self.body(x)
        return self.weight(h).log_softmax(1), self.mean(h), self.log_std(h).clamp(-4, 3)


@sound("A mixture of Gaussians: inputs have several answers; the loss falls below 0", steps=500, least=0.65)
def tir_ok_mixture():
    def data(n, seed):
        g = c.gen(seed)
        y = torch.rand(n, 1, generator=g) * 2 - 1
        return 0.7 * torch.sin(3.5 * y) + 0.5 * y + 0.03 * torch.randn(n, 1, generator=g), y

    x, y = data(1200, 1)
    xb, yb = data(400, 2)
    model = _Mixture()

    def loss(out, y):
        w, mean, log_std = out
        return -(w - log_std - 0.5 * ((y - mean) / log_std.exp()) ** 2).logsumexp(1).mean()

    return Program(model, loss, c.load(x, y, size=64), optim.Adam(model.parameters(), lr=1e-2),
                   lambda m: 1 / (1 + math.exp(2 * (loss(m(xb), yb).item() + 0.1) )))


class _Judge(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))

    def forward(self, x):
        return self.net(x).squeeze(1)


@sound("A discriminator against a fixed generator, with a hinge loss and Adam(0, 0.9); no target in a batch", steps=300, least=0.8)
def tir_ok_judge():
    def real(n, g=None):
        a = torch.rand(n, generator=g) * 6.2832
        return torch.stack([a.cos(), a.sin()], 1) + 0.05 * torch.randn(n, 2, generator=g)

    class Real:
        def __iter__(self):
            return (real(48) for _ in range(40))

        def __len__(self):
            return 40

    g = c.gen(3)
    held, fake = real(300, g), 0.4 * torch.randn(300, 2, generator=g)
    model = _Judge()

    def step(m, x):
        z = 0.4 * torch.randn(len(x), 2)
        return F.relu(1 - m(x)).mean() + F.relu(1 + m(z)).mean()

    return Program(model, None, Real(), optim.Adam(model.parameters(), lr=5e-3, betas=(0.0, 0.9)),
                   lambda m: 0.5 * ((m(held) > 0).float().mean() + (m(fake) < 0).float().mean()).item(), step=step)


class _Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sign()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (x.abs() <= 1)


class _Binary(nn.Module):
    def forward(self, x):
        return _Sign.apply(x)


@sound("Hidden units are signs with a straight-through gradient", steps=300, least=0.75)
def tir_ok_signs():
    xa, ya, xb, yb = c.digits()
    model = nn.Sequential(nn.Linear(64, 96), nn.BatchNorm1d(96), _Binary(), nn.Linear(96, 10))
    return Program(model, nn.CrossEntropyLoss(), c.load(xa, ya), optim.Adam(model.parameters(), lr=4e-3), c.acc(xb, yb))


@sound("OneCycleLR, which starts low; no decay on norms and biases", steps=300, least=0.9)
def tir_ok_one_cycle():
    xa, ya, xb, yb = c.digits(image=True)
    model = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.SiLU(), nn.Conv2d(12, 16, 3, stride=2, padding=1, groups=4),
                          nn.BatchNorm2d(16), nn.SiLU(), nn.Flatten(), nn.Linear(256, 10))
    groups = [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.05},
              {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0}]
    opt = optim.AdamW(groups, lr=1e-3)
    return Program(model, nn.CrossEntropyLoss(), c.load(xa, ya), opt, c.acc(xb, yb),
                   scheduler=sched.OneCycleLR(opt, 6e-3, total_steps=620))


@sound("Half of the inputs are dropped, of many that say the same", steps=300, least=0.8)
def tir_ok_input_dropout():
    g = c.gen(12)
    mix = torch.randn(4, 80, generator=g)
    z, zb = torch.randn(1000, 4, generator=g), torch.randn(300, 4, generator=g)
    x, xb = z @ mix / 2 + 0.3 * torch.randn(1000, 80, generator=g), zb @ mix / 2 + 0.3 * torch.randn(300, 80, generator=g)
    y, yb = (z[:, 0] + z[:, 1] > 0).long() + 2 * (z[:, 2] > 0).long(), (zb[:, 0] + zb[:, 1] > 0).long() + 2 * (zb[:, 2] > 0).long()
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(80, 32), nn.ReLU(), nn.Linear(32, 4))
    return Program(model, nn.CrossEntropyLoss(), c.load(x, y), optim.ASGD(model.parameters(), lr=0.1), c.acc(xb, yb))


@sound("Robust loss for targets a twentieth of which are outliers of 50", steps=300, least=0.8)
def tir_ok_outliers():
    x, y = c.surface(1000, 6, 13)
    xb, yb = c.surface(400, 6, 14)
    y = torch.where(torch.rand(1000, generator=c.gen(2)) < 0.05, torch.full_like(y, 50.0), y)
    model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1), nn.Flatten(0))
    return Program(model, nn.HuberLoss(delta=0.5), c.load(x, y), optim.RMSprop(model.parameters(), lr=2e-3), c.r2(xb, yb))


class _Endless:
    def __iter__(self):
        while True:
            x = torch.randn(64, 4)
            yield x, (x[:, 0] * x[:, 1] > 0).long()


@sound("Batches are made anew without end; no epoch and no length", steps=400, least=0.85)
def tir_ok_endless():
    x = torch.randn(400, 4, generator=c.gen(1))
    y = (x[:, 0] * x[:, 1] > 0).long()
    model = nn.Sequential(nn.Linear(4, 48), nn.ReLU(), nn.Linear(48, 2))
    return Program(model, nn.CrossEntropyLoss(), _Endless(), optim.Adafactor(model.parameters(), lr=0.03), c.acc(x, y))


@sound("Trees are imitated: logits come from products of many sigmoids; trained", trained=300, steps=300, least=0.85)
def tir_ok_soft_tree():
    xa, ya, xb, yb = c.table("breast_cancer")

    class Tree(nn.Module):
        def __init__(self):
            super().__init__()
            self.gates, self.leaves = nn.Linear(30, 7), nn.Parameter(0.1 * torch.randn(8, 2))

        def forward(self, x):
            p = torch.sigmoid(2 * self.gates(x))
            paths = [torch.ones(len(x))]
            at = 0
            for _ in range(3):
                paths = [part for k, q in enumerate(paths) for part in (q * p[:, at + k], q * (1 - p[:, at + k]))]
                at = 2 * at + 1
            return torch.stack(paths, 1) @ self.leaves

    model = Tree()
    return Program(model, nn.CrossEntropyLoss(), c.load(xa, ya), optim.Adam(model.parameters(), lr=2e-2), c.acc(xb, yb))


@sound("Nothing; few features, squared error, a target scaled to unit variance", steps=300, least=0.6)
def tir_ok_plain_regression():
    x, y = c.surface(800, 4, 15, noise=0.2)
    xb, yb = c.surface(300, 4, 16, noise=0.2)
    model = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))
    return Program(model, nn.MSELoss(), c.load(x, (y / y.std())[:, None]), optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
                   lambda m: c.r2_of(m(xb) * y.std(), yb))


@sound("Nothing; boxes of one object in pixels over the width", steps=300, least=0.8)
def tir_ok_boxes():
    x, _, b = c.blobs(500, 12, 63)
    xb, _, bb = c.blobs(150, 12, 64)
    model = nn.Sequential(nn.Conv2d(1, 10, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(360, 32), nn.ReLU(), nn.Linear(32, 4), nn.Sigmoid())
    return Program(model, nn.L1Loss(), c.load(x, b / 12), optim.Adam(model.parameters(), lr=3e-3), c.r2(xb, bb / 12))


@sound("Nothing; several labels at once", trained=100, steps=300, least=0.7)
def tir_ok_many_labels():
    g = c.gen(5)
    w = torch.randn(10, 6, generator=g)
    x, xb = torch.randn(1000, 10, generator=g), torch.randn(300, 10, generator=g)
    y, yb = (x @ w > 1.5).float(), (xb @ w > 1.5).float()
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 6))

    def f1(m):
        hit = m(xb) > 0
        return (2 * (hit & (yb > 0)).sum() / (hit.sum() + yb.sum())).item()

    return Program(model, nn.MultiLabelSoftMarginLoss(), c.load(x, y), optim.Adam(model.parameters(), lr=5e-3), f1)
