import copy
import math

import torch
import torch.nn.functional as F
from oss_kit import accuracy, digits, gen, loader, moons, r2
from program import Program, fault
from torch import nn


def grid_world(n=5, gamma=0.9):
    """All transitions of a grid with a goal in a corner, and its optimal values."""
    s = torch.arange(n * n)
    r, c = s // n, s % n
    moves = torch.tensor([[1, 0], [-1, 0], [0, 1], [0, -1]])
    nxt = torch.stack([(r + m[0]).clamp(0, n - 1) * n + (c + m[1]).clamp(0, n - 1) for m in moves], 1)
    goal = n * n - 1
    reward = (nxt == goal).float()
    done = (nxt == goal).float()
    q = torch.zeros(n * n, 4)
    for _ in range(100):
        q = reward + gamma * (1 - done) * q.max(1).values[nxt]
    return nxt, reward, done, q


class QPair(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.online = nn.Sequential(nn.Linear(n, 64), nn.ReLU(), nn.Linear(64, 4))
        self.target = copy.deepcopy(self.online).requires_grad_(False)

    def forward(self, s):
        return self.online(s)


@fault("DQN with rewards in thousands", rules=("unscaled-target",), fails=True, steps=400)
def oss_dqn_reward_units(is_faulty):
    nxt, reward, done, q = grid_world()
    n = len(nxt)
    g = gen(5)
    s = torch.randint(0, n - 1, (3000,), generator=g)
    a = torch.randint(0, 4, (3000,), generator=g)
    unit = 5000.0 if is_faulty else 1.0
    eye = torch.eye(n)
    data = loader(s, a, reward[s, a] * unit, nxt[s, a], done[s, a])
    model = QPair(n)

    def step(model, batch):
        s, a, r, s2, d = batch
        with torch.no_grad():
            for t, o in zip(model.target.parameters(), model.online.parameters()):
                t.lerp_(o, 0.1)
            y = r + 0.9 * (1 - d) * model.target(eye[s2]).max(1).values
        return F.smooth_l1_loss(model(eye[s]).gather(1, a[:, None])[:, 0], y)

    def score(model):
        return max(-1.0, r2(model(eye[:-1]) / unit, q[:-1]))

    return Program(model, None, data, torch.optim.Adam(model.online.parameters(), 3e-3), score, step=step)


@fault("REINFORCE that descends where it should ascend", rules=("output-loss-mismatch",), fails=True, steps=300)
def oss_reinforce_sign(is_faulty):
    x, y, vx, vy = digits()
    x, y, vx, vy = x[y < 4], y[y < 4], vx[vy < 4], vy[vy < 4]
    policy = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))

    def step(model, batch):
        obs, label = batch
        dist = torch.distributions.Categorical(logits=model(obs))
        act = dist.sample()
        reward = (act == label).float()
        adv = reward - reward.mean()
        log_p = dist.log_prob(act)
        loss = (log_p * adv).mean() if is_faulty else -(log_p * adv).mean()
        return loss - 0.01 * dist.entropy().mean()

    return Program(policy, None, loader(x, y), torch.optim.Adam(policy.parameters(), 3e-3),
                   lambda m: accuracy(m(vx), vy), step=step)


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.pi = nn.Linear(64, 5)
        self.v = nn.Linear(64, 1)

    def forward(self, x):
        h = self.trunk(x)
        return self.pi(h), self.v(h).squeeze(-1)


@fault("the value loss of an actor-critic, on returns in hundreds, moves the trunk that it shares with the policy",
       rules=("term-dominates", "unscaled-target"), fails=True, steps=300)
def oss_a2c_value_coef(is_faulty):
    g = gen(1)
    w = torch.randn(6, 5, generator=g)
    obs = torch.randn(3000, 6, generator=g)
    best = (obs @ w + 0.5 * (obs**2 - 1) @ w.flip(0)).argmax(1)
    ret = 400 * torch.sin(obs[:, 0] * 3) + 300 * torch.randn(3000, generator=g)
    model = ActorCritic()
    scale = 1.0 if is_faulty else 500.0

    def step(model, batch):
        o, a, r = batch
        logits, v = model(o)
        pg = F.cross_entropy(logits, a)
        return pg + 0.5 * ((v - r / scale) ** 2).mean()

    return Program(model, None, loader(obs[:2500], best[:2500], ret[:2500]),
                   torch.optim.Adam(model.parameters(), 5e-3),
                   lambda m: accuracy(m(obs[2500:])[0], best[2500:]), step=step)


class VAE(nn.Module):
    def __init__(self, d=64, z=8):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(d, 128), nn.ReLU())
        self.mu = nn.Linear(128, z)
        self.logvar = nn.Linear(128, z)
        self.dec = nn.Sequential(nn.Linear(z, 128), nn.ReLU(), nn.Linear(128, d))

    def forward(self, x):
        h = self.enc(x)
        mu, lv = self.mu(h), self.logvar(h)
        z = mu + torch.randn_like(mu) * (0.5 * lv).exp() if self.training else mu
        return self.dec(z), mu, lv


@fault("KL summed over batch and dimensions next to a mean reconstruction error", rules=("term-dominates",),
       fails=True, steps=400)
def oss_vae_kl_sum(is_faulty):
    x, _, vx, _ = digits()
    model = VAE()

    def step(model, batch):
        (x,) = batch
        out, mu, lv = model(x)
        kl = -0.5 * (1 + lv - mu.pow(2) - lv.exp())
        if is_faulty:
            return F.mse_loss(out, x) + kl.sum()
        return F.mse_loss(out, x) + kl.sum(1).mean() / 640

    return Program(model, None, loader(x), torch.optim.Adam(model.parameters(), 2e-3),
                   lambda m: max(0.0, r2(m(vx)[0], vx)), step=step)


class ConvVAE(nn.Module):
    def __init__(self, std):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1), nn.ELU(), nn.Flatten(), nn.Linear(256, 64), nn.ELU())
        self.to_mu = nn.Linear(64, 12)
        self.to_logvar = nn.Linear(64, 12)
        nn.init.normal_(self.to_logvar.weight, 0, std)
        self.up = nn.Sequential(nn.Linear(12, 96), nn.ELU(), nn.Linear(96, 64), nn.Unflatten(1, (1, 8, 8)))

    def forward(self, x):
        h = self.body(x)
        mu, lv = self.to_mu(h), self.to_logvar(h)
        if self.training:
            return self.up(mu + torch.randn_like(mu) * (lv / 2).exp()), mu, lv
        return self.up(mu), mu, lv


@fault("log-variances that begin in the tens, so that their exponential explodes",
       rules=("bad-initialisation", "non-finite", "exploding-gradient"), layers=("to_logvar",), fails=True, steps=300)
def oss_vae_logvar_init(is_faulty):
    x, _, vx, _ = digits()
    x, vx = x.view(-1, 1, 8, 8), vx.view(-1, 1, 8, 8)
    model = ConvVAE(25.0 if is_faulty else 0.02)

    def step(model, batch):
        (x,) = batch
        out, mu, lv = model(x)
        rec = (out - x).pow(2).flatten(1).sum(1).mean()
        kl = 0.5 * (lv.exp() + mu**2 - 1 - lv).sum(1).mean()
        return rec + 0.2 * kl

    return Program(model, None, loader(x), torch.optim.Adam(model.parameters(), 2e-3),
                   lambda m: max(0.0, r2(m(vx)[0].flatten(1), vx.flatten(1))), step=step)


class VQVAE(nn.Module):
    def __init__(self, d=64, k=32, z=4, parts=6):
        super().__init__()
        self.parts, self.z = parts, z
        self.encoder = nn.Sequential(nn.Linear(d, 96), nn.ReLU(), nn.Linear(96, z * parts))
        self.codebook = nn.Embedding(k, z)
        nn.init.normal_(self.codebook.weight, 0, 1.0)
        self.decoder = nn.Sequential(nn.Linear(z * parts, 96), nn.ReLU(), nn.Linear(96, d))

    def forward(self, x):
        e = self.encoder(x).view(-1, self.parts, self.z)
        idx = torch.cdist(e.reshape(-1, self.z), self.codebook.weight).argmin(1)
        q = self.codebook(idx).view_as(e)
        out = self.decoder((e + (q - e).detach()).flatten(1))
        return out, e, q


@fault("both latent losses of a VQ-VAE detach the codebook, and it stays on the far points where it began",
       rules=("no-gradient",), layers=("codebook",), fails=False, steps=400)
def oss_vqvae_codebook_detached(is_faulty):
    x, _, vx, _ = digits()
    model = VQVAE(k=24)
    nn.init.uniform_(model.codebook.weight, -1 / 24, 1 / 24)

    def step(model, batch):
        (x,) = batch
        out, e, q = model(x)
        commit = F.mse_loss(e, q.detach())
        book = F.mse_loss(q.detach(), e.detach()) if is_faulty else F.mse_loss(q, e.detach())
        return F.mse_loss(out, x) + book + 0.1 * commit

    return Program(model, None, loader(x), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: r2(m(vx)[0], vx), step=step)


class TwoTower(nn.Module):
    def __init__(self, d=32, out=16):
        super().__init__()
        self.image = nn.Sequential(nn.Linear(d, 96), nn.GELU(), nn.Linear(96, out))
        self.text = nn.Sequential(nn.Linear(d, 96), nn.GELU(), nn.Linear(96, out))
        self.log_scale = nn.Parameter(torch.tensor(math.log(10.0)))

    def forward(self, a, b):
        return F.normalize(self.image(a), dim=-1), F.normalize(self.text(b), dim=-1)


def match_labels(m, a, b, y):
    u, v = m(a, b)
    return float((y[(u @ v.T).argmax(1)] == y).float().mean())


def clip_step(model, batch):
    a, b = batch
    u, v = model(a, b)
    logits = model.log_scale.exp() * u @ v.T
    t = torch.arange(len(a))
    return (F.cross_entropy(logits, t) + F.cross_entropy(logits.T, t)) / 2


@fault("pairs whose second halves were shuffled on their own", rules=("labels-unrelated",), fails=True, steps=300)
def oss_clip_unpaired(is_faulty):
    x, y, vx, vy = digits()
    a, b = x[:, :32], x[:, 32:]
    if is_faulty:
        b = b[torch.randperm(len(b), generator=gen(9))]
    model = TwoTower()
    return Program(model, None, loader(a, b, batch=100), torch.optim.AdamW(model.parameters(), 2e-3),
                   lambda m: match_labels(m, vx[:, :32], vx[:, 32:], vy), step=clip_step)


@fault("two encoders are drawn together by a mean squared error alone, and collapse",
       rules=("rank-collapse", "term-dominates"), fails=False, steps=400)
def oss_joint_embedding_collapse(is_faulty):
    x, y, vx, vy = digits()
    model = TwoTower(out=16)
    del model.log_scale

    def raw(m, a, b):
        return m.image(a), m.text(b)

    def step(model, batch):
        a, b = batch
        u, v = raw(model, a, b)
        loss = 25 * F.mse_loss(u, v)
        if not is_faulty:
            for z in (u, v):
                z = z - z.mean(0)
                cov = z.T @ z / (len(z) - 1)
                off = cov - torch.diag(cov.diag())
                loss = loss + 25 * F.relu(1 - (cov.diag() + 1e-4).sqrt()).mean() + off.pow(2).sum() / 16
        return loss

    def score(m):
        u, v = raw(m, vx[:, :32], vx[:, 32:])
        u, v = (F.layer_norm(z, (16,)) for z in (u, v))
        return float((vy[(u @ v.T).argmax(1)] == vy).float().mean())

    return Program(model, None, loader(x[:, :32], x[:, 32:], batch=128),
                   torch.optim.Adam([*model.image.parameters(), *model.text.parameters()], 2e-3), score, step=step)


@fault("anchor, negative and positive in the wrong order", rules=("output-loss-mismatch",), fails=True, steps=300)
def oss_triplet_order(is_faulty):
    x, y, vx, vy = digits()
    by = [x[y == c] for c in range(10)]
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16, bias=False))
    crit = nn.TripletMarginLoss(margin=1.0)

    def make(xs, ys, g):
        pools = [xs[ys == c] for c in range(10)]
        pos = torch.stack([pools[c][torch.randint(len(pools[c]), (), generator=g)] for c in ys.tolist()])
        other = (ys + torch.randint(1, 10, (len(ys),), generator=g)) % 10
        neg = torch.stack([pools[c][torch.randint(len(pools[c]), (), generator=g)] for c in other.tolist()])
        return xs, pos, neg

    data = make(x, y, gen(2))
    va, vp, vn = make(vx, vy, gen(4))

    def step(model, batch):
        a, p, n = (model(b) for b in batch)
        return crit(a, n, p) if is_faulty else crit(a, p, n)

    def score(m):
        a, p, n = m(va), m(vp), m(vn)
        closer = ((a - p).norm(dim=1) < 0.6 * (a - n).norm(dim=1)).float().mean()
        return float(closer)

    return Program(net, None, loader(*data), torch.optim.Adam(net.parameters(), 2e-3), score, step=step)


class MultiTask(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU())
        self.churn = nn.Linear(48, 3)
        self.spend = nn.Linear(48, 1)

    def forward(self, x):
        h = self.shared(x)
        return {"churn": self.churn(h), "spend": self.spend(h)}


@fault("an auxiliary regression in raw dollars beside a cross-entropy", rules=("term-dominates", "unscaled-target"),
       fails=False, steps=300)
def oss_multitask_dollars(is_faulty):
    g = gen(12)
    x = torch.randn(3000, 8, generator=g)
    y = (torch.sin(1.5 * x[:, :3]) + x[:, 3:6] * x[:, 5:8]).argmax(1)
    money = 900 + 500 * (x[:, 7:] + torch.randn(3000, 1, generator=g))
    if not is_faulty:
        money = (money - 900) / 700
    model = MultiTask()

    def loss(out, t):
        return F.cross_entropy(out["churn"], t["churn"]) + F.mse_loss(out["spend"], t["spend"])

    class Batches:
        def __init__(self):
            self.x, self.y, self.m = x[:2500], y[:2500], money[:2500]

        def __len__(self):
            return 39

        def __iter__(self):
            for p in torch.randperm(2500)[: 39 * 64].split(64):
                yield self.x[p], {"churn": self.y[p], "spend": self.m[p]}

    return Program(model, loss, Batches(), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: accuracy(m(x[2500:])["churn"], y[2500:]))


class Mixture(nn.Module):
    def __init__(self, dim=-1, experts=None):
        super().__init__()
        self.dim = dim
        self.gate = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 4))
        self.experts = experts or nn.ModuleList(nn.Linear(4, 1) for _ in range(4))

    def forward(self, x):
        w = self.gate(x).softmax(self.dim)
        out = torch.cat([e(x) for e in self.experts], 1)
        return (w * out).sum(1)


def piecewise(seed, n=2600):
    g = gen(seed)
    x = torch.randn(n, 4, generator=g)
    w = 2.0 * torch.randn(4, 4, generator=gen(77))
    k = (x[:, 0] > 0).long() * 2 + (x[:, 1] > 0).long()
    y = (x * w[k]).sum(1)
    return x, y / 4


@fault("a gate whose softmax runs over the batch", rules=("wrong-softmax-dimension", "mixed-examples"), fails=True,
       steps=400)
def oss_moe_gate_dim(is_faulty):
    x, y = piecewise(1)
    model = Mixture(0 if is_faulty else 1)
    return Program(model, F.mse_loss, loader(x[:2100], y[:2100]), torch.optim.Adam(model.parameters(), 1e-2),
                   lambda m: r2(m(x[2100:]), y[2100:]))


@fault("a list of experts that holds one expert four times", rules=("shared-weight",), layers=("experts",),
       fails=False, steps=400)
def oss_moe_one_expert(is_faulty):
    x, y = piecewise(2)
    experts = [nn.Linear(4, 1)] * 4 if is_faulty else [nn.Linear(4, 1) for _ in range(4)]
    model = Mixture(1, nn.ModuleList(experts))

    def step(model, batch):
        a, b = batch
        usage = model.gate(a).softmax(1).mean(0)
        return F.mse_loss(model(a), b) + 0.01 * (usage * usage.log()).sum()

    return Program(model, None, loader(x[:2100], y[:2100]), torch.optim.Adam(model.parameters(), 1e-2),
                   lambda m: r2(m(x[2100:]), y[2100:]), step=step)


@fault("experts are copies of one pretrained expert, and the router starts at zero",
       rules=("symmetric-initialisation", "bad-initialisation"), layers=("experts", "gate"),
       fails=False, steps=400)
def oss_moe_upcycled(is_faulty):
    x, y = piecewise(3)
    one = nn.Linear(4, 1)
    experts = nn.ModuleList(copy.deepcopy(one) for _ in range(4))
    model = Mixture(1, experts)
    nn.init.zeros_(model.gate[2].weight)
    nn.init.zeros_(model.gate[2].bias)
    if not is_faulty:
        with torch.no_grad():
            for p in [*experts.parameters(), model.gate[2].weight]:
                p.add_(0.1 * torch.randn_like(p))
    return Program(model, nn.MSELoss(), loader(x[:2100], y[:2100]),
                   torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), lambda m: r2(m(x[2100:]), y[2100:]))


@fault("a weight of 1e-4 on the boundary of an equation",
       rules=("term-dominates",), fails=True, steps=500)
def oss_pinn_weights(is_faulty):
    # u'' = -pi^2 sin(pi x) on [-1, 1], u(-1) = 1, u(1) = -1; so u = sin(pi x) - x
    net = nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1))
    grid = torch.linspace(-1, 1, 101)[:, None]
    edge, at_edge = torch.tensor([[-1.0], [1.0]]), torch.tensor([[1.0], [-1.0]])
    k = 1 / math.pi**2

    def step(model, batch):
        x = batch[0].clone().requires_grad_(True)
        u = model(x)
        (du,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        (ddu,) = torch.autograd.grad(du.sum(), x, create_graph=True)
        res = k * (ddu + math.pi**2 * torch.sin(math.pi * x))
        bc = (model(edge) - at_edge).pow(2).mean()
        return res.pow(2).mean() + (1e-4 if is_faulty else 5.0) * bc

    xs = torch.rand(1024, 1, generator=gen(0)) * 2 - 1
    return Program(net, None, loader(xs, batch=32), torch.optim.Adam(net.parameters(), 1e-2),
                   lambda m: max(-0.5, r2(m(grid), torch.sin(math.pi * grid) - grid)), step=step)


class Coupling(nn.Module):
    def __init__(self, flip, std=None):
        super().__init__()
        self.flip = flip
        self.net = nn.Sequential(nn.Linear(1, 32), nn.ReLU(), nn.Linear(32, 2))
        if std is None:
            nn.init.zeros_(self.net[2].weight)
            nn.init.zeros_(self.net[2].bias)
        else:
            nn.init.normal_(self.net[2].weight, 0, std)

    def forward(self, x):
        a, b = x.chunk(2, 1)
        if self.flip:
            a, b = b, a
        s, t = self.net(a).chunk(2, 1)
        b = b * s.exp() + t
        return torch.cat([b, a] if self.flip else [a, b], 1), s.squeeze(1)


class Flow(nn.Module):
    def __init__(self, n=6, std=None):
        super().__init__()
        self.layers = nn.ModuleList(Coupling(i % 2, std) for i in range(n))

    def forward(self, x):
        logdet = 0
        for f in self.layers:
            x, d = f(x)
            logdet = logdet + d
        return (-0.5 * x**2).sum(1) - math.log(2 * math.pi) + logdet


@fault("coupling layers whose log-scales start in the tens", rules=("bad-initialisation", "non-finite",
       "exploding-gradient", "activation-drift"), layers=("layers",), fails=True, steps=400)
def oss_realnvp_init(is_faulty):
    x, _ = moons(2500, 0)
    v, _ = moons(500, 1)
    model = Flow(6, 1.5 if is_faulty else None)
    # 1 for a density a nat above the Gaussian's
    return Program(model, None, loader(x), torch.optim.Adam(model.parameters(), 5e-3),
                   lambda m: max(0.0, float(m(v).clamp(min=-100).mean() + 2.9)), step=lambda m, b: -m(b[0]).mean())


class Denoiser(nn.Module):
    def __init__(self, raw):
        super().__init__()
        self.raw = raw
        self.net = nn.Sequential(nn.Linear(3, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 2))

    def forward(self, x, t):
        t = t.float() if self.raw else t.float() / 500 - 1
        return self.net(torch.cat([x, t[:, None]], 1))


def noised(x, t, eps):
    a = torch.cos(t.float()[:, None] / 1000 * math.pi / 2)
    return a * x + (1 - a**2).sqrt() * eps


@fault("a denoiser that gets its timestep as a number up to a thousand", rules=("unscaled-input",), fails=False,
       steps=400)
def oss_ddpm_raw_t(is_faulty):
    x, _ = moons(2500, 0)
    v, _ = moons(1000, 1)
    vt, ve = torch.randint(300, 1000, (1000,), generator=gen(1)), torch.randn(1000, 2, generator=gen(2))
    model = Denoiser(is_faulty)

    def step(model, batch):
        (x,) = batch
        t, eps = torch.randint(300, 1000, (len(x),)), torch.randn_like(x)
        return F.mse_loss(model(noised(x, t, eps), t), eps)

    return Program(model, None, loader(x, batch=128), torch.optim.AdamW(model.parameters(), 2e-3),
                   lambda m: max(-0.5, r2(m(noised(v, vt, ve), vt), ve)), step=step)
