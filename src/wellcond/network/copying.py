"""Copies of models, which can be changed and trained while the model stays as it is."""

from __future__ import annotations

import copy
from itertools import chain

from torch import nn
from torch.nn.parameter import is_lazy

from wellcond.errors import Unsupported
from wellcond.network.calling import unwrapped


def copied(model: nn.Module) -> nn.Module:
    """A deep copy of the module inside `torch.compile` and (Distributed)DataParallel; tied parameters stay tied."""
    if not isinstance(model, nn.Module):
        raise Unsupported(f"the model is a {type(model).__name__}, not a torch.nn.Module.")
    model = unwrapped(model)
    for name, value in chain(model.named_parameters(), model.named_buffers()):
        if is_lazy(value):
            raise Unsupported(f"{name!r} has no shape yet (a lazy layer); run one forward pass first.")
    try:
        return copy.deepcopy(model)
    except (RuntimeError, TypeError) as error:
        raise Unsupported(
            f"{type(model).__name__} cannot be copied: {error}. A tensor that a forward pass stored as an attribute "
            "must be detached; a lock, a file or a generator must be taken off the model."
        ) from error
