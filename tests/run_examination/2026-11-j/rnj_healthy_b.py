"""Healthy loops, second half."""
import copy

import torch
from torch import nn
from torch.nn import functional as F

from program import healthy
from rnj_data import rnj_cells, rnj_chain, rnj_graphs, rnj_lowrank, rnj_shapes, rnj_wine
from rnj_faults_b import RnjUNet


@healthy("The discriminator of a GAN: as the generator gets better, its loss goes up towards ln 2.", steps=1500)
def rnj_discriminator(record):
    torch.manual_seed(401)
    generator = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 32), nn.LeakyReLU(0.2),
                              nn.Linear(32, 2))
    model = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.5, 0.99))
    other = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.99))
    loss = nn.BCEWithLogitsLoss()
    rec = record(model, optimizer, loss)
    for step in range(1500):
        angle = torch.rand(64) * 3.14
        real = torch.stack([1.5 * torch.cos(angle), 1.5 * torch.sin(angle)], 1) + 0.25 * torch.randn(64, 2)
        fake = generator(torch.randn(64, 2))
        x = torch.cat([real, fake.detach()])
        y = torch.cat([torch.ones(64, 1), torch.zeros(64, 1)])
        optimizer.zero_grad()
        value = loss(model(x), y)
        value.backward()
        optimizer.step()
        rec.step(value, (x, y))
        for p in model.parameters():
            p.requires_grad_(False)
        other.zero_grad()
        loss(model(generator(torch.randn(64, 2))), torch.ones(64, 1)).backward()
        other.step()
        for p in model.parameters():
            p.requires_grad_(True)
    with torch.no_grad():
        made = generator(torch.randn(2000, 2))
    rnj_discriminator.made = (made.norm(dim=1).mean().item(), made.std(0).tolist(), made.mean(0).tolist())


class RnjMasked(nn.Module):
    def __init__(self, words=13, width=32, length=10):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.place = nn.Parameter(0.2 * torch.randn(length, width))
        self.mixer = nn.Sequential(nn.Conv1d(width, 48, 3, padding=1), nn.GELU(), nn.Conv1d(48, width, 3, padding=1))
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, words - 1)

    def forward(self, x):
        h = self.embed(x) + self.place
        h = h + self.mixer(h.transpose(1, 2)).transpose(1, 2)
        return self.out(self.norm(h))


def rnj_masked_loss(outputs, targets):
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), ignore_index=-100)


@healthy("Masked tokens: only some places count, and the loss stops at the entropy of the source.", steps=1200)
def rnj_masked(record):
    torch.manual_seed(402)
    table = torch.softmax(2.5 * torch.randn(12, 12), 1)
    model = RnjMasked()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, 1200)

    def rnj_draw(n):
        y = rnj_chain(n, 10, table)
        hidden = torch.rand(n, 10) < 0.15
        hidden[:, 4] |= ~hidden.any(1)
        return torch.where(hidden, torch.full_like(y, 12), y), torch.where(hidden, y, torch.full_like(y, -100))

    xv, yv = rnj_draw(800)
    rec = record(model, optimizer, rnj_masked_loss)
    for step in range(1200):
        x, y = rnj_draw(32)
        optimizer.zero_grad()
        value = rnj_masked_loss(model(x), y)
        value.backward()
        optimizer.step()
        scheduler.step()
        rec.step(value, (x, y))
        if step % 120 == 119:
            with torch.no_grad():
                rec.validation(rnj_masked_loss(model(xv), yv).item())


class RnjVae(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(20, 40), nn.SiLU())
        self.mu = nn.Linear(40, 4)
        self.log_var = nn.Linear(40, 4)
        self.decoder = nn.Sequential(nn.Linear(4, 40), nn.SiLU(), nn.Linear(40, 20))

    def forward(self, x):
        h = self.encoder(x)
        mu, log_var = self.mu(h), self.log_var(h)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * log_var) if self.training else mu
        return torch.cat([self.decoder(z), mu, log_var], 1)


@healthy("A VAE whose KL term is warmed up, so that the loss rises on purpose; evaluated with averaged weights.",
         steps=1400)
def rnj_vae(record):
    torch.manual_seed(403)
    basis = torch.randn(4, 20)
    model = RnjVae()
    average = copy.deepcopy(model).eval()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    beta = [0.0]

    def rnj_elbo(outputs, targets):
        recon, mu, log_var = outputs[:, :20], outputs[:, 20:24], outputs[:, 24:]
        kl = 0.5 * (mu ** 2 + log_var.exp() - 1 - log_var).sum(1).mean()
        return 10 * F.mse_loss(recon, targets) + beta[0] * kl

    xv = rnj_lowrank(600, basis)
    rec = record(model, optimizer, rnj_elbo)
    for step in range(1400):
        beta[0] = min(step / 700, 1.0) * 0.2
        x = rnj_lowrank(64, basis)
        optimizer.zero_grad()
        value = rnj_elbo(model(x), x)
        value.backward()
        optimizer.step()
        with torch.no_grad():
            for a, p in zip(average.parameters(), model.parameters()):
                a.lerp_(p, 0.02)
        rec.step(value, (x, x))
        if step % 140 == 139:
            with torch.no_grad():
                rec.validation(F.mse_loss(average(xv)[:, :20], xv).item())


class RnjGraphNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 32)
        self.second = nn.Linear(64, 32)
        self.out = nn.Linear(64, 1)

    def forward(self, x):
        f, a = x[..., :3], x[..., 3:]
        a = a / (a.sum(-1, keepdim=True) + 1)
        h = F.silu(self.first(torch.cat([f, a @ f], -1)))
        h = F.silu(self.second(torch.cat([h, a @ h], -1)))
        return self.out(torch.cat([h.sum(1) / 2, h.mean(1)], -1))


@healthy("Accumulation over four parts with zero_grad(set_to_none=False), and a smaller last batch in every epoch.",
         steps=1200)
def rnj_accumulate(record):
    torch.manual_seed(404)
    xa, ya = rnj_graphs(3000)
    xv, yv = rnj_graphs(600)
    model = RnjGraphNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.02)
    loss = nn.MSELoss()
    rec = record(model, optimizer, loss)
    step = 0
    while step < 1200:
        order = torch.randperm(3000)
        for start in range(0, 3000, 64):  # the last one holds 56
            at = order[start:start + 64]
            x, y = xa[at], ya[at]
            optimizer.zero_grad(set_to_none=False)
            total = 0.0
            for part in range(0, len(at), 16):
                xp, yp = x[part:part + 16], y[part:part + 16]
                value = loss(model(xp), yp) * len(xp) / len(at)
                value.backward()
                total = total + value.detach()
            optimizer.step()
            rec.step(total, (x, y))
            step += 1
            if step % 100 == 0:
                with torch.no_grad():
                    rec.validation(loss(model(xv), yv).item())
            if step == 1200:
                break


class RnjViews(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
                                     nn.Conv2d(8, 24, 3, 2, 1, bias=False), nn.BatchNorm2d(24), nn.ReLU(),
                                     nn.Flatten(), nn.Linear(24 * 9, 24))

    def forward(self, x):
        b = x.shape[0]
        z = F.normalize(self.encoder(x.flatten(0, 1)), dim=1)
        return z.view(b, 2, -1)


def rnj_info_nce(outputs, targets):
    return F.cross_entropy(outputs[:, 0] @ outputs[:, 1].T / 0.15, targets)


@healthy("Contrastive learning; BatchNorm is frozen on purpose for the last part, at a low rate.", steps=1000)
def rnj_contrast(record):
    torch.manual_seed(405)
    model = RnjViews()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000, 1e-5)

    def rnj_draw(n):
        clean, _ = rnj_shapes(n, noise=0.0)
        views = torch.stack([clean, torch.roll(clean, 1, 3)], 1)
        return views + 0.4 * torch.randn_like(views), torch.arange(n)

    held = [rnj_draw(48) for _ in range(6)]
    rec = record(model, optimizer, rnj_info_nce)
    for step in range(1000):
        if step >= 750:
            for module in model.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.eval()
        x, y = rnj_draw(48)
        optimizer.zero_grad()
        value = rnj_info_nce(model(x), y)
        value.backward()
        optimizer.step()
        scheduler.step()
        rec.step(value, (x, y))
        if step % 100 == 99:
            model.eval()
            with torch.no_grad():
                rec.validation(sum(rnj_info_nce(model(a), b).item() for a, b in held) / 6)
            model.train()


class RnjTcn(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv1d(1, 16, 3, dilation=1), nn.SiLU(), nn.Conv1d(16, 16, 3, dilation=2),
                                 nn.SiLU(), nn.Conv1d(16, 16, 3, dilation=4), nn.SiLU())
        self.out = nn.Linear(16, 1)

    def forward(self, x):
        return self.out(self.net(x)[:, :, -1])


@healthy("Targets with heavy tails under a Huber loss and clipping: single batches stand out, and nothing comes of it.",
         steps=1400)
def rnj_tails(record):
    torch.manual_seed(406)
    model = RnjTcn()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.08, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.PolynomialLR(optimizer, 1400, 1.0)
    loss = nn.HuberLoss(delta=0.5)
    heavy = torch.distributions.StudentT(1.8)

    def rnj_draw(n):
        t = torch.arange(16).float()
        f, p = torch.rand(n, 1) * 0.5 + 0.3, torch.rand(n, 1) * 6.28
        x = torch.sin(f * t + p)
        y = torch.sin(f * 17 + p) + 0.1 * heavy.sample((n, 1))
        return (x + 0.02 * torch.randn(n, 16))[:, None], y

    xv, yv = rnj_draw(1000)
    rec = record(model, optimizer, loss)
    for step in range(1400):
        x, y = rnj_draw(32)
        optimizer.zero_grad()
        value = loss(model(x), y)
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
        rec.step(value, (x, y))
        if step % 140 == 139:
            with torch.no_grad():
                rec.validation(loss(model(xv), yv).item())


@healthy("L-BFGS on all of a small table with a penalty: the same batch each step, and an optimum reached early.",
         steps=1000)
def rnj_lbfgs(record):
    torch.manual_seed(407)
    x, y = rnj_wine()
    order = torch.randperm(len(y))
    xt, yt, xv, yv = x[order[:130]], y[order[:130]], x[order[130:]], y[order[130:]]
    model = nn.Linear(13, 3)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.05, max_iter=1, history_size=10)

    def rnj_penalised(outputs, targets):
        return F.cross_entropy(outputs, targets) + 0.01 * sum((p ** 2).sum() for p in model.parameters())

    rec = record(model, optimizer, rnj_penalised)

    def rnj_closure():
        optimizer.zero_grad()
        value = rnj_penalised(model(xt), yt)
        value.backward()
        return value

    for step in range(1000):
        value = optimizer.step(rnj_closure)
        rec.step(value, (xt, yt))
        if step % 100 == 99:
            with torch.no_grad():
                rec.validation(F.cross_entropy(model(xv), yv).item())


class RnjWords(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(300, 16)
        self.hidden = nn.Linear(32, 48)
        self.out = nn.Linear(48, 10)

    def forward(self, x):
        return self.out(F.gelu(self.hidden(self.embed(x).flatten(1))))


@healthy("Words after Zipf: most rows of the embedding get no gradient in most steps.", steps=1500)
def rnj_zipf(record):
    torch.manual_seed(408)
    often = 1 / torch.arange(1, 301).float()
    tag = torch.randint(0, 10, (300,))
    model = RnjWords()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.03)
    loss = nn.CrossEntropyLoss()

    def rnj_draw(n):
        w = torch.multinomial(often, 2 * n, replacement=True).view(n, 2)
        return w, torch.where(w[:, 0] % 2 == 0, tag[w[:, 1]], (tag[w[:, 1]] + 1) % 10)

    xv, yv = rnj_draw(2000)
    rec = record(model, optimizer, loss)
    for step in range(1500):
        x, y = rnj_draw(64)
        optimizer.zero_grad()
        value = loss(model(x), y)
        value.backward()
        optimizer.step()
        rec.step(value, (x, y))
        if step % 150 == 149:
            with torch.no_grad():
                rec.validation(loss(model(xv), yv).item())


@healthy("Fine-tuning a segmentation net for another contrast with a tiny rate.", steps=1000)
def rnj_finetune(record):
    torch.manual_seed(409)
    model = RnjUNet()
    loss = nn.BCEWithLogitsLoss()
    before = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(250):
        x, y = rnj_cells(12)
        before.zero_grad()
        loss(model(x), y).backward()
        before.step()

    def rnj_draw(n):
        x, y = rnj_cells(n, noise=0.6)
        return 0.7 * x + 0.35, y

    xv, yv = rnj_draw(200)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-5, weight_decay=0.01)
    rec = record(model, optimizer, loss)
    for step in range(1000):
        x, y = rnj_draw(16)
        optimizer.zero_grad()
        value = loss(model(x), y)
        value.backward()
        optimizer.step()
        rec.step(value, (x, y))
        if step % 100 == 99:
            with torch.no_grad():
                rec.validation(loss(model(xv), yv).item())
