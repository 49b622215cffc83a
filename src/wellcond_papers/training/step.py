"""How one training step is taken: eagerly, or as a CUDA graph of its forward and backward pass."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from wellcond.errors import Unsupported
from wellcond.optim.bnp import BNP
from wellcond.training.optimizers import needs_closure, take_step
from wellcond_papers.training.distributed import mean_over_processes

Batch = TypeVar("Batch")

WARM_UP = 3
"""Steps before one is captured: libraries choose their kernels, and `torch.compile` compiles."""
NOT_CAPTURED = """\
a training step could not be captured as a CUDA graph, so every step runs eagerly, in more time. The reason was:
{error}"""


class EagerStep(Generic[Batch]):
    """The plain step: loss, backward pass, optimizer.

    Args:
        optimizer: Any; one that needs a closure, such as LBFGS, gets it.
        loss_at: Called as (number of steps taken, batch); returns the mean loss of the batch with its graph.
        is_checked: Whether the loss is read at once, and a step without a finite loss is not taken.
        is_shared: Whether several processes take it together; its loss is then the mean over all of them.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        loss_at: Callable[[int, Batch], Tensor],
        *,
        is_checked: bool = True,
        is_shared: bool = False,
    ) -> None:
        self._optimizer, self._loss_at = optimizer, loss_at
        self._is_checked = is_checked or needs_closure(optimizer)
        self._measured = mean_over_processes if is_shared else Tensor.detach

    def __call__(self, step: int, batch: Batch) -> float | Tensor:
        if self._is_checked:
            return take_step(self._optimizer, lambda: self._loss_at(step, batch), self._measured)
        loss = self._loss_at(step, batch)
        value = self._measured(loss)
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return value


class CapturedStep:
    """The forward and backward pass as a CUDA graph; the optimizer's step is outside, so any optimizer works.

    The first steps are taken eagerly, on a side stream, as a capture asks for. Then a graph reads batches from buffers
    of its own, and writes gradients into tensors of its own. A batch of another size is taken eagerly; so is every
    batch of a network with hooks, since a graph would not call them.

    Args:
        model: The network.
        optimizer: Any that needs no closure.
        loss_of: The mean loss of a batch, with its graph.
        bnp: It measures and preconditions inside the graph.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        loss_of: Callable[[tuple[Any, ...]], Tensor],
        bnp: BNP | None = None,
    ) -> None:
        self._optimizer, self._model, self._loss_of, self._bnp = optimizer, model, loss_of, bnp
        self._eager = EagerStep[tuple[Any, ...]](optimizer, lambda step, batch: loss_of(batch), is_checked=False)
        self._side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._warm_up = WARM_UP
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: tuple[Any, ...] = ()
        self._loss = torch.empty(())
        self._gradients: list[tuple[Tensor, Tensor]] = []
        self._is_refused = False

    def __call__(self, step: int, batch: tuple[Any, ...]) -> float | Tensor:
        if self._warm_up:
            self._warm_up -= 1
            return self._on_side_stream(step, batch)
        if self._graph is None and not self._is_refused:
            self._capture(batch)
        if self._graph is None or [x.shape for x in batch] != [x.shape for x in self._inputs]:
            return self._eager(step, batch)
        for static, new in zip(self._inputs, batch, strict=True):
            static.copy_(new)
        self._graph.replay()
        for parameter, gradient in self._gradients:  # a probe, or an eager step, may have put others there
            parameter.grad = gradient
        with self._without_hooks():
            self._optimizer.step()
        return self._loss.clone()

    def _on_side_stream(self, step: int, batch: tuple[Any, ...]) -> float | Tensor:
        self._side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side):
            loss = self._eager(step, batch)
        torch.cuda.current_stream().wait_stream(self._side)
        return loss

    def _capture(self, batch: tuple[Any, ...]) -> None:
        if self._bnp is None and _has_hooks(self._model):
            self._is_refused = True
            return
        graph = torch.cuda.CUDAGraph()
        self._inputs = tuple(x.clone() for x in batch)
        self._optimizer.zero_grad(set_to_none=True)  # so that the graph has gradients of its own, and does not add
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        random_numbers = generator.clone_state()
        try:
            with torch.cuda.graph(graph, stream=self._side):
                loss = self._loss_of(self._inputs)
                loss.backward()  # type: ignore[no-untyped-call]
                if self._bnp is not None:
                    self._bnp.precondition()
        except (RuntimeError, Unsupported) as error:  # the network synchronizes, or depends on values
            warnings.warn(NOT_CAPTURED.format(error=error), stacklevel=2)
            generator.graphsafe_set_state(random_numbers)  # or it would wait forever for the end of the capture
            self._is_refused = True
            return
        self._graph, self._loss = graph, loss.detach()
        held = (p for group in self._optimizer.param_groups for p in group["params"])
        self._gradients = [(p, p.grad) for p in held if p.grad is not None]

    @contextlib.contextmanager
    def _without_hooks(self) -> Iterator[None]:
        """The only possible hook is that of BNP, whose work the graph has done."""
        hooks = self._optimizer._optimizer_step_pre_hooks
        own = dict(hooks)
        hooks.clear()
        try:
            yield
        finally:
            hooks.update(own)


def can_capture(optimizer: Optimizer, bnp: BNP | None) -> bool:
    """Whether an optimizer takes its step by itself: without a closure, and with no hooks but those of this BNP."""
    hooks = [*optimizer._optimizer_step_pre_hooks.values(), *optimizer._optimizer_step_post_hooks.values()]
    is_alone = all(bnp is not None and getattr(hook, "__self__", None) is bnp for hook in hooks)
    return is_alone and not needs_closure(optimizer)


def _has_hooks(model: nn.Module) -> bool:
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, kind) for module in model.modules() for kind in kinds)
