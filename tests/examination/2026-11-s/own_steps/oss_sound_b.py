import torch
import torch.nn.functional as F
from oss_faults_b import CNP, DANN, GAN, GCN, SAE, Causal, Factors, LoRA, Reverse, Teacher, graph, node_program
from oss_faults_b import pretrained_mlp, ratings, sine_tasks
from oss_kit import accuracy, digits, gen, loader, moons, r2
from program import Program, sound
from sklearn.datasets import load_breast_cancer, load_wine
from torch import nn


@sound("a GAN whose two players take turns in one step; the loss neither falls nor should", steps=500, least=0.6)
def oss_ok_gan():
    g = gen(17)
    mix = torch.tensor([[1.0, 0.5], [0.0, 0.7]])
    real = torch.randn(3000, 2, generator=g) @ mix + torch.tensor([1.5, -1.0])
    z = torch.randn(1000, 4, generator=g)
    model = GAN()

    def step(model, batch):
        (x,) = batch
        fake = model.generator(torch.randn(len(x), 4))
        d = F.softplus(-model.critic(x)).mean() + F.softplus(model.critic(fake.detach())).mean()
        frozen = {k: p.detach() for k, p in model.critic.named_parameters()}
        return d + F.softplus(-torch.func.functional_call(model.critic, frozen, (fake,))).mean()

    def score(m):
        gap = (m.generator(z).sort(0).values - real[2000:].sort(0).values).abs().mean()
        return float(1 - gap / 1.3)

    opt = torch.optim.Adam([{"params": model.generator.parameters(), "lr": 3e-3},
                            {"params": model.critic.parameters(), "lr": 6e-3}], betas=(0.5, 0.9))
    return Program(model, None, loader(real[:2000]), opt, score, step=step)


@sound("adapters with a zero matrix on a frozen network", steps=300, least=0.8)
def oss_ok_lora():
    x, y, vx, vy = digits()
    order = torch.randperm(64, generator=gen(4))
    x, vx = x[:, order], vx[:, order]
    net = pretrained_mlp()
    for k in (0, 2, 4):
        net[k] = LoRA(net[k], 8)
    opt = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=1e-2)
    return Program(net, None, loader(x, y), opt, lambda m: accuracy(m(vx), vy),
                   step=lambda m, b: F.cross_entropy(m(b[0]), b[1]))


@sound("a conditional neural process over padded contexts", trained=200, steps=400, least=0.7)
def oss_ok_cnp():
    tr, te = sine_tasks(2000, 0), sine_tasks(400, 1)
    model = CNP()

    def step(m, b):
        mu, s = m(b[0], b[1], b[2].float(), b[3])
        return F.gaussian_nll_loss(mu, b[4], s**2)

    return Program(model, None, loader(*tr, batch=64), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: r2(m(te[0], te[1], te[2].float(), te[3])[0].flatten(), te[4].flatten()), step=step)


@sound("FixMatch's threshold leaves most unlabelled examples out at first", steps=300, least=0.75)
def oss_ok_fixmatch():
    x, y, vx, vy = digits()
    model = Teacher()
    lab = torch.randint(0, 200, (1400,), generator=gen(0))

    def step(model, batch):
        a, t, u = batch
        sup = F.cross_entropy(model(a), t)
        with torch.no_grad():
            p, pseudo = model(u + 0.05 * torch.randn_like(u)).softmax(1).max(1)
        strong = u * (torch.rand_like(u) > 0.2) + 0.3 * torch.randn_like(u)
        return sup + (F.cross_entropy(model(strong), pseudo, reduction="none") * (p > 0.95)).mean()

    return Program(model, None, loader(x[lab], y[lab], x, batch=32),
                   torch.optim.SGD(model.student.parameters(), 0.05, momentum=0.9, nesterov=True),
                   lambda m: accuracy(m(vx), vy), step=step)


@sound("a domain classifier behind a reversed gradient, at chance on purpose", trained=100, steps=300, least=0.7)
def oss_ok_dann():
    x, y, vx, vy = digits()
    turn = torch.randn(64, generator=gen(5)) * 0.4
    model = DANN()

    def step(model, batch):
        a, t, b = batch
        h = model.features(torch.cat([a, b]))
        d = torch.arange(2).repeat_interleave(len(a))
        return F.cross_entropy(model.label(h[: len(a)]), t) + F.cross_entropy(model.domain(Reverse.apply(h, 0.1)), d)

    return Program(model, None, loader(x, y, x.flip(0) + turn), torch.optim.SGD(model.parameters(), 0.05, momentum=0.9),
                   lambda m: accuracy(m(vx + turn), vy), step=step)


@sound("factors that begin at a hundredth", steps=500, least=0.7)
def oss_ok_small_factors():
    u, i, r = ratings(0)
    model = Factors(60, 50, std=0.01)
    return Program(model, None, loader(u[:2500], i[:2500], r[:2500], batch=128),
                   torch.optim.Adam(model.parameters(), 1e-2, weight_decay=1e-5),
                   lambda m: r2(m(u[2500:], i[2500:]), r[2500:]), step=lambda m, b: F.mse_loss(m(b[0], b[1]), b[2]))


@sound("an energy learned against noise, with one output and no last activation", steps=400, least=0.6)
def oss_ok_nce():
    x, _ = moons(3000, 0)
    v, _ = moons(500, 1)
    noise = torch.randn(500, 2, generator=gen(0)) * 1.3
    energy = nn.Sequential(nn.Linear(2, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))

    def step(m, batch):
        pos, neg = -m(batch[0])[:, 0], -m(1.3 * torch.randn_like(batch[0]))[:, 0]
        return F.softplus(-pos).mean() + F.softplus(neg).mean()

    def score(m):
        return float((m(v)[:, 0][:, None] < m(noise)[:, 0][None]).float().mean())

    return Program(energy, None, loader(x), torch.optim.Adam(energy.parameters(), 3e-3), score, step=step)


@sound("a residual graph network on one graph, half of whose nodes have no label", steps=150, least=0.7)
def oss_ok_gcn():
    a, x, y = graph(0)
    d = a.sum(1).rsqrt()
    model = GCN(d[:, None] * a * d, 3, residual=True)
    train = torch.rand(160, generator=gen(2)) < 0.5
    return node_program(model, x, y, train, torch.optim.Adam(model.parameters(), 5e-3, weight_decay=5e-4))


@sound("a causal model of tokens whose noise cannot be foreseen", trained=200, steps=400, least=0.7)
def oss_ok_world_model():
    table = torch.randint(0, 12, (12, 12), generator=gen(13))

    def roll(n, seed):
        g = gen(seed)
        s = [torch.randint(0, 12, (n,), generator=g) for _ in range(2)]
        for _ in range(15):
            flip = torch.rand(n, generator=g) < 0.1
            s.append(torch.where(flip, torch.randint(0, 12, (n,), generator=g), table[s[-1], s[-2] % 3]))
        return torch.stack(s, 1)

    tr, te = roll(2000, 1), roll(300, 2)
    model = Causal()
    return Program(model, None, loader(tr, batch=64), torch.optim.AdamW(model.parameters(), 4e-3),
                   lambda m: accuracy(m(te[:, :-1])[:, 2:], te[:, 3:]),
                   step=lambda m, b: F.cross_entropy(m(b[0][:, :-1]).transpose(1, 2), b[0][:, 1:]))


@sound("distillation at a temperature of four, from a frozen teacher inside the model", steps=300, least=0.85)
def oss_ok_distil():
    x, y, vx, vy = digits()
    model = nn.ModuleDict({"teacher": pretrained_mlp().requires_grad_(False),
                           "student": nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))})

    def step(m, b):
        out, soft = m["student"](b[0]) / 4, m["teacher"](b[0]) / 4
        kd = F.kl_div(out.log_softmax(1), soft.softmax(1), reduction="batchmean") * 16
        return 0.7 * kd + 0.3 * F.cross_entropy(4 * out, b[1])

    return Program(model, None, loader(x, y, batch=32), torch.optim.Adam(model["student"].parameters(), 2e-3),
                   lambda m: accuracy(m["student"](vx), vy), step=step)


@sound("two tasks weighted by learned uncertainties: the loss goes below zero", steps=400, least=0.7)
def oss_ok_uncertainty_weights():
    g = gen(3)
    x = torch.randn(3000, 6, generator=g)
    a = torch.sin(x[:, 0]) + 0.5 * x[:, 1] + 0.02 * torch.randn(3000, generator=g)
    b = x[:, 2] * x[:, 3] + 0.02 * torch.randn(3000, generator=g)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(6, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU())
            self.heads = nn.Linear(64, 2)
            self.log_var = nn.Parameter(torch.zeros(2))

        def forward(self, x):
            return self.heads(self.body(x))

    y = torch.stack([a, b], 1)
    model = Net()

    def step(m, batch):
        err = (m(batch[0]) - batch[1]).pow(2).mean(0)
        return (err * (-m.log_var).exp() + m.log_var).sum()

    return Program(model, None, loader(x[:2500], y[:2500]), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: r2(m(x[2500:]), y[2500:]), step=step)


@sound("SAC's squashed actions: behaviour cloning by the density of a tanh normal", steps=400, least=0.7)
def oss_ok_tanh_normal():
    g = gen(21)
    obs = torch.randn(3000, 7, generator=g)
    act = torch.tanh(obs @ torch.randn(7, 2, generator=g) / 3 + 0.1 * torch.randn(3000, 2, generator=g))
    net = nn.Sequential(nn.Linear(7, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))

    def step(m, b):
        mu, ls = m(b[0]).chunk(2, 1)
        pre = torch.atanh(b[1].clamp(-0.999, 0.999))
        dist = torch.distributions.Normal(mu, ls.clamp(-5, 2).exp())
        return -(dist.log_prob(pre) - torch.log(1 - b[1] ** 2 + 1e-4)).sum(1).mean()

    return Program(net, None, loader(obs[:2500], act[:2500]), torch.optim.Adam(net.parameters(), 1e-3),
                   lambda m: r2(torch.tanh(m(obs[2500:])[:, :2]), act[2500:]), step=step)


@sound("a mixture density network for an inverse with two answers", steps=500, least=0.6)
def oss_ok_mdn():
    g = gen(2)
    x = torch.rand(3000, 1, generator=g) * 2 - 1
    sign = torch.where(torch.rand(3000, 1, generator=g) < 0.5, -1.0, 1.0)
    y = sign * (0.7 + 0.5 * x) + 0.05 * torch.randn(3000, 1, generator=g)
    net = nn.Sequential(nn.Linear(1, 48), nn.Tanh(), nn.Linear(48, 12))

    def logp(m, x, y):
        pi, mu, ls = m(x).chunk(3, 1)
        return torch.logsumexp(pi.log_softmax(1) + torch.distributions.Normal(mu, ls.exp()).log_prob(y), 1)

    # a Gaussian has about -1.1
    return Program(net, None, loader(x[:2500], y[:2500]), torch.optim.Adam(net.parameters(), 5e-3),
                   lambda m: float((logp(m, x[2500:], y[2500:]).mean() + 1.1) / 2.4),
                   step=lambda m, b: -logp(m, *b).mean())


@sound("an overcomplete sparse autoencoder, most of whose units are off on an example", trained=150, steps=300, least=0.8)
def oss_ok_sae():
    x, _, vx, _ = digits()
    model = SAE(0.0)

    def step(m, b):
        out, h = m(b[0])
        return F.mse_loss(out, b[0]) + 0.02 * h.abs().mean()

    return Program(model, None, loader(x), torch.optim.Adam(model.parameters(), 2e-3), lambda m: r2(m(vx)[0], vx),
                   step=step)


@sound("implicit Q-learning: an expectile beside a regression, on separate nets", steps=400, least=0.7)
def oss_ok_iql():
    g = gen(41)
    s = torch.randn(3000, 4, generator=g)
    a = torch.randint(0, 3, (3000,), generator=g)
    r = torch.stack([s[:, 0] * s[:, 1], (s[:, 2] ** 2 - 1), s[:, 1] * s[:, 3]], 1)
    model = nn.ModuleDict({"q": nn.Sequential(nn.Linear(4, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(),
                                              nn.Linear(64, 3)),
                           "v": nn.Sequential(nn.Linear(4, 64), nn.SiLU(), nn.Linear(64, 1))})

    def step(m, b):
        q = m["q"](b[0]).gather(1, b[1][:, None])[:, 0]
        d = q.detach() - m["v"](b[0])[:, 0]
        return F.mse_loss(q, b[2]) + (torch.where(d > 0, 0.8, 0.2) * d**2).mean()

    return Program(model, None, loader(s[:2500], a[:2500], r.gather(1, a[:, None])[:2500, 0]),
                   torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: r2(m["q"](s[2500:]).flatten(), r[2500:].flatten()), step=step)


@sound("cosine-margin classes at a scale of sixteen, classes one at a time in no order", steps=300, least=0.8)
def oss_ok_cosface():
    x, y, vx, vy = digits()

    class Cos(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(64, 64), nn.PReLU(), nn.Linear(64, 16))
            self.centres = nn.Parameter(torch.randn(10, 16))

        def forward(self, x):
            return F.normalize(self.net(x), dim=1) @ F.normalize(self.centres, dim=1).T

    model = Cos()
    return Program(model, None, loader(x, y), torch.optim.Adam(model.parameters(), 3e-3), lambda m: accuracy(m(vx), vy),
                   step=lambda m, b: F.cross_entropy(16 * (m(b[0]) - 0.2 * F.one_hot(b[1], 10)), b[1]))


@sound("an ordinary classifier with an auxiliary head, with mixup", steps=300, least=0.85)
def oss_ok_mixup():
    data = load_breast_cancer()
    x, y = torch.tensor(data.data, dtype=torch.float32), torch.tensor(data.target)
    x = (x - x.mean(0)) / x.std(0)
    p = torch.randperm(569, generator=gen(1))
    x, y = x[p], y[p]
    net = nn.Sequential(nn.Linear(30, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 2))

    def step(m, b):
        lam = float(torch.distributions.Beta(0.4, 0.4).sample())
        q = torch.randperm(len(b[0]))
        out = m(lam * b[0] + (1 - lam) * b[0][q])
        return lam * F.cross_entropy(out, b[1]) + (1 - lam) * F.cross_entropy(out, b[1][q])

    return Program(net, None, loader(x[:400], y[:400], batch=32), torch.optim.AdamW(net.parameters(), 2e-3),
                   lambda m: accuracy(m(x[400:]), y[400:]), step=step)


@sound("episodes of prototypes on few shots, half trained, with a cosine schedule", trained=100, steps=250,
       least=0.8)
def oss_ok_protonet():
    x, y, vx, vy = digits()
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 24))

    class Episodes:
        def __init__(self, x, y, n):
            self.pools, self.n = [x[y == c] for c in range(10)], n

        def __len__(self):
            return self.n

        def __iter__(self):
            for _ in range(self.n):
                yield torch.stack([p[torch.randperm(len(p))[:6]] for p in self.pools])

    def logits(m, e):
        z = m(e)
        return -torch.cdist(z[:, 2:].flatten(0, 1), z[:, :2].mean(1)).pow(2) / 4, torch.arange(10).repeat_interleave(4)

    means = torch.stack([x[y == c][:20] for c in range(10)])

    opt = torch.optim.Adam(net.parameters(), 2e-3)
    return Program(net, None, Episodes(x, y, 50), opt,
                   lambda m: accuracy(-torch.cdist(m(vx), m(means).mean(1)), vy),
                   scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(opt, 400),
                   step=lambda m, b: F.cross_entropy(*logits(m, b)))


@sound("an ordinary classifier of wines with an L1 penalty and smoothed labels", steps=400, least=0.6)
def oss_ok_wine_step():
    data = load_wine()
    x, y = torch.tensor(data.data, dtype=torch.float32), torch.tensor(data.target)
    x = (x - x.mean(0)) / x.std(0)
    p = torch.randperm(178, generator=gen(2))
    x, y = x[p], y[p]
    net = nn.Sequential(nn.Linear(13, 24), nn.ReLU(), nn.Linear(24, 3))

    def step(m, b):
        return F.cross_entropy(m(b[0]), b[1], label_smoothing=0.1) + 1e-4 * sum(p.abs().sum() for p in m.parameters())

    return Program(net, None, loader(x[:130], y[:130], batch=16), torch.optim.SGD(net.parameters(), 0.05, momentum=0.9),
                   lambda m: accuracy(m(x[130:]), y[130:]), step=step)
