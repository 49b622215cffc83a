"""Preconditions of a measurement: parameters and precision that can be measured, and passes that can be repeated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.parameter import UninitializedParameter

from wellcond.errors import InvalidProblem, NotDeterministic
from wellcond.network.calling import are_close, dense_parts, dtype_name, tensors_in
from wellcond.network.isolation.precision import Precision
from wellcond.network.layers import called_modules
from wellcond.network.taps import tapped

Forward = Callable[[], Any]
Kind = tuple[torch.dtype, torch.device]
STALE = """\
the model's trainable parameters have changed since the Problem was created ({what}).
Create a new one:  wc.Problem(model, loss, batches)"""


def check_is_model(model: Any) -> None:
    """Refuse what is no module, and say how to make one of it.

    Raises:
        InvalidProblem: It is none.
    """
    if isinstance(model, nn.Module):
        return
    if isinstance(model, Tensor):
        cure = "Hold it in a module: class Model(nn.Module), with self.weight = nn.Parameter(…) in __init__."
    elif isinstance(model, (list, tuple)):
        cure = "Pass them as one module: nn.ModuleList([…]), whose parts a training step takes by model[0], model[1]."
    elif isinstance(model, Mapping):
        cure = 'Pass them as one module: nn.ModuleDict({…}), whose parts a training step takes by model["name"].'
    else:
        cure = "Pass the nn.Module that holds what is trained."
    raise InvalidProblem(f"the model is a {type(model).__name__}, and no nn.Module. {cure}")


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters to measure, by name.

    Raises:
        InvalidProblem: There are none, they are on several devices, or the model cannot be measured as it is.
    """
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            what = f"layer {name!r} is" if name else "the model is"
            raise InvalidProblem(
                f"{what} TorchScript: its modes are compiled in, and its buffers cannot be restored. "
                "Measure the module that was passed to torch.jit.script or torch.jit.trace; its weights can be loaded "
                "by module.load_state_dict(scripted.state_dict())."
            )
    params = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not params:
        raise InvalidProblem(
            "the model has no trainable parameters; call model.requires_grad_(), or requires_grad_() on single layers."
        )
    for name, p in params.items():
        if isinstance(p, UninitializedParameter):
            raise InvalidProblem(f"{name!r} has no shape yet (a lazy layer); run one forward pass first.")
    for name, p in model.named_parameters():
        if not isinstance(p, UninitializedParameter) and p.is_inference():
            raise InvalidProblem(
                f"{name!r} was created in inference mode, so autograd cannot differentiate through it. "
                "Measure a copy that is created outside of torch.inference_mode(): copy.deepcopy(model)."
            )
        if p.is_meta:
            raise InvalidProblem(
                f"{name!r} is on the meta device and holds no numbers. "
                "Load or draw the weights first: model.to_empty(device=…), then load_state_dict(…)."
            )
    for name, p in params.items():
        if p.is_complex():
            raise InvalidProblem(
                f"{name!r} is complex, and only real parameters can be measured. Hold its real and imaginary part in "
                "one: nn.Parameter(torch.view_as_real(w)), and torch.view_as_complex(w) in forward."
            )
    devices = sorted({str(p.device) for p in params.values()})
    if len(devices) > 1:
        raise InvalidProblem(f"parameters are on {' and '.join(devices)}; use one device.")
    for name, module in model.named_modules():
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.max_norm is not None:
            raise InvalidProblem(
                f"{name!r} has max_norm: its forward pass writes to its own weight. "
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


def checked_precision(autocast: Any, scaler: Any) -> Precision:
    """The precision that a user asks for.

    Raises:
        InvalidProblem: Autocast is no dtype of half precision, or the scaler is no `GradScaler`.
    """
    if autocast not in (None, torch.bfloat16, torch.float16):
        raise InvalidProblem(f"autocast is {autocast!r}; write torch.bfloat16, torch.float16 or None.")
    if scaler is not None and not isinstance(scaler, GradScaler):
        raise InvalidProblem(
            f"scaler is a {type(scaler).__name__}; pass the torch.amp.GradScaler that the script trains with."
        )
    state = None if scaler is None else scaler.state_dict()
    return Precision(autocast, state or None)  # the state of a scaler that is off is empty


def check_not_stale(model: nn.Module, params: Mapping[str, nn.Parameter], kinds: Mapping[str, Kind]) -> None:
    """Refuse a model whose parameters have been replaced, frozen, unfrozen, cast or moved; this costs no pass."""
    now = {name: p for name, p in model.named_parameters() if p.requires_grad}
    for name, p in params.items():
        if now.get(name) is not p:
            what = f"{name!r} is frozen" if not p.requires_grad else f"{name!r} is missing or another tensor"
            raise InvalidProblem(STALE.format(what=what))
        if kind_of(p) != kinds[name]:
            was, now_is = (f"{dtype_name(dtype)} on {place}" for dtype, place in (kinds[name], kind_of(p)))
            raise InvalidProblem(STALE.format(what=f"{name!r} was {was} and is {now_is}"))
    if added := now.keys() - params.keys():
        raise InvalidProblem(STALE.format(what=f"{min(added)!r} is new or was frozen before"))


def not_finite_parameter(model: nn.Module) -> str | None:
    """The name of the first parameter that holds NaN or infinity; None if all are finite."""
    parts = ((name, part) for name, p in model.named_parameters() for part in dense_parts(p.detach()))
    return next((name for name, part in parts if not bool(part.isfinite().all())), None)


def kind_of(tensor: Tensor) -> Kind:
    """The dtype and device of a tensor."""
    return tensor.dtype, tensor.device


def shared_memory_notes(params: Mapping[str, nn.Parameter]) -> dict[str, str]:
    """By parameter name, a note on each that shares the memory of another; torch treats the two as independent."""
    notes: dict[str, str] = {}
    first: dict[int, str] = {}
    for name, p in params.items():
        other = first.setdefault(p.data_ptr(), name)
        if other != name and p.numel():
            notes[name] = (
                f"{other!r} and {name!r} share their memory, but are two parameters: each is moved on its own. "
                "To tie them, assign the same nn.Parameter to both modules."
            )
    return notes


# the same outputs and the same loss on every pass


def check_model(model: nn.Module, forward: Forward, *, in_step: bool = False) -> Any:
    """The model's outputs on a batch.

    Args:
        model: The model.
        forward: Passes a batch.
        in_step: Whether it is passed by a training step, which may change more than the model.

    Raises:
        NotDeterministic: A second pass of the same batch, with the same random numbers, returns other outputs.
    """
    first = forward()
    if are_close(tensors_in(first), tensors_in(forward())):
        return first
    passes: list[list[tuple[str, list[Tensor]]]] = []
    for _ in range(2):
        passes.append([])
        with tapped(called_modules(model), lambda name, _m, _x, output: passes[-1].append((name, tensors_in(output)))):
            forward()
    different = (name for (name, a), (_, b) in zip(*passes, strict=False) if not are_close(a, b))
    name = next(different, None)
    if in_step and not name:
        raise NotDeterministic(
            "the training step gives other losses for the same batch and weights: it trains another network too, "
            "changes something else outside of the model, or draws from its own random number generator. Its losses "
            "cannot be compared with each other. Do what changes something outside of the step."
        )
    culprit = f"layer {name!r}, or the code just before it," if name else f"{type(model).__name__}.forward"
    raise NotDeterministic(
        f"the model returns other outputs for the same batch: {culprit} uses a buffer or an attribute that it changes, "
        "or draws from its own random number generator. Let it depend on self.training, or use torch's generator."
    )


def check_loss(loss: Callable[[], Tensor]) -> None:
    """Check that the loss of the same outputs, with the same random numbers, is the same.

    Raises:
        NotDeterministic: It is not.
    """
    values = [loss(), loss()]
    if not are_close(values[:1], values[1:]):
        raise NotDeterministic(
            f"the loss is random: for the same outputs it was {float(values[0]):.6g}, then {float(values[1]):.6g}. "
            "Draw its random numbers from torch's generator, or once, outside it."
        )
