"""What trainers do, written as a plain loop: the gradient norms and losses that a recorder has to see."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import wellcond as wc


class Clock:
    """A clock on which recording takes no time: everything is recorded as often as it may be."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def grad_scaler(autocast: torch.dtype | None) -> torch.amp.GradScaler:
    """That of float16, with a scale at which these gradients do not overflow; for other types it does nothing."""
    return torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=autocast == torch.float16)


def plain_loop(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_of: Callable[[Any], Tensor],
    batches: Sequence[Any],
    accumulate: int,
    autocast: torch.dtype | None = None,
    clip: float | None = None,
) -> tuple[list[float], dict[str, list[float]]]:
    """Losses of every step, and the norms of the gradients of every layer with parameters of its own, and of all."""
    losses, norms = [], defaultdict(list)
    scaler = grad_scaler(autocast)
    for start in range(0, len(batches), accumulate):
        optimizer.zero_grad()
        parts = []
        for batch in batches[start : start + accumulate]:
            with torch.autocast("cpu", autocast, enabled=autocast is not None):
                loss = loss_of(batch)
            scaler.scale(loss / accumulate).backward()
            parts.append(loss.item())
        scaler.unscale_(optimizer)
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        grads = {name: p.grad.double() for name, p in model.named_parameters() if p.grad is not None}
        for layer in dict.fromkeys(name.rpartition(".")[0] for name in grads):
            own = [grad for name, grad in grads.items() if name.rpartition(".")[0] == layer]
            norms[layer].append(torch.stack([grad.square().sum() for grad in own]).sum().sqrt().item())
        norms[""].append(torch.stack([grad.square().sum() for grad in grads.values()]).sum().sqrt().item())
        scaler.step(optimizer)
        scaler.update()
        losses.append(sum(parts) / len(parts))
    return losses, norms


def assert_recorded(rec: wc.Recorder, losses: Sequence[float], norms: dict[str, list[float]]) -> None:
    """All losses, and the gradients of most steps, are those of the plain loop to 1e-6; nothing went wrong."""
    assert rec.problems == []
    series = rec.history.series("training_loss")
    assert series.steps.tolist() == [*range(1, len(losses) + 1)]
    assert series.values.tolist() == [pytest.approx(value, rel=1e-6) for value in losses]
    assert set(norms) - {""} == set(rec.history.layers("gradient_norm")) - {""}
    for layer, values in norms.items():
        recorded = rec.history.series("gradient_norm", layer)
        assert len(recorded) >= len(losses) / 2, layer
        for step, value in zip(recorded.steps.tolist(), recorded.values.tolist(), strict=True):
            assert value == pytest.approx(values[step - 1], rel=1e-6), (layer, step)


def assert_same(one: Any, other: Any) -> None:
    """Two trainings have left the same, bit for bit."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key, value in one.items():
            assert_same(value, other[key])
    elif isinstance(one, Tensor):
        assert torch.equal(one, other)
    else:
        assert one == other
