"""Surgery: a new model in which some modules are replaced by others. The old model does not change."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from wellcond.errors import Unsupported
from wellcond.network.isolation.arithmetic import own_arithmetic
from wellcond.network.isolation.copies import copied

NORMS: tuple[type[nn.Module], ...] = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
"""Batch normalization of every kind, also wellcond's; instance, group, layer and root-mean-square normalization."""

Factory = Callable[[Any], nn.Module | None]


@torch.inference_mode(False)  # tensors created in inference mode cannot be trained
@own_arithmetic()
def replace_norm(
    model: nn.Module, factory: Factory, *, of: type[nn.Module] | tuple[type[nn.Module], ...] = NORMS
) -> nn.Module:
    """Return a copy of the model in which every normalization layer is replaced by a factory's result.

    Parameters and buffers that the new module has under the same name and in the same shape are carried over, and ε
    if the factory is a bare class. Device, dtype and mode follow the old module; hooks on it go with it. A module
    used in two places becomes one new module used in two places. A compiled or DDP-wrapped model comes back as the
    plain module: wrap it again.

    Args:
        model: The model, which is not changed.
        factory: A class or function that takes the number of channels, or the old module if it cannot take a number,
            and returns the new module, or None to keep the old one. If its parameter is called `old`, it always gets
            the old module; use that name if the factory accepts any argument, as one that wraps it.
        of: Classes of the layers to replace; all normalization layers by default. Write `of=nn.BatchNorm2d` if the
            factory is for images and the model also has an `nn.BatchNorm1d` or `nn.LayerNorm`.

    Returns:
        The new model.

    Raises:
        Unsupported: There is no such layer, the factory fails, or the model cannot be copied.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
        >>> replace_norm(model, lambda channels: nn.GroupNorm(4, channels))[1].num_groups
        4
        >>> replace_norm(model, lambda old: nn.GroupNorm(old.num_features // 4, old.num_features))[1].num_groups
        2
    """
    replaced = copied(model)
    reference = next((t for t in chain(replaced.parameters(), replaced.buffers()) if t.is_floating_point()), None)
    norms = {module: name for name, module in replaced.named_modules() if isinstance(module, of)}
    if not norms:
        kinds = ", ".join(kind.__name__.removeprefix("_") for kind in (of if isinstance(of, tuple) else (of,)))
        raise Unsupported(
            f"{type(replaced).__name__} has no layer to replace (looked for {kinds}). Name others by their class, of=…"
        )
    new: dict[nn.Module, nn.Module] = {}
    for old, name in norms.items():
        module = _replacement(factory, name, old)
        if module is not None and module is not old:
            if isinstance(factory, type) and hasattr(old, "eps") and hasattr(module, "eps"):
                module.eps = old.eps  # a bare class got only the number of channels
            _carry_over(old, module, reference)
            new[old] = module
    return exchanged(replaced, new)


def exchanged(model: nn.Module, new: Mapping[nn.Module, nn.Module]) -> nn.Module:
    """The same model with modules replaced wherever they occur; the new module if the model itself is replaced."""
    if model in new:
        return new[model]
    encoders = (nn.TransformerEncoder, nn.TransformerEncoderLayer)
    for module in model.modules():
        if isinstance(module, encoders) and any(part in new for part in module.modules()):
            # their fast paths read the weights of the old modules, and would never call a new one
            module.use_nested_tensor, module.activation_relu_or_gelu = False, 0
    for parent in list(model.modules()):
        changes = {name: new[child] for name, child in parent._modules.items() if child is not None and child in new}
        parent._modules.update(changes)
    return model


def _replacement(factory: Factory, name: str, old: nn.Module) -> nn.Module | None:
    offers = [(f"{channels} channels", channels) for channels in _channels(old) if not _wants_the_module(factory)]
    failures = []
    for argument, offer in [*offers, ("the old module", old)]:
        try:
            module = factory(offer)
        except Exception as error:  # a factory for the other kind of argument may raise anything
            failures.append((argument, error))
            continue
        if module is None or isinstance(module, nn.Module):
            return module
        failures.append((argument, TypeError(f"it returned {module!r}, not a module or None")))
    reasons = "; ".join(f"called with {argument}: {error}" for argument, error in failures)
    raise Unsupported(f"the factory fails for {name!r} ({type(old).__name__}). {reasons}.") from failures[0][1]


def _wants_the_module(factory: Factory) -> bool:
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):  # some builtins have no signature
        return False
    return next(iter(parameters), None) == "old"


def _channels(norm: nn.Module) -> list[int]:
    """The number of channels of a norm, if it has one: a layer norm over (C, H, W) has three."""
    shape = getattr(norm, "normalized_shape", ())
    counts = [getattr(norm, key, None) for key in ("num_features", "num_channels")]
    return [count for count in (*counts, *(shape if len(shape) == 1 else ())) if isinstance(count, int)]


def _carry_over(old: nn.Module, new: nn.Module, reference: Tensor | None) -> None:
    """Set mode, device and dtype of the new module as in the old one, and carry over the tensors that fit."""
    own = next((t for t in chain(old.parameters(), old.buffers()) if t.is_floating_point()), reference)
    if own is not None:
        new.to(own.device, own.dtype)
    new.train(old.training)
    stores: list[tuple[dict[str, Any], dict[str, Any]]]
    stores = [(old._parameters, new._parameters), (old._buffers, new._buffers)]
    for source, target in stores:
        for key, value in source.items():
            if isinstance(value, Tensor) and isinstance(target.get(key), Tensor) and target[key].shape == value.shape:
                target[key] = value  # the tensor itself, so that tied ones stay tied and frozen ones frozen
