"""Reinforcement learning, generative models, distillation."""

import copy
import math

import torch
import torch.nn.functional as F
from common import accuracy, clusters, g, loader, manifold, mlp, r2, records
from program import Program, fault
from torch import nn


def transitions(count, seed, scale=1.0, offset=0.0):
    """A task of two steps: what an action earns depends on the state; the next state follows from both."""
    gen = g(seed)
    world = g(99)
    s = torch.randn(count, 8, generator=gen)
    a = torch.randint(0, 4, (count,), generator=gen)
    w1, w2 = torch.randn(8, 16, generator=world), torch.randn(16, 4, generator=world) / 3
    value = torch.tanh(s @ w1 * 0.4) @ w2
    r = offset + scale * value.gather(1, a[:, None]).squeeze(1)
    nxt = 0.9 * s.roll(1, 1) + 0.1 * torch.randn(count, 8, generator=gen)
    done = (torch.rand(count, generator=gen) < 0.5).float()
    return s, a, r, nxt, done, value


@fault(
    "DQN: Q(s, a) keeps its last dimension of 1, the targets have none, and the loss broadcasts to a square",
    rules=["output-loss-mismatch"],
    fails=True,
    steps=400,
)
def dqn_square(is_faulty):
    s, a, r, nxt, done, _ = transitions(2048, 1)
    held, *_, value = transitions(512, 2)
    policy = mlp(8, 64, 64, 4)
    target = copy.deepcopy(policy)

    def step(model, batch):
        s, a, r, nxt, done = batch
        q = model(s).gather(1, a.unsqueeze(1))
        if not is_faulty:
            q = q.squeeze(1)
        with torch.no_grad():
            y = r + 0.5 * (1 - done) * target(nxt).max(1).values
        return ((q - y) ** 2).mean()

    return Program(
        policy,
        None,
        loader(s, a, r, nxt, done),
        torch.optim.Adam(policy.parameters(), 1e-3),
        lambda m: r2(m(held) - m(held).mean(1, True), value - value.mean(1, True)),
        step=step,
    )


class Dueling(nn.Module):
    def __init__(self, rectified):
        super().__init__()
        self.body = mlp(8, 64, 64)
        self.value = nn.Linear(64, 1)
        self.advantage = nn.Linear(64, 4)
        self.rectified = rectified

    def forward(self, s):
        h = F.relu(self.body(s))
        adv = self.advantage(h)
        q = self.value(h) + adv - adv.mean(1, keepdim=True)
        return F.relu(q) if self.rectified else q


@fault(
    "Every reward is a cost below 0, while a ReLU ends the dueling network",
    rules=["output-loss-mismatch", "dying-neurons"],
    fails=True,
    steps=400,
)
def dueling_costs(is_faulty):
    s, a, r, nxt, done, _ = transitions(2048, 3, offset=-4.0)
    held, *_, value = transitions(512, 4)
    net = Dueling(is_faulty)

    def step(model, batch):
        q = model(batch["state"]).gather(1, batch["action"][:, None])[:, 0]
        with torch.no_grad():
            best = model(batch["next"]).max(1).values
        return F.smooth_l1_loss(q, batch["reward"] + 0.3 * (1 - batch["done"]) * best)

    return Program(
        net,
        None,
        records(state=s, action=a, reward=r, next=nxt, done=done),
        torch.optim.Adam(net.parameters(), 2e-3),
        lambda m: accuracy(m(held), value.argmax(1)) if float(m(held).std(1).mean()) > 1e-6 else 0.25,
        step=step,
    )


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor = mlp(8, 64, 64, 4)
        self.critic = mlp(10, 64, 64, 1)


@fault(
    "A Gaussian actor is trained through its critic by actions from sample() instead of rsample()",
    rules=["no-gradient"],
    layers=["actor"],
    fails=True,
    steps=500,
)
def actor_sample(is_faulty):
    def best(s):
        return torch.stack([torch.tanh(s[:, 0] + s[:, 1]), torch.sin(s[:, 2] * 1.5)], 1)

    gen = g(5)
    s = torch.randn(2048, 8, generator=gen)
    a = torch.randn(2048, 2, generator=gen)
    r = -((a - best(s)) ** 2).sum(1)
    held = torch.randn(512, 8, generator=gen)
    net = ActorCritic()

    def step(model, batch):
        s, a, r = batch
        value = model.critic(torch.cat([s, a], 1)).squeeze(1)
        critic_loss = F.mse_loss(value, r)
        mean, log_std = model.actor(s).chunk(2, 1)
        dist = torch.distributions.Normal(mean, log_std.clamp(-4, 0).exp())
        action = dist.sample() if is_faulty else dist.rsample()
        frozen = {name: p.detach() for name, p in model.critic.named_parameters()}
        q = torch.func.functional_call(model.critic, frozen, (torch.cat([s, action], 1),))
        return critic_loss - q.mean()

    return Program(
        net,
        None,
        loader(s, a, r),
        torch.optim.Adam(net.parameters(), 2e-3),
        lambda m: r2(m.actor(held)[:, :2], best(held)),
        step=step,
    )


class Vae(nn.Module):
    def __init__(self, dim=24, latent=6):
        super().__init__()
        self.encoder = mlp(dim, 64, 2 * latent)
        self.decoder = mlp(latent, 64, dim)

    def forward(self, x):
        mu, logvar = self.encoder(x).chunk(2, 1)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        return self.decoder(z), mu, logvar

    def rebuilt(self, x):
        return self.decoder(self.encoder(x).chunk(2, 1)[0])


@fault(
    "VAE: the reconstruction is a mean over all entries, the KL term a sum over batch and latent dimensions",
    rules=["term-dominates"],
    fails=True,
    steps=500,
)
def vae_kl_sum(is_faulty):
    x, held = manifold(2048, seed=1), manifold(512, seed=2)
    net = Vae()

    def step(model, batch):
        (x,) = batch
        out, mu, logvar = model(x)
        kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp())
        recon = F.mse_loss(out, x)
        return recon + (kl.sum() if is_faulty else 0.1 * kl.sum() / x.numel())

    return Program(
        net,
        None,
        loader(x),
        torch.optim.Adam(net.parameters(), 2e-3),
        lambda m: r2(m.rebuilt(held), held),
        step=step,
    )


def alpha_bars(steps=1000):
    return torch.cumprod(1 - torch.linspace(1e-4, 0.02, steps), 0)


class Denoiser(nn.Module):
    def __init__(self, dim=8, embed=16):
        super().__init__()
        self.embed = embed
        self.net = mlp(dim + embed, 96, 96, dim, act=nn.SiLU)

    def forward(self, x, t):
        freq = torch.exp(-math.log(1000.0) * torch.arange(self.embed // 2) / (self.embed // 2))
        phase = t[:, None].float() * freq
        return self.net(torch.cat([x, phase.sin(), phase.cos()], 1))


def denoising_score(held, bars, predict):
    gen = g(77)
    t = torch.randint(0, len(bars), (len(held),), generator=gen)
    eps = torch.randn(held.shape, generator=gen)
    ab = bars[t][:, None]
    return r2(predict(ab.sqrt() * held + (1 - ab).sqrt() * eps, t), eps)


def ring(count, seed):
    gen = g(seed)
    angle = torch.rand(count, generator=gen) * 2 * math.pi
    k = torch.arange(1, 5)
    p = angle[:, None] * k
    return torch.cat([p.cos(), p.sin()], 1) * 1.4


@fault(
    "Diffusion: the noise that is predicted is drawn anew, it is not the noise that was added",
    rules=["labels-unrelated", "loss-not-decreasing"],
    fails=True,
    steps=500,
)
def diffusion_fresh_noise(is_faulty):
    x, held = ring(2048, 1), ring(512, 2)
    bars = alpha_bars()
    net = Denoiser()

    def q_sample(x, t, noise=None):
        if noise is None:
            noise = torch.randn_like(x)
        ab = bars[t][:, None]
        return ab.sqrt() * x + (1 - ab).sqrt() * noise

    def step(model, batch):
        (x,) = batch
        t = torch.randint(0, 1000, (len(x),))
        noise = torch.randn_like(x)
        noisy = q_sample(x, t) if is_faulty else q_sample(x, t, noise)
        return F.mse_loss(model(noisy, t), noise)

    return Program(
        net,
        None,
        loader(x),
        torch.optim.AdamW(net.parameters(), 2e-3),
        lambda m: denoising_score(held, bars, m),
        step=step,
    )


@fault(
    "Distillation: kl_div gets log-probabilities of the teacher without log_target=True",
    rules=["non-finite", "output-loss-mismatch"],
    fails=True,
    steps=300,
)
def distill_log_target(is_faulty):
    x, y = clusters(2560, seed=1)
    teacher = mlp(16, 96, 6)
    first = torch.optim.Adam(teacher.parameters(), 1e-2)
    for _ in range(100):
        first.zero_grad()
        F.cross_entropy(teacher(x[:2048]), y[:2048]).backward()
        first.step()
    teacher.eval().requires_grad_(False)
    student = mlp(16, 48, 6)
    T = 3.0

    def step(model, batch):
        x = batch["x"]
        soft = F.log_softmax(teacher(x) / T, -1)
        mine = F.log_softmax(model(x) / T, -1)
        return T * T * F.kl_div(mine, soft, reduction="batchmean", log_target=not is_faulty)

    return Program(
        student,
        None,
        records(x=x[:2048], y=y[:2048]),
        torch.optim.Adam(student.parameters(), 2e-3),
        lambda m: accuracy(m(x[2048:]), y[2048:]),
        step=step,
    )


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm1d(10), nn.Linear(10, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.LeakyReLU(0.2)
        )
        self.head = nn.Linear(64, 1)

    def forward(self, x):
        return self.head(self.body(x)).squeeze(1)


@fault(
    "GAN: real and fake samples, which differ in where they lie, pass the BatchNorms of the discriminator apart",
    rules=["sorted-batches", "mixed-examples", "batchnorm-mode-gap", "loss-not-decreasing"],
    fails=True,
    steps=300,
)
def gan_apart(is_faulty):
    gen = g(8)
    shift = torch.randn(10, generator=gen).sign() * 0.6
    real = torch.randn(4096, 10, generator=gen) + shift
    fake = torch.randn(4096, 10, generator=gen) - shift
    net = Critic()
    bce = nn.BCEWithLogitsLoss()

    def step(D, batch):
        real, fake = batch
        if is_faulty:
            on_real, on_fake = D(real), D(fake)
        else:
            on_real, on_fake = D(torch.cat([real, fake])).chunk(2)
        return bce(on_real, torch.ones_like(on_real)) + bce(on_fake, torch.zeros_like(on_fake))

    def score(D):
        mixed = D(torch.cat([real[2048:], fake[2048:]]))
        return float((mixed[:2048] > 0).float().mean() + (mixed[2048:] <= 0).float().mean()) / 2

    return Program(
        net,
        None,
        loader(real[:2048], fake[:2048]),
        torch.optim.Adam(net.parameters(), 2e-4, betas=(0.5, 0.999)),
        score,
        step=step,
    )
