"""Sound programs on images."""

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from program import Program, sound
from tiq_common import accuracy, digits, loader, r2, shapes
from tiq_faults_img import _Graphs, cnn, quick_backbone  # noqa: F401


@sound("ordinary: a small CNN", steps=250, least=0.85)
def tiq_s_cnn():
    x, y, xt, yt = digits()
    model = cnn()
    return Program(model, nn.CrossEntropyLoss(), loader(x, y, 32), torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), accuracy(xt, yt))


@sound("ordinary: a small CNN with BatchNorm, trained", trained=300, steps=400, least=0.9)
def tiq_s_cnn_trained():
    x, y, xt, yt = digits()
    model = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2),
                          nn.Conv2d(12, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(96, 10))
    return Program(model, nn.CrossEntropyLoss(label_smoothing=0.05), loader(x, y, 32), torch.optim.AdamW(model.parameters(), lr=3e-3), accuracy(xt, yt))


@sound("ordinary: segmentation, cross-entropy over two classes", steps=300, least=0.6)
def tiq_s_segment():
    x, m, _, _ = shapes(500)
    m = m.clamp(max=1)
    model = nn.Sequential(nn.Conv2d(1, 10, 3, padding=1), nn.ReLU(), nn.Conv2d(10, 10, 3, padding=2, dilation=2), nn.ReLU(), nn.Conv2d(10, 2, 1))

    def iou(model):
        p = model(x[400:]).argmax(1)
        return float((p & m[400:]).sum() / (p | m[400:]).sum())

    return Program(model, nn.CrossEntropyLoss(), loader(x[:400], m[:400], 16), torch.optim.Adam(model.parameters(), lr=5e-3), iou)


class _Residual(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)
        self.conv2, self.bn2 = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)
        nn.init.zeros_(self.bn2.weight)

    def forward(self, x):
        return F.relu(x + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


@sound("residual blocks whose last norm starts at zero; OneCycle from a tiny rate", steps=300, least=0.85)
def tiq_s_zero_gamma():
    x, y, xt, yt = digits()
    model = nn.Sequential(nn.Conv2d(1, 12, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU(), _Residual(12), _Residual(12),
                          nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(48, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=600, div_factor=100)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y, 32), optimizer, accuracy(xt, yt), schedule)


@sound("fine-tuning: frozen body with BatchNorm kept in evaluation mode, new head", steps=250, least=0.8)
def tiq_s_frozen_body():
    x, y, xt, yt = digits()
    body = nn.Sequential(nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten())

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = quick_backbone(x, y % 5, body, 256).requires_grad_(False).eval(), nn.Linear(256, 10)

        def train(self, mode=True):
            super().train(mode)
            self.body.eval()
            return self

        def forward(self, x):
            with torch.no_grad():
                h = self.body(x)
            return self.head(h)

    model = Net()
    return Program(model, nn.CrossEntropyLoss(), loader(x, y, 32), torch.optim.AdamW(model.head.parameters(), lr=3e-3), accuracy(xt, yt))


@sound("fine-tuning: a rate of 1e-5 for the body, 1e-2 for the head", trained=200, steps=250, least=0.8)
def tiq_s_two_rates():
    x, y, xt, yt = digits()
    body = nn.Sequential(nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Flatten())
    model = nn.Sequential()
    model.add_module("body", quick_backbone(x, (y > 4).long(), body, 256))
    model.add_module("head", nn.Linear(256, 10))
    optimizer = torch.optim.Adam([{"params": model.body.parameters(), "lr": 1e-5}, {"params": model.head.parameters(), "lr": 1e-2}])
    return Program(model, nn.CrossEntropyLoss(), loader(x, y, 32), optimizer, accuracy(xt, yt))


class _Lora(nn.Module):
    def __init__(self, base, rank):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + 2 * x @ self.down.T @ self.up.T


@sound("low-rank adapters, one factor starts at zero", trained=100, steps=300, least=0.8)
def tiq_s_lora():
    x, y, xt, yt = digits(flat=True)
    model = nn.Sequential(_Lora(nn.Linear(64, 96), 6), nn.ReLU(), _Lora(nn.Linear(96, 10), 6))
    return Program(model, nn.CrossEntropyLoss(), loader(x, y, 32), torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3), accuracy(xt, yt))


@sound("autoencoder on pixels in [0, 1] with sigmoid and BCE", steps=400, least=0.6)
def tiq_s_bce_auto():
    x, _, xt, _ = digits(flat=True)
    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 12), nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 64), nn.Sigmoid())
    return Program(model, nn.BCELoss(), loader(x, x, 32), torch.optim.Adam(model.parameters(), lr=5e-3), r2(xt, xt))


class _Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(16, 64))
        nn.init.orthogonal_(self.weight)
        self.bias = nn.Parameter(torch.zeros(64))

    def forward(self, x):
        return (x - self.bias) @ self.weight.T @ self.weight + self.bias


@sound("linear autoencoder with tied weights, as PCA", steps=400, least=0.7)
def tiq_s_tied():
    x, _, xt, _ = digits(flat=True)
    model = _Tied()
    return Program(model, nn.MSELoss(), loader(x, x, 64), torch.optim.Adam(model.parameters(), lr=5e-3), r2(xt, xt))


@sound("VAE with a small weight on its KL term", trained=250, steps=500, least=0.6)
def tiq_s_vae():
    x, _, xt, _ = digits(flat=True)

    class Vae(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 20))
            self.decoder = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.Sigmoid())

        def forward(self, x):
            mean, log_variance = self.encoder(x).chunk(2, 1)
            z = mean + torch.randn_like(mean) * (0.5 * log_variance).exp() if self.training else mean
            return self.decoder(z), mean, log_variance

    def loss(out, x):
        image, mean, log_variance = out
        kl = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(1).mean()
        return F.mse_loss(image, x, reduction="none").sum(1).mean() + 0.01 * kl

    model = Vae()
    return Program(model, loss, loader(x, x, 32), torch.optim.Adam(model.parameters(), lr=3e-3), r2(xt, xt, lambda o: o[0]))


@sound("in-painting: half of the pixels are hidden, the loss is over these", steps=500, least=0.6)
def tiq_s_masked_pixels():
    x, _, xt, _ = digits(flat=True)
    fixed = (torch.rand(400, 64, generator=torch.Generator().manual_seed(1)) < 0.3).float()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 64))

        def forward(self, x, hidden):
            return self.net(torch.cat([x * (1 - hidden), hidden], 1))

    def step(model, batch):
        (x,) = batch
        hidden = (torch.rand_like(x) < 0.3).float()
        out = model(x, hidden)
        return ((out - x) ** 2 * hidden).sum() / hidden.sum()

    def score(model):
        out = model(xt, fixed)
        return float(1 - ((out - xt) ** 2 * fixed).sum() / ((xt - x.mean()) ** 2 * fixed).sum())

    model = Net()
    train = DataLoader(TensorDataset(x), batch_size=64, shuffle=True)
    return Program(model, None, train, torch.optim.Adam(model.parameters(), lr=2e-3), score, step=step)


@sound("batches of four with GroupNorm, small rate", steps=500, least=0.75)
def tiq_s_group_norm():
    x, y, xt, yt = digits()
    model = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.GroupNorm(3, 12), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(),
                          nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 10))
    return Program(model, nn.CrossEntropyLoss(), loader(x, y, 4), torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), accuracy(xt, yt))


@sound("autocast to bfloat16 over weights in float32", steps=250, least=0.85)
def tiq_s_autocast():
    x, y, xt, yt = digits()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = cnn()

        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16):
                return self.body(x).float()

    model = Net()
    return Program(model, nn.CrossEntropyLoss(), loader(x, y, 32), torch.optim.Adam(model.parameters(), lr=3e-3), accuracy(xt, yt))


@sound("cosine classifier with a margin and a scale of 16", steps=300, least=0.85)
def tiq_s_cosine():
    x, y, xt, yt = digits()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(1, 10, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(160, 24))
            self.centres = nn.Parameter(torch.randn(10, 24))

        def forward(self, x):
            return F.normalize(self.body(x), dim=1) @ F.normalize(self.centres, dim=1).T

    def loss(cosine, y):
        return F.cross_entropy(16 * (cosine - 0.2 * F.one_hot(y, 10)), y)

    model = Net()
    return Program(model, loss, loader(x, y, 32), torch.optim.Adam(model.parameters(), lr=3e-3), accuracy(xt, yt))


@sound("in-batch contrast of two views: the loss mixes examples on purpose", trained=150, steps=300, least=0.6)
def tiq_s_contrast():
    x, y, xt, yt = digits(flat=True)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16))
            self.log_scale = nn.Parameter(torch.tensor(math.log(10.0)))

        def forward(self, x):
            return F.normalize(self.body(x), dim=1)

    def step(model, batch):
        x, y = batch
        z = model(x + 0.1 * torch.randn_like(x))
        sim = z @ z.T * model.log_scale.exp() - 1e9 * torch.eye(len(z))
        same = ((y[:, None] == y[None]) & ~torch.eye(len(y), dtype=torch.bool)).float()
        return -((sim.log_softmax(1) * same).sum(1) / same.sum(1).clamp(min=1)).mean()

    def score(model):
        near = (model(xt) @ model(x).T).argmax(1)
        return max(0.0, 5 * (float((y[near] == yt).float().mean()) - 0.8))

    model = Net()
    return Program(model, None, loader(x, y, 64), torch.optim.Adam(model.parameters(), lr=2e-3), score, step=step)


@sound("box and class together, balanced; boxes in shares of the image", steps=400, least=0.6)
def tiq_s_detect():
    x, _, c, b = shapes(900)
    b = b / 16

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = nn.Sequential(nn.Conv2d(1, 10, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(10, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                                       nn.Linear(256, 32), nn.ReLU())
            self.kind, self.box = nn.Linear(32, 3), nn.Linear(32, 3)

        def forward(self, x):
            h = self.trunk(x)
            return {"kind": self.kind(h), "box": self.box(h).sigmoid()}

    def loss(out, target):
        return F.cross_entropy(out["kind"], target[:, 3].long()) + 10 * F.smooth_l1_loss(out["box"], target[:, :3], beta=0.1)

    model = Net()
    target = torch.cat([b, c[:, None].float()], 1)
    return Program(model, loss, loader(x[:700], target[:700], 32), torch.optim.Adam(model.parameters(), lr=4e-3), accuracy(x[700:], c[700:], lambda o: o["kind"].argmax(1)))


@sound("a discriminator next to a frozen generator, betas (0.5, 0.999), LeakyReLU", steps=200, least=0.8)
def tiq_s_discriminator():
    x, _, xt, _ = digits(flat=True)
    x, xt = 2 * x - 1, 2 * xt - 1
    generator = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.Tanh()).requires_grad_(False)
    critic = nn.Sequential(nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Dropout(0.3), nn.Linear(64, 1))
    nn.init.normal_(critic[0].weight, 0, 0.02)
    nn.init.normal_(critic[3].weight, 0, 0.02)
    model = nn.ModuleDict({"generator": generator, "critic": critic})

    def step(model, batch):
        (real,) = batch
        fake = model["generator"](torch.randn(len(real), 8)) + 0.3 * torch.randn_like(real)
        a, b = model["critic"](real), model["critic"](fake)
        return F.binary_cross_entropy_with_logits(a, torch.full_like(a, 0.9)) + F.binary_cross_entropy_with_logits(b, torch.zeros_like(b))

    def score(model):
        fake = model["generator"](torch.randn(400, 8, generator=torch.Generator().manual_seed(0)))
        return float(0.5 * (model["critic"](xt) > 0).float().mean() + 0.5 * (model["critic"](fake) < 0).float().mean())

    return Program(model, None, DataLoader(TensorDataset(x), batch_size=32, shuffle=True), torch.optim.Adam(model["critic"].parameters(), lr=2e-4, betas=(0.5, 0.999)), score, step=step)


@sound("mixup: targets are mixtures", steps=300, least=0.85)
def tiq_s_mixup():
    x, y, xt, yt = digits()

    def collate(rows):
        x, y = torch.stack([r[0] for r in rows]), F.one_hot(torch.stack([r[1] for r in rows]), 10).float()
        share, order = torch.distributions.Beta(0.4, 0.4).sample(), torch.randperm(len(x))
        return share * x + (1 - share) * x[order], share * y + (1 - share) * y[order]

    model = cnn(12)
    train = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True, collate_fn=collate)
    return Program(model, nn.CrossEntropyLoss(), train, torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.05), accuracy(xt, yt))


@sound("binary code with a straight-through gradient", steps=400, least=0.85)
def tiq_s_straight_through():
    x, y, xt, yt = digits(flat=True)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.encode = nn.Sequential(nn.Linear(64, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 16), nn.BatchNorm1d(16))
            self.decode = nn.Linear(16, 10)

        def forward(self, x):
            soft = self.encode(x).tanh()
            return self.decode(soft + (soft.sign() - soft).detach())

    model = Net()
    return Program(model, nn.CrossEntropyLoss(), loader(x, y, 64), torch.optim.Adam(model.parameters(), lr=5e-3), accuracy(xt, yt))


@sound("focal and Dice loss on few foreground pixels, bias of the last layer at log(0.01)", trained=300, steps=300, least=0.75)
def tiq_s_focal_dice():
    x, m, _, _ = shapes(500)
    m = (m > 0).float()[:, None]
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 1))
    nn.init.constant_(model[4].bias, -math.log(99))

    def loss(out, t):
        bce = F.binary_cross_entropy_with_logits(out, t, reduction="none")
        p = out.sigmoid()
        dice = 1 - (2 * (p * t).sum((1, 2, 3)) + 1) / (p.sum((1, 2, 3)) + t.sum((1, 2, 3)) + 1)
        return ((1 - (-bce).exp()) ** 2 * bce).mean() + dice.mean()

    def iou(model):
        p, t = model(x[400:]) > 0, m[400:] > 0
        return float((p & t).sum() / (p | t).sum())

    return Program(model, loss, loader(x[:400], m[:400], 16), torch.optim.Adam(model.parameters(), lr=5e-3), iou)


class _Siren(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.out = nn.Linear(2, 48), nn.Linear(48, 48), nn.Linear(48, 1)
        nn.init.uniform_(self.first.weight, -0.5, 0.5)
        for layer in (self.second, self.out):
            bound = (6 / 48) ** 0.5 / 15
            nn.init.uniform_(layer.weight, -bound, bound)

    def forward(self, x):
        return self.out(torch.sin(15 * self.second(torch.sin(15 * self.first(x)))))


@sound("an image as a function of coordinates: sines of large arguments, weights tiny", trained=300, steps=500, least=0.7)
def tiq_s_siren():
    g = torch.Generator().manual_seed(6)
    xy = 2 * torch.rand(2500, 2, generator=g) - 1
    value = (torch.sin(4 * xy[:, 0] + 2 * xy[:, 1] ** 2) * torch.cos(5 * xy[:, 1]))[:, None]
    model = _Siren()
    return Program(model, nn.MSELoss(), loader(xy[:2000], value[:2000], 128), torch.optim.Adam(model.parameters(), lr=1e-3), r2(xy[2000:], value[2000:]))


@sound("warm-up from zero over 50 steps, then cosine; AdamW with and without decay by group", steps=300, least=0.8)
def tiq_s_vit():
    x, y, xt, yt = digits()

    class Vit(nn.Module):
        def __init__(self):
            super().__init__()
            self.patch = nn.Conv2d(1, 24, 2, stride=2)
            self.place, self.token = nn.Parameter(0.02 * torch.randn(1, 17, 24)), nn.Parameter(torch.zeros(1, 1, 24))
            self.block = nn.TransformerEncoderLayer(24, 4, 48, 0.0, "gelu", batch_first=True, norm_first=True)
            self.norm, self.head = nn.LayerNorm(24), nn.Linear(24, 10)
            nn.init.zeros_(self.head.weight)

        def forward(self, x):
            h = self.patch(x).flatten(2).transpose(1, 2)
            h = torch.cat([self.token.expand(len(x), -1, -1), h], 1) + self.place
            return self.head(self.norm(self.block(h)[:, 0]))

    model = Vit()
    decay = [p for n, p in model.named_parameters() if p.ndim > 1 and "place" not in n and "token" not in n]
    rest = [p for p in model.parameters() if not any(p is q for q in decay)]
    optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0}], lr=6e-3, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: s / 50 if s < 50 else 0.5 * (1 + math.cos(math.pi * min(1, (s - 50) / 350))))
    return Program(model, nn.CrossEntropyLoss(), loader(x, y, 32), optimizer, accuracy(xt, yt), schedule)
