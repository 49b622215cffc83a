"""Many small networks trained at once: a heat map is one training run, not one run per square."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from wellcond.results import Progress

Loss = Callable[[Tensor, Tensor], Tensor]
"""The mean loss of outputs (n, C) and labels (n,)."""


class Stack:
    """Networks of one shape, with one set of weights and one learning rate each.

    Their tensors are stacked, so that one kernel computes a layer of all networks. They share nothing else: every
    network trains as it would alone, and one that diverges does not affect the others.

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
        self.shell, self.loss, self.momentum = networks[0], loss, momentum
        self.parameters, self.buffers = stack_module_state(list(networks))
        self.velocities = {name: torch.zeros_like(p) for name, p in self.parameters.items()}
        kind = next(iter(self.parameters.values()))
        self.rates = torch.tensor(rates, dtype=kind.dtype, device=kind.device)

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        """One step of all networks on the same batch; their losses before it."""
        losses = self._losses(x, y, training=True)
        gradients = torch.autograd.grad(losses.sum(), list(self.parameters.values()))
        with torch.no_grad():
            for (name, parameter), gradient in zip(self.parameters.items(), gradients, strict=True):
                velocity = self.velocities[name].mul_(self.momentum).add_(gradient)
                rates = self.rates.view(-1, *[1] * (parameter.dim() - 1))
                parameter.addcmul_(velocity, rates, value=-1)
        return losses.detach()

    @torch.no_grad()
    def tested(self, x: Tensor, y: Tensor, chunk: int = 1000) -> Tensor:
        """The loss of each network on test images, in evaluation mode."""
        parts = zip(torch.split(x, chunk), torch.split(y, chunk), strict=True)
        return sum((len(b) * self._losses(a, b, training=False) for a, b in parts), torch.tensor(0.0)) / len(y)

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
        progress("training", (step + 1) / steps)
    return torch.stack(losses)
