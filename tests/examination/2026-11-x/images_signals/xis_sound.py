"""Set-ups with nothing wrong."""

from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
from program import Program, sound
from torch import nn
from torch.func import functional_call
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR
from torch.utils.data import DataLoader
from xis_data import accuracy, beats, blobs, fields, gratings, grid, iou, loader, r2, shapes, tones

# ---------------------------------------------------------------- ordinary


@sound("ordinary: a small convolutional network", steps=250, least=0.85)
def xis_plain_cnn():
    x, y = shapes(900)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(32, 4),
    )
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    return Program(net, nn.CrossEntropyLoss(), loader(x[:700], y[:700]), opt, lambda m: accuracy(m(x[700:]), y[700:]))


class UNet(nn.Module):
    def __init__(self, c=12):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, c, 3, padding=1), nn.ReLU())
        self.bottom = nn.Sequential(nn.Conv2d(c, 2 * c, 3, padding=1), nn.ReLU(), nn.Conv2d(2 * c, c, 3, padding=1), nn.ReLU())
        self.up = nn.Sequential(nn.Conv2d(2 * c, c, 3, padding=1), nn.ReLU(), nn.Conv2d(c, 1, 1))

    def forward(self, x):
        a = self.down(x)
        b = F.interpolate(self.bottom(F.max_pool2d(a, 2)), scale_factor=2)
        return self.up(torch.cat([a, b], 1)).squeeze(1)


@sound("ordinary: a small U-Net, half trained", trained=100, steps=250, least=0.75)
def xis_plain_unet():
    x, mask, _ = blobs(600)
    net = UNet()
    return Program(
        net,
        nn.BCEWithLogitsLoss(),
        loader(x[:450], mask[:450], batch=16),
        torch.optim.AdamW(net.parameters(), lr=2e-3),
        lambda m: iou(m(x[450:]) > 0, mask[450:]),
    )


@sound("ordinary: beats in an electrocardiogram, OneCycle", steps=300, least=0.85)
def xis_plain_beats():
    x, y, _ = beats(900)
    net = nn.Sequential(
        nn.Conv1d(1, 16, 7, stride=2),
        nn.GroupNorm(4, 16),
        nn.SiLU(),
        nn.Conv1d(16, 32, 5, stride=2),
        nn.GroupNorm(4, 32),
        nn.SiLU(),
        nn.AdaptiveMaxPool1d(1),
        nn.Flatten(),
        nn.Linear(32, 3),
    )
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.01)
    return Program(
        net,
        F.cross_entropy,
        loader(x[:700], y[:700]),
        opt,
        lambda m: accuracy(m(x[700:]), y[700:]),
        scheduler=OneCycleLR(opt, max_lr=1e-2, total_steps=320),
    )


class Spectro(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("window", torch.hann_window(32))
        self.conv = nn.Conv2d(1, 16, 3, padding=1)
        self.bn = nn.BatchNorm2d(16)
        self.fc = nn.Linear(16 * 17, 5)

    def forward(self, wave):
        s = torch.stft(wave[:, 0], 32, 16, window=self.window, return_complex=True).abs()
        h = F.relu(self.bn(self.conv(torch.log1p(s).unsqueeze(1))))
        return self.fc(h.mean(-1).flatten(1))


@sound("ordinary: a spectrogram inside the network", trained=60, steps=200, least=0.85)
def xis_plain_spectrogram():
    x, y = tones(900, length=128, classes=5, noise=0.8)
    net = Spectro()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    return Program(net, nn.CrossEntropyLoss(), loader(x[:700], y[:700]), opt, lambda m: accuracy(m(x[700:]), y[700:]))


class Basic(nn.Module):
    def __init__(self, a, b, stride=1, zero_last=False):
        super().__init__()
        self.conv1 = nn.Conv2d(a, b, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(b)
        self.conv2 = nn.Conv2d(b, b, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(b)
        self.short = nn.Conv2d(a, b, 1, stride, bias=False) if a != b or stride > 1 else nn.Identity()
        if zero_last:
            nn.init.zeros_(self.bn2.weight)

    def forward(self, x):
        h = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(h)) + self.short(x))


class ResNet(nn.Module):
    def __init__(self, classes, zero_last=False, c=12):
        super().__init__()
        self.stem = nn.Conv2d(1, c, 3, padding=1)
        self.layer1 = Basic(c, c, 1, zero_last)
        self.layer2 = Basic(c, 2 * c, 2, zero_last)
        self.fc = nn.Linear(2 * c, classes)

    def forward(self, x):
        return self.fc(self.layer2(self.layer1(self.stem(x))).mean((2, 3)))


@sound("ordinary: a residual network, SGD with momentum and a cosine", trained=150, steps=300, least=0.85)
def xis_plain_resnet():
    x, y = shapes(900, size=10)
    net = ResNet(4)
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4, nesterov=True)
    return Program(
        net,
        nn.CrossEntropyLoss(),
        loader(x[:700], y[:700]),
        opt,
        lambda m: accuracy(m(x[700:]), y[700:]),
        scheduler=CosineAnnealingLR(opt, 300),
    )


class Patches(nn.Module):
    """A transformer over patches, with or without positions."""

    def __init__(self, positions, classes, dim=32, depth=1):
        super().__init__()
        self.embed = nn.Conv2d(1, dim, 3, stride=3)
        self.pos = nn.Parameter(0.5 * torch.randn(16, dim)) if positions else None
        layer = nn.TransformerEncoderLayer(dim, 2, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, classes))

    def forward(self, x):
        h = self.embed(x).flatten(2).transpose(1, 2)
        if self.pos is not None:
            h = h + self.pos
        return self.head(self.encoder(h).mean(1))


@sound("ordinary: a vision transformer with warm-up", steps=300, least=0.75)
def xis_plain_vit():
    x, _, where = blobs(900, radius=(0.3, 0.4))
    y = 2 * (where[:, 0] > 0).long() + (where[:, 1] > 0).long()
    net = Patches(True, 4, depth=2)
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.05)
    return Program(
        net,
        nn.CrossEntropyLoss(),
        loader(x[:700], y[:700]),
        opt,
        lambda m: accuracy(m(x[700:]), y[700:]),
        scheduler=LambdaLR(opt, lambda i: min(1.0, (i + 1) / 30)),
    )


class PlainVAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 12))
        self.decode = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64))

    def forward(self, x):
        mu, logvar = self.encode(x).chunk(2, 1)
        z = mu + torch.randn_like(mu) * torch.exp(logvar / 2) if self.training else mu
        return self.decode(z).view_as(x), mu, logvar


@sound("a VAE whose losses are sums over pixels and latents, and means over the batch: a large loss", steps=500, least=0.8)
def xis_plain_vae():
    x = fields(900, 8, coarse=2)
    net = PlainVAE()

    def loss(out, target):
        recon, mu, logvar = out
        kl = -0.5 * (1 + logvar - mu**2 - logvar.exp()).sum(1)
        return ((recon - target).pow(2).flatten(1).sum(1) / (2 * 0.1) + kl).mean()

    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    return Program(net, loss, loader(x[:700], x[:700]), opt, lambda m: r2(m(x[700:])[0], x[700:]))


# ---------------------------------------------------------------- easily mistaken


@sound("the last BatchNorm of every residual branch starts at a scale of 0", steps=250, least=0.85)
def xis_zero_gamma():
    x, y = gratings(900, size=10, noise=0.7)
    net = ResNet(4, zero_last=True)
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    return Program(net, nn.CrossEntropyLoss(), loader(x[:700], y[:700]), opt, lambda m: accuracy(m(x[700:]), y[700:]))


class Probe(nn.Module):
    def __init__(self, body, head):
        super().__init__()
        self.body, self.head = body, head

    def train(self, mode=True):
        super().train(mode)
        self.body.eval()
        return self

    def forward(self, x):
        with torch.no_grad():
            h = self.body(x)
        return self.head(h)


@sound("a pretrained body is frozen, in evaluation mode, under no_grad; only the head learns", trained=20, steps=200, least=0.8)
def xis_frozen_body():
    x, kind = shapes(1000, classes=6)
    body = nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 24, 3), nn.BatchNorm2d(24), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten()
    )
    old = nn.Linear(24, 6)
    opt = torch.optim.Adam([*body.parameters(), *old.parameters()], lr=3e-3)
    for i in range(200):
        j = torch.arange(32 * i, 32 * i + 32) % 1000
        opt.zero_grad()
        F.cross_entropy(old(body(x[j])), kind[j]).backward()
        opt.step()
    opt.zero_grad()
    for p in body.parameters():
        p.requires_grad_(False)
    net = Probe(body, nn.Linear(24, 3)).train()
    y = torch.tensor([0, 1, 2, 0, 1, 2])
    xt, kt = shapes(300, classes=6)
    return Program(
        net,
        nn.CrossEntropyLoss(),
        loader(x, y[kind]),
        torch.optim.Adam(net.head.parameters(), lr=1e-2),
        lambda m: accuracy(m(xt), y[kt]),
    )


class MeanTeacher(nn.Module):
    def __init__(self):
        super().__init__()
        self.student = nn.Sequential(nn.Conv1d(1, 16, 9), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(16, 4))
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)

    def forward(self, x):
        return self.student(x)

    @torch.no_grad()
    def follow(self, rate=0.95):
        for t, s in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
            t.lerp_(s, 1 - rate)


@sound("a teacher without gradients follows its student, whose loss holds a term between them", trained=200, steps=400, least=0.8)
def xis_mean_teacher():
    x, y = tones(1000, noise=0.4)
    net = MeanTeacher()

    def step(model, batch):
        wave, kind = batch
        model.follow()
        out = model(wave + 0.1 * torch.randn_like(wave))
        with torch.no_grad():
            soft = model.teacher(wave + 0.1 * torch.randn_like(wave)).softmax(1)
        return F.cross_entropy(out[:12], kind[:12]) + 0.3 * (out.softmax(1) - soft).pow(2).sum(1).mean()

    return Program(
        net,
        None,
        loader(x[:800], y[:800]),
        torch.optim.Adam(net.parameters(), lr=1e-2),
        lambda m: accuracy(m.teacher(x[800:]), y[800:]),
        step=step,
    )


@sound("a transformer without positions, for a texture that is the same everywhere", steps=300, least=0.8)
def xis_texture_set():
    x, y = gratings(1000, noise=0.4)
    net = Patches(False, 4)
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    return Program(net, nn.CrossEntropyLoss(), loader(x[:800], y[:800]), opt, lambda m: accuracy(m(x[800:]), y[800:]))


class Tied(nn.Module):
    """The decoder uses the transposed weights of the encoder."""

    def __init__(self, pixels=64, hidden=16):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(hidden, pixels) / 8)
        self.bias = nn.Parameter(torch.zeros(hidden))
        self.out_bias = nn.Parameter(torch.zeros(pixels))

    def forward(self, x):
        h = torch.tanh(F.linear(x.flatten(1), self.weight, self.bias))
        return F.linear(h, self.weight.T, self.out_bias).view_as(x)


@sound("an autoencoder with tied weights that removes noise", steps=400, least=0.75)
def xis_tied():
    x = fields(900, 8, coarse=3)
    noisy = x + 0.3 * torch.randn_like(x)
    net = Tied()
    opt = torch.optim.Adam(net.parameters(), lr=5e-3)
    return Program(net, F.mse_loss, loader(noisy[:700], x[:700]), opt, lambda m: r2(m(noisy[700:]), x[700:]))


class Pix2Pix(nn.Module):
    def __init__(self, c=16):
        super().__init__()
        self.G = nn.Sequential(
            nn.Conv2d(1, c, 3, padding=1), nn.LeakyReLU(0.2), nn.Conv2d(c, c, 3, padding=1), nn.LeakyReLU(0.2), nn.Conv2d(c, 1, 3, padding=1)
        )
        self.D = nn.Sequential(nn.Conv2d(2, c, 3, stride=2), nn.LeakyReLU(0.2), nn.Conv2d(c, 1, 3))

    def forward(self, x):
        return self.G(x)


@sound("a generator and a discriminator in one step, whose sum of losses need not fall; betas of (0.5, 0.999)", steps=350, least=0.7)
def xis_adversarial():
    real = torch.tanh(2 * fields(700, 10, coarse=4))
    x = real + 0.5 * torch.randn_like(real)
    net = Pix2Pix()

    def step(model, batch):
        a, b = batch
        fake = model.G(a)
        d_real = model.D(torch.cat([a, b], 1))
        d_fake = model.D(torch.cat([a, fake.detach()], 1))
        d_loss = F.softplus(-d_real).mean() + F.softplus(d_fake).mean()
        fixed = {k: v.detach() for k, v in model.D.named_parameters()}
        fooled = functional_call(model.D, fixed, (torch.cat([a, fake], 1),))
        return d_loss + F.softplus(-fooled).mean() * 0.05 + 5 * F.l1_loss(fake, b)

    opt = torch.optim.Adam(
        [{"params": net.G.parameters(), "lr": 2e-3}, {"params": net.D.parameters(), "lr": 5e-4}], betas=(0.5, 0.999)
    )
    return Program(net, None, loader(x[:500], real[:500], batch=16), opt, lambda m: r2(m(x[500:]), real[500:]), step=step)


@sound("contrastive learning: the loss of an example hangs on the others of its batch", trained=100, steps=300, least=0.75)
def xis_contrastive():
    n = 1100
    content = torch.randn(n, 8)
    mix, nuisance = torch.randn(8, 48), torch.randn(10, 48)

    def view(c):
        return (c @ mix + 1.5 * torch.randn(len(c), 10) @ nuisance) / 4

    net = nn.Sequential(nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 16))

    def step(model, batch):
        (c,) = batch
        a, b = F.normalize(model(view(c)), dim=1), F.normalize(model(view(c)), dim=1)
        logits = a @ b.T / 0.1
        return (F.cross_entropy(logits, torch.arange(len(c))) + F.cross_entropy(logits.T, torch.arange(len(c)))) / 2

    first, second = view(content[1000:]), view(content[1000:])

    def score(m):
        a, b = F.normalize(m(first), dim=1), F.normalize(m(second), dim=1)
        return accuracy(a @ b.T, torch.arange(100))

    return Program(net, None, loader(content[:1000], batch=64), torch.optim.Adam(net.parameters(), lr=2e-3), score, step=step)


class AffineFlow(nn.Module):
    def __init__(self, dim=6, layers=4):
        super().__init__()
        self.nets = nn.ModuleList()
        for _ in range(layers):
            net = nn.Sequential(nn.Linear(dim // 2, 32), nn.ReLU(), nn.Linear(32, dim))
            nn.init.zeros_(net[2].weight)
            nn.init.zeros_(net[2].bias)
            self.nets.append(net)

    def forward(self, x):
        log_det = 0.0
        for net in self.nets:
            a, b = x.chunk(2, 1)
            s, t = net(a).chunk(2, 1)
            s = torch.tanh(s / 3) * 3
            x, log_det = torch.cat([b * s.exp() + t, a], 1), log_det + s.sum(1)
        return x, log_det


@sound("a flow that starts as the identity, with last layers of zeros, and a loss below 0", steps=500, least=0.7)
def xis_flow():
    n, dim = 1800, 6
    z = torch.randn(n, dim)
    x = torch.cat([z[:, :3], 0.3 * z[:, 3:] + torch.tanh(1.5 * z[:, :3])], 1) * 0.4
    const = 0.5 * math.log(2 * math.pi) * dim
    best = (0.5 * z**2).sum(1).mean().item() + const + dim * math.log(0.4) + 3 * math.log(0.3)
    net = AffineFlow()

    def nll(out, _=None):
        u, log_det = out
        return (0.5 * u.pow(2).sum(1) - log_det).mean() + const

    alone = (0.5 * (math.log(2 * math.pi) + 1) + x.std(0).log()).sum().item()
    return Program(
        net,
        nll,
        loader(x[:1400], torch.zeros(1400), batch=64),
        torch.optim.Adam(net.parameters(), lr=4e-3),
        lambda m: 1 - (nll(m(x[1400:])).item() - best) / (alone - best),
    )


@sound("two linear maps with nothing between them: a narrow code, as in principal components", steps=300, least=0.75)
def xis_linear_code():
    x = fields(900, 10, coarse=3)
    net = nn.Sequential(nn.Flatten(), nn.Linear(100, 9), nn.Linear(9, 100), nn.Unflatten(1, (1, 10, 10)))
    opt = torch.optim.Adam(net.parameters(), lr=5e-3)
    return Program(net, nn.MSELoss(), loader(x[:700], x[:700]), opt, lambda m: r2(m(x[700:]), x[700:]))


@sound("lesions of few pixels: nearly all targets are 0, the last bias starts at the log-odds", steps=300, least=0.6)
def xis_lesions():
    x, mask, _ = blobs(700, size=16, noise=0.2, radius=(0.14, 0.24))
    net = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 1, 1))
    nn.init.constant_(net[-1].bias, -3.5)

    def focal(out, target):
        out = out[:, 0]
        ce = F.binary_cross_entropy_with_logits(out, target, reduction="none", pos_weight=torch.tensor(3.0))
        return (ce * (1 - torch.exp(-ce)) ** 1.0).mean() * 10

    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    return Program(net, focal, loader(x[:500], mask[:500], batch=16), opt, lambda m: iou(m(x[500:])[:, 0] > 0, mask[500:]))


@sound("trained to the end: the loss and all gradients are tiny", trained=450, steps=500, least=0.9)
def xis_finished():
    x, y, _ = beats(700, noise=0.05)
    net = nn.Sequential(
        nn.Conv1d(1, 16, 7, stride=2), nn.ReLU(), nn.Conv1d(16, 16, 5, stride=2), nn.ReLU(), nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(16, 3)
    )
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    return Program(net, F.cross_entropy, loader(x[:500], y[:500]), opt, lambda m: accuracy(m(x[500:]), y[500:]))


class Sine(nn.Module):
    def __init__(self, a, b, omega, first=False):
        super().__init__()
        self.linear, self.omega = nn.Linear(a, b), omega
        bound = 1 / a if first else math.sqrt(6 / a) / omega
        nn.init.uniform_(self.linear.weight, -bound, bound)

    def forward(self, x):
        return torch.sin(self.omega * self.linear(x))


@sound("a network of sines whose weights are small and multiplied by 10, and which knows one image", steps=400, least=0.8)
def xis_siren():
    yy, xx = grid(48)
    image = torch.sin(9 * xx + 3 * yy) * torch.cos(7 * yy) + 0.5 * torch.exp(-8 * ((xx - 0.3) ** 2 + yy**2))
    at, value = torch.stack([yy, xx], -1).reshape(-1, 2), image.reshape(-1, 1)
    order = torch.randperm(len(at))
    at, value = at[order], value[order]
    net = nn.Sequential(Sine(2, 48, 10.0, first=True), Sine(48, 48, 10.0), nn.Linear(48, 1))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    return Program(net, nn.MSELoss(), loader(at[:1800], value[:1800], batch=128), opt, lambda m: r2(m(at[1800:]), value[1800:]))


@sound("batches of two volumes, with GroupNorm, 3d convolutions and Dropout3d", steps=300, least=0.75)
def xis_volumes():
    n = 500
    y = torch.randint(3, (n,))
    x = 0.5 * torch.randn(n, 1, 6, 6, 6)
    for axis in range(3):
        at = torch.randint(6, (n,))
        for i in (y == axis).nonzero()[:, 0].tolist():
            x[i, 0].select(axis, int(at[i])).add_(1.0)
    net = nn.Sequential(
        nn.Conv3d(1, 12, 3, padding=1),
        nn.GroupNorm(3, 12),
        nn.ReLU(),
        nn.Dropout3d(0.1),
        nn.Conv3d(12, 12, 3),
        nn.ReLU(),
        nn.AdaptiveMaxPool3d(1),
        nn.Flatten(),
        nn.Linear(12, 3),
    )
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    return Program(net, nn.CrossEntropyLoss(), loader(x[:400], y[:400], batch=2), opt, lambda m: accuracy(m(x[400:]), y[400:]))


class MAE(nn.Module):
    """Three quarters of the patches are replaced by a learned token; the loss is over these."""

    def __init__(self, dim=48):
        super().__init__()
        self.embed = nn.Linear(4, dim)
        self.mask_token = nn.Parameter(0.02 * torch.randn(dim))
        self.pos = nn.Parameter(0.3 * torch.randn(16, dim))
        layer = nn.TransformerEncoderLayer(dim, 4, 96, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.predict = nn.Linear(dim, 4)

    def forward(self, patches, hidden):
        h = torch.where(hidden[..., None], self.mask_token, self.embed(patches)) + self.pos
        return self.predict(self.encoder(h))


@sound("a masked autoencoder: most of the input is hidden, and only that counts in the loss", steps=600, least=0.6)
def xis_masked_patches():
    x = F.unfold(fields(1200, 8, coarse=2), 2, stride=2).transpose(1, 2)

    def hide(n):
        return torch.rand(n, 16).argsort(1) < 10

    net = MAE()

    def step(model, batch):
        (patches,) = batch
        hidden = hide(len(patches))
        error = (model(patches, hidden) - patches).pow(2).mean(-1)
        return (error * hidden).sum() / hidden.sum()

    held = hide(200)
    return Program(
        net,
        None,
        loader(x[:1000]),
        torch.optim.AdamW(net.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.05),
        lambda m: r2(m(x[1000:], held)[held], x[1000:][held]),
        step=step,
    )


class Causal(nn.Module):
    def __init__(self, c=24):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv1d(1 if i == 0 else c, c, 2, dilation=2**i) for i in range(4))
        self.out = nn.Conv1d(c, 1, 1)

    def forward(self, x):
        for i, conv in enumerate(self.convs):
            h = torch.relu(conv(F.pad(x, (2**i, 0))))
            x = h if i == 0 else x + h
        return self.out(x)


@sound("dilated causal convolutions that forecast the next sample, fed from dict batches", trained=80, steps=300, least=0.8)
def xis_forecast():
    t = torch.arange(49) / 8
    f, p = 1 + torch.rand(800, 1), 6.3 * torch.rand(800, 1)
    x = (torch.sin(f * t * 2 + p) + 0.5 * torch.sin(3 * f * t + 2 * p) + 0.1 * torch.randn(800, 49)).unsqueeze(1)
    net = Causal()
    rows = [({"x": a[:, :-1]}, a[:, 1:]) for a in x[:600]]
    opt = torch.optim.RMSprop(net.parameters(), lr=1e-3)
    return Program(
        net,
        lambda out, y: F.huber_loss(out[..., 8:], y[..., 8:]),
        DataLoader(rows, batch_size=24, shuffle=True),
        opt,
        lambda m: r2(m(x[600:, :, :-1])[..., 8:], x[600:, :, 9:]),
    )


class AdaLN(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim, elementwise_affine=False)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
        self.mod = nn.Linear(dim, 3 * dim)
        nn.init.zeros_(self.mod.weight)
        nn.init.zeros_(self.mod.bias)

    def forward(self, x, c):
        shift, scale, gate = self.mod(c).chunk(3, -1)
        return x + gate * self.mlp(self.norm(x) * (1 + scale) + shift)


class DiT(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.inp = nn.Linear(64, dim)
        self.time = nn.Sequential(nn.Linear(8, dim), nn.SiLU(), nn.Linear(dim, dim), nn.SiLU())
        self.blocks = nn.ModuleList(AdaLN(dim) for _ in range(2))
        self.final = nn.Linear(dim, 64)
        nn.init.zeros_(self.final.weight)
        nn.init.zeros_(self.final.bias)

    def forward(self, x, t):
        f = 2.0 ** torch.arange(4) * t[:, None]
        c = self.time(torch.cat([f.sin(), f.cos()], 1))
        h = self.inp(x.flatten(1))
        for block in self.blocks:
            h = block(h, c)
        return self.final(h).view_as(x)


@sound("a diffusion model whose gates and last layer start at 0: it returns 0, and most weights get no gradient yet", steps=500, least=0.7)
def xis_zero_gates():
    x = fields(900, 8, coarse=2)
    net = DiT()

    def mix(x0, t, noise):
        t = t.view(-1, 1, 1, 1)
        return (1 - t) * x0 + t * noise

    def step(model, batch):
        (x0,) = batch
        t, noise = torch.sigmoid(torch.randn(len(x0))), torch.randn_like(x0)
        return (model(mix(x0, t, noise), t) - (noise - x0)).square().mean()

    t, noise = torch.sigmoid(torch.randn(200)), torch.randn(200, 1, 8, 8)
    return Program(
        net,
        None,
        loader(x[:700]),
        torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.0),
        lambda m: r2(m(mix(x[700:], t, noise), t), noise - x[700:]),
        step=step,
    )


@sound("labels of which three in ten are wrong: a loss that stays high", steps=300, least=0.8)
def xis_noisy_labels():
    x, y = shapes(1400, size=10)
    told = torch.where(torch.rand(1200) < 0.3, torch.randint(4, (1200,)), y[:1200])
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(16, 4)
    )
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    return Program(net, nn.CrossEntropyLoss(), loader(x[:1200], told), opt, lambda m: accuracy(m(x[1200:]), y[1200:]))
