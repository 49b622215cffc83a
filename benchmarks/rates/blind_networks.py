"""Networks of the blind tasks."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.rates.blind_data import FEATURES, FIELDS, ITEMS, NODES, USERS, VALUES
from benchmarks.rates.blind_series import DAMPING, FREQUENCY, STYLES, TAGS, WORDS
from benchmarks.rates.data import digits
from benchmarks.rates.networks import cnn, mlp


class ConvVAE(nn.Module):
    """Strided convolutions to six latent numbers, and transposed ones back."""

    def __init__(self, latent: int = 6) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 8, 3, 2, 1), nn.LeakyReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.LeakyReLU(), nn.Flatten()
        )
        self.mean, self.log_variance, self.grow = nn.Linear(64, latent), nn.Linear(64, latent), nn.Linear(latent, 64)
        self.decoder = nn.Sequential(
            nn.LeakyReLU(), nn.ConvTranspose2d(16, 8, 4, 2, 1), nn.LeakyReLU(), nn.ConvTranspose2d(8, 1, 4, 2, 1)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        features = self.encoder(x)
        mean, log_variance = self.mean(features), self.log_variance(features)
        z = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        return self.decoder(self.grow(z).reshape(-1, 16, 2, 2)).sigmoid(), mean, log_variance


class Discriminator(nn.Module):
    """Scores of real images and of images from a fixed linear generator."""

    mean: Tensor
    directions: Tensor

    def __init__(self, latent: int = 20) -> None:
        super().__init__()
        x = digits()[0].flatten(1)
        _, values, directions = torch.linalg.svd(x - x.mean(0), full_matrices=False)
        self.register_buffer("mean", x.mean(0))
        self.register_buffer("directions", values[:latent, None] * directions[:latent] / math.sqrt(len(x)))
        self.score = mlp([64, 96, 48, 1], lambda: nn.LeakyReLU(0.2), dropout=0.3)  # type: ignore[arg-type]

    def forward(self, real: Tensor) -> tuple[Tensor, Tensor]:
        z = torch.randn(len(real), len(self.directions))
        generated = self.mean + z @ self.directions + 0.2 * torch.randn_like(real)
        return self.score(real), self.score(generated)


class Denoiser(nn.Module):
    """Predicts the noise in points at a random time of the diffusion; returns it with the true noise."""

    def __init__(self, width: int = 64, waves: int = 8) -> None:
        super().__init__()
        self.waves, self.body = waves, mlp([2 + 2 * waves, width, width, width, 2], nn.SiLU)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        time = torch.rand(len(x), 1)
        noise = torch.randn_like(x)
        signal = (0.5 * math.pi * time).cos()
        mixed = signal * x + (1 - signal.square()).sqrt() * noise
        phase = time * 2.0 ** torch.arange(self.waves)
        return self.body(torch.cat([mixed, phase.sin(), phase.cos()], 1)), noise


def _twice(fan_in: int, fan_out: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for each in (fan_in, fan_out):
        layers += [nn.Conv2d(each, fan_out, 3, padding=1, bias=False), nn.BatchNorm2d(fan_out), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """Two resolutions and a skip connection."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.fine, self.coarse, self.joint = _twice(1, width), _twice(width, 2 * width), _twice(3 * width, width)
        self.mask = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        fine = self.fine(x)
        coarse = F.interpolate(self.coarse(F.max_pool2d(fine, 2)), scale_factor=2)
        out: Tensor = self.mask(self.joint(torch.cat([fine, coarse], 1)))
        return out


class TwoViews(nn.Module):
    """Projections of two views of each image, shifted and with noise."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = mlp([64, 96, 32], norm=nn.BatchNorm1d)
        self.head = mlp([32, 32, 16])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        shifts = torch.randint(-1, 2, (2, 2)).tolist()
        first, second = (x.roll(shift, (2, 3)) + 0.4 * torch.randn_like(x) for shift in shifts)
        one, other = self.head(self.encoder(torch.cat([first, second]).flatten(1))).chunk(2)
        return one, other


class Recommender(nn.Module):
    """Embeddings of a user and an item, and a network on both."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(USERS, width), nn.Embedding(ITEMS, width)
        self.body = mlp([2 * width, 64, 32, 1])

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(torch.cat([self.users(x[:, 0]), self.items(x[:, 1])], 1))[:, 0]
        return out


class WideAndDeep(nn.Module):
    """A weight for every category, plus a network on embeddings."""

    offsets: Tensor

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.register_buffer("offsets", torch.arange(FIELDS) * VALUES)
        self.wide, self.table = nn.Embedding(FIELDS * VALUES, 1), nn.Embedding(FIELDS * VALUES, width)
        nn.init.zeros_(self.wide.weight)
        nn.init.normal_(self.table.weight, std=0.05)
        self.deep = mlp([FIELDS * width, 32, 16, 1])

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.offsets
        out: Tensor = self.wide(x).sum(1) + self.deep(self.table(x).flatten(1))
        return out


class Forecaster(nn.Module):
    """An LSTM whose last state gives the next values."""

    def __init__(self, width: int = 24, ahead: int = 4) -> None:
        super().__init__()
        self.cells, self.head = nn.LSTM(1, width, batch_first=True), nn.Linear(width, ahead)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.cells(x)[0][:, -1])
        return out


class TemporalCNN(nn.Module):
    """Dilated causal convolutions with residual connections; the last place gives three quantiles."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv1d(1, width, 1), nn.Linear(width, 3)
        self.layers = nn.ModuleList(nn.Conv1d(width, width, 3, dilation=2**i) for i in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for i, layer in enumerate(self.layers):
            x = x + F.relu(layer(F.pad(x, (2 ** (i + 1), 0))))
        out: Tensor = self.head(x[..., -1])
        return out


class Oscillator(nn.Module):
    """Displacement at a time, and what is left of the equation of a damped oscillator."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.body = mlp([1, width, width, width, 1], nn.Tanh)

    def forward(self, time: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            time = time.detach().clone().requires_grad_()
            place = self.body(time)
            speed = torch.autograd.grad(place.sum(), time, create_graph=True)[0]
            acceleration = torch.autograd.grad(speed.sum(), time, create_graph=True)[0]
        return place, acceleration + 2 * DAMPING * speed + FREQUENCY**2 * place


class Encoder(nn.Module):
    """torch's Transformer encoder on words, and a linear layer on the mean."""

    def __init__(self, width: int = 16, length: int = 10) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Parameter(0.02 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(width, 2, 48, dropout=0.1, batch_first=True)
        self.layers, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(width, STYLES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.layers(self.words(x) + self.places).mean(1))
        return out


class Tagger(nn.Module):
    """A GRU in both directions, and a linear layer at every word."""

    def __init__(self, width: int = 20) -> None:
        super().__init__()
        self.words, self.cells = nn.Embedding(WORDS, width), nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, TAGS)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.cells(self.words(x))[0])
        return out


class GraphNetwork(nn.Module):
    """Sums over neighbors and the node itself, twice; then the mean over nodes."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        sizes = [(FEATURES, width), (width, width)]
        self.own, self.others = (nn.ModuleList(nn.Linear(*each) for each in sizes) for _ in range(2))
        self.head = nn.Linear(width, 3)

    def forward(self, graph: Tensor) -> Tensor:
        adjacency, x = graph[..., :NODES], graph[..., NODES:]
        for own, others in zip(self.own, self.others, strict=True):
            x = F.relu(own(x) + adjacency @ others(x))
        out: Tensor = self.head(x.mean(1))
        return out


class TwoHeads(nn.Module):
    """Convolutions with a head for the label and one for a number."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.label, self.number = cnn([8, 16, 16], "group", 32), nn.Linear(32, 10), nn.Linear(32, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = F.relu(self.body(x))
        return self.label(features), self.number(features)
