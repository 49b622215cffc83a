"""What pooling, reshaping, slicing, padding and scaling a signal mean to mean-field theory."""

from __future__ import annotations

import torch

from wellcond.meanfield.calls import Call, two
from wellcond.meanfield.convolution import AveragePool, Flatten, GlobalPool
from wellcond.meanfield.field import Window
from wellcond.meanfield.means import Scaling
from wellcond.meanfield.signals import Signal


def same(call: Call, x: Signal) -> Signal:
    """Nothing happens to the signal."""
    return x


def dropout(call: Call, x: Signal) -> Signal:
    """Off, as where λ_max is measured."""
    call.remarks.append("dropout is taken as off")
    return x


def reshape(call: Call, x: Signal) -> Signal:
    """A feature map becomes a vector; a vector stays one."""
    if x.size is None or call.output is None:
        return x
    assert call.shape is not None
    if call.output == call.shape:
        return x
    if len(call.output) == 2 and call.output[0] == call.shape[0]:
        return x.moved(Flatten(), None)
    raise call.refused(f"it takes {tuple(call.shape)} to {tuple(call.output)}", "Flatten to (N, features).")


def adaptive_pool(call: Call, x: Signal) -> Signal:
    """The mean over all positions, or over windows of them."""
    (h, w), (new_h, new_w) = call.sizes
    if (new_h, new_w) == (1, 1):
        return x.moved(GlobalPool(), None)
    if h % new_h or w % new_w:
        raise call.refused(f"its windows differ: {h}×{w} positions become {new_h}×{new_w}")
    window = (h // new_h, w // new_w)
    return x.moved(AveragePool(Window((h, w), window, window)), (new_h, new_w))


def mean(call: Call, x: Signal) -> Signal:
    """x.mean((2, 3)): over all positions."""
    axes = call.argument(0, "dim", None)
    rank = 0 if call.shape is None else len(call.shape)
    axes = {axis % max(rank, 1) for axis in ([axes] if isinstance(axes, int) else axes or [])}
    if x.size is None or axes != set(range(2, rank)):
        raise call.refused("it averages over something else than the positions of a feature map")
    return x.moved(GlobalPool(), None)


def average_pool(call: Call, x: Signal) -> Signal:
    """The mean over windows."""
    pool = call.what
    if pool.ceil_mode or not pool.count_include_pad or getattr(pool, "divisor_override", None):
        raise call.refused(
            "windows at the border have a divisor of their own", "Leave its options as they are by default."
        )
    before, behind = call.sizes
    window = Window(before, two(pool.kernel_size), two(pool.stride), two(pool.padding, 0))
    return x.moved(AveragePool(window), behind)


def strided(call: Call, x: Signal) -> Signal:
    """x[:, :, ::s, ::s]: every s-th position of all channels."""
    index = call.arguments[0] if isinstance(call.arguments[0], tuple) else (call.arguments[0],)
    if any(not isinstance(part, slice) or part.start is not None or part.stop is not None for part in index):
        raise call.refused("it takes a part of the signal")
    before, behind = call.sizes
    assert call.shape is not None
    steps = [part.step or 1 for part in index] + [1] * (len(call.shape) - len(index))
    if steps[:2] != [1, 1]:
        raise call.refused("it takes a part of the examples or channels")
    if set(steps) == {1}:
        return x
    return x.moved(AveragePool(Window(before, (1, 1), two(steps[2:]))), behind)


def pad(call: Call, x: Signal) -> Signal:
    """Channels of zeros behind: mean squares over channels are smaller by the share of the others."""
    pads = tuple(call.arguments[0])
    if not any(pads):
        return x
    if call.shape is None or call.output is None or any(pads[: 2 * (len(call.shape) - 2)]) or call.options.get("value"):
        raise call.refused("it pads with something else than channels of zeros")
    share = torch.tensor(call.shape[1] / call.output[1], dtype=torch.float64)
    call.remarks.append("appended channels of zeros count as a part of all channels alike")
    return x.moved(Scaling(share, float(share)), x.size)


def scaled(call: Call, x: Signal) -> Signal:
    """Times a number."""
    factor = call.arguments[0] if call.arguments else None
    if not isinstance(factor, (int, float)):
        raise call.refused("it multiplies signals, or by a parameter")
    factor = 1 / factor if call.what == "truediv" else float(factor)
    return x.moved(Scaling(torch.tensor(factor**2, dtype=torch.float64), factor), x.size)
