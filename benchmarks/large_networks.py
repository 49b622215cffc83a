"""GPT-2, ViT-B/16 and ResNet-50 at their published sizes, weights random: in plain torch and Hugging Face's own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import wellcond as wc


@dataclass(frozen=True)
class TransformerConfig:
    """Sizes that GPT-2 (124 M) and ViT-B share."""

    width: int = 768
    depth: int = 12
    heads: int = 12


@dataclass(frozen=True)
class GPT2Config(TransformerConfig):
    vocabulary: int = 50257
    positions: int = 1024


@dataclass(frozen=True)
class ViTConfig(TransformerConfig):
    image: int = 224
    patch: int = 16
    classes: int = 1000


@dataclass(frozen=True)
class ResNetConfig:
    """ResNet-50: blocks in each of the four stages."""

    blocks: tuple[int, ...] = (3, 4, 6, 3)
    width: int = 64
    classes: int = 1000


class TransformerBlock(nn.Module):
    """Pre-norm self-attention and a four times wider MLP."""

    def __init__(self, config: TransformerConfig, causal: bool) -> None:
        super().__init__()
        width = config.width
        self.heads, self.causal = config.heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.proj(mixed.transpose(1, 2).reshape(n, t, d))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class GPT2(nn.Module):
    """Tokens (N, T) → logits (N, T, vocabulary); the head's weight is the embedding's."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(config.positions, config.width)
        self.blocks = nn.Sequential(*(TransformerBlock(config, causal=True) for _ in range(config.depth)))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        _normal(self)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(x)))


class ViT(nn.Module):
    """Images (N, 3, 224, 224) → logits (N, classes), read off a class token."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, config.width, config.patch, stride=config.patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, config.width))
        self.positions = nn.Parameter(torch.zeros(1, (config.image // config.patch) ** 2 + 1, config.width))
        self.blocks = nn.Sequential(*(TransformerBlock(config, causal=False) for _ in range(config.depth)))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.classes)
        _normal(self)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).mT
        x = torch.cat([self.class_token.expand(len(x), -1, -1), x], 1) + self.positions
        return self.head(self.norm(self.blocks(x))[:, 0])


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()

        def conv(a: int, b: int, size: int, stride: int = 1) -> list[nn.Module]:
            return [nn.Conv2d(a, b, size, stride, padding=size // 2, bias=False), nn.BatchNorm2d(b)]

        self.body = nn.Sequential(
            *conv(inputs, width, 1), nn.ReLU(), *conv(width, width, 3, stride), nn.ReLU(), *conv(width, 4 * width, 1)
        )
        same = stride == 1 and inputs == 4 * width
        self.shortcut = nn.Identity() if same else nn.Sequential(*conv(inputs, 4 * width, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


def resnet50(config: ResNetConfig) -> nn.Sequential:
    """Images (N, 3, 224, 224) → logits (N, classes)."""
    stem = [nn.Conv2d(3, config.width, 7, 2, 3, bias=False), nn.BatchNorm2d(config.width), nn.ReLU()]
    layers, inputs = [*stem, nn.MaxPool2d(3, 2, 1)], config.width
    for stage, count in enumerate(config.blocks):
        width = config.width * 2**stage
        for block in range(count):
            layers.append(Bottleneck(inputs, width, 2 if stage and not block else 1))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, config.classes))


def _normal(model: nn.Module) -> None:
    """N(0, 0.02²) for all weights and 0 for biases, as in both papers."""
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Embedding, nn.Conv2d)):
            nn.init.normal_(module.weight, std=0.02)
            if getattr(module, "bias", None) is not None:
                nn.init.zeros_(module.bias)


@dataclass(frozen=True)
class Large:
    """A large network: how it is built, and the batch it is measured on.

    Attributes:
        parameters: Number of parameters as published.
        plain: Function that builds it in plain torch.
        hugging_face: Names of its model and its config in transformers, and the arguments of the config.
        shape: Shape of one example; (T,) are tokens, each with its own label.
        vocabulary: Of tokens and labels.
    """

    parameters: int
    plain: Callable[[], nn.Module]
    hugging_face: tuple[str, str, dict[str, Any]]
    shape: tuple[int, ...]
    vocabulary: int

    def problem(self, examples: int, device: str) -> tuple[str, wc.Problem]:
        """The source of the network in words, and the problem; it is transformers' network if that can be imported."""
        torch.manual_seed(0)
        library = transformers()
        if library is None:
            source, model = "plain torch", self.plain()
        else:
            name, config, options = self.hugging_face
            source = f"transformers {name}"
            model = getattr(library, name)(getattr(library, config)(**options))
        size = sum(p.numel() for p in model.parameters())
        if size != self.parameters:
            raise ValueError(f"{source} has {size:,} parameters, not the published {self.parameters:,}.")
        generator = torch.Generator().manual_seed(0)
        if len(self.shape) == 1:
            x = torch.randint(0, self.vocabulary, (examples, *self.shape), generator=generator)
            y = torch.randint(0, self.vocabulary, x.shape, generator=generator)
        else:
            x = torch.randn(examples, *self.shape, generator=generator)
            y = torch.randint(0, self.vocabulary, (examples,), generator=generator)
        return source, wc.Problem(model.to(device), cross_entropy, (x.to(device), y.to(device)))


def cross_entropy(outputs: Any, targets: Tensor) -> Tensor:
    """The mean over all labels, of logits or of an output object that holds them."""
    logits = outputs if isinstance(outputs, Tensor) else outputs.logits
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


def transformers() -> Any:
    """The library, or None. torchvision, which may not fit this torch, has to be switched off before the import."""
    sys.modules.setdefault("torchvision", None)  # type: ignore[arg-type]
    try:
        import transformers
    except ImportError:
        return None
    return transformers


LARGE = {
    "GPT-2": Large(
        124_439_808, lambda: GPT2(GPT2Config()), ("GPT2LMHeadModel", "GPT2Config", {"use_cache": False}), (128,), 50257
    ),
    "ViT-B": Large(
        86_567_656,
        lambda: ViT(ViTConfig()),
        ("ViTForImageClassification", "ViTConfig", {"num_labels": 1000}),
        (3, 224, 224),
        1000,
    ),
    "ResNet-50": Large(
        25_557_032,
        lambda: resnet50(ResNetConfig()),
        ("ResNetForImageClassification", "ResNetConfig", {"num_labels": 1000}),
        (3, 224, 224),
        1000,
    ),
}
