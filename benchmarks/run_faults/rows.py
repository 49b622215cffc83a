"""`RowRecorder`: the rows of a run, in the plainest way: hooks on the optimizer, the parameters and the modules."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from wellcond.results import Row

EVERY = 10
"""Steps between two samples of the layers."""


class RowRecorder:
    """Collects rows; used as the recorder is, by `step` and `validation`."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.model, self.optimizer, self.loss = model, optimizer, loss
        self.rows: list[Row] = []
        self.steps = 1  # of the step that is under way
        self.layers = [name for name, module in model.named_modules() if list(module.parameters(recurse=False))]
        self._old: dict[nn.Parameter, float] = {}
        self._new: dict[nn.Parameter, float] = {}
        self._constant: dict[str, float] = {}
        self._batches: list[int] = []
        self._last = ""
        self._repeated = 0
        self._before: dict[nn.Parameter, Tensor] = {}
        optimizer.register_step_pre_hook(self._before_step)
        optimizer.register_step_post_hook(self._after_step)
        for p in (p for group in optimizer.param_groups for p in group["params"]):
            if p.requires_grad:
                p.register_hook(self._on_gradient(p))
        for name, module in model.named_modules():
            if isinstance(module, (nn.ReLU, nn.Tanh, nn.Sigmoid, _BatchNorm)) or not list(module.children()):
                module.register_forward_hook(self._on_output(name))

    @property
    def _is_sampled(self) -> bool:
        return self.steps % EVERY == 0 or self.steps <= EVERY

    def _row(self, layer: str, quantity: str, value: float) -> None:
        self.rows.append(Row(self.steps, layer, quantity, float(value), ""))

    def _on_change(self, quantity: str, value: float) -> None:
        if self._constant.get(quantity) != value:
            self._constant[quantity] = value
            self._row("", quantity, value)

    def _on_gradient(self, p: nn.Parameter) -> Callable[[Tensor], None]:
        def hook(gradient: Tensor) -> None:
            if self._is_sampled:
                old = 0.0 if p.grad is None else float(p.grad.norm())
                self._new.setdefault(p, float(gradient.norm()))
                self._old[p] = min(old, self._old.get(p, old))

        return hook

    def _on_output(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Any) -> None:
            self._see(name, module, inputs, output)

        return hook

    def _see(self, name: str, module: nn.Module, inputs: tuple[Tensor, ...], output: Any) -> None:
        if not self._is_sampled or not torch.is_grad_enabled() or not isinstance(output, Tensor):
            return
        with torch.no_grad():
            values = output.detach()
            if isinstance(module, (nn.ReLU, nn.Tanh)):  # a function is known by the layer before it
                name = self._last
            self._last = name
            self._row(name, "signal_rms", values.pow(2).mean().sqrt())
            flat = values.transpose(0, 1).flatten(1) if values.dim() > 2 else values.T
            if isinstance(module, nn.ReLU):
                self._row(name, "dead_share", (flat <= 0).all(1).double().mean())
            if isinstance(module, nn.Tanh):
                self._row(name, "saturated_share", (values.abs() > 0.95).double().mean())
            if isinstance(module, _BatchNorm) and module.running_mean is not None:
                x = inputs[0].detach().transpose(0, 1).flatten(1)
                mean, var = x.mean(1), x.var(1)
                gap = ((mean - module.running_mean) ** 2 / (module.running_var + module.eps)).mean()
                ratio = ((var + module.eps) / (module.running_var + module.eps)).log().pow(2).mean()
                self._row(name, "statistics_gap", math.sqrt(float(gap + ratio)))

    def _before_step(self, *_: Any) -> None:
        self._before = {p: p.detach().clone() for p in self.model.parameters()} if self._is_sampled else {}
        if not self._is_sampled:
            return
        if self._new:
            old, new = (math.sqrt(sum(v * v for v in each.values())) for each in (self._old, self._new))
            self._row("", "uncleared_gradient", old / max(new, 1e-30))
        self._norms("gradient_norm", lambda p: p.grad)

    def _norms(self, quantity: str, of: Callable[[nn.Parameter], Tensor | None]) -> dict[str, float]:
        squares = {}
        for name, module in self.model.named_modules():
            tensors = [t.detach() for p in module.parameters(recurse=False) if (t := of(p)) is not None]
            if tensors:
                squares[name] = sum(float(t.double().pow(2).sum()) for t in tensors)
                self._row(name, quantity, math.sqrt(squares[name]))
        if quantity == "gradient_norm":
            self._row("", quantity, math.sqrt(sum(squares.values())))
        return {name: math.sqrt(value) for name, value in squares.items()}

    def _after_step(self, *_: Any) -> None:
        if not self._before:
            return
        weights = self._norms("weight_norm", lambda p: p)
        for name, module in self.model.named_modules():
            moved = [p for p in module.parameters(recurse=False) if p.requires_grad]
            if moved and weights[name] > 0:
                change = math.sqrt(sum(float((p.detach() - self._before[p]).double().pow(2).sum()) for p in moved))
                self._row(name, "update_ratio", change / weights[name])

    def step(self, value: Tensor | float, batch: tuple[Tensor, Tensor] | None = None) -> None:
        """Call after the optimizer's step."""
        value = float(value.detach()) if isinstance(value, Tensor) else value
        self._row("", "training_loss", value)
        self._on_change("lr", max(float(group["lr"]) for group in self.optimizer.param_groups))
        if batch is not None:
            key = hash((float(batch[0].double().sum()), float(batch[0].flatten()[0]), batch[0].shape))
            is_old = key in self._batches[-8:]
            self._repeated = self._repeated + 1 if is_old else 0
            self._batches.append(key)
            if self._is_sampled:
                self._row("", "repeated_batches", self._repeated)
        self._old, self._new = {}, {}
        self.steps += 1

    def validation(self, value: float) -> None:
        """The validation loss after the last step."""
        self.rows.append(Row(self.steps - 1, "", "validation_loss", float(value), ""))

    def limit(self, batch: tuple[Tensor, Tensor], products: int = 12) -> None:
        """The largest stable rate of gradient descent, 2(1+μ)/λ_max by power iteration."""
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        with torch.enable_grad():
            gradient = torch.autograd.grad(self.loss(self.model(batch[0]), batch[1]), parameters, create_graph=True)
            vector = [torch.randn_like(p) for p in parameters]
            size = 1.0
            for _ in range(products):
                norm = math.sqrt(sum(float(v.pow(2).sum()) for v in vector))
                vector = [v / max(norm, 1e-30) for v in vector]
                size = norm
                vector = list(torch.autograd.grad(gradient, parameters, vector, retain_graph=True))
        momentum = float(self.optimizer.param_groups[0].get("momentum", 0.0))
        self.rows.append(Row(self.steps - 1, "", "max_lr", 2 * (1 + momentum) / max(size, 1e-30), ""))
