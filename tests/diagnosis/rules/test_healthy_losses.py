"""Healthy networks under many losses, each seen to be learned by training: none of them is severe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import wellcond as wc

N, FEATURES, CLASSES = 256, 12, 4


def _data() -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(N, FEATURES, generator=draw)
    y = (x @ torch.randn(FEATURES, CLASSES, generator=draw)).argmax(1)
    value = x[:, :1].sin() + x[:, 1:2]
    count = torch.poisson((0.5 * x[:, :1] + 0.5).exp(), generator=draw)
    return {"x": x, "class": y, "value": value / value.std(), "binary": (value > 0).float(), "count": count,
            "sign": value.sign(), "mask": (x[:, :CLASSES] > 0).float(), "share": (2 * x[:, :CLASSES]).softmax(1),
            "pixels": 255 * (2 * x[:, :CLASSES]).sigmoid(), "features": x[:, :8].contiguous()}  # fmt: skip


DATA = _data()


def focal(logits: Tensor, labels: Tensor) -> Tensor:
    log_p = F.log_softmax(logits, 1).gather(1, labels[:, None])
    return (-((1 - log_p.exp()) ** 2) * log_p).mean()


def dice(p: Tensor, mask: Tensor) -> Tensor:
    return 1 - (2 * (p * mask).sum() + 1) / (p.sum() + mask.sum() + 1)


def quantile(outputs: Tensor, values: Tensor) -> Tensor:
    return torch.maximum(0.9 * (values - outputs), 0.1 * (outputs - values)).mean()


def heteroscedastic(outputs: Tensor, values: Tensor) -> Tensor:
    mean, log_variance = outputs.chunk(2, 1)
    return 0.5 * (log_variance + (values - mean) ** 2 * torch.exp(-log_variance)).mean()


def supervised_contrastive(outputs: Tensor, labels: Tensor) -> Tensor:
    z = F.normalize(outputs)
    own = torch.eye(len(z), dtype=torch.bool)
    same = (labels[:, None] == labels) & ~own
    log_p = F.log_softmax((z @ z.T / 0.2).masked_fill(own, -1e9), 1)
    return -((log_p * same).sum(1) / same.sum(1).clamp_min(1)).mean()


def triplet(outputs: Tensor, labels: Tensor) -> Tensor:
    d, same = torch.cdist(F.normalize(outputs), F.normalize(outputs)), labels[:, None] == labels
    return F.relu((d * same).amax(1) - (d + 10 * same).amin(1) + 0.3).mean()


def info_nce(outputs: Tensor, features: Tensor) -> Tensor:
    return F.cross_entropy(F.normalize(outputs) @ F.normalize(features).T / 0.1, torch.arange(len(outputs)))


def ranking(outputs: Tensor, values: Tensor) -> Tensor:
    return F.margin_ranking_loss(outputs[::2], outputs[1::2], (values[::2] - values[1::2]).sign(), margin=0.1)


def cosine_pairs(outputs: Tensor, labels: Tensor) -> Tensor:
    return F.cosine_embedding_loss(outputs[::2], outputs[1::2], 2.0 * (labels[::2] == labels[1::2]) - 1)


def ctc(outputs: Tensor, labels: Tensor) -> Tensor:
    n = len(outputs)
    log_p = F.log_softmax(outputs.view(n, 6, 5).transpose(0, 1), -1)
    return F.ctc_loss(log_p, labels[:, None] + 1, torch.full((n,), 6), torch.full((n,), 1))


def energy(outputs: Tensor, binary: Tensor) -> Tensor:
    return -(outputs * (2 * binary - 1)).mean() + 0.01 * outputs.square().mean()


def cox(outputs: Tensor, values: Tensor) -> Tensor:
    risk = outputs[values[:, 0].argsort(descending=True), 0]
    return -(risk - risk.logcumsumexp(0)).mean()


def ordinal(outputs: Tensor, labels: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(outputs, (labels[:, None] > torch.arange(3)).float())


def gram(outputs: Tensor, features: Tensor) -> Tensor:
    a, b = F.normalize(outputs), F.normalize(features)
    return F.mse_loss(a @ a.T, b @ b.T)


def correlation(outputs: Tensor, values: Tensor) -> Tensor:
    a, b = outputs - outputs.mean(), values - values.mean()
    return 1 - (a * b).sum() / (a.norm() * b.norm() + 1e-8)


LOSSES: dict[str, tuple[Callable[..., Any], str, int, list[nn.Module]]] = {
    "smoothed labels": (nn.CrossEntropyLoss(label_smoothing=0.1), "class", CLASSES, []),
    "weighted classes": (nn.CrossEntropyLoss(torch.tensor([1.0, 2.0, 0.5, 3.0])), "class", CLASSES, []),
    "soft classes": (nn.CrossEntropyLoss(), "share", CLASSES, []),
    "focal": (focal, "class", CLASSES, []),
    "negative log-likelihood": (nn.NLLLoss(), "class", CLASSES, [nn.LogSoftmax(1)]),
    "own cross-entropy": (lambda p, y: -p.gather(1, y[:, None]).log().mean(), "class", CLASSES, [nn.Softmax(1)]),
    "margins of classes": (nn.MultiMarginLoss(), "class", CLASSES, []),
    "dice of logits": (lambda o, m: dice(o.sigmoid(), m), "mask", CLASSES, []),
    "dice": (dice, "mask", CLASSES, [nn.Sigmoid()]),
    "weighted binary": (nn.BCEWithLogitsLoss(pos_weight=torch.tensor(3.0)), "mask", CLASSES, []),
    "binary": (nn.BCELoss(), "binary", 1, [nn.Sigmoid()]),
    "signs as probabilities": (lambda o, s: F.binary_cross_entropy_with_logits(o, (s + 1) / 2), "sign", 1, []),
    "soft margin": (nn.SoftMarginLoss(), "sign", 1, []),
    "hinge": (lambda o, s: F.relu(1 - o * s).mean(), "sign", 1, []),
    "exponential": (lambda o, s: (-o * s).exp().mean(), "sign", 1, []),
    "ordinal": (ordinal, "class", 3, []),
    "divergence": (lambda o, p: F.kl_div(F.log_softmax(o, 1), p, reduction="batchmean"), "share", CLASSES, []),
    "divergence of log-probabilities": (nn.KLDivLoss(reduction="batchmean"), "share", CLASSES, [nn.LogSoftmax(1)]),
    "Poisson": (nn.PoissonNLLLoss(), "count", 1, []),
    "Poisson of rates": (nn.PoissonNLLLoss(log_input=False), "count", 1, [nn.Softplus()]),
    "Huber": (nn.HuberLoss(), "value", 1, []),
    "absolute": (nn.L1Loss(), "value", 1, []),
    "quantile": (quantile, "value", 1, []),
    "heteroscedastic": (heteroscedastic, "value", 2, []),
    "log cosh": (lambda o, v: (o - v).cosh().log().mean(), "value", 1, []),
    "correlation": (correlation, "value", 1, []),
    "scaled pixels": (lambda o, p: F.mse_loss(o, p / 255), "pixels", CLASSES, [nn.Sigmoid()]),
    "supervised contrastive": (supervised_contrastive, "class", 8, []),
    "InfoNCE": (info_nce, "features", 8, []),
    "InfoNCE of sigmoids": (info_nce, "features", 8, [nn.Sigmoid()]),
    "triplet": (triplet, "class", 8, []),
    "cosine": (lambda o, f: 1 - F.cosine_similarity(o, f).mean(), "features", 8, []),
    "cosine of pairs": (cosine_pairs, "class", 8, []),
    "Gram matrix of tanhs": (gram, "features", 16, [nn.Tanh()]),
    "ranking": (ranking, "value", 1, []),
    "CTC": (ctc, "class", 30, []),
    "energy": (energy, "binary", 1, []),
    "Cox": (cox, "value", 1, []),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LOSSES)
def test_a_network_that_learns_by_it_has_nothing_severe(name: str) -> None:
    loss, target, outputs, tail = LOSSES[name]
    torch.manual_seed(0)
    layers = [nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, outputs)]
    model = nn.Sequential(*layers, *tail)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    batches = list(zip(DATA["x"].split(64), DATA[target].split(64), strict=True))
    diagnosis = wc.diagnose(wc.Problem(model, loss, batches), optimizer)
    assert [str(each) for each in diagnosis.findings if each.severity == "severe"] == []
    assert "output-loss-mismatch" not in {each.rule for each in diagnosis.findings}
    before = sum(loss(model(x), y).item() for x, y in batches)
    for _ in range(10):
        for x, y in batches:
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()
    assert sum(loss(model(x), y).item() for x, y in batches) < before - 0.1 * abs(before)  # it is healthy indeed
