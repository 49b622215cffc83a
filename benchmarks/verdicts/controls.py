"""Healthy controls: families of networks, stages of their training, optimizers, and the repaired form of every case."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop

from benchmarks.large_networks import GPT2, GPT2Config, ViT, ViTConfig
from benchmarks.verdicts import data, networks
from benchmarks.verdicts.case import Control, Program, accuracy, binary_accuracy, program, r2
from benchmarks.verdicts.cases import CASES
from wellcond_papers.models import mlp, resnet

OPTIMIZERS: dict[str, tuple[Callable[..., Optimizer], dict[str, Any]]] = {
    "SGD": (SGD, {"lr": 0.1}),
    "momentum": (SGD, {"lr": 0.02, "momentum": 0.9}),
    "Nesterov": (SGD, {"lr": 0.02, "momentum": 0.9, "nesterov": True, "weight_decay": 5e-4}),
    "Adam": (Adam, {"lr": 2e-3}),
    "AdamW": (AdamW, {"lr": 2e-3, "weight_decay": 0.01}),
    "RMSprop": (RMSprop, {"lr": 1e-3}),
    "Adagrad": (Adagrad, {"lr": 0.02}),
}
STAGES = ("initialization", "half-trained", "trained")

Made = Callable[[str], Program]


def _made(
    optimizer: str, model: nn.Module, loss: Any, examples: data.Data, batch: int, score: Any, **changed: Any
) -> Program:
    kind, options = OPTIMIZERS[optimizer]
    return program(model, loss, examples, batch, kind, score, **{**options, **changed})


def _classifier(make: Callable[[], nn.Module], examples: Callable[[], data.Data], batch: int = 32) -> Made:
    def built(optimizer: str) -> Program:
        return _made(optimizer, make(), nn.CrossEntropyLoss(), examples(), batch, accuracy(examples()))

    return built


def by_token(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def _language(make: Callable[[], nn.Module]) -> Made:
    return lambda optimizer: _made(optimizer, make(), by_token, data.text(), 32, accuracy(data.text()))


def _rows() -> data.Data:
    x, y = data.table("digits", scaled=False)
    return x / 16, y


def _regression(optimizer: str) -> Program:
    houses = data.houses(scaled=True)
    model = mlp([3, 32, 32, 1], init="default")
    return _made(optimizer, model, nn.MSELoss(), houses, 32, r2(houses))


def _autoencoder(optimizer: str) -> Program:
    x, _ = _rows()
    return _made(optimizer, networks.autoencoder(), nn.MSELoss(), (x, x), 32, r2((x, x)))


def _vae(optimizer: str) -> Program:
    x, _ = _rows()
    blank = F.binary_cross_entropy(x.mean(0).expand_as(x), x, reduction="sum") / len(x)

    def score(model: nn.Module) -> float:
        """How far the loss is below that of the mean image."""
        return float(1 - networks.vae_loss(model(x), x) / blank)

    return _made(optimizer, networks.VAE(), networks.vae_loss, (x, x), 32, score)


def _logistic(optimizer: str) -> Program:
    x, y = data.table("breast_cancer", scaled=True)
    patients = x, y.float()[:, None]
    return _made(optimizer, nn.Linear(30, 1), nn.BCEWithLogitsLoss(), patients, 32, binary_accuracy(patients, 0.0))


def _discriminator(optimizer: str) -> Program:
    """Digits against the blurred noise that an untrained generator makes, in [−1, 1]."""
    real = 2 * data.digit_images(16)[0][:900] - 1
    draw = torch.Generator().manual_seed(12)
    fake = torch.tanh(F.interpolate(torch.randn(900, 1, 5, 5, generator=draw), (16, 16), mode="bilinear"))
    both = torch.cat([real, fake]), torch.cat([torch.ones(900, 1), torch.zeros(900, 1)])
    score = binary_accuracy(both, 0.0)
    return _made(optimizer, networks.discriminator(), nn.BCEWithLogitsLoss(), both, 64, score)


def _mlp() -> nn.Module:
    return mlp([64, 64, 64, 10], init="default")


def _vit() -> nn.Module:
    return ViT(ViTConfig(width=32, depth=3, heads=4, image=16, patch=4, classes=10))


def _gpt() -> nn.Module:
    return GPT2(GPT2Config(width=32, depth=3, heads=4, vocabulary=24, positions=24))


_pictures = functools.partial(data.pictures, 16)
_digits = functools.partial(data.digit_images, 16)
_FAMILIES: dict[str, tuple[Made, tuple[str, str, str], int, float]] = {
    # how it is made, an optimizer for each stage, steps until it is trained, and the score that it then has
    "MLP": (_classifier(_mlp, _rows), ("SGD", "Adagrad", "momentum"), 400, 0.9),
    "CNN": (_classifier(networks.cnn, _digits), ("Adam", "RMSprop", "Nesterov"), 300, 0.9),
    "ResNet-20": (_classifier(lambda: resnet(20), _pictures), ("Nesterov", "momentum", "AdamW"), 120, 0.8),
    "VGG-BN": (_classifier(networks.vgg_bn, _pictures), ("momentum", "Adam", "SGD"), 200, 0.8),
    "ViT": (_classifier(_vit, _pictures), ("AdamW", "Adam", "AdamW"), 300, 0.8),
    "GPT": (_language(_gpt), ("AdamW", "RMSprop", "Adam"), 300, 0.6),
    "BERT": (_classifier(networks.bert, data.marked_tokens), ("AdamW", "Adam", "AdamW"), 300, 0.8),
    "LSTM": (_language(lambda: networks.Recurrent(nn.LSTM)), ("Adam", "AdamW", "RMSprop"), 300, 0.6),
    "GRU": (_language(lambda: networks.Recurrent(nn.GRU)), ("RMSprop", "Adam", "AdamW"), 300, 0.6),
    "autoencoder": (_autoencoder, ("Adam", "AdamW", "RMSprop"), 600, 0.3),
    "VAE": (_vae, ("Adam", "Adam", "AdamW"), 600, 0.0),
    "logistic regression": (_logistic, ("SGD", "Adagrad", "Nesterov"), 200, 0.95),
    "regression": (_regression, ("momentum", "SGD", "Adam"), 400, 0.9),
    "embedding bag": (_classifier(networks.Words, data.words), ("Adagrad", "Adam", "RMSprop"), 500, 0.8),
    "DCGAN discriminator": (_discriminator, ("Adam", "RMSprop", "Adam"), 150, 0.95),
}
if importlib.util.find_spec("transformers") is None:
    del _FAMILIES["BERT"]


def _staged(family: str, stage: int) -> Control:
    built, optimizers, steps, least = _FAMILIES[family]
    name = f"{family}, {optimizers[stage]}, {STAGES[stage]}"
    return Control(name, functools.partial(built, optimizers[stage]), steps * stage // 2, steps, least)


FAMILIES: dict[str, Control] = {c.name: c for c in (_staged(f, s) for f in _FAMILIES for s in range(3))}
REPAIRED: dict[str, Control] = {
    f"{case.name}, repaired": Control(f"{case.name}, repaired", functools.partial(case.make, False), 0, case.steps, 0.0)
    for case in CASES.values()
}
CONTROLS: dict[str, Control] = FAMILIES | REPAIRED
"""The repaired forms are verified together with the faulty ones."""
