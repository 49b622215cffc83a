"""How much each layer's gradient is scaled: the factors of scale-amended SGD (zhang2018, section 4), and why."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import torch

from wellcond.errors import UnknownLayer, Unsupported
from wellcond.network.forward_pass import ForwardPass, LayerCall
from wellcond.network.layers import is_affine
from wellcond.network.norms import is_norm
from wellcond.results import number, text_table

CURE = "The factors follow from the network only for a chain of layers; pass factors={layer: backward factor m, …}."


class LayerScale(NamedTuple):
    """The factors that scale the gradient of one layer; None if unknown or not applicable.

    Attributes:
        m: Backward factor.
        m_z: Factor by which the block multiplies m for the blocks before it.
        q: Positions: the number of times that an example uses each parameter.
        c: Positions at the block's start over those at its end.
        units: Number of rows of the weight.
        why: Origin of the numbers.
    """

    m: float | None = None
    m_z: float | None = None
    q: int = 1
    c: float | None = None
    units: int | None = None
    why: str = "not seen yet"


class Factors(dict[str, LayerScale]):
    """The scales of all layers by name; prints as a table."""

    def __repr__(self) -> str:
        width = max((len(scale.why) for scale in self.values()), default=0)  # text is aligned to the left
        body = [[name, *map(_shown, scale[:4]), scale.why.ljust(width)] for name, scale in self.items()]
        table = text_table(["layer", *LayerScale._fields[:4], "why".ljust(width)], body)
        return "\n".join(line.rstrip() for line in table.splitlines())


def chain_scales(seen: ForwardPass) -> dict[str, LayerScale]:
    """The scales of a chain of layers, by algorithm 2: from the last block to the first, with m_z = n_out/(n_in·c).

    m_z is the number of elements that leave a block over the number that enter it.
    """
    try:
        chain = seen.chain()
        _check_formulas(seen)
    except Unsupported as error:
        raise Unsupported(f"{error} {CURE}") from error
    _warn_of_missing_norms(seen, chain)
    ends = [call.input_shape.numel() for call in chain[1:]] + [_elements_of_output(seen)]
    scales: dict[str, LayerScale] = {}
    m = 1.0
    for call, end in zip(reversed(chain), reversed(ends), strict=True):
        n_in, n_out = _features(call)
        m_z = end / call.input_shape.numel()
        c = n_out / (n_in * m_z)
        why = _reason(call, c) + ("; the last layer" if call is chain[-1] else "")
        scales[call.name] = LayerScale(m, m_z, _positions(call), c, n_out, why)
        m *= m_z
    return scales | dict(_in_their_blocks(seen, scales, LayerScale(m, why="before the first layer")))


def given_scales(seen: ForwardPass, factors: Mapping[str, float], names: Iterable[str]) -> dict[str, LayerScale]:
    """The scales of any network, from backward factors by the names of layers or of modules around them."""
    # parts of a module that computes everything itself are never called: nn.MultiheadAttention's projection
    held = {name: LayerScale(m, why="given") for name in names if (m := _given(name, factors)) is not None}
    scales: dict[str, LayerScale] = {}
    for call in seen.calls:
        m = _given(call.name, factors)
        if m is None and is_affine(call.module):
            raise Unsupported(f"factors names neither {call.name!r} nor a module around it; add its m.")
        if m is not None:
            # a layer that is called again uses its weight at more positions
            q = _positions(call) + (scales[call.name].q if call.name in scales else 0)
            units = _features(call)[1] if is_affine(call.module) else None
            scales[call.name] = LayerScale(m, None, q, None, units, "given")
    first = next((scales[call.name] for call in seen.calls if is_affine(call.module)), LayerScale(1.0))
    return held | scales | dict(_in_their_blocks(seen, scales, LayerScale(first.m, why="before the first layer")))


def _given(name: str, factors: Mapping[str, float]) -> float | None:
    """The factor of a module or of the closest one around it."""
    while name not in factors and name:
        name = name.rpartition(".")[0]
    return factors.get(name)


def check_factors(factors: Mapping[str, float], modules: Mapping[str, object]) -> None:
    """Raise if a factor belongs to no module, or is not a positive number."""
    for name, m in factors.items():
        if name not in modules:
            raise UnknownLayer(name, modules)
        if not 0 < m < float("inf"):
            raise ValueError(f"the backward factor of {name!r} must be > 0 and finite, not {m}")


def _in_their_blocks(
    seen: ForwardPass, scales: Mapping[str, LayerScale], block: LayerScale
) -> Iterator[tuple[str, LayerScale]]:
    """Modules without a scale of their own take the m of the layer that was called before them."""
    for call in seen.calls:
        if call.name not in scales:
            yield call.name, block._replace(q=_positions(call))
        elif is_affine(call.module):
            block = LayerScale(scales[call.name].m, why=f"in the block of {call.name!r}")


def _check_formulas(seen: ForwardPass) -> None:
    for call in seen.calls:
        matrices = {name for name, p in call.module.named_parameters(recurse=False) if p.dim() > 1}
        covered = {"weight"} if is_affine(call.module) else set()
        if not matrices <= covered and not is_norm(call.module):
            names = ", ".join(sorted(matrices - covered))
            kind = type(call.module).__name__
            raise Unsupported(f"there is no formula for the scale of {names} in {call.name!r} ({kind}).")


def _warn_of_missing_norms(seen: ForwardPass, chain: list[LayerCall]) -> None:
    """Warn of layers without a norm, except the last one, which the paper amends without a norm."""
    starts = [seen.calls.index(call) for call in chain]
    blocks = {call.name: seen.calls[i:j] for call, i, j in zip(chain, starts, starts[1:], strict=False)}
    bare = [name for name, block in blocks.items() if not any(is_norm(call.module) for call in block)]
    if bare:
        warnings.warn(
            f"no normalization follows {', '.join(map(repr, bare))}; the scales are those of normalized blocks, whose "
            "output does not grow with the weight.",
            stacklevel=2,
        )


def _features(call: LayerCall) -> tuple[int, int]:
    """n_in and n_out: features or channels of the input and of the output."""
    axis = -1 - _spatial_axes(call)
    return call.input_shape[axis], call.output_shape[axis]


def _positions(call: LayerCall) -> int:
    """q: the number of times that an example uses each parameter. For a convolution, the size of its output, q₁·q₂.

    For a norm, or another module that acts on each feature by itself: elements of its output per parameter.
    """
    if is_affine(call.module):
        return _positions_in(call, call.output_shape)
    own = list(call.module.parameters(recurse=False))
    if not own or any(p.dim() > 1 for p in own):
        return 1
    return max(1, math.prod(call.output_shape[1:]) // max(p.numel() for p in own))


def _positions_in(call: LayerCall, shape: torch.Size) -> int:
    """Pixels of a convolution's input or output, tokens of a linear layer's."""
    axes = _spatial_axes(call)
    return math.prod(shape[-axes:] if axes else shape[1:-1])


def _spatial_axes(call: LayerCall) -> int:
    return len(getattr(call.module, "kernel_size", ()))


def _elements_of_output(seen: ForwardPass) -> int:
    """Elements of the network's output over the batch; a model that returns its loss ends at its last layer."""
    sizes = [t.numel() for t in seen.outputs if t.dim()]
    layers = (call for call in reversed(seen.calls) if is_affine(call.module))
    return max(sizes, default=0) or next(layers).output_shape.numel()


def _reason(call: LayerCall, c: float) -> str:
    n_in, n_out = _features(call)
    positions = _positions_in(call, call.input_shape)
    change = f"→{positions / c:g}" if c != 1 else ""
    return f"{n_in}→{n_out} features" + (f", {positions}{change} positions" if positions > 1 else "")


def _shown(value: float | None) -> str:
    if value is None:
        return ""
    return str(value) if isinstance(value, int) else number(value)
