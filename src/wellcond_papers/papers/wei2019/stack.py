"""Many small networks trained at once: a heat map is one training run, not one run per square."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from wellcond.results import Progress

Loss = Callable[[Tensor, Tensor], Tensor]
"""The mean loss of outputs (n, C) and labels (n,)."""
SORTED_OUT = 20
"""Steps from one look for networks that have diverged to the next."""


class Stack:
    """Networks of one shape, with one set of weights and one learning rate each.

    Their tensors are stacked, so that one kernel computes a layer of all networks. They share nothing else: every
    network trains as it would alone, and one that diverges does not affect the others; `sort_out` stops its training.

    Args:
        networks: The networks, which are copied.
        rates: The learning rate of each.
        loss: The training loss.
        momentum: μ of the heavy ball, v ← μv + g, θ ← θ − ηv.

    Example:
        >>> networks = [nn.Linear(3, 2) for _ in range(4)]
        >>> stack = Stack(networks, [0.1, 0.1, 0.2, 0.2], nn.functional.cross_entropy, momentum=0.9)
        >>> stack.step(torch.ones(5, 3), torch.zeros(5, dtype=torch.int64)).shape
        torch.Size([4])
    """

    def __init__(self, networks: Sequence[nn.Module], rates: Sequence[float], loss: Loss, momentum: float) -> None:
        self.shell, self.loss, self.momentum = _with_products(networks[0]), loss, momentum
        self.parameters, self.buffers = stack_module_state(list(networks))
        self.velocities = {name: torch.zeros_like(p) for name, p in self.parameters.items()}
        kind = next(iter(self.parameters.values()))
        self.rates = torch.tensor(rates, dtype=kind.dtype, device=kind.device)
        self.trained = torch.ones(len(networks), dtype=torch.bool, device=kind.device)

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        """One step of all networks on the same batch; their losses before it, NaN for those sorted out."""
        losses = self._losses(x, y, training=True)
        gradients = torch.autograd.grad(losses.sum(), list(self.parameters.values()))
        with torch.no_grad():
            for (name, parameter), gradient in zip(self.parameters.items(), gradients, strict=True):
                velocity = self.velocities[name]
                torch.add(gradient, velocity, alpha=self.momentum, out=velocity)  # one pass over memory, not two
                rates = self.rates.view(-1, *[1] * (parameter.dim() - 1))
                parameter.addcmul_(velocity, rates, value=-1)
        return self._of_all(losses.detach())

    @torch.no_grad()
    def sort_out(self, losses: Tensor) -> None:
        """Go on with the networks whose losses are numbers alone: from NaN, weights never come back."""
        are_numbers = ~losses[self.trained].isnan()
        if are_numbers.all() or not are_numbers.any():  # a stack holds at least one network
            return
        self.parameters = {name: p[are_numbers].requires_grad_() for name, p in self.parameters.items()}
        self.buffers = {name: b[are_numbers] for name, b in self.buffers.items()}
        self.velocities = {name: v[are_numbers] for name, v in self.velocities.items()}
        self.rates = self.rates[are_numbers]
        self.trained[self.trained.clone()] = are_numbers

    @torch.no_grad()
    def tested(self, x: Tensor, y: Tensor, chunk: int = 200) -> Tensor:
        """The loss of each network on test images, in evaluation mode; NaN for those sorted out."""
        parts = zip(torch.split(x, chunk), torch.split(y, chunk), strict=True)
        total = sum((len(b) * self._losses(a, b, training=False) for a, b in parts), torch.tensor(0.0))
        return self._of_all(total / len(y))

    def _of_all(self, losses: Tensor) -> Tensor:
        return torch.full(self.trained.shape, torch.nan, dtype=losses.dtype, device=losses.device).masked_scatter(
            self.trained, losses
        )

    def _losses(self, x: Tensor, y: Tensor, *, training: bool) -> Tensor:
        self.shell.train(training)

        def of_one(parameters: dict[str, Tensor], buffers: dict[str, Tensor]) -> Tensor:
            return self.loss(functional_call(self.shell, (parameters, buffers), (x,)), y)

        return vmap(of_one)(self.parameters, self.buffers)


def train_stack(
    stack: Stack, batches: Callable[[int], tuple[Tensor, Tensor]], steps: int, progress: Progress
) -> Tensor:
    """Train on the batches of steps 0, 1, …; the losses (steps, networks), NaN or ∞ where one has diverged."""
    losses = []
    for step in range(steps):
        losses.append(stack.step(*batches(step)))
        if step % SORTED_OUT == 0:
            stack.sort_out(losses[-1])
        progress("training", (step + 1) / steps)
    return torch.stack(losses)


def _with_products(network: nn.Module) -> nn.Module:
    """A copy whose convolutions are matrix products.

    `vmap` makes grouped convolutions of a stack: on an H200 a step of 210 networks takes 31 ms with them, and 20 ms
    with products.
    """
    network = deepcopy(network)
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            module.forward = partial(_product, module)  # type: ignore[method-assign]
    return network


def _product(layer: nn.Conv2d, x: Tensor) -> Tensor:
    """The convolution of x (n, C, H, W), without padding: one product of the kernels and all patches."""
    assert layer.bias is not None
    (height, width), (down, right) = layer.kernel_size, layer.stride
    patches = x.unfold(2, height, down).unfold(3, width, right)  # (n, C, rows, columns, height, width)
    places = (len(x), *patches.shape[2:4])
    columns = patches.permute(1, 4, 5, 0, 2, 3).reshape(-1, math.prod(places))
    outputs = torch.addmm(layer.bias[:, None], layer.weight.flatten(1), columns)
    return outputs.reshape(-1, *places).transpose(0, 1)
