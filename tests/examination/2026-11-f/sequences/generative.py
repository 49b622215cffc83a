"""Steps of one's own: autoencoders, diffusion, generators, CTC."""

import torch
import torch.nn.functional as F
from program import Program, fault, sound
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def curves(n, seed, points=24):
    """Sums of three shapes: 24 numbers on a 3-dimensional sheet."""
    g = torch.Generator().manual_seed(seed)
    t = torch.linspace(0, 1, points)
    shapes = torch.stack([torch.sin(6.28 * t), torch.cos(6.28 * t), torch.sin(12.57 * t)])
    return torch.randn(n, 3, generator=g) @ shapes


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 12))
        self.dec = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, 24))

    def forward(self, x):
        mu, logvar = self.enc(x).chunk(2, -1)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar) if self.training else mu
        return self.dec(z), mu, logvar


def rebuilt(m):
    x = curves(300, 2)
    return 1 - (m(x)[0] - x).pow(2).mean().item() / x.var().item()


@fault(
    "the divergence is summed over batch and dimensions while the error of reconstruction is a mean",
    rules=["term-dominates", "summed-loss", "rank-collapse"], fails=True, steps=400,
)
def divergence_summed(is_faulty):
    def step(m, x):
        y, mu, logvar = m(x)
        kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp())
        if is_faulty:
            return F.mse_loss(y, x) + kl.sum()
        return F.mse_loss(y, x) + 0.05 * kl.sum(1).mean() / 24

    model = VAE()
    return Program(
        model, None, DataLoader(curves(1600, 1), 32, shuffle=True), torch.optim.Adam(model.parameters(), 3e-3), rebuilt,
        step=step,
    )


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(25, 96), nn.SiLU(), nn.Linear(96, 96), nn.SiLU(), nn.Linear(96, 24))

    def forward(self, x, t):
        return self.net(torch.cat([x, t], -1))


def diffused(x, t, noise):
    return torch.sqrt(1 - t) * x + torch.sqrt(t) * noise


def noise_found(m):
    g = torch.Generator().manual_seed(3)
    x = curves(400, 2)
    noise, t = torch.randn(400, 24, generator=g), 0.2 + 0.6 * torch.rand(400, 1, generator=g)
    return 1 - (m(diffused(x, t, noise), t) - noise).pow(2).mean().item()


@fault(
    "the noise that should be predicted is drawn anew, not the noise that was added",
    rules=["labels-unrelated", "loss-not-decreasing", "output-loss-mismatch"], fails=True, steps=400,
)
def another_noise(is_faulty):
    def step(m, batch):
        x = batch[0]
        t = 0.2 + 0.6 * torch.rand(len(x), 1)
        noise = torch.randn_like(x)
        noisy = diffused(x, t, noise)
        if is_faulty:
            noise = torch.randn_like(x)
        return F.mse_loss(m(noisy, t), noise)

    model = Denoiser()
    return Program(
        model, None, DataLoader(TensorDataset(curves(2000, 1)), 64, shuffle=True),
        torch.optim.Adam(model.parameters(), 2e-3), noise_found, step=step,
    )


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(4, 48), nn.ReLU(), nn.Linear(48, 24))
        self.critic = nn.Linear(24, 24)
        nn.init.orthogonal_(self.critic.weight)

    def forward(self, z):
        return self.generator(z)


def moments(m):
    """How near the mean and covariance of what is generated are to the right ones."""
    z = torch.randn(2000, 4, generator=torch.Generator().manual_seed(5))
    a, b = m(z), 1 + curves(2000, 2)
    near = (a.mean(0) - b.mean(0)).pow(2).sum() / b.mean(0).pow(2).sum()
    shape = (a.T.cov() - b.T.cov()).pow(2).sum() / b.T.cov().pow(2).sum()
    return max(-1.0, 1 - 0.5 * (near + shape).item())


def energy_distance(f, r):
    return 2 * torch.cdist(f, r).mean() - torch.cdist(f, f.roll(1, 0)).mean() - torch.cdist(r, r.roll(1, 0)).mean()


def feature_matching(detach):
    def step(m, real):
        fake = m(torch.randn(len(real), 4))
        if detach:
            fake = fake.detach()
        return energy_distance(m.critic(fake), m.critic(real))

    return step


@fault(
    "the generated examples are detached in the generator's own step, as they are in the critic's",
    rules=["no-gradient"], layers=["generator"], fails=True, steps=400,
)
def generator_detached(is_faulty):
    model = Generator()
    return Program(
        model, None, DataLoader(1 + curves(3200, 1), 64, shuffle=True),
        torch.optim.Adam(model.generator.parameters(), 3e-3), moments, step=feature_matching(is_faulty),
    )


class Listener(nn.Module):
    """Frames to letters; letter 0 is the blank."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(8, 32, 3, padding=1)
        self.fc = nn.Linear(32, 6)

    def forward(self, x):
        return self.fc(F.relu(self.conv(x.transpose(1, 2))).transpose(1, 2))


def speech(n, seed):
    g = torch.Generator().manual_seed(seed)
    letters = torch.randint(1, 6, (n, 4), generator=g)
    sounds = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    frames = torch.zeros(n, 16, dtype=torch.long)
    for i in range(4):
        frames[:, 4 * i + 1 : 4 * i + 3] = letters[:, i : i + 1]
    return sounds[frames] + 0.3 * torch.randn(n, 16, 8, generator=g), letters


def letters_right(m):
    x, y = speech(150, 2)
    best = m(x).argmax(-1).tolist()
    right = 0
    for row, truth in zip(best, y.tolist()):
        out = [c for i, c in enumerate(row) if c and (i == 0 or row[i - 1] != c)]
        right += sum(a == b for a, b in zip(out, truth)) if len(out) == 4 else 0
    return right / (4 * len(y))


def ctc(time_first):
    def step(m, batch):
        x, y = batch
        n = len(x)
        scores = m(x).log_softmax(-1)
        if time_first:
            scores = scores.transpose(0, 1)
        return F.ctc_loss(scores, y, torch.full((n,), 16), torch.full((n,), 4))

    return step


@fault(
    "CTC takes time first and gets batch first; with 16 frames and batches of 16 nothing complains",
    rules=["output-loss-mismatch", "mixed-examples", "labels-unrelated"], fails=True, steps=400,
)
def ctc_batch_for_time(is_faulty):
    model = Listener()
    return Program(
        model, None, DataLoader(TensorDataset(*speech(800, 1)), 16, shuffle=True),
        torch.optim.Adam(model.parameters(), 4e-3), letters_right, step=ctc(time_first=not is_faulty),
    )


class RMSNorm(nn.Module):
    def __init__(self, d, in_float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))
        self.in_float = in_float

    def forward(self, x):
        if self.in_float:
            x = x.float()
        return self.weight * x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


@fault(
    "a norm of one's own squares numbers of some hundreds in float16, where they end at 65504",
    rules=["half-overflow", "non-finite", "unscaled-input", "rounding-error", "rank-collapse"], fails=True, steps=300,
)
def squares_in_half(is_faulty):
    model = nn.Sequential(
        nn.Linear(24, 64), RMSNorm(64, not is_faulty), nn.SiLU(), nn.Linear(64, 64), RMSNorm(64, not is_faulty),
        nn.Linear(64, 3),
    )

    def data(n, seed):
        x = curves(n, seed)
        return 800 * x, torch.stack([x[:, 0], x[:, 5], x[:, 11]], 1).argmax(1)

    def step(m, batch):
        x, y = batch
        with torch.autocast("cpu", dtype=torch.float16):
            out = m(x)
        return F.cross_entropy(out.float(), y)

    hx, hy = data(300, 2)

    def score(m):
        with torch.autocast("cpu", dtype=torch.float16):
            return (m(hx).argmax(1) == hy).float().mean().item()

    return Program(
        model, None, DataLoader(TensorDataset(*data(1000, 1)), 50, shuffle=True),
        torch.optim.Adam(model.parameters(), 2e-3), score, step=step,
    )


@sound("targets that are pure noise, drawn in the step: a denoiser", steps=500, least=0.6)
def noise_as_target():
    p = another_noise(False)
    return Program(p.model, None, p.batches, p.optimizer, p.score, step=p.step)


@sound("a generator that matches distances under a random critic, which stays as it is on purpose", steps=500, least=0.75)
def frozen_critic():
    p = generator_detached(False)
    p.model.critic.requires_grad_(False)
    opt = torch.optim.Adam(p.model.generator.parameters(), lr=3e-3, betas=(0.5, 0.9))
    return Program(p.model, None, p.batches, opt, p.score, step=p.step)


@sound("an ordinary CTC network, half trained", trained=120, steps=400, least=0.75)
def ctc_half_way():
    p = ctc_batch_for_time(False)
    return Program(p.model, None, p.batches, p.optimizer, p.score, step=p.step)


@sound("a codebook with a straight-through gradient, and detached parts in two of its losses", steps=500, least=0.6)
def codebook():
    class VQ(nn.Module):
        def __init__(self):
            super().__init__()
            self.enc = nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 12))
            self.codes = nn.Embedding(32, 4)
            self.dec = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 24))

        def forward(self, x):
            z = self.enc(x).view(-1, 3, 4)
            nearest = torch.cdist(z.flatten(0, 1), self.codes.weight).argmin(-1)
            q = self.codes(nearest).view_as(z)
            return self.dec((z + (q - z).detach()).flatten(1)), z, q

    def step(m, x):
        y, z, q = m(x)
        return F.mse_loss(y, x) + F.mse_loss(q, z.detach()) + 0.25 * F.mse_loss(z, q.detach())

    model = VQ()
    return Program(
        model, None, DataLoader(curves(1600, 1), 64, shuffle=True), torch.optim.Adam(model.parameters(), 3e-3), rebuilt,
        step=step,
    )
