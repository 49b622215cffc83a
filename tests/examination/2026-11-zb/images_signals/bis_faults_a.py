"""Faults in programs on images."""

from __future__ import annotations

import bis_data as data
import torch
from program import Program, fault
from torch import nn
from torch.nn import functional as F


def small_cnn(channels=1, classes=4, width=12, pool=3):
    """Two convolutions and a linear head for images of 12 by 12."""
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(2 * width * pool * pool, classes),
    )  # fmt: skip


class TinyUNet(nn.Module):
    """One level down and up again, with a skip connection."""

    def __init__(self, outputs):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU())
        self.middle = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.Upsample(None, 2))
        self.up = nn.Sequential(nn.Conv2d(24, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, outputs, 1))

    def forward(self, x):
        skip = self.down(x)
        return self.up(torch.cat([skip, self.middle(skip)], 1))


@fault(
    "logits of shape (B, C, H, W) are reshaped to rows of classes without moving the class axis to the end",
    rules=["output-loss-mismatch", "labels-unrelated"], fails=True, steps=200,
)  # fmt: skip
def bis_segmentation_reshape(is_faulty):
    """Each pixel is ground, or one of two kinds of object."""
    x, kind, mask, _ = data.shapes()
    target = (mask[:, 0] * (1 + (kind == 2).float()[:, None, None])).long()
    model = TinyUNet(outputs=3)

    def loss(out, y):
        rows = out if is_faulty else out.permute(0, 2, 3, 1)
        return F.cross_entropy(rows.reshape(-1, 3), y.reshape(-1))

    def score(m):
        found = m(x[800:]).argmax(1)
        real = target[800:]
        return ((found == real) & (real > 0)).sum().item() / ((found > 0) | (real > 0)).sum().item()

    return Program(
        model, loss, data.loader(x[:800], target[:800], batch=16), torch.optim.Adam(model.parameters(), 4e-3), score
    )


@fault(
    "the mask is 0 or 1 already, and is divided by 255 as if it were a grey image, so that no pixel is foreground",
    rules=["constant-target"], fails=True, steps=200,
)  # fmt: skip
def bis_mask_divided_by_255(is_faulty):
    """Segmentation into two classes."""
    x, _, mask, _ = data.shapes(seed=6)
    stored = mask[:, 0].to(torch.uint8)
    target = (stored / 255).long() if is_faulty else stored.long()
    model = TinyUNet(outputs=2)

    def score(m):
        out = m(x[800:])
        found, real = out[:, 1] > out[:, 0], stored[800:] > 0
        return ((found & real).sum() / (found | real).sum()).item()

    return Program(
        model, nn.CrossEntropyLoss(), data.loader(x[:800], target[:800], batch=16),
        torch.optim.Adam(model.parameters(), 3e-3), score,
    )  # fmt: skip


@fault(
    "key points are given in pixels of the original photograph, hundreds away from what the network returns",
    rules=["unscaled-target"], fails=False, steps=250,
)  # fmt: skip
def bis_keypoints_in_pixels(is_faulty):
    """The centre of a shape, as two numbers."""
    x, _, _, centre = data.shapes(noise=0.05)
    unit = 100.0 if is_faulty else 1 / 12
    model = small_cnn(classes=2)
    return Program(
        model, nn.L1Loss(), data.loader(x[:800], centre[:800] * unit), torch.optim.Adam(model.parameters(), 2e-3),
        data.r2(x[800:], centre[800:] * unit),
    )  # fmt: skip


class FlowNet(nn.Module):
    """Reads a displacement from two frames."""

    def __init__(self, last):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(2, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 24, 3, padding=1), nn.ReLU()
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(24 * 36, 32), nn.ReLU(), nn.Linear(32, 2))
        self.last = last

    def forward(self, frames):
        return self.last(self.head(self.features(frames)))


@fault(
    "the displacement has either sign, and the network ends in a ReLU",
    rules=["output-loss-mismatch"], layers=["last"], fails=False, steps=300,
)  # fmt: skip
def bis_flow_relu_output(is_faulty):
    """Optical flow of a blob."""
    x, shift = data.moves()
    model = FlowNet(nn.ReLU() if is_faulty else nn.Identity())
    return Program(
        model, nn.MSELoss(), data.loader(x[:800], shift[:800]), torch.optim.Adam(model.parameters(), 2e-3),
        data.r2(x[800:], shift[800:]),
    )  # fmt: skip


class VAE(nn.Module):
    """A variational autoencoder of digits."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 24))
        self.decoder = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64))

    def forward(self, x):
        mean, logvar = self.encoder(x).chunk(2, 1)
        z = mean + torch.randn_like(mean) * (0.5 * logvar).exp() if self.training else mean
        return self.decoder(z), mean, logvar


@fault(
    "the KL divergence is summed over the batch, and the reconstruction error is a mean over all pixels",
    rules=["term-dominates"], fails=True, steps=600,
)  # fmt: skip
def bis_vae_kl_sum(is_faulty):
    """A variational autoencoder that is to reconstruct."""
    x, _, held, _ = data.digits()
    model = VAE()

    def loss(out, y):
        flat, mean, logvar = out
        error = F.mse_loss(flat, y.flatten(1))
        kl = -0.5 * (1 + logvar - mean.pow(2) - logvar.exp())
        return error + (kl.sum() if is_faulty else kl.mean() * 0.01)

    return Program(
        model, loss, data.loader(x, x, batch=64), torch.optim.Adam(model.parameters(), 3e-3),
        data.r2(held, held.flatten(1), read=lambda out: out[0]),
    )  # fmt: skip


class Denoiser(nn.Module):
    """Predicts the noise in a noisy image from the image and the time."""

    def __init__(self, scale):
        super().__init__()
        self.scale = scale
        self.net = nn.Sequential(nn.Linear(65, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 64))

    def forward(self, noisy, t):
        return self.net(torch.cat([noisy, t[:, None] * self.scale], 1))


@fault(
    "the time step, up to 1000, is put next to the pixels as it is",
    rules=["unscaled-input", "bad-initialisation", "activation-drift"], fails=True, steps=400,
)  # fmt: skip
def bis_diffusion_raw_time(is_faulty):
    """Learns to predict the noise of a diffusion process."""
    x, _, held, _ = data.digits()
    x, held = x.flatten(1) * 2 - 1, held.flatten(1) * 2 - 1
    model = Denoiser(1.0 if is_faulty else 0.001)

    def mix(clean, t, noise):
        keep = torch.cos(t / 1000 * torch.pi / 2)[:, None]
        return keep * clean + (1 - keep**2).sqrt() * noise

    def step(m, batch):
        clean = batch[0]
        t = torch.randint(50, 1000, (len(clean),)).float()
        noise = torch.randn_like(clean)
        return F.mse_loss(m(mix(clean, t, noise), t), noise)

    g = torch.Generator().manual_seed(1)
    t_held = torch.randint(50, 1000, (len(held),), generator=g).float()
    noise_held = torch.randn(held.shape, generator=g)

    def score(m):
        return max(0.0, 1 - F.mse_loss(m(mix(held, t_held, noise_held), t_held), noise_held).item())

    return Program(
        model, None, data.loader(x, batch=64), torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), score, step=step
    )


@fault(
    "nine layers of sigmoids",
    rules=["vanishing-gradient", "rank-collapse", "saturated-activation", "activation-drift"], fails=True, steps=300,
)  # fmt: skip
def bis_deep_sigmoids(is_faulty):
    """Digits with a deep and narrow network."""
    x, y, x_held, y_held = data.digits()
    layers = [nn.Flatten(), nn.Linear(64, 32)]
    for _ in range(8):
        layers += [nn.Sigmoid() if is_faulty else nn.SiLU(), nn.Linear(32, 32)]
    model = nn.Sequential(*layers, nn.Linear(32, 10))
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight)
            nn.init.zeros_(layer.bias)
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(x, y), torch.optim.Adam(model.parameters(), 3e-3),
        data.accuracy(x_held, y_held),
    )  # fmt: skip


class ResNet(nn.Module):
    """A residual network without normalisation."""

    def __init__(self, std=None, blocks=4):
        super().__init__()
        self.stem = nn.Conv2d(1, 16, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1))
            for _ in range(blocks)
        )
        self.fc = nn.Linear(16 * 16, 10)
        if std:
            for module in self.modules():
                if isinstance(module, nn.Conv2d):
                    nn.init.normal_(module.weight, 0.0, std)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(F.relu(x))
        return self.fc(F.max_pool2d(F.relu(x), 2).flatten(1))


@fault(
    "convolutions are initialised with a standard deviation of 1",
    rules=["bad-initialisation", "activation-drift", "exploding-gradient", "last-layer-drift", "saturated-output"],
    fails=True, steps=150,
)  # fmt: skip
def bis_resnet_unit_normal(is_faulty):
    """Digits with a small residual network."""
    x, y, x_held, y_held = data.digits()
    model = ResNet(1.0 if is_faulty else None)
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(x, y, batch=16), torch.optim.SGD(model.parameters(), 0.02, 0.9),
        data.accuracy(x_held, y_held),
    )  # fmt: skip


class TinyViT(nn.Module):
    """A vision transformer on patches of 3 by 3 of images of 12 by 12."""

    def __init__(self, classes=4, positions=True):
        super().__init__()
        self.patch = nn.Conv2d(1, 24, 3, stride=3)
        self.position = nn.Parameter(0.1 * torch.randn(1, 16, 24)) if positions else None
        self.encoder = nn.TransformerEncoderLayer(24, 4, 48, dropout=0.0, batch_first=True, norm_first=True)
        self.norm = nn.LayerNorm(24)
        self.head = nn.Linear(24, classes)

    def forward(self, x):
        tokens = self.patch(x).flatten(2).transpose(1, 2)
        if self.position is not None:
            tokens = tokens + self.position
        return self.head(self.norm(self.encoder(tokens)).mean(1))


@fault(
    "a vision transformer without position embeddings is asked in which quarter of the image the object is",
    rules=["order-lost", "labels-unrelated", "loss-not-decreasing"], fails=True, steps=300,
)  # fmt: skip
def bis_vit_no_positions(is_faulty):
    """Where the shape is: one of four quarters."""
    x, _, _, centre = data.shapes(noise=0.08)
    y = ((centre[:, 0] > 5.5).long() * 2 + (centre[:, 1] > 5.5).long()).clone()
    model = TinyViT(positions=not is_faulty)
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(x[:800], y[:800]), torch.optim.AdamW(model.parameters(), 3e-3),
        data.accuracy(x[800:], y[800:]),
    )  # fmt: skip


class Pretrained(nn.Module):
    """A backbone that is frozen, and a head."""

    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(1, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
        self.neck = nn.Sequential(nn.Linear(24 * 16, 64), nn.ReLU())
        self.head = nn.Linear(64, 1000)

    def forward(self, x):
        return self.head(self.neck(self.backbone(x)))


@fault(
    "the head is replaced after the optimizer was made, which goes on stepping the old one",
    rules=["no-gradient"], layers=["head"], fails=True, steps=200,
)  # fmt: skip
def bis_head_after_optimizer(is_faulty):
    """Fine-tunes the head of a network whose other layers are frozen."""
    x, y, x_held, y_held = data.digits()
    model = Pretrained()
    for part in (model.backbone, model.neck):
        part.requires_grad_(False)
    if not is_faulty:
        model.head = nn.Linear(64, 10)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    if is_faulty:
        model.head = nn.Linear(64, 10)
    return Program(model, nn.CrossEntropyLoss(), data.loader(x, y), optimizer, data.accuracy(x_held, y_held))


@fault(
    "0.95 was meant as the share that Dropout keeps",
    rules=["dropout-too-strong"], layers=["4", "9"], fails=True, steps=250,
)  # fmt: skip
def bis_dropout_keep(is_faulty):
    """Shapes with dropout after each stage."""
    x, y, _, _ = data.shapes(seed=8, n=1200)
    p = 0.95 if is_faulty else 0.05
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(p),
        nn.Conv2d(12, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(p),
        nn.Flatten(), nn.Linear(24 * 9, 4),
    )  # fmt: skip
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(x[:1000], y[:1000]), torch.optim.Adam(model.parameters(), 2e-3),
        data.accuracy(x[1000:], y[1000:]),
    )  # fmt: skip


class FunctionalDropout(nn.Module):
    """A network that calls dropout as a function."""

    def __init__(self, always):
        super().__init__()
        self.conv = nn.Conv2d(1, 16, 3, padding=1)
        self.fc1 = nn.Linear(16 * 16, 48)
        self.fc2 = nn.Linear(48, 10)
        self.always = always

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv(x)), 2).flatten(1)
        if self.always:
            x = F.dropout(x, 0.7)
            x = F.dropout(F.relu(self.fc1(x)), 0.7)
        else:
            x = F.dropout(x, 0.7, training=self.training)
            x = F.dropout(F.relu(self.fc1(x)), 0.7, training=self.training)
        return self.fc2(x)


@fault("F.dropout without `training=self.training`", rules=["dropout-in-eval"], fails=False, steps=400)
def bis_functional_dropout(is_faulty):
    """Digits."""
    x, y, x_held, y_held = data.digits()
    model = FunctionalDropout(is_faulty)
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(x, y), torch.optim.Adam(model.parameters(), 2e-3),
        data.accuracy(x_held, y_held),
    )  # fmt: skip


@fault(
    "the momentum of BatchNorm was copied from a framework where 0.999 is the share that stays: 0.001 here",
    rules=["batchnorm-mode-gap"], layers=["1", "5"], fails=True, steps=200,
)  # fmt: skip
def bis_batchnorm_momentum(is_faulty):
    """Shapes on X-ray-like images that are bright on average."""
    x, y, _, _ = data.shapes()
    x = x * 0.4 + 2.0
    momentum = 0.001 if is_faulty else 0.1
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12, momentum=momentum), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24, momentum=momentum), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(24 * 9, 4),
    )  # fmt: skip
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(x[:800], y[:800], batch=64),
        torch.optim.Adam(model.parameters(), 1.5e-3), data.accuracy(x[800:], y[800:]),
    )  # fmt: skip


@fault(
    "images lie in one folder per class, and the loader does not shuffle",
    rules=["sorted-batches"], fails=True, steps=220,
)  # fmt: skip
def bis_folders_in_order(is_faulty):
    """Digits from folders."""
    x, y, x_held, y_held = data.digits()
    order = y.argsort(stable=True)
    x, y = x[order], y[order]
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12 * 16, 48), nn.ReLU(),
        nn.Linear(48, 10),
    )  # fmt: skip
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(x, y, batch=32, shuffle=not is_faulty),
        torch.optim.Adam(model.parameters(), 5e-3), data.accuracy(x_held, y_held),
    )  # fmt: skip


@fault(
    "depth maps hold 0 where the sensor saw nothing, and the loss counts those pixels",
    rules=["padding-in-loss"], fails=True, steps=300,
)  # fmt: skip
def bis_depth_holes(is_faulty):
    """Depth from one image; six pixels in ten of the measured map are missing."""
    g = torch.Generator().manual_seed(2)
    clean = data.textures()
    depth = 2.0 + clean
    seen = torch.rand(depth.shape, generator=g) < 0.4
    measured = depth * seen
    x = clean + 0.2 * torch.randn(clean.shape, generator=g)
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 1, 1)
    )

    def loss(out, y):
        if is_faulty:
            return (out - y).abs().mean()
        valid = y > 0
        return (out - y).abs()[valid].mean()

    return Program(
        model, loss, data.loader(x[:640], measured[:640], batch=16), torch.optim.Adam(model.parameters(), 4e-3),
        data.r2(x[640:], depth[640:]),
    )  # fmt: skip


@fault(
    "the squared error of super-resolution is summed, with the rate that was found for its mean",
    rules=["summed-loss", "learning-rate-too-high"], fails=True, steps=250,
)  # fmt: skip
def bis_super_resolution_sum(is_faulty):
    """Doubles the size of textures."""
    fine = data.textures(size=12)
    coarse = F.avg_pool2d(fine, 2)
    model = nn.Sequential(nn.Conv2d(1, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 4, 3, padding=1), nn.PixelShuffle(2))
    return Program(
        model, nn.MSELoss(reduction="sum" if is_faulty else "mean"), data.loader(coarse[:640], fine[:640], batch=16),
        torch.optim.SGD(model.parameters(), 0.05, 0.9), data.r2(coarse[640:], fine[640:]),
    )  # fmt: skip


@fault(
    "the bias of -4.6 that makes rare objects rare at the output is given to all convolutions",
    rules=["dying-neurons", "bad-initialisation"], layers=["0", "2"], fails=True, steps=200,
)  # fmt: skip
def bis_prior_bias_everywhere(is_faulty):
    """A map of where small objects are."""
    x, _, mask, _ = data.shapes(noise=0.1)
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 1, 1)
    )
    for place, module in enumerate(model):
        if isinstance(module, nn.Conv2d) and (is_faulty or place == 4):
            nn.init.constant_(module.bias, -4.6)
    return Program(
        model, nn.BCEWithLogitsLoss(), data.loader(x[:800], mask[:800], batch=16),
        torch.optim.Adam(model.parameters(), 5e-3), data.overlap(x[800:], mask[800:]),
    )  # fmt: skip


class SoftArgmax(nn.Module):
    """The mean place under a heat map for each of two key points."""

    def __init__(self, dim):
        super().__init__()
        self.heat = nn.Sequential(nn.Conv2d(1, 12, 5, padding=2), nn.ReLU(), nn.Conv2d(12, 2, 5, padding=2))
        self.dim = dim
        row, col = data.grid(12)
        self.register_buffer("places", torch.stack([row, col], 2).reshape(144, 2) / 12)

    def forward(self, x):
        weights = torch.softmax(self.heat(x).flatten(2), dim=self.dim)
        return weights @ self.places


@fault(
    "the softmax of heat maps goes over the key points instead of over the places",
    rules=["wrong-softmax-dimension"], fails=True, steps=300,
)  # fmt: skip
def bis_soft_argmax_dimension(is_faulty):
    """Two key points of a shape: its centre and its upper end."""
    x, _, _, centre = data.shapes(noise=0.05)
    points = torch.stack([centre, centre - torch.tensor([2.0, 0.0])], 1) / 12
    model = SoftArgmax(1 if is_faulty else 2)
    return Program(
        model, lambda out, y: 10 * F.mse_loss(out, y), data.loader(x[:800], points[:800]),
        torch.optim.Adam(model.parameters(), 5e-3), data.r2(x[800:], points[800:]),
    )  # fmt: skip


@fault(
    "the distance of an embedding to itself goes through a square root, whose slope at 0 is infinite",
    rules=["non-finite"], fails=True, steps=200,
)  # fmt: skip
def bis_distance_root(is_faulty):
    """Metric learning with all pairs of a batch."""
    x, y, x_held, y_held = data.digits()
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    tiny = 0.0 if is_faulty else 1e-6

    def loss(z, label):
        distance = ((z[:, None] - z[None]).pow(2).sum(2) + tiny).sqrt()
        same = (label[:, None] == label[None]).float()
        near = (same * distance.pow(2)).sum() / same.sum()
        far = ((1 - same) * F.relu(2 - distance).pow(2)).sum() / (1 - same).sum()
        return near + 3 * far

    def score(m):
        z, known = m(x_held), m(x)
        if not torch.isfinite(z).all():
            return 0.1
        means = torch.stack([known[y == c].mean(0) for c in range(10)])
        return (torch.cdist(z, means).argmin(1) == y_held).float().mean().item()

    return Program(model, loss, data.loader(x, y, batch=48), torch.optim.Adam(model.parameters(), 3e-3), score)
