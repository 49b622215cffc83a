"""What half precision changes: one batch as it is trained, compared with the same batch in float32."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from wellcond.network.calling import tensors_in
from wellcond.network.isolation.arithmetic import HALF, half_precision_ignored, precision_now, trained_in
from wellcond.network.isolation.copies import copied
from wellcond.network.isolation.precision import scaled_gradient
from wellcond.network.layers import called_modules
from wellcond.network.taps import tapped
from wellcond.problem.not_finite import not_finite_in
from wellcond.problem.problem import Problem

ROWS, COLUMNS = 64, 512
"""Examples, and entries of each, of a layer's input and output that are compared."""
NO_SPREAD = 1e-3
"""Spread over the examples, relative to the size, below which all are the same, and errors relative to the size."""


@dataclass(frozen=True)
class Rounded:
    """One layer's input and output in half precision, compared with float32.

    Attributes:
        layer: Name of the module.
        kind: Its type.
        dtype: Dtype of its output as it is trained.
        before: ‖x − x₃₂‖ of its input, relative to what differs between the examples; NaN where it is not finite.
        after: The same of its output.
        is_finite: Whether input and output are finite as trained.
        has_finite_input: Whether its input is.
        largest: Largest magnitude of its input and output in float32.
    """

    layer: str
    kind: str
    dtype: torch.dtype
    before: float
    after: float
    is_finite: bool
    has_finite_input: bool
    largest: float


@dataclass(frozen=True)
class Rounding:
    """One batch in half precision, compared with float32.

    Attributes:
        dtype: The half precision.
        scale: Scale of the loss with which gradients were computed; None without a `GradScaler`.
        layers: Every layer, in the order in which they end.
        loss: The loss as trained, without its scale.
        reference_loss: The loss in float32.
        gradient_error: ‖g − g₃₂‖/‖g₃₂‖ over all parameters; None if a gradient is missing or not finite.
        lost: Share of the gradient's entries that are zero as trained, of those that are not in float32.
        most_lost: Name of the parameter with the largest share, and this share.
        is_random: Whether numbers are drawn at random: others may be drawn in float32, so that errors tell nothing.
        overflows: Name of the last parameter whose gradient is finite in float32 only; "" if there is none.
    """

    dtype: torch.dtype
    scale: float | None
    layers: tuple[Rounded, ...]
    loss: float
    reference_loss: float
    is_random: bool
    gradient_error: float | None = None
    lost: float = 0.0
    most_lost: tuple[str, float] = ("", 0.0)
    overflows: str = ""


class _Call(NamedTuple):
    """A call of a module: samples of its input and output, and the largest magnitude in all of each."""

    name: str
    module: nn.Module
    x: Tensor | None
    y: Tensor | None
    largest_x: Tensor
    largest_y: Tensor


@dataclass(frozen=True)
class _Pass:
    """A pass: every call, the loss, its gradients, and the scale they were made with."""

    calls: list[_Call]
    loss: Tensor
    gradients: tuple[Tensor | None, ...]
    scale: float


def rounding(problem: Problem, batch: Any, dtypes: set[torch.dtype]) -> Rounding | None:
    """Compare a batch as it is trained with float32; None if no layer computes in half precision.

    Call it inside `problem.as_trained()` and `problem.measuring()`. It takes two passes, forward and backward.

    Args:
        problem: The problem.
        batch: Its first batch.
        dtypes: Dtypes that layers were seen to return.
    """
    now = precision_now()
    autocast = None if now is None else now.autocast
    half = autocast or next((dtype for dtype in HALF if dtype in (problem.dtype, *dtypes)), None)
    if half is None:
        return None
    state = None if now is None else now.scaler
    scale = None if state is None else float(state["scale"])
    trained = _passed(problem, batch, scale or 1.0)
    with _in_float32(problem, batch) as (reference_problem, reference_batch):
        reference = _passed(reference_problem, reference_batch, 1.0)
    names = list(problem.params)
    return Rounding(
        half,
        None if scale is None else trained.scale,
        tuple(_compared(trained, reference)),
        float(trained.loss),
        float(reference.loss),
        problem.is_random,
        **_gradients_compared(dict(zip(names, zip(trained.gradients, reference.gradients, strict=True), strict=True))),
    )


@contextlib.contextmanager
def _in_float32(problem: Problem, batch: Any) -> Iterator[tuple[Problem, Any]]:
    """The problem and the batch, with all that is computed in float32: also what the model itself would cast."""
    with trained_in(None), half_precision_ignored():
        if not any(p.dtype in HALF for p in problem.model.parameters()):
            yield problem, batch
            return
        upcast = tree_map(_as_float32, batch)
        other = Problem(
            copied(problem.model).float(), problem.loss, [upcast], problem.batchnorm, dropout=problem.dropout
        )
        with other.measuring():
            yield other, upcast


def _as_float32(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in HALF else value


def _passed(problem: Problem, batch: Any, scale: float) -> _Pass:
    calls: list[_Call] = []

    def on_call(name: str, module: nn.Module, x: Any, output: Any) -> None:
        calls.append(_Call(name, module, _sample(x), _sample(output), _largest(x), _largest(output)))

    with tapped(called_modules(problem.model), on_call):
        raw = problem.forward(0, batch[0])
    loss = problem.raw_loss(raw, batch[1])
    loss = loss if loss.numel() == 1 else loss.mean()
    params = list(problem.params.values())
    gradients: tuple[Tensor | None, ...] = (None,) * len(params)
    if loss.requires_grad:
        problem.count_backward()
        gradients, scale = scaled_gradient(loss, params, scale, allow_unused=True)
    return _Pass(calls, loss.detach().float().reshape(()), gradients, scale)


def _sample(value: Any) -> Tensor | None:
    """Some entries (examples, entries) of the first tensor in a value, in its dtype."""
    tensor = next((t for t in tensors_in(value) if t.is_floating_point() and t.dim() and t.numel()), None)
    if tensor is None:
        return None
    rows = tensor.detach()[:ROWS].flatten(1) if tensor.dim() > 1 else tensor.detach()[:ROWS, None]
    return rows[:, :: max(1, rows.shape[1] // COLUMNS)].clone()


def _largest(value: Any) -> Tensor:
    """Largest magnitude of all tensors in a value; NaN if there is one."""
    tensors = [t.detach() for t in tensors_in(value) if t.is_floating_point() and t.numel()]
    return torch.stack([t.abs().max().float() for t in tensors]).max() if tensors else torch.zeros(())


def _compared(trained: _Pass, reference: _Pass) -> Iterator[Rounded]:
    """Layers that both passes call, in order."""
    for call, exact in zip(trained.calls, reference.calls, strict=False):
        if call.name != exact.name:
            return  # what is called depends on the values
        if call.y is None or exact.y is None or call.y.shape != exact.y.shape:
            continue
        is_same = call.x is not None and exact.x is not None and call.x.shape == exact.x.shape
        has_finite_input = bool(call.largest_x.isfinite())
        yield Rounded(
            call.name,
            type(call.module).__name__,
            call.y.dtype,
            _error(call.x, exact.x) if is_same else 0.0,
            _error(call.y, exact.y),
            has_finite_input and bool(call.largest_y.isfinite()),
            has_finite_input,
            max(float(exact.largest_x), float(exact.largest_y)),
        )


def _error(value: Any, reference: Any) -> float:
    value, reference = value.double(), reference.double()
    size = reference.norm()
    spread = (reference - reference.mean(0)).norm()
    error = (value - reference).norm() / (spread if bool(spread > NO_SPREAD * size) else size).clamp_min(1e-300)
    return float(error) if bool(reference.isfinite().all()) else 0.0


def _gradients_compared(gradients: Mapping[str, tuple[Tensor | None, Tensor | None]]) -> dict[str, Any]:
    known = {name: (g, g32) for name, (g, g32) in gradients.items() if g is not None and g32 is not None}
    finite = [name for name, (_, g32) in known.items() if not not_finite_in(g32)]
    overflows = [name for name in finite if not_finite_in(known[name][0])]
    if not known or len(finite) < len(known):
        return {}
    if overflows:
        return {"overflows": overflows[-1]}
    known = {name: (g.float(), g32) for name, (g, g32) in known.items()}
    total = _sum(g32.square().sum() for _, g32 in known.values())
    wrong = _sum((g - g32).square().sum() for g, g32 in known.values())
    counts = {name: (_zeros(g, g32), int((g32 != 0).sum())) for name, (g, g32) in known.items()}
    shares = {name: zero / count for name, (zero, count) in counts.items() if count}
    most = max(shares, key=shares.__getitem__, default="")
    return {
        "gradient_error": (wrong / total) ** 0.5 if total else None,
        "lost": sum(zero for zero, _ in counts.values()) / max(sum(count for _, count in counts.values()), 1),
        "most_lost": (most, shares.get(most, 0.0)),
    }


def _zeros(g: Tensor, g32: Tensor) -> int:
    return int(((g == 0) & (g32 != 0)).sum())


def _sum(values: Iterator[Tensor]) -> float:
    return sum(float(value.double()) for value in values)
