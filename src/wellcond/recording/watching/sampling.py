"""What of a step is read: its loss and rate always, gradients often, and everything on some steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from wellcond.problem.ranks.team import Team
from wellcond.recording.mishaps import Mishaps
from wellcond.recording.watching.activations import ActivationWatch
from wellcond.recording.watching.backwards import BackwardWatch
from wellcond.recording.watching.layout import Layout
from wellcond.recording.watching.readings import Readings
from wellcond.recording.watching.steps import StepWatch, gradient_reading, lost_reading, update_reading
from wellcond.results import Row
from wellcond.results import quantities as q

Depth = Literal["", "gradients", "everything"]
"""How much is read of a step, besides its loss and rate."""
NOTHING: Final = ""
GRADIENTS: Final = "gradients"
EVERYTHING: Final = "everything"
ROUNDED_EVERY = 25
"""Steps after which the last bits of weights are looked at again; on a GPU, where that is a dozen kernels, only where
everything is read."""
FEW_ROWS, FEW_ENTRIES = 8, 32
"""Rows of a matrix, and entries of each, whose last bits are looked at: by chance none of them has 16 zeros."""


class Sampling:
    """Reads one step after the other, each as deep as it was planned.

    Args:
        model: The model itself, without wrappers.
        optimizers: Those that train it.
        scaler: The GradScaler, if one is used and known.
        calls_are_seen: Whether hooks see the calls of the model's layers; not if it is compiled.
        readings: Where numbers on a device go.
        mishaps: Guards the hooks.
        team: The processes that hold parts of the parameters; None if this one holds all.

    Attributes:
        layout: Layers of the model.
        depth: What is read of the coming step.
        has_scaler: Whether the scaler of losses is known.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        scaler: Any,
        calls_are_seen: bool,
        readings: Readings,
        mishaps: Mishaps,
        team: Team | None = None,
    ) -> None:
        self.layout = Layout(model)
        self._model = model
        self.depth: Depth = NOTHING
        self.steps = [StepWatch(each, self.layout, mishaps.guard, team) for each in optimizers]
        self.backwards = BackwardWatch(self._parameters, self._scale, mishaps.guard)
        self.activations = ActivationWatch(model, mishaps.guard) if calls_are_seen else None
        self.has_scaler = scaler is not None
        self._scaler = scaler
        self._are_parts = team is not None
        self._readings = readings
        self._last: dict[tuple[str, str], float] = {}
        self._batchnorms = [
            (name, module)
            for name, module in model.named_modules()
            if isinstance(module, _BatchNorm) and module.track_running_stats
        ]
        self._largest: Tensor | None = None
        self._rounded_at = 0
        self._asks: list[bool] = []
        """Which parameters of the optimizers asked for a gradient at the last look."""

    @property
    def optimizer_steps(self) -> int:
        """Steps that all optimizers have taken."""
        return sum([watch.steps for watch in self.steps])

    @property
    def is_captured(self) -> bool:
        """Whether steps run as a CUDA graph, whose replays call no hooks."""
        return True in [watch.is_captured for watch in self.steps]

    @property
    def order(self) -> list[str]:
        """Layers in the order of their calls in the last step that was seen, then the others."""
        seen = [] if self.activations is None else self.activations.outputs.started
        return list(dict.fromkeys([*seen, *self.layout.layers]))

    @property
    def before(self) -> dict[Tensor, Tensor]:
        """Every parameter with its values before the last step, if that was copied; empty if not, or not of all."""
        copied = {p: values for watch in self.steps for p, values in watch.before}
        return copied if len(copied) == len(self._parameters()) else {}

    @property
    def device(self) -> torch.device:
        """The device of the model's first parameter."""
        return next(self._model.parameters()).device

    def unseen(self, rows: Sequence[Row]) -> list[Row]:
        """Rows of layers and quantities that hooks have never seen."""
        known = set() if self.activations is None else self.activations.outputs.known
        return [row for row in rows if (row.layer, row.quantity) not in known]

    def plan(self, depth: Depth) -> None:
        """Choose what is read of the coming step, and put hooks where they are needed."""
        self.depth = depth
        for watch in self.steps:
            watch.want(gradients=depth != NOTHING, weights=depth == EVERYTHING)
        if depth != NOTHING and not self._are_parts:  # hooks do not see the gradients of parts
            self.backwards.begin()
        if depth == EVERYTHING and self.activations is not None:
            self.activations.begin()

    def end(self) -> None:
        """Remove the hooks of one step."""
        self.backwards.end()
        if self.activations is not None:
            self.activations.end()

    def collect(self, step: int) -> list[Row]:
        """Hand over what was read of the step that has ended.

        Returns:
            Rows of numbers that are not on a device.
        """
        self.end()
        gradients = [watch.gradients for watch in self.steps if watch.gradients is not None]
        if gradients:
            self._readings.add(*gradient_reading(step, gradients))
        changed = [watch.updates for watch in self.steps if watch.updates is not None]
        if changed:
            whole = sum(len(watch.parameters()) for watch in self.steps)
            self._readings.add(*update_reading(step, changed, sum(len(each.layers) for each in changed) == whole))
            if half := [each.lost for each in changed if each.lost is not None]:
                self._readings.add(*lost_reading(step, torch.stack(half).sum(0)))
        if (passes := self.backwards.reading(step)) is not None:
            self._readings.add(*passes)
        watch = self.activations if self.depth == EVERYTHING else None
        if watch is not None and (calls := watch.outputs.reading(step)) is not None:
            self._readings.add(*calls)
        return self.settings(step) if self.depth == EVERYTHING else []

    @property
    def has_new_rates(self) -> bool:
        """Whether learning rates may have changed."""
        return True in [watch.has_new_rates for watch in self.steps]

    @property
    def writes_anew(self) -> bool:
        """Whether gradients are added up, clipped or cleared in another way than ever before."""
        return True in [watch.writes_anew for watch in self.steps]

    def rates(self, step: int) -> list[Row]:
        """The largest learning rate of all groups in the step that was taken, if it has changed."""
        rates = [lr for watch in self.steps for lr in watch.rates]
        if not any(isinstance(lr, Tensor) for lr in rates):
            return self._if_new(step, "", q.LR, max(map(float, rates)), "lr")
        if self.depth:  # a tensor, for a fused or captured step, may be on a GPU
            largest = torch.stack([torch.as_tensor(lr).detach() for lr in rates]).max()
            self._readings.add(largest, lambda values: self._if_new(step, "", q.LR, values[0], "lr"))
        return []

    def changes(self, step: int) -> list[Row]:
        """What code changes between steps, if it has: which layers are trained, decay, momentum of statistics."""
        rows = self._trained(step)
        groups = [group for watch in self.steps for group in watch.optimizer.param_groups]
        decays = [group.get("weight_decay", 0.0) for group in groups]
        if not any(isinstance(decay, Tensor) for decay in decays):
            rows += self._if_new(step, "", q.WEIGHT_DECAY, max(map(float, decays), default=0.0), "")
        for name, norm in self._batchnorms:
            if norm.momentum is not None:  # otherwise all batches count alike
                rows += self._if_new(step, name, q.STATISTICS_MOMENTUM, float(norm.momentum), "")
        return [*rows, *self._rounded(step)]

    def _rounded(self, step: int) -> list[Row]:
        """Of the largest float32 matrix, the share of a few entries whose last 16 bits are zero, as of bfloat16."""
        is_due = self.depth == EVERYTHING or (self.device.type == "cpu" and step >= self._rounded_at + ROUNDED_EVERY)
        if not is_due or self._are_parts:
            return []
        if self._largest is None:
            fine = (p for p in self._parameters() if p.dtype == torch.float32 and p.dim() > 1 and not p.is_sparse)
            self._largest = max(fine, key=Tensor.numel, default=None)
        if self._largest is None or self._largest.dtype != torch.float32:
            return []
        self._rounded_at = step
        layer = self.layout.layer_of(self._largest) or ""
        rows = self._largest.detach()[:: -(-len(self._largest) // FEW_ROWS)]
        some = rows.flatten(1)[:, :FEW_ENTRIES].contiguous()
        is_set = (some != 0) & some.isfinite()  # an embedding has rows of zeros, and NaN such bits
        is_rounded = is_set & (some.view(torch.int32) & 0xFFFF == 0)
        share = is_rounded.sum() / is_set.sum().clamp(min=1)
        if share.is_cpu:
            return self._if_new(step, layer, q.ROUNDED_WEIGHTS, float(share), "")
        self._readings.add(share, lambda values: self._if_new(step, layer, q.ROUNDED_WEIGHTS, values[0], ""))
        return []

    def _trained(self, step: int) -> list[Row]:
        """Share of each layer's weights that ask for a gradient, where they do not all do; each if it has changed."""
        asks = [
            p.requires_grad for watch in self.steps for group in watch.optimizer.param_groups for p in group["params"]
        ]
        if asks == self._asks:
            return []
        self._asks = asks
        sizes: dict[str, list[int]] = {}
        for p in self._parameters():
            size = sizes.setdefault(self.layout.layer_of(p) or "", [0, 0])
            size[0] += p.numel() * p.requires_grad
            size[1] += p.numel()
        shares = {layer: asking / max(1, every) for layer, (asking, every) in sizes.items()}
        known = [layer for layer, share in shares.items() if share < 1 or (layer, q.TRAINED_SHARE) in self._last]
        return [row for layer in known for row in self._if_new(step, layer, q.TRAINED_SHARE, shares[layer], "")]

    def settings(self, step: int) -> list[Row]:
        """Momentum, rates of layers where groups differ, weights not held, the loss scale; each if it has changed."""
        rows = [] if self._are_parts else self._unheld(step)
        groups = [group for watch in self.steps for group in watch.optimizer.param_groups]
        momenta = [group["betas"][0] if "betas" in group else group.get("momentum", 0.0) for group in groups]
        if not any(isinstance(momentum, Tensor) for momentum in momenta):
            rows += self._if_new(step, "", q.MOMENTUM, max(map(float, momenta), default=0.0), "")
        rates = [group["lr"] for group in groups if isinstance(group.get("lr"), float)]
        if len(set(rates)) > 1 and len(rates) == len(groups):
            for group in groups:
                layers = dict.fromkeys(self.layout.layer_of(p) for p in group["params"])
                for layer in filter(None, layers):
                    rows += self._if_new(step, layer, q.LR, float(group["lr"]), "lr")
        scale = self.backwards.scale
        if isinstance(scale, Tensor):
            self._readings.add(scale, lambda values: self._if_new(step, "", q.LOSS_SCALE, values[0], ""))
        return rows

    def _unheld(self, step: int) -> list[Row]:
        """Share of each layer's weights with a gradient that no optimizer holds; parameters may be replaced."""
        held = {id(p) for watch in self.steps for group in watch.optimizer.param_groups for p in group["params"]}
        sizes: dict[str, list[int]] = {}
        for p in self._model.parameters():
            if (layer := self.layout.layer_of(p)) and p.requires_grad and p.grad is not None:
                size = sizes.setdefault(layer, [0, 0])
                size[0] += p.numel() * (id(p) not in held)
                size[1] += p.numel()
        shares = {layer: missing / max(1, every) for layer, (missing, every) in sizes.items()}
        known = [layer for layer, share in shares.items() if share or (layer, q.UNHELD_SHARE) in self._last]
        return [row for layer in known for row in self._if_new(step, layer, q.UNHELD_SHARE, shares[layer], "")]

    def state_dict(self) -> dict[str, Any]:
        """Settings as last recorded, how often gradients were written to, and what is read of the coming step."""
        return {
            "last": [(*key, value) for key, value in self._last.items()],
            "depth": self.depth,
            "rounded_at": self._rounded_at,
            "writes": [sorted(watch.writes) for watch in self.steps],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self._last = {(layer, quantity): value for layer, quantity, value in state["last"]}
        self._rounded_at = state["rounded_at"]
        for watch, writes in zip(self.steps, state["writes"], strict=True):
            watch.writes = set(writes)
        self.end()
        self.plan(state["depth"])

    def _scale(self) -> Tensor | float | None:
        """What losses are multiplied with; None if half precision is used, and no scaler is known."""
        if self._scaler is not None:
            scale: Tensor | None = getattr(self._scaler, "_scale", None)  # one that is off has none
            return 1.0 if scale is None else scale.detach().clone()
        return None if self.activations is not None and self.activations.outputs.is_half else 1.0

    def _if_new(self, step: int, layer: str, quantity: str, value: float, unit: str) -> list[Row]:
        if self._last.get((layer, quantity), math.nan) == value:
            return []
        self._last[layer, quantity] = value
        return [Row(step, layer, quantity, value, unit)]

    def _parameters(self) -> list[Tensor]:
        return [p for watch in self.steps for p in watch.parameters()]

    def remove(self) -> None:
        """Remove all hooks."""
        self.end()
        for watch in self.steps:
            watch.remove()
