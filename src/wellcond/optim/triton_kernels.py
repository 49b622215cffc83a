# mypy: ignore-errors
"""Algorithms 2 and 3 of lange2022 in two Triton kernels, each of which reads and writes everything once.

Numbers come in tensors, never as arguments, which Triton would round to single precision.
"""

import triton
import triton.language as tl


@triton.jit
def take_up(moments, batch, starts, constants, skipped, scales, columns, CAN_SKIP: tl.constexpr, BLOCK: tl.constexpr):
    """Steps 2 and 3 for one group of columns: lerp of μ and σ², and 1/(q² σ̃²)."""
    group = tl.program_id(0)
    begin, end = tl.load(starts + group), tl.load(starts + group + 1)
    q2, weight = tl.load(constants + 4 * group), tl.load(constants + 4 * group + 1)
    eps1, eps2 = tl.load(constants + 4 * group + 2), tl.load(constants + 4 * group + 3)
    stays = weight == 0
    if CAN_SKIP:  # the optimizer skips a step whose gradients are not finite
        stays = stays | (tl.load(skipped) != 0)
    largest = tl.zeros([BLOCK], dtype=moments.dtype.element_ty)
    for block in range(begin, end, BLOCK):
        column = block + tl.arange(0, BLOCK)
        inside = column < end
        mean = tl.load(moments + column, mask=inside, other=0)
        variance = tl.load(moments + columns + column, mask=inside, other=0)
        new_mean = mean + weight * (tl.load(batch + column, mask=inside, other=0) - mean)
        new_variance = variance + weight * (tl.load(batch + columns + column, mask=inside, other=0) - variance)
        mean, variance = tl.where(stays, mean, new_mean), tl.where(stays, variance, new_variance)
        tl.store(moments + column, mean, mask=inside)
        tl.store(moments + columns + column, variance, mask=inside)
        largest = tl.maximum(largest, tl.where(inside, variance, 0))
        tl.store(scales + column, variance, mask=inside)
    damping = eps1 * tl.max(largest, 0) + eps2
    tl.debug_barrier()
    for block in range(begin, end, BLOCK):
        column = block + tl.arange(0, BLOCK)
        inside = column < end
        variance = tl.load(scales + column, mask=inside, other=1)
        tl.store(scales + column, 1 / (q2 * (variance + damping)), mask=inside)


@triton.jit
def precondition_row(
    weight, bias, means, scales, constants, outputs, fan_in, repeats, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr
):
    """Steps 4 and 5 for one row of G_w and its entry of G_b."""
    row = tl.program_id(0)
    group = row // outputs
    first = group * (fan_in // repeats)
    weight += row.to(tl.int64) * fan_in
    dtype = means.dtype.element_ty
    if HAS_BIAS:
        bias_gradient = tl.load(bias + row).to(dtype)
    total = tl.zeros([BLOCK], dtype=dtype)
    for block in range(0, fan_in, BLOCK):
        entry = block + tl.arange(0, BLOCK)
        inside = entry < fan_in
        column = first + entry // repeats
        gradient = tl.load(weight + entry, mask=inside, other=0).to(dtype)
        scale = tl.load(scales + column, mask=inside, other=0)
        if HAS_BIAS:
            mean = tl.load(means + column, mask=inside, other=0)
            gradient = (gradient - bias_gradient * mean) * scale
            total += gradient * mean
        else:
            gradient *= scale
        tl.store(weight + entry, gradient.to(weight.dtype.element_ty), mask=inside)
    if HAS_BIAS:
        q2 = tl.load(constants + 4 * group)
        tl.store(bias + row, (bias_gradient / q2 - tl.sum(total, 0)).to(bias.dtype.element_ty))


def update(columns, batch, constants, rows, skipped):
    """Steps 2 and 3 for all layers in one kernel, steps 4 and 5 in one per layer.

    Args:
        columns: Statistics and scales; written.
        batch: μ_H and σ_H², (2, columns).
        constants: Those of the step.
        rows: Gradients; written.
        skipped: A number that is not 0 if the optimizer is going to skip the step: the statistics stay.
    """
    moments, scale, _, starts, layers, of_layers, largest = columns
    take_up[(len(starts) - 1,)](
        moments, batch, starts, constants.of_groups, moments if skipped is None else skipped, scale, len(scale),
        CAN_SKIP=skipped is not None, BLOCK=min(4096, triton.next_power_of_2(largest)),
        num_warps=16,
    )  # fmt: skip
    for layer, weight, bias in rows:
        groups, size, repeats = layers[layer]
        outputs = weight.numel() // (groups * size * repeats)
        precondition_row[(groups * outputs,)](
            weight, weight if bias is None else bias, *of_layers[layer], constants.of_layers[layer],
            outputs, size * repeats, repeats,
            HAS_BIAS=bias is not None, BLOCK=min(1024, triton.next_power_of_2(size * repeats)),
        )  # fmt: skip
