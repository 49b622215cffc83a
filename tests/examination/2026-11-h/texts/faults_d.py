"""Regularisers, terms, optimizers, layers of one's own."""
import torch
from torch import nn
from torch.nn import functional as F
from program import Program, fault, sound  # noqa: F401
from textdata import acc, before, chain, gen, keyword, loader, r2, waves  # noqa: F401
from faults_b import ar_series


class SeqVAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(8, 16)
        self.enc = nn.GRU(16, 32, batch_first=True)
        self.mu = nn.Linear(32, 16)
        self.logvar = nn.Linear(32, 16)
        self.dec = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 5 * 8))

    def forward(self, x):
        h = self.enc(self.emb(x))[1][0]
        mu, logvar = self.mu(h), self.logvar(h) - 3
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp() if self.training else mu
        return self.dec(z).unflatten(1, (5, 8)), mu, logvar


@fault("A VAE of sentences: the KL term is summed over batch and latents, the reconstruction is a mean; the latent dies",
       rules=("term-dominates", "rank-collapse", "summed-loss"), fails=True, steps=400)
def sentence_vae_kl_summed(bad):
    x = torch.randint(0, 8, (1500, 5), generator=gen(60))
    xt = torch.randint(0, 8, (300, 5), generator=gen(61))
    model = SeqVAE()

    def step(m, batch):
        (t,) = batch
        logits, mu, logvar = m(t)
        kl = -0.5 * (1 + logvar - mu ** 2 - logvar.exp())
        kl = kl.sum() if bad else 1e-3 * kl.sum(1).mean()
        return F.cross_entropy(logits.transpose(1, 2), t) + kl

    return Program(model, None, loader(x, bs=50), torch.optim.Adam(model.parameters(), lr=5e-3),
                   lambda m: acc(m(xt)[0], xt), step=step)


class BagNet(nn.Module):
    def __init__(self, vocab, d, keep=None):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.drop = nn.Dropout(keep) if keep is not None else nn.Identity()
        self.conv = nn.Conv1d(d, 24, 3, padding=1)
        self.fc = nn.Linear(24, 6)

    def forward(self, x):
        h = self.drop(self.emb(x)).transpose(1, 2)
        return self.fc(F.relu(self.conv(h)).amax(2))


@fault("The embedding is replaced by a larger one for the new vocabulary after the optimizer was made",
       rules=("no-gradient",), layers=("emb",), fails=False, steps=250)
def embedding_replaced_after_optimizer(bad):
    x, y, _ = keyword(1200, 16, 120, 6, 64)
    xt, yt, _ = keyword(300, 16, 120, 6, 65)
    model = BagNet(50, 3)
    model.conv = nn.Conv1d(3, 24, 1)
    if not bad:
        model.emb = nn.Embedding(120, 3)
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    if bad:
        model.emb = nn.Embedding(120, 3)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), opt, lambda m: acc(m(xt), yt))


class AudioCNN(nn.Module):
    def __init__(self, momentum):
        super().__init__()
        self.conv1 = nn.Conv1d(1, 12, 9, stride=2)
        self.bn1 = nn.BatchNorm1d(12, momentum=momentum)
        self.conv2 = nn.Conv1d(12, 16, 5, stride=2)
        self.bn2 = nn.BatchNorm1d(16, momentum=momentum)
        self.fc = nn.Linear(16, 4)

    def forward(self, x):
        h = F.relu(self.bn1(self.conv1(x[:, None])))
        h = F.relu(self.bn2(self.conv2(h)))
        return self.fc(h.mean(2))


@fault("Batch normalisation with momentum=1e-4 (a decay of 0.9999 'converted'): running statistics stay where they began",
       rules=("batchnorm-mode-gap",), layers=("bn1", "bn2"), fails=True, steps=200)
def audio_bn_momentum_tiny(bad):
    x, y = waves(640, 80, 68)
    xt, yt = waves(300, 80, 69)
    x, xt = 0.05 * x + 0.3, 0.05 * xt + 0.3
    model = AudioCNN(1e-4 if bad else 0.1)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(model.parameters(), lr=5e-3),
                   lambda m: acc(m(xt), yt))
