"""Merging batch normalizations into layers: the plain network with the same outputs in evaluation mode.

See proposition 7 of lange2022.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from wellcond.errors import Unsupported
from wellcond.network.calling import tensors_in
from wellcond.network.example_inputs import evaluating, example_inputs, run
from wellcond.network.isolation.arithmetic import own_arithmetic
from wellcond.network.isolation.copies import copied
from wellcond.network.layers import LinearRule, TransposedConvRule, as_stored, by_site, rule_for
from wellcond.network.taps import TrainingHook
from wellcond.nn.batchnorm import BatchNormVariant
from wellcond.nn.data_flow import CannotMerge, DataFlow
from wellcond.nn.replace import exchanged

KNOWN_FORWARDS = ("torch.nn.modules.", "transformers.pytorch_utils")
"""Modules whose forward passes have a known formula."""


@torch.inference_mode(False)  # tensors created in inference mode cannot be trained
@own_arithmetic()
def merge_batchnorm(model: nn.Module, inputs: Any = None) -> nn.Module:
    """Return a copy of the model with its batch normalizations merged into the neighboring layers.

    In evaluation mode a batch normalization is z = s·x + t in every channel, with s = γ/√(σ² + ε) and t = β − s·μ of
    the running statistics. Directly after a linear, convolutional or transposed convolutional layer it is merged back
    into it; otherwise, directly before such a layer, forwards:

        s (W x + b) + t = (diag(s) W) x + (s b + t),        W (s x + t) + b = (W diag(s)) x + (b + W t)

    Merged norms become `nn.Identity`, and layers without a bias get one. Neighbors are found by running the model: the
    tensor that one module returned is the one that the other received, perhaps in another shape, and nothing else used
    it. Only the path that the model takes on these inputs counts. On these inputs it is checked that the outputs stay
    the same in evaluation mode.

    A norm that cannot be merged exactly stays, and a `UserWarning` says why: it has no running statistics or no such
    neighbor; its neighbor is called twice, shares its weight, has hooks or its own forward pass; or it is before a
    convolution that pads with zeros, which the shift t cannot pass.

    Args:
        model: The model, which is not changed.
        inputs: Example inputs of the model: a tensor, a tuple or a dict. None makes them up (see `example_inputs`).

    Returns:
        The merged model. A compiled or DDP-wrapped model comes back as the plain module: wrap it again.

    Raises:
        Unsupported: There is no batch normalization, the model cannot be run, or merging would change its outputs.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU())
        >>> merge_batchnorm(model)
        Sequential(
          (0): Linear(in_features=4, out_features=8, bias=True)
          (1): Identity()
          (2): ReLU()
        )
    """
    merged, probe = copied(model), copied(model)
    norms = {name: module for name, module in merged.named_modules() if isinstance(module, _BatchNorm)}
    if not norms:
        raise Unsupported(f"{type(merged).__name__} has no batch normalization to merge.")
    if inputs is None:
        inputs = example_inputs(probe)
    flow = DataFlow(probe, inputs)
    affine: dict[str, tuple[Tensor, Tensor]] = {}
    reasons: dict[str, list[str]] = {name: [] for name in norms}
    for name, norm in norms.items():
        try:
            affine[name] = _affine(norm, calls=len(flow.calls[name]))
        except CannotMerge as reason:
            reasons[name].append(str(reason))
    in_order = [name for name in flow.calls if name in affine]
    directions = (
        (in_order, flow.layer_before, _fold_back, flow.merged_back),
        (in_order[::-1], flow.layer_after, _fold_forwards, flow.merged_forwards),
    )
    for order, neighbor, fold, merged_into in directions:
        for name in order:
            if name in reasons:
                try:
                    fold(layer := neighbor(name), merged.get_submodule(layer), *affine[name])
                except CannotMerge as reason:
                    reasons[name].append(str(reason))
                else:
                    merged_into(name, layer)
                    del reasons[name]
    gone: dict[nn.Module, nn.Module]
    gone = {norm: nn.Identity().train(norm.training) for name, norm in norms.items() if name not in reasons}
    merged = exchanged(merged, gone)
    _check_outputs(flow.outputs, merged, inputs)
    if reasons:
        listed = "; ".join(f"{name!r}: {', '.join(why)}" for name, why in reasons.items())
        warnings.warn(f"{len(reasons)} of {len(norms)} batch normalizations are not merged. {listed}.", stacklevel=4)
    return merged


def _affine(norm: _BatchNorm, calls: int) -> tuple[Tensor, Tensor]:
    """Scale s and shift t (C,) of a norm in evaluation mode, in float64."""
    if calls != 1:
        raise CannotMerge(f"it is called {calls} times" if calls else "it is not called on these inputs")
    exact = copy.deepcopy(norm).to("cpu", torch.float64)
    if isinstance(exact, BatchNormVariant):
        _check_forward("it", norm, of="wellcond.nn.")
        try:
            s, t = exact.inference_affine()
        except Unsupported as error:
            raise CannotMerge(str(error).rstrip(".")) from error
    else:
        _check_forward("it", norm)
        if exact.running_mean is None or exact.running_var is None:
            raise CannotMerge("it keeps no running statistics and normalizes by the batch")
        s = (exact.running_var + exact.eps).rsqrt() * (1 if exact.weight is None else exact.weight)
        t = (0 if exact.bias is None else exact.bias) - s * exact.running_mean
    if not (s.isfinite().all() and t.isfinite().all()):
        raise CannotMerge("its parameters or statistics hold NaN or inf")
    return s.detach(), t.detach()


def _fold_back(name: str, layer: nn.Module, s: Tensor, t: Tensor) -> None:
    """s (W x + b) + t = (diag(s) W) x + (s b + t)."""
    W, b = _weight_and_bias(name, layer)
    _set_weight_and_bias(layer, W * s.reshape(len(W), -1, 1, 1), s * b + t)


def _fold_forwards(name: str, layer: nn.Module, s: Tensor, t: Tensor) -> None:
    """W (s x + t) + b = (W diag(s)) x + (b + W t)."""
    W, b = _weight_and_bias(name, layer)
    if t.any() and not _shift_passes(layer):
        raise CannotMerge(f"its shift cannot pass the borders of {name!r} ({type(layer).__name__})")
    Wt = torch.einsum("goik,gi->go", W, t.reshape(len(W), -1)).flatten()
    _set_weight_and_bias(layer, W * s.reshape(len(W), 1, -1, 1), b + Wt)


def _shift_passes(layer: Any) -> bool:
    """Whether a constant shift of the input is a constant shift of the output, at the borders too."""
    rule = rule_for(layer)
    if isinstance(rule, (LinearRule, TransposedConvRule)):
        return isinstance(rule, LinearRule)
    return layer.padding_mode != "zeros" or not any(layer._reversed_padding_repeated_twice)


def _weight_and_bias(name: str, layer: Any) -> tuple[Tensor, Tensor]:
    """W (group, output, input, kernel site) and b (outputs,) of a layer whose formula is known, in float64."""
    _check_forward(f"{name!r}", layer)
    if not {"weight", "bias"} <= layer._parameters.keys():  # weight norm, pruning or another parametrization
        raise CannotMerge(f"the weight of {name!r} is computed from other parameters")
    W = by_site(layer, layer.weight.detach().to("cpu", torch.float64))
    b = W.new_zeros(W.shape[0] * W.shape[1]) if layer.bias is None else layer.bias.detach().to(W)
    return W, b


def _set_weight_and_bias(layer: Any, W: Tensor, b: Tensor) -> None:
    old, bias = layer.weight, layer.bias
    stored = torch.empty_like(old, requires_grad=False).copy_(as_stored(layer, W))
    layer.weight = nn.Parameter(stored, old.requires_grad)
    layer.bias = nn.Parameter(b.to(stored), (old if bias is None else bias).requires_grad)


def _check_forward(who: str, module: nn.Module, of: str | tuple[str, ...] = KNOWN_FORWARDS) -> None:
    methods = [getattr(type(module), name, None) for name in ("forward", "_conv_forward")]
    if "forward" in vars(module) or not all(m is None or m.__module__.startswith(of) for m in methods):
        raise CannotMerge(f"{who} has its own forward pass")
    hooks = [hook for hook in module._forward_hooks.values() if not isinstance(hook, TrainingHook)]
    if hooks or module._forward_pre_hooks:
        raise CannotMerge(f"{who} has forward hooks, which may change what it computes")


def _check_outputs(before: list[Tensor], merged: nn.Module, inputs: Any) -> None:
    """Check that the outputs are the same: a call that cannot be watched may have used a tensor.

    Raises:
        Unsupported: They are not.
    """
    trial = copied(merged)
    with evaluating(trial):
        after = tensors_in(run(trial, inputs))
    for old, new in zip(before, after, strict=True):
        finite = old.isfinite()
        if old.is_floating_point() and finite.any():
            error, size = (new - old)[finite].abs().max(), old[finite].abs().max()
            if not error <= torch.finfo(old.dtype).eps ** 0.5 * size:
                raise Unsupported(
                    f"merging would change the outputs by {float(error / size):.1e} of the largest. Either a scripted "
                    "function, which cannot be watched, uses what a layer returned; or the statistics of a norm are "
                    "so uneven that merging loses digits: merge a copy in float64."
                )
