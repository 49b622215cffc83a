import torch
import torch.nn.functional as F
from program import Program, fault
from tidata import *
from torch import nn


@fault("targets of shape (B,) against outputs of shape (B, 1): MSE broadcasts", rules=["output-loss-mismatch"], fails=True, steps=300)
def price_column_lost(is_faulty):
    x, y, xt, yt = curve(seed=11)
    y = y[:, 0] if is_faulty else y
    model = mlp(8, 64, 64, 1)
    return Program(model, nn.MSELoss(), loader(x, y), torch.optim.Adam(model.parameters(), 3e-3), fit(xt, yt))


class Zipped:
    def __init__(self, a, b):
        self.a, self.b = a, b

    def __len__(self):
        return len(self.a)

    def __iter__(self):
        for (p,), (q,) in zip(self.a, self.b):
            yield p, q


@fault("features and labels come from two loaders, each shuffled by itself", rules=["labels-unrelated"], fails=True, steps=300)
def two_shuffled_loaders(is_faulty):
    x, y, xt, yt = images(seed=12)
    batches = Zipped(loader(x, seed=3), loader(y, seed=4 if is_faulty else 3))
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4)
    )
    return Program(model, nn.CrossEntropyLoss(), batches, torch.optim.Adam(model.parameters(), 2e-3), accuracy(xt, yt))


@fault("files listed folder by folder, and no shuffle", rules=["sorted-batches", "batchnorm-mode-gap"], fails=True, steps=200)
def folder_by_folder(is_faulty):
    x, y, xt, yt = images(n=1280, seed=13)
    order = y.argsort(stable=True)
    x, y = x[order], y[order]
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 16, 3), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Flatten(), nn.Linear(64, 4),
    )
    opt = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y, bs=32, shuffle=not is_faulty), opt, accuracy(xt, yt))


class VAE(nn.Module):
    def __init__(self, d, q):
        super().__init__()
        self.encoder = mlp(d, 48, 2 * q)
        self.decoder = mlp(q, 48, d)

    def forward(self, x):
        mu, logvar = self.encoder(x).chunk(2, 1)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp() if self.training else mu
        return self.decoder(z), mu, logvar


@fault("KL summed over the latents, reconstruction averaged over all features: the posterior collapses", rules=["term-dominates"], fails=True, steps=400)
def vae_posterior(is_faulty):
    x, xt = factors(seed=14)
    model = VAE(24, 6)

    def loss(out, target):
        rec, mu, logvar = out
        kl = -0.5 * (1 + logvar - mu**2 - logvar.exp()).sum(1).mean()
        if is_faulty:
            return F.mse_loss(rec, target) + 0.4 * kl
        return F.mse_loss(rec, target, reduction="none").sum(1).mean() + 0.4 * kl

    return Program(model, loss, loader(x, x), torch.optim.Adam(model.parameters(), 3e-3), lambda m: max(-1.0, r2(m(xt)[0], xt)))


class Tagger(nn.Module):
    def __init__(self, detach):
        super().__init__()
        self.detach = detach
        self.stem = nn.Sequential(nn.Conv2d(1, 16, 5), nn.ReLU(), nn.Conv2d(16, 24, 3), nn.ReLU())
        self.classifier = nn.Linear(24, 4)

    def forward(self, x):
        h = self.stem(x).mean((2, 3))
        if self.detach:
            h = h.detach()
        return self.classifier(h)


@fault("a detach() left over from a linear-probe experiment", rules=["no-gradient"], layers=["stem"], fails=False, steps=400)
def forgotten_probe(is_faulty):
    x, y, xt, yt = images(seed=15)
    model = Tagger(is_faulty)
    opt = torch.optim.Adam(model.parameters(), 4e-3)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), opt, accuracy(xt, yt))


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = mlp(10, 64, 64)
        self.head = nn.Linear(64, 5)

    def forward(self, x):
        return self.head(torch.relu(self.features(x)))


@fault("the head is swapped after the optimizer was made, and the features are frozen", rules=["no-gradient"], layers=["head"], fails=True, steps=300)
def head_swapped_late(is_faulty):
    x, y, xt, yt = table(seed=16)
    model = Backbone()
    for p in model.features.parameters():
        p.requires_grad_(False)
    if is_faulty:
        opt = torch.optim.Adam(model.parameters(), 1e-2)
        model.head = nn.Linear(64, 3)
    else:
        model.head = nn.Linear(64, 3)
        opt = torch.optim.Adam(model.parameters(), 1e-2)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), opt, accuracy(xt, yt))


@fault("ToTensor divides by 255, and the script does so once more", rules=["unscaled-input"], fails=True, steps=400)
def divided_twice(is_faulty):
    x, y, xt, yt = images(k=3, noise=0.3, seed=17)
    model = nn.Sequential(nn.Flatten(), nn.Linear(100, 64), nn.ReLU(), nn.Linear(64, 4))

    def prepare(a):
        a = ((a + 3) / 6).clamp(0, 1)
        return a / 255 if is_faulty else a

    opt = torch.optim.SGD(model.parameters(), 0.03, momentum=0.9)
    return Program(model, nn.CrossEntropyLoss(), loader(prepare(x), y), opt, accuracy(prepare(xt), yt))


class Levels(nn.Module):
    """Categorical columns: the embeddings of a row's levels are added up."""

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(20, 32) for _ in range(6)])
        self.head = nn.Linear(32, 1)

    def forward(self, x):
        return self.head(sum(t(x[:, i]) for i, t in enumerate(self.tables)))


@fault("the whole model, and so the optimizer's weights, in bfloat16", rules=["lost-updates"], layers=["tables"], fails=False, steps=400)
def brain_float_weights(is_faulty):
    g = gen(18)
    x = torch.randint(20, (2500, 6), generator=g)
    effect = torch.randn(6, 20, generator=g)
    y = sum(effect[i][x[:, i]] for i in range(6))[:, None] / 6**0.5
    x, xt, y, yt = x[:2000], x[2000:], y[:2000], y[2000:]
    model = Levels()
    if is_faulty:
        model = model.to(torch.bfloat16)
    opt = torch.optim.Adam(model.parameters(), 1e-3)

    def step(m, batch):
        a, b = batch
        return F.mse_loss(m(a).float(), b)

    return Program(model, None, loader(x, y, bs=128), opt, lambda m: max(-1.0, r2(m(xt).float(), yt)), step=step)
