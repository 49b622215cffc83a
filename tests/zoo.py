"""Small networks in float64, each as a `Case`: model, loss, batch, and how its loss splits into terms."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from references import Terms, bernoulli, categorical, gaussian
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

    def __init__(self, width: int, heads: int = 2) -> None:
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

    def __init__(self, layers: int = 2, width: int = 4, vocabulary: int = 5, classes_second: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.Sequential(*(Attention(width) for _ in range(layers)))
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


def soft(*shape: int) -> Tensor:
    return normal(*shape, seed=5).softmax(1)


def sequence(loss: Any, terms: Terms | None, targets: Tensor, classes_second: bool) -> Case:
    """A one-layer transformer on (3, T) tokens."""
    model = seeded(lambda: Transformer(layers=1, width=2, classes_second=classes_second))
    return Case(
        model, loss, (integers(5, 3, targets.shape[-1] if classes_second else targets.shape[1]), targets), terms
    )


def regression(outputs: int, loss: Any, terms: Terms | None, targets: Tensor) -> Case:
    return Case(mlp(outputs), loss, (normal(len(targets), 4), targets), terms)


def ignoring(index: int, *shape: int) -> Tensor:
    """Class indices, of which about a third are `index`, unevenly spread."""
    targets = integers(CLASSES, *shape)
    targets.view(-1)[: targets.numel() // 3] = index
    return targets


def vector(model: nn.Module) -> nn.Module:
    return nn.Sequential(model, nn.Flatten(0))


def cross_entropy_ignoring_2(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, ignore_index=2)


LOSSES: dict[str, Callable[[], Case]] = {
    # cross-entropy
    "class_probabilities": lambda: regression(3, nn.CrossEntropyLoss(), categorical(), soft(6, 3)),
    "ignore_index": lambda: regression(3, nn.CrossEntropyLoss(), categorical(), ignoring(-100, 9)),
    "custom_ignore_index": lambda: regression(
        3, nn.CrossEntropyLoss(ignore_index=1), categorical(ignore_index=1), ignoring(1, 9)
    ),
    "partial_ignore_index": lambda: regression(
        3, functools.partial(F.cross_entropy, ignore_index=-1), categorical(ignore_index=-1), ignoring(-1, 9)
    ),
    "hidden_ignore_index": lambda: regression(
        3, cross_entropy_ignoring_2, categorical(ignore_index=2), ignoring(2, 9)
    ),
    "positions": lambda: sequence(nn.CrossEntropyLoss(), categorical(), integers(CLASSES, 3, 4), True),
    "positions_ignored": lambda: sequence(nn.CrossEntropyLoss(), categorical(), ignoring(-100, 3, 4), True),
    "as_many_positions_as_classes": lambda: sequence(nn.CrossEntropyLoss(), categorical(), integers(3, 3, 3), True),
    "positions_probabilities": lambda: sequence(nn.CrossEntropyLoss(), categorical(), soft(3, CLASSES, 4), True),
    "tokens": lambda: sequence(flattened_cross_entropy, categorical(-1), integers(CLASSES, 3, 4), False),
    "tokens_ignored": lambda: sequence(flattened_cross_entropy, categorical(-1), ignoring(-100, 3, 4), False),
    "as_many_tokens_as_classes": lambda: sequence(flattened_cross_entropy, categorical(-1), integers(3, 3, 3), False),
    "tokens_probabilities": lambda: sequence(
        lambda f, y: F.cross_entropy(f.flatten(0, 1), y.flatten(0, 1)), categorical(-1),
        soft(3, CLASSES, 4).transpose(1, 2), False,
    ),
    # squared error
    "mse": lambda: regression(3, nn.MSELoss(), gaussian(1 / 3), normal(5, 3)),
    "mse_one": lambda: regression(1, nn.MSELoss(), gaussian(1), normal(5, 1)),
    "mse_of_sums": lambda: regression(3, lambda f, y: ((f - y) ** 2).sum(1).mean(), gaussian(1), normal(5, 3)),
    "mse_halved": lambda: regression(2, lambda f, y: 0.5 * F.mse_loss(f, y), gaussian(1 / 4), normal(5, 2)),
    "mse_vector": lambda: Case(vector(mlp(1)), nn.MSELoss(), (normal(5, 4), normal(5)), gaussian(1)),
    "mse_tokens": lambda: Case(mlp(2), nn.MSELoss(), (normal(3, 2, 4), normal(3, 2, 2)), gaussian(1 / 4)),
    # binary cross-entropy
    "bce_one": lambda: regression(1, nn.BCEWithLogitsLoss(), bernoulli(1), integers(2, 5, 1).double()),
    "bce_vector": lambda: Case(
        vector(mlp(1)), nn.BCEWithLogitsLoss(), (normal(5, 4), integers(2, 5).double()), bernoulli(1)
    ),
    "bce_many": lambda: regression(3, nn.BCEWithLogitsLoss(), bernoulli(1 / 3), integers(2, 5, 3).double()),
    "bce_of_sums": lambda: regression(
        3, lambda f, y: F.binary_cross_entropy_with_logits(f, y, reduction="none").sum(1).mean(), bernoulli(1),
        integers(2, 5, 3).double(),
    ),
    "bce_soft": lambda: regression(2, nn.BCEWithLogitsLoss(), bernoulli(1 / 2), normal(5, 2).sigmoid()),
}  # fmt: skip
"""Losses that are the logarithm of a likelihood, on small networks."""

OTHER_LOSSES: dict[str, Callable[[], Case]] = {
    "log_cosh": lambda: regression(2, lambda f, y: (f - y).cosh().log().mean(), None, normal(5, 2)),
    "poisson": lambda: regression(2, nn.PoissonNLLLoss(), None, integers(4, 5, 2).double()),
    "label_smoothing": lambda: regression(3, nn.CrossEntropyLoss(label_smoothing=0.1), None, integers(3, 6)),
    "class_weights": lambda: regression(
        3, nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)), None, integers(3, 6)
    ),
    "focal": lambda: regression(
        3, lambda f, y: (-((1 - (p := f.log_softmax(1).gather(1, y[:, None])).exp()) ** 2) * p).mean(), None,
        integers(3, 6),
    ),
}  # fmt: skip
"""Losses without a likelihood: Hessian and GGN alone."""


def split(batch: tuple[Any, Any], sizes: list[int]) -> list[tuple[Any, Any]]:
    """One batch as several, of uneven sizes."""
    return list(zip(*(torch.split(part, sizes) for part in batch), strict=True))


def with_batchnorm(case: Case, meaning: str) -> Case:
    return replace(case, batchnorm=meaning)
