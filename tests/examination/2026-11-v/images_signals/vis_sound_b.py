from __future__ import annotations

import math

import torch
import torch.nn.functional as F
import vis_data as D
from program import Program, sound
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset
from vis_faults_a import Block, loader
from vis_faults_b import diffuse


@sound("a loss summed over pixels and images, with a rate that is small enough for sums", steps=300, least=0.8)
def vis_summed_small_rate():
    x, xt = D.smooth(1000), D.smooth(250)
    n, nt = x + 0.6 * torch.randn_like(x), xt + 0.6 * torch.randn_like(xt)
    m = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.LeakyReLU(0.1), nn.Conv2d(12, 12, 3, padding=1), nn.LeakyReLU(0.1), nn.Conv2d(12, 1, 3, padding=1))
    return Program(m, nn.MSELoss(reduction="sum"), loader(n, x, 16), optim.SGD(m.parameters(), lr=1e-5 * 2, momentum=0.9), D.r2(nt, xt))


@sound("SimSiam, which stops the gradient of one branch; images are told apart by a linear head on detached features", trained=60, steps=400, least=0.75)
def vis_stopped_gradient():
    x, y = D.glyphs(1280, noise=0.15)
    xt, yt = D.glyphs(400, noise=0.15)

    class Siamese(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Sequential(nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 24, 3), nn.BatchNorm2d(24), nn.ReLU(),
                                         nn.Conv2d(24, 24, 3), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten())
            self.project = nn.Sequential(nn.Linear(24, 24), nn.BatchNorm1d(24, affine=False))
            self.predict = nn.Sequential(nn.Linear(24, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 24))
            self.probe = nn.Linear(24, 4)

        def forward(self, im):
            h = self.encoder(im)
            z = self.project(h)
            return z, self.predict(z), self.probe(h.detach())

    def step(model, batch):
        im, label = batch
        (z1, p1, l1), (z2, p2, _) = (model(im + 0.15 * torch.randn_like(im)) for _ in range(2))
        apart = -0.5 * (F.cosine_similarity(p1, z2.detach()).mean() + F.cosine_similarity(p2, z1.detach()).mean())
        return apart + F.cross_entropy(l1, label)

    m = Siamese()
    return Program(m, None, loader(x, y, 32, drop_last=True), optim.Adam(m.parameters(), 3e-3), lambda n: float((n(xt)[2].argmax(1) == yt).float().mean()), step=step)


@sound("a masked autoencoder: most patches are hidden, and only hidden ones are in the loss", steps=500, least=0.65)
def vis_masked_patches():
    def patches(im):
        return im.reshape(-1, 4, 3, 4, 3).permute(0, 1, 3, 2, 4).reshape(-1, 16, 9)

    def hide(n):
        return torch.rand(n, 16).argsort(1) < 10

    x, xt = patches(D.smooth(1500, coarse=2)), patches(D.smooth(300, coarse=2))
    ht = hide(300)

    class MAE(nn.Module):
        def __init__(self, d=24):
            super().__init__()
            self.embed, self.out = nn.Linear(9, d), nn.Linear(d, 9)
            self.hidden = nn.Parameter(torch.zeros(d))
            self.pos = nn.Parameter(0.3 * torch.randn(1, 16, d))
            self.blocks = nn.Sequential(Block(d), Block(d))

        def forward(self, p, hidden):
            t = torch.where(hidden[..., None], self.hidden, self.embed(p)) + self.pos
            return self.out(self.blocks(t))

    def step(m, batch):
        h = hide(len(batch[0]))
        return (m(batch[0], h) - batch[0])[h].pow(2).mean()

    m = MAE()
    return Program(m, None, DataLoader(TensorDataset(x), 32, shuffle=True), optim.AdamW(m.parameters(), 4e-3), lambda n: D.r2_of(n(xt, ht)[ht], xt[ht]), step=step)


@sound("heatmaps that are zero nearly everywhere as targets", steps=350, least=0.75)
def vis_sparse_heatmaps():
    def draw(n):
        im, at = D.spots(n, noise=0.3)
        g = torch.arange(10.0)
        c = at * 10
        d = (g[None, :, None] - c[:, 0, None, None]) ** 2 + (g[None, None, :] - c[:, 1, None, None]) ** 2
        return im, torch.exp(-d / 0.8)[:, None]

    x, y = draw(1200)
    xt, yt = draw(300)
    m = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 1, 1))

    def loss(p, t):
        return ((1 + 10 * t) * (p - t) ** 2).mean()

    return Program(m, loss, loader(x, y), optim.Adam(m.parameters(), 4e-3), lambda n: float(1 - (n(xt) - yt).pow(2).sum() / (yt - yt.mean()).pow(2).sum()))


@sound("a diffusion model whose loss levels off well above zero, half trained", trained=150, steps=500, least=0.65)
def vis_diffusion_floor():
    x, xt = D.smooth(1000, size=8, coarse=3), D.smooth(300, size=8, coarse=3)
    tt = 0.05 + 0.9 * torch.rand(300)
    seen, added = diffuse(xt, tt)

    class Denoise(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Sequential(nn.Linear(8, 24), nn.SiLU(), nn.Linear(24, 24))
            self.inp, self.mid, self.out = nn.Conv2d(1, 24, 3, padding=1), nn.Conv2d(24, 24, 3, padding=1), nn.Conv2d(24, 1, 3, padding=1)
            nn.init.zeros_(self.out.weight)

        def forward(self, im, t):
            k = torch.arange(1, 5) * math.pi
            e = self.emb(torch.cat([torch.sin(k * t[:, None]), torch.cos(k * t[:, None])], 1))[:, :, None, None]
            h = self.inp(im)
            return self.out(F.silu(h + self.mid(F.silu(h + e))))

    def step(m, batch):
        t = torch.rand(len(batch[0]))
        noisy, noise = diffuse(batch[0], t)
        return F.mse_loss(m(noisy, t), noise)

    m = Denoise()
    return Program(m, None, DataLoader(TensorDataset(x), 32, shuffle=True), optim.Adam(m.parameters(), 2e-3), lambda n: D.r2_of(n(seen, tt), added), step=step)


@sound("inverted residuals: two 1x1 convolutions meet with no activation between, on purpose", steps=350, least=0.85)
def vis_linear_bottlenecks():
    x, y = D.glyphs(1280)
    xt, yt = D.glyphs(400)

    class Inverted(nn.Module):
        def __init__(self, c, t=2):
            super().__init__()
            e = c * t
            self.conv = nn.Sequential(nn.Conv2d(c, e, 1, bias=False), nn.BatchNorm2d(e), nn.ReLU6(), nn.Conv2d(e, e, 3, padding=1, groups=e, bias=False),
                                      nn.BatchNorm2d(e), nn.ReLU6(), nn.Conv2d(e, c, 1, bias=False), nn.BatchNorm2d(c))

        def forward(self, h):
            return h + self.conv(h)

    m = nn.Sequential(nn.Conv2d(1, 12, 3, 1), nn.BatchNorm2d(12), nn.ReLU6(), Inverted(12), nn.MaxPool2d(2), Inverted(12), nn.Conv2d(12, 32, 1), nn.ReLU6(),
                      nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 4))
    return Program(m, nn.CrossEntropyLoss(), loader(x, y), optim.RMSprop(m.parameters(), 2e-3, alpha=0.9), D.accuracy(xt, yt))


@sound("an autoencoder whose decoder is the transpose of its encoder", steps=400, least=0.85)
def vis_tied_weights():
    x, xt = D.smooth(1500), D.smooth(300)

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.w1, self.w2 = nn.Linear(144, 48), nn.Linear(48, 20)
            self.b1, self.b2 = nn.Parameter(torch.zeros(48)), nn.Parameter(torch.zeros(144))

        def forward(self, im):
            z = self.w2(F.elu(self.w1(im.flatten(1))))
            h = F.elu(F.linear(z, self.w2.weight.t(), self.b1))
            return F.linear(h, self.w1.weight.t(), self.b2).view_as(im)

    m = Tied()
    return Program(m, F.mse_loss, loader(x, x), optim.Adam(m.parameters(), 3e-3), D.r2(xt, xt))


@sound("images with a black frame, so that a third of all pixels never vary; a fully connected network", trained=350, steps=400, least=0.75)
def vis_black_frame():
    def draw(n):
        y = torch.randint(4, (n,))
        im = torch.zeros(n, 10, 10)
        inner = 0.3 * torch.randn(n, 8, 8)
        at = torch.randint(4, (n, 2))
        for i in range(n):
            r, c = at[i].tolist()
            inner[i, r : r + 5, c : c + 5] += D.GLYPHS[y[i]]
        im[:, 1:9, 1:9] = inner.clamp(min=0)
        return im, y

    x, y = draw(3000)
    xt, yt = draw(400)

    class Mlp(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1, self.fc2, self.fc3 = nn.Linear(100, 128), nn.Linear(128, 64), nn.Linear(64, 4)

        def forward(self, im):
            return F.log_softmax(self.fc3(F.relu(self.fc2(F.relu(self.fc1(im.flatten(1)))))), -1)

    m = Mlp()
    return Program(m, F.nll_loss, loader(x, y, 64), optim.Adam(m.parameters(), 2e-3), D.accuracy(xt, yt))


@sound("most pixels have the label that the loss ignores", steps=300, least=0.85)
def vis_mostly_ignored():
    x, mask = D.discs(1200, noise=0.3)
    xt, yt = D.discs(300, noise=0.3)
    y = mask[:, 0].long()
    y[torch.rand(y.shape) < 0.85] = 255
    m = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 2, 1))

    def score(n):
        p, t = n(xt).argmax(1) == 1, yt[:, 0] > 0.5
        return float((p & t).sum() / (p | t).sum())

    return Program(m, nn.CrossEntropyLoss(ignore_index=255), loader(x, y), optim.Adam(m.parameters(), 5e-3), score)


@sound("a flow whose couplings start as the identity and whose loss becomes negative", steps=500, least=0.7)
def vis_flow_identity():
    def draw(n):
        a = 2 * math.pi * torch.rand(n)
        w = torch.stack([torch.sin(a + k * 0.7) for k in range(6)], 1)
        return w + 0.1 * torch.randn(n, 6)

    x, xt = draw(3000), draw(500)

    class Coupling(nn.Module):
        def __init__(self, flip):
            super().__init__()
            self.flip = flip
            self.net = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 6))
            nn.init.zeros_(self.net[-1].weight)
            nn.init.zeros_(self.net[-1].bias)

        def forward(self, v):
            a, b = v.chunk(2, 1)
            if self.flip:
                a, b = b, a
            s, t = self.net(a).chunk(2, 1)
            s = 2 * torch.tanh(s / 2)
            b = b * s.exp() + t
            return torch.cat([b, a] if self.flip else [a, b], 1), s.sum(1)

    class Flow(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([Coupling(k % 2 == 1) for k in range(4)])

        def forward(self, v):
            total = 0
            for layer in self.layers:
                v, d = layer(v)
                total = total + d
            return v, total

    def nll(out, _):
        z, logdet = out
        return (0.5 * (z**2).sum(1) + 3 * math.log(2 * math.pi) - logdet).mean()

    # 0 is the entropy of independent normals; 1 is near what the data allow
    def score(m):
        return float(1 - (nll(m(xt), None) + 1.6) / 8.2)

    m = Flow()
    return Program(m, nll, loader(x, x, 64), optim.Adam(m.parameters(), 3e-3), score)


@sound("a Siamese network compares two images; one encoder for both", steps=400, least=0.8)
def vis_siamese_pairs():
    def draw(n):
        a, ya = D.glyphs(n, noise=0.15)
        b, yb = D.glyphs(n, noise=0.15)
        same = torch.rand(n) < 0.35
        swap, ys = D.glyphs(4 * n, noise=0.15)
        pools = [swap[ys == k] for k in range(4)]
        for i in range(n):
            if same[i]:
                pool = pools[int(ya[i])]
                b[i], yb[i] = pool[i % len(pool)], ya[i]
        return torch.stack([a, b], 1), (ya == yb).float()

    x, y = draw(1500)
    xt, yt = draw(300)

    class Siamese(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Sequential(nn.Conv2d(1, 12, 3), nn.ReLU(), nn.Conv2d(12, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten())
            self.head = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))

        def forward(self, pair):
            a, b = self.encoder(pair[:, 0]), self.encoder(pair[:, 1])
            return self.head(torch.cat([(a - b).abs(), a * b], 1)).squeeze(1)

    m = Siamese()
    return Program(m, nn.BCEWithLogitsLoss(), loader(x, y), optim.Adam(m.parameters(), 4e-3), lambda n: float(((n(xt) > 0).float() == yt).float().mean()))


@sound("trained until the loss is almost zero, so that gradients are tiny and probabilities near 0 or 1", trained=450, steps=500, least=0.95)
def vis_nearly_perfect():
    x, y = D.chirps(1500, noise=0.1)
    xt, yt = D.chirps(300, noise=0.1)

    class Mel(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("window", torch.hann_window(24))
            self.conv1, self.conv2 = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
            self.fc = nn.Linear(16 * 9, 3)

        def forward(self, w):
            s = torch.stft(w[:, 0], 24, 8, window=self.window, return_complex=True).abs()[:, :12, :12]
            h = F.max_pool2d(F.relu(self.conv1(torch.log1p(s)[:, None])), 2)
            return self.fc(F.max_pool2d(F.relu(self.conv2(h)), 2).flatten(1))

    m = Mel()
    return Program(m, nn.CrossEntropyLoss(), loader(x, y), optim.Adam(m.parameters(), 3e-3), D.accuracy(xt, yt))
