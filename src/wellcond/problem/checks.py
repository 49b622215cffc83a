"""What a model and its batches must be before anything is measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from operator import length_hint
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from wellcond.errors import InvalidProblem
from wellcond.network.calling import dtype_name

NO_BATCHES = "there are no batches: the loader is empty (drop_last with too few examples?)."
STALE = """\
the model's trainable parameters are not those it had when the Problem was made ({what}).
Make a new one:  wc.Problem(model, loss, batches)"""


def as_batches(batches: Any) -> Iterable[Any]:
    """A re-iterable of batches; one pair of tensors becomes a list of one."""
    if isinstance(batches, tuple) and len(batches) == 2 and isinstance(batches[1], Tensor):
        return [batches]
    if isinstance(batches, Tensor) or not isinstance(batches, Iterable):
        raise InvalidProblem(
            f"batches is a {type(batches).__name__}; write batches=[(inputs, targets), …] or pass a DataLoader."
        )
    if isinstance(batches, Iterator):  # without iter(batches), which draws a seed from a loader's generator
        raise InvalidProblem("batches is an iterator and ends after one pass; write list(batches).")
    if length_hint(batches, 1) == 0:
        raise InvalidProblem(NO_BATCHES)
    return batches


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters to measure, all of one dtype that can carry second derivatives, on one device."""
    params = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not params:
        raise InvalidProblem(
            "the model has no trainable parameters; call model.requires_grad_() on what you want to measure."
        )
    for name, p in params.items():
        if isinstance(p, UninitializedParameter):
            raise InvalidProblem(f"{name!r} has no shape yet (a lazy layer); run one forward pass first.")
        if p.dtype not in (torch.float32, torch.float64):
            kind = str(p.dtype).removeprefix("torch.")
            raise InvalidProblem(
                f"{name!r} is {kind}: second derivatives lose all their digits there. "
                "Measure a copy: copy.deepcopy(model).float(), or .double() for reference results."
            )
    kinds = sorted({f"{p.dtype} on {p.device}".removeprefix("torch.") for p in params.values()})
    if len(kinds) > 1:
        raise InvalidProblem(f"parameters are {' and '.join(kinds)}; use one dtype and one device.")
    for name, module in model.named_modules():
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.max_norm is not None:
            raise InvalidProblem(
                f"{name!r} has max_norm, with which its forward pass writes to its own weight. "
                "Measure a copy with max_norm = None."
            )
    return params


def check_not_stale(
    model: nn.Module, params: Mapping[str, nn.Parameter], dtype: torch.dtype, device: torch.device
) -> None:
    """Refuse a model whose parameters have been exchanged, frozen, thawed, cast or moved; it costs no pass."""
    now = {name: p for name, p in model.named_parameters() if p.requires_grad}
    for name, p in params.items():
        if now.get(name) is not p:
            what = f"{name!r} is frozen" if not p.requires_grad else f"{name!r} is gone or another tensor"
            raise InvalidProblem(STALE.format(what=what))
        if (p.dtype, p.device) != (dtype, device):
            was, now_is = (f"{dtype_name(d)} on {place}" for d, place in ((dtype, device), (p.dtype, p.device)))
            raise InvalidProblem(STALE.format(what=f"{name!r} was {was} and is {now_is}"))
    if added := now.keys() - params.keys():
        raise InvalidProblem(STALE.format(what=f"{min(added)!r} is new, or was frozen"))
