import copy

import torch
import torch.nn.functional as F
from oss_kit import accuracy, digits, gen, loader, moons, r2
from program import Program, fault
from torch import nn


class Velocity(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))

    def forward(self, x, t, c):
        return self.net(torch.stack([x, t, c], 1))


@fault("a velocity of shape (B, 1) against a target of shape (B,)", rules=("output-loss-mismatch",), fails=True,
       steps=300)
def oss_flow_matching_broadcast(is_faulty):
    g = gen(3)
    c = torch.rand(2500, generator=g) * 4 - 2
    x1 = torch.sin(2 * c) * 2 + 0.1 * torch.randn(2500, generator=g)
    x0, t = torch.randn(500, generator=g), torch.rand(500, generator=g)
    model = Velocity()

    def step(model, batch):
        x1, c = batch
        x0, t = torch.randn_like(x1), torch.rand_like(x1)
        v = model((1 - t) * x0 + t * x1, t, c)
        target = x1 - x0
        return F.mse_loss(v, target) if is_faulty else F.mse_loss(v[:, 0], target)

    def score(m):
        a, cc = x1[2000:], c[2000:]
        return r2(m((1 - t) * x0 + t * a, t, cc)[:, 0], a - x0)

    return Program(model, None, loader(x1[:2000], c[:2000]), torch.optim.Adam(model.parameters(), 3e-3), score,
                   step=step)


def ratings(seed, users=60, items=50, k=4):
    g = gen(seed)
    u, v = torch.randn(users, k, generator=g), torch.randn(items, k, generator=g)
    full = (u @ v.T) / k**0.5
    p = torch.randperm(users * items, generator=g)
    rows, cols = p // items, p % items
    return rows, cols, full[rows, cols]


class Factors(nn.Module):
    def __init__(self, users, items, k=8, std=0.1):
        super().__init__()
        self.user = nn.Embedding(users, k)
        self.item = nn.Embedding(items, k)
        self.user_bias = nn.Embedding(users, 1)
        self.item_bias = nn.Embedding(items, 1)
        for e in (self.user, self.item):
            nn.init.normal_(e.weight, 0, std) if std else nn.init.zeros_(e.weight)
        nn.init.zeros_(self.user_bias.weight)
        nn.init.zeros_(self.item_bias.weight)

    def forward(self, u, i):
        return (self.user(u) * self.item(i)).sum(1) + self.user_bias(u)[:, 0] + self.item_bias(i)[:, 0]


@fault("both factors of a matrix factorisation begin at zero", rules=("bad-initialisation", "symmetric-initialisation",
       "no-gradient", "loss-not-decreasing"), layers=("user", "item"), fails=True, steps=400)
def oss_matrix_factors_zero(is_faulty):
    u, i, r = ratings(0)
    model = Factors(60, 50, std=0.0 if is_faulty else 0.1)
    return Program(model, None, loader(u[:2500], i[:2500], r[:2500], batch=128),
                   torch.optim.Adam(model.parameters(), 1e-2), lambda m: r2(m(u[2500:], i[2500:]), r[2500:]),
                   step=lambda m, b: F.mse_loss(m(b[0], b[1]), b[2]))


@fault("BPR with a decay of 0.3 in Adam", rules=("weight-decay-dominates",), fails=True, steps=500)
def oss_bpr_decay(is_faulty):
    u, i, r = ratings(5)
    table = torch.zeros(60, 50)
    table[u, i] = r
    train, test = slice(0, 2400), slice(2400, 3000)
    model = Factors(60, 50, k=6, std=0.1)
    model.user_bias.requires_grad_(False)

    def step(model, batch):
        user, a, b = batch
        first = table[user, a] > table[user, b]
        pos, neg = torch.where(first, a, b), torch.where(first, b, a)
        return -F.logsigmoid(model(user, pos) - model(user, neg)).mean()

    other = torch.randint(0, 50, (3000,), generator=gen(8))
    known = torch.zeros(60, 50, dtype=torch.bool)
    known[u[train], i[train]] = True
    ok = known[u, other] & (other != i)
    us, a, b = u[ok], i[ok], other[ok]
    n = int(ok[:2400].sum())

    def score(m):
        hit = (m(us[n:], a[n:]) > m(us[n:], b[n:])) == (table[us[n:], a[n:]] > table[us[n:], b[n:]])
        return 2 * float(hit.float().mean()) - 1

    return Program(model, None, loader(us[:n], a[:n], b[:n], batch=128),
                   torch.optim.Adam(model.parameters(), 2e-2, weight_decay=0.3 if is_faulty else 1e-5), score,
                   step=step)


class LoRA(nn.Module):
    def __init__(self, base, r=4):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, r, bias=False)
        self.up = nn.Linear(r, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


def pretrained_mlp():
    """An MLP trained to tell digits apart that are upside down."""
    x, y, *_ = digits()
    with torch.random.fork_rng():
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 10))
        opt = torch.optim.Adam(net.parameters(), 3e-3)
        for _ in range(150):
            p = torch.randint(0, len(x), (128,))
            loss = F.cross_entropy(net(x[p]), y[p])
            opt.zero_grad()
            loss.backward()
            opt.step()
    return net


@fault("adapters are put in after the optimizer was made", rules=("no-gradient",), layers=("0", "2", "4"), fails=True,
       steps=300)
def oss_lora_after_optimizer(is_faulty):
    x, y, vx, vy = digits()
    order = torch.randperm(64, generator=gen(4))
    x, vx = x[:, order], vx[:, order]
    net = pretrained_mlp()
    opt = torch.optim.AdamW([p for p in net[4].parameters() if p.dim() == 1], lr=1e-2)
    for k in (0, 2, 4):
        bias = net[k].bias
        net[k] = LoRA(net[k], 8)
        bias.requires_grad_(k == 4)
    if not is_faulty:
        opt = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=1e-2)

    def step(model, batch):
        return F.cross_entropy(model(batch[0]), batch[1])

    return Program(net, None, loader(x, y), opt, lambda m: accuracy(m(vx), vy), step=step)


class Hyper(nn.Module):
    def __init__(self, std):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(2, 32), nn.ReLU())
        self.generate = nn.Linear(32, 8 * 32 + 32 + 32)
        if std:
            nn.init.normal_(self.generate.weight, 0, std)
            nn.init.normal_(self.generate.bias, 0, std)

    def forward(self, x, c):
        w = self.generate(self.embed(c))
        w1, b1, w2 = w[:, :256].view(-1, 32, 8), w[:, 256:288], w[:, 288:]
        h = torch.tanh(torch.einsum("bhd,bd->bh", w1, x) + b1)
        return (h * w2).sum(1)


@fault("a hypernetwork that makes weights a dozen times too large", rules=("bad-initialisation",
       "saturated-activation", "activation-drift"), layers=("generate",), fails=True, steps=400)
def oss_hypernet_init(is_faulty):
    g = gen(6)
    x, c = torch.randn(3000, 8, generator=g), torch.rand(3000, 2, generator=g) * 2 - 1
    y = torch.sin(x[:, 0] * c[:, 0] + x[:, 1]) + x[:, 2] * c[:, 1]
    model = Hyper(4.0 if is_faulty else 0.1)
    return Program(model, None, loader(x[:2500], c[:2500], y[:2500]), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: max(-1.0, r2(m(x[2500:], c[2500:]), y[2500:])),
                   step=lambda m, b: F.mse_loss(m(b[0], b[1]), b[2]))


class CNP(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64))
        self.dec = nn.Sequential(nn.Linear(65, 64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, cx, cy, mask, tx):
        h = self.enc(torch.stack([cx, cy], -1)) * mask[..., None]
        r = h.sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
        out = self.dec(torch.cat([r[:, None].expand(-1, tx.shape[1], -1), tx[..., None]], -1))
        return out[..., 0], 0.1 + F.softplus(out[..., 1])


def sine_tasks(n, seed):
    g = gen(seed)
    amp, slope = torch.rand(n, 1, generator=g) * 2 - 1, torch.randn(n, 1, generator=g)
    xs = torch.rand(n, 20, generator=g) * 4 - 2
    ys = 2 * amp * torch.cos(xs) + slope * xs
    length = torch.randint(4, 10, (n, 1), generator=g)
    real = torch.arange(12)[None] < length
    cx, cy = xs[:, :12] * real, ys[:, :12] * real
    return cx, cy, real, xs[:, 12:], ys[:, 12:]


@fault("the mask of the context is the other way round: padding is averaged", rules=("wrong-mask",), fails=True,
       steps=400)
def oss_cnp_mask(is_faulty):
    tr, te = sine_tasks(2000, 0), sine_tasks(400, 1)
    model = CNP()

    def run(m, b):
        pad = ~b[2]
        keep = pad if is_faulty else ~pad
        return m(b[0], b[1], keep.float(), b[3])

    def step(model, batch):
        mu, s = run(model, batch)
        return -torch.distributions.Normal(mu, s).log_prob(batch[4]).mean()

    return Program(model, None, loader(*tr, batch=64), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: r2(run(m, te)[0].flatten(), te[4].flatten()), step=step)


@fault("a tanh at the end of a cloned policy whose actions go from -20 to 20", rules=("output-loss-mismatch",
       "unscaled-target"), fails=True, steps=400)
def oss_cloning_torque(is_faulty):
    g = gen(21)
    obs = torch.randn(3000, 7, generator=g)
    gain = torch.randn(7, 2, generator=g)
    act = 20 * torch.tanh(obs @ gain / 2)

    class Policy(nn.Module):
        def __init__(self, limit):
            super().__init__()
            self.limit = limit
            self.net = nn.Sequential(nn.Linear(7, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))

        def forward(self, o):
            return self.limit * torch.tanh(self.net(o))

    model = Policy(1.0 if is_faulty else 20.0)
    return Program(model, nn.MSELoss(), loader(obs[:2500], act[:2500]),
                   torch.optim.Adam(model.parameters(), 1e-3), lambda m: r2(m(obs[2500:]), act[2500:]))


class Teacher(nn.Module):
    def __init__(self):
        super().__init__()
        self.student = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)

    def forward(self, x):
        return self.student(x)


@fault("labelled batches of a mean teacher come sorted by class", rules=("sorted-batches",), fails=True, steps=300)
def oss_mean_teacher_sorted(is_faulty):
    x, y, vx, vy = digits()
    order = y[:640].argsort(stable=True) if is_faulty else torch.arange(640)
    data = loader(x[:640][order], y[:640][order], x[640:1280], batch=32, shuffle=not is_faulty)
    model = Teacher()

    def step(model, batch):
        a, t, u = batch
        with torch.no_grad():
            for p, q in zip(model.teacher.parameters(), model.student.parameters()):
                p.lerp_(q, 0.05)
            soft = model.teacher(u).softmax(1)
        sup = F.cross_entropy(model(a), t)
        return sup + 0.3 * F.mse_loss(model(u + 0.2 * torch.randn_like(u)).softmax(1), soft)

    return Program(model, None, data, torch.optim.SGD(model.student.parameters(), 0.3, momentum=0.9),
                   lambda m: accuracy(m(vx), vy), step=step)


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k):
        ctx.k = k
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -ctx.k * g, None


class DANN(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 32),
                                      nn.BatchNorm1d(32), nn.ReLU())
        self.label = nn.Linear(32, 10)
        self.domain = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, x):
        return self.label(self.features(x))


@fault("source and target, which differ by far, go through the same BatchNorms one after the other",
       rules=("batchnorm-mode-gap", "shared-weight"), layers=("features",), fails=True, steps=300)
def oss_two_domains_batchnorm(is_faulty):
    x, y, vx, vy = digits()
    shift = 3 * torch.randn(64, generator=gen(1))
    far, vfar = 0.3 * x + shift, 0.3 * vx + shift
    model = DANN()
    del model.domain
    data = loader(x, y, far[torch.randperm(1400, generator=gen(2))], far, batch=64)

    def step(model, batch):
        a, t, _, b = batch
        if is_faulty:
            f, h = model.features(a), model.features(b)
        else:
            f, h = model.features(torch.cat([a, b])).chunk(2)
        return (F.cross_entropy(model.label(f), t) + F.cross_entropy(model.label(h), t)) / 2

    return Program(model, None, data, torch.optim.Adam([*model.features.parameters(), *model.label.parameters()], 3e-3),
                   lambda m: (accuracy(m(vx), vy) + accuracy(m(vfar), vy)) / 2, step=step)


@fault("an adversarial domain loss times a hundred", rules=("term-dominates",), fails=False, steps=300)
def oss_dann_lambda(is_faulty):
    x, y, vx, vy = digits()
    turn = torch.randn(64, generator=gen(5)) * 0.4
    target = x.flip(0) + turn
    model = DANN()
    lam = 100.0 if is_faulty else 0.1

    def step(model, batch):
        a, t, b = batch
        h = model.features(torch.cat([a, b]))
        d = torch.cat([torch.zeros(len(a)), torch.ones(len(b))]).long()
        return F.cross_entropy(model.label(h[: len(a)]), t) + F.cross_entropy(model.domain(Reverse.apply(h, lam)), d)

    return Program(model, None, loader(x, y, target), torch.optim.SGD(model.parameters(), 0.05, momentum=0.9),
                   lambda m: accuracy(m(vx + turn), vy), step=step)


@fault("an energy that a ReLU keeps above zero, so that no point is likelier than not",
       rules=("output-loss-mismatch", "dying-neurons", "loss-not-decreasing"),
       layers=("4", "5"), fails=True, steps=400)
def oss_nce_relu_energy(is_faulty):
    x, _ = moons(3000, 0)
    v, _ = moons(500, 1)
    noise = torch.randn(500, 2, generator=gen(0)) * 1.3
    last = nn.ReLU() if is_faulty else nn.Identity()
    energy = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1), last)

    def step(model, batch):
        (pos,) = batch
        neg = 1.3 * torch.randn_like(pos)
        logits = -model(torch.cat([pos, neg]))[:, 0]
        t = torch.cat([torch.ones(len(pos)), torch.zeros(len(neg))])
        return F.binary_cross_entropy_with_logits(logits, t)

    def score(m):
        return float(((-m(v) > 0).float().mean() + (-m(noise) <= 0).float().mean()) - 0.5) / 1.0 - 0.3

    return Program(energy, None, loader(x), torch.optim.Adam(energy.parameters(), 3e-3), score, step=step)


def graph(seed, n=160, classes=4, inside=0.25, across=0.04, noise=2.0):
    g = gen(seed)
    y = torch.randint(0, classes, (n,), generator=g)
    p = torch.where(y[:, None] == y[None], inside, across)
    a = (torch.rand(n, n, generator=g) < p).float().triu(1)
    a = a + a.T + torch.eye(n)
    x = F.one_hot(y, classes).float() @ torch.randn(classes, 12, generator=g) + noise * torch.randn(n, 12, generator=g)
    return a, x, y


class GCN(nn.Module):
    def __init__(self, adj, depth, residual=False):
        super().__init__()
        self.register_buffer("adj", adj)
        self.inp = nn.Linear(12, 32)
        self.convs = nn.ModuleList(nn.Linear(32, 32) for _ in range(depth))
        self.out = nn.Linear(32, 4)
        self.residual = residual

    def forward(self, x):
        h = F.relu(self.inp(x))
        for c in self.convs:
            new = F.relu(c(self.adj @ h))
            h = h + new if self.residual else new
        return self.out(h)


class Whole:
    """The whole graph, again and again."""

    def __init__(self, *items):
        self.items = items

    def __len__(self):
        return 1

    def __iter__(self):
        yield self.items


def node_program(model, x, y, train, opt):
    def step(model, batch):
        x, y, m = batch
        return F.cross_entropy(model(x)[m], y[m])

    return Program(model, None, Whole(x, y, train), opt, lambda m: accuracy(m(x)[~train], y[~train]), step=step)


@fault("neighbours are summed instead of averaged in a deep graph network", rules=("activation-drift",
       "exploding-gradient", "non-finite", "bad-initialisation"), fails=True, steps=100)
def oss_gcn_sum(is_faulty):
    a, x, y = graph(0)
    adj = a if is_faulty else a / a.sum(1, keepdim=True)
    model = GCN(adj, 5, residual=True)
    train = torch.rand(160, generator=gen(2)) < 0.5
    return node_program(model, x, y, train, torch.optim.SGD(model.parameters(), 0.05, momentum=0.9))


@fault("twenty rounds of averaging over neighbours without a skip", rules=("rank-collapse", "vanishing-gradient"),
       fails=True, steps=200)
def oss_gcn_oversmoothed(is_faulty):
    a, x, y = graph(4)
    model = GCN(a / a.sum(1, keepdim=True), 20, residual=not is_faulty)
    train = torch.rand(160, generator=gen(3)) < 0.5
    return node_program(model, x, y, train, torch.optim.Adam(model.parameters(), 5e-3))


@fault("a critic on raw sensor readings in the hundreds with tanh layers", rules=("saturated-activation",
       "unscaled-input"), fails=False, steps=400)
def oss_critic_raw_sensors(is_faulty):
    g = gen(31)
    s, a = torch.randn(3000, 5, generator=g), torch.rand(3000, 2, generator=g) * 2 - 1
    q = torch.sin(s[:, 0]) * a[:, 0] + 0.5 * s[:, 1] * a[:, 1] + torch.cos(s[:, 2]) + 0.3 * s[:, 3]
    obs = 300 * s + 500 if is_faulty else s
    net = nn.ModuleDict({k: nn.Sequential(nn.Linear(7, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
                         for k in ("q1", "q2")})

    def both(m, o, a):
        x = torch.cat([o, a], 1)
        return m["q1"](x)[:, 0], m["q2"](x)[:, 0]

    def step(model, batch):
        o, a, y = batch
        return sum(F.mse_loss(p, y) for p in both(model, o, a))

    return Program(net, None, loader(obs[:2500], a[:2500], q[:2500]), torch.optim.Adam(net.parameters(), 3e-3),
                   lambda m: r2(torch.minimum(*both(m, obs[2500:], a[2500:])), q[2500:]), step=step)


class Causal(nn.Module):
    def __init__(self, v=12, d=32, length=16, causal=True):
        super().__init__()
        self.emb, self.pos = nn.Embedding(v, d), nn.Parameter(0.1 * torch.randn(length, d))
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.mlp = nn.Sequential(nn.Linear(d, 64), nn.GELU(), nn.Linear(64, d))
        self.head, self.causal = nn.Linear(d, v), causal

    def forward(self, s):
        h = self.emb(s) + self.pos[: s.shape[1]]
        q, k, v = self.qkv(self.n1(h)).chunk(3, -1)
        h = h + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=self.causal))
        return self.head(h + self.mlp(self.n2(h)))


@fault("a world model of tokens that attends to the next observation", rules=("future-seen",), fails=True, steps=400)
def oss_world_model_peeks(is_faulty):
    g = gen(13)
    table = torch.randint(0, 12, (12, 12), generator=g)

    def roll(n, seed):
        g = gen(seed)
        s = [torch.randint(0, 12, (n,), generator=g) for _ in range(2)]
        for _ in range(15):
            nxt = table[s[-1], s[-2] % 3]
            flip = torch.rand(n, generator=g) < 0.1
            s.append(torch.where(flip, torch.randint(0, 12, (n,), generator=g), nxt))
        return torch.stack(s, 1)

    tr, te = roll(2000, 1), roll(300, 2)
    model = Causal(causal=not is_faulty)

    def step(model, batch):
        (s,) = batch
        return F.cross_entropy(model(s[:, :-1]).flatten(0, 1), s[:, 1:].flatten())

    def score(m):
        return sum(accuracy(m(te[:, :k])[:, -1], te[:, k]) for k in (4, 8, 12, 15)) / 4

    return Program(model, None, loader(tr, batch=64), torch.optim.AdamW(model.parameters(), 4e-3), score, step=step)


class GAN(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(4, 32), nn.LeakyReLU(0.2), nn.Linear(32, 2))
        self.critic = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))


@fault("the generator's loss is taken on detached fakes", rules=("no-gradient",), layers=("generator",), fails=True,
       steps=500)
def oss_gan_detached(is_faulty):
    g = gen(17)
    mix = torch.tensor([[1.0, 0.5], [0.0, 0.7]])
    real = torch.randn(3000, 2, generator=g) @ mix + torch.tensor([1.5, -1.0])
    z = torch.randn(1000, 4, generator=g)
    model = GAN()

    def step(model, batch):
        (x,) = batch
        fake = model.generator(torch.randn(len(x), 4))
        d_real, d_fake = model.critic(x), model.critic(fake.detach())
        d_loss = 0.5 * ((d_real - 1).pow(2).mean() + d_fake.pow(2).mean())
        for p in model.critic.parameters():
            p.requires_grad_(False)
        g_loss = 0.5 * (model.critic(fake.detach() if is_faulty else fake) - 1).pow(2).mean()
        for p in model.critic.parameters():
            p.requires_grad_(True)
        return d_loss + g_loss

    def score(m):
        f = m.generator(z)
        ref = real[2000:]
        gap = (f.sort(0).values - ref.sort(0).values).abs().mean()
        return float(1 - gap / 1.3)

    opt = torch.optim.Adam([{"params": model.generator.parameters(), "lr": 3e-3},
                            {"params": model.critic.parameters(), "lr": 6e-3}], betas=(0.5, 0.9))
    return Program(model, None, loader(real[:2000]), opt, score, step=step)


@fault("a student whose weights are bfloat16 under small steps", rules=("lost-updates", "rounding-error"),
       fails=True, steps=600)
def oss_student_bfloat16(is_faulty):
    x, y, vx, vy = digits()
    teacher = pretrained_mlp().requires_grad_(False)
    student = nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 96), nn.GELU(), nn.Linear(96, 10))
    kind = torch.bfloat16 if is_faulty else torch.float32
    student = student.to(kind)

    def step(model, batch):
        (a,) = batch
        with torch.no_grad():
            soft = (teacher(a) / 2).log_softmax(1)
        return 4 * F.kl_div((model(a.to(kind)).float() / 2).log_softmax(1), soft, reduction="batchmean", log_target=True)

    return Program(student, None, loader(x), torch.optim.Adam(student.parameters(), 5e-5),
                   lambda m: accuracy(m(vx.to(kind)).float(), vy), step=step)


class SAE(nn.Module):
    def __init__(self, bias):
        super().__init__()
        self.encoder = nn.Linear(64, 128)
        self.decoder = nn.Linear(128, 64)
        nn.init.constant_(self.encoder.bias, bias)

    def forward(self, x):
        h = F.relu(self.encoder(x))
        return self.decoder(h), h


@fault("a sparse autoencoder whose encoder begins below every threshold", rules=("dying-neurons",
       "bad-initialisation", "no-gradient"), layers=("encoder",), fails=True, steps=300)
def oss_sae_bias(is_faulty):
    x, _, vx, _ = digits()
    model = SAE(-8.0 if is_faulty else 0.0)

    def step(model, batch):
        out, h = model(batch[0])
        return F.mse_loss(out, batch[0]) + 1e-3 * h.abs().mean()

    return Program(model, None, loader(x), torch.optim.Adam(model.parameters(), 2e-3), lambda m: max(0.0, r2(m(vx)[0], vx)),
                   step=step)


@fault("an autoencoder's error summed over batch and pixels at a rate meant for a mean", rules=("summed-loss",
       "learning-rate-too-high", "diverging", "non-finite"), fails=True, steps=300)
def oss_autoencoder_sum(is_faulty):
    x, _, vx, _ = digits()
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16), nn.Linear(16, 64), nn.ReLU(),
                        nn.Linear(64, 64))

    def step(model, batch):
        (a,) = batch
        noisy = a + 0.1 * torch.randn_like(a)
        err = (model(noisy) - a) ** 2
        return err.sum() if is_faulty else err.sum(1).mean()

    return Program(net, None, loader(x), torch.optim.SGD(net.parameters(), 0.01, momentum=0.9),
                   lambda m: max(0.0, r2(m(vx), vx)), step=step)


@fault("a prototypical network under Adam with an epsilon of 10", rules=("optimizer-setting", "learning-rate-too-low"),
       fails=True, steps=300)
def oss_protonet_epsilon(is_faulty):
    t = torch.arange(16.0) / 16

    def episodes(n, seed):
        g = gen(seed)
        f = torch.stack([torch.randperm(7, generator=g)[:5] + 1 for _ in range(n)])[..., None]
        phase = 6.28 * torch.rand(n, 5, 6, 1, generator=g)
        return torch.sin(6.28 * f[:, :, None] * t + phase) + 0.2 * torch.randn(n, 5, 6, 16, generator=g)

    tr, te = episodes(400, 0), episodes(60, 1)
    net = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 32, bias=False))

    def logits(m, e):
        z = m(e)
        proto, query = z[:, :, :3].mean(2), z[:, :, 3:].flatten(1, 2)
        return -torch.cdist(query, proto).pow(2), torch.arange(5).repeat_interleave(3).expand(len(e), -1)

    def step(model, batch):
        out, y = logits(model, batch[0])
        return F.cross_entropy(out.flatten(0, 1), y.flatten())

    return Program(net, None, loader(tr, batch=4), torch.optim.Adam(net.parameters(), 3e-3,
                   eps=10.0 if is_faulty else 1e-8), lambda m: accuracy(*logits(m, te)), step=step)


@fault("a decay meant for epochs is taken at every step", rules=("learning-rate-too-low",), fails=False, steps=400)
def oss_maml_decay(is_faulty):
    net = nn.Sequential(nn.Linear(1, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 1))

    def tasks(n, seed):
        g = gen(seed)
        a = 1 + 2 * torch.rand(n, 1, 1, generator=g)
        x = torch.rand(n, 20, 1, generator=g) * 6 - 3
        return x, a * torch.sin(x + 0.3) + torch.randn(n, 1, 1, generator=g)

    def adapted(m, x, y):
        params = dict(m.named_parameters())
        def one(xs, ys, xq):
            f = lambda p, v: torch.func.functional_call(m, p, (v,))
            grads = torch.func.grad(lambda p: F.mse_loss(f(p, xs), ys))(params)
            return f({k: p - 0.05 * grads[k] for k, p in params.items()}, xq)
        return torch.func.vmap(one)(x[:, :10], y[:, :10], x[:, 10:])

    tr, te = tasks(800, 0), tasks(100, 1)

    def step(model, batch):
        x, y = batch
        return F.mse_loss(adapted(model, x, y), y[:, 10:])

    def score(m):
        with torch.enable_grad():
            return r2(adapted(m, *te).detach().flatten(), te[1][:, 10:].flatten())

    opt = torch.optim.Adam(net.parameters(), 3e-3)
    sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.7 if is_faulty else 0.999)
    return Program(net, None, loader(*tr, batch=8), opt, score, scheduler=sched, step=step)


@fault("a Q-network whose layers have nothing between them", rules=("no-nonlinearity",), fails=True, steps=400)
def oss_iql_linear(is_faulty):
    g = gen(41)
    s = torch.randn(3000, 4, generator=g)
    a = torch.randint(0, 3, (3000,), generator=g)
    r = torch.stack([s[:, 0] * s[:, 1], (s[:, 2] ** 2 - 1), s[:, 1] * s[:, 3]], 1)
    act = nn.Identity if is_faulty else nn.SiLU

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.q = nn.Sequential(nn.Linear(4, 64), act(), nn.Linear(64, 64), act(), nn.Linear(64, 3))
            self.v = nn.Sequential(nn.Linear(4, 64), act(), nn.Linear(64, 1))

    def step(model, batch):
        s, a, r = batch
        q = model.q(s).gather(1, a[:, None])[:, 0]
        d = q.detach() - model.v(s)[:, 0]
        return F.mse_loss(q, r) + (torch.where(d > 0, 0.8, 0.2) * d**2).mean()

    model = Net()
    return Program(model, None, loader(s[:2500], a[:2500], r.gather(1, a[:, None])[:2500, 0]),
                   torch.optim.Adam(model.parameters(), 3e-3), lambda m: r2(m.q(s[2500:]).flatten(), r[2500:].flatten()),
                   step=step)


@fault("a discriminative tower drops 97 of 100 features", rules=("dropout-too-strong",), layers=("deep.2", "deep.3"), fails=True, steps=300)
def oss_tower_dropout(is_faulty):
    u, i, r = ratings(9)
    class NCF(nn.Module):
        def __init__(self):
            super().__init__()
            self.user, self.item = nn.Embedding(60, 16), nn.Embedding(50, 16)
            self.deep = nn.Sequential(nn.Linear(48, 64), nn.ReLU(), nn.Dropout(0.97 if is_faulty else 0.0),
                                      nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))

        def forward(self, u, i):
            a, b = self.user(u), self.item(i)
            return self.deep(torch.cat([a, b, a * b], 1))[:, 0]

    model = NCF()
    up = (r > 0).float()
    return Program(model, None, loader(u[:2500], i[:2500], up[:2500]), torch.optim.Adam(model.parameters(), 1e-2),
                   lambda m: float(((m(u[2500:], i[2500:]) > 0).float() == up[2500:]).float().mean()),
                   step=lambda m, b: F.binary_cross_entropy_with_logits(m(b[0], b[1]), b[2]))
