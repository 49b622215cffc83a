"""BNP written out with matrices: Ĥ by probing the layer entry by entry, P = U D in full, (1/q²) P Pᵀ ∇ by products."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn


class ReferenceBNP:
    """Trains a copy of a model by SGD with BNP, in the open: forward, backward, P Pᵀ ∇, update."""

    def __init__(
        self,
        model: nn.Module,
        lr: float,
        rho: float = 0.99,
        eps1: float = 1e-2,
        eps2: float = 1e-4,
        exact: bool = False,
    ) -> None:
        self.model = copy.deepcopy(model)
        self.lr, self.rho, self.eps1, self.eps2, self.exact = lr, rho, eps1, eps2, exact
        self.statistics: dict[str, list[tuple[Tensor, Tensor]]] = {}

    def step(self, loss: Any, *batch: Tensor) -> None:
        """One step on a batch, seen as a whole."""
        layers = {n: m for n, m in self.model.named_modules() if isinstance(m, (nn.Linear, nn.modules.conv._ConvNd))}
        inputs: dict[str, list[Tensor]] = {name: [] for name in layers}
        handles = [
            module.register_forward_pre_hook(lambda _m, args, name=name: inputs[name].append(args[0].detach().clone()))
            for name, module in layers.items()
        ]
        self.model.zero_grad()
        loss(self.model, *batch).backward()
        for handle in handles:
            handle.remove()
        for name, module in layers.items():
            if inputs[name] and module.weight.grad is not None:
                self._precondition(name, module, inputs[name])
        with torch.no_grad():
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    parameter -= self.lr * parameter.grad

    def _precondition(self, name: str, module: Any, calls: list[Tensor]) -> None:
        groups = getattr(module, "groups", 1)
        matrices = [torch.cat(parts) for parts in zip(*(im2col(module, x) for x in calls), strict=True)]
        columns = (
            matrices
            if self.exact
            else [torch.cat(parts) for parts in zip(*(channels(module, x) for x in calls), strict=True)]
        )
        if isinstance(module, nn.Linear):
            examples = sum(x.numel() // x.shape[-1] for x in calls)
        else:
            examples = sum(len(x) for x in calls)
        positions = len(matrices[0]) / examples
        running = self.statistics.setdefault(
            name, [(torch.zeros(c.shape[1]).double(), torch.ones(c.shape[1]).double()) for c in columns]
        )
        for group in range(groups):
            mean, variance = running[group]
            batch_mean = columns[group].mean(0)
            centre = mean if len(columns[group]) == 1 else batch_mean
            batch_variance = ((columns[group] - centre) ** 2).mean(0)
            mean = self.rho * mean + (1 - self.rho) * batch_mean
            variance = self.rho * variance + (1 - self.rho) * batch_variance
            running[group] = mean, variance
            damped = variance + self.eps1 * variance.max() + self.eps2
            n_in = matrices[group].shape[1]
            if not self.exact:
                sites = n_in // len(mean)
                mean, damped = (t[:, None].expand(-1, sites).reshape(-1) for t in (mean, damped))
            q2 = (
                max(n_in / examples, 1.0)
                if isinstance(module, nn.Linear)
                else max(n_in / examples, math.sqrt(positions))
            )
            self._apply(module, group, mean, damped, q2)

    def _apply(self, module: Any, group: int, mean: Tensor, damped: Tensor, q2: float) -> None:
        """[G_b; G_w] ← (1/q²) P Pᵀ [G_b; G_w]; without a bias P is D alone."""
        index = rows_of(module, group)
        weight = torch.stack([module.weight.grad[i].reshape(-1) for i in index], 1)  # (c, o): one column an output
        n_in, outputs = weight.shape
        D = torch.diag(torch.cat([torch.ones(1), damped.sqrt()]).double()).inverse()
        U = torch.eye(n_in + 1).double()
        U[0, 1:] = -mean
        P = U @ D
        has_bias = module.bias is not None and module.bias.grad is not None
        if not has_bias:
            new = D[1:, 1:] @ D[1:, 1:].T @ weight / q2
        else:
            start = group * outputs
            bias = module.bias.grad[start : start + outputs]
            new = P @ P.T @ torch.cat([bias[None], weight]) / q2
            module.bias.grad[start : start + outputs] = new[0]
            new = new[1:]
        for column, i in enumerate(index):
            module.weight.grad[i] = new[:, column].view_as(module.weight.grad[i])


def rows_of(module: Any, group: int) -> list[Any]:
    """Indices into the weight, one an output channel of the group."""
    if isinstance(module, nn.Linear):
        return [(o,) for o in range(module.out_features)]
    inputs, outputs = module.in_channels // module.groups, module.out_channels // module.groups
    if isinstance(module, nn.modules.conv._ConvTransposeNd):
        return [(slice(group * inputs, (group + 1) * inputs), o) for o in range(outputs)]
    return [(group * outputs + o,) for o in range(outputs)]


def channels(module: Any, x: Tensor) -> list[Tensor]:
    """A group's input channels as columns, every example and position a row."""
    if isinstance(module, nn.Linear):
        return [x.reshape(-1, x.shape[-1])]
    rows = x.transpose(0, 1).flatten(1).T
    return list(rows.chunk(module.groups, 1))


def im2col(module: Any, x: Tensor) -> list[Tensor]:
    """H: what each weight entry is multiplied with at each output position, found by setting that entry alone to 1."""
    if isinstance(module, nn.Linear):
        return [x.reshape(-1, x.shape[-1])]
    probe = copy.deepcopy(module)
    probe.bias = None
    matrices = []
    for group in range(module.groups):
        (index, *_), output = rows_of(module, group), group * (module.out_channels // module.groups)
        columns = []
        for entry in range(module.weight[index].numel()):
            with torch.no_grad():
                probe.weight.zero_()
                probe.weight[index] = (
                    torch.eye(module.weight[index].numel())[entry].double().view_as(module.weight[index])
                )
                columns.append(probe(x)[:, output].reshape(-1))
        matrices.append(torch.stack(columns, 1))
    return matrices
