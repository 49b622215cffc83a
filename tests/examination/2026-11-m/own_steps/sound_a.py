"""Sound programs: reinforcement learning, generative models, contrast."""

import copy
import math

import torch
import torch.nn.functional as F
from common import accuracy, clusters, g, loader, manifold, mlp, neighbours, pairs, r2, records, retrieval
from program import Program, sound
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm


def bandit(count, seed):
    gen, world = g(seed), g(55)
    s = torch.randn(count, 8, generator=gen)
    a = torch.randint(0, 4, (count,), generator=gen)
    value = torch.tanh(s @ torch.randn(8, 16, generator=world) * 0.4) @ torch.randn(16, 4, generator=world) / 3
    nxt = 0.9 * s.roll(1, 1) + 0.1 * torch.randn(count, 8, generator=gen)
    done = (torch.rand(count, generator=gen) < 0.4).float()
    return s, a, value.gather(1, a[:, None])[:, 0], nxt, done, value


class DoubleDqn(nn.Module):
    def __init__(self):
        super().__init__()
        self.online = mlp(8, 64, 64, 4)
        self.target = copy.deepcopy(self.online)
        for p in self.target.parameters():
            p.requires_grad = False

    def forward(self, s):
        return self.online(s)


@sound("Double DQN: a frozen target network inside of the model, which follows in the step", steps=400, least=0.7)
def double_dqn():
    s, a, r, nxt, done, _ = bandit(2048, 1)
    held, *_, value = bandit(512, 2)
    net = DoubleDqn()

    def step(model, batch):
        with torch.no_grad():
            for t, o in zip(model.target.parameters(), model.online.parameters()):
                t.lerp_(o, 0.01)
            choice = model.online(batch["nxt"]).argmax(1, keepdim=True)
            y = batch["r"] + 0.3 * (1 - batch["done"]) * model.target(batch["nxt"]).gather(1, choice)[:, 0]
        q = model(batch["s"]).gather(1, batch["a"][:, None])[:, 0]
        return F.smooth_l1_loss(q, y)

    return Program(
        net,
        None,
        records(s=s, a=a, r=r, nxt=nxt, done=done),
        torch.optim.Adam(net.online.parameters(), 1e-3),
        lambda m: accuracy(m(held), value.argmax(1)),
        step=step,
    )


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = mlp(8, 64, 64, act=nn.Tanh)
        self.policy = nn.Linear(64, 4)
        self.value = nn.Linear(64, 1)
        nn.init.orthogonal_(self.policy.weight, 0.01)
        nn.init.zeros_(self.policy.bias)

    def forward(self, s):
        h = torch.tanh(self.trunk(s))
        return self.policy(h), self.value(h).squeeze(1)


@sound(
    "Actor-critic: PPO's clipped objective, a policy head that starts near zero, an entropy bonus; the loss may be below 0",
    steps=500,
    least=0.6,
)
def clipped_policy():
    s, a, r, *_ = bandit(4096, 3)
    held, *_, value = bandit(512, 4)
    net = Agent()
    old = torch.full((4096,), math.log(0.25))

    def step(model, batch):
        s, a, r, old = batch
        logits, v = model(s)
        advantage = r - v.detach()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        logp = logits.log_softmax(1)
        ratio = (logp.gather(1, a[:, None])[:, 0] - old).exp()
        surrogate = torch.min(ratio * advantage, ratio.clamp(0.5, 2.5) * advantage).mean()
        entropy = -(logp.exp() * logp).sum(1).mean()
        return -surrogate + 0.5 * F.mse_loss(v, r) - 0.01 * entropy

    return Program(
        net,
        None,
        loader(s, a, r, old),
        torch.optim.Adam(net.parameters(), 1e-3, eps=1e-5),
        lambda m: accuracy(m(held)[0], value.argmax(1)),
        step=step,
    )


class Vae(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = mlp(24, 64, 64)
        self.mu, self.logvar = nn.Linear(64, 8), nn.Linear(64, 8)
        self.decoder = mlp(8, 64, 24)

    def forward(self, x):
        h = F.relu(self.encoder(x))
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + torch.randn_like(mu) * (logvar / 2).exp() if self.training else mu
        return self.decoder(z), mu, logvar


@sound(
    "VAE: a Gaussian likelihood of small variance, summed over the features: a loss that begins in the "
    "hundreds and ends far above 0; half trained",
    trained=250,
    steps=500,
    least=0.85,
)
def elbo_in_hundreds():
    x, held = manifold(2048, seed=21), manifold(512, seed=22)
    net = Vae()

    def step(model, batch):
        (x,) = batch
        out, mu, logvar = model(x)
        recon = 0.5 * ((out - x) / 0.1).pow(2).sum(1)
        kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1)
        return (recon + kl).mean()

    return Program(
        net, None, loader(x), torch.optim.Adam(net.parameters(), 2e-3), lambda m: r2(m(held)[0], held), step=step
    )


class Coupling(nn.Module):
    def __init__(self, flip):
        super().__init__()
        self.flip = flip
        self.net = mlp(2, 48, 48, 4)
        nn.init.zeros_(self.net[-1].weight)
        nn.init.zeros_(self.net[-1].bias)

    def forward(self, x):
        a, b = x.chunk(2, 1)
        if self.flip:
            a, b = b, a
        s, t = self.net(a).chunk(2, 1)
        s = torch.tanh(s)
        b = b * s.exp() + t
        return torch.cat([b, a] if self.flip else [a, b], 1), s.sum(1)


class Flow(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Coupling(bool(i % 2)) for i in range(6))

    def forward(self, x):
        total = 0.0
        for layer in self.layers:
            x, logdet = layer(x)
            total = total + logdet
        return -0.5 * (x.pow(2) + math.log(2 * math.pi)).sum(1) + total


def moons(count, seed):
    gen = g(seed)
    t = torch.rand(count, 2, generator=gen) * math.pi
    x = torch.stack([t[:, 0].cos(), t[:, 0].sin(), t[:, 1].cos() * 0.8, t[:, 1].sin() - 0.5], 1)
    return x + 0.08 * torch.randn(count, 4, generator=gen)


@sound(
    "RealNVP: the last layers of all couplings start at zero, so that only they get a gradient; the loss falls below 0",
    steps=500,
    least=0.6,
)
def zero_couplings():
    x, held = moons(2048, 1), moons(512, 2)
    net = Flow()
    # 1 for the density of a good fit, 0 for that of a Gaussian
    return Program(
        net,
        None,
        loader(x, size=128),
        torch.optim.Adam(net.parameters(), 2e-3),
        lambda m: min(1.0, max(0.0, (float(m(held).mean()) + 4.2) / 4.5)),
        step=lambda model, batch: -model(batch[0]).mean(),
    )


@sound(
    "WGAN-GP critic with a gradient penalty: a loss below 0 without a floor, gradients of gradients, no sigmoid",
    steps=600,
    least=0.85,
)
def gradient_penalty():
    gen = g(8)
    angle = torch.rand(4096, generator=gen) * 2 * math.pi
    real = torch.stack([angle.cos(), angle.sin()], 1) * 2 + 0.1 * torch.randn(4096, 2, generator=gen)
    fake = torch.randn(4096, 2, generator=gen) * 0.7
    net = mlp(2, 64, 64, 1, act=nn.SiLU)

    def step(D, batch):
        real, fake = batch
        u = torch.rand(len(real), 1)
        mid = (u * real + (1 - u) * fake).requires_grad_(True)
        (slope,) = torch.autograd.grad(D(mid).sum(), mid, create_graph=True)
        penalty = (slope.norm(2, 1) - 1).pow(2).mean()
        return D(fake).mean() - D(real).mean() + 10 * penalty

    def score(D):
        a, b = D(real[2048:])[:, 0], D(fake[2048:])[:, 0]
        return float((a[:, None] > b[None]).float().mean())

    return Program(
        net,
        None,
        loader(real[:2048], fake[:2048]),
        torch.optim.Adam(net.parameters(), 3e-3, betas=(0.0, 0.9)),
        score,
        step=step,
    )


@sound(
    "SNGAN discriminator: spectral norm, hinge loss, that has learned: many examples are beyond the hinge",
    trained=300,
    steps=500,
    least=0.85,
)
def spectral_hinge():
    gen = g(9)
    real = torch.randn(3072, 6, generator=gen).sign() * 1.5 + 0.3 * torch.randn(3072, 6, generator=gen)
    fake = 1.5 * torch.randn(3072, 6, generator=gen)
    D = nn.Sequential(
        spectral_norm(nn.Linear(6, 128)),
        nn.LeakyReLU(0.1),
        spectral_norm(nn.Linear(128, 128)),
        nn.LeakyReLU(0.1),
        nn.Linear(128, 1),
    )

    def step(D, batch):
        return F.relu(1 - D(batch["real"])).mean() + F.relu(1 + D(batch["fake"])).mean()

    def score(D):
        return float((D(real[2048:]) > 0).float().mean() + (D(fake[2048:]) <= 0).float().mean()) / 2

    return Program(
        D,
        None,
        records(real=real[:2048], fake=fake[:2048]),
        torch.optim.Adam(D.parameters(), 2e-3, betas=(0.5, 0.9)),
        score,
        step=step,
    )


class Energy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp(4, 96, 96, 1, act=nn.SiLU)

    def forward(self, x):
        return self.net(x).squeeze(1)

    def slope(self, x):
        with torch.enable_grad():
            x = x.detach().requires_grad_(True)
            return torch.autograd.grad(self(x).sum(), x, create_graph=True)[0]


@sound(
    "Denoising score matching of an energy: the last bias can have no gradient, and the loss has a floor far above 0",
    steps=500,
    least=0.6,
)
def energy_slope():
    x, held = moons(2048, 3), moons(512, 4)
    noise = torch.randn(512, 4, generator=g(5))
    sigma = 0.5
    net = Energy()

    def step(model, batch):
        (x,) = batch
        eps = torch.randn_like(x)
        return (model.slope(x + sigma * eps) - eps / sigma).pow(2).mean() * sigma**2

    return Program(
        net,
        None,
        loader(x),
        torch.optim.Adam(net.parameters(), 2e-3),
        lambda m: min(1.0, 1.6 * r2(m.slope(held + sigma * noise).detach(), noise / sigma)),
        step=step,
    )


class SimClr(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(26, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 32))
        self.projector = mlp(32, 32, 16)

    def forward(self, x):
        return self.projector(F.relu(self.encoder(x)))


def noisy_clusters(count, seed, nuisance=2.0):
    x, y = clusters(count, seed=seed, dim=6, spread=0.3)
    return x, y, nuisance * torch.randn(count, 20, generator=g(seed + 1))


@sound(
    "SimCLR: the examples of a batch are each other's negatives, through the loss and a BatchNorm; no labels in the step",
    steps=400,
    least=0.7,
)
def two_views():
    x, y, junk = noisy_clusters(3072, 31)
    full = torch.cat([x, junk], 1)
    net = SimClr()

    def augment(x):
        return torch.cat([x[:, :6] + 0.1 * torch.randn(len(x), 6), 2 * torch.randn(len(x), 20)], 1)

    def step(model, batch):
        (x,) = batch
        n = len(x)
        z = F.normalize(model(torch.cat([augment(x), augment(x)])), dim=1)
        sim = (z @ z.T / 0.2).fill_diagonal_(-1e9)
        return F.cross_entropy(sim, torch.arange(2 * n).roll(n))

    return Program(
        net,
        None,
        loader(full[:2048], size=128),
        torch.optim.Adam(net.parameters(), 2e-3),
        lambda m: neighbours(m.encoder(full[:2048]), y[:2048], m.encoder(full[2048:]), y[2048:]),
        step=step,
    )


class Byol(nn.Module):
    def __init__(self):
        super().__init__()
        self.online = nn.Sequential(nn.Linear(26, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 16))
        self.predictor = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 16))
        self.target = copy.deepcopy(self.online).requires_grad_(False)

    def forward(self, x):
        return self.online(x)


@sound(
    "BYOL: a target network that no gradient reaches and no negatives; half trained",
    trained=100,
    steps=500,
    least=0.6,
)
def no_negatives():
    x, y, junk = noisy_clusters(3072, 41)
    full = torch.cat([x, junk], 1)
    net = Byol()

    def augment(x):
        return torch.cat([x[:, :6] + 0.1 * torch.randn(len(x), 6), 2 * torch.randn(len(x), 20)], 1)

    def step(model, batch):
        (x,) = batch
        with torch.no_grad():
            for t, o in zip(model.target.parameters(), model.online.parameters()):
                t.lerp_(o, 0.02)
        a, b = augment(x), augment(x)
        loss = 0.0
        for one, other in ((a, b), (b, a)):
            p = model.predictor(model.online(one))
            with torch.no_grad():
                z = model.target(other)
            loss = loss + 2 - 2 * F.cosine_similarity(p, z).mean()
        return loss

    return Program(
        net,
        None,
        loader(full[:2048], size=128),
        torch.optim.Adam([*net.online.parameters(), *net.predictor.parameters()], 2e-3),
        lambda m: neighbours(m(full[:2048]), y[:2048], m(full[2048:]), y[2048:]),
        step=step,
    )


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.left = mlp(12, 64, 32)
        self.right = mlp(20, 64, 32)

    def forward(self, a, b):
        return self.left(a), self.right(b)


@sound(
    "Barlow Twins between two towers: the loss is made of correlations over the batch, and is a sum of hundreds of terms",
    steps=500,
    least=0.6,
)
def decorrelated():
    a, b = pairs(2304, seed=7)
    net = Siamese()

    def step(model, batch):
        u, v = model(*batch)
        u, v = (u - u.mean(0)) / u.std(0), (v - v.mean(0)) / v.std(0)
        c = u.T @ v / len(u)
        on = (c.diagonal() - 1).pow(2).sum()
        off = (c - torch.diag(c.diagonal())).pow(2).sum()
        return on + 0.02 * off

    def score(m):
        u, v = m(a[2048:], b[2048:])
        return retrieval(u - u.mean(0), v - v.mean(0))

    return Program(net, None, loader(a[:2048], b[:2048], size=128), torch.optim.Adam(net.parameters(), 2e-3), score, step=step)


@sound(
    "Triplet loss that has learned: most triplets are beyond the margin and give nothing",
    trained=300,
    steps=400,
    least=0.8,
)
def easy_triplets():
    x, y, junk = noisy_clusters(3072, 51, nuisance=1.0)
    full = torch.cat([x, junk], 1)
    gen = g(52)
    anchor, positive, negative = [], [], []
    for i in range(2048):
        same = (y[:2048] == y[i]).nonzero()[:, 0]
        other = (y[:2048] != y[i]).nonzero()[:, 0]
        anchor.append(i)
        positive.append(int(same[torch.randint(len(same), (1,), generator=gen)]))
        negative.append(int(other[torch.randint(len(other), (1,), generator=gen)]))
    net = mlp(26, 128, 128, 16)
    criterion = nn.TripletMarginLoss(margin=0.5)

    def step(model, batch):
        return criterion(model(batch["anchor"]), model(batch["positive"]), model(batch["negative"]))

    return Program(
        net,
        None,
        records(anchor=full[anchor], positive=full[positive], negative=full[negative]),
        torch.optim.Adam(net.parameters(), 1e-3),
        lambda m: neighbours(m(full[:2048]), y[:2048], m(full[2048:]), y[2048:]),
        step=step,
    )
