import math

import torch
import torch.nn.functional as F
from program import Program, sound
from ti_common import accuracy, clusters, gen, loader, r2, shapes
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR, StepLR


def small_cnn(classes=4, channels=1):
    return nn.Sequential(
        nn.Conv2d(channels, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(24, classes),
    )


@sound("Nothing: a small CNN, AdamW, cosine.", steps=300, least=0.9)
def cnn_adamw_cosine():
    model = small_cnn()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=0.05)
    return Program(model, nn.CrossEntropyLoss(), loader(*shapes(1000, 201)), optimizer, accuracy(*shapes(400, 202)),
                   CosineAnnealingLR(optimizer, 300))


class Tabular(nn.Module):
    def __init__(self, sizes, numbers, classes):
        super().__init__()
        self.embeddings = nn.ModuleList([nn.Embedding(n, 6) for n in sizes])
        self.norm = nn.BatchNorm1d(numbers)
        self.layers = nn.Sequential(
            nn.Linear(6 * len(sizes) + numbers, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 32), nn.ReLU(),
            nn.Linear(32, classes),
        )

    def forward(self, categories, numbers):
        parts = [embed(categories[:, i]) for i, embed in enumerate(self.embeddings)]
        return self.layers(torch.cat([*parts, self.norm(numbers)], 1))


@sound("Nothing: categories and numbers, half trained.", trained=150, steps=400, least=0.8)
def categories_and_numbers():
    effect = torch.randn(2, 12, 3, generator=gen(211))

    def table(n, seed):
        g = gen(seed)
        c = torch.stack([torch.randint(12, (n,), generator=g), torch.randint(5, (n,), generator=g)], 1)
        x = torch.randn(n, 4, generator=g) * torch.tensor([1.0, 3.0, 0.5, 2.0]) + 1
        logits = effect[0][c[:, 0]] + effect[1][c[:, 1]] + torch.stack([x[:, 0], x[:, 1] / 3, x[:, 2] * x[:, 3] / 2], 1)
        return {"categories": c, "numbers": x}, logits.argmax(-1)

    def collate(rows):
        c, x, y = (torch.stack(part) for part in zip(*rows))
        return {"categories": c, "numbers": x}, y

    inputs, y = table(2000, 212)
    data = torch.utils.data.TensorDataset(inputs["categories"], inputs["numbers"], y)
    batches = torch.utils.data.DataLoader(data, batch_size=64, shuffle=True, collate_fn=collate)
    xt, yt = table(500, 213)
    model = Tabular([12, 5], 4, 3)
    return Program(model, nn.CrossEntropyLoss(), batches, torch.optim.Adam(model.parameters(), 4e-3),
                   lambda model: (model(**xt).argmax(-1) == yt).float().mean().item())


@sound("Nothing: regression with one cycle.", steps=400, least=0.85)
def regression_one_cycle():
    def table(n, seed):
        x = torch.randn(n, 8, generator=gen(seed))
        return x, (torch.sin(x[:, :1] * 2) + x[:, 1:2] * x[:, 2:3] + 0.3 * x[:, 3:4])

    model = nn.Sequential(nn.Linear(8, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    return Program(model, nn.MSELoss(), loader(*table(2000, 221), batch_size=64), optimizer, r2(*table(400, 222)),
                   OneCycleLR(optimizer, max_lr=1e-2, total_steps=1200))


class ResidualBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)
        self.conv2, self.bn2 = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)
        nn.init.zeros_(self.bn2.weight)

    def forward(self, x):
        return F.relu(x + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


@sound("The last BatchNorm of each residual block starts at 0, and what is before it has no gradient at first.",
       steps=250, least=0.9)
def resnet_zero_gamma():
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU(),
        ResidualBlock(12), ResidualBlock(12), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 4),
    )
    return Program(model, nn.CrossEntropyLoss(), loader(*shapes(1000, 231)),
                   torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, nesterov=True, weight_decay=5e-4),
                   accuracy(*shapes(400, 232)))


class TinyViT(nn.Module):
    def __init__(self, d=32, classes=4):
        super().__init__()
        self.patch = nn.Conv2d(1, d, 3, stride=3)
        self.cls = nn.Parameter(torch.zeros(1, 1, d))
        self.position = nn.Parameter(0.02 * torch.randn(1, 17, d))
        layer = nn.TransformerEncoderLayer(d, 4, 64, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, classes)

    def forward(self, x):
        tokens = self.patch(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.cls.expand(len(x), -1, -1), tokens], 1) + self.position
        return self.head(self.norm(self.encoder(tokens))[:, 0])


@sound("Nothing: a small ViT with warm-up, half trained.", trained=200, steps=450, least=0.85)
def tiny_vit():
    model = TinyViT()
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 50))
    return Program(model, nn.CrossEntropyLoss(), loader(*shapes(1500, 241, noise=0.15), batch_size=24), optimizer,
                   accuracy(*shapes(300, 242, noise=0.15)), schedule)


class MixerBlock(nn.Module):
    def __init__(self, tokens, d):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.across = nn.Sequential(nn.Linear(tokens, 32), nn.GELU(), nn.Linear(32, tokens))
        self.within = nn.Sequential(nn.Linear(d, 64), nn.GELU(), nn.Linear(64, d))

    def forward(self, x):
        x = x + self.across(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.within(self.norm2(x))


@sound("Nothing: an MLP-mixer with label smoothing.", steps=400, least=0.85)
def mixer():
    class Mixer(nn.Module):
        def __init__(self):
            super().__init__()
            self.patch = nn.Conv2d(1, 32, 3, stride=3)
            self.blocks = nn.Sequential(MixerBlock(16, 32), MixerBlock(16, 32))
            self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 4)

        def forward(self, x):
            return self.head(self.norm(self.blocks(self.patch(x).flatten(2).transpose(1, 2))).mean(1))

    model = Mixer()
    return Program(model, nn.CrossEntropyLoss(label_smoothing=0.1), loader(*shapes(1500, 251, noise=0.15)),
                   torch.optim.AdamW(model.parameters(), 2e-3), accuracy(*shapes(300, 252, noise=0.15)))


@sound("Nothing: a convolutional autoencoder of pictures in 0..1 with a sigmoid, trained.", trained=400, steps=400,
       least=0.7)
def convolutional_autoencoder():
    def pictures(n, seed):
        return shapes(n, seed, noise=0.0)[0]

    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(144, 24), nn.Linear(24, 144), nn.ReLU(), nn.Unflatten(1, (16, 3, 3)),
        nn.ConvTranspose2d(16, 8, 4, stride=2, padding=1), nn.ReLU(),
        nn.ConvTranspose2d(8, 1, 4, stride=2, padding=1), nn.Sigmoid(),
    )
    x, xt = pictures(1500, 261), pictures(300, 262)
    return Program(model, nn.BCELoss(), loader(x, x), torch.optim.Adam(model.parameters(), 4e-3), r2(xt, xt))


@sound("Three quantiles are asked for at once: targets of one column are broadcast against outputs of three.",
       steps=400, least=0.8)
def quantiles():
    levels = torch.tensor([0.1, 0.5, 0.9])

    def pinball(out, y):
        error = y - out  # (B, 1) - (B, 3)
        return torch.maximum(levels * error, (levels - 1) * error).mean()

    def table(n, seed):
        g = gen(seed)
        x = torch.randn(n, 6, generator=g)
        clean = torch.sin(1.5 * x[:, :1]) + x[:, 1:2] * x[:, 2:3].sigmoid()
        return x, clean + 0.2 * torch.randn(n, 1, generator=g), clean

    x, y, _ = table(2000, 271)
    xt, _, clean = table(400, 272)
    model = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 3))
    return Program(model, pinball, loader(x, y, batch_size=64), torch.optim.Adam(model.parameters(), 3e-3),
                   r2(xt, clean, lambda out: out[:, 1]))


@sound("The likelihood of narrow Gaussians is above 1, so the loss is negative and falls; half trained.", trained=250,
       steps=500, least=0.85)
def negative_loss():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = nn.Sequential(nn.Linear(4, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 2))

        def forward(self, x):
            mean, raw = self.trunk(x).unbind(-1)
            return mean, F.softplus(raw) + 1e-3

    def table(n, seed):
        g = gen(seed)
        x = torch.randn(n, 4, generator=g)
        return x, 0.5 * torch.sin(x[:, 0] + x[:, 1]) + 0.03 * torch.randn(n, generator=g)

    xt, yt = table(400, 282)
    model = Net()
    return Program(model, lambda out, y: -torch.distributions.Normal(*out).log_prob(y).mean(),
                   loader(*table(1500, 281)), torch.optim.Adam(model.parameters(), 3e-3),
                   r2(xt, yt, lambda out: out[0]))


@sound("The last layer starts at zero, weight and bias: every output is the same at first.", steps=250, least=0.9)
def zero_head():
    model = nn.Sequential(nn.Linear(10, 96), nn.GELU(), nn.Linear(96, 96), nn.GELU(), nn.Linear(96, 4))
    nn.init.zeros_(model[-1].weight)
    nn.init.zeros_(model[-1].bias)
    return Program(model, nn.CrossEntropyLoss(), loader(*clusters(1500, 291)),
                   torch.optim.SGD(model.parameters(), 0.05, momentum=0.9), accuracy(*clusters(400, 292)))


@sound("Seven labels in twenty are wrong, so the loss stays high; the rest suffice.", steps=300, least=0.85)
def noisy_labels():
    x, y = clusters(3000, 301, classes=5)
    g = gen(303)
    is_wrong = torch.rand(3000, generator=g) < 0.35
    y = torch.where(is_wrong, torch.randint(5, (3000,), generator=g), y)
    model = nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Dropout(0.2), nn.Linear(48, 5))
    optimizer = torch.optim.Adam(model.parameters(), 5e-3, weight_decay=1e-4)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y, batch_size=64), optimizer,
                   accuracy(*clusters(400, 302, classes=5)), StepLR(optimizer, 100, 0.3))
