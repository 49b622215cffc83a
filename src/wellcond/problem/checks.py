"""What a model must be before anything is measured, and what went wrong and why: changing outputs, NaN, a bad loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from wellcond.errors import InvalidProblem, NotDeterministic
from wellcond.network.calling import dtype_name, one_line, tensors_in
from wellcond.network.taps import tapped

Forward = Callable[[], Any]
Kind = tuple[torch.dtype, torch.device]
STALE = """\
the model's trainable parameters are not those it had when the Problem was made ({what}).
Make a new one:  wc.Problem(model, loss, batches)"""


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters to measure, all on one device."""
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
    for name, p in model.named_parameters():
        if not isinstance(p, UninitializedParameter) and p.is_inference():
            raise InvalidProblem(
                f"{name!r} was made in inference mode, so nothing can be differentiated through it. "
                "Measure a copy, made outside of torch.inference_mode(): copy.deepcopy(model)."
            )
    devices = sorted({str(p.device) for p in params.values()})
    if len(devices) > 1:
        raise InvalidProblem(f"parameters are on {' and '.join(devices)}; use one device.")
    for name, module in model.named_modules():
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.max_norm is not None:
            raise InvalidProblem(
                f"{name!r} has max_norm, with which its forward pass writes to its own weight. "
                "Measure a copy with max_norm = None."
            )
    return params


def check_precision(params: Mapping[str, nn.Parameter]) -> None:
    """Refuse parameters that cannot carry second derivatives and spectra, or that have several dtypes."""
    for name, p in params.items():
        if p.dtype not in (torch.float32, torch.float64):
            kind = str(p.dtype).removeprefix("torch.")
            raise InvalidProblem(
                f"{name!r} is {kind}: second derivatives lose all their digits there. "
                "Measure a copy: copy.deepcopy(model).float(), or .double() for reference results."
            )
    kinds = sorted({dtype_name(p.dtype) for p in params.values()})
    if len(kinds) > 1:
        raise InvalidProblem(f"parameters are {' and '.join(kinds)}; use one dtype.")


def check_not_stale(model: nn.Module, params: Mapping[str, nn.Parameter], kinds: Mapping[str, Kind]) -> None:
    """Refuse a model whose parameters have been exchanged, frozen, thawed, cast or moved; it costs no pass."""
    now = {name: p for name, p in model.named_parameters() if p.requires_grad}
    for name, p in params.items():
        if now.get(name) is not p:
            what = f"{name!r} is frozen" if not p.requires_grad else f"{name!r} is gone or another tensor"
            raise InvalidProblem(STALE.format(what=what))
        if kind_of(p) != kinds[name]:
            was, now_is = (f"{dtype_name(dtype)} on {place}" for dtype, place in (kinds[name], kind_of(p)))
            raise InvalidProblem(STALE.format(what=f"{name!r} was {was} and is {now_is}"))
    if added := now.keys() - params.keys():
        raise InvalidProblem(STALE.format(what=f"{min(added)!r} is new, or was frozen"))


def kind_of(tensor: Tensor) -> Kind:
    """Its dtype and device."""
    return tensor.dtype, tensor.device


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


# what went wrong


def check_model(model: nn.Module, forward: Forward) -> Any:
    """The model's outputs; raise if the same batch, with the same random numbers, gives others."""
    first = forward()
    if _all_equal(tensors_in(first), tensors_in(forward())):
        return first
    passes: list[list[tuple[str, list[Tensor]]]] = []
    for _ in range(2):
        passes.append([])
        with tapped(_leaves(model), lambda name, _m, _x, output: passes[-1].append((name, tensors_in(output)))):
            forward()
    different = (name for (name, a), (_, b) in zip(*passes, strict=False) if not _all_equal(a, b))
    name = next(different, None)
    culprit = f"layer {name!r}, or the code just before it," if name else f"{type(model).__name__}.forward"
    raise NotDeterministic(
        f"the model gives other outputs on the same batch: {culprit} uses a buffer or an attribute that it changes, "
        "or draws from a random number generator of its own. Let it depend on self.training, or draw from torch's."
    )


def check_loss(loss: Callable[[], Tensor]) -> None:
    """Raise if the loss of the same outputs, with the same random numbers, is another one."""
    values = [loss(), loss()]
    if not _all_equal(values[:1], values[1:]):
        raise NotDeterministic(
            f"the loss is random: of the same outputs it was {float(values[0]):.6g}, then {float(values[1]):.6g}. "
            "Draw its random numbers from torch's generator, or once, outside it."
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


def _is_finite(value: Any) -> bool:
    return all(bool(torch.isfinite(t).all()) for t in tensors_in(value))


def _range(tensor: Tensor) -> str:
    is_index = not tensor.is_floating_point() and tensor.numel()
    return f" from {int(tensor.min())} to {int(tensor.max())}" if is_index else ""
