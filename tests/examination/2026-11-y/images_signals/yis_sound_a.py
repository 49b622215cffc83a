"""Sound set-ups on images."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from program import Program, sound
from torch import nn
from torch.utils.data import DataLoader, Dataset
from yis_data import accuracy, bars, blob, dice, discs, fields, glyphs, loader, r2, volumes


@sound("an ordinary small convolutional classifier", steps=250, least=0.9)
def yis_plain_cnn():
    x, y = bars(1200, 12, 0.3)
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(),
        nn.AdaptiveMaxPool2d(2), nn.Flatten(), nn.Linear(96, 4),
    )
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    return Program(model, nn.CrossEntropyLoss(), loader(x[:900], y[:900]), opt, accuracy(x[900:], y[900:]))


class BasicBlock(nn.Module):
    def __init__(self, i, o, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(i, o, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(o)
        self.conv2 = nn.Conv2d(o, o, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(o)
        nn.init.zeros_(self.bn2.weight)
        self.short = nn.Identity() if i == o and stride == 1 else nn.Conv2d(i, o, 1, stride, bias=False)

    def forward(self, x):
        return F.relu(self.short(x) + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


@sound("residual branches that start at 0, a rate that starts near 0 and rises to 0.2", steps=300, least=0.9)
def yis_zero_branches_and_warmup():
    x, y = glyphs(1500, 6, 12, 0.8)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), BasicBlock(8, 8), BasicBlock(8, 16, 2),
        BasicBlock(16, 16, 2), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 6),
    )
    opt = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, weight_decay=1e-4, nesterov=True)
    sched = torch.optim.lr_scheduler.LambdaLR(
        opt, lambda k: (k + 1) / 60 if k < 60 else 0.5 * (1 + math.cos(math.pi * min(1.0, (k - 60) / 240)))
    )
    return Program(
        model, nn.CrossEntropyLoss(label_smoothing=0.1), loader(x[:1200], y[:1200]), opt,
        accuracy(x[1200:], y[1200:]), scheduler=sched,
    )


class Inverted(nn.Module):
    def __init__(self, c, k=3):
        super().__init__()
        self.expand = nn.Conv2d(c, k * c, 1, bias=False)
        self.depth = nn.Conv2d(k * c, k * c, 3, padding=1, groups=k * c, bias=False)
        self.project = nn.Conv2d(k * c, c, 1, bias=False)
        self.n1, self.n2, self.n3 = nn.BatchNorm2d(k * c), nn.BatchNorm2d(k * c), nn.BatchNorm2d(c)

    def forward(self, x):
        h = F.relu6(self.n1(self.expand(x)))
        h = F.relu6(self.n2(self.depth(h)))
        return x + self.n3(self.project(h))  # linear bottleneck


@sound("a mobile network: depthwise filters, and a bottleneck without a nonlinearity", trained=80, steps=250, least=0.85)
def yis_mobile_bottlenecks():
    x, y = bars(1200, 10, 0.4)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, 2, 1), Inverted(8), Inverted(8), nn.AdaptiveMaxPool2d(2), nn.Flatten(), nn.Dropout(0.1),
        nn.Linear(32, 4),
    )
    opt = torch.optim.RMSprop(model.parameters(), lr=2e-3, alpha=0.9, momentum=0.5)
    return Program(model, nn.CrossEntropyLoss(), loader(x[:900], y[:900]), opt, accuracy(x[900:], y[900:]))


class Dense(nn.Module):
    def __init__(self, growth=6, layers=5):
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(1 + k * growth, growth, 3, padding=1) for k in range(layers))
        self.out = nn.Conv2d(1 + layers * growth, 1, 1)

    def forward(self, x):
        for conv in self.layers:
            x = torch.cat([x, F.leaky_relu(conv(x), 0.1)], 1)
        return self.out(x).squeeze(1)


@sound("a dense network that segments rare pixels, whose last bias starts at a low prior", steps=250, least=0.75)
def yis_dense_with_prior_bias():
    i = torch.arange(12)
    at, r = torch.rand(600, 2, 1, 1) * 12, 1 + torch.rand(600, 1, 1)
    m = ((i[:, None] - at[:, 0]) ** 2 + (i - at[:, 1]) ** 2 < r**2).long()
    x = (1.5 * m + 0.5 * torch.randn(600, 12, 12))[:, None]
    model = Dense()
    nn.init.constant_(model.out.bias, -math.log((1 - 0.05) / 0.05))

    def focal(out, target):
        p = torch.sigmoid(out)
        t = target.float()
        pt = p * t + (1 - p) * (1 - t)
        return ((1 - pt) ** 2 * F.binary_cross_entropy_with_logits(out, t, reduction="none")).mean()

    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    return Program(
        model, focal, loader(x[:450], m[:450], size=12), opt,
        lambda net: dice(net(x[450:]) > 0, m[450:]),
    )


class Views(Dataset):
    def __init__(self, x, m):
        self.x, self.m = x, m

    def __len__(self):
        return len(self.x)

    def __getitem__(self, k):
        x, m = self.x[k], self.m[k]
        if torch.rand(()) < 0.5:
            x, m = x.flip(-1), m.flip(-1)
        return {"image": x}, m


class UNet(nn.Module):
    def __init__(self, c=8):
        super().__init__()
        self.a = nn.Sequential(nn.Conv2d(1, c, 3, padding=1), nn.GroupNorm(2, c), nn.ReLU())
        self.b = nn.Sequential(nn.Conv2d(c, 2 * c, 3, 2, 1), nn.GroupNorm(2, 2 * c), nn.ReLU())
        self.c = nn.Sequential(nn.Conv2d(3 * c, c, 3, padding=1), nn.ReLU())
        self.out = nn.Conv2d(c, 2, 1)

    def forward(self, image):
        a = self.a(image)
        up = F.interpolate(self.b(a), scale_factor=2, mode="nearest")
        return self.out(self.c(torch.cat([a, up], 1)))


@sound("two images per step with GroupNorm, and borders of the masks that are ignored (255)", steps=400, least=0.75)
def yis_two_images_and_ignored_borders():
    x, m = discs(700, 14)
    target = m.clone()
    target[:, 0] = target[:, -1] = 255
    target[:, :, 0] = target[:, :, -1] = 255
    model = UNet()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
    return Program(
        model, nn.CrossEntropyLoss(ignore_index=255), DataLoader(Views(x[:500], target[:500]), 2, shuffle=True), opt,
        lambda net: dice(net(x[500:]).argmax(1)[:, 1:-1, 1:-1], m[500:, 1:-1, 1:-1]),
    )


class SoftArgmax(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 12, 5, padding=2), nn.ReLU(), nn.Conv2d(12, 1, 5, padding=2))
        self.register_buffer("axis", torch.linspace(-1, 1, 12))

    def forward(self, x):
        h = self.net(x)
        p = torch.softmax(h.flatten(1), 1).view(-1, 12, 12)
        return torch.stack([(p.sum(2) * self.axis).sum(1), (p.sum(1) * self.axis).sum(1)], 1)


@sound("a softmax inside the network, over all places of a map of heat, and coordinates out of it", steps=250, least=0.85)
def yis_soft_argmax():
    x, p = blob(900, 12)
    model = SoftArgmax()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    return Program(model, nn.L1Loss(), loader(x[:700], p[:700]), opt, lambda net: r2(net(x[700:]), p[700:]))


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.att = nn.MultiheadAttention(d, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x):
        h = self.n1(x)
        x = x + self.att(h, h, h, need_weights=False)[0]
        return x + self.mlp(self.n2(x))


class ClassTokenViT(nn.Module):
    def __init__(self, classes=4, d=32, patches=16):
        super().__init__()
        self.patch = nn.Conv2d(1, d, 3, 3)
        self.cls = nn.Parameter(torch.zeros(1, 1, d))
        self.pos = nn.Parameter(torch.zeros(1, patches + 1, d))
        self.blocks = nn.Sequential(Block(d, 2), Block(d, 2))
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, classes)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.pos
        return self.head(self.norm(self.blocks(x))[:, 0])


@sound("a class token, positions and a head that all start at 0", steps=400, least=0.8)
def yis_vit_of_zeros():
    x, p = blob(1500, 12)
    y = (p[:, 0] > 0).long() * 2 + (p[:, 1] > 0).long()
    model = ClassTokenViT()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.1)
    return Program(model, nn.CrossEntropyLoss(), loader(x[:1100], y[:1100]), opt, accuracy(x[1100:], y[1100:]))


@sound("patches whose order is not looked at, as it does not matter: what texture an image has", steps=300, least=0.8)
def yis_bag_of_patches():
    t = torch.randn(5, 9)
    n = 1300
    y = torch.randint(5, (n,))
    x = 0.7 * t[y][:, None] * (torch.rand(n, 16, 1) < 0.6) + torch.randn(n, 16, 9)

    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Linear(9, 32)
            self.block = Block(32, 4)
            self.head = nn.Linear(32, 5)

        def forward(self, patches):
            return self.head(self.block(self.embed(patches)).mean(1))

    model = Bag()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.98))
    return Program(model, F.cross_entropy, loader(x[:1000], y[:1000]), opt, accuracy(x[1000:], y[1000:]))


class Featured(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.AdaptiveMaxPool2d(2), nn.Flatten(),
        )
        self.head = nn.Linear(96, 4)

    def forward(self, x):
        return self.head(self.features(x))

    def train(self, mode=True):
        super().train(mode)
        self.features.eval()
        return self


@sound("a pretrained body, frozen and in evaluation mode, of which only the head is in the optimizer", trained=100, steps=250, least=0.8)
def yis_frozen_body():
    x, y = bars(1800, 12, 0.3)
    model = Featured()
    body, other = model.features, nn.Linear(96, 4)
    pre = torch.optim.Adam([*body.parameters(), *other.parameters()], lr=3e-3)
    flipped = 3 - y  # another task on the same images
    for _ in range(60):
        k = torch.randint(700, (48,))
        pre.zero_grad()
        F.cross_entropy(other(body(x[k])), flipped[k]).backward()
        pre.step()
    for p in body.parameters():
        p.grad = None
        p.requires_grad_(False)
    model.train()
    opt = torch.optim.SGD(model.head.parameters(), lr=0.05, momentum=0.9)
    return Program(
        model, nn.CrossEntropyLoss(), loader(x[700:1400], y[700:1400]), opt, accuracy(x[1400:], y[1400:])
    )


@sound("bytes of 0 to 255 that a BatchNorm brings to scale, with black borders that never vary", steps=250, least=0.85)
def yis_bytes_into_batchnorm():
    x, y = glyphs(1200, 6, 8, 0.5)
    x = F.pad((x * 40 + 120).clamp(0, 255).floor(), (2, 2, 2, 2))
    model = nn.Sequential(
        nn.BatchNorm2d(1), nn.Conv2d(1, 12, 3, 2, 1), nn.ReLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.ReLU(), nn.Flatten(),
        nn.Linear(216, 6),
    )
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    return Program(model, nn.CrossEntropyLoss(), loader(x[:900], y[:900]), opt, accuracy(x[900:], y[900:]))


@sound("an ordinary network on volumes, trained to its end", trained=300, steps=350, least=0.9)
def yis_volumes_trained():
    x, y = volumes(1000)
    model = nn.Sequential(
        nn.Conv3d(1, 8, 3, padding=1), nn.ELU(), nn.MaxPool3d(2), nn.Conv3d(8, 12, 3), nn.ELU(), nn.Flatten(),
        nn.Linear(12, 3),
    )
    opt = torch.optim.Adam(model.parameters(), lr=4e-3)
    return Program(model, nn.CrossEntropyLoss(), loader(x[:700], y[:700]), opt, accuracy(x[700:], y[700:]))


class Upscaler(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.PReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.PReLU(),
            nn.Conv2d(16, 4, 3, padding=1), nn.PixelShuffle(2),
        )
        nn.init.zeros_(self.net[4].weight)
        nn.init.zeros_(self.net[4].bias)

    def forward(self, x):
        return F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False) + self.net(x)


@sound("super-resolution whose last convolution starts at 0, and adds to what is interpolated", steps=300, least=0.7)
def yis_upscaler_starts_at_zero():
    fine = fields(900, 16, 8)
    coarse = fine[..., ::2, ::2]
    model = Upscaler()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    base = F.interpolate(coarse[700:], scale_factor=2, mode="bilinear", align_corners=False)

    def score(net):  # share of what interpolation misses
        return max(0.0, float(1 - F.mse_loss(net(coarse[700:]), fine[700:]) / F.mse_loss(base, fine[700:])))

    return Program(model, nn.L1Loss(), loader(coarse[:700], fine[:700], size=16), opt, score)
