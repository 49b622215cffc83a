"""BNP written out with matrices, Ĥ by probing the layer entry by entry and P = U D in full, and how tests train."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD
from zoo import CLASSES, integers, normal

import wellcond as wc

LR = 0.1
Batch = tuple[Tensor, Tensor]


def dense() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, CLASSES))


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def batches_of(shape: tuple[int, ...] = (6,), size: int = 5, steps: int = 4) -> list[Batch]:
    """Inputs whose features have means and variances of their own, as real ones do."""
    center, scale = normal(*shape, seed=100), 0.2 + normal(*shape, seed=101).abs()
    return [(center + scale * normal(size, *shape, seed=s), integers(CLASSES, size, seed=s)) for s in range(steps)]


def preconditioned(model: nn.Module, lr: float = LR, **options: Any) -> tuple[SGD, wc.BNP]:
    optimizer = SGD(model.parameters(), lr=lr)
    return optimizer, wc.BNP(model, optimizer, **options)


def backward_of_loss(model: nn.Module, x: Tensor, y: Tensor) -> None:
    loss(model, x, y).backward()


def steps(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: list[Batch],
    backward: Callable[[nn.Module, Tensor, Tensor], None] = backward_of_loss,
) -> None:
    for x, y in batches:
        optimizer.zero_grad()
        backward(model, x, y)
        optimizer.step()


def train(model: nn.Module, batches: list[Batch], **options: Any) -> wc.BNP:
    optimizer, bnp = preconditioned(model, **options)
    steps(model, optimizer, batches)
    return bnp


def assert_same(model: nn.Module, reference: nn.Module, tolerance: float = 1e-12) -> None:
    for (name, ours), theirs in zip(model.named_parameters(), reference.parameters(), strict=True):
        error = (ours - theirs).abs().max() / theirs.abs().max().clamp(min=1e-300)
        assert error <= tolerance, f"{name}: {error:.2e}"


def assert_close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-14)


def assert_follows_the_matrix_form(model: nn.Module, batches: list[Batch], **options: Any) -> wc.BNP:
    """Trained with BNP, the weights and the running statistics are those of the reference."""
    reference = ReferenceBNP(model, LR, **options)
    bnp = train(model, batches, **options)
    for x, y in batches:
        reference.step(loss, x, y)
    assert_same(model, reference.model)
    for name, layer in bnp.layers.items():
        for moment, expected in zip(
            (layer.mean, layer.variance), zip(*reference.statistics[name], strict=True), strict=True
        ):
            assert_close(moment, torch.cat(expected))
    return bnp


class ReferenceBNP:
    """Trains a copy of a model by SGD with BNP, in the open: forward, backward, P Pᵀ ∇, update."""

    def __init__(
        self,
        model: nn.Module,
        lr: float,
        rho: float = 0.99,
        eps1: float = 1e-2,
        eps2: float = 1e-4,
        means: str = "channel",
    ) -> None:
        self.model = copy.deepcopy(model)
        self.lr, self.rho, self.eps1, self.eps2, self.means = lr, rho, eps1, eps2, means
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
        matrices = joined(im2col, module, calls)
        columns = matrices if self.means == "kernel" else joined(channels, module, calls)
        is_dense = isinstance(module, nn.Linear)
        examples = sum(x.numel() // x.shape[-1] if is_dense else len(x) for x in calls)
        positions = 1 if is_dense else len(matrices[0]) / examples
        running = self.statistics.setdefault(
            name, [(torch.zeros(c.shape[1]).double(), torch.ones(c.shape[1]).double()) for c in columns]
        )
        for group in range(getattr(module, "groups", 1)):
            mean, variance = running[group]
            batch_mean = columns[group].mean(0)
            center = mean if len(columns[group]) == 1 else batch_mean
            batch_variance = ((columns[group] - center) ** 2).mean(0)
            mean = self.rho * mean + (1 - self.rho) * batch_mean
            variance = self.rho * variance + (1 - self.rho) * batch_variance
            running[group] = mean, variance
            damped = variance + self.eps1 * variance.max() + self.eps2
            n_in = matrices[group].shape[1]
            sites = n_in // len(mean)
            mean, damped = (t[:, None].expand(-1, sites).reshape(-1) for t in (mean, damped))
            self._apply(module, group, mean, damped, q2=max(n_in / examples, math.sqrt(positions)))

    def _apply(self, module: Any, group: int, mean: Tensor, damped: Tensor, q2: float) -> None:
        """[G_b; G_w] ← (1/q²) P Pᵀ [G_b; G_w]; without a bias P is D alone."""
        index = rows_of(module, group)
        weight = torch.stack([module.weight.grad[i].reshape(-1) for i in index], 1)  # (c, o): one column per output
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


def joined(rows: Callable[[Any, Tensor], list[Tensor]], module: Any, calls: list[Tensor]) -> list[Tensor]:
    """The rows of all calls, one matrix per group."""
    return [torch.cat(parts) for parts in zip(*(rows(module, x) for x in calls), strict=True)]


def rows_of(module: Any, group: int) -> list[Any]:
    """Indices into the weight, one per output channel of the group."""
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
        columns, size = [], module.weight[index].numel()
        for entry in range(size):
            with torch.no_grad():
                probe.weight.zero_()
                probe.weight[index] = torch.eye(size)[entry].double().view_as(module.weight[index])
                columns.append(probe(x)[:, output].reshape(-1))
        matrices.append(torch.stack(columns, 1))
    return matrices
