"""Whether a step raises or lowers the odds of the drawn actions that its batch says are right."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from wellcond.diagnosis.probes.subject import Subject
from wellcond.network.calling import is_equal, tensors_in
from wellcond.network.taps import bracketed
from wellcond.problem.training_step import TrainingStep

FEWEST_DRAWN = 16
"""Actions below which a correlation may be chance."""
DRAWS = (torch.multinomial, Tensor.multinomial)
COMPARISONS = (torch.eq, Tensor.eq, Tensor.__eq__)


def lowered_odds(subject: Subject) -> float | None:
    """The correlation of being right with the slope of the loss in the score of the drawn action.

    An action is right where it equals what the batch holds. A step that descends a positive slope makes an action
    less likely: about −1 for a policy whose right actions are rewarded, or whose wrong ones cost.

    Returns:
        None for other losses than a training step, if nothing is drawn and compared with the batch, or if all draws are
        right or wrong.
    """
    if not isinstance(subject.problem.loss, TrainingStep):
        return None
    batch = (subject.inputs, subject.targets)
    scores: list[Tensor] = []

    def on_exit(_module: nn.Module, output: Any) -> None:
        scores.extend(t for t in tensors_in(output) if t.requires_grad and t.dim() == 2)

    seen = _Compared(tensors_in(batch))
    with torch.enable_grad(), bracketed([subject.problem.model], lambda *_: None, on_exit), seen:
        loss = subject.problem.training_loss(0, batch)
    if not loss.requires_grad or len(seen.found) != 1:
        return None
    actions, are_right = seen.found[0]
    of_actions = [t for t in scores if len(t) == len(actions) and t.shape[1] > int(actions.max())]
    if len(actions) < FEWEST_DRAWN or not of_actions:
        return None
    slopes = [g for g in torch.autograd.grad(loss, of_actions, allow_unused=True) if g is not None]
    if len(slopes) != 1:
        return None
    both = torch.stack([slopes[0].gather(1, actions[:, None])[:, 0].double(), are_right.double()])
    correlation = float(torch.corrcoef(both)[0, 1])
    return correlation if math.isfinite(correlation) else None


class _Compared(TorchFunctionMode):
    """Follows drawn numbers through changes of their shape, to where they are compared with a tensor of the batch."""

    def __init__(self, of_batch: list[Tensor]) -> None:
        super().__init__()
        self.of_batch = of_batch
        self.drawn: list[Tensor] = []
        self.found: list[tuple[Tensor, Tensor]] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if not isinstance(result, Tensor) or result is NotImplemented:
            return result
        if func in DRAWS:
            self.drawn.append(result)
            return result
        taken = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        drawn = [t for t in taken if any(t is each for each in self.drawn)]
        if not drawn:
            return result
        if func in COMPARISONS:
            others = [t for t in taken if t is not drawn[0]]
            if any(t.shape == o.shape and is_equal(t, o) for t in self.of_batch for o in others):
                self.found.append((drawn[0].flatten(), result.flatten()))
        elif len(taken) == 1 and result.dtype == drawn[0].dtype and is_equal(result.flatten(), drawn[0].flatten()):
            self.drawn.append(result)
        return result
