"""What went wrong and why: data or outputs that change between passes, NaN, a loss that fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, RandomSampler

from wellcond.errors import NotDeterministic
from wellcond.network.calling import dtype_name, one_line, tensors_in
from wellcond.network.isolation import rng_kept, seed_generators
from wellcond.network.taps import tapped

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
            return [[_fingerprint(t) for t in tensors_in(batch)] for _, batch in data()]

    first, second = fingerprints(1), fingerprints(2)
    if first != second:
        where = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), len(first))
        raise NotDeterministic(
            f"the loader gave other data on its second pass, first in batch {where}: a random augmentation, "
            "or a sampler that shuffles. Switch it off, or write list(loader) to fix one draw."
        )


def check_model(model: nn.Module, forward: Forward, device: torch.device) -> Any:
    """The model's outputs; raise if the same batch gives others when only the random numbers differ."""

    def outputs(seed: int) -> Any:
        seed_generators(seed, device)
        return forward()

    first = outputs(1)
    if _all_equal(tensors_in(first), tensors_in(outputs(2))):
        return first
    passes: list[list[tuple[str, list[Tensor]]]] = []
    for seed in (1, 2):
        passes.append([])
        with tapped(_leaves(model), lambda name, _m, _x, output: passes[-1].append((name, tensors_in(output)))):
            outputs(seed)
    different = (name for (name, a), (_, b) in zip(*passes, strict=False) if not _all_equal(a, b))
    name = next(different, None)
    culprit = f"layer {name!r}, or the code just before it," if name else f"{type(model).__name__}.forward"
    raise NotDeterministic(
        f"the model gives other outputs on the same batch: {culprit} draws random numbers in evaluation mode "
        "(dropout called with training=True, or noise in forward), or uses a buffer or an attribute that it changes. "
        "Let it depend on self.training."
    )


def check_loss(loss: Callable[[], Tensor], device: torch.device) -> None:
    """Raise if the loss of the same outputs is another one when only the random numbers differ."""
    values = []
    for seed in (1, 2):
        seed_generators(seed, device)
        values.append(loss())
    if not _all_equal(values[:1], values[1:]):
        raise NotDeterministic(
            f"the loss is random: of the same outputs it was {float(values[0]):.6g}, then {float(values[1]):.6g}. "
            "Draw its random numbers once, outside it; if it is a module with dropout, call its eval()."
        )


def why_not_finite(model: nn.Module, index: int, batch: Any, forward: Forward) -> str:
    """One sentence naming the weights, the data or the layer from which a non-finite loss comes."""
    for name, p in model.named_parameters():
        if not _is_finite(p):
            return f"parameter {name!r} holds NaN or inf; the run that made these weights has diverged."
    for part, value in zip(("inputs", "targets"), batch, strict=True):
        if not _is_finite(value):
            return f"the {part} of batch {index} hold NaN or inf; clean the data or drop that batch."
    first: list[str] = []

    def look(name: str, _module: nn.Module, x: Any, output: Any) -> None:
        if not first and not _is_finite(output):
            first.append(f"layer {name!r}" if _is_finite(x) else f"the code just before layer {name!r}")

    with torch.no_grad(), tapped(_leaves(model), look):
        outputs = forward()
    if not first and not _is_finite(outputs):
        first.append(f"the code after the last layer of {type(model).__name__}")
    if first:
        return f"{first[0]} is the first to give NaN or inf, on batch {index}, although its own input is finite."
    return (
        f"the loss of batch {index} is NaN or inf although all outputs are finite; look at the loss itself "
        "(a mean over targets that are all ignored?)."
    )


def why_loss_failed(index: int, outputs: Any, targets: Any, error: Exception) -> str:
    """One sentence saying what the loss was given when it failed."""
    found = "; ".join(
        f"{dtype_name(t.dtype)} of shape {tuple(t.shape)}{_range(t)}" for t in tensors_in([outputs, targets])
    )
    return f"the loss fails on batch {index}: {one_line(error)}. Outputs and targets: {found}."


def _leaves(model: nn.Module) -> dict[str, nn.Module]:
    return {name: module for name, module in model.named_modules() if not any(module.children())}


def _all_equal(first: list[Tensor], second: list[Tensor]) -> bool:
    """Equal up to the rounding of kernels that add in varying order."""
    return len(first) == len(second) and all(
        a.shape == b.shape and torch.allclose(a, b, rtol=1e-4, atol=1e-6, equal_nan=True)
        for a, b in zip(first, second, strict=True)
    )


def _fingerprint(tensor: Tensor) -> float:
    """A number that changes with the values and with their order (a flipped image has the same sum)."""
    flat = tensor.detach().reshape(-1).double().nan_to_num()
    return float(flat @ torch.arange(1, len(flat) + 1, dtype=flat.dtype, device=flat.device))


def _is_finite(value: Any) -> bool:
    return all(bool(torch.isfinite(t).all()) for t in tensors_in(value))


def _range(tensor: Tensor) -> str:
    is_index = not tensor.is_floating_point() and tensor.numel()
    return f" from {int(tensor.min())} to {int(tensor.max())}" if is_index else ""
