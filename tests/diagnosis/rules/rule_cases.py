"""Small networks in a faulty and a healthy form, and the findings of the rules after one inspection and the probes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from wellcond import Problem
from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.inspection.inspect import Inspection, inspect
from wellcond.diagnosis.judge import judged
from wellcond.diagnosis.probes.behavior import behavior

N, FEATURES, CLASSES = 128, 10, 4


def table(*, scale: float = 1.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Standard normal features and labels that depend on them."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(N, FEATURES, generator=draw)
    y = (x @ torch.randn(FEATURES, CLASSES, generator=draw)).argmax(1)
    return scale * x, y


def perceptron(
    *tail: nn.Module, depth: int = 2, width: int = 16, outputs: int = CLASSES, seed: int = 0
) -> nn.Sequential:
    """Linear layers and ReLUs, with other modules after the last."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for k in range(depth):
        layers += [nn.Linear(FEATURES if k == 0 else width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, outputs), *tail)


def seen(
    model: nn.Module, loss: Callable[..., Any], batches: Any, optimizer: Optimizer | None = None
) -> tuple[Inspection, tuple[Finding, ...]]:
    """An inspection, and the findings of all rules in it and in what the probes show."""
    problem = Problem(model, loss, batches)
    inspection = inspect(problem, optimizer)
    shown = behavior(problem) if inspection.is_finite and not inspection.forward_error else None
    return inspection, judged(Evidence(problem, optimizer, inspection, shown))


def findings(*args: Any) -> dict[str, Finding]:
    """By rule, those that other findings explain too."""
    waiting, every = list(seen(*args)[1]), dict[str, Finding]()
    while waiting:
        finding = waiting.pop(0)
        every.setdefault(finding.rule, finding)
        waiting += finding.consequences
    return every


def severe(*args: Any) -> list[str]:
    """Rules of the severe root causes."""
    return [finding.rule for finding in seen(*args)[1] if finding.severity == "severe"]
