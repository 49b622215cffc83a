"""Softmaxes inside a network: how sharp they are, and over which dimension they normalize."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

EXAMPLES = 8
"""Examples whose attention is measured."""
MOST_ROWS = 4096
"""Rows of probabilities that are measured per call."""
MASKED = -1e4
"""Logits below this have been masked: half precision's −65504, −1e9 and −inf all mean it."""
SHARP = 0.99
"""Largest probability of a row from which it is saturated."""


@dataclass(frozen=True)
class Attention:
    """One softmax, or attention kernel, inside a network.

    Attributes:
        name: Module whose `forward` calls it; the last weighted layer before it if that is the whole model.
        choices: Number of entries that it chooses among.
        dim: Dimension it normalizes over, counted from the front.
        ndim: Dimensions of its output.
        shape: Shape of its output.
        entropy: Mean over the rows of entropy / log(entries that are not masked): 1 is even, 0 is one entry.
        largest: Mean over the rows of the largest probability.
        saturated: Share of rows whose largest probability exceeds 0.99.
        logit_std: RMS over the rows of the standard deviation of the logits that are not masked.
        is_summed_elsewhere: Whether its output is multiplied along another dimension than it normalizes over.
    """

    name: str
    choices: int
    dim: int
    ndim: int
    shape: tuple[int, ...]
    entropy: float
    largest: float
    saturated: float
    logit_std: float
    is_summed_elsewhere: bool = False


class SeenAttention:
    """Records the logits of softmaxes and attention kernels.

    Attributes:
        all_masked: Share of the rows in which every entry is masked, by the name of the attention; only where it is
            positive.
    """

    FUNCTIONS: ClassVar[dict[Any, str]] = {
        F.softmax: "softmax", torch.softmax: "softmax", Tensor.softmax: "softmax",
        F.log_softmax: "softmax", torch.log_softmax: "softmax", Tensor.log_softmax: "softmax",
        F.scaled_dot_product_attention: "sdpa",
        F.multi_head_attention_forward: "mha",
        torch.matmul: "matmul", Tensor.matmul: "matmul", Tensor.__matmul__: "matmul",
        torch.bmm: "matmul", Tensor.bmm: "matmul",
    }  # fmt: skip

    def __init__(self) -> None:
        self.is_open = True
        self.all_masked: dict[str, float] = {}
        self._calls: dict[tuple[str, int], Attention] = {}
        self._outputs: dict[int, tuple[tuple[str, int], int]] = {}
        self._elsewhere: set[tuple[str, int]] = set()

    def begin(self) -> None:
        """Begin a pass: only the first one is recorded, and its outputs' memory may hold something else later."""
        self.is_open = not self._calls
        self._outputs.clear()

    def calls(self) -> list[Attention]:
        """All calls, in the order of the forward pass."""
        return [replace(seen, is_summed_elsewhere=key in self._elsewhere) for key, seen in self._calls.items()]

    def add(self, name: str, kind: str, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Record one call; attention of an unknown form is ignored."""
        if not self.is_open:
            return
        if kind == "matmul":
            self._multiplied(args)
        elif kind == "softmax":
            self._softmax(name, args, kwargs, output)
        else:
            logits = _kernel_logits(args, kwargs) if kind == "sdpa" else _module_logits(args, kwargs)
            if logits is not None and logits.shape[-1] > 1:
                self._note(name, logits, logits.dim() - 1, tuple(logits.shape))

    def _softmax(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
        if not isinstance(dim, int) or not output.dim():
            return
        dim %= output.dim()
        logits = args[0] if args else kwargs["input"]
        key = self._note(name, logits.detach().float(), dim, tuple(output.shape))
        self._outputs[output.data_ptr()] = key, dim

    def _note(self, name: str, logits: Tensor, dim: int, shape: tuple[int, ...]) -> tuple[str, int]:
        nth = sum(known == name for known, _ in self._calls)
        key = (name, nth)
        some = logits[:EXAMPLES] if dim else logits
        rows = some.movedim(dim, -1).reshape(-1, some.shape[dim])[:MOST_ROWS]
        is_open = rows > MASKED
        if closed := float((~is_open.any(1)).double().mean()):
            self.all_masked[name] = max(closed, self.all_masked.get(name, 0.0))
        several = is_open.sum(1) > 1
        if not bool(several.any()) or not bool(rows[is_open].isfinite().all()):
            return key
        rows, is_open = rows[several], is_open[several]
        count = is_open.sum(1)
        p = rows.masked_fill(~is_open, -math.inf).softmax(1)
        entropy = torch.special.entr(p).sum(1) / count.float().log()
        mean = rows.masked_fill(~is_open, 0).sum(1) / count
        spread = (rows - mean[:, None]).masked_fill(~is_open, 0).square().sum(1) / count
        largest = p.amax(1)
        self._calls[key] = Attention(
            name, shape[dim], dim, len(shape), shape, float(entropy.mean()), float(largest.mean()),
            float((largest > SHARP).float().mean()), float(spread.mean().sqrt()),
        )  # fmt: skip
        return key

    def _multiplied(self, args: tuple[Any, ...]) -> None:
        """A product a @ b sums over the last dimension of a, and over the last but one of b."""
        for place, tensor in enumerate(args[:2]):
            if not isinstance(tensor, Tensor) or tensor.layout is not torch.strided:
                continue  # a sparse one is a graph's adjacency, and has no memory of its own
            if (known := self._outputs.get(tensor.data_ptr())) is not None:
                key, dim = known
                seen = self._calls.get(key)
                if seen is not None and seen.shape == tuple(tensor.shape):
                    summed = tensor.dim() - 1 if place == 0 else max(tensor.dim() - 2, 0)
                    if dim != summed:
                        self._elsewhere.add(key)


def _kernel_logits(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """q kᵀ/√d of some examples, as `scaled_dot_product_attention` computes it."""
    named = dict(zip(("query", "key", "value", "attn_mask", "dropout_p", "is_causal"), args, strict=False)) | kwargs
    q, k = (named[name].detach()[:EXAMPLES].float() for name in ("query", "key"))
    if q.shape[:-2] != k.shape[:-2]:
        return None
    scale = named.get("scale") or 1 / math.sqrt(q.shape[-1])
    logits: Tensor = q @ k.transpose(-1, -2) * scale
    mask = named.get("attn_mask")
    if mask is not None:
        mask = mask[:EXAMPLES] if mask.dim() == logits.dim() and len(mask) > 1 else mask
        logits = logits.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else logits + mask
    if named.get("is_causal"):
        future = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).triu(1)
        logits = logits.masked_fill(future, -math.inf)
    return logits


def _module_logits(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """Log-probabilities of some examples, which `nn.MultiheadAttention` can return: logits up to a constant."""
    if len(args) < 3 or any(t.dim() != 3 for t in args[:3]):
        return None
    mask, padding = kwargs.get("attn_mask"), kwargs.get("key_padding_mask")
    if mask is not None and mask.dim() == 3:
        return None
    few = [t.detach()[:, :EXAMPLES] for t in args[:3]]
    padding = None if padding is None else padding[:EXAMPLES]
    asked = {"need_weights": True, "average_attn_weights": False, "training": False, "key_padding_mask": padding}
    _, weights = F.multi_head_attention_forward(*few, *args[3:], **(kwargs | asked))
    if weights is None:
        return None
    logits = weights.float().clamp_min(torch.finfo(torch.float32).tiny).log()  # an underflow is not a mask
    for hidden in (mask, None if padding is None else padding[:, None, None]):
        if hidden is not None:
            logits = logits.masked_fill(hidden if hidden.dtype == torch.bool else hidden < MASKED, -math.inf)
    return logits
