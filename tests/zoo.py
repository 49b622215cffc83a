"""Small networks in float64, each as a `Case`: model, loss, batch, and how its loss splits into terms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from references import Terms, categorical
from torch import Tensor, nn

import wellcond as wc

CLASSES = 3


@dataclass(frozen=True)
class Case:
    model: nn.Module
    loss: Any
    batch: tuple[Any, Any]
    terms: Terms | None = None
    batchnorm: str = "batch"

    def problem(self, **changes: Any) -> wc.Problem:
        options = {"batches": [self.batch], "batchnorm": self.batchnorm} | changes
        return wc.Problem(self.model, self.loss, **options)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def white(examples: int, features: int) -> Tensor:
    """Inputs whose mean is exactly 0 and whose covariance is exactly I."""
    x = normal(examples, features, seed=3)
    return torch.linalg.svd(x - x.mean(0), full_matrices=False).U * examples**0.5


def integers(high: int, *shape: int, seed: int = 0) -> Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(seed))


def seeded(build: Callable[[], nn.Module]) -> nn.Module:
    """The model in float64 with reproducible weights, norm parameters and running statistics away from 0 and 1."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build().double()
        for module in model.modules():
            if "Norm" in type(module).__name__ and getattr(module, "weight", None) is not None:
                nn.init.uniform_(module.weight, 0.5, 1.5)
                if getattr(module, "bias", None) is not None:
                    nn.init.normal_(module.bias)
            if isinstance(getattr(module, "running_mean", None), Tensor):
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2.0)
    return model


# networks


class Block(nn.Module):
    """A ResNet block with a projection, from the input to the sum."""

    def __init__(self, width_in: int, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 3, padding=1, stride=2, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = nn.Conv2d(width_in, width, 1, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        inside = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.shortcut(x) + self.bn2(self.conv2(inside)))


class Attention(nn.Module):
    """A pre-norm layer of causal self-attention and an MLP."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc = nn.Linear(width, width)
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        n, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(n, t, d))
        return x + F.gelu(self.fc(self.norm2(x)))


class Transformer(nn.Module):
    """Tokens to (N, T, C) logits; `classes_second` gives (N, C, T)."""

    def __init__(self, layers: int = 2, width: int = 4, heads: int = 2, classes_second: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, width)
        self.blocks = nn.Sequential(*(Attention(width, heads) for _ in range(layers)))
        self.head = nn.Linear(width, CLASSES)
        self.classes_second = classes_second

    def forward(self, tokens: Tensor) -> Tensor:
        logits = self.head(self.blocks(self.embed(tokens)))
        return logits.transpose(1, 2) if self.classes_second else logits


class Recurrent(nn.Module):
    """A recurrent layer, read at its last step."""

    def __init__(self, cell: type[nn.RNNBase] = nn.LSTM) -> None:
        super().__init__()
        self.cell = cell(2, 3, batch_first=True)
        self.head = nn.Linear(3, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0][:, -1])


class SelfAttention(nn.Module):
    """`nn.MultiheadAttention`, averaged over the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))


class Mean(nn.Module):
    """The mean over some dimensions."""

    def __init__(self, *dims: int) -> None:
        super().__init__()
        self.dims = dims

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(self.dims)


class Written(nn.Module):
    """Layers and other attributes by name, and a forward pass that puts them together."""

    def __init__(self, written: Callable[..., Any], **attributes: Any) -> None:
        super().__init__()
        self.written = written
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.written(self, *args, **kwargs)


def classifier(model: Callable[[], nn.Module], inputs: Any, examples: int, batchnorm: str = "batch") -> Case:
    return Case(seeded(model), nn.CrossEntropyLoss(), (inputs, integers(CLASSES, examples)), categorical(), batchnorm)


def mlp(outputs: int = CLASSES, activation: Callable[[], nn.Module] = nn.Tanh) -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(4, 5), activation(), nn.Linear(5, outputs)))


def flattened_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Conv2d(3, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(2, CLASSES),
    )  # fmt: skip


def resnet() -> nn.Module:
    return nn.Sequential(Block(2, 2), Mean(2, 3), nn.Linear(2, CLASSES))


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(4, 2, 5, dropout=0.1, batch_first=True)
    return nn.Sequential(layer, Mean(1), nn.Linear(4, CLASSES))


ARCHITECTURES: dict[str, Callable[[], Case]] = {
    "mlp_tanh": lambda: classifier(mlp, normal(6, 4), 6),
    "mlp_relu": lambda: classifier(
        lambda: nn.Sequential(
            nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 4), nn.ReLU(inplace=True), nn.Linear(4, CLASSES)
        ),
        normal(6, 4), 6,
    ),
    "cnn_batch": lambda: classifier(cnn, normal(5, 2, 4, 4), 5),
    "cnn_running": lambda: classifier(cnn, normal(5, 2, 4, 4), 5, "running"),
    "resnet_batch": lambda: classifier(resnet, normal(4, 2, 4, 4), 4),
    "resnet_running": lambda: classifier(resnet, normal(4, 2, 4, 4), 4, "running"),
    "transformer": lambda: Case(
        seeded(Transformer), flattened_cross_entropy, (integers(5, 3, 4), integers(CLASSES, 3, 4)), categorical(-1)
    ),
    "encoder_layer": lambda: classifier(encoder, normal(4, 3, 4), 4),
    "multihead_attention": lambda: classifier(SelfAttention, normal(4, 3, 4), 4),
    "lstm": lambda: classifier(Recurrent, normal(4, 3, 2), 4),
}  # fmt: skip
"""Networks with cross-entropy."""


def split(batch: tuple[Any, Any], sizes: list[int]) -> list[tuple[Any, Any]]:
    """One batch as several, of uneven sizes."""
    return list(zip(*(torch.split(part, sizes) for part in batch), strict=True))
