"""Autoencoders, VAEs, GANs, denoising and diffusion."""

import math

import torch
from program import Program, fault, sound
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

_gen = torch.Generator().manual_seed(55)
W1, W2 = torch.randn(4, 24, generator=_gen) * 0.8, torch.randn(24, 32, generator=_gen) / 24**0.5


def curved(n, seed=None, noise=0.05):
    """32 measurements of four hidden causes."""
    g = None if seed is None else torch.Generator().manual_seed(seed)
    z = torch.randn(n, 4, generator=g)
    return torch.tanh(z @ W1) @ W2 * 1.6 + noise * torch.randn(n, 32, generator=g)


def blobs(n, seed=None):
    """8 x 8 pictures between 0 and 1 with one bright spot."""
    g = None if seed is None else torch.Generator().manual_seed(seed)
    c = 1.5 + 4 * torch.rand(n, 2, generator=g)
    w = 0.8 + 0.8 * torch.rand(n, 1, 1, generator=g)
    i = torch.arange(8.0)
    d = (i[None, :, None] - c[:, 0, None, None]) ** 2 + (i[None, None, :] - c[:, 1, None, None]) ** 2
    return torch.exp(-d / (2 * w**2))[:, None]


def explained(got, want):
    return max(0.0, 1 - (F.mse_loss(got, want) / (want - want.mean(0)).pow(2).mean()).item())


def ae_score(model):
    x = curved(500, seed=1)
    return explained(model(x), x)


# ---------------------------------------------------------------- VAEs


class VAE(nn.Module):
    def __init__(self, n_latent=6):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.mu = nn.Linear(64, n_latent)
        self.logvar = nn.Linear(64, n_latent)
        self.dec = nn.Sequential(nn.Linear(n_latent, 64), nn.ReLU(), nn.Linear(64, 32))

    def forward(self, x):
        h = self.enc(x)
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp() if self.training else mu
        return self.dec(z), mu, logvar


def vae_score(model):
    x = curved(500, seed=1)
    return explained(model(x)[0], x)


@fault(
    "the KL term is summed over latents and examples, the reconstruction is a mean over pixels: the code is empty",
    rules=["term-dominates", "summed-loss"],
    fails=True,
    steps=500,
)
def vae_kl_summed(is_faulty):
    vae = VAE()

    def step(model, batch):
        (x,) = batch
        recon, mu, logvar = model(x)
        bce = F.mse_loss(recon, x)
        kld = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp())
        kld = kld.sum() if is_faulty else 0.1 * kld.sum(1).mean() / 32
        return bce + kld

    data = DataLoader(TensorDataset(curved(4000)), batch_size=64, shuffle=True)
    return Program(vae, None, data, torch.optim.Adam(vae.parameters(), lr=2e-3), vae_score, step=step)


@fault(
    "the variance of the code is what a linear layer gives, of any sign, and its root and logarithm are taken",
    rules=["non-finite"],
    layers=["to_var"],
    fails=True,
    steps=500,
)
def vae_linear_variance(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = nn.Sequential(nn.Linear(32, 64), nn.ReLU())
            self.to_mean = nn.Linear(64, 6)
            self.to_var = nn.Sequential(nn.Linear(64, 6), nn.Identity() if is_faulty else nn.Softplus())
            self.decoder = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 32))

        def forward(self, x):
            h = self.trunk(x)
            m, v = self.to_mean(h), self.to_var(h)
            eps = torch.randn_like(v) if self.training else torch.zeros_like(v)
            return self.decoder(m + v.sqrt() * eps), m, v

    def elbo(out, x):
        recon, m, v = out
        kl = 0.5 * (m**2 + v - 1 - torch.log(v)).sum(1).mean()
        return 0.5 * (recon - x).pow(2).sum(1).mean() / 0.5**2 + kl

    net = Net()
    x = curved(4000)
    return Program(
        net, elbo, DataLoader(TensorDataset(x, x), batch_size=64, shuffle=True),
        torch.optim.Adam(net.parameters(), lr=2e-3), vae_score,
    )


# ---------------------------------------------------------------- autoencoders


@fault(
    "the decoder ends in a sigmoid, copied from MNIST, the data are standardised",
    rules=["output-loss-mismatch", "saturated-output"],
    layers=["decoder"],
    fails=False,
    steps=500,
)
def ae_sigmoid_on_standardised(is_faulty):
    class AutoEncoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 6))
            tail = [nn.Sigmoid()] if is_faulty else []
            self.decoder = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 32), *tail)

        def forward(self, x):
            return self.decoder(self.encoder(x))

    x = curved(4000)
    mean, std = x.mean(0), x.std(0)
    x = (x - mean) / std
    net = AutoEncoder()

    def score(model):
        held = (curved(500, seed=1) - mean) / std
        return explained(model(held), held)

    batches = [(b, b) for b in x.split(50)]
    return Program(net, nn.MSELoss(), batches, torch.optim.Adam(net.parameters(), lr=2e-3), score)


@fault(
    "a deep autoencoder of ten sigmoid layers, as drawn in an old paper that pretrained each of them",
    rules=["vanishing-gradient", "saturated-activation", "rank-collapse", "bad-initialisation", "activation-drift"],
    fails=False,
    steps=500,
)
def ae_deep_sigmoid(is_faulty):
    widths = [32, 48, 48, 32, 16, 6, 16, 32, 48, 48]
    act = nn.Sigmoid if is_faulty else nn.ELU
    layers = []
    for i, o in zip(widths, widths[1:]):
        layers += [nn.Linear(i, o), act()]
    net = nn.Sequential(*layers, nn.Linear(48, 32))
    x = curved(4000)
    loader = DataLoader(TensorDataset(x, x), batch_size=64, shuffle=True)
    return Program(net, nn.MSELoss(), loader, torch.optim.Adam(net.parameters(), lr=2e-3), ae_score)


@fault(
    "the error of pictures is summed over pixels and batch, with SGD's rate as for a mean",
    rules=["summed-loss", "learning-rate-too-high", "diverging", "exploding-gradient", "non-finite"],
    fails=True,
    steps=500,
)
def ae_sum_of_pixels(is_faulty):
    class ConvAE(nn.Module):
        def __init__(self):
            super().__init__()
            self.down = nn.Sequential(
                nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU()
            )
            self.code = nn.Linear(64, 6)
            self.up = nn.Sequential(
                nn.Linear(6, 64), nn.ReLU(), nn.Unflatten(1, (16, 2, 2)), nn.ConvTranspose2d(16, 8, 2, 2), nn.ReLU(),
                nn.ConvTranspose2d(8, 1, 2, 2),
            )

        def forward(self, x):
            return self.up(self.code(self.down(x).flatten(1)))

    net = ConvAE()
    x = blobs(2000)
    loader = DataLoader(TensorDataset(x), batch_size=32, shuffle=True)

    def step(model, batch):
        (pic,) = batch
        return F.mse_loss(model(pic), pic, reduction="sum" if is_faulty else "mean")

    def score(model):
        x = blobs(300, 2)
        return explained(model(x), x)

    return Program(net, None, loader, torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9), score, step=step)


@fault(
    "the features of a sparse autoencoder start with bias -6 so as to be sparse, and none of them ever fires",
    rules=["dying-neurons", "bad-initialisation"],
    layers=["encoder"],
    fails=True,
    steps=500,
)
def sae_bias(is_faulty):
    class Sparse(nn.Module):
        def __init__(self, d=32, features=128):
            super().__init__()
            self.encoder = nn.Linear(d, features)
            self.decoder = nn.Linear(features, d)
            nn.init.constant_(self.encoder.bias, -6.0 if is_faulty else 0.0)

        def forward(self, x):
            f = torch.relu(self.encoder(x))
            return self.decoder(f), f

    sae = Sparse()

    def step(model, x):
        rec, f = model(x)
        return (rec - x).pow(2).mean() + 1e-3 * f.abs().sum(-1).mean()

    def score(model):
        x = curved(500, 1)
        return explained(model(x)[0], x)

    return Program(sae, None, curved(6400).split(64), torch.optim.Adam(sae.parameters(), lr=1e-3), score, step=step)


@fault(
    "the penalty of a sparse autoencoder was written for a mean and is summed over features and batch: all are off",
    rules=["term-dominates", "dying-neurons", "summed-loss"],
    layers=[],
    fails=True,
    steps=500,
)
def sae_penalty(is_faulty):
    encoder = nn.Sequential(nn.Linear(32, 96), nn.ReLU())
    sae = nn.ModuleDict({"encoder": encoder, "decoder": nn.Linear(96, 32)})

    def step(model, x):
        f = model["encoder"](x)
        rec = model["decoder"](f)
        penalty = f.abs().sum() if is_faulty else f.abs().mean()
        return F.mse_loss(rec, x) + 0.02 * penalty

    def score(model):
        x = curved(500, 1)
        return explained(model["decoder"](model["encoder"](x)), x)

    return Program(
        sae, None, list(curved(6400).split(64)), torch.optim.Adam(sae.parameters(), lr=2e-3), score, step=step
    )


# ---------------------------------------------------------------- denoising and masking


@fault(
    "`x.masked_fill(mask, 0)` returns what is masked, and nobody takes it: the net sees what it is asked for",
    rules=["future-seen"],
    fails=False,
    steps=500,
)
def masked_not_masked(is_faulty):
    net = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 32))

    def step(model, batch):
        (x,) = batch
        mask = torch.rand_like(x) < 0.4
        seen = x.clone()
        if is_faulty:
            seen.masked_fill(mask, 0.0)
        else:
            seen.masked_fill_(mask, 0.0)
        return (model(seen) - x)[mask].pow(2).mean()

    def score(model):
        x = curved(500, 1)
        mask = torch.rand(x.shape, generator=torch.Generator().manual_seed(2)) < 0.4
        out = model(x.masked_fill(mask, 0.0))
        return max(0.0, 1 - ((out - x)[mask].pow(2).mean() / x[mask].var()).item())

    loader = DataLoader(TensorDataset(curved(4000)), batch_size=64, shuffle=True)
    return Program(net, None, loader, torch.optim.Adam(net.parameters(), lr=2e-3), score, step=step)


@fault(
    "the warmup is counted in steps of a run of 100000: the rate hardly leaves 0",
    rules=["learning-rate-too-low"],
    fails=True,
    steps=500,
)
def denoiser_warmup(is_faulty):
    net = nn.Sequential(nn.Linear(32, 96), nn.GELU(), nn.Linear(96, 96), nn.GELU(), nn.Linear(96, 32))
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    warmup = 100_000 if is_faulty else 50
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda k: min(1.0, (k + 1) / warmup))

    class Noisy:
        def __iter__(self):
            for _ in range(50):
                x = curved(64)
                yield x + 0.5 * torch.randn_like(x), x

    def score(model):
        x = curved(500, 1)
        return explained(model(x + 0.5 * torch.randn(x.shape, generator=torch.Generator().manual_seed(3))), x)

    return Program(net, F.mse_loss, Noisy(), opt, score, scheduler=sched)


class InpaintNet(nn.Module):
    def __init__(self, p, always):
        super().__init__()
        self.p, self.always = p, always
        self.a = nn.Linear(32, 64)
        self.b = nn.Linear(64, 64)
        self.c = nn.Linear(64, 32)

    def forward(self, x):
        h = F.relu(self.a(x))
        h = F.dropout(h, self.p) if self.always else F.dropout(h, self.p, self.training)
        h = F.relu(self.b(h))
        h = F.dropout(h, self.p) if self.always else F.dropout(h, self.p, self.training)
        return self.c(h)


@fault(
    "F.dropout is called without `training`, and drops half of the net at test time too",
    rules=["dropout-in-eval"],
    fails=False,
    steps=500,
)
def functional_dropout(is_faulty):
    net = InpaintNet(0.5, is_faulty)

    def step(model, batch):
        (x,) = batch
        half = x.clone()
        half[:, 20:] = 0
        return F.mse_loss(model(half)[:, 20:], x[:, 20:])

    def score(model):
        x = curved(500, 1)
        half = x.clone()
        half[:, 20:] = 0
        return explained(model(half)[:, 20:], x[:, 20:])

    loader = DataLoader(TensorDataset(curved(4000)), batch_size=64, shuffle=True)
    return Program(net, None, loader, torch.optim.Adam(net.parameters(), lr=2e-3), score, step=step)


# ---------------------------------------------------------------- diffusion in the plane


def spiral(n, seed=None):
    g = None if seed is None else torch.Generator().manual_seed(seed)
    t = 1 + 3 * torch.rand(n, generator=g) * math.pi
    x = torch.stack([t * torch.cos(t), t * torch.sin(t)], 1) / 5
    return x + 0.02 * torch.randn(n, 2, generator=g)


BETAS = torch.linspace(1e-4, 0.02, 1000)
ALPHA_BAR = (1 - BETAS).cumprod(0)


class Denoiser(nn.Module):
    """Noise from a noisy point and a time; `embed` says how time enters."""

    def __init__(self, embed="sin", zero=False):
        super().__init__()
        self.embed = embed
        self.net = nn.Sequential(
            nn.Linear(2 + (16 if embed == "sin" else 1), 96), nn.SiLU(), nn.Linear(96, 96), nn.SiLU(), nn.Linear(96, 2)
        )
        if zero:
            nn.init.zeros_(self.net[-1].weight)
            nn.init.zeros_(self.net[-1].bias)

    def forward(self, x, t):
        if self.embed == "sin":
            f = torch.exp(-math.log(1000) * torch.arange(8) / 7)
            e = t[:, None].float() * f
            e = torch.cat([e.sin(), e.cos()], 1)
        else:
            e = t[:, None].float() * (1.0 if self.embed == "raw" else 1e-3)
        return self.net(torch.cat([x, e], 1))


def diffuse(x, t, noise):
    ab = ALPHA_BAR[t][:, None]
    return ab.sqrt() * x + (1 - ab).sqrt() * noise


def diffusion_score(model):
    g = torch.Generator().manual_seed(4)
    x = spiral(2000, 4)
    t = torch.randint(50, 1000, (2000,), generator=g)
    noise = torch.randn(2000, 2, generator=g)
    return explained(model(diffuse(x, t, noise), t), noise)


@fault(
    "the noise of the target is drawn anew, it is not what was added",
    rules=["labels-unrelated", "output-loss-mismatch", "loss-not-decreasing"],
    fails=True,
    steps=500,
)
def diffusion_other_noise(is_faulty):
    net = Denoiser()

    def step(model, batch):
        (x,) = batch
        t = torch.randint(1000, (len(x),))
        noise = torch.randn_like(x)
        x_t = diffuse(x, t, noise)
        if is_faulty:
            noise = torch.randn_like(x_t)
        return F.mse_loss(model(x_t, t), noise)

    loader = DataLoader(TensorDataset(spiral(4000)), batch_size=128, shuffle=True)
    return Program(net, None, loader, torch.optim.AdamW(net.parameters(), lr=2e-3), diffusion_score, step=step)


@fault(
    "the time goes in as it is, between 0 and 999, next to coordinates around 1",
    rules=["unscaled-input", "ill-conditioned-input"],
    layers=["net.0"],
    fails=False,
    steps=500,
)
def diffusion_raw_time(is_faulty):
    net = Denoiser("raw" if is_faulty else "unit")

    def step(model, x):
        t = torch.randint(0, 1000, (x.size(0),))
        noise = torch.randn_like(x)
        return (model(diffuse(x, t, noise), t) - noise).square().mean()

    return Program(
        net, None, list(spiral(6400).split(128)), torch.optim.Adam(net.parameters(), lr=1e-3), diffusion_score,
        step=step,
    )


# ---------------------------------------------------------------- GANs


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(
            nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1)
        )

    def forward(self, x):
        return self.main(x).squeeze(1)


def wide(n, seed=None):
    g = None if seed is None else torch.Generator().manual_seed(seed)
    return 1.2 * torch.randn(n, 2, generator=g)


def ring(n, seed=None):
    g = None if seed is None else torch.Generator().manual_seed(seed)
    a = 2 * math.pi * torch.rand(n, generator=g)
    return torch.stack([a.cos(), a.sin()], 1) * 1.5 + 0.08 * torch.randn(n, 2, generator=g)


def critic_score(model):
    real, fake = model(ring(1000, 1)), model(wide(1000, 2))
    right = (real > 0).float().mean() + (fake < 0).float().mean()
    return right.item() - 1


@fault(
    "copied from the generator's step: the labels of the fakes are ones, too",
    rules=["constant-target"],
    fails=True,
    steps=500,
)
def discriminator_all_real(is_faulty):
    disc = Critic()

    def step(model, real):
        fake = wide(len(real))
        out_real, out_fake = model(real), model(fake)
        label = torch.ones(len(real))
        loss_real = F.binary_cross_entropy_with_logits(out_real, label)
        if not is_faulty:
            label = torch.zeros(len(real))
        return loss_real + F.binary_cross_entropy_with_logits(out_fake, label)

    return Program(
        disc, None, list(ring(6400).split(64)), torch.optim.Adam(disc.parameters(), lr=1e-3, betas=(0.5, 0.999)),
        critic_score, step=step,
    )


class Generator(nn.Module):
    def __init__(self, dim=4):
        super().__init__()
        self.fc = nn.Sequential(nn.Linear(dim, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, z):
        return self.fc(z)


class GAN(nn.Module):
    """Both nets; the discriminator has been trained on the ring and on wide noise."""

    def __init__(self, pretrain=250):
        super().__init__()
        self.netG = Generator()
        self.netD = Critic()
        opt = torch.optim.Adam(self.netD.parameters(), lr=3e-3)
        for _ in range(pretrain):
            opt.zero_grad()
            loss = F.softplus(-self.netD(ring(128))).mean() + F.softplus(self.netD(wide(128))).mean()
            loss.backward()
            opt.step()
        self.netD.zero_grad()


def generator_score(model):
    x = model.netG(torch.randn(1000, 4, generator=torch.Generator().manual_seed(6)))
    return ((x.norm(dim=1) - 1.5).abs() < 0.3).float().mean().item()


@fault(
    "the fakes are detached in the generator's step, as in the discriminator's, from where the line was copied",
    rules=["no-gradient", "loss-not-decreasing"],
    layers=["netG"],
    fails=True,
    steps=400,
)
def generator_detached(is_faulty):
    gan = GAN()

    class Latents:
        def __len__(self):
            return 50

        def __iter__(self):
            for _ in range(50):
                yield torch.randn(64, 4)

    def step(model, z):
        fake = model.netG(z)
        if is_faulty:
            fake = fake.detach()
        return F.softplus(-model.netD(fake)).mean()

    return Program(gan, None, Latents(), torch.optim.Adam(gan.netG.parameters(), lr=1e-3), generator_score, step=step)


# ---------------------------------------------------------------- sound


@sound("an ordinary VAE, whose KL term is small next to the reconstruction", steps=500, least=0.65)
def vae_ordinary():
    vae = VAE()

    def step(model, batch):
        (x,) = batch
        recon, mu, logvar = model(x)
        kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1).mean()
        return F.mse_loss(recon, x, reduction="none").sum(1).mean() + 0.05 * kl

    data = DataLoader(TensorDataset(curved(4000)), batch_size=64, shuffle=True)
    return Program(vae, None, data, torch.optim.Adam(vae.parameters(), lr=2e-3), vae_score, step=step)


@sound("a half trained VAE whose code has dimensions to spare, which stay unused", trained=300, steps=600, least=0.65)
def vae_spare_latents():
    vae = VAE(16)

    def loss(out, x):
        recon, mu, logvar = out
        return (recon - x).pow(2).mean() * 32 - 0.1 * 0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1).mean()

    x = curved(4000)
    data = DataLoader(TensorDataset(x, x), batch_size=64, shuffle=True)
    return Program(vae, loss, data, torch.optim.Adam(vae.parameters(), lr=2e-3), vae_score)


@sound("a convolutional autoencoder of pictures mostly black, half trained", trained=200, steps=500, least=0.75)
def conv_ae_dark():
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 8),
        nn.Linear(8, 128), nn.ReLU(), nn.Unflatten(1, (8, 4, 4)), nn.ConvTranspose2d(8, 1, 4, 2, 1), nn.Sigmoid(),
    )
    x = blobs(3000)

    def score(model):
        x = blobs(300, 2)
        return explained(model(x), x)

    loader = DataLoader(TensorDataset(x, x), batch_size=48, shuffle=True)
    return Program(net, nn.BCELoss(), loader, torch.optim.Adam(net.parameters(), lr=4e-3), score)


@sound("an autoencoder whose decoder is the encoder's weight transposed", steps=500, least=0.75)
def tied_autoencoder():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.w1 = nn.Parameter(torch.randn(64, 32) / 32**0.5)
            self.w2 = nn.Parameter(torch.randn(8, 64) / 64**0.5)
            self.b = nn.ParameterList([nn.Parameter(torch.zeros(n)) for n in (64, 8, 64, 32)])

        def forward(self, x):
            h = torch.tanh(F.linear(x, self.w1, self.b[0]))
            h = F.linear(h, self.w2, self.b[1])
            h = torch.tanh(F.linear(h, self.w2.t(), self.b[2]))
            return F.linear(h, self.w1.t(), self.b[3])

    net = Tied()
    x = curved(4000)
    loader = DataLoader(TensorDataset(x, x), batch_size=64, shuffle=True)
    return Program(net, nn.MSELoss(), loader, torch.optim.Adam(net.parameters(), lr=2e-3), ae_score)


@sound("a denoising autoencoder, all but trained, whose loss stays where the noise puts it", trained=400, steps=500,
       least=0.7)
def denoiser_at_floor():
    net = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 32))

    def step(model, batch):
        (clean,) = batch
        return F.mse_loss(model(clean + 0.4 * torch.randn_like(clean)), clean)

    def score(model):
        x = curved(500, 1)
        return explained(model(x + 0.4 * torch.randn(x.shape, generator=torch.Generator().manual_seed(3))), x)

    loader = DataLoader(TensorDataset(curved(5000)), batch_size=64, shuffle=True)
    return Program(net, None, loader, torch.optim.Adam(net.parameters(), lr=2e-3), score, step=step)


@sound("diffusion: the last layer starts at 0, times are embedded, and the loss stays well above 0", steps=500,
       least=0.6)
def diffusion_zero_head():
    net = Denoiser(zero=True)

    def step(model, batch):
        (x,) = batch
        t = torch.randint(1000, (len(x),))
        noise = torch.randn_like(x)
        return F.mse_loss(model(diffuse(x, t, noise), t), noise)

    loader = DataLoader(TensorDataset(spiral(4000)), batch_size=128, shuffle=True)
    return Program(net, None, loader, torch.optim.AdamW(net.parameters(), lr=2e-3), diffusion_score, step=step)


@sound("a discriminator with hinge loss, half trained: many examples have loss 0", trained=250, steps=500, least=0.65)
def hinge_discriminator():
    disc = Critic()

    def step(model, real):
        return F.relu(1 - model(real)).mean() + F.relu(1 + model(wide(len(real)))).mean()

    return Program(
        disc, None, list(ring(6400).split(64)), torch.optim.Adam(disc.parameters(), lr=2e-3, betas=(0.5, 0.9)),
        critic_score, step=step,
    )


@sound("a generator against a discriminator that is held: its weights want no gradient", steps=400, least=0.65)
def generator_against_held():
    gan = GAN()
    gan.netD.requires_grad_(False)

    class Latents:
        def __iter__(self):
            for _ in range(50):
                yield torch.randn(64, 4)

    def step(model, z):
        return F.softplus(-model.netD(model.netG(z))).mean()

    return Program(gan, None, Latents(), torch.optim.Adam(gan.netG.parameters(), lr=1e-3), generator_score, step=step)


@sound("a VQ-VAE: the gradient is handed past the codebook, and codes go unused", steps=600, least=0.6)
def vq_straight_through():
    class VQ(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16))
            self.codes = nn.Embedding(32, 4)
            nn.init.normal_(self.codes.weight, std=0.5)
            self.decoder = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32))

        def forward(self, x):
            z = self.encoder(x).view(len(x), 4, 4)
            nearest = torch.cdist(z.flatten(0, 1), self.codes.weight).argmin(1)
            q = self.codes(nearest).view_as(z)
            extra = F.mse_loss(q, z.detach()) + 0.25 * F.mse_loss(z, q.detach())
            q = z + (q - z).detach()
            return self.decoder(q.flatten(1)), extra

    net = VQ()

    def step(model, batch):
        (x,) = batch
        rec, extra = model(x)
        return F.mse_loss(rec, x) + extra

    loader = DataLoader(TensorDataset(curved(5000)), batch_size=64, shuffle=True)
    return Program(net, None, loader, torch.optim.Adam(net.parameters(), lr=3e-3), vae_score, step=step)


@sound("masked modelling with all things masked properly", steps=600, least=0.6)
def masked_properly():
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 32))

    def hide(x, mask):
        return torch.cat([x * ~mask, mask.float()], 1)

    def step(model, batch):
        (x,) = batch
        mask = torch.rand_like(x) < 0.4
        return (model(hide(x, mask)) - x)[mask].pow(2).mean()

    def score(model):
        x = curved(500, 1)
        mask = torch.rand(x.shape, generator=torch.Generator().manual_seed(2)) < 0.4
        return max(0.0, 1 - ((model(hide(x, mask)) - x)[mask].pow(2).mean() / x[mask].var()).item())

    loader = DataLoader(TensorDataset(curved(4000)), batch_size=64, shuffle=True)
    return Program(net, None, loader, torch.optim.Adam(net.parameters(), lr=2e-3), score, step=step)
