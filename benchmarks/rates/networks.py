"""Small networks of the usual families."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.rates.data import LENGTH, SYMBOLS


def mlp(
    sizes: list[int], act: type[nn.Module] = nn.ReLU, norm: type[nn.Module] | None = None, dropout: float = 0.0
) -> nn.Sequential:
    """Linear layers, each but the last with a norm, an activation and dropout."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(sizes[:-1]):
        layers += [nn.Linear(fan_in, fan_out), *([norm(fan_out)] if norm else []), act()]
        layers += [nn.Dropout(dropout)] if dropout else []
    return nn.Sequential(*layers, nn.Linear(sizes[-2], sizes[-1]))


def cnn(widths: list[int], norm: str = "none", outputs: int = 10, act: nn.Module | None = None) -> nn.Sequential:
    """3×3 convolutions, the second and the last halve the image; then the mean and a linear layer."""
    layers: list[nn.Module] = []
    for i, (fan_in, fan_out) in enumerate(zip([1, *widths[:-1]], widths, strict=True)):
        layers.append(nn.Conv2d(fan_in, fan_out, 3, stride=2 if i in (1, len(widths) - 1) else 1, padding=1))
        if norm != "none" and not (norm == "batch" and outputs == 1 and i == 0):
            layers.append(nn.BatchNorm2d(fan_out) if norm == "batch" else nn.GroupNorm(4, fan_out))
        layers.append(act or nn.ReLU())
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(widths[-1] * 4, outputs))


class Block(nn.Module):
    """Two convolutions with BatchNorm and a shortcut."""

    def __init__(self, fan_in: int, fan_out: int, stride: int) -> None:
        super().__init__()
        self.first, self.norm1 = nn.Conv2d(fan_in, fan_out, 3, stride, 1, bias=False), nn.BatchNorm2d(fan_out)
        self.second, self.norm2 = nn.Conv2d(fan_out, fan_out, 3, 1, 1, bias=False), nn.BatchNorm2d(fan_out)
        self.shortcut = nn.Conv2d(fan_in, fan_out, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm2(self.second(F.relu(self.norm1(self.first(x))))) + self.shortcut(x))


def resnet20(width: int = 4) -> nn.Sequential:
    """Nineteen convolutions and a linear layer."""
    stem = [nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    blocks, fan_in = [], width
    for stage in range(3):
        for i in range(3):
            fan_out = width * 2**stage
            blocks.append(Block(fan_in, fan_out, 2 if stage and not i else 1))
            fan_in = fan_out
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(fan_in, 10))


class Layer(nn.Module):
    """A pre-norm transformer layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, causal: bool) -> Tensor:
        n, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(n, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).reshape(n, t, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class ViT(nn.Module):
    """Patches of 2×2 as tokens, their mean as features."""

    def __init__(self, width: int = 24, layers: int = 2) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 2, 2)
        self.places = nn.Parameter(torch.randn(1, 16, width) * 0.02)
        self.layers = nn.ModuleList(Layer(width, 3) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.places
        for layer in self.layers:
            x = layer(x, causal=False)
        return self.head(self.norm(x).mean(1))


class GPT(nn.Module):
    """Next symbols from those before."""

    def __init__(self, width: int = 32, layers: int = 2) -> None:
        super().__init__()
        self.symbols, self.places = nn.Embedding(SYMBOLS, width), nn.Embedding(LENGTH, width)
        for table in (self.symbols, self.places):
            nn.init.normal_(table.weight, std=0.02)
        self.layers = nn.ModuleList(Layer(width, 4) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, SYMBOLS, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.symbols(x) + self.places.weight[: x.shape[1]]
        for layer in self.layers:
            x = layer(x, causal=True)
        return self.head(self.norm(x))


class Recurrent(nn.Module):
    """Next symbols by an LSTM or a GRU."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU], width: int = 32) -> None:
        super().__init__()
        self.symbols, self.cells = nn.Embedding(SYMBOLS, width), kind(width, width, batch_first=True)
        self.head = nn.Linear(width, SYMBOLS)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cells(self.symbols(x))[0])


class VAE(nn.Module):
    """Eight latent numbers, drawn anew on every pass."""

    def __init__(self, pixels: int = 64, width: int = 64, latent: int = 8) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(pixels, width), nn.ReLU(), nn.Linear(width, 2 * latent))
        self.decoder = nn.Sequential(nn.Linear(latent, width), nn.ReLU(), nn.Linear(width, pixels))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, -1)
        drawn = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        return self.decoder(drawn), mean, log_variance


class Mixer(nn.Module):
    """Layers that mix the patches of an image, then their features, in turn."""

    def __init__(self, width: int = 24, layers: int = 2) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 2, 2)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers))
        self.across = nn.ModuleList(mlp([16, 32, 16], nn.GELU) for _ in range(layers))
        self.within = nn.ModuleList(mlp([width, 48, width], nn.GELU) for _ in range(layers))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        for i, (across, within) in enumerate(zip(self.across, self.within, strict=True)):
            x = x + across(self.norms[2 * i](x).transpose(1, 2)).transpose(1, 2)
            x = x + within(self.norms[2 * i + 1](x))
        return self.head(x.mean(1))


class Bag(nn.Module):
    """The mean of embeddings, and a small network on it."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(SYMBOLS**2, width), mlp([width, 32, 2])

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.bag(x))
