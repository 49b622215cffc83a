"""What the code around a training sets, and may change in mid-run: rates, momentum, decay, what is trained and held."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from wellcond.recording.watching.layout import Layout
from wellcond.recording.watching.readings import Readings
from wellcond.recording.watching.steps import StepWatch
from wellcond.results import Row
from wellcond.results import quantities as q


class SettingsWatch:
    """Rows of settings, each when it has changed.

    Args:
        model: The model.
        steps: Its optimizers, as their steps are watched.
        layout: Layers of the model.
        readings: Where numbers on a device go.
    """

    def __init__(self, model: nn.Module, steps: Sequence[StepWatch], layout: Layout, readings: Readings) -> None:
        self._model, self._steps, self._layout, self._readings = model, steps, layout, readings
        self._last: dict[tuple[str, str], float] = {}
        self._batchnorms = [
            (name, module)
            for name, module in model.named_modules()
            if isinstance(module, _BatchNorm) and module.track_running_stats
        ]
        self._asks: list[bool] = []
        """Which parameters of the optimizers asked for a gradient at the last look."""
        self._momenta: list[float | None] = []
        """Of the BatchNorms, at the last look."""

    def rates(self, step: int, *, is_read: bool) -> list[Row]:
        """The largest learning rate of all groups in the step that was taken, if it has changed.

        Args:
            step: The step.
            is_read: Whether more of it is read, so that a rate that is a tensor, which may be on a GPU, is read too.
        """
        rates = [lr for watch in self._steps for lr in watch.rates]
        if not any(isinstance(lr, Tensor) for lr in rates):
            return self._if_new(step, "", q.LR, max(map(float, rates)), "lr")
        if is_read:
            largest = torch.stack([torch.as_tensor(lr).detach() for lr in rates]).max()
            self._readings.add(largest, lambda values: self._if_new(step, "", q.LR, values[0], "lr"))
        return []

    def changes(self, step: int) -> list[Row]:
        """What code changes between steps, if it has: which layers are trained, decay, momentum, that of statistics."""
        groups = self._groups()
        asks = [p.requires_grad for group in groups for p in group["params"]]
        rows = self._trained(step) if asks != self._asks else []
        self._asks = asks
        decays = [group.get("weight_decay", 0.0) for group in groups]
        if not any(isinstance(decay, Tensor) for decay in decays):
            rows += self._if_new(step, "", q.WEIGHT_DECAY, max(map(float, decays), default=0.0), "")
        own = [group["betas"][0] if "betas" in group else group.get("momentum", 0.0) for group in groups]
        if not any(isinstance(momentum, Tensor) for momentum in own):
            rows += self._if_new(step, "", q.MOMENTUM, max(map(float, own), default=0.0), "")
        momenta = [norm.momentum for _, norm in self._batchnorms]
        if momenta != self._momenta:
            for (name, _), momentum in zip(self._batchnorms, momenta, strict=True):
                if momentum is not None:  # otherwise all batches count alike
                    rows += self._if_new(step, name, q.STATISTICS_MOMENTUM, float(momentum), "")
            self._momenta = momenta
        return rows

    def rows(self, step: int, scale: Tensor | float | None) -> list[Row]:
        """Rates of layers where groups differ, and the loss scale.

        Args:
            step: The step that was taken.
            scale: What its loss was multiplied with; None if that is not known.
        """
        groups = self._groups()
        rows = []
        rates = [group["lr"] for group in groups if isinstance(group.get("lr"), float)]
        if len(set(rates)) > 1 and len(rates) == len(groups):
            for group in groups:
                layers = dict.fromkeys(self._layout.layer_of(p) for p in group["params"])
                for layer in filter(None, layers):
                    rows += self._if_new(step, layer, q.LR, float(group["lr"]), "lr")
        if isinstance(scale, Tensor):
            self._readings.add(scale, lambda values: self._if_new(step, "", q.LOSS_SCALE, values[0], ""))
        return rows

    def unheld(self, step: int) -> list[Row]:
        """Share of each layer's weights with a gradient that no optimizer holds; parameters may be replaced."""
        held = {id(p) for group in self._groups() for p in group["params"]}
        with_gradient = [p for p in self._model.parameters() if p.requires_grad and p.grad is not None]
        return self._shares(step, q.UNHELD_SHARE, [(p, id(p) not in held) for p in with_gradient], usual=0.0)

    def state_dict(self) -> dict[str, Any]:
        """Layer, quantity and value of all settings as they were last recorded."""
        return {"last": [(*key, value) for key, value in self._last.items()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self._last = {(layer, quantity): value for layer, quantity, value in state["last"]}

    def _trained(self, step: int) -> list[Row]:
        """Share of each layer's weights that ask for a gradient, where they do not all do."""
        trained = [(p, p.requires_grad) for watch in self._steps for p in watch.parameters()]
        return self._shares(step, q.TRAINED_SHARE, trained, usual=1.0)

    def _shares(self, step: int, quantity: str, parts: Sequence[tuple[Tensor, bool]], *, usual: float) -> list[Row]:
        """Share of each layer's entries that something is true of, where it was ever another than the usual one."""
        sizes: dict[str, list[int]] = {}
        for p, is_part in parts:
            if layer := self._layout.layer_of(p):
                size = sizes.setdefault(layer, [0, 0])
                size[0] += p.numel() * is_part
                size[1] += p.numel()
        shares = {layer: part / max(1, every) for layer, (part, every) in sizes.items()}
        known = [layer for layer, share in shares.items() if share != usual or (layer, quantity) in self._last]
        return [row for layer in known for row in self._if_new(step, layer, quantity, shares[layer], "")]

    def _groups(self) -> list[dict[str, Any]]:
        return [group for watch in self._steps for group in watch.optimizer.param_groups]

    def _if_new(self, step: int, layer: str, quantity: str, value: float, unit: str) -> list[Row]:
        if self._last.get((layer, quantity), math.nan) == value:
            return []
        self._last[layer, quantity] = value
        return [Row(step, layer, quantity, value, unit)]
