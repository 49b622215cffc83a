"""Finding what is to blame: for data or outputs that change between passes, and for NaN."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, RandomSampler

from wellcond.errors import NotDeterministic
from wellcond.isolation import rng_kept, seed_generators
from wellcond.taps import tapped

Forward = Callable[[], Any]


def check_loader(batches: Any, data: Callable[[], Iterator[Any]], device: torch.device) -> None:
    """Raise if a second pass over the data, with other random numbers, sees other data."""
    if isinstance(batches, (list, tuple)):
        return
    if isinstance(batches, DataLoader) and isinstance(batches.sampler, RandomSampler):
        raise NotDeterministic(
            "the loader shuffles (shuffle=True), so every pass sees other batches. "
            "Write DataLoader(..., shuffle=False), or list(loader) to fix one draw."
        )

    def fingerprints(seed: int) -> list[list[float]]:
        with rng_kept(device):
            seed_generators(seed, device)
            return [[_fingerprint(t) for t in _tensors(batch)] for _, batch in data()]

    first, second = fingerprints(1), fingerprints(2)
    if first != second:
        where = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), len(first))
        raise NotDeterministic(
            f"the loader gave other data on its second pass, first in batch {where}: a random augmentation, "
            "or a sampler that shuffles. Switch it off, or write list(loader) to fix one draw."
        )


def check_model(model: nn.Module, forward: Forward, device: torch.device, keep_seed: bool) -> None:
    """Raise if the same batch gives other outputs when only the random numbers differ."""

    def outputs(seed: int) -> list[Tensor]:
        seed_generators(seed, device)
        return _tensors(forward())

    if keep_seed or _all_equal(outputs(1), outputs(2)):
        return
    passes: list[list[tuple[str, list[Tensor]]]] = []
    for seed in (1, 2):
        seen: list[tuple[str, list[Tensor]]] = []
        with tapped(_leaves(model), lambda name, _m, _x, output, seen=seen: seen.append((name, _tensors(output)))):
            outputs(seed)
        passes.append(seen)
    different = (name for (name, a), (_, b) in zip(*passes, strict=False) if not _all_equal(a, b))
    name = next(different, None)
    culprit = f"layer {name!r}, or the code just before it," if name else f"{type(model).__name__}.forward"
    raise NotDeterministic(
        f"the model gives other outputs on the same batch: {culprit} draws random numbers in evaluation mode "
        "(dropout called with training=True, or noise in forward). Let it depend on self.training."
    )


def of_non_finite(model: nn.Module, index: int, batch: Any, forward: Forward) -> str:
    """One sentence naming the weights, the data or the layer from which a non-finite loss comes."""
    for name, p in model.named_parameters():
        if not bool(torch.isfinite(p.detach()).all()):
            return f"parameter {name!r} holds NaN or inf; the run that made these weights has diverged."
    for part, value in zip(("inputs", "targets"), batch, strict=True):
        if any(not bool(torch.isfinite(t).all()) for t in _tensors(value) if t.is_floating_point()):
            return f"the {part} of batch {index} hold NaN or inf; clean the data or drop that batch."
    first: list[str] = []

    def look(name: str, _module: nn.Module, _x: Any, output: Any) -> None:
        if not first and not all(bool(torch.isfinite(t).all()) for t in _tensors(output)):
            first.append(name)

    with tapped(_leaves(model), look), torch.no_grad():
        forward()
    if first:
        return f"layer {first[0]!r} is the first to give NaN or inf, on batch {index}; its inputs are finite."
    return f"the loss of batch {index} is NaN or inf although all outputs are finite; look at the loss itself."


def _leaves(model: nn.Module) -> dict[str, nn.Module]:
    return {name: module for name, module in model.named_modules() if not any(module.children())}


def _tensors(value: Any) -> list[Tensor]:
    """The tensors in a tensor, a nest of containers, or an output object of a Hugging Face model."""
    if hasattr(value, "to_tuple"):
        value = value.to_tuple()
    return [leaf.detach() for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def _all_equal(first: list[Tensor], second: list[Tensor]) -> bool:
    """Equal up to the rounding of kernels that add in varying order."""
    return len(first) == len(second) and all(
        a.shape == b.shape and torch.allclose(a, b, rtol=1e-4, atol=1e-6, equal_nan=True)
        for a, b in zip(first, second, strict=True)
    )


def _fingerprint(tensor: Tensor) -> float:
    """A number that changes with the values and with the order of the examples."""
    if tensor.dim() == 0:
        return float(tensor)
    rows = tensor.detach().double().flatten(1).sum(1) if tensor.dim() > 1 else tensor.detach().double()
    return float(rows @ torch.arange(1, len(rows) + 1, dtype=rows.dtype, device=rows.device))
