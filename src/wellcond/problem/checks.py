"""What a model and its batches must be before anything is measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from operator import length_hint
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.utils._pytree import tree_leaves

from wellcond.errors import InvalidProblem
from wellcond.network.calling import dtype_name

NO_BATCHES = "there are no batches: the loader is empty (drop_last with too few examples?)."
STALE = """\
the model's trainable parameters are not those it had when the Problem was made ({what}).
Make a new one:  wc.Problem(model, loss, batches)"""


def as_batches(batches: Any) -> Iterable[Any]:
    """A re-iterable of batches; a tuple (inputs, targets) becomes a list of one, a list is one already.

    Raises:
        InvalidProblem: There are none, they are an iterator, or a tuple of two pairs that may be one batch or two.
    """
    if isinstance(batches, tuple) and len(batches) == 2 and _is_one_batch(*batches):
        return [batches]
    if isinstance(batches, (Tensor, Mapping)) or not isinstance(batches, Iterable):
        raise InvalidProblem(
            f"batches is a {type(batches).__name__}; write batches=[(inputs, targets), …] or pass a DataLoader."
        )
    if isinstance(batches, list) and batches and all(isinstance(part, Tensor) for part in batches):
        raise InvalidProblem(
            "batches is a list of tensors, and a list holds batches. "
            "Write (inputs, targets), a tuple, for one batch, or [(inputs, targets), …]."
        )
    if isinstance(batches, Iterator):  # without iter(batches), which draws a seed from a loader's generator
        raise InvalidProblem("batches is an iterator and ends after one pass; write list(batches).")
    if length_hint(batches, 1) == 0:
        raise InvalidProblem(NO_BATCHES)
    return batches


def _is_one_batch(first: Any, second: Any) -> bool:
    """Whether (first, second) are inputs and targets, and not two batches."""
    is_pair = [isinstance(part, (tuple, list)) and len(part) == 2 for part in (first, second)]
    if not all(is_pair):
        return True  # two batches would be two pairs
    sizes = [{len(t) for t in tree_leaves(part) if isinstance(t, Tensor) and t.dim()} for part in (first, second)]
    if len(sizes[0] | sizes[1]) > 1 and len(sizes[0]) == len(sizes[1]) == 1:
        return False  # each has a size of its own, which inputs and targets of one batch have not
    raise InvalidProblem(
        "batches is a tuple of two pairs, which may be one batch or two. Write [((x1, x2), (y1, y2))] for one batch "
        "of two inputs and two targets, or [(x1, y1), (x2, y2)] for two batches."
    )


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters to measure, all of one dtype that can carry second derivatives, on one device."""
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            what = f"layer {name!r} is" if name else "the model is"
            raise InvalidProblem(
                f"{what} TorchScript, whose modes are compiled in and whose buffers cannot be lent. "
                "Measure the module that was given to torch.jit.script or torch.jit.trace; its weights can be loaded "
                "by module.load_state_dict(scripted.state_dict())."
            )
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
    for name, p in model.named_parameters():
        if not isinstance(p, UninitializedParameter) and p.is_inference():
            raise InvalidProblem(
                f"{name!r} was made in inference mode, so nothing can be differentiated through it. "
                "Measure a copy, made outside of torch.inference_mode(): copy.deepcopy(model)."
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


def shared_memory_notes(params: Mapping[str, nn.Parameter]) -> dict[str, str]:
    """A note on every parameter, by its name, that lies in the memory of another, which torch takes for two."""
    notes: dict[str, str] = {}
    first: dict[int, str] = {}
    for name, p in params.items():
        other = first.setdefault(p.data_ptr(), name)
        if other != name and p.numel():
            notes[name] = (
                f"{other!r} and {name!r} share their memory, but are two parameters: they are moved independently. "
                "To tie them, let both modules hold one nn.Parameter."
            )
    return notes
