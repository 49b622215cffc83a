"""How much each layer's gradient is scaled: the factors of scale-amended SGD (zhang2018, section 4), and why."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from wellcond.errors import UnknownLayer, WellcondError
from wellcond.network.chain import CURE, Call, ForwardPass, NotAChain, is_norm
from wellcond.network.layers import is_affine
from wellcond.results import number, text_table


class FactorMissing(WellcondError, ValueError):
    """Factors are given, but not for every layer that needs one."""


class LayerScale(NamedTuple):
    """What scales the gradient of one layer; None stands for what is unknown or does not apply.

    m: the backward factor. m_z: what the block multiplies m by for the blocks before it. q: positions, how many times
    an example meets each parameter. c: positions at the block's start over those at its end. units: rows of the weight.
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
        width = max((len(scale.why) for scale in self.values()), default=0)  # words read better from the left
        body = [[name, *map(_shown, scale[:4]), scale.why.ljust(width)] for name, scale in self.items()]
        table = text_table(["layer", *LayerScale._fields[:4], "why".ljust(width)], body)
        return "\n".join(line.rstrip() for line in table.splitlines())


def chain_scales(seen: ForwardPass) -> dict[str, LayerScale]:
    """Of a chain of layers, by algorithm 2: from the last block to the first, with m_z = n_out/(n_in·c).

    The trace of the local Hessian of a normalized block is the number of its outputs, so m_z is the number of
    elements that leave the block over the number that enter it.
    """
    chain = seen.chain()
    _check_formulas(seen)
    _warn_of_missing_norms(seen, chain)
    ends = [call.inputs.numel() for call in chain[1:]] + [seen.elements_of_output()]
    scales: dict[str, LayerScale] = {}
    m = 1.0
    for call, end in zip(reversed(chain), reversed(ends), strict=True):
        n_in, n_out = call.features
        m_z = end / call.inputs.numel()
        c = n_out / (n_in * m_z)
        why = _reason(call, c) + ("; the last layer" if call is chain[-1] else "")
        scales[call.name] = LayerScale(m, m_z, call.positions, c, n_out, why)
        m *= m_z
    return scales | dict(_in_their_blocks(seen, scales, LayerScale(m, why="before the first layer")))


def given_scales(seen: ForwardPass, factors: Mapping[str, float], names: Iterable[str]) -> dict[str, LayerScale]:
    """Of any network whose backward factors are given, by layer or by a module that holds it. names: all modules."""
    # parts of a module that computes everything itself are never called: nn.MultiheadAttention's projection
    held = {name: LayerScale(m, why="given") for name in names if (m := _given(name, factors)) is not None}
    scales: dict[str, LayerScale] = {}
    for call in seen.calls:
        m = _given(call.name, factors)
        if m is None and is_affine(call.module):
            raise FactorMissing(f"factors names neither {call.name!r} nor a module that holds it; give its m too.")
        if m is not None:
            # a layer that is called again meets its weight at more positions
            q = call.positions + (scales[call.name].q if call.name in scales else 0)
            units = call.features[1] if is_affine(call.module) else None
            scales[call.name] = LayerScale(m, None, q, None, units, "given")
    first = next((scales[call.name] for call in seen.calls if is_affine(call.module)), LayerScale(1.0))
    return held | scales | dict(_in_their_blocks(seen, scales, LayerScale(first.m, why="before the first layer")))


def _given(name: str, factors: Mapping[str, float]) -> float | None:
    """The factor of a module or of the closest one around it."""
    while name not in factors and name:
        name = name.rpartition(".")[0]
    return factors.get(name)


def check_factors(factors: Mapping[str, float], modules: Mapping[str, object]) -> None:
    """Raise if a factor is of no module, or not a positive number."""
    for name, m in factors.items():
        if name not in modules:
            raise UnknownLayer(name, modules)
        if not 0 < m < float("inf"):
            raise ValueError(f"the backward factor of {name!r} must be > 0 and finite, not {m}")


def _in_their_blocks(
    seen: ForwardPass, scales: Mapping[str, LayerScale], block: LayerScale
) -> Iterator[tuple[str, LayerScale]]:
    """Modules without a scale of their own have the m of the layer that was called before them."""
    for call in seen.calls:
        if call.name not in scales:
            yield call.name, block._replace(q=call.positions)
        elif is_affine(call.module):
            block = LayerScale(scales[call.name].m, why=f"in the block of {call.name!r}")


def _check_formulas(seen: ForwardPass) -> None:
    for call in seen.calls:
        matrices = {name for name, p in call.module.named_parameters(recurse=False) if p.dim() > 1}
        covered = {"weight"} if is_affine(call.module) else set()
        if not matrices <= covered and not is_norm(call.module):
            found = ", ".join(sorted(matrices - covered))
            kind = type(call.module).__name__
            raise NotAChain(f"there is no formula for the scale of {found} in {call.name!r} ({kind}). {CURE}")


def _warn_of_missing_norms(seen: ForwardPass, chain: list[Call]) -> None:
    """The last layer is exempt: the source amends it without a norm."""
    starts = [seen.calls.index(call) for call in chain]
    blocks = {call.name: seen.calls[i:j] for call, i, j in zip(chain, starts, starts[1:], strict=False)}
    bare = [name for name, block in blocks.items() if not any(is_norm(call.module) for call in block)]
    if bare:
        warnings.warn(
            f"no normalization follows {', '.join(map(repr, bare))}; the scales are those of normalized blocks, whose "
            "output does not grow with the weight.",
            stacklevel=2,
        )


def _reason(call: Call, c: float) -> str:
    n_in, n_out = call.features
    positions = call.positions_of(call.inputs)
    change = f"→{positions / c:g}" if c != 1 else ""
    return f"{n_in}→{n_out} features" + (f", {positions}{change} positions" if positions > 1 else "")


def _shown(value: float | None) -> str:
    if value is None:
        return ""
    return str(value) if isinstance(value, int) else number(value)
