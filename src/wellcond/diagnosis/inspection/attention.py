"""Softmaxes inside a network, also those written as e/Σe: how sharp they are, and which dimension they go over."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from wellcond.diagnosis.inspection.hidden_values import shows_only_constants
from wellcond.diagnosis.inspection.weighted_sums import WeightedSums, compares_data

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
        is_summed_elsewhere: Whether a product sums over another dimension of its output than it normalizes over.
        compares: Whether its logits are products of two signals, as of queries and keys.
        is_of_places: Whether what is summed elsewhere are constant coordinates, as for the mean place under a map.
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
    compares: bool = True
    is_of_places: bool = False


class OfOne(NamedTuple):
    """A softmax over a dimension of size one, whose output is 1 whatever its logits are.

    Attributes:
        name: As of `Attention`.
        dim: The dimension.
        shape: Shape of its output.
        compares: As of `Attention`.
        is_summed_elsewhere: As of `Attention`.
    """

    name: str
    dim: int
    shape: tuple[int, ...]
    compares: bool
    is_summed_elsewhere: bool = False


class SeenAttention:
    """Records the logits of softmaxes and attention kernels.

    Attributes:
        all_masked: Share of the rows in which every entry is masked, by the name of the attention; only where it is
            positive.
        hides_all: Names of attention that shows only values which are all the same, and hides what differs.
        is_open: Whether calls are recorded: only those of the first pass are.
    """

    FUNCTIONS: ClassVar[dict[Any, str]] = {
        F.softmax: "softmax", torch.softmax: "softmax", Tensor.softmax: "softmax",
        F.log_softmax: "softmax", torch.log_softmax: "softmax", Tensor.log_softmax: "softmax",
        F.scaled_dot_product_attention: "sdpa",
        F.multi_head_attention_forward: "mha",
        torch.matmul: "matmul", Tensor.matmul: "matmul", Tensor.__matmul__: "matmul",
        torch.bmm: "matmul", Tensor.bmm: "matmul",
        torch.einsum: "einsum",
        torch.exp: "exp", Tensor.exp: "exp",
        torch.div: "div", Tensor.div: "div", Tensor.__truediv__: "div",
        torch.mul: "mul", Tensor.mul: "mul", Tensor.__mul__: "mul", Tensor.__rmul__: "mul",
        torch.sum: "sum", Tensor.sum: "sum",
    }  # fmt: skip

    def __init__(self) -> None:
        self.is_open = True
        self.all_masked: dict[str, float] = {}
        self.hides_all: list[str] = []
        self._of_one: list[OfOne] = []
        self._calls: dict[tuple[str, int], Attention] = {}
        self._sums: WeightedSums[tuple[str, int]] = WeightedSums()
        self._sums_of_one: WeightedSums[int] = WeightedSums()
        self._exponentials: dict[int, Tensor] = {}

    def begin(self) -> None:
        """Begin a pass: only the first one is recorded."""
        self.is_open = not self._calls and not self._of_one
        self._sums.clear()
        self._sums_of_one.clear()
        self._exponentials.clear()

    def calls(self) -> list[Attention]:
        """All calls, in the order of the forward pass."""
        elsewhere, of_places = self._sums.elsewhere, self._sums.of_places
        return [
            replace(seen, is_summed_elsewhere=key in elsewhere, is_of_places=key in of_places)
            for key, seen in self._calls.items()
        ]

    def of_one(self) -> list[OfOne]:
        """All softmaxes over a dimension of size one."""
        elsewhere = self._sums_of_one.elsewhere
        return [seen._replace(is_summed_elsewhere=nth in elsewhere) for nth, seen in enumerate(self._of_one)]

    def add(self, name: str, kind: str, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Record one call; attention of an unknown form is ignored."""
        if not self.is_open:
            return
        if kind == "matmul":
            for sums in (self._sums, self._sums_of_one):
                sums.multiplied(args, output)
        elif kind == "einsum":
            for sums in (self._sums, self._sums_of_one):
                sums.contracted(args)
        elif kind == "mul":
            self._sums.weighed(args, output)
        elif kind == "sum":
            self._sums.summed(args[0], args[1] if len(args) > 1 else kwargs.get("dim"))
        elif kind == "exp":
            self._exponentials[output.data_ptr()] = args[0]
        elif kind == "div":
            self._sums.divided(args[0])
            self._divided(name, args, output)
        elif kind == "softmax":
            chosen = kwargs.get("dim", args[1] if len(args) > 1 else None)
            by_default = 0 if output.dim() in (0, 1, 3) else 1  # what torch takes, with a warning
            self._softmax(name, args[0] if args else kwargs["input"], by_default if chosen is None else chosen, output)
        else:
            if name not in self.hides_all and shows_only_constants(kind, args, kwargs):
                self.hides_all.append(name)
            logits = _kernel_logits(args, kwargs) if kind == "sdpa" else _module_logits(args, kwargs)
            if logits is not None and logits.shape[-1] > 1:
                self._note(name, logits, logits.dim() - 1, tuple(logits.shape), compares=True)

    def _divided(self, name: str, args: tuple[Any, ...], output: Tensor) -> None:
        """e/Σe with e = exp(logits) is a softmax over the dimension that the sum goes over."""
        if not all(isinstance(t, Tensor) and t.dim() == output.dim() for t in args[:2]):
            return
        logits = self._exponentials.get(args[0].data_ptr())
        sizes = zip(args[0].shape, args[1].shape, strict=True)
        dims = [dim for dim, (size, of_sum) in enumerate(sizes) if of_sum == 1 < size]
        if logits is None or logits.shape != output.shape or len(dims) > 1:
            return
        singles = [dim for dim, size in enumerate(output.shape) if size == 1]
        if dims and torch.allclose(output.sum(dims[0]), torch.ones(()).to(output), atol=1e-3):
            self._softmax(name, logits, dims[0], output)
        elif not dims and singles and bool((output == 1).all()):
            self._softmax(name, logits, singles[-1], output)

    def _softmax(self, name: str, logits: Tensor, dim: int, output: Tensor) -> None:
        if not output.dim():
            return
        dim %= output.dim()
        shape, compares = tuple(output.shape), compares_data(logits)
        if output.shape[dim] == 1:
            self._sums_of_one.add(len(self._of_one), output, dim)
            self._of_one.append(OfOne(name, dim, shape, compares))
            return
        key = self._note(name, logits.detach().float(), dim, shape, compares=compares)
        self._sums.add(key, output, dim)

    def _note(self, name: str, logits: Tensor, dim: int, shape: tuple[int, ...], *, compares: bool) -> tuple[str, int]:
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
            float((largest > SHARP).float().mean()), float(spread.mean().sqrt()), compares=compares,
        )  # fmt: skip
        return key


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
