"""Block outputs with memory of their own, so that their place in the graph outlasts what is written over them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from wellcond.errors import InvalidProblem
from wellcond.local.blocks import output_tensor, with_output


@dataclass(eq=False)
class OwnOutputs:
    """Puts a copy in the place of an output that is a view, or that has no graph yet.

    A linear layer gives a view of tokens, (N, T, d), and `ReLU(inplace=True)` behind it makes autograd write the view's
    history anew: no gradient arrives any more where the view was made. The history of a copy stays.
    """

    _replaced: list[tuple[str, Tensor, int, Tensor]] = field(default_factory=list)

    def of(self, name: str, output: Any) -> tuple[Any, Tensor | None]:
        """The output as the network shall go on with it, and its tensor z_b, which has a graph."""
        tensor = output_tensor(output)
        if tensor is None or (tensor.requires_grad and not tensor._is_view()):
            return output, tensor
        with torch.enable_grad():  # where nothing so far is trainable, a graph begins here
            copy = (tensor if tensor.requires_grad else tensor.detach().requires_grad_()).clone()
        self._replaced.append((name, tensor.detach(), tensor._version, copy))
        return with_output(output, tensor, copy), copy

    def check(self, loss: Tensor, loss_without: Callable[[], Tensor]) -> None:
        """Raise if someone else would have seen what was written over an output; that takes a forward pass, if any."""
        written = [name for name, t, version, copy in self._replaced if t._version != version or copy._version]
        if not written:
            return
        with torch.no_grad():
            change = abs(float(loss_without()) - float(loss.detach()))
        if change > torch.finfo(loss.dtype).eps ** 0.5 * abs(float(loss.detach())):
            raise InvalidProblem(
                f"the output of {written[0]!r} shares its memory with another tensor, which is used again after one of "
                "them was written over in place, so that they cannot be told apart. Write inplace=False or "
                "y = y + x for y += x behind it, or measure a block that contains both."
            )
