import torch
import torch.nn.functional as F
from own_kit import accuracy, curve, loader, r2, rng
from program import Program, fault
from torch import nn


class VAE(nn.Module):
    def __init__(self, d=20, z=4):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(d, 64), nn.ReLU(), nn.Linear(64, 2 * z))
        self.decoder = nn.Sequential(nn.Linear(z, 64), nn.ReLU(), nn.Linear(64, d))

    def forward(self, x):
        mu, logvar = self.encoder(x).chunk(2, -1)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp() if self.training else mu
        return self.decoder(z), mu, logvar


def manifold(seed, n, d=20):
    z = torch.randn(n, 3, generator=rng(seed))
    m = torch.randn(3, d, generator=rng(5))
    return torch.tanh(z @ m) + 0.05 * torch.randn(n, d, generator=rng(seed + 1))


@fault(
    "the KL of a VAE is summed over batch and latent while the reconstruction is a mean over everything",
    rules=["term-dominates", "summed-loss", "rank-collapse"],
    fails=True,
    steps=400,
)
def vae_kl_summed(is_faulty):
    model = VAE()
    test = manifold(90, 500)

    def step(model, batch):
        (x,) = batch
        recon, mu, logvar = model(x)
        kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp())
        rec = F.mse_loss(recon, x)
        return rec + (kl.sum() if is_faulty else 0.1 * kl.mean() / x.shape[1])

    return Program(
        model,
        None,
        loader(manifold(1, 2000)),
        torch.optim.Adam(model.parameters(), lr=3e-3),
        lambda m: r2(m(test)[0], test),
        step=step,
    )


class Critic(nn.Module):
    def __init__(self, d, norm=False):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(d, 48),
            nn.BatchNorm1d(48) if norm else nn.Identity(),
            nn.LeakyReLU(0.2),
            nn.Linear(48, 48),
            nn.LeakyReLU(0.2),
        )
        self.score = nn.Linear(48, 1)

    def forward(self, x):
        return self.score(self.body(x))


def ring(seed, n):
    g = rng(seed)
    t = 6.2832 * torch.rand(n, generator=g)
    return torch.stack([t.cos(), t.sin()], -1) * 1.5 + 0.1 * torch.randn(n, 2, generator=g)


@fault(
    "least-squares discriminator: scores (N, 1) against targets (N,), the difference is N by N",
    rules=["output-loss-mismatch"],
    fails=True,
    steps=300,
)
def lsgan_targets_broadcast(is_faulty):
    model = Critic(2)
    generator = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
    for p in generator.parameters():
        p.requires_grad_(False)
    real, fake = ring(3, 400), generator(torch.randn(400, 4, generator=rng(4)))

    def step(model, batch):
        (x,) = batch
        both = torch.cat([x, generator(torch.randn(len(x), 4))])
        target = torch.cat([torch.ones(len(x)), torch.zeros(len(x))])
        if not is_faulty:
            target = target.unsqueeze(1)
        return ((model(both) - target) ** 2).mean()

    def score(m):
        return 0.5 * ((m(real) > 0.5).float().mean() + (m(fake) <= 0.5).float().mean()).item()

    return Program(
        model,
        None,
        loader(ring(1, 1024)),
        torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.5, 0.999)),
        score,
        step=step,
    )


class TwoTowers(nn.Module):
    def __init__(self, a, b, d=16):
        super().__init__()
        self.image = nn.Sequential(nn.Linear(a, 64), nn.GELU(), nn.Linear(64, d))
        self.text = nn.Sequential(nn.Linear(b, 64), nn.GELU(), nn.Linear(64, d))
        self.logit_scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, a, b):
        return F.normalize(self.image(a), dim=-1), F.normalize(self.text(b), dim=-1)


def pairs(seed, n):
    z = torch.randn(n, 5, generator=rng(seed))
    w = rng(12)
    return torch.tanh(z @ torch.randn(5, 20, generator=w)), torch.tanh(z @ torch.randn(5, 12, generator=w))


class Zipped:
    def __init__(self, *loaders):
        self.loaders = loaders

    def __iter__(self):
        return zip(*self.loaders)

    def __len__(self):
        return min(len(one) for one in self.loaders)


@fault(
    "CLIP-like training: images and captions come from two loaders that shuffle on their own",
    rules=["labels-unrelated", "output-loss-mismatch"],
    fails=True,
    steps=300,
)
def clip_two_shuffled_loaders(is_faulty):
    model = TwoTowers(20, 12)
    a, b = pairs(1, 1024)
    ta, tb = pairs(2, 64)
    if is_faulty:
        batches = Zipped(loader(a), loader(b))
    else:
        order = torch.randperm(1024, generator=rng(8))
        batches = Zipped(loader(a[order], shuffle=False), loader(b[order], shuffle=False))

    def step(model, batch):
        (image,), (text,) = batch
        u, v = model(image, text)
        logits = model.logit_scale.exp() * u @ v.T
        labels = torch.arange(len(u))
        return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2

    def score(m):
        u, v = m(ta, tb)
        return accuracy(u @ v.T, torch.arange(64))

    return Program(model, None, batches, torch.optim.AdamW(model.parameters(), lr=3e-3), score, step=step)


class ActorCritic(nn.Module):
    def __init__(self, obs=6, actions=4):
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(obs, 64), nn.Tanh(), nn.Linear(64, actions))
        self.critic = nn.Sequential(nn.Linear(obs, 64), nn.Tanh(), nn.Linear(64, 1))

    def forward(self, obs):
        return self.actor(obs), self.critic(obs).squeeze(-1)


@fault(
    "advantage actor-critic on a contextual bandit: the one optimizer was given the critic's parameters only",
    rules=["no-gradient"],
    layers=["actor"],
    fails=True,
    steps=400,
)
def a2c_actor_without_optimizer(is_faulty):
    model = ActorCritic()
    best = torch.randn(6, 4, generator=rng(21))
    obs, test = torch.randn(4096, 6, generator=rng(1)), torch.randn(600, 6, generator=rng(2))

    def step(model, batch):
        (s,) = batch
        logits, value = model(s)
        dist = torch.distributions.Categorical(logits=logits)
        action = dist.sample()
        reward = ((s @ best).argmax(-1) == action).float()
        advantage = (reward - value).detach()
        return -(dist.log_prob(action) * advantage).mean() + 0.5 * F.mse_loss(value, reward)

    params = model.critic.parameters() if is_faulty else model.parameters()
    return Program(
        model,
        None,
        loader(obs, size=128),
        torch.optim.Adam(params, lr=5e-3),
        lambda m: accuracy(m(test)[0], (test @ best).argmax(-1)),
        step=step,
    )


@fault(
    "Q-values regressed on discounted returns in cents: thousands, where the network returns tenths",
    rules=["unscaled-target"],
    fails=True,
    steps=300,
)
def q_returns_in_cents(is_faulty):
    class Q(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))

        def forward(self, s):
            return self.net(s)

    model = Q()
    s, q = curve(1, 2000, 8, 3)
    ts, tq = curve(2, 500, 8, 3)
    q, tq = 4000 * q + 6000, tq
    if not is_faulty:
        q = (q - 6000) / 4000
    a = torch.randint(3, (2000,), generator=rng(3))

    def step(model, batch):
        state, action, g = batch
        return F.smooth_l1_loss(model(state).gather(1, action[:, None]).squeeze(1), g)

    def score(m):
        out = m(ts)
        return r2((out - out.mean()) / out.std(), (tq - tq.mean()) / tq.std())

    return Program(
        model,
        None,
        loader(s, a, q.gather(1, a[:, None]).squeeze(1)),
        torch.optim.Adam(model.parameters(), lr=2e-3),
        score,
        step=step,
    )


class Denoiser(nn.Module):
    def __init__(self, divide):
        super().__init__()
        self.divide = divide
        self.net = nn.Sequential(nn.Linear(3, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))

    def forward(self, x, t):
        return self.net(torch.cat([x, t.float()[:, None] / self.divide], -1))


ALPHA = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), 0)


def noised(x, t, eps):
    a = ALPHA[t][:, None]
    return a.sqrt() * x + (1 - a).sqrt() * eps


def two_points(seed, n):
    g = rng(seed)
    side = torch.randint(2, (n, 1), generator=g).float() * 2 - 1
    return torch.cat([side, -0.5 * side], 1) * 1.2 + 0.02 * torch.randn(n, 2, generator=g)


def denoising_score(m):
    x, g = two_points(50, 800), rng(51)
    t = torch.randint(1000, (800,), generator=g)
    eps = torch.randn(800, 2, generator=g)
    return r2(m(noised(x, t, eps), t), eps)


@fault(
    "diffusion: the integer time step 0..999 is fed next to coordinates of order one",
    rules=["unscaled-input", "ill-conditioned-input"],
    layers=["net.0"],
    fails=False,
    steps=300,
)
def ddpm_raw_timestep(is_faulty):
    model = Denoiser(1.0 if is_faulty else 1000.0)

    def step(model, batch):
        (x,) = batch
        t, eps = torch.randint(1000, (len(x),)), torch.randn_like(x)
        return F.mse_loss(model(noised(x, t, eps), t), eps)

    return Program(
        model,
        None,
        loader(two_points(1, 4096), size=256),
        torch.optim.Adam(model.parameters(), lr=2e-3),
        denoising_score,
        step=step,
    )
