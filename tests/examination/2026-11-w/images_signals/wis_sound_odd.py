"""Sound set-ups that look odd."""

import copy
import math

import torch
import torch.nn.functional as F
from torch import nn

from program import Program, sound
from wis_data import (wis_accuracy, wis_blobs, wis_figures, wis_fit, wis_gratings, wis_grid, wis_iou,
                      wis_loader, wis_smooth, wis_tones)


@sound("the last convolution of each residual branch starts at zero, and so does the classifier", steps=250, least=0.85)
def wis_zero_branches():
    class Branch(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
            nn.init.zeros_(self.b.weight)
            nn.init.zeros_(self.b.bias)

        def forward(self, x):
            return x + self.b(F.relu(self.a(F.relu(x))))

    head = nn.Linear(16 * 36, 4)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    model = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1), Branch(), Branch(), nn.ReLU(), nn.Flatten(), head)
    return Program(model, nn.CrossEntropyLoss(), wis_loader(*wis_figures(640)),
                   torch.optim.Adam(model.parameters(), 2e-3), wis_accuracy(*wis_figures(256)))


@sound("a frozen backbone; only the head is trained, and only it is in the optimizer", steps=300, least=0.8)
def wis_linear_probe():
    class Probe(nn.Module):
        def __init__(self):
            super().__init__()
            self.backbone = nn.Sequential(nn.Conv2d(1, 48, 5, padding=2), nn.ReLU(), nn.AvgPool2d(6), nn.Flatten())
            for p in self.backbone.parameters():
                p.requires_grad_(False)
            self.norm = nn.BatchNorm1d(192)
            self.head = nn.Linear(192, 4)

        def forward(self, x):
            with torch.no_grad():
                h = self.backbone(x)
            return self.head(self.norm(h))

    model = Probe()
    return Program(model, nn.CrossEntropyLoss(), wis_loader(*wis_gratings(768)),
                   torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 1e-2),
                   wis_accuracy(*wis_gratings(256)))


@sound("a VAE's terms are sums over pixels and latents, so the loss is in the tens", trained=150, steps=350, least=0.85)
def wis_summed_vae():
    class VAE(nn.Module):
        def __init__(self):
            super().__init__()
            self.enc = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Tanh())
            self.mu, self.logvar = nn.Linear(64, 8), nn.Linear(64, 8)
            self.dec = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64))

        def forward(self, x):
            h = self.enc(x)
            mu, logvar = self.mu(h), self.logvar(h)
            z = mu + torch.randn_like(mu) * (0.5 * logvar).exp() if self.training else mu
            return self.dec(z).view_as(x), mu, logvar

    def elbo(out, x):
        image, mu, logvar = out
        rec = F.mse_loss(image, x, reduction="sum") / len(x)
        return rec + 0.5 * (mu**2 + logvar.exp() - 1 - logvar).sum() / len(x)

    x, held = wis_smooth(768), wis_smooth(256)
    model = VAE()
    return Program(model, elbo, wis_loader(x, x), torch.optim.Adam(model.parameters(), 2e-3),
                   lambda m: wis_fit(m(held)[0], held))


@sound("contrastive learning: the loss of an example depends on the rest of its batch, and starts at log of its size",
       steps=300, least=0.7)
def wis_contrastive():
    class Embed(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Conv1d(1, 16, 9, 2, 4), nn.ReLU(), nn.Conv1d(16, 24, 5, 2, 2), nn.ReLU(),
                                     nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(24, 32), nn.BatchNorm1d(32),
                                     nn.ReLU(), nn.Linear(32, 16))

        def forward(self, x):
            return F.normalize(self.net(x), dim=1)

    def recordings(n):
        """Two views of the same source: pitch and brightness are kept, phase and noise are not."""
        pitch, bright = 3 + 17 * torch.rand(n, 1), torch.rand(n, 1)
        t = torch.arange(64) / 64

        def view():
            a = 2 * math.pi * (pitch * t + torch.rand(n, 1))
            return (torch.sin(a) + bright * torch.sin(2 * a) + 0.1 * torch.randn(n, 64))[:, None]

        return view(), view()

    def step(model, batch):
        a, b = batch
        logits = model(a) @ model(b).T / 0.1
        target = torch.arange(len(a))
        return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2

    one, two = recordings(64)
    model = Embed()

    def score(m):
        near = (m(one) @ m(two).T).topk(3, 1).indices
        return (near == torch.arange(64)[:, None]).any(1).float().mean().item()

    return Program(model, None, wis_loader(*recordings(1024)), torch.optim.Adam(model.parameters(), 3e-3), score,
                   step=step)


@sound("a teacher inside the model gets no gradient and is no part of the optimizer", steps=300, least=0.7)
def wis_teacher():
    class Student(nn.Module):
        def __init__(self):
            super().__init__()
            self.online = nn.Sequential(nn.Conv2d(1, 12, 5, 2, 2), nn.ReLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.ReLU(),
                                        nn.Flatten(), nn.Linear(216, 4))
            self.teacher = copy.deepcopy(self.online).requires_grad_(False)

        def forward(self, x):
            return self.online(x)

    def step(model, batch):
        x, y = batch
        with torch.no_grad():
            for a, b in zip(model.teacher.parameters(), model.online.parameters(), strict=True):
                a.lerp_(b, 0.1)
            aim = model.teacher(x).softmax(1)
        logits = model(x + 0.2 * torch.randn_like(x))
        return F.cross_entropy(logits, y) + 0.5 * F.cross_entropy(logits, aim)

    model = Student()
    return Program(model, None, wis_loader(*wis_gratings(768)), torch.optim.Adam(model.online.parameters(), 2e-3),
                   wis_accuracy(*wis_gratings(256)), step=step)


@sound("rare pixels: the last bias starts at the log odds of 3%, so that all probabilities begin near 0", steps=300,
       least=0.7)
def wis_prior_bias():
    def draw(n):
        gy, gx = wis_grid(12)
        at = torch.rand(n, 2) * 1.6 - 0.8
        far = (gx - at[:, :1, None]) ** 2 + (gy - at[:, 1:, None]) ** 2
        mask = (far < 0.05) & (torch.rand(n, 1, 1) < 0.7)
        x = mask.float() * 1.5 + 0.3 * torch.randn(n, 12, 12)
        return x[:, None], mask[:, None]

    class Focal(nn.Module):
        def forward(self, logits, mask):
            p = torch.sigmoid(logits)
            near = torch.where(mask > 0, p, 1 - p)
            ce = F.binary_cross_entropy_with_logits(logits, mask, reduction="none")
            return (torch.where(mask > 0, 0.75, 0.25) * (1 - near) ** 2 * ce).sum() / mask.sum().clamp(min=1)

    model = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
                          nn.Conv2d(16, 1, 1))
    nn.init.constant_(model[-1].bias, -math.log((1 - 0.03) / 0.03))
    x, mask = draw(512)
    held, truth = draw(256)
    return Program(model, Focal(), wis_loader(x, mask.float()), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: wis_iou(m(held) > 0, truth))


@sound("a network of sines, with a factor of 15 before the first and weights drawn for it", steps=400, least=0.85)
def wis_siren():
    class Sine(nn.Module):
        def __init__(self, a, b, omega, is_first=False):
            super().__init__()
            self.linear, self.omega = nn.Linear(a, b), omega
            bound = 1 / a if is_first else math.sqrt(6 / a) / omega
            nn.init.uniform_(self.linear.weight, -bound, bound)

        def forward(self, x):
            return torch.sin(self.omega * self.linear(x))

    gy, gx = wis_grid(48)
    shift = torch.rand(4) * 6
    value = torch.sin(7 * gx + shift[0]) * torch.cos(5 * gy + shift[1]) + 0.5 * torch.sin(9 * (gx + gy) + shift[2])
    at, value = torch.stack([gx.flatten(), gy.flatten()], 1), value.flatten()[:, None]
    order = torch.randperm(len(at))
    train, held = order[:1536], order[1536:]
    model = nn.Sequential(Sine(2, 48, 15.0, True), Sine(48, 48, 15.0), nn.Linear(48, 1))
    return Program(model, nn.MSELoss(), wis_loader(at[train], value[train], size=128),
                   torch.optim.Adam(model.parameters(), 1e-3), lambda m: wis_fit(m(at[held]), value[held]))


@sound("inverted residuals: convolutions follow each other with no activation between, as linear bottlenecks", steps=300,
       least=0.85)
def wis_linear_bottlenecks():
    class Inverted(nn.Module):
        def __init__(self, a, b, stride):
            super().__init__()
            self.expand = nn.Sequential(nn.Conv2d(a, 3 * a, 1, bias=False), nn.BatchNorm2d(3 * a), nn.ReLU6())
            self.depth = nn.Sequential(nn.Conv2d(3 * a, 3 * a, 3, stride, 1, groups=3 * a, bias=False),
                                       nn.BatchNorm2d(3 * a), nn.ReLU6())
            self.project = nn.Sequential(nn.Conv2d(3 * a, b, 1, bias=False), nn.BatchNorm2d(b))
            self.is_residual = (a, stride) == (b, 1)

        def forward(self, x):
            h = self.project(self.depth(self.expand(x)))
            return x + h if self.is_residual else h

    model = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6(), Inverted(8, 8, 1),
                          Inverted(8, 16, 2), nn.Conv2d(16, 48, 1), nn.Hardswish(), nn.Flatten(), nn.Linear(432, 4))
    optimizer = torch.optim.RMSprop(model.parameters(), 1e-3, alpha=0.9, momentum=0.9)
    return Program(model, nn.CrossEntropyLoss(label_smoothing=0.1), wis_loader(*wis_figures(768)), optimizer,
                   wis_accuracy(*wis_figures(256)))


@sound("a flow whose couplings start as the identity and whose loss goes below 0", steps=400, least=0.6)
def wis_flow():
    class Coupling(nn.Module):
        def __init__(self, is_odd):
            super().__init__()
            self.is_odd = is_odd
            self.net = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 16))
            nn.init.zeros_(self.net[-1].weight)
            nn.init.zeros_(self.net[-1].bias)

        def forward(self, x):
            a, b = x.chunk(2, 1)
            if self.is_odd:
                a, b = b, a
            s, t = self.net(a).chunk(2, 1)
            s = 2 * torch.tanh(s)
            b = b * s.exp() + t
            return torch.cat([b, a] if self.is_odd else [a, b], 1), s.sum(1)

    class Flow(nn.Module):
        def __init__(self):
            super().__init__()
            self.steps = nn.ModuleList(Coupling(i % 2 == 1) for i in range(6))

        def forward(self, x):
            total = 0.0
            for one in self.steps:
                x, log_det = one(x)
                total = total + log_det
            return x, total

    def nll(out, _=None):
        z, log_det = out
        return (0.5 * z.square().sum(1) - log_det).mean() / 16

    def draw(n):
        return wis_smooth(n, 4, 4, 0.1).flatten(1)

    x, held = draw(1024), draw(256)
    model = Flow()

    def score(m):
        """0 at independent Gaussians, 1 at the density the images are drawn from."""
        with torch.no_grad():
            best = torch.linalg.slogdet(torch.cov(torch.cat([x, held]).T)).logabsdet / 2 / 16 + 0.5
            plain = torch.cat([x, held]).var(0).log().sum() / 2 / 16 + 0.5
            return ((plain - nll(m(held))) / (plain - best)).clamp(0, 1).item()

    return Program(model, nll, wis_loader(x, torch.zeros(len(x)), size=64),
                   torch.optim.Adam(model.parameters(), 3e-3), score)


@sound("the decoder uses the encoder's weight, transposed", steps=400, least=0.85)
def wis_tied_decoder():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(64, 32) / 8)
            self.inner = nn.Linear(32, 8)
            self.outer = nn.Linear(8, 32)
            self.bias = nn.Parameter(torch.zeros(64))

        def forward(self, x):
            h = F.leaky_relu(x.flatten(1) @ self.weight)
            h = F.leaky_relu(self.outer(self.inner(h)))
            return F.linear(h, self.weight, self.bias).view_as(x)

    x, held = wis_smooth(768), wis_smooth(256)
    model = Tied()
    return Program(model, nn.SmoothL1Loss(), wis_loader(x, x), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: wis_fit(m(held), held))


@sound("handwritten figures have borders that are always 0", steps=300, least=0.8)
def wis_empty_borders():
    def draw(n):
        x, y = wis_figures(n, 10, 0.0)
        x = x * (0.6 + 0.4 * torch.rand(n, 1, 1, 1)) * (torch.rand_like(x) > 0.05)
        return F.pad(x, (3, 3, 3, 3)), y

    model = nn.Sequential(nn.Flatten(), nn.Linear(256, 96), nn.ReLU(), nn.Linear(96, 48), nn.ReLU(), nn.Linear(48, 4))
    return Program(model, nn.CrossEntropyLoss(), wis_loader(*draw(1024)), torch.optim.Adam(model.parameters(), 2e-3),
                   wis_accuracy(*draw(256)))


@sound("a siamese network: one encoder is called twice, and its pairs come in both orders", trained=200, steps=400,
       least=0.8)
def wis_siamese():
    class Siamese(nn.Module):
        def __init__(self):
            super().__init__()
            self.tower = nn.Sequential(nn.Conv2d(1, 12, 5, 2, 2), nn.ReLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.ReLU(),
                                       nn.Flatten(), nn.Linear(216, 16))
            self.judge = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))

        def forward(self, pair):
            a, b = self.tower(pair[:, 0]), self.tower(pair[:, 1])
            return self.judge((a - b).abs()).squeeze(-1)

    def draw(n):
        x, y = wis_gratings(4 * n, 12, 3, 0.2)
        pairs, same = torch.stack([x[::2], x[1::2]], 1), y[::2] == y[1::2]
        few = min(int(same.sum()), int((~same).sum()), n // 2)
        keep = torch.cat([same.nonzero()[:few, 0], (~same).nonzero()[:few, 0]])
        return pairs[keep], same[keep].float()

    held, truth = draw(256)
    model = Siamese()
    return Program(model, nn.BCEWithLogitsLoss(), wis_loader(*draw(1024)), torch.optim.Adam(model.parameters(), 2e-3),
                   lambda m: ((m(held) > 0) == (truth > 0)).float().mean().item())


@sound("efficient attention: a softmax over channels for queries and one over positions for keys", steps=300, least=0.85)
def wis_efficient_attention():
    class Efficient(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.qkv, self.out = nn.Conv2d(dim, 3 * dim, 1), nn.Conv2d(dim, dim, 1)

        def forward(self, x):
            q, k, v = self.qkv(x).flatten(2).chunk(3, 1)
            context = k.softmax(2) @ v.mT
            mixed = context.mT @ q.softmax(1)
            return x + self.out(mixed.view_as(x))

    model = nn.Sequential(nn.Conv2d(1, 16, 5, 2, 2), nn.ReLU(), Efficient(16), nn.Conv2d(16, 16, 3, 1, 1), nn.ReLU(),
                          Efficient(16), nn.AdaptiveMaxPool2d(2), nn.Flatten(), nn.Linear(64, 4))
    return Program(model, nn.CrossEntropyLoss(), wis_loader(*wis_gratings(768)),
                   torch.optim.NAdam(model.parameters(), 2e-3), wis_accuracy(*wis_gratings(256)))


@sound("a masked autoencoder replaces most patches by one token and counts the hidden ones only", steps=500, least=0.6)
def wis_masked_patches():
    class MAE(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.unembed = nn.Linear(4, 48), nn.Linear(48, 4)
            self.token = nn.Parameter(torch.zeros(48))
            self.pos = nn.Parameter(0.3 * torch.randn(16, 48))
            layer = nn.TransformerEncoderLayer(48, 4, 96, 0.0, batch_first=True, norm_first=True)
            self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

        def forward(self, patches, hidden):
            z = torch.where(hidden[..., None], self.token, self.embed(patches)) + self.pos
            return self.unembed(self.body(z))

    def cut(x):
        return x.unfold(2, 2, 2).unfold(3, 2, 2).reshape(len(x), 16, 4)

    def hide(n):
        return torch.rand(n, 16).argsort(1) < 8

    def step(model, batch):
        patches = batch[0]
        hidden = hide(len(patches))
        return (model(patches, hidden) - patches)[hidden].square().mean()

    x, held, shade = cut(wis_smooth(1024, 8, 4, 0.02)), cut(wis_smooth(256, 8, 4, 0.02)), hide(256)
    model = MAE()
    return Program(model, None, wis_loader(x), torch.optim.AdamW(model.parameters(), 3e-3, (0.9, 0.95)),
                   lambda m: wis_fit(m(held, shade)[shade], held[shade]), step=step)


@sound("mixed images and mixed labels: the loss stays high though the classifier is good", steps=300, least=0.85)
def wis_mixup():
    model = nn.Sequential(nn.Conv1d(1, 16, 9, 2, 4), nn.BatchNorm1d(16), nn.ReLU(), nn.Conv1d(16, 24, 7, 2, 3),
                          nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.3), nn.AdaptiveAvgPool1d(1), nn.Flatten(),
                          nn.Linear(24, 4))

    def step(model, batch):
        x, y = batch
        share = torch.rand(len(x), 1, 1)
        other = torch.randperm(len(x))
        logits = model(share * x + (1 - share) * x[other])
        share = share.flatten()
        each = share * F.cross_entropy(logits, y, reduction="none") + \
            (1 - share) * F.cross_entropy(logits, y[other], reduction="none")
        return each.mean()

    return Program(model, None, wis_loader(*wis_tones(768)), torch.optim.AdamW(model.parameters(), 3e-3),
                   wis_accuracy(*wis_tones(256)), step=step)


@sound("a score for each position: only one cell in 144 of the heat map is 1, and the targets are nearly all 0",
       trained=300, steps=400, least=0.8)
def wis_heat_maps():
    def heat(at):
        gy, gx = wis_grid(12)
        at = 2 * at - 1
        return torch.exp(-((gx - at[:, :1, None]) ** 2 + (gy - at[:, 1:, None]) ** 2) / 0.03)[:, None]

    x, at = wis_blobs(512, 12, 0.25, 0.2)
    held, truth = wis_blobs(256, 12, 0.25, 0.2)
    model = nn.Sequential(nn.Conv2d(1, 12, 5, padding=2), nn.ReLU(), nn.Conv2d(12, 12, 5, padding=2), nn.ReLU(),
                          nn.Conv2d(12, 1, 1))

    def score(m):
        best = m(held).flatten(1).argmax(1)
        return wis_fit(torch.stack([best % 12, best // 12], 1) / 11, truth)

    return Program(model, nn.MSELoss(), wis_loader(x, heat(at)), torch.optim.Adam(model.parameters(), 2e-3), score)
