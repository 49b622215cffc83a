import copy

import torch
import torch.nn.functional as F
from own_faults_a import VAE, ActorCritic, Denoiser, TwoTowers, denoising_score, manifold, noised, pairs, ring
from own_faults_a import two_points
from own_kit import accuracy, curve, loader, r2, rng
from program import Program, sound
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm


@sound("a VAE whose loss is a sum over features, plus KL: large numbers, two terms of different size", steps=400, least=0.7)
def vae_elbo_in_nats():
    model = VAE()
    test = manifold(90, 500)

    def step(model, batch):
        (x,) = batch
        recon, mu, logvar = model(x)
        rec = ((recon - x) ** 2).sum(-1) / (2 * 0.1)
        kl = -0.5 * (1 + logvar - mu**2 - logvar.exp()).sum(-1)
        return (rec + kl).mean()

    return Program(
        model, None, loader(manifold(1, 2000)), torch.optim.Adam(model.parameters(), 2e-3),
        lambda m: r2(m(test)[0], test), step=step,
    )  # fmt: skip


@sound("a hinge discriminator with spectral norm and beta1 = 0; it sees two passes, but has no BatchNorm", steps=300, least=0.8)
def hinge_discriminator_spectral():
    model = nn.Sequential(
        spectral_norm(nn.Linear(2, 64)), nn.LeakyReLU(0.2), spectral_norm(nn.Linear(64, 64)), nn.LeakyReLU(0.2),
        spectral_norm(nn.Linear(64, 1)),
    )  # fmt: skip
    real, fake = ring(3, 400), 0.4 * torch.randn(400, 2, generator=rng(4))

    def step(model, batch):
        (x,) = batch
        z = 0.4 * torch.randn_like(x)
        return F.relu(1 - model(x)).mean() + F.relu(1 + model(z)).mean()

    def score(m):
        return 0.5 * ((m(real) > 0).float().mean() + (m(fake) <= 0).float().mean()).item()

    opt = torch.optim.Adam(model.parameters(), lr=4e-3, betas=(0.0, 0.9))
    return Program(model, None, loader(ring(1, 1024)), opt, score, step=step)


@sound("contrastive learning: the loss of an example depends on its batch, the labels are always 0..63", trained=60, steps=300, least=0.7)
def clip_symmetric_loss():
    model = TwoTowers(20, 12)
    ta, tb = pairs(2, 64)

    def step(model, batch):
        u, v = model(*batch)
        logits = model.logit_scale.exp().clamp(max=100) * u @ v.T
        labels = torch.arange(len(u))
        return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2

    def score(m):
        u, v = m(ta, tb)
        return accuracy(u @ v.T, torch.arange(64))

    return Program(model, None, loader(*pairs(1, 1024)), torch.optim.AdamW(model.parameters(), 2e-3), score, step=step)


@sound("REINFORCE with a critic: rewards of 0 and 1, a loss around 0 that does not fall", steps=400, least=0.8)
def a2c_bandit():
    model = ActorCritic()
    best = torch.randn(6, 4, generator=rng(21))
    test = torch.randn(600, 6, generator=rng(2))

    def step(model, batch):
        (s,) = batch
        logits, value = model(s)
        dist = torch.distributions.Categorical(logits=logits)
        action = dist.sample()
        reward = ((s @ best).argmax(-1) == action).float()
        advantage = (reward - value).detach()
        policy = -(dist.log_prob(action) * advantage).mean()
        return policy + 0.5 * F.mse_loss(value, reward) - 0.01 * dist.entropy().mean()

    opt = torch.optim.Adam(
        [{"params": model.actor.parameters(), "lr": 4e-3}, {"params": model.critic.parameters(), "lr": 1e-2}]
    )
    return Program(
        model, None, loader(torch.randn(4096, 6, generator=rng(1)), size=128), opt,
        lambda m: accuracy(m(test)[0], (test @ best).argmax(-1)), step=step,
    )  # fmt: skip


class DQN(nn.Module):
    def __init__(self):
        super().__init__()
        self.online = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 3))
        self.target = copy.deepcopy(self.online).requires_grad_(False)

    def forward(self, s):
        return self.online(s)


@sound("DQN on stored transitions: a frozen target network inside the model follows the online one slowly", steps=400, least=0.6)
def dqn_soft_target():
    model = DQN()
    s, r = curve(1, 3000, 8, 3)
    ts, tr = curve(2, 500, 8, 3)
    g = rng(5)
    a = torch.randint(3, (3000,), generator=g)
    after = torch.randn(3000, 8, generator=g)
    done = (torch.rand(3000, generator=g) < 0.7).float()

    def step(model, batch):
        state, action, reward, following, end = batch
        with torch.no_grad():
            for p, q in zip(model.target.parameters(), model.online.parameters()):
                p.lerp_(q, 0.05)
            y = reward + 0.5 * (1 - end) * model.target(following).amax(-1)
        return F.smooth_l1_loss(model(state).gather(1, action[:, None]).squeeze(1), y)

    return Program(
        model, None, loader(s, a, r.gather(1, a[:, None]).squeeze(1), after, done),
        torch.optim.Adam(model.online.parameters(), lr=5e-3),
        lambda m: accuracy(m(ts), tr.argmax(-1)), step=step,
    )  # fmt: skip


@sound("diffusion with scaled time; the loss has a floor that it cannot pass; half trained", trained=150, steps=300, least=0.75)
def ddpm_points():
    model = Denoiser(1000.0)

    def step(model, batch):
        (x,) = batch
        t, eps = torch.randint(1000, (len(x),)), torch.randn_like(x)
        return F.mse_loss(model(noised(x, t, eps), t), eps)

    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    return Program(model, None, loader(two_points(1, 4096), size=256), opt, denoising_score, step=step)


class GCN(nn.Module):
    def __init__(self, adjacency, d, classes):
        super().__init__()
        self.register_buffer("a", adjacency)
        self.l1, self.l2 = nn.Linear(d, 32), nn.Linear(32, classes)

    def forward(self, x):
        return self.a @ self.l2(F.dropout(F.relu(self.a @ self.l1(x)), 0.3, self.training))


@sound("a graph network on one full batch: each node's output depends on its neighbours, most nodes are masked", steps=200, least=0.75)
def gcn_full_batch():
    g = rng(1)
    y = torch.randint(3, (240,), generator=g)
    chance = torch.where(y[:, None] == y[None], 0.06, 0.008)
    edges = (torch.rand(240, 240, generator=g) < chance).float().triu(1)
    a = edges + edges.T + torch.eye(240)
    d = a.sum(1).rsqrt()
    a = d[:, None] * a * d[None]
    x = torch.randn(3, 10, generator=g)[y] * 0.6 + torch.randn(240, 10, generator=g)
    train = torch.rand(240, generator=g) < 0.3
    model = GCN(a, 10, 3)

    def step(model, batch):
        x, y = batch
        return F.cross_entropy(model(x)[train], y[train])

    return Program(
        model, None, [(x, y)], torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=5e-4),
        lambda m: accuracy(m(x)[~train], y[~train]), step=step,
    )  # fmt: skip
