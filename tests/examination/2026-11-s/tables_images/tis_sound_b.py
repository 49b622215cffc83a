"""Sound set-ups in tables and pictures, second half."""
import copy
import math

import torch
import torch.nn.functional as F
from program import Program, sound
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler
from tis_common import accuracy, credit, digits, gen, iou, loader, parts, r2, r_squared, satellite, sensors, split, table


class tis_SoftArgmax(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(2, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 2, 3, padding=1))
        self.sharp = nn.Parameter(torch.tensor(5.0))

    def forward(self, x):
        h = self.net(x)
        w = torch.softmax(self.sharp * h.flatten(2), -1).unflatten(-1, (12, 12))
        at = (torch.arange(12) + 0.5) / 12
        return torch.stack([(w.sum(2) * at).sum(-1), (w.sum(3) * at).sum(-1)], -1)


@sound("places as means of softmaxed maps", steps=300, least=0.8)
def tis_soft_argmax():
    def make(n, seed):
        g = gen(seed)
        p = torch.rand(n, 2, 2, generator=g) * 0.8 + 0.1
        at = (torch.arange(12) + 0.5) / 12
        spot = torch.exp(-((at[:, None] - p[..., 1, None, None]) ** 2 + (at[None] - p[..., 0, None, None]) ** 2) / 0.02)
        return spot + 0.1 * torch.randn(n, 2, 12, 12, generator=g), p

    xa, pa = make(800, 120)
    xb, pb = make(300, 121)
    model = tis_SoftArgmax()
    return Program(model, nn.L1Loss(), loader(xa, pa), torch.optim.Adam(model.parameters(), lr=3e-3), lambda m: r2(m(xb), pb))


@sound("a Dice loss and places that are left out", steps=300, least=0.8)
def tis_dice_with_void():
    xa, ma = parts(400, 122)
    xb, mb = parts(150, 123)
    void = torch.rand(ma.shape, generator=gen(124)) < 0.2
    ta = torch.where(void, torch.tensor(255.0), ma)[:, None]

    def dice(out, t):
        real = (t != 255).float()
        p, t = torch.sigmoid(out) * real, t * real.bool()
        return 1 - ((2 * (p * t).sum((1, 2, 3)) + 1) / (p.sum((1, 2, 3)) + t.sum((1, 2, 3)) + 1)).mean()

    model = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.GroupNorm(3, 12), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1),
                          nn.GroupNorm(3, 12), nn.ReLU(), nn.Conv2d(12, 1, 1))
    return Program(model, dice, loader(xa, ta, 12), torch.optim.Adam(model.parameters(), lr=4e-3), iou(xb, mb))


@sound("logs of counts", steps=400, least=0.7)
def tis_claim_counts():
    x, y = sensors(2400, seed=125)
    rate = torch.exp(0.8 * y + 0.5)
    xa, ra, xb, rb = split(x, rate)
    ca = torch.poisson(ra, generator=gen(126))
    model = nn.Sequential(nn.Linear(10, 48), nn.ELU(), nn.Linear(48, 48), nn.ELU(), nn.Linear(48, 1), nn.Flatten(0))
    return Program(model, nn.PoissonNLLLoss(log_input=True), loader(xa, ca, 48), torch.optim.Adam(model.parameters(), lr=3e-3),
                   r_squared(xb, rb.log()))


@sound("three quantiles", steps=400, least=0.7)
def tis_quantiles():
    x, y = sensors(2400, seed=127)
    noisy = y + 0.3 * torch.randn(len(y), generator=gen(128))
    xa, na, xb, _ = split(x, noisy)
    yb = split(x, y)[3]
    q = torch.tensor([0.1, 0.5, 0.9])

    def pinball(out, t):
        d = t[:, None] - out
        return torch.maximum(q * d, (q - 1) * d).mean()

    model = nn.Sequential(nn.Linear(10, 64), nn.Softplus(), nn.Linear(64, 64), nn.Softplus(), nn.Linear(64, 3))
    return Program(model, pinball, loader(xa, na), torch.optim.Adam(model.parameters(), lr=5e-3), lambda m: r2(m(xb)[:, 1], yb))


class tis_ReZero(nn.Module):
    def __init__(self, wide):
        super().__init__()
        self.a, self.b = nn.Linear(wide, wide), nn.Linear(wide, wide)
        self.gate = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return x + self.gate * self.b(F.relu(self.a(x)))


@sound("ten blocks whose gates begin at zero", steps=300, least=0.9)
def tis_closed_gates():
    xa, ya, xb, yb = digits(8.0)
    model = nn.Sequential(nn.Linear(64, 32), *[tis_ReZero(32) for _ in range(10)], nn.Linear(32, 10))
    return Program(model, nn.CrossEntropyLoss(), loader(xa, ya), torch.optim.Adam(model.parameters(), lr=2e-3), accuracy(xb, yb))


@sound("two pictures per batch, with norms over groups", steps=500, least=0.8)
def tis_pairs_of_pictures():
    xa, ya, xb, yb = split(*satellite(1400, seed=129))
    model = nn.Sequential(nn.Conv2d(4, 16, 3), nn.GroupNorm(4, 16), nn.SiLU(), nn.Conv2d(16, 16, 3, stride=2), nn.GroupNorm(4, 16),
                          nn.SiLU(), nn.Flatten(), nn.Linear(64, 5))
    return Program(model, nn.CrossEntropyLoss(), loader(xa - 0.5, ya, 2), torch.optim.AdamW(model.parameters(), lr=1e-3), accuracy(xb - 0.5, yb))


@sound("a rate that rises from nearly nothing", steps=300, least=0.9)
def tis_slow_warmup():
    xa, ya, xb, yb = digits()
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
    opt = torch.optim.RAdam(model.parameters(), lr=1e-2)
    warm = torch.optim.lr_scheduler.LambdaLR(opt, lambda k: min(1.0, (k + 1) / 100) * 0.995 ** max(0, k - 100))
    return Program(model, nn.CrossEntropyLoss(label_smoothing=0.1), loader(xa, ya), opt, accuracy(xb, yb), scheduler=warm)


@sound("one cycle up to a rate of one half", steps=500, least=0.8)
def tis_one_cycle():
    xa, ya, xb, yb = split(*satellite(1500, seed=130))
    model = nn.Sequential(nn.Conv2d(4, 16, 3), nn.BatchNorm2d(16), nn.LeakyReLU(0.1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5))
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    return Program(model, nn.CrossEntropyLoss(), loader(xa, ya, 48), opt, accuracy(xb, yb),
                   scheduler=torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.5, total_steps=700))


@sound("decay of 0.1 for weights, none for biases and norms", steps=300, least=0.85)
def tis_selective_decay():
    xa, ya, xb, yb = digits()
    model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 10))
    some, none = [p for p in model.parameters() if p.ndim > 1], [p for p in model.parameters() if p.ndim == 1]
    opt = torch.optim.AdamW([{"params": some, "weight_decay": 0.1}, {"params": none, "weight_decay": 0.0}], lr=3e-3)
    return Program(model, nn.CrossEntropyLoss(), loader(xa, ya), opt, accuracy(xb, yb))


class tis_Factors(nn.Module):
    def __init__(self):
        super().__init__()
        self.user, self.item = nn.Embedding(60, 6), nn.Embedding(40, 6)
        self.bu, self.bi = nn.Embedding(60, 1), nn.Embedding(40, 1)
        self.mean = nn.Parameter(torch.tensor(3.5))
        for e in (self.user, self.item):
            nn.init.normal_(e.weight, std=0.3)
        for e in (self.bu, self.bi):
            nn.init.zeros_(e.weight)

    def forward(self, user, item):
        return (self.user(user) * self.item(item)).sum(1) + self.bu(user)[:, 0] + self.bi(item)[:, 0] + self.mean


@sound("products of embeddings, most of which a batch leaves alone", steps=500, least=0.7)
def tis_ratings():
    g = gen(131)
    u, i = torch.randn(60, 3, generator=g), torch.randn(40, 3, generator=g)
    table_ = 3.5 + 0.5 * (u @ i.T) + 0.6 * torch.randn(60, 1, generator=g)
    pairs = torch.cartesian_prod(torch.arange(60), torch.arange(40))
    pa, ra, pb, rb = split(pairs, table_.flatten() + 0.1 * torch.randn(2400, generator=g))
    data = DataLoader([({"user": p[0], "item": p[1]}, r) for p, r in zip(pa, ra)], 64, shuffle=True)
    model = tis_Factors()
    return Program(model, nn.MSELoss(), data, torch.optim.Adagrad(model.parameters(), lr=0.2), lambda m: r2(m(pb[:, 0], pb[:, 1]), rb))


@sound("an autoencoder of good parts, trained", trained=300, steps=350, least=0.8)
def tis_anomalies():
    xa, ya, xb, yb = digits(8.0)
    xa = xa[ya < 2]
    xa = xa + 0
    odd = yb >= 2
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 5), nn.Linear(5, 32),
                          nn.ReLU(), nn.Linear(32, 64))

    def auc(m):
        e = (m(xb) - xb).pow(2).mean(1)
        return (e[odd][:, None] > e[~odd][None]).float().mean().item()

    return Program(model, nn.MSELoss(), loader(xa, xa, 24), torch.optim.Adam(model.parameters(), lr=3e-3), auc)


@sound("a loss between the examples of a batch", steps=300, least=0.8)
def tis_contrast():
    xa, ya, xb, yb = digits(8.0)

    class tis_Projector(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16))

        def forward(self, x):
            return F.normalize(self.net(x), dim=1)

    def supcon(z, y):
        s = (z @ z.T / 0.2).masked_fill(torch.eye(len(z), dtype=torch.bool), -1e4)
        same = (y[:, None] == y[None]).float().fill_diagonal_(0)
        return -((F.log_softmax(s, 1) * same).sum(1) / same.sum(1).clamp(min=1)).mean()

    def nearest(m):
        return (ya[(m(xb) @ m(xa).T).argmax(1)] == yb).float().mean().item()

    model = tis_Projector()
    return Program(model, supcon, loader(xa, ya, 64, drop_last=True), torch.optim.Adam(model.parameters(), lr=3e-3), nearest)


@sound("two answers for one input", steps=500, least=0.6)
def tis_mixture_density():
    g = gen(132)
    x = torch.rand(2000, 1, generator=g) * 2 - 1
    sign = torch.randint(0, 2, (2000, 1), generator=g) * 2.0 - 1
    y = sign * (0.4 + (x + 1) / 1.5) + 0.1 * torch.randn(2000, 1, generator=g)
    xa, ya, xb, yb = split(x, y)
    model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 9))

    def like(out, t):
        w, m, s = out.chunk(3, 1)
        return -torch.logsumexp(F.log_softmax(w, 1) - 0.5 * ((t - m) / s.exp()) ** 2 - s, 1)

    return Program(model, lambda o, t: like(o, t).mean(), loader(xa, ya, 50), torch.optim.Adam(model.parameters(), lr=0.02),
                   lambda m: max(0.0, min(1.0, 1 - (like(m(xb), yb).mean().item() + 1.1) / 1.6)))


@sound("raw columns that meet a BatchNorm first", steps=300, least=0.8)
def tis_raw_then_norm():
    raw, y = credit(2400, seed=133)
    xa, ya, xb, yb = split(raw, y)
    model = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 2))
    return Program(model, nn.CrossEntropyLoss(), loader(xa, ya, 64), torch.optim.Adam(model.parameters(), lr=5e-3), accuracy(xb, yb))


@sound("targets in the thousands that the model scales itself", steps=400, least=0.8)
def tis_scaled_inside():
    x, y = sensors(2200, seed=134)
    price = 25000 + 6000 * y
    xa, pa, xb, pb = split(x, price)

    class tis_Prices(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
            self.register_buffer("mean", pa.mean())
            self.register_buffer("std", pa.std())

        def forward(self, x):
            return self.net(x)[:, 0] * self.std + self.mean

    model = tis_Prices()
    return Program(model, nn.L1Loss(), loader(xa, pa), torch.optim.Adam(model.parameters(), lr=3e-3), r_squared(xb, pb))


@sound("autocast to bfloat16 with weights in float32", steps=250, least=0.9)
def tis_autocast():
    xa, ya, xb, yb = digits()
    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))

    def step(net, batch):
        x, y = batch
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = net(x)
        return F.cross_entropy(out.float(), y)

    return Program(model, None, loader(xa, ya), torch.optim.Adam(model.parameters(), lr=3e-3), accuracy(xb, yb), step=step)


@sound("rare defects drawn more often", steps=300, least=0.8)
def tis_rare_defects():
    g = gen(135)
    x = 0.5 * torch.randn(1600, 1, 10, 10, generator=g)
    y = (torch.rand(1600, generator=g) < 0.08).long()
    at = torch.randint(2, 8, (1600,), generator=g)
    for k in torch.nonzero(y)[:, 0]:
        x[k, 0, at[k]] += 1.2
    xa, ya, xb, yb = split(x, y)
    weights = torch.where(ya == 1, 10.0, 1.0)
    data = DataLoader(TensorDataset(xa, ya), 32, sampler=WeightedRandomSampler(weights, len(ya)))
    model = nn.Sequential(nn.Conv2d(1, 8, (1, 7)), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(8, 2))

    def balanced(m):
        hit = m(xb).argmax(1) == yb
        return (hit[yb == 1].float().mean() + hit[yb == 0].float().mean()).item() / 2

    return Program(model, nn.CrossEntropyLoss(), data, torch.optim.Adam(model.parameters(), lr=5e-3), balanced)


@sound("a frozen teacher inside the student", steps=300, least=0.88)
def tis_teacher_inside():
    xa, ya, xb, yb = digits()
    with torch.random.fork_rng():
        torch.manual_seed(3)
        teacher = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 10))
        opt = torch.optim.Adam(teacher.parameters(), lr=5e-3)
        for _ in range(200):
            i = torch.randint(len(xa), (48,))
            opt.zero_grad()
            F.cross_entropy(teacher(xa[i]), ya[i]).backward()
            opt.step()

    class tis_Distil(nn.Module):
        def __init__(self):
            super().__init__()
            self.teacher = teacher.requires_grad_(False)
            self.student = nn.Sequential(nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10))

        def forward(self, x):
            return self.student(x)

    model = tis_Distil()

    def step(net, batch):
        x, _ = batch
        with torch.no_grad():
            soft = F.softmax(net.teacher(x) / 4, 1)
        return 16 * F.kl_div(F.log_softmax(net(x) / 4, 1), soft, reduction="batchmean")

    return Program(model, None, loader(xa, ya), torch.optim.Adam(model.student.parameters(), lr=5e-3), accuracy(xb, yb), step=step)


class tis_Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x >= 0, 1.0, -1.0)

    @staticmethod
    def backward(ctx, g):
        return g * (ctx.saved_tensors[0].abs() <= 1)


@sound("binary hidden units with a straight-through slope", steps=400, least=0.85)
def tis_binary_units():
    xa, ya, xb, yb = digits()

    class tis_Binary(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.norm, self.b = nn.Linear(64, 96), nn.BatchNorm1d(96), nn.Linear(96, 10)

        def forward(self, x):
            return self.b(tis_Sign.apply(self.norm(self.a(x))))

    model = tis_Binary()
    return Program(model, nn.CrossEntropyLoss(), loader(xa, ya), torch.optim.Adam(model.parameters(), lr=3e-3), accuracy(xb, yb))


class tis_Sine(nn.Module):
    def __init__(self, a, b, w):
        super().__init__()
        self.lin, self.w = nn.Linear(a, b), w
        edge = 1 / a if w > 5 else math.sqrt(6 / a)
        nn.init.uniform_(self.lin.weight, -edge, edge)

    def forward(self, x):
        return torch.sin(self.w * self.lin(x))


@sound("sines of a high frequency", steps=400, least=0.7)
def tis_picture_by_place():
    axis = torch.linspace(-1, 1, 40)
    place = torch.cartesian_prod(axis, axis)
    value = torch.sin(7 * place[:, 0] * place[:, 1] + 2) + torch.cos(9 * place[:, 0])
    xa, va, xb, vb = split(place, value)
    model = nn.Sequential(tis_Sine(2, 48, 12.0), tis_Sine(48, 48, 1.0), nn.Linear(48, 1), nn.Flatten(0))
    return Program(model, nn.MSELoss(), loader(xa, va, 64), torch.optim.Adam(model.parameters(), lr=2e-3), r_squared(xb, vb))


@sound("distances to centres, with a fixed width", steps=300, least=0.85)
def tis_radial():
    xa, ya, xb, yb = table("iris")

    class tis_Radial(nn.Module):
        def __init__(self):
            super().__init__()
            self.centres = nn.Parameter(xa[:20].clone())
            self.out = nn.Linear(20, 3)

        def forward(self, x):
            d = (x[:, None] - self.centres).pow(2).sum(-1)
            return self.out(torch.softmax(-d, 1))

    model = tis_Radial()
    return Program(model, nn.MultiMarginLoss(), loader(xa, ya, 16), torch.optim.Adam(model.parameters(), lr=0.03), accuracy(xb, yb))


@sound("mean and variance together", steps=500, least=0.7)
def tis_two_headed():
    x, y = sensors(2400, seed=136)
    noisy = y + (0.05 + 0.3 * (x[:, 5] > 0)) * torch.randn(len(y), generator=gen(137))
    xa, na, xb, _ = split(x, noisy)
    yb = split(x, y)[3]

    class tis_Hetero(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(10, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU())
            self.mean, self.var = nn.Linear(64, 1), nn.Linear(64, 1)

        def forward(self, x):
            h = self.body(x)
            return self.mean(h)[:, 0], F.softplus(self.var(h))[:, 0] + 1e-4

    model = tis_Hetero()
    nll = nn.GaussianNLLLoss()
    return Program(model, lambda o, t: nll(o[0], t, o[1]), loader(xa, na), torch.optim.Adam(model.parameters(), lr=3e-3),
                   lambda m: r2(m(xb)[0], yb))


@sound("times of events, with a likelihood over the batch", steps=300, least=0.75)
def tis_survival():
    x, y = sensors(2000, seed=138)
    g = gen(139)
    time = -torch.log(torch.rand(2000, generator=g)) * torch.exp(-1.5 * y)
    stop = torch.rand(2000, generator=g) * 6
    t = torch.stack([torch.minimum(time, stop), (time <= stop).float()], 1)
    xa, ta, xb, tb = split(x, t)
    model = nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1, bias=False), nn.Flatten(0))

    def cox(risk, t):
        order = t[:, 0].argsort(descending=True)
        risk, event = risk[order], t[order, 1]
        return -((risk - risk.logcumsumexp(0)) * event).sum() / event.sum().clamp(min=1)

    def concordance(m):
        risk = m(xb)
        pair = (tb[:, 0][:, None] < tb[:, 0][None]) & (tb[:, 1][:, None] > 0)
        return ((risk[:, None] > risk[None]) & pair).sum().item() / pair.sum().item()

    return Program(model, cox, loader(xa, ta, 64), torch.optim.Adam(model.parameters(), lr=3e-3), concordance)


@sound("whole data in every step, with signs of gradients only", steps=150, least=0.9)
def tis_full_batch_rprop():
    xa, ya, xb, yb = table("breast_cancer")
    model = nn.Sequential(nn.Linear(30, 12), nn.Sigmoid(), nn.Linear(12, 2))
    return Program(model, nn.CrossEntropyLoss(), [(xa, ya)], torch.optim.Rprop(model.parameters(), lr=0.005), accuracy(xb, yb))


@sound("labels of which one in five is wrong", steps=300, least=0.85)
def tis_noisy_labels():
    xa, ya, xb, yb = digits()
    g = gen(140)
    ya = torch.where(torch.rand(len(ya), generator=g) < 0.2, torch.randint(10, ya.shape, generator=g), ya)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 10))
    return Program(model, nn.CrossEntropyLoss(), loader(xa, ya, 64), torch.optim.Adam(model.parameters(), lr=3e-3, weight_decay=1e-4), accuracy(xb, yb))


@sound("hooks that hold gradients within one", steps=400, least=0.8)
def tis_hooks_within_one():
    xa, ya, xb, yb = split(*sensors(2000, seed=141))
    model = nn.Sequential(nn.Linear(10, 64), nn.PReLU(), nn.Linear(64, 64), nn.PReLU(), nn.Linear(64, 1), nn.Flatten(0))
    for p in model.parameters():
        p.register_hook(lambda g: g.clamp(-1, 1))
    return Program(model, nn.MSELoss(), loader(xa, ya, 16), torch.optim.Adam(model.parameters(), lr=2e-3), r_squared(xb, yb))


@sound("sets of visits of several lengths, with the padding left out, half trained", trained=150, steps=400, least=0.75)
def tis_padded_sets():
    def make(n, seed):
        g = gen(seed)
        rows = [torch.randn(int(k), 5, generator=g) for k in torch.randint(1, 10, (n,), generator=g)]
        return [(r, torch.tanh(r[:, 0]).mean() * 2 + r[:, 1].max()) for r in rows]

    def collate(rows):
        wide = max(len(r) for r, _ in rows)
        x = torch.zeros(len(rows), wide, 5)
        real = torch.zeros(len(rows), wide, dtype=torch.bool)
        for k, (r, _) in enumerate(rows):
            x[k, :len(r)], real[k, :len(r)] = r, True
        return {"x": x, "real": real}, torch.stack([t for _, t in rows])

    class tis_DeepSet(nn.Module):
        def __init__(self):
            super().__init__()
            self.phi = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 32))
            self.rho = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))

        def forward(self, x, real):
            h = self.phi(x)
            mean = (h * real[..., None]).sum(1) / real.sum(1, keepdim=True)
            top = h.masked_fill(~real[..., None], -1e9).max(1).values
            return self.rho(torch.cat([mean, top], 1))[:, 0]

    test = collate(make(400, 143))
    model = tis_DeepSet()
    return Program(model, nn.MSELoss(), DataLoader(make(1500, 142), 32, shuffle=True, collate_fn=collate),
                   torch.optim.Adam(model.parameters(), lr=3e-3), lambda m: r2(m(**test[0]), test[1]))
