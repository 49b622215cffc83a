"""Mistakes in programs on images."""

import math

import torch
import torch.nn.functional as F
from ais_data import Dicts, accuracy, depths, digits, loader, overlap, r2, shapes
from program import Program, fault
from torch import nn


class SmallUNet(nn.Module):
    def __init__(self, channels=1, classes=2, width=8):
        super().__init__()
        self.enc1 = nn.Sequential(nn.Conv2d(channels, width, 3, padding=1), nn.ReLU())
        self.enc2 = nn.Sequential(nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU())
        self.dec = nn.Sequential(nn.Conv2d(3 * width, width, 3, padding=1), nn.ReLU())
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        a = self.enc1(x)
        b = self.enc2(F.max_pool2d(a, 2))
        return self.head(self.dec(torch.cat([a, F.interpolate(b, scale_factor=2)], 1)))


def cnn(classes=4, width=8, channels=1):
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.LazyLinear(classes),
    )


def four_classes():
    """Segmentation by kind of shape: 0 is background."""
    out = []
    for seed, n in ((0, 800), (1, 200)):
        x, kind, mask, _, _ = shapes(n, seed)
        out += [x, mask * (1 + (kind > 1).long())[:, None, None]]
    return out


@fault(
    "The maps of logits are flattened with view, with the classes not last, so that pixels and labels do not pair",
    rules=["output-loss-mismatch", "labels-unrelated", "mixed-examples"],
    fails=True,
    steps=250,
)
def ais_seg_view_without_permute(is_faulty):
    x, mask, xt, maskt = four_classes()
    model = SmallUNet(classes=3)

    def criterion(logits, target):
        if is_faulty:
            flat = logits.contiguous().view(-1, 3)
        else:
            flat = logits.permute(0, 2, 3, 1).reshape(-1, 3)
        return F.cross_entropy(flat, target.view(-1))

    def score(m):
        return overlap(m(xt).argmax(1) > 0, maskt > 0)

    opt = torch.optim.Adam(model.parameters(), 3e-3)
    return Program(model, criterion, loader(x, mask, size=16), opt, score)


@fault(
    "The masks are cut at 127 although they had been scaled to [0, 1], so that every pixel is background",
    rules=["constant-target"],
    fails=True,
    steps=200,
)
def ais_mask_threshold(is_faulty):
    x, _, mask, _, _ = shapes(800, 0)
    xt, _, maskt, _, _ = shapes(200, 1)
    png = (mask * 255).float() / 255.0
    target = (png > (127 if is_faulty else 0.5)).float()[:, None]
    model = SmallUNet(classes=1)
    opt = torch.optim.Adam(model.parameters(), 3e-3)
    return Program(
        model, nn.BCEWithLogitsLoss(), loader(x, target, size=16), opt, lambda m: overlap(m(xt)[:, 0] > 0, maskt)
    )


@fault(
    "Images of bytes are divided by 255 with integer division, so that they are all zero",
    rules=["constant-feature", "labels-unrelated", "loss-not-decreasing"],
    fails=True,
    steps=250,
)
def ais_integer_division(is_faulty):
    x, y, xt, yt = digits()
    raw, rawt = (x * 250).to(torch.uint8), (xt * 250).to(torch.uint8)

    def prepare(images):
        return (images // 255).float() if is_faulty else images.float() / 255

    model = cnn(10, 8)
    model(prepare(raw[:2]))
    opt = torch.optim.Adam(model.parameters(), 3e-3)
    return Program(
        model, nn.CrossEntropyLoss(), loader(prepare(raw), y), opt, accuracy(prepare(rawt), yt)
    )


class Refiner(nn.Module):
    def __init__(self, shared):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 12, 3, padding=1)
        self.conv2 = nn.Conv2d(12, 12, 3, padding=1, stride=2)
        self.conv3 = nn.Conv2d(12, 12, 3, padding=1)
        self.bn = nn.BatchNorm2d(12)
        self.bn2 = self.bn if shared else nn.BatchNorm2d(12)
        self.bn3 = self.bn if shared else nn.BatchNorm2d(12)
        with torch.no_grad():
            self.conv1.bias += 1.5
        self.fc = nn.Linear(12 * 16, 4)

    def forward(self, x):
        x = F.relu(self.bn(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        x = F.relu(self.bn3(self.conv3(x)))
        return self.fc(F.avg_pool2d(x, 2).flatten(1))


@fault(
    "One BatchNorm is used after three convolutions, so that its running statistics fit none of them",
    rules=["shared-weight", "batchnorm-mode-gap"],
    layers=["bn"],
    fails=True,
    steps=300,
)
def ais_one_batchnorm_thrice(is_faulty):
    x, y, _, _, _ = shapes(1200, 0)
    xt, yt, _, _, _ = shapes(300, 1)
    model = Refiner(is_faulty)
    opt = torch.optim.Adam(model.parameters(), 2e-3)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y, drop_last=True), opt, accuracy(xt, yt))


@fault(
    "The four heads of a landmark network are made with [head] * 4 and are one and the same layer",
    rules=["shared-weight"],
    layers=["heads"],
    fails=True,
    steps=400,
)
def ais_landmark_heads(is_faulty):
    def data(n, seed):
        x, _, _, centre, radius = shapes(n, seed)
        r = radius[:, None] / 16
        sides = [centre + r * torch.tensor(v) for v in ([1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0])]
        return x, torch.stack(sides, 1) * 2 - 1

    class Landmarks(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(1, 12, 3, 2, 1), nn.ReLU(), nn.Conv2d(12, 16, 3, 2, 1), nn.ReLU(), nn.Flatten(),
                nn.Linear(256, 48), nn.ReLU(),
            )
            if is_faulty:
                self.heads = nn.ModuleList([nn.Linear(48, 2)] * 4)
            else:
                self.heads = nn.ModuleList([nn.Linear(48, 2) for _ in range(4)])

        def forward(self, x):
            x = self.body(x)
            return torch.stack([head(x) for head in self.heads], 1)

    x, y = data(1200, 0)
    xt, yt = data(300, 1)
    model = Landmarks()
    opt = torch.optim.Adam(model.parameters(), 2e-3)

    def score(m):
        out = m(xt)
        mid, midt = out.mean(1, keepdim=True), yt.mean(1, keepdim=True)
        offset, offsett = out - mid, yt - midt
        return max(0.0, 1 - ((offset - offsett) ** 2).sum().item() / (offsett**2).sum().item())

    return Program(model, nn.MSELoss(), loader(x, y), opt, score)


@fault(
    "The image is mapped to its keypoint by a hard argmax of the heat map, through which no gradient flows",
    rules=["no-gradient"],
    layers=["heat"],
    fails=True,
    steps=400,
)
def ais_hard_argmax(is_faulty):
    class Keypoint(nn.Module):
        def __init__(self):
            super().__init__()
            self.heat = nn.Sequential(
                nn.Conv2d(1, 8, 5, padding=2), nn.ReLU(), nn.Conv2d(8, 8, 5, padding=2), nn.ReLU(),
                nn.Conv2d(8, 1, 5, padding=2),
            )
            self.calibrate = nn.Linear(2, 2)

        def forward(self, x):
            flat = self.heat(x).flatten(1)
            rows = torch.arange(16.0).repeat_interleave(16) / 8 - 1
            cols = torch.arange(16.0).repeat(16) / 8 - 1
            if is_faulty:
                best = flat.argmax(1)
                where = torch.stack([rows[best], cols[best]], 1)
            else:
                p = flat.softmax(1)
                where = torch.stack([p @ rows, p @ cols], 1)
            return self.calibrate(where)

    def data(n, seed):
        x, _, _, centre, _ = shapes(n, seed)
        return 1 - x, centre * 2 - 1

    x, y = data(1200, 0)
    xt, yt = data(300, 1)
    model = Keypoint()
    opt = torch.optim.Adam(model.parameters(), 3e-3)
    return Program(model, nn.SmoothL1Loss(), loader(x, y), opt, r2(xt, yt))


@fault(
    "The optimizer was made before the last layer was replaced for the new task, so that the new one never learns",
    rules=["no-gradient"],
    layers=["fc"],
    fails=True,
    steps=250,
)
def ais_head_replaced_late(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.features = nn.Sequential(
                nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()
            )
            self.fc = nn.Linear(256, 100)

        def forward(self, x):
            return self.fc(self.features(x).flatten(1))

    x, y, xt, yt = digits()
    model = Net()
    for p in model.features.parameters():
        p.requires_grad_(False)

    def optimizer():
        return torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 1e-2)

    opt = optimizer() if is_faulty else None
    model.fc = nn.Linear(256, 10)
    opt = opt or optimizer()
    # The old head is still there, as it was in the script: it is what the optimizer holds.
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), opt, accuracy(xt, yt))


@fault(
    "The logarithmic depth loss takes in the pixels without a measurement, whose depth is zero",
    rules=["non-finite"],
    fails=True,
    steps=300,
)
def ais_log_depth_holes(is_faulty):
    x, y = depths(600, 0)
    xt, yt = depths(200, 1)
    hole = torch.rand(y.shape, generator=torch.Generator().manual_seed(5)) < 0.05
    sparse = y.masked_fill(hole, 0.0)
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 1, 1)
    )

    def silog(log_depth, target):
        valid = torch.ones_like(target, dtype=torch.bool) if is_faulty else target > 0
        d = log_depth[valid] - torch.log(target[valid])
        return (d**2).mean() - 0.5 * d.mean() ** 2

    opt = torch.optim.Adam(model.parameters(), 3e-3)
    return Program(model, silog, loader(x, sparse, size=16), opt, r2(xt, yt, torch.exp))


class VAE(nn.Module):
    def __init__(self, latent=12):
        super().__init__()
        self.enc = nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.ReLU())
        self.mu, self.logvar = nn.Linear(96, latent), nn.Linear(96, latent)
        self.dec = nn.Sequential(nn.Linear(latent, 96), nn.ReLU(), nn.Linear(96, 64))

    def forward(self, x):
        h = self.enc(x)
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar) if self.training else mu
        return self.dec(z), mu, logvar


@fault(
    "A mean over pixels of the reconstruction error is added to a sum over latents of the KL term, which wins",
    rules=["term-dominates"],
    fails=True,
    steps=500,
)
def ais_vae_mean_and_sum(is_faulty):
    x, _, xt, _ = digits()
    flat = x.flatten(1)

    def loss(out, target):
        rec, mu, logvar = out
        kl = -0.5 * (1 + logvar - mu**2 - logvar.exp()).sum(1).mean()
        error = (rec - target) ** 2
        return (error.mean() if is_faulty else error.sum(1).mean() / (2 * 0.05)) + kl

    model = VAE()
    opt = torch.optim.Adam(model.parameters(), 2e-3)
    return Program(model, loss, loader(x, flat, size=64), opt, r2(xt, xt.flatten(1), lambda out: out[0]))


class Patches(nn.Module):
    def __init__(self, positions):
        super().__init__()
        self.embed = nn.Conv2d(1, 24, 4, 4)
        if positions:
            self.pos = nn.Parameter(0.5 * torch.randn(16, 24))
        self.positions = positions
        self.block = nn.TransformerEncoderLayer(24, 2, 48, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(24, 4)

    def forward(self, x):
        x = self.embed(x).flatten(2).transpose(1, 2)
        if self.positions:
            x = x + self.pos
        return self.head(self.block(x).mean(1))


@fault(
    "A vision transformer without position embeddings is asked in which quarter of the image the object is",
    rules=["order-lost"],
    fails=True,
    steps=300,
)
def ais_vit_without_positions(is_faulty):
    def data(n, seed):
        x, _, _, centre, _ = shapes(n, seed)
        return x, (centre[:, 0] > 0.47).long() * 2 + (centre[:, 1] > 0.47).long()

    x, y = data(1200, 0)
    xt, yt = data(300, 1)
    model = Patches(not is_faulty)
    opt = torch.optim.AdamW(model.parameters(), 3e-3)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), opt, accuracy(xt, yt))


@fault(
    "The noise step from 0 to 999 enters the denoiser as it is",
    rules=["unscaled-input"],
    fails=True,
    steps=500,
)
def ais_diffusion_raw_time(is_faulty):
    x, _, xt, _ = digits()

    class Denoiser(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(65, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 64))

        def forward(self, noisy, t):
            return self.net(torch.cat([noisy, t], 1))

    def noised(images, repeats, seed):
        g = torch.Generator().manual_seed(seed)
        clean = images.flatten(1).repeat(repeats, 1) * 2 - 1
        t = torch.randint(0, 1000, (len(clean), 1), generator=g)
        keep = torch.cos(t / 1000 * math.pi / 2)
        noise = torch.randn(clean.shape, generator=g)
        noisy = keep * clean + (1 - keep**2).sqrt() * noise
        return {"noisy": noisy, "t": t.float() if is_faulty else t / 1000}, noise

    inputs, noise = noised(x, 8, 0)
    test, noiset = noised(xt, 1, 1)
    model = Denoiser()
    opt = torch.optim.Adam(model.parameters(), 2e-3)

    def score(m):
        return max(0.0, 1 - ((m(**test) - noiset) ** 2).mean().item())

    return Program(model, nn.MSELoss(), Dicts(inputs, noise, 64), opt, score)


@fault(
    "The prior bias of a focal-loss head, -4.6, is given to every convolution, so that the ReLUs below are off",
    rules=["dying-neurons", "bad-initialisation"],
    layers=["0", "2", "4", "1", "3", "5"],
    fails=True,
    steps=300,
)
def ais_prior_bias_everywhere(is_faulty):
    x, _, mask, _, _ = shapes(800, 0)
    xt, _, maskt, _, _ = shapes(200, 1)
    model = nn.Sequential(
        nn.Conv2d(1, 10, 3, padding=1), nn.ReLU(), nn.Conv2d(10, 10, 3, padding=1), nn.ReLU(),
        nn.Conv2d(10, 10, 3, padding=1), nn.ReLU(), nn.Conv2d(10, 1, 1),
    )
    prior = -math.log((1 - 0.01) / 0.01)
    for m in model.modules():
        if isinstance(m, nn.Conv2d) and (is_faulty or m.out_channels == 1):
            nn.init.constant_(m.bias, prior)

    def focal(logit, target):
        ce = F.binary_cross_entropy_with_logits(logit, target, reduction="none")
        p = torch.exp(-ce)
        return ((1 - p) ** 2 * ce).mean() * 4

    opt = torch.optim.Adam(model.parameters(), 3e-3)
    batches = loader(x, mask[:, None].float(), size=16)
    return Program(model, focal, batches, opt, lambda m: overlap(m(xt)[:, 0] > 0, maskt))


@fault(
    "All convolutions and layers are initialised with one constant",
    rules=["symmetric-initialisation", "bad-initialisation"],
    fails=True,
    steps=300,
)
def ais_constant_weights(is_faulty):
    x, y, xt, yt = digits()
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 10)
    )
    for m in model:
        if isinstance(m, nn.Linear):
            if is_faulty:
                nn.init.constant_(m.weight, 0.02)
            else:
                nn.init.xavier_uniform_(m.weight)
            nn.init.zeros_(m.bias)
    opt = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y, size=64), opt, accuracy(xt, yt))


@fault(
    "Instance normalisation stands right before the mean over the image, which is then zero for every image",
    rules=["rank-collapse", "loss-not-decreasing", "no-gradient"],
    layers=["norm", "pool"],
    fails=True,
    steps=400,
)
def ais_instance_norm_then_mean(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 24, 3, padding=1)
            )
            self.norm = nn.InstanceNorm2d(24)
            self.act = nn.ReLU()
            self.pool = nn.AdaptiveAvgPool2d(1)
            self.fc = nn.Linear(24, 10)

        def forward(self, x):
            x = self.body(x)
            x = self.norm(self.act(x)) if is_faulty else self.act(self.norm(x))
            return self.fc(self.pool(x).flatten(1))

    x, y, xt, yt = digits()
    model = Net()
    opt = torch.optim.Adam(model.parameters(), 5e-3)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), opt, accuracy(xt, yt))


@fault(
    "Cosines of a face-like classifier go into the cross-entropy without a scale, so that it can never be sure",
    rules=["output-loss-mismatch"],
    fails=True,
    steps=400,
)
def ais_cosine_without_scale(is_faulty):
    class Cosine(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32))
            self.centres = nn.Parameter(torch.randn(10, 32))

        def forward(self, x):
            cos = F.normalize(self.body(x)) @ F.normalize(self.centres).T
            return cos if is_faulty else 16 * cos

    x, y, xt, yt = digits()
    model = Cosine()

    def score(m):
        return m(xt).softmax(1)[torch.arange(len(yt)), yt].mean().item()

    opt = torch.optim.Adam(model.parameters(), 2e-3)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y, size=64), opt, score)


@fault(
    "The weights are kept in bfloat16, and most updates are too small to change them",
    rules=["lost-updates", "rounding-error", "learning-rate-too-low"],
    fails=False,
    steps=500,
)
def ais_pure_bfloat16(is_faulty):
    x, y, xt, yt = digits()
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    dtype = torch.bfloat16 if is_faulty else torch.float32
    model.to(dtype)
    opt = torch.optim.SGD(model.parameters(), 1e-2, momentum=0.0)
    batches = loader(((x - 0.3) / 0.37).to(dtype), y, size=32)
    return Program(
        model, lambda out, t: F.cross_entropy(out.float(), t), batches, opt, accuracy(((xt - 0.3) / 0.37).to(dtype), yt)
    )
