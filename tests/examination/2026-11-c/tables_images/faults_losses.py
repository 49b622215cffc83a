"""Faults between outputs, losses and targets."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Normal

from data import *
from program import Program, fault


@fault("A VAE draws its code with sample() and not rsample(): the reconstruction sends no gradient to the encoder",
       rules=["no-gradient", "rank-collapse"], layers=["enc", "to_mu", "to_logvar"], fails=True, steps=400)
def vae_sample_without_rsample(is_faulty):
    start()
    xa, _, xb, _ = digits(standard=False)
    xa, xb = xa.flatten(1), xb.flatten(1)

    class VAE(nn.Module):
        def __init__(self):
            super().__init__()
            self.enc = nn.Sequential(nn.Linear(64, 64), nn.ELU())
            self.to_mu = nn.Linear(64, 12)
            self.to_logvar = nn.Linear(64, 12)
            self.dec = nn.Sequential(nn.Linear(12, 64), nn.ELU(), nn.Linear(64, 64))

        def forward(self, x):
            h = self.enc(x)
            mu, logvar = self.to_mu(h), self.to_logvar(h)
            if self.training:
                q = Normal(mu, (0.5 * logvar).exp())
                z = q.sample() if is_faulty else q.rsample()
            else:
                z = mu
            return self.dec(z), mu, logvar

    def elbo(out, x):
        recon, mu, logvar = out
        kl = -0.5 * (1 + logvar - mu**2 - logvar.exp()).sum(1).mean()
        return 60 * F.mse_loss(recon, x, reduction="none").sum(1).mean() + kl

    m = VAE()
    return Program(m, elbo, loader(xa, xa), torch.optim.Adam(m.parameters(), 3e-3), lambda m: r2_of(m(xb)[0], xb))


@fault("The KL term of a convolutional VAE is summed over batch and code while the reconstruction is a mean over pixels: the code carries nothing",
       rules=["summed-loss", "rank-collapse", "output-loss-mismatch"], fails=True, steps=300)
def vae_kl_summed(is_faulty):
    start()
    xa, _, xb, _ = digits(standard=False)

    class ConvVAE(nn.Module):
        def __init__(self, code=16):
            super().__init__()
            self.c1 = nn.Conv2d(1, 16, 3, 2, 1)
            self.c2 = nn.Conv2d(16, 32, 3, 2, 1)
            self.stats = nn.Linear(128, 2 * code)
            self.up = nn.Linear(code, 128)
            self.d1 = nn.ConvTranspose2d(32, 16, 4, 2, 1)
            self.d2 = nn.ConvTranspose2d(16, 1, 4, 2, 1)

        def forward(self, x):
            h = F.elu(self.c2(F.elu(self.c1(x)))).flatten(1)
            mu, logvar = self.stats(h).chunk(2, -1)
            z = mu + torch.randn_like(mu) * torch.exp(logvar / 2) if self.training else mu
            h = F.elu(self.up(z)).view(-1, 32, 2, 2)
            return self.d2(F.elu(self.d1(h))), mu, logvar

    def loss(out, x):
        recon, mu, logvar = out
        kl = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
        if not is_faulty:
            kl = kl / x.numel()
        return F.mse_loss(recon, x) + 0.03 * kl

    m = ConvVAE()
    return Program(m, loss, loader(xa, xa), torch.optim.Adam(m.parameters(), 3e-3), lambda m: r2_of(m(xb)[0], xb))


@fault("The class probabilities of a segmentation net come from a softmax over the width of the image, not over the channels",
       rules=["wrong-softmax-dimension", "output-loss-mismatch"], fails=False, steps=250)
def segmentation_softmax_over_width(is_faulty):
    start()
    x, mask = parts()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Conv2d(1, 12, 3, padding=1)
            self.b = nn.Conv2d(12, 24, 3, padding=1)
            self.c = nn.Conv2d(24, 24, 3, padding=1)
            self.up = nn.ConvTranspose2d(24, 12, 4, stride=4)
            self.out = nn.Conv2d(24, 3, 1)

        def forward(self, x):
            a = F.relu(self.a(x))
            b = F.relu(self.b(F.max_pool2d(a, 2)))
            c = F.relu(self.c(F.max_pool2d(b, 2)))
            x = torch.cat([a, F.relu(self.up(c))], 1)
            return self.out(x).softmax(-1 if is_faulty else -3)

    def nll(p, y):
        return F.nll_loss(torch.log(p + 1e-8), y)

    m = Net()
    return Program(m, nll, loader(x[200:], mask[200:], batch=12), torch.optim.Adam(m.parameters(), 5e-3), recall(x[:200], mask[:200]))


@fault("An own Gaussian likelihood multiplies the squared error by the variance and does not divide by it: the loss has no lower bound",
       rules=["output-loss-mismatch", "diverging"], fails=True, steps=300)
def log_variance_sign(is_faulty):
    start()
    xa, ya, xb, yb = noisy()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.l1 = nn.Linear(5, 48)
            self.l2 = nn.Linear(48, 48)
            self.mean = nn.Linear(48, 1)
            self.log_var = nn.Linear(48, 1)

        def forward(self, x):
            h = torch.tanh(self.l2(torch.tanh(self.l1(x))))
            return self.mean(h), self.log_var(h)

    def nll(out, y):
        mu, s = out
        w = torch.exp(s) if is_faulty else torch.exp(-s)
        return 0.5 * (w * (y - mu) ** 2 + s).mean()

    m = Net()
    return Program(m, nll, loader(xa, ya), torch.optim.Adam(m.parameters(), 3e-3), gauss_skill(xb, yb))



@fault("One-hot masks (N, H, W, C) are brought to (N, C, H, W) with reshape and not permute: the targets are scrambled",
       rules=["labels-unrelated", "output-loss-mismatch"], fails=True, steps=200)
def one_hot_reshaped(is_faulty):
    start()
    x, mask = parts()
    hot = F.one_hot(mask, 3).float()
    hot = hot.reshape(-1, 3, 16, 16) if is_faulty else hot.permute(0, 3, 1, 2).contiguous()

    class TinyUNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.down1 = nn.Conv2d(1, 12, 3, padding=1)
            self.down2 = nn.Conv2d(12, 24, 3, padding=1)
            self.mid = nn.Conv2d(24, 24, 3, padding=1)
            self.up1 = nn.Conv2d(48, 16, 3, padding=1)
            self.last = nn.Conv2d(28, 3, 1)

        def forward(self, x):
            a = F.relu(self.down1(x))
            b = F.relu(self.down2(F.max_pool2d(a, 2)))
            c = F.relu(self.mid(F.max_pool2d(b, 2)))
            u = torch.cat([F.interpolate(c, scale_factor=2), b], 1)
            u = F.relu(self.up1(u))
            return self.last(torch.cat([F.interpolate(u, scale_factor=2), a], 1))

    def dice_ce(logits, t):
        p = logits.softmax(1)
        inter = (p * t).sum((0, 2, 3))
        dice = 1 - (2 * inter + 1) / (p.sum((0, 2, 3)) + t.sum((0, 2, 3)) + 1)
        return dice.mean() + F.cross_entropy(logits, t)

    m = TinyUNet()
    return Program(m, dice_ce, loader(x[200:], hot[200:], batch=8), torch.optim.Adam(m.parameters(), 4e-3), iou(x[:200], mask[:200]))


@fault("A box head ends in a sigmoid, but the boxes are given in pixels and not as parts of the image",
       rules=["output-loss-mismatch", "unscaled-target", "saturated-output"], layers=["box"], fails=True, steps=250)
def boxes_in_pixels(is_faulty):
    start()
    x, _, box, _ = shapes()
    unit = 1.0 if is_faulty else 16.0

    class Detector(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(1, 16, 3, 2, 1)
            self.body = nn.Conv2d(16, 24, 3, 2, 1)
            self.fc = nn.Linear(24 * 16, 64)
            self.box = nn.Linear(64, 4)

        def forward(self, img):
            h = F.leaky_relu(self.stem(img), 0.1)
            h = F.leaky_relu(self.body(h), 0.1)
            h = F.leaky_relu(self.fc(h.flatten(1)), 0.1)
            return self.box(h).sigmoid()

    m = Detector()
    t = box / unit
    return Program(m, nn.SmoothL1Loss(), loader(x[200:], t[200:]), torch.optim.Adam(m.parameters(), 2e-3), lambda m: r2_of(m(x[:200]) * unit, box[:200]))


@fault("The labels of the generated images are copied from the line above: ones, like those of the real ones",
       rules=["constant-target", "labels-unrelated"], fails=True, steps=200)
def discriminator_all_real(is_faulty):
    start()
    xa, _, xb, _ = digits(standard=False)
    xa, xb = xa * 2 - 1, xb * 2 - 1
    g = torch.Generator().manual_seed(1)
    pixel_mean, pixel_std = xa.mean(0), xa.std(0)
    fake_a = (pixel_mean + pixel_std * torch.randn(xa.shape, generator=g)).clamp(-1, 1)
    fake_b = (pixel_mean + pixel_std * torch.randn(xb.shape, generator=g)).clamp(-1, 1)
    real_labels = torch.ones(len(xa), 1)
    fake_labels = torch.ones(len(fake_a), 1) if is_faulty else torch.zeros(len(fake_a), 1)
    D = nn.Sequential(nn.Conv2d(1, 16, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(16, 32, 4, 2, 1), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(128, 1))
    batches = loader(torch.cat([xa, fake_a]), torch.cat([real_labels, fake_labels]))
    score = lambda m: (m(xb) > 0).float().mean().item() + (m(fake_b) <= 0).float().mean().item() - 1
    return Program(D, nn.BCEWithLogitsLoss(), batches, torch.optim.Adam(D.parameters(), 1e-3, betas=(0.5, 0.999)), lambda m: max(0.0, score(m)))


@fault("Two views are only pulled together; the term that keeps embeddings apart is missing, so that all embeddings become one",
       rules=["rank-collapse", "output-loss-mismatch"], fails=True, steps=200)
def views_only_attract(is_faulty):
    start()
    xa, ya, xb, yb = digits()
    g = torch.Generator().manual_seed(2)

    def view(x):
        x = x + 0.4 * torch.randn(x.shape, generator=g)
        return torch.roll(x, int(torch.randint(-1, 2, (), generator=g)), 3)

    class Pairs:
        def __iter__(self):
            for i in torch.randperm(len(xa), generator=g)[:1376].split(32):
                yield view(xa[i]), view(xa[i])

        def __len__(self):
            return 43

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
            self.conv2 = nn.Conv2d(16, 32, 3, stride=2, padding=1)
            self.proj = nn.Linear(512, 24)

        def forward(self, x):
            x = F.relu(self.conv2(F.relu(self.conv1(x))))
            return self.proj(x.flatten(1))

    def step(model, batch):
        za, zb = model(batch[0]), model(batch[1])
        loss = F.mse_loss(za, zb)
        if not is_faulty:
            for z in (za, zb):
                z = z - z.mean(0)
                cov = z.T @ z / (len(z) - 1)
                loss = loss + F.relu(1 - torch.sqrt(cov.diagonal() + 1e-4)).mean() + 0.04 * (cov - torch.diag(cov.diagonal())).pow(2).sum() / 24
        return loss

    def score(m):  # embeddings are kept with two decimals for the look-up
        za, zb = (m(xa) * 20).round() / 20, (m(xb) * 20).round() / 20
        near = torch.cdist(zb, za).topk(5, largest=False).indices
        return (ya[near].mode(1).values == yb).float().mean().item()

    m = Encoder()
    return Program(m, None, Pairs(), torch.optim.Adam(m.parameters(), 2e-3), score, step=step)


@fault("Labels that were not collected are coded -1 and go into the binary cross entropy as if they were labels",
       rules=["output-loss-mismatch", "padding-in-loss", "diverging"], fails=True, steps=300)
def missing_labels_minus_one(is_faulty):
    start()
    xa, ya, xb, yb = tags(seed=19)
    g = torch.Generator().manual_seed(4)
    ya[torch.rand(ya.shape, generator=g) < 0.35] = -1

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.inp = nn.Linear(10, 64)
            self.norm = nn.LayerNorm(64)
            self.mid = nn.Linear(64, 64)
            self.out = nn.Linear(64, 6)

        def forward(self, x):
            h = F.gelu(self.norm(self.inp(x)))
            return self.out(h + F.gelu(self.mid(h)))

    def criterion(logits, y):
        if is_faulty:
            return F.binary_cross_entropy_with_logits(logits, y)
        known = y >= 0
        return F.binary_cross_entropy_with_logits(logits[known], y[known])

    m = Tagger()
    score = lambda m: max(0.0, 2 * ((m(xb) > 0).float() == yb).float().mean().item() - 1)
    return Program(m, criterion, loader(xa, ya), torch.optim.AdamW(m.parameters(), 2e-3), score)


def _pairs(x, y, n, seed, own):
    """Half of the pairs of one class; some pair an image with itself."""
    r = np.random.RandomState(seed)
    i = r.randint(0, len(x), n)
    j = r.randint(0, len(x), n)
    labels = y.numpy()
    for k in range(0, n, 2):
        j[k] = r.choice(np.flatnonzero(labels == labels[i[k]]))
    if own:
        j[::10] = i[::10]
    i, j = torch.tensor(i), torch.tensor(j)
    return x[i], x[j], (y[i] == y[j]).float()


@fault("The distance of a siamese net is a bare square root; where a pair holds the same image twice its gradient is NaN",
       rules=["non-finite"], fails=True, steps=300)
def siamese_bare_root(is_faulty):
    start()
    xa, ya, xb, yb = digits()
    a, b, same = _pairs(xa, ya, 3000, 1, own=True)
    ta, tb, tsame = _pairs(xb, yb, 600, 2, own=False)

    class Siamese(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32))

        def forward(self, left, right):
            d2 = (self.embed(left) - self.embed(right)).pow(2).sum(1)
            return torch.sqrt(d2 if is_faulty else d2 + 1e-6)

    def contrastive(d, same):
        return (same * d**2 + (1 - same) * F.relu(2 - d) ** 2).mean()

    class Batches:
        def __iter__(self):
            return (({"left": l, "right": r}, s) for l, r, s in inner)

        def __len__(self):
            return len(inner)

    inner = loader(a, b, same, batch=50)
    m = Siamese()
    score = lambda m: max(0.0, 2 * ((m(ta, tb) < 1).float() == tsame).float().mean().item() - 1)
    return Program(m, contrastive, Batches(), torch.optim.Adam(m.parameters(), 1e-3), score)


@fault("The cosine similarities are divided by a temperature of 0.001: every probability is 0 or 1 from the start",
       rules=["saturated-output", "output-loss-mismatch", "bad-initialisation", "exploding-gradient"], fails=False, steps=250)
def cosine_temperature(is_faulty):
    start()
    xa, ya, xb, yb = digits()
    tau = 0.001 if is_faulty else 0.1

    class CosineNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(512, 32))
            self.prototypes = nn.Parameter(torch.randn(10, 32))

        def forward(self, x):
            return F.normalize(self.body(x), dim=1) @ F.normalize(self.prototypes, dim=1).T / tau

    m = CosineNet()
    return Program(m, nn.CrossEntropyLoss(), loader(xa, ya), torch.optim.Adam(m.parameters(), 2e-3), likelihood(xb, yb))


