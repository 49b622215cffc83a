"""Rules for calls without weights: what they do to positions, shapes and scales."""

from __future__ import annotations

import math

from wellcond.learning_rate.meanfield.feature_maps import AveragePool, Flatten, GlobalPool, Window, two
from wellcond.learning_rate.meanfield.moments import float64
from wellcond.learning_rate.meanfield.signal import ReadCall, Signal
from wellcond.learning_rate.meanfield.stages import Scaling


def same(call: ReadCall, x: Signal) -> Signal:
    """The signal does not change."""
    return x


def dropout(call: ReadCall, x: Signal) -> Signal:
    """Dropout is off, as in measurements of λ_max."""
    call.remarks.append("dropout is treated as off")
    return x


def reshape(call: ReadCall, x: Signal) -> Signal:
    """A feature map becomes a vector; a vector stays one."""
    if x.size is None or call.output == call.shape:
        return x
    if len(call.output) == 2 and call.output[0] == call.shape[0]:
        return x.then(Flatten(), None)
    raise call.refused(f"it takes {tuple(call.shape)} to {tuple(call.output)}", "Flatten to (N, features).")


def adaptive_pool(call: ReadCall, x: Signal) -> Signal:
    """The mean over all positions, or over windows of them."""
    (h, w), (new_h, new_w) = call.sizes
    if (new_h, new_w) == (1, 1):
        return x.then(GlobalPool(h * w), None)
    if h % new_h or w % new_w:
        raise call.refused(f"its windows differ: {h}×{w} positions become {new_h}×{new_w}")
    window = (h // new_h, w // new_w)
    return x.then(AveragePool(Window((h, w), window, window)), (new_h, new_w))


def mean(call: ReadCall, x: Signal) -> Signal:
    """x.mean((2, 3)): over all positions."""
    dims, rank = call.argument(0, "dim", None), len(call.shape)
    axes = {axis % rank for axis in ([dims] if isinstance(dims, int) else dims or [])}
    if x.size is None or axes != set(range(2, rank)):
        raise call.refused("it averages over something other than the positions of a feature map")
    return x.then(GlobalPool(math.prod(x.size)), None)


def average_pool(call: ReadCall, x: Signal) -> Signal:
    """The mean over windows."""
    pool = call.what
    if pool.ceil_mode or not pool.count_include_pad or getattr(pool, "divisor_override", None):
        raise call.refused("windows at the border have another divisor", "Leave its options at their defaults.")
    before, after = call.sizes
    window = Window(before, two(pool.kernel_size), two(pool.stride), two(pool.padding, 0))
    return x.then(AveragePool(window), after)


def strided(call: ReadCall, x: Signal) -> Signal:
    """x[:, :, ::s, ::s]: every s-th position of all channels."""
    index = call.arguments[0] if isinstance(call.arguments[0], tuple) else (call.arguments[0],)
    if any(not isinstance(part, slice) or part.start is not None or part.stop is not None for part in index):
        raise call.refused("it takes a part of the signal")
    steps = [part.step or 1 for part in index] + [1] * (len(call.shape) - len(index))
    if steps[:2] != [1, 1]:
        raise call.refused("it takes a part of the examples or channels")
    if set(steps) == {1}:
        return x
    before, after = call.sizes
    return x.then(AveragePool(Window(before, (1, 1), two(steps[2:]))), after)


def pad(call: ReadCall, x: Signal) -> Signal:
    """Append channels of zeros: mean squares over channels shrink by the share of the others."""
    pads = tuple(call.argument(0, "pad", ()))
    if not any(pads):
        return x
    if any(pads[: 2 * (len(call.shape) - 2)]) or call.options.get("value"):
        raise call.refused("it pads with something other than channels of zeros")
    share = call.shape[1] / call.output[1]
    call.remarks.append("appended channels of zeros are treated as spread over all channels")
    return x.then(Scaling(float64(share), share), x.size)


def scaled(call: ReadCall, x: Signal) -> Signal:
    """The signal times a number, or divided by one."""
    factor = call.argument(0, "other", None)
    if not isinstance(factor, (int, float)):
        raise call.refused("it multiplies signals, or by a parameter")
    factor = 1 / factor if call.kind == "div" else float(factor)
    return x.then(Scaling(float64(factor**2), factor), x.size)
