"""Faults in programs on images."""


import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

from program import Program, fault
from wis_data import (wis_accuracy, wis_blobs, wis_cells, wis_figures, wis_fit, wis_gratings, wis_grid, wis_loader, wis_smooth)


def wis_conv(a, b, stride=1):
    return nn.Sequential(nn.Conv2d(a, b, 3, stride, 1), nn.ReLU())


@fault("logits (N, C, H, W) are reshaped to rows of C without a permute, so pixels are paired with others' labels",
       rules=("output-loss-mismatch", "labels-unrelated"), fails=True, steps=250)
def wis_land_cover(is_faulty):
    def draw(n):
        x, mask = wis_cells(n, 12, 0.2)
        gy, _ = wis_grid(12)
        band = gy.expand(n, -1, -1) > 0.6 * torch.rand(n, 1, 1)
        y = torch.where(mask, 2, band.long())
        return torch.cat([x, band[:, None] + 0.3 * torch.randn(n, 1, 12, 12)], 1), y

    class Segmenter(nn.Module):
        def __init__(self):
            super().__init__()
            self.down = wis_conv(2, 16)
            self.mid = wis_conv(16, 16)
            self.classify = nn.Conv2d(16, 3, 1)

        def forward(self, x):
            return self.classify(self.mid(self.down(x)))

    def criterion(logits, target):
        rows = logits.reshape(-1, 3) if is_faulty else logits.permute(0, 2, 3, 1).reshape(-1, 3)
        return F.cross_entropy(rows, target.reshape(-1))

    x, y = draw(512)
    held, truth = draw(128)

    def score(model):
        said = model(held).argmax(1)
        return sum((said == c)[truth == c].float().mean().item() for c in range(3)) / 3

    model = Segmenter()
    return Program(model, criterion, wis_loader(x, y), torch.optim.Adam(model.parameters(), 3e-3), score)


class wis_BoxSet(Dataset):
    def __init__(self, n, unit):
        self.low = torch.rand(n, 2) * 0.5
        self.high = self.low + 0.2 + torch.rand(n, 2) * 0.3
        at = (torch.arange(12) + 0.5) / 12
        inside = (at > self.low[..., None]) & (at < self.high[..., None])
        self.image = (inside[:, 1, :, None] & inside[:, 0, None]).float()[:, None]
        self.image = self.image + 0.1 * torch.randn_like(self.image)
        self.unit = unit

    def __len__(self):
        return len(self.image)

    def __getitem__(self, i):
        return {"image": self.image[i], "box": torch.cat([self.low[i], self.high[i]]) * self.unit}


@fault("boxes are regressed in pixels of the original photograph (up to 1280) by a head that starts near 0",
       rules=("unscaled-target",), fails=False, steps=300)
def wis_box_regression(is_faulty):
    unit = 1280.0 if is_faulty else 1.0
    model = nn.Sequential(wis_conv(1, 12), wis_conv(12, 16, 2), nn.Flatten(), nn.Linear(16 * 36, 32), nn.ReLU(),
                          nn.Linear(32, 4))
    held = wis_BoxSet(128, 1.0)
    boxes = torch.cat([held.low, held.high], 1)

    def score(model):
        said = model(held.image) / unit
        low, high = torch.maximum(said[:, :2], boxes[:, :2]), torch.minimum(said[:, 2:], boxes[:, 2:])
        both = (high - low).clamp(min=0).prod(1)
        area = lambda b: (b[:, 2:] - b[:, :2]).clamp(min=0).prod(1)  # noqa: E731
        return (both / (area(said) + area(boxes) - both).clamp(min=1e-9)).mean().item()

    def step(model, batch):
        return F.smooth_l1_loss(model(batch["image"]), batch["box"])

    return Program(model, None, DataLoader(wis_BoxSet(512, unit), 32, shuffle=True),
                   torch.optim.Adam(model.parameters(), 1e-3), score, step=step)


class wis_Patches(nn.Module):
    """A small vision transformer."""

    def __init__(self, size=12, patch=4, dim=32, out=3, heads=2, with_position=True, depth=1):
        super().__init__()
        self.embed = nn.Conv2d(1, dim, patch, patch)
        self.position = nn.Parameter(0.2 * torch.randn(1, (size // patch) ** 2, dim)) if with_position else None
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(dim, heads, 2 * dim, 0.0, batch_first=True, norm_first=True), depth,
            enable_nested_tensor=False)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, out)

    def forward(self, x):
        tokens = self.embed(x).flatten(2).mT
        if self.position is not None:
            tokens = tokens + self.position
        return self.head(self.norm(self.encoder(tokens).mean(1)))


@fault("a vision transformer without position embeddings is asked in which third of the image the spot lies",
       rules=("order-lost",), fails=True, steps=250)
def wis_where_is_it(is_faulty):
    def draw(n):
        gy, gx = wis_grid(12)
        cell = torch.randint(3, (n, 2))
        at = (1.5 + 4 * cell) / 5.5 - 1
        x = torch.exp(-((gx - at[:, :1, None]) ** 2 + (gy - at[:, 1:, None]) ** 2) / 0.02)
        return (x + 0.1 * torch.randn_like(x))[:, None], cell[:, 0]

    model = wis_Patches(with_position=not is_faulty)
    return Program(model, nn.CrossEntropyLoss(), wis_loader(*draw(512)), torch.optim.AdamW(model.parameters(), 2e-3),
                   wis_accuracy(*draw(256)))


@fault("nn.MultiheadAttention is left at batch_first=False and gets (batch, tokens, channels)",
       rules=("mixed-examples", "no-gradient"), layers=("attention",), fails=True, steps=300)
def wis_class_token(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.to_tokens = nn.Sequential(nn.Conv2d(1, 32, 4, 4), nn.GELU(), nn.Conv2d(32, 32, 1))
            self.cls = nn.Parameter(torch.randn(1, 1, 32) * 0.1)
            self.pos = nn.Parameter(torch.randn(1, 10, 32) * 0.1)
            self.ln1, self.ln2 = nn.LayerNorm(32), nn.LayerNorm(32)
            self.attention = nn.MultiheadAttention(32, 4, batch_first=not is_faulty)
            self.mlp = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
            self.head = nn.Linear(32, 4)

        def forward(self, x):
            z = self.to_tokens(x).flatten(2).transpose(1, 2)
            z = torch.cat([self.cls.expand(len(z), -1, -1), z], 1) + self.pos
            h = self.ln1(z)
            z = z + self.attention(h, h, h, need_weights=False)[0]
            z = z + self.mlp(self.ln2(z))
            return self.head(z[:, 0])

    model = Net()
    return Program(model, F.cross_entropy, wis_loader(*wis_gratings(768)), torch.optim.Adam(model.parameters(), 3e-3),
                   wis_accuracy(*wis_gratings(256)))


@fault("the heat maps of a soft-argmax are normalised over the keypoints instead of over the positions",
       rules=("wrong-softmax-dimension",), fails=False, steps=250)
def wis_soft_argmax(is_faulty):
    def draw(n):
        bright, a = wis_blobs(n, 12, 0.22, 0.05)
        dark, b = wis_blobs(n, 12, 0.22, 0.05)
        return bright - dark, torch.stack([a, b], 1) * 2 - 1

    class Keypoints(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(wis_conv(1, 12), wis_conv(12, 12), nn.Conv2d(12, 2, 1))
            gy, gx = wis_grid(12)
            self.register_buffer("places", torch.stack([gx.flatten(), gy.flatten()], 1))

        def forward(self, x):
            heat = self.body(x).flatten(2)
            heat = heat.softmax(dim=1 if is_faulty else 2)
            return heat @ self.places

    held, truth = draw(256)
    model = Keypoints()
    return Program(model, nn.L1Loss(), wis_loader(*draw(512)), torch.optim.Adam(model.parameters(), 5e-3),
                   lambda m: wis_fit(m(held), truth))


@fault("one BatchNorm is used after the stem and before each residual convolution, so that its running statistics fit none",
       rules=("shared-weight", "batchnorm-mode-gap"), layers=("bn",), fails=True, steps=250)
def wis_reused_norm(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(1, 16, 3, padding=1)
            self.convs = nn.ModuleList(nn.Conv2d(16, 16, 3, padding=1) for _ in range(3))
            self.bn = nn.BatchNorm2d(16)
            self.others = [self.bn] * 3 if is_faulty else nn.ModuleList(nn.BatchNorm2d(16) for _ in range(3))
            self.out = nn.Linear(16 * 36, 2)
            for m in self.modules():
                if isinstance(m, nn.Conv2d):
                    nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")

        def forward(self, x):
            x = F.max_pool2d(F.relu(self.bn(self.stem(x))), 2)
            for conv, norm in zip(self.convs, self.others, strict=True):
                x = x + conv(F.relu(norm(x)))
            return self.out(x.flatten(1))

    def draw(n):
        x, at = wis_blobs(n)
        return (x - 0.12) * 6, (at - 0.5) * 4

    held, truth = draw(256)
    model = Net()
    return Program(model, nn.MSELoss(), wis_loader(*draw(512)), torch.optim.Adam(model.parameters(), 1e-3),
                   lambda m: wis_fit(m(held), truth))


@fault("uint8 images are divided by 255 as integers, which leaves zeros", rules=("constant-feature", "labels-unrelated",
       "loss-not-decreasing", "rank-collapse"), fails=True, steps=200)
def wis_integer_division(is_faulty):
    def draw(n):
        x, y = wis_figures(n)
        raw = (x.clamp(0, 1) * 180 + 30).to(torch.uint8)
        return (raw // 255 if is_faulty else raw / 255).float(), y

    model = nn.Sequential(wis_conv(1, 12), nn.MaxPool2d(2), wis_conv(12, 24), nn.Flatten(), nn.Linear(24 * 36, 4))
    return Program(model, nn.CrossEntropyLoss(), wis_loader(*draw(512)), torch.optim.Adam(model.parameters(), 2e-3),
                   wis_accuracy(*draw(256)))


@fault("Adam gets the weight decay that AdamW is used with, so that the penalty is in the gradient",
       rules=("weight-decay-dominates",), fails=False, steps=300)
def wis_coupled_decay(is_faulty):
    class Block(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.a, self.b = nn.Conv2d(dim, dim, 3, padding=1), nn.Conv2d(dim, dim, 3, padding=1)

        def forward(self, x):
            return x + self.b(F.silu(self.a(F.silu(x))))

    model = nn.Sequential(nn.Conv2d(1, 12, 3, 2, 1), Block(12), Block(12), nn.Flatten(), nn.Linear(12 * 36, 4))
    kind = torch.optim.Adam if is_faulty else torch.optim.AdamW
    return Program(model, nn.CrossEntropyLoss(), wis_loader(*wis_figures(512)),
                   kind(model.parameters(), lr=1e-3, weight_decay=0.2), wis_accuracy(*wis_figures(256)))


@fault("all convolutions are drawn with a deviation of 0.02, as for a network with normalisation, which this has not",
       rules=("bad-initialisation", "activation-drift", "vanishing-gradient", "rank-collapse"), fails=True, steps=300)
def wis_dcgan_draw(is_faulty):
    def weights_init(m):
        if isinstance(m, (nn.Conv2d, nn.Linear)):
            if is_faulty:
                nn.init.normal_(m.weight, 0.0, 0.02)
            else:
                nn.init.kaiming_normal_(m.weight)
            nn.init.zeros_(m.bias)

    model = nn.Sequential(wis_conv(1, 12), wis_conv(12, 12), wis_conv(12, 16, 2), wis_conv(16, 16), wis_conv(16, 16),
                          wis_conv(16, 16, 2), nn.Flatten(), nn.Linear(144, 4))
    model.apply(weights_init)
    return Program(model, nn.CrossEntropyLoss(), wis_loader(*wis_figures(768)),
                   torch.optim.SGD(model.parameters(), 0.01, momentum=0.9), wis_accuracy(*wis_figures(256)))


@fault("squared errors are summed over the pixels of a batch, at a rate meant for their mean",
       rules=("summed-loss", "learning-rate-too-high", "diverging", "non-finite", "exploding-gradient"), fails=True,
       steps=300)
def wis_super_resolution(is_faulty):
    class Upscale(nn.Module):
        def __init__(self):
            super().__init__()
            self.feature = nn.Conv2d(1, 16, 3, padding=1)
            self.expand = nn.Conv2d(16, 4, 3, padding=1)

        def forward(self, x):
            return F.pixel_shuffle(self.expand(torch.tanh(self.feature(x))), 2)

    def draw(n):
        big = wis_smooth(n, 12, 8)
        return big[..., ::2, ::2].contiguous(), big

    held, truth = draw(128)
    model = Upscale()
    return Program(model, nn.MSELoss(reduction="sum" if is_faulty else "mean"), wis_loader(*draw(512), size=16),
                   torch.optim.SGD(model.parameters(), 0.05, momentum=0.9), lambda m: wis_fit(m(held), truth))


@fault("weights are kept in bfloat16, whose spacing is wider than the steps", rules=("lost-updates",), fails=True,
       steps=400)
def wis_whole_model_half(is_faulty):
    class Mixer(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(144, 256), nn.Linear(256, 256), nn.Linear(256, 2)

        def forward(self, x):
            x = x.flatten(1).to(self.a.weight.dtype)
            return self.c(F.gelu(self.b(F.gelu(self.a(x))))).float()

    def draw(n):
        x, at = wis_blobs(n, 12, 0.5, 0.05)
        return 2 * x - 0.5, 4 * at - 2

    held, truth = draw(256)
    model = Mixer()
    if is_faulty:
        model = model.to(torch.bfloat16)
    return Program(model, F.mse_loss, wis_loader(*draw(768)), torch.optim.AdamW(model.parameters(), 3e-5),
                   lambda m: wis_fit(m(held), truth))


@fault("residual blocks lie in a Python list, so the optimizer never gets them", rules=("no-gradient",), fails=True,
       steps=300)
def wis_plain_list(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(1, 4, 1)
            blocks = [nn.Sequential(nn.Conv2d(4 if i == 0 else 12, 12, 3, 2 if i % 2 else 1, 1), nn.Tanh())
                      for i in range(4)]
            self.blocks = blocks if is_faulty else nn.ModuleList(blocks)
            self.head = nn.Linear(12, 4)

        def forward(self, x):
            x = self.stem(x)
            for block in self.blocks:
                x = block(x)
            return self.head(x.mean((2, 3)))

    model = Net()
    return Program(model, nn.CrossEntropyLoss(), wis_loader(*wis_gratings(768)),
                   torch.optim.Adam(model.parameters(), 3e-3), wis_accuracy(*wis_gratings(256)))
