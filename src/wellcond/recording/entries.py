"""What the manifest of a run says of the model, the optimizer and the settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer


def entries_of(model: nn.Module, optimizers: Sequence[Optimizer], budget: float) -> dict[str, Any]:
    """The model's modules in order, the optimizers with their settings, and the budget.

    Example:
        >>> import torch
        >>> model = nn.Linear(2, 1)
        >>> entries_of(model, [torch.optim.SGD(model.parameters(), lr=0.1)], 0.05)["model"]
        [{'name': '', 'type': 'Linear', 'parameters': 3}]
    """
    modules = [
        {
            "name": name,
            "type": type(module).__name__,
            "parameters": sum(p.numel() for p in module.parameters(recurse=False)),
        }
        for name, module in model.named_modules()
    ]
    settings = [
        {"class": type(each).__name__, "groups": list(map(_settings, each.param_groups))} for each in optimizers
    ]
    return {"model": modules, "optimizer": settings[0] if len(settings) == 1 else settings, "budget": budget}


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    """The settings of a group that are numbers or words."""
    plain = {
        name: float(value) if isinstance(value, Tensor) else value for name, value in group.items() if name != "params"
    }
    return {
        name: value for name, value in plain.items() if isinstance(value, (bool, int, float, str, tuple, type(None)))
    }
